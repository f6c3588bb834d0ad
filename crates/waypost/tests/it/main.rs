//! Tests of the library, in one binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by failing")]

mod branches;
mod contract;
mod diff;
mod doubt;
mod engine;
mod events;
mod evidence;
mod examples;
mod faulty;
mod file;
mod file_crash;
mod file_rig;
mod folder;
mod frozen;
mod graph;
mod guide;
mod history;
mod lock;
mod lost;
mod pages;
mod plan;
mod play;
mod portable;
mod random_graphs;
mod recorder;
mod report;
mod retries;
mod schema;
mod strict;
mod toy;
mod traces;
mod traps_2;
mod traps_5;
mod travel;
mod waits;
