//! Texts with variables: commands, templates and conditions.

pub(crate) mod command;
pub(crate) mod condition;
