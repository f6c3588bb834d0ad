//! A recorder, for programs that drive their own loop: begin a step, do the work, commit it with evidence.
//!
//! It writes the same records into the same stores as the engine does, with the same promises: what it acknowledged is
//! durable, one process at a time writes a run, a step whose program died is known to be cut, and nothing is trusted
//! that was not verified. What the next step is, only the program knows; so the frontier of such a run is what was
//! begun and not ended, and no engine takes it up.
//!
//! ```text
//!   begin_step --> the work, the program's own --> commit_step(evidence) --> completed
//!       |                  |                            +-------------> failed, if the evidence does not hold
//!       |                  +--> the program dies: open() reports the step as cut
//!       +-- durable when it returns
//! ```
//!
//! After a crash: [`Recorder::open`], then [`last_verified_checkpoint`](Recorder::last_verified_checkpoint), which looks
//! at the world as it is now, and [`rollback_to_checkpoint`](Recorder::rollback_to_checkpoint), which does so once more
//! and gives the state back.
//!
//! # Example
//! A loop asks a model about topics and keeps each answer in a file. The program dies in the second pass; the next one
//! asks only what was not answered.
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
//! # What it does not do
//! States and outputs are written as they are given: no secret belongs into them. Parallel steps are possible, each
//! with a name of its own; branches are the engine's.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::{Mutex, MutexGuard};

use crate::engine::chain::{Chain, Draft};
use crate::evidence::Site;
use crate::id::{BranchPath, CheckpointRef, RunId};
use crate::lock::Holder;
use crate::record::{
    End, Flaw, Header, Phase, Position, Reason, Record, RunRecord, RunStatus, SealedRun, Settled, SettledAs,
    Status, Try,
};
use crate::store::{
    Batch, BatchId, Damage, FIRST_TOKEN, Head, Lease, Page, Renewal, Signal, Store, StoreError, StoreExt as _,
};

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
use step::{Given, State};
use write::{Tip, Writing, seal};

/// Key of the progress that ends a run.
const FINISHED_KEY: &str = "finished";
/// Records of failed steps looked through for the state from before them.
const FAILED_IN_A_ROW_MAX: usize = 100;

/// Records the steps of a program that drives its own loop.
///
/// It holds the run's lease as long as it lives. May be shared between tasks: calls wait for each other where they
/// write, and not while evidence is checked. A call that is dropped half-way has happened or not, as after a crash;
/// the next call finds out.
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
    /// Makes a run and takes its lease. Its first checkpoint has `state`.
    ///
    /// # Errors
    /// - [`Error::Store`] with [`StoreError::Exists`]: there is such a run; [`open`](Self::open) it. Nothing changed.
    /// - [`Error::Driven`]: the record names steps; those are an engine's.
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
        let state = Given::of(state).map_err(unwritable)?.with_schema(options.schema);
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
            summary: tip.summary(None),
            updated_at: None,
            release: false,
        };
        let lease = store.create(&sealed, first, &holder(now)?).await?;
        Ok(Self::over(store, sealed.record(), Writing::new(lease, tip, 1), options, Vec::new()))
    }

    /// Takes up a run that a recorder made: after a crash, or after it was closed.
    ///
    /// Damaged records at its end are moved to quarantine, and it goes on from the newest sound one. Nothing is
    /// appended yet.
    ///
    /// # Errors
    /// - [`Error::Store`] with [`StoreError::NotFound`], with [`StoreError::Held`] if another process has it, or with
    ///   [`StoreError::Damaged`] if nothing sound is left.
    /// - [`Error::Ended`], [`Error::Driven`]: it takes no more steps, or not from a recorder.
    /// - [`Error::Store`] with [`StoreError::Version`]: its state has a newer schema than the options name.
    ///
    /// Nothing changed after any of these.
    pub async fn open(store: Arc<dyn Store>, run: &RunId, options: Options) -> Result<Self, Error> {
        store.wait_while_dying(run).await?;
        let entry = store.run(run).await?;
        let frozen = entry.record.record();
        check_driver(frozen)?;
        let lease = store.acquire(run, &BranchPath::main(), &holder(options.clock.now())?).await?;
        match Self::take_up(&store, &lease, &options).await {
            Ok((tip, repaired)) => {
                Ok(Self::over(store, frozen, Writing::new(lease, tip, 0), options, repaired))
            }
            Err(error) => {
                // Given back as well as can be: the error that matters is the one above.
                let _ = store.release(lease, None).await;
                Err(error)
            }
        }
    }

    /// Makes a run, or takes it up if it is there; `run` and `state` then count for nothing but the id.
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
        // No absolute path of a store is trusted: it may have come from another place.
        let own = Path::new(run.base.as_deref().unwrap_or("."));
        let own = store.home().filter(|_| own.is_relative()).map(|home| home.join(own));
        let site = options.base.clone().or(own).map_or_else(Site::nowhere, Site::beneath);
        let site = options.allowed.iter().fold(site, Site::allowing);
        let checkpoints = Checkpoints::of(store, run.run.clone());
        let retention = run.retention;
        Self { checkpoints, site, retention, options, repaired, writing: Mutex::new(writing) }
    }

    /// Finds out where a run stands, under its lease.
    async fn take_up(
        store: &Arc<dyn Store>,
        lease: &Lease,
        options: &Options,
    ) -> Result<(Tip, Vec<Damage>), Error> {
        let run = lease.run();
        let heads = store.heads(run, &Page { limit: 1, ..Page::default() }).await?.heads;
        let main = heads.into_iter().find(|head| head.record.header().branch.is_main());
        let Head { record, next, damaged } = main.ok_or_else(|| Error::Ended(run.clone()))?;
        check_schema(&record, options.schema)?;
        let checkpoints = Checkpoints::of(Arc::clone(store), run.clone());
        let state = carried(&checkpoints, &record).await?;
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
            branch: BranchPath::main(),
            token: lease.token(),
            next,
            prev: Some(record.digest()),
            basis: torn.then_some(header.seq),
            repair: torn,
            root: None,
            resumed: true,
            repeated: None,
        };
        let epoch = header.at.epoch;
        let (open, visits) = (BTreeMap::new(), BTreeMap::new());
        let mut tip = Tip { chain, position, state, epoch, open, visits, ended: false };
        for entry in tip.position.frontier.iter().filter(|entry| entry.status == Status::Started) {
            let since = tip.reference(entry.since);
            // Its labels are all that is lost if the record of its start is damaged.
            let start = checkpoints.load(&since).await.ok();
            let header = start.as_ref().map(Record::header);
            let begun = Begun::cut(since, entry.step.clone(), entry.at.clone(), header);
            tip.open.insert(entry.since, begun);
        }
        Ok((tip, damaged))
    }

    /// Returns the steps that an earlier program began and did not end: whether their work was done, nobody recorded.
    ///
    /// Begin such a step again, commit it with evidence that shows that it is done, or fail it.
    ///
    /// # Errors
    /// As [`newest`](Self::newest).
    pub async fn cut(&self) -> Result<Vec<Begun>, Error> {
        let writing = self.writing().await?;
        Ok(writing.tip.open.values().filter(|begun| begun.cut).cloned().collect())
    }

    /// Returns the step that began at `seq`, while it is under way or cut: for programs that keep only the number.
    ///
    /// # Errors
    /// As [`newest`](Self::newest).
    pub async fn begun(&self, seq: u64) -> Result<Option<Begun>, Error> {
        Ok(self.writing().await?.tip.open.get(&seq).cloned())
    }

    /// Returns the damaged records that were moved to quarantine when the run was taken up.
    pub fn repaired(&self) -> &[Damage] {
        &self.repaired
    }

    /// Names the newest checkpoint.
    ///
    /// # Errors
    /// [`Error::Store`]: an earlier call was dropped, and what became of it cannot be found out.
    pub async fn newest(&self) -> Result<CheckpointRef, Error> {
        let writing = self.writing().await?;
        Ok(writing.tip.reference(writing.tip.chain.next - 1))
    }

    /// Returns the checkpoints of the run, for reading.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Returns one checkpoint, as [`Checkpoints::get`].
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

    /// Counts what happened, as [`Checkpoints::stats`].
    ///
    /// # Errors
    /// As there.
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.checkpoints.stats().await
    }

    /// Extends the lease, where the store lets it run out, and returns what was asked of the run meanwhile: to stop, or
    /// to cancel. Call it now and then in long work.
    ///
    /// # Errors
    /// [`Error::Store`] with [`StoreError::Fenced`]: the lease was lost; stop all work of this run.
    pub async fn renew(&self) -> Result<Vec<Signal>, Error> {
        let writing = self.writing().await?;
        let lease = &writing.lease;
        match self.store().renew(&[lease]).await?.pop() {
            Some(Renewal::Held(signals)) => Ok(signals),
            Some(Renewal::Lost) | None => {
                let (run, token) = (lease.run().clone(), lease.token());
                Err(StoreError::Fenced { run, token, newest: token + 1 }.into())
            }
        }
    }

    /// Returns the lease, for what is kept beside the records ([`Blobs`](crate::store::Blobs)), and for whoever is to hold the
    /// run's lock until all processes of a step are dead. Others can take the run up once every clone of it is dropped.
    ///
    /// # Errors
    /// As [`newest`](Self::newest).
    pub async fn lease(&self) -> Result<Lease, Error> {
        Ok(self.writing().await?.lease.clone())
    }

    /// Gives the lease back; a run that has not ended can be opened again. Steps under way will be cut.
    ///
    /// # Errors
    /// [`Error::Store`] with [`StoreError::Fenced`]: it was lost before.
    pub async fn close(self) -> Result<(), Error> {
        let store = Arc::clone(&self.checkpoints.store);
        // Dropped calls are asked about first: what they wrote belongs to this lease.
        let sent = self.writing().await.map(drop);
        let writing = self.writing.into_inner();
        if !writing.tip.ended {
            store.release(writing.lease, None).await?;
        }
        sent
    }

    /// Ends the run: a last checkpoint says so, the lease is given back, and no step can be begun any more.
    ///
    /// Steps that failed and were not done again count as tolerated: the run is `completed_with_failures` then.
    ///
    /// # Errors
    /// - [`Error::Unfinished`]: steps are under way, cut, or undone by a rollback and not begun again. Nothing changed;
    ///   end them first.
    /// - [`Error::Store`]: it could not be written; the run has not ended.
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

    /// Removes the run with everything that belongs to it. This cannot be undone.
    ///
    /// # Errors
    /// [`Error::Store`]: it is there still, as a whole, and nobody holds its lease; or another took it up in the very
    /// moment between.
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

    /// Waits for its turn to write, and finds out first what became of a call that was dropped.
    async fn writing(&self) -> Result<MutexGuard<'_, Writing>, Error> {
        let mut writing = self.writing.lock().await;
        writing.send(self.store()).await?;
        Ok(writing)
    }

    fn unwritable(&self, source: Flaw) -> Error {
        Error::Write { run: self.checkpoints.run.clone(), source }
    }

    /// Takes a state that a program gave.
    fn given(&self, state: Option<Result<Given, Flaw>>) -> Result<Option<State>, Error> {
        let state = state.transpose().map_err(|source| self.unwritable(source))?;
        Ok(state.map(|state| state.with_schema(self.options.schema)))
    }

    /// Returns where the claims of a record are checked.
    fn site_of(&self, header: &Header) -> Site {
        self.site.clone().with_exit_code(ending_of(header).and_then(|ending| ending.exit_code))
    }

    /// Sees that this program knows the schema of a record's state.
    fn known_schema(&self, record: &Record) -> Result<(), Error> {
        check_schema(record, self.options.schema)
    }
}

/// Sees that a run is one of a recorder: its record names no steps.
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

/// Returns the state that a run goes on with behind `newest`: of a failed step, not its own but the one before. Where
/// that is not there any more, a failed step's own is all there is.
async fn carried(checkpoints: &Checkpoints, newest: &Record) -> Result<State, Error> {
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
