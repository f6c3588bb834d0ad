//! The store in memory: the reference that the others are compared with, small enough to read at once.
//!
//! It keeps exact bytes and opens them again for every read, as a store on a disk does, so that damage is seen here
//! too. Nothing of it outlives its last [`MemoryStore`] value; clones are the same store. A lease is not tied to a
//! process: it is held until it is released, or until [`MemoryStore::drop_holder`] lets its holder die.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::{BranchPath, Digest, RunId};
use crate::lock::Holder;
use crate::record::{Bytes, Flaw, Header, Reason, Record, SealedRun};
use crate::store::{
    Appended, BLOB_CHUNK_BYTES, Batch, BatchId, Blobs, Damage, FIRST_TOKEN, Head, Heads, Lease,
    PAGE_ITEMS_MAX, Page, Renewal, RunEntry, RunQuery, RunSummary, Runs, Scan, ScanOrder, Scanned, Signal,
    SignalKind, Signalled, Store, StoreError, Summary, TrimMode, Trimmed, check_blob_name,
};

/// Most bodies that [`Store::trim`] leaves at least: one to use, and one to fall back to.
const KEEP_MIN: u32 = 2;

/// A store in memory.
#[derive(Clone, Default)]
pub struct MemoryStore {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    runs: BTreeMap<RunId, Run>,
    made: u64,
    closed: bool,
}

struct Run {
    /// Which run of the store it is, counted from 1.
    made: u64,
    sealed: SealedRun,
    bytes: Bytes,
    token: u64,
    holder: Option<Holder>,
    last: BatchId,
    summary: Summary,
    updated_at: Timestamp,
    /// In the order in which they were opened.
    branches: Vec<Branch>,
    /// With whether they are consumed.
    signals: Vec<(Signal, bool)>,
    quarantine: Vec<Stored>,
    blobs: BTreeMap<String, Vec<u8>>,
}

struct Branch {
    path: BranchPath,
    records: BTreeMap<u64, Stored>,
    /// One more than the highest seq it ever had, quarantine included.
    next: u64,
}

#[derive(Clone)]
struct Stored {
    digest: Digest,
    header: Bytes,
    body: Option<Bytes>,
}

/// What of a run is damaged by [`MemoryStore::damage`].
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Run,
    Header,
    Body,
}

impl Stored {
    fn open(&self) -> Result<Record, Flaw> {
        Record::open(self.digest, self.header.to_vec(), self.body.as_ref().map(|body| body.to_vec()))
    }

    fn open_header(&self) -> Result<Record, Flaw> {
        Record::open(self.digest, self.header.to_vec(), None)
    }
}

impl Branch {
    fn damage(&self, run: &RunId, seq: u64, flaw: Flaw) -> Damage {
        let place = format!("memory, branch {} record {seq}", self.path);
        Damage { run: run.clone(), branch: self.path.clone(), seq, place, flaw }
    }

    fn newest_sound_below(&self, seq: u64) -> Option<u64> {
        self.records.range(..seq).rev().find(|(_, stored)| stored.open().is_ok()).map(|(seq, _)| *seq)
    }

    /// Returns the newest sound record that has a body, and the damage passed over.
    fn newest(&self, run: &RunId) -> (Option<Record>, Vec<Damage>) {
        let mut damaged = Vec::new();
        for (seq, stored) in self.records.iter().rev() {
            match stored.open() {
                Ok(record) if record.body_bytes().is_some() => return (Some(record), damaged),
                Ok(_) => {}
                Err(flaw) => damaged.push(self.damage(run, *seq, flaw)),
            }
        }
        (None, damaged)
    }

    /// Returns why a record does not continue the branch, if it does not.
    fn refuses(&self, header: &Header) -> Option<String> {
        let newest = self.records.last_key_value();
        let (last, digest) = newest.map_or((0, None), |(seq, stored)| (*seq, Some(stored.digest)));
        if header.reason == Reason::Repair {
            let sound = |digest: &Digest| {
                let mut records = self.records.values().rev();
                records.any(|stored| stored.digest == *digest && stored.open().is_ok())
            };
            let fits = header.seq > last && header.seq <= self.next;
            let why = || format!("its branch ends at {last} and goes on at {} at most", self.next);
            return if !fits {
                Some(why())
            } else {
                (!header.prev.as_ref().is_none_or(sound)).then(|| "its `prev` is no sound record".to_owned())
            };
        }
        if header.seq != self.next || last + 1 != self.next {
            return Some(format!("its branch ends at {last} and goes on at {}", self.next));
        }
        (header.prev != digest)
            .then(|| format!("its `prev` is {:?}, the record before is {digest:?}", header.prev))
    }
}

impl Run {
    fn new(sealed: &SealedRun, made: u64, first: &Batch, holder: &Holder) -> Self {
        Self {
            made,
            sealed: sealed.clone(),
            bytes: sealed.bytes().clone(),
            token: FIRST_TOKEN,
            holder: Some(holder.clone()),
            last: BatchId { token: 0, count: 0 },
            summary: first.summary.clone(),
            updated_at: sealed.record().created_at,
            branches: Vec::new(),
            signals: Vec::new(),
            quarantine: Vec::new(),
            blobs: BTreeMap::new(),
        }
    }

    fn id(&self) -> &RunId {
        &self.sealed.record().run
    }

    fn check(&self, lease: &Lease) -> Result<(), StoreError> {
        if self.holder.is_some() && lease.token() == self.token {
            return Ok(());
        }
        Err(StoreError::Fenced { run: self.id().clone(), token: lease.token(), newest: self.token })
    }

    /// Checks a whole batch, then applies it.
    fn apply(&mut self, batch: Batch) -> Result<(), StoreError> {
        batch.check(self.id(), self.token)?;
        let mut tips: BTreeMap<&BranchPath, (u64, Digest)> = BTreeMap::new();
        for record in &batch.records {
            let header = record.header();
            let refused = match (tips.get(&header.branch), self.branch(&header.branch)) {
                (Some((seq, digest)), _) => (header.seq != seq + 1 || header.prev != Some(*digest))
                    .then(|| format!("the batch has {seq} with digest {digest} before it")),
                (None, Some(branch)) => branch.refuses(header),
                (None, None) => (header.seq != 1 || header.prev.is_some())
                    .then(|| "a branch begins with 1 and without `prev`".to_owned()),
            };
            if let Some(why) = refused {
                let (run, branch, seq) = (header.run.clone(), header.branch.clone(), header.seq);
                return Err(StoreError::Conflict { run, branch, seq, why });
            }
            tips.insert(&header.branch, (header.seq, record.digest()));
        }
        for record in &batch.records {
            self.insert(record);
        }
        for (signal, consumed) in &mut self.signals {
            *consumed |= batch.consumed.contains(&signal.id);
        }
        self.last = batch.id;
        self.summary = batch.summary;
        if batch.release {
            self.holder = None;
        }
        Ok(())
    }

    fn insert(&mut self, record: &Record) {
        let header = record.header();
        self.updated_at = header.created_at;
        let place =
            self.branches.iter().position(|branch| branch.path == header.branch).unwrap_or_else(|| {
                self.branches.push(Branch { path: header.branch.clone(), records: BTreeMap::new(), next: 1 });
                self.branches.len() - 1
            });
        let (header_bytes, body) = (record.header_bytes().clone(), record.body_bytes().cloned());
        let stored = Stored { digest: record.digest(), header: header_bytes, body };
        self.branches[place].records.insert(header.seq, stored);
        self.branches[place].next = header.seq + 1;
    }

    fn branch(&self, path: &BranchPath) -> Option<&Branch> {
        self.branches.iter().find(|branch| branch.path == *path)
    }

    fn summary(&self) -> RunSummary {
        let record = self.sealed.record();
        let stored = || self.branches.iter().flat_map(|branch| branch.records.values());
        let bytes = |stored: &Stored| stored.header.len() + stored.body.as_ref().map_or(0, |body| body.len());
        RunSummary {
            run: record.run.clone(),
            workflow: record.workflow.clone(),
            path: record.path.clone(),
            status: RunSummary::true_status(&self.summary, self.holder.is_some()),
            summary: self.summary.clone(),
            labels: record.labels.clone(),
            created_at: record.created_at,
            updated_at: self.updated_at,
            checkpoints: stored().count() as u64,
            bytes: stored().map(bytes).sum::<usize>() as u64,
            holder: self.holder.clone(),
        }
    }
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the holder of a run's lease die: the lease can be acquired, and what it held is known to be lost.
    pub fn drop_holder(&self, run: &RunId) {
        if let Some(run) = self.lock().runs.get_mut(run) {
            run.holder = None;
        }
    }

    /// Lets every holder die and opens a closed store again, as another process would after a crash.
    #[doc(hidden)]
    pub fn reopen(&self) -> Self {
        let mut kept = self.lock();
        kept.closed = false;
        kept.runs.values_mut().for_each(|run| run.holder = None);
        drop(kept);
        self.clone()
    }

    /// Flips one bit in the middle of what is kept of a record; for tests.
    #[doc(hidden)]
    pub fn damage(&self, run: &RunId, branch: &BranchPath, seq: u64, part: Part) {
        let mut kept = self.lock();
        let run = kept.runs.get_mut(run).expect("a test damages what is there");
        let record = run.branches.iter_mut().find(|found| found.path == *branch);
        let bytes = match (part, record.and_then(|branch| branch.records.get_mut(&seq))) {
            (Part::Run, _) => &mut run.bytes,
            (Part::Header, Some(stored)) => &mut stored.header,
            (Part::Body, Some(Stored { body: Some(body), .. })) => body,
            _ => panic!("a test damages what is there"),
        };
        let bytes = Arc::make_mut(bytes);
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }

    /// Returns the bytes of what was moved to quarantine; for tests.
    #[doc(hidden)]
    pub fn quarantined(&self, run: &RunId) -> Vec<Vec<u8>> {
        let kept = self.lock();
        let stored = kept.runs.get(run).into_iter().flat_map(|run| &run.quarantine);
        stored
            .map(|stored| [stored.header.as_slice(), stored.body.as_ref().map_or(&[], |b| b)].concat())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // No call panics half-way through a change, so what another thread left is sound.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, Kept>, StoreError> {
        let kept = self.lock();
        if kept.closed { Err(StoreError::Closed(self.to_string())) } else { Ok(kept) }
    }

    /// Carries `change` out on a run.
    fn with<T>(
        &self,
        run: &RunId,
        change: impl FnOnce(&mut Run) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        change(self.open()?.runs.get_mut(run).ok_or_else(|| StoreError::no_run(self, run))?)
    }

    /// As [`with`](Self::with), under a lease: what was deleted has no lease any more.
    fn held<T>(
        &self,
        lease: &Lease,
        change: impl FnOnce(&mut Run) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with(lease.run(), |run| {
            run.check(lease)?;
            change(run)
        })
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory:")
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("runs", &self.lock().runs.len()).finish()
    }
}

/// Reads a cursor that is a count; an unknown one is refused, not taken for the begin.
fn count_of(cursor: Option<&String>) -> Result<Option<u64>, StoreError> {
    let parse =
        |text: &String| text.parse().map_err(|_| StoreError::Invalid(format!("`{text}` is no cursor")));
    cursor.map(parse).transpose()
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for MemoryStore {
    async fn create(&self, run: &SealedRun, first: Batch, holder: &Holder) -> Result<Lease, StoreError> {
        let mut kept = self.open()?;
        let id = &run.record().run;
        if kept.runs.contains_key(id) {
            return Err(StoreError::Exists { run: id.clone() });
        }
        let mut made = Run::new(run, kept.made + 1, &first, holder);
        made.apply(first)?;
        kept.made += 1;
        kept.runs.insert(id.clone(), made);
        Ok(Lease::new(id.clone(), FIRST_TOKEN, None))
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        self.with(run, |kept| {
            let record = SealedRun::open(kept.sealed.digest(), kept.bytes.to_vec()).map_err(|flaw| {
                let place = "memory, run record".to_owned();
                let damage = Damage { run: run.clone(), branch: BranchPath::main(), seq: 0, place, flaw };
                StoreError::of_damage(damage, None)
            })?;
            Ok(RunEntry { record, summary: kept.summary() })
        })
    }

    async fn acquire(&self, run: &RunId, _: &BranchPath, holder: &Holder) -> Result<Lease, StoreError> {
        self.with(run, |kept| {
            if let Some(holder) = &kept.holder {
                return Err(StoreError::Held { run: run.clone(), holder: Some(holder.clone()) });
            }
            kept.token += 1;
            kept.holder = Some(holder.clone());
            Ok(Lease::new(run.clone(), kept.token, None))
        })
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        let kept = self.open()?;
        let answer = |lease: &&Lease| match kept.runs.get(lease.run()) {
            Some(run) if run.check(lease).is_ok() => {
                let asks = |signal: &&Signal| matches!(signal.kind, SignalKind::Stop | SignalKind::Cancel);
                let pending = run.signals.iter().filter(|(_, consumed)| !consumed).map(|(signal, _)| signal);
                Renewal::Held(pending.filter(asks).cloned().collect())
            }
            _ => Renewal::Lost,
        };
        Ok(leases.iter().map(answer).collect())
    }

    async fn release(&self, lease: Lease, wake_at: Option<Timestamp>) -> Result<(), StoreError> {
        self.held(&lease, |run| {
            run.holder = None;
            run.summary.wake_at = wake_at.or(run.summary.wake_at);
            Ok(())
        })
    }

    async fn append(&self, lease: &Lease, batch: Batch) -> Result<Appended, StoreError> {
        self.with(lease.run(), |run| {
            if batch.id.token == run.last.token && batch.id.count <= run.last.count {
                return Ok(Appended::Before);
            }
            run.check(lease)?;
            run.apply(batch)?;
            Ok(Appended::Now)
        })
    }

    async fn heads(&self, run: &RunId, page: &Page) -> Result<Heads, StoreError> {
        let begin = count_of(page.cursor.as_ref())?.unwrap_or(0) as usize;
        let limit = page.limit.clamp(1, PAGE_ITEMS_MAX);
        self.with(run, |kept| {
            let mut heads = Vec::new();
            for (place, branch) in kept.branches.iter().enumerate().skip(begin) {
                let (record, mut damaged) = branch.newest(run);
                let Some(record) = record else {
                    return Err(match damaged.is_empty() {
                        true => StoreError::no_branch(run, &branch.path),
                        false => StoreError::of_damage(damaged.swap_remove(0), None),
                    });
                };
                if record.header().end.is_some() {
                    continue;
                }
                if heads.len() == limit {
                    return Ok(Heads { heads, next: Some(place.to_string()) });
                }
                heads.push(Head { record, next: branch.next, damaged });
            }
            Ok(Heads { heads, next: None })
        })
    }

    async fn load(&self, run: &RunId, branch: &BranchPath, seq: u64) -> Result<Record, StoreError> {
        self.with(run, |kept| {
            let found = kept.branch(branch).ok_or_else(|| StoreError::no_branch(run, branch))?;
            let stored = found.records.get(&seq).ok_or_else(|| StoreError::NotFound {
                store: format!("run {run} branch {branch}"),
                what: format!("checkpoint {seq}"),
            })?;
            stored.open().map_err(|flaw| {
                StoreError::of_damage(found.damage(run, seq, flaw), found.newest_sound_below(seq))
            })
        })
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        let limit = scan.limit.clamp(1, PAGE_ITEMS_MAX);
        let begin = count_of(scan.cursor.as_ref())?.unwrap_or(0) as usize;
        let range = scan.seq_min.unwrap_or(0)..=scan.seq_max.unwrap_or(u64::MAX);
        self.with(&scan.run, |kept| {
            let mut found = Scanned { records: Vec::new(), damaged: Vec::new(), next: None };
            let wanted = |branch: &&Branch| scan.branch.as_ref().is_none_or(|path| branch.path == *path);
            let items = kept.branches.iter().filter(wanted).flat_map(|branch| {
                let mut items: Vec<_> =
                    branch.records.iter().map(|(seq, stored)| (branch, *seq, stored)).collect();
                if scan.order == ScanOrder::NewestFirst {
                    items.reverse();
                }
                items
            });
            for (place, (branch, seq, stored)) in items.enumerate().skip(begin) {
                match stored.open_header() {
                    Ok(record) if !scan.wants(&record) => {}
                    Ok(_) if found.records.len() == limit => {
                        found.next = Some(place.to_string());
                        break;
                    }
                    Ok(record) => found.records.push(record),
                    Err(flaw) if range.contains(&seq) => {
                        found.damaged.push(branch.damage(&scan.run, seq, flaw));
                    }
                    Err(_) => {}
                }
            }
            Ok(found)
        })
    }

    async fn runs(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        let before = count_of(query.cursor.as_ref())?.unwrap_or(u64::MAX);
        let kept = self.open()?;
        let mut newest: Vec<_> = kept.runs.values().filter(|run| run.made < before).collect();
        newest.sort_by_key(|run| std::cmp::Reverse(run.made));
        let mut found = Runs { runs: Vec::new(), next: None };
        let mut last = None;
        for run in newest {
            let summary = run.summary();
            if !query.wants(&summary) {
                continue;
            }
            if found.runs.len() == query.limit() {
                found.next = last;
                break;
            }
            last = Some(run.made.to_string());
            found.runs.push(summary);
        }
        Ok(found)
    }

    async fn signal(&self, run: &RunId, signal: &Signal) -> Result<Signalled, StoreError> {
        self.with(run, |run| {
            if run.signals.iter().any(|(known, _)| known.id == signal.id) {
                return Ok(Signalled::Before);
            }
            run.signals.push((signal.clone(), false));
            Ok(Signalled::Now)
        })
    }

    async fn signals(&self, run: &RunId) -> Result<Vec<Signal>, StoreError> {
        self.with(run, |run| {
            let pending = run.signals.iter().filter(|(_, consumed)| !consumed);
            Ok(pending.map(|(signal, _)| signal.clone()).collect())
        })
    }

    async fn quarantine(&self, lease: &Lease, damage: &Damage) -> Result<(), StoreError> {
        self.held(lease, |run| {
            let branch = run.branches.iter_mut().find(|branch| branch.path == damage.branch);
            let branch = branch.ok_or_else(|| StoreError::no_branch(&damage.run, &damage.branch))?;
            match branch.records.get(&damage.seq).map(Stored::open) {
                Some(Err(_)) => {}
                _ => return Err(StoreError::Invalid(format!("record {} is not damaged", damage.seq))),
            }
            run.quarantine.extend(branch.records.remove(&damage.seq));
            Ok(())
        })
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        self.held(lease, |run| {
            let mut trimmed = Trimmed::default();
            for branch in &mut run.branches {
                // Damaged ones are neither counted nor touched: quarantine is for them.
                let sound = |stored: &&mut Stored| stored.body.is_some() && stored.open().is_ok();
                let bodies = branch.records.values_mut().rev().filter(sound).map(|stored| &mut stored.body);
                for body in bodies.skip(keep.max(KEEP_MIN) as usize) {
                    trimmed.checkpoints += 1;
                    trimmed.bytes += body.as_ref().map_or(0, |body| body.len()) as u64;
                    if mode == TrimMode::Apply {
                        *body = None;
                    }
                }
            }
            Ok(trimmed)
        })
    }

    async fn delete(&self, run: &RunId) -> Result<(), StoreError> {
        let mut kept = self.open()?;
        let found = kept.runs.get(run).ok_or_else(|| StoreError::no_run(self, run))?;
        if let Some(holder) = &found.holder {
            return Err(StoreError::Held { run: run.clone(), holder: Some(holder.clone()) });
        }
        kept.runs.remove(run);
        Ok(())
    }

    async fn close(&self) -> Result<(), StoreError> {
        let mut kept = self.open()?;
        kept.closed = true;
        kept.runs.values_mut().for_each(|run| run.holder = None);
        Ok(())
    }

    fn blobs(&self) -> &dyn Blobs {
        self
    }

    fn folder(&self, _: &RunId) -> Option<PathBuf> {
        None
    }

    fn home(&self) -> Option<&Path> {
        None
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Blobs for MemoryStore {
    async fn append(&self, lease: &Lease, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        check_blob_name(name)?;
        if bytes.len() > BLOB_CHUNK_BYTES {
            return Err(StoreError::Invalid(format!("{} bytes are more than one chunk", bytes.len())));
        }
        self.held(lease, |run| {
            run.blobs.entry(name.to_owned()).or_default().extend_from_slice(bytes);
            Ok(())
        })
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        let kept = self.open()?;
        let blob = kept.runs.get(run).and_then(|run| run.blobs.get(name));
        let rest = blob.and_then(|blob| blob.get(usize::try_from(offset).ok()?..)).unwrap_or_default();
        Ok(rest[..rest.len().min(BLOB_CHUNK_BYTES)].to_vec())
    }
}
