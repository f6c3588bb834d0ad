//! The state of an import: notes, comments, ids of steps, and steps that query git.

pub(crate) mod changes;
pub(crate) mod context;
pub(crate) mod ids;
