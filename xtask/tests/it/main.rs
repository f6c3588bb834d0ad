//! Tests of what the repository ships beside the crates: the chores and the example.

#![expect(clippy::unwrap_used, reason = "a helper of a test stops it where it cannot go on")]

mod audit;
mod chores;
#[cfg(target_os = "linux")]
mod prove;
