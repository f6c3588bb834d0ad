//! Tests of the library, in one binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by failing")]

mod contract;
mod engine;
mod events;
mod file;
mod folder;
mod lock;
mod plan;
mod records;
mod report;
mod toy;
