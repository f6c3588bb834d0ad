//! Workflow files and processes for Waypost.
