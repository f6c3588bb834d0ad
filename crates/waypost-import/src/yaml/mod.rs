//! YAML for the converted file: scalars, entries and comments.

pub(crate) mod document;
pub(crate) mod scalar;
