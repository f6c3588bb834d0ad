//! Stores: the trait for all stores, and its contract.
//!
//! A store keeps bytes and their order, and decides nothing. It knows headers, for lookups and summaries of runs, and
//! never reads a state.

pub mod file;
#[doc(hidden)]
pub mod folder;
pub mod memory;
pub mod overlay;
pub mod portable;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Display};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::{RunId, ScopePath};
use crate::record::{Header, Record, SealedRun};
use crate::system::deadline::Deadline;
use crate::system::lock::{Holder, RunLock};

mod batch;
mod error;
mod query;
mod queue;
pub(crate) mod recorded_evidence;
pub mod retention;
mod scopes;
mod tasks;

pub use batch::{Batch, BatchId, Signal, SignalKind, Summary};
pub use error::{Damage, StoreError};
pub use query::{
    Head, Heads, History, PAGE_ITEMS_MAX, Page, Progress, RunEntry, RunQuery, RunSummary, Runs, Scan,
    ScanOrder, Scanned, Trimmed, UnreadableRun,
};
pub use queue::{FILES_BLOB, Job, Queue, QueuedJob, STEP_NEED};
pub use tasks::{ClaimedTask, Submitted, Task, TaskEntry, TaskQueue, TaskState, TaskStop, TasksOf, UNLEASED};

/// Keeps runs and their records.
///
/// Object-safe, without default bodies: the trait lists all duties of a store. Conveniences are in [`StoreExt`].
///
/// # Contract
///
/// Each clause has a test of the same name in `waypost-testing`, run against every store.
///
/// - `create_is_all_or_nothing`: after [`create`](Self::create), the store has the run record and the first batch,
///   or nothing. The batch may have records of several scopes, including ended scopes.
/// - `create_refuses_an_existing_run`: the existing run does not change.
/// - `acknowledged_is_durable`: a store opened later reads everything that `create` or
///   [`append`](Self::append) has acknowledged.
/// - `append_is_all_or_nothing`: a refused batch leaves no records.
/// - `append_continues_the_chain`: [`StoreError::Conflict`] refuses a record with another `seq` than the next
///   of the scope, or another `prev` than the digest of the previous record. Only a record with reason
///   `repair` may leave a gap, up to [`Head::next`]; its `prev` is the digest of a sound record of the scope.
/// - `append_is_answered_once`: a repeated batch with the same id returns [`Appended::Before`] and is not
///   applied again, even if the batch released the lease.
/// - `append_needs_the_lease`: [`StoreError::Fenced`] refuses any token but the newest of the scope, permanently;
///   [`StoreError::Invalid`] refuses a record of a scope that no given lease covers.
/// - `acquire_excludes`: while the lease is held, others get [`StoreError::Held`] with the holder.
/// - `acquire_raises_the_token`: every lease has a greater token than all leases before.
/// - `release_frees`: after [`release`](Self::release) or a batch with `release`, the lease is free at once, and
///   the old lease is refused.
/// - `renew_tells_of_stop_requests`: [`renew`](Self::renew) returns each pending stop, cancel or checkpoint request
///   until it is consumed; a lost lease is reported as lost.
/// - `heads_are_the_newest_of_open_scopes`: in order of opening; without scopes whose newest header has `end`.
/// - `heads_pass_over_damage`: if the newest record of a scope is damaged, the head is the newest sound
///   record with a body, and lists the damaged records above. No seq is reused, not even the seq of a record
///   in quarantine.
/// - `run_returns_exact_bytes`: the run record has the exact bytes given to `create`; a damaged one is
///   [`StoreError::Damaged`] with seq 0, and affects neither its own checkpoints nor other runs.
/// - `load_returns_exact_bytes`: header and body have the exact bytes appended.
/// - `load_names_the_older_sound_one`: a damaged record is [`StoreError::Damaged`], never returned.
/// - `scan_filters_and_pages`: by run, scope, seq range, step, phase, label, `external` and `about`, in
///   either direction. A page has a cursor for the next page. Damaged headers are listed, not returned.
/// - `runs_come_newest_first`: in order of creation, by count and not by clock.
/// - `runs_tell_the_truth`: a run with a dead holder is `interrupted` or `in_doubt`, whatever its last written status.
/// - `remarks_make_no_run_younger`: a batch with [`updated_at`](Batch::updated_at) sets the run's age to this
///   time, also for [`RunQuery::since`]; after a batch without, the age is the time of its last record.
/// - `signal_is_unique`: a repeated id returns [`Signalled::Before`]; a consumed id stays known.
/// - `quarantine_keeps_the_bytes`: a damaged record is moved, never deleted, and overwrites nothing in
///   quarantine; only the holder may move it.
/// - `trim_drops_states_never_headers`: the newest `keep` sound step boundaries, at least 2, keep their body.
/// - `trim_spares_what_a_resume_needs`: after any number of failed attempts, the newest state with valid
///   evidence keeps its body, and so do the others named by [`retention::kept`]. All other bodies are dropped.
/// - `delete_removes_everything`: only while the lease is free.
/// - `reading_needs_no_lease`: and changes nothing.
/// - `blobs_are_fenced_and_appended`: a chunk is read back at its offset; a stale token is refused; a missing
///   blob is empty, not damage.
/// - `closed_refuses`: after [`close`](Self::close), every call returns [`StoreError::Closed`].
#[async_trait]
pub trait Store: Debug + Display + Send + Sync {
    /// Creates a run and takes its lease: writes run record and first batch in one transaction.
    ///
    /// The records of `first` carry token [`FIRST_TOKEN`].
    ///
    /// # Errors
    /// - [`StoreError::Exists`]: the run exists. Nothing changed; resume the run or choose another id.
    /// - [`StoreError::Held`]: another process is creating or deleting the run right now. Nothing changed.
    /// - Others as for [`append`](Self::append).
    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError>;

    /// Returns the run record and the summary of a run.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: the run does not exist.
    /// - [`StoreError::Damaged`]: the run record is damaged; its checkpoints may still be sound.
    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError>;

    /// Takes the lease of a scope, unless another process holds it. A local store has one lock for each run: its
    /// lease covers all scopes of the run.
    ///
    /// # Errors
    /// - [`StoreError::Held`]: by this holder, since this time. Nothing changed; wait, or stop the other process.
    /// - [`StoreError::NotFound`]: the run does not exist.
    async fn acquire(&self, run: &RunId, scope: &ScopePath, holder: &Holder) -> Result<Lease, StoreError>;

    /// Renews leases that expire, and returns for each lease the pending requests to its run.
    ///
    /// # Errors
    /// Those of the store's medium; the leases stay valid until they expire.
    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError>;

    /// Releases a lease. With `wake_at`, the run is due again at this time.
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: the lease was lost before; nothing changed.
    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError>;

    /// Appends a batch, all or nothing, and returns when it is as durable as the run's setting requires.
    ///
    /// `leases` cover all scopes that the batch writes; the batch is named by the token of the first.
    ///
    /// # Errors
    /// - [`StoreError::Fenced`]: another process took the lease. Nothing was written; stop all work of this
    ///   run.
    /// - [`StoreError::Conflict`]: not the next record. Nothing was written; a bug of the caller, or damage.
    /// - [`StoreError::Full`], [`StoreError::Io`]: the batch is not acknowledged, and earlier acknowledged
    ///   data is intact. After a failed sync the store refuses further appends ([`StoreError::Poisoned`])
    ///   until it is opened again.
    /// - [`StoreError::Unknown`]: the answer was lost; send the same batch again with the same id.
    async fn append(&self, leases: &[&Lease], batch: Batch) -> Result<Appended, StoreError>;

    /// Returns the newest sound record of each open scope, with its body, by pages.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: the run does not exist.
    /// - [`StoreError::Damaged`]: a scope has records, none of them sound; `older` is `None`.
    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError>;

    /// Returns a verified record, with its body if retention kept it.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: run, scope or seq does not exist.
    /// - [`StoreError::Damaged`]: the record is damaged; names the next older sound record.
    async fn load(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Record, StoreError>;

    /// Returns the verified records that match a scan, without bodies.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: the run does not exist.
    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError>;

    /// Returns summaries of runs, newest first.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError>;

    /// Adds a durable signal for a run; needs no lease.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: the run does not exist.
    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError>;

    /// Returns the pending signals, oldest first.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: the run does not exist.
    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError>;

    /// Moves a damaged record to quarantine.
    ///
    /// # Errors
    /// - [`StoreError::Fenced`]: the lease was lost.
    /// - [`StoreError::Invalid`]: the record is sound; nothing changed.
    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError>;

    /// Drops the bodies of all checkpoints except those named by [`retention::kept`]: in each scope the
    /// newest `keep` sound step boundaries (at least 2), and the states required by a resume or rollback.
    ///
    /// The answer includes bodies that the store dropped automatically under this lease, because of the run's
    /// retention limit.
    ///
    /// A dry run changes nothing and needs no rights: the lease only names the run. It works on read-only
    /// media, and next to a writer. See [`StoreExt::would_trim`].
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: the lease was lost.
    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError>;

    /// Removes a run with all its data.
    ///
    /// A deletion that was cut short is ended by the next call, or by the next [`create`](Self::create) or
    /// [`acquire`](Self::acquire) of any run.
    ///
    /// # Errors
    /// - [`StoreError::Held`]: the run is running. Nothing changed.
    /// - [`StoreError::NotFound`]: the run does not exist.
    /// - [`StoreError::Version`]: a newer version wrote the run record, which names the run's data. Nothing
    ///   changed.
    async fn delete(&self, run: &RunId) -> Result<(), StoreError>;

    /// Returns the runs with an interrupted deletion: the run is deleted, and some of its files remain.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn deletions(&self) -> Result<Vec<RunId>, StoreError>;

    /// Checks the data derived from records, such as indexes and counts, of `run` or of the whole store, and returns one
    /// sentence for each problem. [`scan`](Self::scan) and [`load`](Self::load) check the records themselves.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: the run does not exist.
    /// - Those of the store's medium.
    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError>;

    /// Closes the store; leases end.
    ///
    /// # Errors
    /// Those of the store's medium, for data acknowledged as `async`.
    async fn close(&self) -> Result<(), StoreError>;

    /// Returns the blobs: logs and other large data outside the records.
    fn blobs(&self) -> &dyn Blobs;

    /// Returns the queue of the store, if workers share the store.
    fn queue(&self) -> Option<&dyn Queue>;

    /// Returns the folder with `events.jsonl`, `report.md` and `logs/` of a run, if there is one.
    fn folder(&self, run: &RunId) -> Option<std::path::PathBuf>;

    /// Returns how many scopes a run may have besides the main scope; `None` if only the disk limits them.
    fn scopes_max(&self) -> Option<u64>;

    /// Returns the folder that holds the store; paths in run records are relative to this folder.
    fn home(&self) -> Option<&Path>;
}

/// Longest wait of [`StoreExt::wait_for_release`]. Killing all processes of a run takes tens of milliseconds;
/// after this time a process is stuck in the kernel, and a person must know.
pub const LET_GO_MAX: Duration = Duration::from_secs(15);
/// The poll interval.
const LET_GO_POLL: Duration = Duration::from_millis(5);

/// Records in the first page of [`StoreExt::find_back`]: the wanted record is usually near the end.
const FIND_FIRST_ITEMS: usize = 16;
/// The growth factor of its pages.
const FIND_GROWTH: usize = 4;

/// Most records between two wanted ones in a common read: reading them costs less than a second query.
const RECORDS_APART: u64 = 8;

/// The token of the lease from [`Store::create`].
pub const FIRST_TOKEN: u64 = 1;

/// Keeps logs and large lists, in order, next to the records. A lost blob is not damage to a run.
#[async_trait]
pub trait Blobs: Debug + Send + Sync {
    /// Appends `bytes`, at most [`BLOB_CHUNK_BYTES`], to the blob `name` of the lease's run. Durable only
    /// after [`sync`](Self::sync).
    ///
    /// `name` has path segments of letters, digits, `.`, `_`, `-`, joined by `/`, such as `logs/fetch.1.log`.
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: the lease was lost; nothing was written. [`StoreError::Invalid`]: the name is invalid.
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError>;

    /// Returns when the whole blob is on disk, for data that records refer to: frozen items.
    ///
    /// # Errors
    /// Those of the store's medium; do not refer to the blob.
    async fn sync(&self, lease: &Lease, name: &str) -> Result<(), StoreError>;

    /// Reads at most [`BLOB_CHUNK_BYTES`] from `offset`; empty at the end and for a missing blob.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError>;

    /// Returns the folder with the logs of a run, if logs are files. Logs in a database are shorter.
    fn log_folder(&self, run: &RunId) -> Option<std::path::PathBuf>;
}

/// Checks the name of a blob against the rules of [`Blobs::append`]. Segments `.` and `..` are refused, so
/// that a blob never leaves its folder.
///
/// # Errors
/// [`StoreError::Invalid`]: the name is invalid.
pub fn check_blob_name(name: &str) -> Result<(), StoreError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let sound = |segment: &str| {
        !matches!(segment, "" | "." | "..") && segment.len() <= 255 && segment.bytes().all(allowed)
    };
    if name.len() <= BLOB_NAME_BYTES_MAX && name.split('/').all(sound) {
        return Ok(());
    }
    // Clipped, as the name is arbitrary.
    let name: String = name.chars().take(80).collect();
    Err(StoreError::Invalid(format!("`{name}` is not a blob name, such as `logs/fetch.1.log`")))
}

/// Longest name of a blob: a scope, a step and an attempt fit; deep trees do not.
pub const BLOB_NAME_BYTES_MAX: usize = 512;

/// Size of a chunk: a log line arrives soon, and a database row stays small.
pub const BLOB_CHUNK_BYTES: usize = 64 << 10;

/// The right to append to the scopes of a run: to all of them, or to one.
#[derive(Debug, Clone)]
pub struct Lease {
    run: RunId,
    /// The scope; `None` for the whole run.
    scope: Option<ScopePath>,
    token: u64,
    lock: Option<Arc<RunLock>>,
    deadline: Option<Arc<Deadline>>,
    #[expect(dead_code, reason = "kept for its drop")]
    guard: Option<Arc<dyn Guard>>,
}

/// A resource held by a lease: its drop informs a store without kernel locks of the holder's end.
pub trait Guard: Debug + Send + Sync {}

impl Lease {
    /// Creates a lease of a whole run; for stores. A local store passes its kernel lock.
    pub fn new(run: RunId, token: u64, lock: Option<RunLock>) -> Self {
        Self { run, scope: None, token, lock: lock.map(Arc::new), deadline: None, guard: None }
    }

    /// Narrows the lease to one scope, without its child scopes; for stores with several writers per run.
    #[must_use]
    pub fn of_scope(self, scope: ScopePath) -> Self {
        Self { scope: Some(scope), ..self }
    }

    /// Returns whether the lease permits appends to a scope.
    pub fn covers(&self, scope: &ScopePath) -> bool {
        self.scope.as_ref().is_none_or(|own| own == scope)
    }

    /// Creates a lease that names a run and holds nothing: stores never issue token 0. For calls without
    /// rights, such as a dry run.
    pub fn of_nobody(run: &RunId) -> Self {
        Self::new(run.clone(), 0, None)
    }

    /// Keeps `guard` as long as this lease or a clone exists; for stores.
    #[must_use]
    pub fn guarded_by(self, guard: Arc<dyn Guard>) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// Adds the moment when all steps of the run must have ended; for stores without kernel locks.
    #[must_use]
    pub fn until(self, deadline: Arc<Deadline>) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Returns the run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Returns the fencing token; every record appended under this lease carries the token.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the moment when all steps of the run must have ended, if the lease can run out.
    pub fn deadline(&self) -> Option<&Deadline> {
        self.deadline.as_deref()
    }

    /// Returns whether the lease has run out by the clock of this process: the steps of the run have ended.
    pub fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Waits until the lease has run out; for ever, if it cannot run out.
    pub async fn over(&self) {
        let Some(mut left) = self.left() else { return std::future::pending().await };
        while !left.is_zero() {
            // A renewal may move the deadline.
            tokio::time::sleep(left.min(OVER_POLL)).await;
            left = self.left().unwrap_or_default();
        }
    }

    fn left(&self) -> Option<Duration> {
        // An unreadable deadline has passed, as for the supervisor.
        self.deadline().map(|deadline| deadline.get().map_or(Duration::ZERO, |at| at.left()))
    }

    /// Returns the kernel lock of the lease, if the store is local.
    pub fn lock(&self) -> Option<&RunLock> {
        self.lock.as_deref()
    }
}

/// Longest pause between two looks at the end of a lease.
const OVER_POLL: Duration = Duration::from_millis(500);

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq)]
pub enum Renewal {
    /// The lease holds. Includes pending requests to the run, oldest first.
    Held(Vec<Signal>),
    /// Another process has the lease: stop all work of this run.
    Lost,
    /// The lease ended without an answered renewal: stop all work of this run. Another process may take the lease; until
    /// then, results of ended work count.
    Expired,
}

impl Renewal {
    /// Returns the pending requests under a lease that holds.
    ///
    /// # Errors
    /// - [`StoreError::Fenced`]: another process has the lease.
    /// - [`StoreError::Unreachable`]: the lease ended without an answer of the store.
    pub(crate) fn requests(self, lease: &Lease, store: &dyn Store) -> Result<Vec<Signal>, StoreError> {
        match self {
            Self::Held(signals) => Ok(signals),
            Self::Lost => {
                let (run, token) = (lease.run().clone(), lease.token());
                Err(StoreError::Fenced { run, token, newest: token + 1 })
            }
            Self::Expired => {
                let source = "no renewal of the lease was answered in time".into();
                Err(StoreError::Unreachable { store: store.to_string(), source })
            }
        }
    }
}

/// Whether a batch was applied now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Applied by this call.
    Now,
    /// Applied before, under the same batch id.
    Before,
}

/// Whether a signal is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// The signal is new.
    Now,
    /// A signal with this id exists; nothing changed.
    Before,
}

/// Whether [`Store::trim`] drops bodies or only counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrimMode {
    /// Drop the bodies.
    Apply,
    /// Only count, also while another process holds the run.
    DryRun,
}

/// Conveniences over any store.
#[async_trait]
pub trait StoreExt: Store {
    /// Returns the newest sound record of an open or ended scope, with its body if present.
    ///
    /// # Errors
    /// As [`Store::scan`] and [`Store::load`]; [`StoreError::NotFound`] if the scope has no record.
    async fn newest(&self, run: &RunId, scope: &ScopePath) -> Result<Record, StoreError> {
        let scan =
            Scan { scope: Some(scope.clone()), order: ScanOrder::NewestFirst, limit: 1, ..Scan::of(run) };
        let found = self.scan(&scan).await?;
        let record = found.records.first().ok_or_else(|| StoreError::no_scope(run, scope))?;
        self.load(run, scope, record.header().seq).await
    }

    /// Returns the sound records of a scan that satisfy `is_wanted`, of all pages, without bodies.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn scan_where(
        &self,
        mut scan: Scan,
        is_wanted: &(dyn for<'r> Fn(&'r Record) -> bool + Send + Sync),
    ) -> Result<Vec<Record>, StoreError> {
        let mut records = Vec::new();
        loop {
            let page = self.scan(&scan).await?;
            records.extend(page.records.into_iter().filter(|record| is_wanted(record)));
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return Ok(records),
            }
        }
    }

    /// Returns the sound records of the [`effective_history`](Self::effective_history) of a scope from `seq`
    /// back.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn history(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Vec<Record>, StoreError> {
        Ok(self.effective_history(run, scope, seq).await?.records)
    }

    /// Returns the effective history of a scope from `seq` back: the records along `basis`, and the damage
    /// on the way.
    ///
    /// Excludes records undone by a rollback. Reads the scope's headers once, by pages.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn effective_history(
        &self,
        run: &RunId,
        scope: &ScopePath,
        seq: u64,
    ) -> Result<History, StoreError> {
        let mut history = History { records: Vec::new(), damaged: Vec::new() };
        // Missing ranges: after the first seq, up to the second.
        let mut gaps = Vec::new();
        let mut next = Some(seq);
        let mut scan = Scan {
            scope: Some(scope.clone()),
            order: ScanOrder::NewestFirst,
            seq_max: Some(seq),
            ..Scan::of(run)
        };
        loop {
            let page = self.scan(&scan).await?;
            history.damaged.extend(page.damaged);
            for record in page.records {
                let found = record.header().seq;
                let Some(wanted) = next.filter(|wanted| *wanted >= found) else { continue };
                // If the wanted record is damaged or quarantined, continue with the next sound record below.
                gaps.extend((wanted > found).then_some((found, wanted)));
                next = record.header().basis();
                history.records.push(record);
            }
            match page.next {
                Some(cursor) if next.is_some() => scan.cursor = Some(cursor),
                _ => break,
            }
        }
        gaps.extend(next.map(|wanted| (0, wanted)));
        let is_missed = |seq: u64| gaps.iter().any(|(below, wanted)| (below + 1..=*wanted).contains(&seq));
        history.damaged.retain(|damage| is_missed(damage.seq));
        history.damaged.sort_by_key(|damage| std::cmp::Reverse(damage.seq));
        Ok(history)
    }

    /// Returns the records of a scope with these seqs, without bodies; nearby records are read together.
    ///
    /// # Errors
    /// As [`Store::load`], for a missing or damaged record.
    async fn records(
        &self,
        run: &RunId,
        scope: &ScopePath,
        seqs: &BTreeSet<u64>,
    ) -> Result<BTreeMap<u64, Record>, StoreError> {
        let mut found = BTreeMap::new();
        let mut left = seqs.iter().copied().peekable();
        while let Some(first) = left.next() {
            let mut last = first;
            while let Some(next) = left.next_if(|next| *next <= last + RECORDS_APART) {
                last = next;
            }
            let (seq_min, seq_max) = (Some(first), Some(last));
            let scan = Scan { scope: Some(scope.clone()), seq_min, seq_max, ..Scan::of(run) };
            let is_wanted = |record: &Record| seqs.contains(&record.header().seq);
            let records = self.scan_where(scan, &is_wanted).await?.into_iter();
            found.extend(records.map(|record| (record.header().seq, record)));
        }
        for seq in seqs.iter().filter(|seq| !found.contains_key(seq)).copied().collect::<Vec<_>>() {
            // The load returns the precise error.
            found.insert(seq, self.load(run, scope, seq).await?);
        }
        Ok(found)
    }

    /// Returns the seq of the record with the body of `header`'s batch: its own, or that of a later record.
    /// Children opened by the batch name this record as their origin.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn carrier(&self, header: &Header) -> Result<u64, StoreError> {
        let (scope, from) = (Some(header.scope.clone()), Some(header.seq));
        let mut scan = Scan { scope, seq_min: from, limit: FIND_FIRST_ITEMS, ..Scan::of(&header.run) };
        loop {
            let page = self.scan(&scan).await?;
            let mut headers = page.records.iter().map(Record::header);
            match (headers.find(|header| header.body.is_some()), page.next) {
                (Some(carrier), _) => return Ok(carrier.seq),
                (None, Some(cursor)) => scan.cursor = Some(cursor),
                (None, None) => return Ok(header.seq),
            }
        }
    }

    /// Finds the newest `wanted` record of a scope's effective history from `seq` back.
    ///
    /// Reads growing pages from the end: the cost depends on the distance, not on the length of the history.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn find_back(
        &self,
        run: &RunId,
        scope: &ScopePath,
        seq: u64,
        wanted: &(dyn for<'r> Fn(&'r Record) -> bool + Send + Sync),
    ) -> Result<Option<Record>, StoreError> {
        let mut next = Some(seq);
        let mut scan = Scan {
            scope: Some(scope.clone()),
            order: ScanOrder::NewestFirst,
            seq_max: Some(seq),
            limit: FIND_FIRST_ITEMS,
            ..Scan::of(run)
        };
        loop {
            let page = self.scan(&scan).await?;
            for record in page.records {
                // If the wanted record is damaged or quarantined, the walk continues with the next sound
                // record below.
                if next.is_some_and(|seq| seq >= record.header().seq) {
                    next = record.header().basis();
                    if wanted(&record) {
                        return Ok(Some(record));
                    }
                }
            }
            match page.next {
                Some(cursor) if next.is_some() => scan.cursor = Some(cursor),
                _ => return Ok(None),
            }
            scan.limit = (scan.limit * FIND_GROWTH).min(PAGE_ITEMS_MAX);
        }
    }

    /// Returns how much [`Store::trim`] would drop now; needs no lease and changes nothing.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn would_trim(&self, run: &RunId, keep: u32) -> Result<Trimmed, StoreError> {
        self.trim(&Lease::of_nobody(run), keep, TrimMode::DryRun).await
    }

    /// Waits, at most [`LET_GO_MAX`], while a supervisor holds the run's lock for a dead process and ends its
    /// children. Returns at once if the lock is free or its holder is alive.
    ///
    /// # Errors
    /// [`StoreError::Held`]: the wait took too long.
    async fn wait_for_release(&self, run: &RunId) -> Result<(), StoreError> {
        let begun = std::time::Instant::now();
        loop {
            // The caller's next call reports errors of the run itself.
            let Ok(entry) = self.run(run).await else { return Ok(()) };
            match entry.summary.holder {
                Some(holder) if holder.is_gone() => {
                    if begun.elapsed() > LET_GO_MAX {
                        return Err(StoreError::Held { run: run.clone(), holder: Some(holder), until: None });
                    }
                }
                _ => return Ok(()),
            }
            tokio::time::sleep(LET_GO_POLL).await;
        }
    }

    /// Returns the names of all scopes of a run with records, open or ended.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn scopes(&self, run: &RunId) -> Result<BTreeSet<ScopePath>, StoreError> {
        scopes::names(self, run).await
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[test]
    fn only_a_lost_lease_names_another_holder() {
        let (lease, store) = (Lease::new(RunId::new("r").unwrap(), 3, None), MemoryStore::default());
        let error = |renewal: Renewal| renewal.requests(&lease, &store).unwrap_err();
        assert!(matches!(error(Renewal::Lost), StoreError::Fenced { token: 3, newest: 4, .. }));
        assert!(matches!(error(Renewal::Expired), StoreError::Unreachable { .. }));
        assert_eq!(Renewal::Held(Vec::new()).requests(&lease, &store).unwrap(), []);
    }
}
