//! Long work that survives: durable runs, checkpoints with evidence, and an exact resume.

pub mod change;
pub mod clock;
pub mod disk;
pub mod engine;
pub mod events;
pub mod file;
pub mod folder;
pub mod graph;
pub mod id;
pub mod lock;
pub mod memory;
pub mod plan;
pub mod record;
pub mod report;
pub mod store;

pub use clock::{Clock, SystemClock};
pub use id::{BranchPath, CheckpointRef, Digest, InvalidName, RunId, StepId};
