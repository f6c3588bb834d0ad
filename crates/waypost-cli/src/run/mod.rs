//! A run as a command reads it: references, definition in force, params, status, budget, evidence, and failed items.

pub(crate) mod bases;
pub(crate) mod current_evidence;
pub(crate) mod dead_letters;
pub(crate) mod definition;
pub(crate) mod disk_use;
pub(crate) mod doubt;
pub(crate) mod environment;
pub(crate) mod failed_item;
pub(crate) mod failed_step;
pub(crate) mod hooks;
pub(crate) mod idle_times;
pub(crate) mod included_files;
pub(crate) mod keepalive;
pub(crate) mod limits;
pub(crate) mod needs;
pub(crate) mod params;
pub(crate) mod preflight;
pub(crate) mod progress;
pub(crate) mod questions;
pub(crate) mod reference;
pub(crate) mod refusals;
pub(crate) mod run_status;
pub(crate) mod unfinished_undo;
pub(crate) mod workflow_file;
