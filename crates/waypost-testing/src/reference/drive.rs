//! Runs generated workflows on the real engine with the memory store and a crash at each store call.
//!
//! `script` generates a workflow and its rounds of trouble, and takes the expected executions from the model.
//! `program` presents the workflow to the engine. `shared_world` is the world of the steps, with the oracles.
//! `play` runs a script undisturbed and then with crashes. The module uses only the public interface of the
//! engine.

mod play;
mod program;
mod script;
mod shared_world;

pub use play::{Crash, Defect, Level, find};
pub(super) use play::{Rounds, first_defect};
pub use script::Requests;
pub(super) use shared_world::{FileProbe, KIND};
