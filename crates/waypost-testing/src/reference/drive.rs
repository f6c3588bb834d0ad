//! Generated workflows through the real engine, on the store in memory, with a crash at each call to the store.
//!
//! `script` makes a workflow and rounds of trouble, and takes the executions of each round from the model. `program`
//! gives the workflow to the engine. `outside` is the world that its steps read and write, with the oracles. `play`
//! runs a script undisturbed and then with crashes. Only the public interface of the engine is used.

mod command;
mod outside;
mod play;
mod program;
mod script;

pub use command::{CommandScript, CommandWorld, Effects, Event};
pub(super) use outside::{FileProbe, KIND};
pub use play::{Crash, Defect, Level, find};
pub(super) use play::{Rounds, first_defect};
