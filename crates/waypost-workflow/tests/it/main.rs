//! Integration tests of workflow files and processes, one module a topic.

mod log;
mod mask;
mod rig;
mod supervisor;
mod supervisor_kills;
