//! Long work that survives: durable runs, checkpoints with evidence, and an exact resume.
//!
//! A [`Graph`] is made of steps: functions from a state to the next one. An [`Engine`] runs it over a store and leaves a
//! checkpoint after every step. When the process dies, at any moment, a resume goes on where the run stood: nothing
//! finished is done again, and nothing unfinished is left out.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use serde::{Deserialize, Serialize};
//! use waypost::{Context, Engine, Graph, MemoryStore, Retry, StepError};
//!
//! #[derive(Debug, Default, Clone, Serialize, Deserialize)]
//! struct Import {
//!     fetched: u32,
//!     rows: u32,
//! }
//!
//! async fn fetch(mut state: Import, _: Context) -> Result<Import, StepError> {
//!     state.fetched += 1; // Counts how often it was done.
//!     state.rows = 1_000;
//!     Ok(state)
//! }
//!
//! async fn load(state: Import, context: Context) -> Result<Import, StepError> {
//!     if context.attempt() == 1 {
//!         std::future::pending::<()>().await; // The first time, the machine dies here.
//!     }
//!     Ok(state)
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let graph = Graph::<Import>::builder("import")
//!     .step("fetch", fetch)
//!     .retry(Retry::exponential(3))
//!     .step("load", load)
//!     .edge("fetch", "load")
//!     .build()?;
//! let engine = Engine::new(Arc::new(MemoryStore::new()));
//!
//! // A crash: the run is dropped in the middle of `load`.
//! let run = engine.run(&graph, "monday", Import::default());
//! tokio::time::timeout(Duration::from_secs(60), run).await.unwrap_err();
//!
//! let outcome = engine.resume(&graph, "monday").await?;
//!
//! assert_eq!(outcome.state.rows, 1_000);
//! assert_eq!(outcome.state.fetched, 1, "what is finished is not done again");
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! | to | see |
//! |---|---|
//! | make a graph of steps, edges, routes and loops | [`Graph::builder`], [`graph::Builder`] |
//! | run it, and go on with it | [`Engine::run`], [`Engine::resume`], and their streams of events: [`graph::Run::stream`] |
//! | go on in several branches at once | [`Builder::fork`](graph::Builder::fork) |
//! | work on many items, each with checkpoints of its own | [`Builder::each`](graph::Builder::each) |
//! | try again what failed, and limit what takes long | [`Retry`], [`Builder::retry`](graph::Builder::retry), [`Builder::timeout`](graph::Builder::timeout), [`StepError::fatal`] |
//! | ask a person | [`Context::interrupt`], [`Engine::answer`], [`Run::interrupt_before`](graph::Run::interrupt_before) |
//! | not pay twice, sleep for a week, wait for a signal | [`Context::once`], [`Context::sleep`], [`Context::signal`] |
//! | believe a step only by what it left behind | [`Builder::evidence`](graph::Builder::evidence), [`Engine::accept`], [`evidence`] |
//! | see what happened | [`Engine::history`], [`Engine::inspect`] |
//! | go back, or do a step again | [`Resume::from_checkpoint`](graph::Resume::from_checkpoint), [`Resume::from_step`](graph::Resume::from_step) |
//! | begin a new run where another stood, and look at any checkpoint | [`Engine::fork`], [`Engine::inspect`], [`diff`](mod@diff) |
//! | read states of older programs | [`schema::Migrations`] |
//! | keep runs in memory, in a folder, or in SQLite | [`memory::MemoryStore`], [`file::FileStore`], the crate `waypost-sqlite` |
//! | carry a checkpoint elsewhere | [`portable::Portable`], [`Engine::import`] |
//! | write checkpoints from a loop of your own, with evidence | [`recorder`], [`evidence`] |
//!
//! # How it works
//!
//! A run is a tree of branches, and a branch a chain of checkpoints; the newest one of each says all that is unfinished.
//! [`plan`] turns that into decisions, purely; [`engine`] carries them out and appends what happened to a [`store`]. Read
//! [`record`], [`store`] and [`plan`], in this order, and you have the whole idea. A workflow file runs through the same
//! engine: [`graph`] is one [`engine::Program`], the workflow another.
//!
//! The guide, in the folder `docs/guide` of the repository, leads from the first graph to human approval; the programs
//! in `examples` are there to be copied from.

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
pub mod in_use;
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
pub use diff::diff;
pub use engine::{
    Doubtful, Engine, OnChange, OnDamage, OnDoubt, OnUnknown, Outcome, RunError, StopHandle, StopLevel,
    TreatAs,
};
pub use evidence::{Probe, Verifier};
pub use file::FileStore;
pub use graph::{Branches, Context, END, Graph, GraphError, HistoryEntry, ItemEnds, StepError};
pub use id::{BranchPath, CheckpointRef, Digest, InvalidName, RunId, StepId};
pub use memory::MemoryStore;
pub use portable::{Portable, SaveMode};
pub use record::{Claim, Durability, FailureKind, Pack, RunStatus, Usage, Verdict, WaitKind};
pub use schema::Migrations;
pub use shape::Retry;
pub use store::{Scan, Store, StoreError, StoreExt};
