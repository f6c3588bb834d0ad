//! Long work that survives: durable runs, checkpoints with evidence, and an exact resume.
//!
//! A run is a chain of checkpoints; the newest one says all that is unfinished. [`plan`] turns that into decisions,
//! purely; [`engine`] carries them out and appends what happened to a [`store`]. Read [`record`], [`store`] and
//! [`plan`], in this order, and you have the whole idea.
//!
//! ```
//! use std::sync::Arc;
//! use waypost::memory::MemoryStore;
//! use waypost::store::{RunQuery, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), waypost::store::StoreError> {
//! // Every store answers the same questions: here, which runs can be resumed.
//! let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
//! let runs = store.runs(&RunQuery::default()).await?.runs;
//! assert!(runs.iter().all(|run| !run.status.is_resumable()));
//! # Ok(())
//! # }
//! ```

pub mod change;
pub mod clock;
pub mod diff;
pub mod disk;
pub mod engine;
pub mod events;
pub mod evidence;
pub mod file;
pub mod folder;
pub mod graph;
pub mod id;
pub mod lock;
pub mod memory;
pub mod path;
pub mod plan;
pub mod portable;
pub mod record;
pub mod recorder;
pub mod report;
pub mod schema;
mod sealed;
pub mod shape;
pub mod store;

pub use clock::{Clock, SystemClock};
pub use engine::{Engine, Outcome, RunError};
pub use graph::{Context, END, Graph, GraphError, StepError};
pub use id::{BranchPath, CheckpointRef, Digest, InvalidName, RunId, StepId};
pub use shape::Retry;
