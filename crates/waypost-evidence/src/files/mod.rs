//! `artifact_exists` and `json_value`: the content of files.

pub(crate) mod file;
pub(crate) mod json;
