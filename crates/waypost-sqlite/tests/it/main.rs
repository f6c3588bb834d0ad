//! The SQLite store, from outside.

mod contract;
mod crash;
mod damage;
mod group;
mod opening;
mod processes;
mod support;
