//! Reference model of recovery: which steps a resume runs again.
//!
//! An executable form of the rules of the engine over plain values, small enough to be read in one go. Random
//! workflows are played against it with crashes at any commit, and oracles check each run at rest. The oracles compare
//! truths, the values that executions read, and never digests. Each rule can be switched off: the oracles must then
//! find a counterexample.
//!
//! The model knows no store, no clock and no process. Its `World` stands for files, hidden inputs and failures. Only
//! `drive` knows the real engine: it compares what that does with the model.

pub mod chains;
pub mod check;
pub mod definition;
pub mod drive;
pub mod engine;
pub mod generate;
pub mod play;
pub mod position;
pub mod request;
pub mod rule;
pub mod world;

pub use engine::Engine;
pub use play::{Feature, Statistics};
pub use rule::{Rule, Rules};
