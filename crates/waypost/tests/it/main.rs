//! Tests of the library, in one binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by failing")]

mod branches;
mod contract;
mod engine;
mod events;
mod faulty;
mod file;
mod file_crash;
mod file_rig;
mod folder;
mod graph;
mod lock;
mod plan;
mod play;
mod report;
mod toy;
