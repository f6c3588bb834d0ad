//! Workflow files and processes for Waypost.
//!
//! ```
//! use std::path::Path;
//!
//! use waypost_workflow::file::Workflow;
//!
//! let text = "steps:\n  - { id: fetch, run: make data }\n  - { id: load, run: ./load.sh }\n";
//! let workflow = Workflow::parse(text, Path::new("nightly.yaml")).unwrap();
//!
//! assert_eq!((workflow.name(), workflow.steps().len()), ("nightly", 2));
//! ```
//!
//! | module | owns |
//! |---|---|
//! | [`file`](mod@file) | the workflow file: keys, checks, problems with their place |
//! | [`expr`] | expressions, `${{ }}`, and the values that they read |
//! | [`program`] | the execution of steps, as a program for the engine of `waypost` |
//! | [`supervisor`] | processes: none outlives its run |
//! | [`log`], [`output`], [`mask`] | the printed text of steps, their outputs, secrets |
//!
//! The crate appends no record, and makes no decision about a run.

pub mod expr;
pub mod file;
pub mod log;
pub mod mask;
pub mod output;
pub mod program;
mod suggest;
pub mod supervisor;

pub use suggest::nearest;
