//! The SQLite store, from outside.

mod contract;
mod support;
