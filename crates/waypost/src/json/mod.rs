//! JSON values: the paths that name a value, the differences between two states, and a strict reader.

pub mod diff;
pub mod json_path;
pub mod path;
pub mod unique_keys;
