//! Tests of the library, in one binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by failing")]

mod contract;
mod engine;
mod file;
mod file_rig;
mod folder;
mod lock;
mod plan;
mod records;
mod toy;
