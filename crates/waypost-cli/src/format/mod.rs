//! Times, sizes and shell words as text.

pub(crate) mod size;
pub(crate) mod text;
pub(crate) mod time;
