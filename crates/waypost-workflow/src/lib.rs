//! Workflow files and processes for Waypost.

pub mod supervisor;
