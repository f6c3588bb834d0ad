//! Workflow files and processes for Waypost.

pub mod log;
pub mod mask;
pub mod supervisor;
pub mod expr;
pub mod file;
pub mod output;
mod suggest;
