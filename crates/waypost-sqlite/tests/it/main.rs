//! The SQLite store, from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by failing")]

mod contract;
mod counters;
mod crash;
mod damage;
mod economy;
mod graphs;
mod group_commit;
mod old;
mod opening;
mod processes;
mod projector;
mod support;
mod tail_check;
