//! The engine: executes the steps of a program, and records each end.
//!
//! The engine knows steps only through a [`Program`]: the processes of a workflow file and the functions of a Rust graph
//! run through the same loop (`session/event_loop.rs`). Only `chain.rs` makes records. A session appends in
//! `session/commit.rs`; an action between two sessions (a cancel, a labelled checkpoint) appends one batch under a separate lease.
//!
//! ```text
//!   a new run   resume/begin.rs    \
//!                                   > session: [ start steps --> an end --> commit the end and the next starts ]*
//!   a resume    resume/            /               ^
//!                                                  a crash here: the start is recorded, the end is not
//! ```

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::evidence::{Site, Verifier};
use crate::id::RunId;
use crate::record::{Position, Record, RunRecord, SealedRun};
use crate::store::{Job, Progress, RunEntry, Store, StoreError};
use crate::system::clock::{Clock, SystemClock};
use crate::system::lock::Holder;

pub(crate) mod chain;
mod dry_run;
mod due;
mod inspect;
mod manual;
mod options;
mod outcome;
mod program;
mod resume;
mod scope;
pub(crate) mod session;
mod time_travel;
mod walk;

pub use dry_run::{Answered, DryRun};
pub use due::{DueRuns, due_runs};
use inspect::changed_at;
pub use inspect::{Look, Snapshot};
pub use manual::{MARK, Pruned, VERIFIED_KEY, labelled};
pub use options::{
    Adoption, Answers, Doubtful, Edit, EditScope, EditScopeFn, Interrupts, OnChange, OnDamage, OnDoubt,
    OnLostCheckpoint, OnUnknown, OriginEvidence, ResumeFrom, ResumeOptions, SessionOptions, Settle, SettleFn,
    StartOptions, Then, TreatAs, Validate, ValidateFn,
};
pub use outcome::{NotCompleted, Outcome, RunError, StepFailure, Waiting};
pub use program::{
    Admission, BeginError, Exited, Follow, KnownOutputs, OnFailure, Performed, Program, Recovered,
    Settlement, StateError, StepRef, StepReport, Unjoined, Upstream,
};
pub use resume::accept::{AcceptAs, Acceptance};
pub use resume::definition::{Compared, InnerChange, InnerChangeKind, changed_within};
pub use scope::fan_out::{CHILD_PAGE, ChildEnd, Item, Joined, Outcomes, damaged_items};
pub use session::attempt::{
    Attempt, AttemptIdentity, CancelCause, EXITED_KEY, INTERVAL_MIN, MEMO_BYTES_MAX, MEMOS_MAX, MemoError,
    RUNNING_KEY, idempotency_key,
};
pub use session::cancel::Cancel;
pub(crate) use session::panics::{panic_message, unpanicked};
pub use session::signals::{Stop, StopHandle, StopLevel};
pub use time_travel::undo::{UNDO, Undone};
pub use walk::reuse::step_path;

/// How often the engine polls its store for stop requests.
pub const RENEW_INTERVAL: Duration = Duration::from_millis(500);

/// Receives every commit right after its write, for screens and streams.
pub trait Observer: Debug + Send + Sync {
    /// Called after each commit of a batch.
    fn committed(&self, records: &[Record], position: &Position, progress: Progress);
    /// Called with a warning for a person.
    fn warned(&self, text: &str);
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn committed(&self, _: &[Record], _: &Position, _: Progress) {}
    fn warned(&self, _: &str) {}
}

/// Forwards to two observers.
#[derive(Debug)]
struct Both(Arc<dyn Observer>, Arc<dyn Observer>);

impl Observer for Both {
    fn committed(&self, records: &[Record], position: &Position, progress: Progress) {
        self.0.committed(records, position, progress);
        self.1.committed(records, position, progress);
    }

    fn warned(&self, text: &str) {
        self.0.warned(text);
        self.1.warned(text);
    }
}

/// Runs programs over a store.
#[derive(Debug, Clone)]
pub struct Engine {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    verifier: Arc<Verifier>,
    base: Option<PathBuf>,
    allowed: Vec<PathBuf>,
    host: Option<String>,
    is_base_shared: bool,
}

impl Engine {
    /// Creates an engine on a store, with the system clock, without an observer, and with the probes of this
    /// crate.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let (clock, observer, verifier) = (Arc::new(SystemClock), Arc::new(Silent), Arc::default());
        let (base, allowed, host) = (None, Vec::new(), None);
        Self { store, clock, observer, verifier, base, allowed, host, is_base_shared: false }
    }

    /// Sets the base folder for the files of evidence. The default is the base folder of the run, next to its
    /// store. A store outside a folder, such as memory, has no base folder: claims about files are then
    /// `unknown`.
    #[must_use]
    pub fn with_base(self, folder: impl Into<PathBuf>) -> Self {
        Self { base: Some(folder.into()), ..self }
    }

    /// Declares that all machines that work on runs of this store share the files of evidence. Without this call,
    /// a claim about a file from another machine is `unknown`: a local check proves nothing about the other host.
    #[must_use]
    pub fn with_shared_base(self) -> Self {
        Self { is_base_shared: true, ..self }
    }

    /// Sets the host name for evidence, instead of the name of this machine. For containers: their host name
    /// changes with each start, but their files stay.
    #[must_use]
    pub fn on_host(self, host: impl Into<String>) -> Self {
        Self { host: Some(host.into()), ..self }
    }

    /// Allows absolute paths under `folder` in evidence.
    #[must_use]
    pub fn allowing(mut self, folder: impl Into<PathBuf>) -> Self {
        self.allowed.push(folder.into());
        self
    }

    /// Sets the probes and limits for evidence checks.
    #[must_use]
    pub fn with_verifier(self, verifier: Verifier) -> Self {
        Self { verifier: Arc::new(verifier), ..self }
    }

    /// Returns the site of the evidence checks of a run.
    fn site(&self, run: &RunRecord) -> Site {
        // An absolute path from a store is not trusted: the store may come from another machine.
        let own = Path::new(run.base.as_deref().unwrap_or("."));
        let own = self.store.home().filter(|_| own.is_relative()).map(|home| home.join(own));
        let site = self.base.clone().or(own).map_or_else(Site::nowhere, Site::beneath);
        let site = if self.is_base_shared { site.shared() } else { site };
        let site = self.host.iter().fold(site, Site::on_host);
        self.allowed.iter().fold(site, Site::allowing)
    }

    /// Replaces the clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the clock.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Adds an observer.
    #[must_use]
    pub(crate) fn also_observed_by(self, observer: Arc<dyn Observer>) -> Self {
        let observer = Arc::new(Both(Arc::clone(&self.observer), observer));
        Self { observer, ..self }
    }

    /// Sets the observer of all commits.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Creates a run and executes the run until it is done, fails, waits or is stopped.
    ///
    /// # Errors
    /// - [`RunError::Store`] with [`StoreError::Exists`]: nothing was done.
    /// - [`RunError::Checkpoint`]: the run exists up to its last acknowledged checkpoint; resume the run.
    pub async fn run_program<P: Program>(
        &self,
        program: &P,
        run: RunRecord,
        state: P::State,
        options: SessionOptions,
    ) -> Result<Outcome<P::State>, RunError> {
        let sealed = SealedRun::seal(run).map_err(|source| StoreError::Invalid(source.to_string()))?;
        let holder = self.holder()?;
        resume::begin::first(self, program, &sealed, state, options, &holder).await
    }

    /// Creates a run in the queue of the store, in status [`RunStatus::Queued`](crate::RunStatus::Queued), and starts
    /// nothing.
    ///
    /// # Errors
    /// [`RunError::Store`] with [`StoreError::Unsupported`]: the store has no queue. Those of
    /// [`run_program`](Self::run_program).
    pub async fn queue_program<P: Program>(
        &self,
        program: &P,
        run: RunRecord,
        state: P::State,
        job: &Job,
    ) -> Result<(), RunError> {
        let sealed = SealedRun::seal(run).map_err(|source| StoreError::Invalid(source.to_string()))?;
        resume::begin::queued(self, program, &sealed, state, job).await
    }

    /// Resumes a run.
    ///
    /// # Errors
    /// - [`RunError::Store`] with [`StoreError::Held`]: another worker holds the lease. Nothing changed.
    /// - [`RunError::Store`] with [`StoreError::Damaged`]: no sound record is left. Nothing changed; only
    ///   [`ResumeOptions::restart`] can continue.
    /// - [`RunError::InDoubt`]: no step was started.
    /// - [`RunError::Checkpoint`]: as for [`run_program`](Self::run_program).
    pub async fn resume_program<P: Program>(
        &self,
        program: &P,
        run: &RunId,
        options: ResumeOptions<P::State>,
    ) -> Result<Outcome<P::State>, RunError> {
        let holder = self.holder()?;
        resume::first_record::resumed(self, program, run, options, &holder).await
    }

    /// Returns the configuration in force at a position.
    async fn config_of(
        &self,
        entry: &RunEntry,
        position: &Position,
    ) -> Result<serde_json::Map<String, serde_json::Value>, StoreError> {
        let frozen = entry.record.record();
        let Some(seq) = position.config else { return Ok(frozen.config.clone()) };
        Ok(changed_at(self.store.as_ref(), &frozen.run, seq).await?.config.unwrap_or_default())
    }

    pub(crate) fn holder(&self) -> Result<Holder, StoreError> {
        Holder::here(self.clock.now()).map_err(|source| StoreError::Io {
            action: "read",
            place: "the process table".into(),
            source,
        })
    }
}
