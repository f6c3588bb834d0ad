//! Tests of the command, through the real program: what it prints and how it exits, in one snapshot.

#![expect(clippy::unwrap_used, reason = "these are tests")]

mod agents;
mod announcing;
mod bad_input;
mod cancelling;
mod checkup;
mod children;
mod config;
mod database;
mod demo;
mod displaced;
mod dry;
mod everywhere;
mod examples;
mod foreach;
mod help;
mod history;
mod hooks;
mod importing;
mod invariants;
mod killed;
mod limits;
mod looking;
mod lost;
mod marking;
mod new;
mod newer;
mod once;
mod paper;
mod prodigy;
mod pruning;
mod reading;
mod repeating;
mod report;
mod resuming;
mod rig;
mod running;
mod screens;
mod services;
mod setting;
mod signals;
mod standing;
mod travel;
mod waiting;
