//! Programs that a claim names, and the processes of the machine.

pub(crate) mod command;
pub(crate) mod environment;
pub(crate) mod exec;
pub(crate) mod git;
pub(crate) mod process;
pub(crate) mod process_group;
