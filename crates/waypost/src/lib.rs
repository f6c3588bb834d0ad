//! Durable execution of long work: runs, checkpoints with evidence, and exact resume.
//!
//! A [`Graph`] consists of steps: functions from a state to the next state. An [`Engine`] runs a graph over a
//! store and writes a checkpoint after every step. After a crash at any moment, a resume continues at the
//! last checkpoint: finished steps are not repeated, and unfinished steps are not left out.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use waypost::{Context, Engine, FileStore, Graph, Retry, StepError};
//!
//! #[derive(Debug, Default, Clone, Serialize, Deserialize)]
//! struct Import {
//!     rows: u32,
//! }
//!
//! async fn fetch(mut state: Import, _: Context) -> Result<Import, StepError> {
//!     println!("fetching");
//!     state.rows = 1_000;
//!     Ok(state)
//! }
//!
//! async fn load(state: Import, _: Context) -> Result<Import, StepError> {
//!     println!("loading"); // Kill the program here, with `kill -9`, and start it again.
//!     tokio::time::sleep(Duration::from_secs(30)).await;
//!     Ok(state)
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let graph = Graph::<Import>::builder("import")
//!     .step_with("fetch", fetch, |step| step.retry(Retry::exponential(3)))
//!     .step("load", load)
//!     .chain(["fetch", "load"])
//!     .build()?;
//! let engine = Engine::new(Arc::new(FileStore::open(folder)?));
//!
//! // The second start does not print `fetching`: it continues with `load`.
//! let outcome = engine.run(&graph, "monday", Import::default()).or_resume().await?;
//!
//! println!("loaded {} rows", outcome.into_result()?.rows);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! | to | see |
//! |---|---|
//! | build a graph of steps, edges, routes and loops | [`Graph::builder`], [`graph::Builder`] |
//! | lend clients and settings to steps | [`Graph::with_resources`] |
//! | run and resume a graph | [`Engine::run`], [`Engine::resume`], and their streams of events: [`graph::Run::stream`] |
//! | resume all runs that can continue | [`Engine::resume_due`] |
//! | run several branches at once | [`Builder::fork`](graph::Builder::fork) |
//! | process many items, each with its own checkpoints | [`Builder::each`](graph::Builder::each) |
//! | retry failures, and limit time | [`Retry`], [`Builder::retry`](graph::Builder::retry), [`Builder::timeout`](graph::Builder::timeout), [`StepError::fatal`] |
//! | ask a person | [`Context::interrupt`], [`Engine::answer`], [`Run::interrupt_before`](graph::Run::interrupt_before) |
//! | avoid a second payment, sleep for a week, wait for a signal | [`Context::once`], [`Context::sleep`], [`Context::signal`] |
//! | trust a step only by its evidence | [`Builder::evidence`](graph::Builder::evidence), [`Engine::accept`], [`evidence`] |
//! | inspect the history of a run | [`Engine::history`], [`Engine::inspect`] |
//! | roll back, or rerun a step | [`Resume::from_checkpoint`](graph::Resume::from_checkpoint), [`Resume::from_step`](graph::Resume::from_step) |
//! | fork a run, and inspect any checkpoint | [`Engine::fork`], [`Engine::inspect`], [`diff`](mod@diff) |
//! | read states of older programs | [`schema::Migrations`] |
//! | keep runs in memory, in a folder, or in a database | [`memory::MemoryStore`], [`file::FileStore`], the crates `waypost-sqlite` and `waypost-postgres` |
//! | move a checkpoint to another store | [`portable::Portable`], [`Engine::import`] |
//! | write checkpoints from your own loop, with evidence | [`recorder`], [`evidence`] |
//!
//! # How it works
//!
//! A run is a tree of scopes, and a scope is a chain of checkpoints. The newest checkpoint of each scope
//! lists all unfinished steps. [`plan`] derives decisions from it, without side effects; [`engine`] executes
//! them and appends the results to a [`store`]. For the whole design, read [`record`], [`store`] and
//! [`plan`], in this order. A workflow file runs through the same engine: [`graph`] is one
//! [`engine::Program`], the workflow is another.
//!
//! The guide, in the folder `docs/guide` of the repository, leads from a first graph to human approval. The
//! programs in `examples` are templates.

pub mod engine;
pub mod evidence;
pub mod graph;
pub mod id;
mod json;
pub mod plan;
mod projection;
pub mod record;
pub mod recorder;
pub mod schema;
pub mod store;
mod system;
pub mod worker;

pub use engine::{
    Doubtful, Engine, OnChange, OnDamage, OnDoubt, OnUnknown, Outcome, RunError, StopHandle, StopLevel,
    TreatAs,
};
pub use evidence::{Probe, Verifier};
pub use graph::{Branches, Context, END, Graph, GraphError, HistoryEntry, ItemEnds, StepError, ToStepError};
pub use id::{CheckpointRef, Digest, InvalidName, RunId, ScopePath, StepId};
pub use json::diff::diff;
pub use json::{diff, json_path};
pub use plan::shape;
pub use plan::shape::Retry;
pub use projection::{events, report};
pub use record::{Claim, Durability, FailureKind, Pack, RunStatus, Usage, Verdict, WaitKind};
pub use schema::Migrations;
pub use store::file::FileStore;
pub use store::memory::MemoryStore;
pub use store::portable::{Portable, SaveMode};
pub use store::{Scan, Store, StoreError, StoreExt, file, memory, portable};
pub use system::clock;
pub use system::clock::{Clock, SystemClock};

// For the other crates of Waypost only: these items change without notice.
#[doc(hidden)]
pub use json::{path, unique_keys};
#[doc(hidden)]
pub use plan::change;
#[doc(hidden)]
pub use store::folder;
#[doc(hidden)]
pub use system::{deadline, disk, in_use, lock};
