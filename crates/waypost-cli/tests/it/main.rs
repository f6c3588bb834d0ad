//! Tests of the command, through the real program: what it prints and how it exits, in one snapshot.

#![expect(clippy::unwrap_used, reason = "these are tests")]

mod bad_input;
mod cancelling;
mod checkup;
mod config;
mod database;
mod demo;
mod displaced;
mod examples;
mod foreach;
mod help;
mod history;
mod invariants;
mod killed;
mod looking;
mod lost;
mod new;
mod newer;
mod once;
mod paper;
mod pruning;
mod reading;
mod repeating;
mod report;
mod resuming;
mod rig;
mod running;
mod screens;
mod signals;
mod travel;
mod waiting;
