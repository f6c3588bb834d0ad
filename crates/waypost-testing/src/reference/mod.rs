//! Reference model of recovery: which steps a resume runs again.
//!
//! The model states the rules of the engine over plain values, and is short enough to read as a whole. Random
//! workflows are played on the model with crashes at any commit, and oracles check each run at rest. Oracles
//! compare the values that executions read, never digests. Each rule can be switched off: the oracles must
//! then find a counterexample.
//!
//! The model does not know stores, clocks or processes. Its `World` replaces files, hidden inputs and
//! failures. Only `drive` knows the real engine, and compares its executions with the model.

pub mod chains;
pub mod check;
pub mod definition;
pub mod drive;
pub mod engine;
pub mod generate;
pub mod lockstep;
pub mod play;
pub mod position;
pub mod request;
pub mod rule;
pub mod world;

pub use engine::Engine;
pub use play::{Feature, Statistics};
pub use rule::{Rule, Rules};
