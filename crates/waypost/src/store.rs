//! Where records live: the trait that every store fulfils, and its contract.
//!
//! A store keeps bytes and their order; it decides nothing. It knows headers, since it looks records up by them and
//! keeps a summary of each run, and it never looks into a state. What to do next is the plan's business
//! ([`crate::plan`]), doing it the engine's ([`crate::engine`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Display};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::{BranchPath, RunId};
use crate::lock::{Holder, RunLock};
use crate::record::{Header, Record, SealedRun};

mod batch;
mod error;
mod query;
pub mod retention;

pub use batch::{Batch, BatchId, Signal, SignalKind, Summary};
pub use error::{Damage, StoreError};
pub use query::{
    Head, Heads, History, PAGE_ITEMS_MAX, Page, Progress, RunEntry, RunQuery, RunSummary, Runs, Scan,
    ScanOrder, Scanned, Trimmed, UnreadableRun,
};

/// Keeps runs and their records.
///
/// Object-safe, without default bodies: what a store must do is what stands here. Conveniences are in [`StoreExt`].
///
/// # Contract
///
/// Each clause has a test of the same name in `waypost-testing`, run against every store.
///
/// - `create_is_all_or_nothing`: after [`create`](Self::create) the run, its frozen record and its first batch are
///   there, or nothing is. That batch may have records of several branches, ended ones among them.
/// - `create_refuses_an_existing_run`: and changes nothing of it.
/// - `acknowledged_is_durable`: what `create` or [`append`](Self::append) acknowledged is read back by a store opened
///   afterwards.
/// - `append_is_all_or_nothing`: of a batch that is refused, nothing is there.
/// - `append_continues_the_chain`: a record whose `seq` is not the next of its branch, or whose `prev` is not the
///   digest of the record before, is refused with [`StoreError::Conflict`]. Only a record with reason `repair` may
///   leave a gap, up to [`Head::next`]; its `prev` is the digest of a sound record of the branch.
/// - `append_is_answered_once`: a batch repeated with the same id is answered [`Appended::Before`] and not applied
///   again, even if it gave the lease back.
/// - `append_needs_the_lease`: a token that is not the newest of its run is refused with [`StoreError::Fenced`], for
///   good.
/// - `acquire_excludes`: while one holds the lease, another gets [`StoreError::Held`] that names the holder.
/// - `acquire_raises_the_token`: every lease has a greater token than all before it.
/// - `release_frees`: after [`release`](Self::release) or a batch with `release`, the lease can be acquired at once,
///   and the old one is refused.
/// - `renew_tells_of_stop_requests`: a pending stop, cancel or wish for a checkpoint is answered by [`renew`](Self::renew) until it is
///   consumed; a lost lease is told as lost.
/// - `heads_are_the_newest_of_open_branches`: in the order in which the branches were opened; a branch whose newest
///   header has `end` is not among them.
/// - `heads_pass_over_damage`: if the newest record of a branch is damaged, the head is the newest sound one that has
///   a body, and what was passed over is listed. No seq is given twice, not even that of a record in quarantine.
/// - `run_returns_exact_bytes`: the frozen record is the one given to `create`, to the byte; a damaged one is
///   [`StoreError::Damaged`] with seq 0, and hinders neither its own checkpoints nor other runs.
/// - `load_returns_exact_bytes`: header and body are those appended, to the byte.
/// - `load_names_the_older_sound_one`: a damaged record is [`StoreError::Damaged`], never returned.
/// - `scan_filters_and_pages`: by run, branch, seq range, step, phase, label, `external` and `about`, in either
///   direction; a page ends with a cursor from which the next one goes on; damaged headers are listed, not returned.
/// - `runs_come_newest_first`: in order of creation, by count and not by clock.
/// - `runs_tell_the_truth`: a run whose holder is dead is `interrupted`, or `in_doubt`, whatever was last written.
/// - `remarks_make_no_run_younger`: a batch with [`updated_at`](Batch::updated_at) leaves the run that old, also for
///   [`RunQuery::since`]; the next without makes it as old as its last record.
/// - `signal_is_unique`: the same id twice is answered [`Signalled::Before`]; a consumed id stays known.
/// - `quarantine_keeps_the_bytes`: a damaged record is moved aside, never deleted, and nothing there is overwritten;
///   only the holder may.
/// - `trim_drops_states_never_headers`: the newest `keep` sound step boundaries, never fewer than 2, keep their body.
/// - `trim_spares_what_a_resume_needs`: however many tries failed since, the newest state whose evidence held keeps its
///   body, and so do the others that [`retention::kept`] names; what it does not name goes.
/// - `delete_removes_everything`: and only while nobody holds the lease.
/// - `reading_needs_no_lease`: and changes nothing.
/// - `blobs_are_fenced_and_appended`: a chunk is read back at its place; a stale token is refused; a missing blob is
///   empty, not damage.
/// - `closed_refuses`: after [`close`](Self::close) every call is [`StoreError::Closed`].
#[async_trait]
pub trait Store: Debug + Display + Send + Sync {
    /// Makes a run and takes its lease: frozen record and first batch in one transaction.
    ///
    /// The records of `first` carry token [`FIRST_TOKEN`].
    ///
    /// # Errors
    /// - [`StoreError::Exists`]: there is such a run. Nothing changed; resume it or choose another id.
    /// - [`StoreError::Held`]: somebody is making or deleting it right now. Nothing changed.
    /// - Others as for [`append`](Self::append).
    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError>;

    /// Returns the frozen record of a run and its summary.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: no such run.
    /// - [`StoreError::Damaged`]: its frozen record is not what was written; its checkpoints may still be sound.
    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError>;

    /// Takes the lease of a branch, unless another holds it. A local store leases the whole run at once.
    ///
    /// # Errors
    /// - [`StoreError::Held`]: by whom and since when. Nothing changed; wait, or stop that run.
    /// - [`StoreError::NotFound`]: no such run.
    async fn acquire(&self, run: &RunId, branch: &BranchPath, holder: &Holder) -> Result<Lease, StoreError>;

    /// Extends leases that run out, and answers what was asked of their runs meanwhile; one answer for each lease.
    ///
    /// # Errors
    /// Those of the store's medium; the leases then hold until their time.
    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError>;

    /// Gives a lease back. With `wake_at`, the run is due again at that time.
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: it was lost before; nothing changed.
    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError>;

    /// Appends a batch, all or nothing, and returns when it is as durable as the run asks.
    ///
    /// # Errors
    /// - [`StoreError::Fenced`]: another took the lease. Nothing was written; stop all work of this run.
    /// - [`StoreError::Conflict`]: not the next record. Nothing was written; a bug of the caller, or damage.
    /// - [`StoreError::Full`], [`StoreError::Io`]: nothing of the batch is acknowledged, and what was acknowledged
    ///   before is untouched. After a failed sync the store refuses further appends ([`StoreError::Poisoned`]) until
    ///   it is opened again.
    /// - [`StoreError::Unknown`]: the answer was lost; send the same batch again with the same id.
    async fn append(&self, lease: &Lease, batch: Batch) -> Result<Appended, StoreError>;

    /// Returns the newest sound record of each open branch, with its body, a page at a time.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: no such run.
    /// - [`StoreError::Damaged`]: a branch has records and none is sound; `older` is `None`.
    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError>;

    /// Returns one record with its body, as far as retention kept it, verified.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: no such run, branch or seq.
    /// - [`StoreError::Damaged`]: not what was written; names the next older sound record.
    async fn load(&self, run: &RunId, branch: &BranchPath, seq: u64) -> Result<Record, StoreError>;

    /// Returns records without bodies, verified, as asked.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: no such run.
    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError>;

    /// Returns summaries of runs, newest first.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError>;

    /// Leaves a durable message for a run; needs no lease.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: no such run.
    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError>;

    /// Returns the messages not yet consumed, oldest first.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: no such run.
    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError>;

    /// Moves a damaged record aside.
    ///
    /// # Errors
    /// - [`StoreError::Fenced`]: the lease was lost.
    /// - [`StoreError::Invalid`]: the record is sound; nothing changed.
    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError>;

    /// Drops the bodies of all checkpoints of each branch but those that [`retention::kept`] names: the newest `keep` sound
    /// step boundaries (at least 2), and what is needed to go on from or back to.
    ///
    /// What a store let go by itself under this lease, since a run says how many states it keeps, counts in the answer.
    ///
    /// A dry run changes nothing, so it asks for no right to: the lease only names the run then, and it works where
    /// nothing can be written, and beside whoever writes. See [`StoreExt::would_trim`].
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: the lease was lost.
    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError>;

    /// Removes a run with everything that belongs to it.
    ///
    /// A deletion that was cut short is ended by the next call, or by the next [`create`](Self::create) or
    /// [`acquire`](Self::acquire) of any run.
    ///
    /// # Errors
    /// - [`StoreError::Held`]: it is running. Nothing changed.
    /// - [`StoreError::NotFound`]: no such run.
    /// - [`StoreError::Version`]: a newer version wrote its record, which tells what belongs to it. Nothing changed.
    async fn delete(&self, run: &RunId) -> Result<(), StoreError>;

    /// Returns the runs whose deletion was cut short: not there any more, with files that are.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn deletions(&self) -> Result<Vec<RunId>, StoreError>;

    /// Looks over what is kept beside records, such as indexes and counts, and says what is wrong, a sentence each: of one
    /// run, or of the store as a whole. That records are sound, [`scan`](Self::scan) and [`load`](Self::load) tell.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`]: no such run.
    /// - Those of the store's medium.
    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError>;

    /// Closes the store; leases end.
    ///
    /// # Errors
    /// Those of the store's medium, for what was acknowledged as `async`.
    async fn close(&self) -> Result<(), StoreError>;

    /// Returns the place for logs and other large things that are not records.
    fn blobs(&self) -> &dyn Blobs;

    /// Returns the folder in which a person finds `events.jsonl`, `report.md` and `logs/` of a run, if there is one.
    fn folder(&self, run: &RunId) -> Option<std::path::PathBuf>;

    /// Returns how many branches a run may have beside the main one; none where only the disk limits them.
    fn branches_max(&self) -> Option<u64>;

    /// Returns the folder that holds the store; paths in run records are relative to it.
    fn home(&self) -> Option<&Path>;
}

/// How long [`StoreExt::wait_while_dying`] waits: killing every process of a run takes tens of milliseconds; beyond
/// this one is stuck in the kernel, and a person must know.
pub const LET_GO_MAX: std::time::Duration = std::time::Duration::from_secs(15);
/// How often it looks.
const LET_GO_POLL: std::time::Duration = std::time::Duration::from_millis(5);

/// How many records [`StoreExt::find_back`] reads at first: what is looked for is most often near the end.
const FIND_FIRST_ITEMS: usize = 16;
/// By how much each of its pages is larger than the one before.
const FIND_GROWTH: usize = 4;

/// Records that lie no further apart are read together: what stands between them costs less than asking once more.
const RECORDS_APART: u64 = 8;

/// The token of the lease that [`Store::create`] gives.
pub const FIRST_TOKEN: u64 = 1;

/// Keeps logs and large lists, in order, beside the records. Losing one is not damage to a run.
#[async_trait]
pub trait Blobs: Debug + Send + Sync {
    /// Appends `bytes`, at most [`BLOB_CHUNK_BYTES`], to the blob `name` of the lease's run. Not on disk before [`sync`](Self::sync).
    ///
    /// `name` is one or more path segments of letters, digits, `.`, `_`, `-`, joined by `/`, such as
    /// `logs/fetch.1.log`.
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: the lease was lost; nothing was written. [`StoreError::Invalid`]: not such a name.
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError>;

    /// Returns once all that was appended to the blob is on disk, for what records rely on: frozen items.
    ///
    /// # Errors
    /// Those of the store's medium; the blob must not be relied on.
    async fn sync(&self, lease: &Lease, name: &str) -> Result<(), StoreError>;

    /// Reads at most [`BLOB_CHUNK_BYTES`] from `offset`; empty at the end and for a blob that is not there.
    ///
    /// # Errors
    /// Those of the store's medium.
    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError>;
}

/// Checks the name of a blob, as [`Blobs::append`] says. No segment is `.` or `..`, so that none leaves its folder.
///
/// # Errors
/// [`StoreError::Invalid`]: it is no such name.
pub fn check_blob_name(name: &str) -> Result<(), StoreError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let sound = |segment: &str| {
        !matches!(segment, "" | "." | "..") && segment.len() <= 255 && segment.bytes().all(allowed)
    };
    if name.len() <= BLOB_NAME_BYTES_MAX && name.split('/').all(sound) {
        return Ok(());
    }
    // The name may be anything: enough of it to recognise it.
    let name: String = name.chars().take(80).collect();
    Err(StoreError::Invalid(format!("`{name}` is not the name of a blob: it looks like `logs/fetch.1.log`")))
}

/// Longest name of a blob: a branch, a step and an attempt fit; deep trees do not.
pub const BLOB_NAME_BYTES_MAX: usize = 512;

/// Size of a chunk: a log line arrives soon, and a row of a database stays small.
pub const BLOB_CHUNK_BYTES: usize = 64 << 10;

/// The right to append to a run.
#[derive(Debug, Clone)]
pub struct Lease {
    run: RunId,
    token: u64,
    lock: Option<Arc<RunLock>>,
    #[expect(dead_code, reason = "it is kept for what its drop does")]
    guard: Option<Arc<dyn Guard>>,
}

/// What a lease keeps alive: a store that has no kernel lock learns by its drop that the holder is gone.
pub trait Guard: Debug + Send + Sync {}

impl Lease {
    /// Makes a lease; for stores. Local stores pass the kernel lock that stands behind it.
    pub fn new(run: RunId, token: u64, lock: Option<RunLock>) -> Self {
        Self { run, token, lock: lock.map(Arc::new), guard: None }
    }

    /// Names a run and holds nothing: no store gives the token 0. For what needs no right, as a dry run.
    pub fn of_nobody(run: &RunId) -> Self {
        Self::new(run.clone(), 0, None)
    }

    /// Keeps `guard` for as long as this lease or a clone of it is there; for stores.
    #[must_use]
    pub fn guarded_by(self, guard: Arc<dyn Guard>) -> Self {
        Self { guard: Some(guard), ..self }
    }

    /// Returns the run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Returns the fencing token; every record appended under this lease carries it.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the kernel lock behind the lease, if the store is local.
    pub fn lock(&self) -> Option<&RunLock> {
        self.lock.as_deref()
    }
}

/// The answer to a renewal.
#[derive(Debug, Clone, PartialEq)]
pub enum Renewal {
    /// The lease holds. With what was asked of the run and is not consumed yet, oldest first.
    Held(Vec<Signal>),
    /// Another has the lease: stop all work of this run.
    Lost,
}

/// Whether a batch was applied now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Applied by this call.
    Now,
    /// Applied before by the same batch id.
    Before,
}

/// Whether a signal is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// It is.
    Now,
    /// One with this id was left before; nothing changed.
    Before,
}

/// Whether [`Store::trim`] does it or only says what it would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrimMode {
    /// Drop the bodies.
    Apply,
    /// Only count, whoever holds the run.
    DryRun,
}

/// Conveniences over any store.
#[async_trait]
pub trait StoreExt: Store {
    /// Returns the newest sound record of a branch, whether it is open or not; with its body if it has one.
    ///
    /// # Errors
    /// As [`Store::scan`] and [`Store::load`]; [`StoreError::NotFound`] if the branch has no record.
    async fn newest(&self, run: &RunId, branch: &BranchPath) -> Result<Record, StoreError> {
        let scan =
            Scan { branch: Some(branch.clone()), order: ScanOrder::NewestFirst, limit: 1, ..Scan::of(run) };
        let found = self.scan(&scan).await?;
        let record = found.records.first().ok_or_else(|| StoreError::no_branch(run, branch))?;
        self.load(run, branch, record.header().seq).await
    }

    /// Returns the sound records of the [`effective_history`](Self::effective_history) of a branch from `seq` back.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn history(&self, run: &RunId, branch: &BranchPath, seq: u64) -> Result<Vec<Record>, StoreError> {
        Ok(self.effective_history(run, branch, seq).await?.records)
    }

    /// Returns the effective history of a branch from `seq` back: the walk of `basis`, and the damage on it.
    ///
    /// What a rollback undid is not on it. Reads the branch's headers once, a page at a time.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn effective_history(
        &self,
        run: &RunId,
        branch: &BranchPath,
        seq: u64,
    ) -> Result<History, StoreError> {
        let mut history = History { records: Vec::new(), damaged: Vec::new() };
        // What should be there and is not: from behind the first seq to the second.
        let mut gaps = Vec::new();
        let mut next = Some(seq);
        let mut scan = Scan {
            branch: Some(branch.clone()),
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
                // Where the record meant is damaged or in quarantine, the next sound one below is gone on with.
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

    /// Returns records of a branch, without bodies, by their seqs: those that lie near each other are read together.
    ///
    /// # Errors
    /// As [`Store::load`], of one that is not there or not sound.
    async fn records(
        &self,
        run: &RunId,
        branch: &BranchPath,
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
            let mut scan = Scan { branch: Some(branch.clone()), seq_min, seq_max, ..Scan::of(run) };
            loop {
                let page = self.scan(&scan).await?;
                let records = page.records.into_iter().filter(|record| seqs.contains(&record.header().seq));
                found.extend(records.map(|record| (record.header().seq, record)));
                match page.next {
                    Some(cursor) => scan.cursor = Some(cursor),
                    None => break,
                }
            }
        }
        for seq in seqs.iter().filter(|seq| !found.contains_key(seq)).copied().collect::<Vec<_>>() {
            // It says what is wrong with it.
            found.insert(seq, self.load(run, branch, seq).await?);
        }
        Ok(found)
    }

    /// Returns the seq of the record that carries the body of the batch which a record is of: its own, or that of a later
    /// one. What a batch opened is named after that record.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn carrier(&self, header: &Header) -> Result<u64, StoreError> {
        let (branch, from) = (Some(header.branch.clone()), Some(header.seq));
        let mut scan = Scan { branch, seq_min: from, limit: FIND_FIRST_ITEMS, ..Scan::of(&header.run) };
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

    /// Finds the newest record of the effective history of a branch from `seq` back that is `wanted`.
    ///
    /// Reads no further than it must: what stands near the end is found at the same cost however long the history is.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn find_back(
        &self,
        run: &RunId,
        branch: &BranchPath,
        seq: u64,
        wanted: &(dyn for<'r> Fn(&'r Record) -> bool + Send + Sync),
    ) -> Result<Option<Record>, StoreError> {
        let mut next = Some(seq);
        let mut scan = Scan {
            branch: Some(branch.clone()),
            order: ScanOrder::NewestFirst,
            seq_max: Some(seq),
            limit: FIND_FIRST_ITEMS,
            ..Scan::of(run)
        };
        loop {
            let page = self.scan(&scan).await?;
            for record in page.records {
                // Where the record meant is damaged or in quarantine, the walk goes on with the next sound one below.
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

    /// Says what [`Store::trim`] would drop now; takes and changes nothing.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn would_trim(&self, run: &RunId, keep: u32) -> Result<Trimmed, StoreError> {
        self.trim(&Lease::of_nobody(run), keep, TrimMode::DryRun).await
    }

    /// Waits, at most [`LET_GO_MAX`], while the run's lock is held on behalf of a process that is gone: its supervisor
    /// is ending what it left. Returns at once if it is free or its holder lives.
    ///
    /// # Errors
    /// [`StoreError::Held`] if it took too long.
    async fn wait_while_dying(&self, run: &RunId) -> Result<(), StoreError> {
        let begun = std::time::Instant::now();
        loop {
            // What is wrong with the run itself, the caller's next call says better.
            let Ok(entry) = self.run(run).await else { return Ok(()) };
            match entry.summary.holder {
                Some(holder) if holder.is_gone() => {
                    if begun.elapsed() > LET_GO_MAX {
                        return Err(StoreError::Held { run: run.clone(), holder: Some(holder) });
                    }
                }
                _ => return Ok(()),
            }
            tokio::time::sleep(LET_GO_POLL).await;
        }
    }

    /// Returns the names of all branches of a run that have records, open or not.
    ///
    /// # Errors
    /// As [`Store::scan`].
    async fn branches(&self, run: &RunId) -> Result<BTreeSet<BranchPath>, StoreError> {
        let mut names = BTreeSet::new();
        let mut scan = Scan { seq_max: Some(1), ..Scan::of(run) };
        loop {
            let page = self.scan(&scan).await?;
            names.extend(page.records.iter().map(|record| record.header().branch.clone()));
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return Ok(names),
            }
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
