//! Variables of Prodigy: their positions in a command, and their meaning.

pub(crate) mod names;
pub(crate) mod shell;
