//! Workflow files and processes for Waypost.

pub mod expr;
pub mod file;
pub mod log;
pub mod mask;
pub mod output;
pub mod program;
mod suggest;
pub mod supervisor;

pub use suggest::nearest;
