//! Times, sizes, exit codes and shell words as text; parts of HTML pages; the size of the terminal.

pub(crate) mod exit_code;
pub(crate) mod html;
pub(crate) mod size;
pub(crate) mod terminal;
pub(crate) mod text;
pub(crate) mod time;
pub(crate) mod wrap;
