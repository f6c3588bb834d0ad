//! Workflow files and processes for Waypost.

pub mod expr;
pub mod file;
pub mod output;
mod suggest;
pub mod supervisor;
