//! The PostgreSQL store, from outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by failing")]

mod contract;
mod faults;
mod graphs;
mod logs;
mod model;
mod opening;
mod pooler;
mod proxy;
mod queue;
mod support;
mod tasks;
