//! A recorder, for programs with their own loop: begin a step, do the work, commit the step with evidence.
//!
//! The recorder writes the same records into the same stores as the engine, with the same guarantees.
//! Acknowledged records are durable. A single process at a time writes a run. Steps of a dead program count
//! as interrupted. Unverified results are not trusted. Only the program knows the next step. The frontier of
//! a recorded run therefore lists the steps begun and not ended, and the engine does not resume the run.
//!
//! ```text
//!   begin_step --> the work, the program's own --> commit_step(evidence) --> completed
//!       |                  |                            +-------------> failed, if the evidence does not hold
//!       |                  +--> the program dies: open() reports the step as cut
//!       +-- durable when it returns
//! ```
//!
//! After a crash, call [`Recorder::open`], then
//! [`last_verified_checkpoint`](Recorder::last_verified_checkpoint), which checks the evidence now.
//! [`rollback_to_checkpoint`](Recorder::rollback_to_checkpoint) checks again, and returns the state.
//!
//! # Example
//! A loop asks a model about topics and keeps each answer in a file. The program dies in the second pass. The
//! next program asks only the unanswered topics.
//!
//! ```
//! use std::sync::Arc;
//! use serde::{Deserialize, Serialize};
//! use waypost::file::FileStore;
//! use waypost::record::{Claim, Pack};
//! use waypost::recorder::{Begin, Commit, Label, Options, Recorder, run_record};
//! use waypost::store::Store;
//! use waypost::{RunId, StepId};
//!
//! #[derive(Serialize, Deserialize, Default)]
//! struct Notes {
//!     answered: Vec<String>,
//! }
//!
//! # fn ask_the_model(topic: &str) -> String { format!("About {topic}.") }
//! /// Asks about all topics; `dies_before` stands in for a crash in the middle of the work.
//! async fn research(
//!     folder: &std::path::Path,
//!     dies_before: Option<&str>,
//! ) -> Result<Vec<String>, Box<dyn std::error::Error>> {
//!     let store: Arc<dyn Store> = Arc::new(FileStore::open(folder.join("store"))?);
//!     let options = Options::new().with_base(folder);
//!     let record = run_record(RunId::new("research")?, "research");
//!     let recorder = Recorder::open_or_create(store, record, &Notes::default(), options).await?;
//!
//!     // Where were we? The newest checkpoint whose files are still there, unchanged.
//!     let last = recorder.last_verified_checkpoint(Some(Label::LlmResponse)).await?.checkpoint;
//!     let mut notes: Notes = match last {
//!         Some(checkpoint) => recorder.rollback_to_checkpoint(&checkpoint.reference()).await?,
//!         None => Notes::default(),
//!     };
//!     for topic in ["rust", "sqlite", "fsync"] {
//!         if notes.answered.iter().any(|answered| answered == topic) {
//!             continue;
//!         }
//!         let begun = recorder.begin_step(Begin::new(StepId::new("ask")?, Label::LlmResponse)).await?;
//!         if dies_before == Some(topic) {
//!             return Ok(notes.answered); // Neither committed nor closed, as after `kill -9`.
//!         }
//!         std::fs::write(folder.join(format!("{topic}.md")), ask_the_model(topic))?;
//!         notes.answered.push(topic.to_owned());
//!         let evidence = Pack::all([Claim::unchanged(format!("{topic}.md"))]);
//!         let commit = Commit::with(evidence).state(&notes).external(format!("answer-{topic}"));
//!         recorder.commit_step(&begun, commit).await?;
//!     }
//!     recorder.finish().await?;
//!     Ok(notes.answered)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! assert_eq!(research(folder, Some("sqlite")).await?, ["rust"]);
//! assert_eq!(research(folder, None).await?, ["rust", "sqlite", "fsync"]);
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//! States and outputs are written unmasked: keep secrets out of them. Parallel steps are possible if each has
//! its own name. Only the engine has scopes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{Mutex, MutexGuard};

use crate::engine::chain::{Chain, Draft};
use crate::evidence::Site;
use crate::id::{CheckpointRef, RunId, ScopePath};
use crate::record::{
    End, Flaw, Header, Phase, Position, Reason, Record, RunRecord, RunStatus, SealedRun, Settled, SettledAs,
    Status, Try,
};
use crate::store::{
    Batch, BatchId, Damage, FIRST_TOKEN, Head, Lease, Page, Renewal, Signal, Store, StoreError, StoreExt as _,
};
use crate::system::lock::Holder;

mod checkpoint;
mod error;
mod judge;
mod label;
mod options;
mod stats;
mod step;
mod steps;
mod write;

pub use checkpoint::{Checkpoint, Checkpoints, Listed};
pub use error::Error;
pub use judge::{LastVerified, SEARCH_TIME_MAX, SEARCH_TRIES_MAX};
pub use label::{LABEL_BYTES_MAX, LABEL_KEY, LABELS_MAX, Label};
pub use options::{Options, run_record};
pub use stats::{Checks, Stats};
pub use step::{Begin, Begun, Commit, EXTERNAL_BYTES_MAX};

use checkpoint::{ending_of, state_of};
use step::{EncodedState, RawState};
use write::{Tip, Writing, seal};

/// Progress key of the record that ends a run.
const FINISHED_KEY: &str = "finished";
/// Most consecutive failed records skipped in the search for the state before them.
const FAILED_IN_A_ROW_MAX: usize = 100;

/// Records the steps of a program with its own loop.
///
/// Holds the run's lease until dropped. Tasks may share a recorder: writes are serialised, and checks of
/// evidence run in parallel. A dropped call has either happened or not, as after a crash; the next call finds
/// out.
#[derive(Debug)]
pub struct Recorder {
    checkpoints: Checkpoints,
    site: Site,
    retention: Option<u32>,
    options: Options,
    repaired: Vec<Damage>,
    writing: Mutex<Writing>,
}

impl Recorder {
    /// Creates a run with `state` in its first checkpoint, and takes the run's lease.
    ///
    /// # Errors
    /// - [`Error::Store`] with [`StoreError::Exists`]: the run exists; [`open`](Self::open) it. Nothing
    ///   changed.
    /// - [`Error::Driven`]: the record names steps, so the run belongs to the engine.
    /// - [`Error::Write`], [`Error::Invalid`]: state or record are refused. Nothing was written.
    pub async fn create<S: Serialize + ?Sized>(
        store: Arc<dyn Store>,
        run: RunRecord,
        state: &S,
        options: Options,
    ) -> Result<Self, Error> {
        check_driver(&run)?;
        if run.base.as_deref().is_some_and(|base| Path::new(base).is_absolute()) {
            return Err(Error::Invalid("the base folder of a run is relative to the store's".to_owned()));
        }
        let id = run.run.clone();
        let unwritable = |source| Error::Write { run: id.clone(), source };
        let state = RawState::of(state).map_err(unwritable)?.with_schema(options.schema);
        let sealed = SealedRun::seal(run).map_err(unwritable)?;
        let now = options.clock.now();
        let mut tip = Tip {
            chain: Chain::first(&sealed),
            position: Position::default(),
            state: state.clone(),
            epoch: 0,
            open: BTreeMap::new(),
            visits: BTreeMap::new(),
            ended: false,
        };
        let draft = Draft::new(Phase::Started, Reason::Start, None, Try::default());
        let first = Batch {
            id: BatchId { token: FIRST_TOKEN, count: 1 },
            records: vec![seal(&mut tip, draft, &state, now)?],
            consumed: Vec::new(),
            summary: Some(tip.summary(None)),
            updated_at: None,
            release: false,
        };
        let lease = store.create(&sealed, first, &holder(now)?).await?;
        Ok(Self::over(store, sealed.record(), Writing::new(lease, tip, 1), options, Vec::new()))
    }

    /// Opens an existing run of a recorder: after a crash, or after a close.
    ///
    /// Moves damaged records at the end of the run to quarantine, and continues from the newest sound record.
    /// Does not append a record.
    ///
    /// # Errors
    /// - [`Error::Store`] with [`StoreError::NotFound`]; with [`StoreError::Held`] if another process holds
    ///   the run; with [`StoreError::Damaged`] if the run has no sound record.
    /// - [`Error::Ended`], [`Error::Driven`]: the run has ended, or belongs to the engine.
    /// - [`Error::Store`] with [`StoreError::Version`]: the state's schema is newer than the schema of the
    ///   options.
    ///
    /// None of these errors changes the run.
    pub async fn open(store: Arc<dyn Store>, run: &RunId, options: Options) -> Result<Self, Error> {
        store.wait_for_release(run).await?;
        let entry = store.run(run).await?;
        let frozen = entry.record.record();
        check_driver(frozen)?;
        let lease = store.acquire(run, &ScopePath::main(), &holder(options.clock.now())?).await?;
        match Self::read_tip(&store, &lease, &options).await {
            Ok((tip, repaired)) => {
                Ok(Self::over(store, frozen, Writing::new(lease, tip, 0), options, repaired))
            }
            Err(error) => {
                // Best effort: the error above is the one to report.
                let _ = store.release(lease, None).await;
                Err(error)
            }
        }
    }

    /// Creates a run, or opens it if it exists; then only the id of `run` matters, and `state` is ignored.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`open`](Self::open).
    pub async fn open_or_create<S: Serialize + ?Sized>(
        store: Arc<dyn Store>,
        run: RunRecord,
        state: &S,
        options: Options,
    ) -> Result<Self, Error> {
        let id = run.run.clone();
        match Self::create(Arc::clone(&store), run, state, options.clone()).await {
            Err(Error::Store(StoreError::Exists { .. })) => Self::open(store, &id, options).await,
            answer => answer,
        }
    }

    fn over(
        store: Arc<dyn Store>,
        run: &RunRecord,
        writing: Writing,
        options: Options,
        repaired: Vec<Damage>,
    ) -> Self {
        // Absolute paths of a store are not trusted: the store may come from another machine.
        let own = Path::new(run.base.as_deref().unwrap_or("."));
        let own = store.home().filter(|_| own.is_relative()).map(|home| home.join(own));
        let site = options.base.clone().or(own).map_or_else(Site::nowhere, Site::beneath);
        let site = options.allowed.iter().fold(site, Site::allowing);
        let checkpoints = Checkpoints::of(store, run.run.clone());
        let retention = run.retention;
        Self { checkpoints, site, retention, options, repaired, writing: Mutex::new(writing) }
    }

    /// Reads the tip of a run, under its lease.
    async fn read_tip(
        store: &Arc<dyn Store>,
        lease: &Lease,
        options: &Options,
    ) -> Result<(Tip, Vec<Damage>), Error> {
        let run = lease.run();
        let heads = store.heads(run, &Page { limit: 1, ..Page::default() }).await?.heads;
        let main = heads.into_iter().find(|head| head.record.header().scope.is_main());
        let Head { record, next, damaged } = main.ok_or_else(|| Error::Ended(run.clone()))?;
        check_schema(&record, options.schema)?;
        let checkpoints = Checkpoints::of(Arc::clone(store), run.clone());
        let state = state_to_continue(&checkpoints, &record).await?;
        let header = record.header();
        let position = record
            .position()
            .map_err(|flaw| Error::Read { at: header.reference(), why: flaw.to_string() })?;
        for damage in &damaged {
            store.quarantine(lease, damage).await?;
        }
        let torn = next != header.seq + 1;
        let chain = Chain {
            run: run.clone(),
            scope: ScopePath::main(),
            token: lease.token(),
            next,
            prev: Some(record.digest()),
            basis: torn.then_some(header.seq),
            repair: torn,
            root: None,
            idle_since: Some(header.created_at),
            resume: header.resume + 1,
            repeated: None,
        };
        let epoch = header.at.epoch;
        let (open, visits) = (BTreeMap::new(), BTreeMap::new());
        let mut tip = Tip { chain, position, state, epoch, open, visits, ended: false };
        for entry in tip.position.frontier.iter().filter(|entry| entry.status == Status::Started) {
            let since = tip.reference(entry.since);
            // If the record of the start is damaged, only its labels are lost.
            let start = checkpoints.load(&since).await.ok();
            let header = start.as_ref().map(Record::header);
            let begun = Begun::cut(since, entry.step.clone(), entry.at.clone(), header);
            tip.open.insert(entry.since, begun);
        }
        Ok((tip, damaged))
    }

    /// Returns the steps begun by an earlier program and not ended. Whether their work was done is unknown.
    ///
    /// Begin each step again, commit it with evidence that proves completion, or fail it.
    ///
    /// # Errors
    /// As [`newest`](Self::newest).
    pub async fn cut(&self) -> Result<Vec<Begun>, Error> {
        let writing = self.writing().await?;
        Ok(writing.tip.open.values().filter(|begun| begun.cut).cloned().collect())
    }

    /// Returns the running or interrupted step that began at `seq`: for programs that keep only the number.
    ///
    /// # Errors
    /// As [`newest`](Self::newest).
    pub async fn begun(&self, seq: u64) -> Result<Option<Begun>, Error> {
        Ok(self.writing().await?.tip.open.get(&seq).cloned())
    }

    /// Returns the damaged records that [`open`](Self::open) moved to quarantine.
    pub fn repaired(&self) -> &[Damage] {
        &self.repaired
    }

    /// Returns the reference to the newest checkpoint.
    ///
    /// # Errors
    /// [`Error::Store`]: an earlier call was dropped, and its outcome cannot be determined.
    pub async fn newest(&self) -> Result<CheckpointRef, Error> {
        let writing = self.writing().await?;
        Ok(writing.tip.reference(writing.tip.chain.next - 1))
    }

    /// Returns the checkpoints of the run, for reading.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Returns a checkpoint, as [`Checkpoints::get`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, at: &CheckpointRef) -> Result<Option<Checkpoint>, Error> {
        self.checkpoints.get(at).await
    }

    /// Lists checkpoints, as [`Checkpoints::list`].
    ///
    /// # Errors
    /// As there.
    pub async fn list(&self, label: Option<Label>, page: &Page) -> Result<Listed, Error> {
        self.checkpoints.list(label, page).await
    }

    /// Returns counts over the run, as [`Checkpoints::stats`].
    ///
    /// # Errors
    /// As there.
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.checkpoints.stats().await
    }

    /// Renews the lease, if the store lets leases expire, and returns pending requests to stop or cancel.
    /// Call it regularly during long work.
    ///
    /// # Errors
    /// [`Error::Store`] with [`StoreError::Fenced`]: the lease was lost; stop all work of this run. With
    /// [`StoreError::Unreachable`]: the same, if the lease ended without an answer of the store.
    pub async fn renew(&self) -> Result<Vec<Signal>, Error> {
        let writing = self.writing().await?;
        let lease = &writing.lease;
        let answer = self.store().renew(&[lease]).await?.pop().unwrap_or(Renewal::Lost);
        Ok(answer.requests(lease, self.store())?)
    }

    /// Returns the lease: for data stored next to the records ([`Blobs`](crate::store::Blobs)), and for a
    /// process that must hold the run's lock until all processes of a step are dead. Others can open the run
    /// once every clone is dropped.
    ///
    /// # Errors
    /// As [`newest`](Self::newest).
    pub async fn lease(&self) -> Result<Lease, Error> {
        Ok(self.writing().await?.lease.clone())
    }

    /// Releases the lease; an unfinished run can be opened again. Running steps count as interrupted.
    ///
    /// # Errors
    /// [`Error::Store`] with [`StoreError::Fenced`]: the lease was lost before.
    pub async fn close(self) -> Result<(), Error> {
        let store = Arc::clone(&self.checkpoints.store);
        // Resolve dropped calls first: their records belong to this lease.
        let sent = self.writing().await.map(drop);
        let writing = self.writing.into_inner();
        if !writing.tip.ended {
            store.release(writing.lease, None).await?;
        }
        sent
    }

    /// Ends the run: appends a last checkpoint, releases the lease, and refuses further steps.
    ///
    /// Steps that failed and did not run again count as tolerated: the run is then `completed_with_failures`.
    ///
    /// # Errors
    /// - [`Error::Unfinished`]: steps are running, interrupted, or undone by a rollback and not begun again.
    ///   Nothing changed; end the steps first.
    /// - [`Error::Store`]: the write failed; the run has not ended.
    pub async fn finish(&self) -> Result<CheckpointRef, Error> {
        let mut writing = self.writing().await?;
        let mut next = writing.tip.clone();
        let frontier = std::mem::take(&mut next.position.frontier);
        let (failed, open): (Vec<_>, Vec<_>) =
            frontier.into_iter().partition(|entry| entry.status == Status::Failed);
        if !open.is_empty() {
            let run = next.chain.run.clone();
            return Err(Error::Unfinished { run, steps: open.into_iter().map(|entry| entry.step).collect() });
        }
        for entry in &failed {
            next.settle(&entry.step, Settled::new(SettledAs::Tolerated, entry.since));
        }
        next.ended = true;
        let phase = Phase::Progress { key: FINISHED_KEY.to_owned(), value: serde_json::Value::Null };
        let at = Try { epoch: next.epoch, ..Try::default() };
        let mut draft = Draft::new(phase, Reason::Manual, None, at);
        draft.end = Some(End::Completed);
        draft.status = Some(match failed.is_empty() {
            true => RunStatus::Completed,
            false => RunStatus::CompletedWithFailures,
        });
        let state = next.state.clone();
        let record = writing.append(self.store(), draft, next, &state, self.options.clock.now()).await?;
        Ok(record.header().reference())
    }

    /// Removes the run with all its data. This cannot be undone.
    ///
    /// # Errors
    /// [`Error::Store`]: the run still exists as a whole, without a lease holder; or another process opened the run in
    /// between.
    pub async fn delete(self) -> Result<(), Error> {
        let store = Arc::clone(&self.checkpoints.store);
        let run = self.checkpoints.run.clone();
        let writing = self.writing.into_inner();
        if !writing.tip.ended {
            store.release(writing.lease, None).await?;
        }
        Ok(store.delete(&run).await?)
    }

    fn store(&self) -> &dyn Store {
        self.checkpoints.store.as_ref()
    }

    /// Locks the writing side, and resolves the outcome of a dropped call first.
    async fn writing(&self) -> Result<MutexGuard<'_, Writing>, Error> {
        let mut writing = self.writing.lock().await;
        writing.send(self.store()).await?;
        Ok(writing)
    }

    fn unwritable(&self, source: Flaw) -> Error {
        Error::Write { run: self.checkpoints.run.clone(), source }
    }

    /// Returns the state given by the program, with the recorder's schema.
    fn encoded(&self, state: Option<Result<RawState, Flaw>>) -> Result<Option<EncodedState>, Error> {
        let state = state.transpose().map_err(|source| self.unwritable(source))?;
        Ok(state.map(|state| state.with_schema(self.options.schema)))
    }

    /// Returns the site where the claims of a record are checked.
    fn site_of(&self, header: &Header) -> Site {
        self.site.clone().with_exit_code(ending_of(header).and_then(|ending| ending.exit_code))
    }

    /// Checks that this program knows the schema of a record's state.
    fn known_schema(&self, record: &Record) -> Result<(), Error> {
        check_schema(record, self.options.schema)
    }
}

/// Checks that a run belongs to a recorder: its record names no steps.
fn check_driver(run: &RunRecord) -> Result<(), Error> {
    if run.definition.text.is_none() && run.definition.steps.is_empty() {
        return Ok(());
    }
    Err(Error::Driven(run.run.clone()))
}

fn check_schema(record: &Record, supported: u32) -> Result<(), Error> {
    let header = record.header();
    match header.body.as_ref().map(|body| body.schema) {
        Some(found) if found > supported => {
            let what = format!("the state of {}", header.reference());
            Err(StoreError::Version { what, found, supported }.into())
        }
        _ => Ok(()),
    }
}

/// Returns the state to continue with after `newest`. If `newest` is a failed step, this is the newest state before the
/// failures, if that state is readable; else the state of `newest`.
async fn state_to_continue(checkpoints: &Checkpoints, newest: &Record) -> Result<EncodedState, Error> {
    let own = state_of(newest)?;
    let is_failed = |record: &Record| matches!(record.header().phase, Phase::Failed(_));
    if !is_failed(newest) {
        return Ok(own);
    }
    let Some(before) = newest.header().basis() else { return Ok(own) };
    let mut walk = checkpoints.walk(before);
    for _ in 0..FAILED_IN_A_ROW_MAX {
        let Some(record) = walk.next().await? else { break };
        if !is_failed(&record) {
            let whole = checkpoints.load(&record.header().reference()).await;
            return Ok(whole.and_then(|record| state_of(&record)).unwrap_or(own));
        }
    }
    Ok(own)
}

fn holder(now: Timestamp) -> Result<Holder, StoreError> {
    let failed = |source| StoreError::Io { action: "read", place: "the process table".to_owned(), source };
    Holder::here(now).map_err(failed)
}
