//! Integration tests of workflow files and processes, one module a topic.

mod rig;
mod supervisor;
mod supervisor_kills;
