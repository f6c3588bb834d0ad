//! JSON values of states: the paths that name a value, and the differences between two states.

pub mod diff;
pub mod path;
