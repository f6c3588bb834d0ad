//! Workflow files and processes for Waypost.

pub mod log;
pub mod mask;
pub mod supervisor;
