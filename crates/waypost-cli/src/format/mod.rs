//! Times, sizes, exit codes and shell words as text.

pub(crate) mod exit_code;
pub(crate) mod size;
pub(crate) mod text;
pub(crate) mod time;
