//! The store in memory: the reference implementation, short enough to read in full. This file is the store;
//! `memory/run.rs` has the data of a run, `memory/rows.rs` the records of a scope.
//!
//! The store keeps exact bytes and parses them at every read, as a store on disk does, so that damage is
//! detected here, too. The data lives as long as the last [`MemoryStore`] value; clones share it. Each owner
//! of the [`Lease`] is a holder: when the last clone is dropped, as in a run dropped midway, the holder
//! counts as dead. [`MemoryStore::drop_holder`] simulates the death of a live holder.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use jiff::Timestamp;

use crate::id::{RunId, ScopePath};
use crate::record::{Record, SealedRun};
use crate::store::retention::{self, Mark};
use crate::store::{
    Appended, BLOB_CHUNK_BYTES, Batch, Blobs, Damage, FIRST_TOKEN, Guard, Head, Heads, Lease, PAGE_ITEMS_MAX,
    Page, Queue, Renewal, RunEntry, RunQuery, Runs, Scan, Scanned, Signal, Signalled, Store, StoreError,
    TrimMode, Trimmed, check_blob_name,
};
use crate::system::lock::Holder;

mod hooks;
mod rows;
mod run;

#[doc(hidden)]
pub use hooks::Part;
use run::{MemoryRun, Stored};

/// A store in memory.
#[derive(Clone, Default)]
pub struct MemoryStore {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    runs: BTreeMap<RunId, MemoryRun>,
    made: u64,
    closed: bool,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Simulates the death of a run's holder: the run's lease becomes free, and the holder's lease counts as
    /// lost.
    pub fn drop_holder(&self, run: &RunId) {
        if let Some(run) = self.lock().runs.get_mut(run) {
            run.holder = None;
        }
    }

    fn guard(&self, run: &RunId, made: u64, token: u64) -> Arc<Holding> {
        Arc::new(Holding { kept: Arc::downgrade(&self.kept), run: run.clone(), made, token })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Calls do not panic during a change, so the data of another thread is consistent.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, Kept>, StoreError> {
        let kept = self.lock();
        if kept.closed { Err(StoreError::Closed(self.to_string())) } else { Ok(kept) }
    }

    /// Applies `change` to a run.
    fn with<T>(
        &self,
        run: &RunId,
        change: impl FnOnce(&mut MemoryRun) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        change(self.open()?.runs.get_mut(run).ok_or_else(|| StoreError::no_run(self, run))?)
    }

    /// As [`with`](Self::with), under a lease; a deleted run has no valid lease.
    fn held<T>(
        &self,
        lease: &Lease,
        change: impl FnOnce(&mut MemoryRun) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.with(lease.run(), |run| {
            run.check(lease)?;
            change(run)
        })
    }
}

/// Reports the drop of a lease to the store.
struct Holding {
    kept: Weak<Mutex<Kept>>,
    run: RunId,
    /// The generation of the run id: a run may have been deleted and created again.
    made: u64,
    token: u64,
}

impl Guard for Holding {}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").field("run", &self.run).field("token", &self.token).finish_non_exhaustive()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let Some(kept) = self.kept.upgrade() else { return };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let run = kept.runs.get_mut(&self.run);
        if let Some(run) = run.filter(|run| (run.made, run.token) == (self.made, self.token)) {
            run.holder = None;
        }
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

/// Parses a cursor that is a count; refuses an invalid one, instead of starting over.
fn count_of(cursor: Option<&String>) -> Result<Option<u64>, StoreError> {
    cursor.map(|text| text.parse().map_err(|_| no_cursor(text))).transpose()
}

/// Parses a cursor of scope index and seq.
fn place_of(text: &str) -> Result<(usize, u64), StoreError> {
    let parse =
        || text.split_once('.').and_then(|(place, seq)| Some((place.parse().ok()?, seq.parse().ok()?)));
    parse().ok_or_else(|| no_cursor(text))
}

fn no_cursor(text: &str) -> StoreError {
    // Clipped, as the text is arbitrary.
    StoreError::Invalid(format!("`{}` is no cursor", text.chars().take(80).collect::<String>()))
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
        let mut made = MemoryRun::new(run, kept.made + 1, &first, holder);
        made.apply(first)?;
        kept.made += 1;
        kept.runs.insert(id.clone(), made);
        Ok(Lease::new(id.clone(), FIRST_TOKEN, None).guarded_by(self.guard(id, kept.made, FIRST_TOKEN)))
    }

    async fn run(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        self.with(run, |kept| {
            let record = SealedRun::open(kept.sealed.digest(), kept.bytes.to_vec()).map_err(|flaw| {
                let place = "memory, run record".to_owned();
                let damage = Damage { run: run.clone(), scope: ScopePath::main(), seq: 0, place, flaw };
                StoreError::of_damage(damage, None)
            })?;
            Ok(RunEntry { record, summary: kept.summary() })
        })
    }

    async fn acquire(&self, run: &RunId, _: &ScopePath, holder: &Holder) -> Result<Lease, StoreError> {
        self.with(run, |kept| {
            if let Some(holder) = &kept.holder {
                return Err(StoreError::Held { run: run.clone(), holder: Some(holder.clone()), until: None });
            }
            kept.token += 1;
            kept.holder = Some(holder.clone());
            Ok(Lease::new(run.clone(), kept.token, None).guarded_by(self.guard(run, kept.made, kept.token)))
        })
    }

    async fn renew(&self, leases: &[&Lease]) -> Result<Vec<Renewal>, StoreError> {
        let kept = self.open()?;
        let answer = |lease: &&Lease| match kept.runs.get(lease.run()) {
            Some(run) if run.check(lease).is_ok() => {
                let asks = |signal: &&Signal| signal.kind.is_for_the_run();
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

    async fn append(&self, leases: &[&Lease], batch: Batch) -> Result<Appended, StoreError> {
        let lease = batch.whole_run_lease(leases)?;
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
            for (place, scope) in kept.scopes.iter().enumerate().skip(begin) {
                let (record, mut damaged) = scope.newest(run);
                let Some(record) = record else {
                    if heads.len() == limit {
                        return Ok(Heads { heads, next: Some(place.to_string()) });
                    }
                    return Err(match damaged.is_empty() {
                        true => StoreError::no_scope(run, &scope.path),
                        false => StoreError::of_damage(damaged.swap_remove(0), None),
                    });
                };
                if record.header().end.is_some() {
                    continue;
                }
                if heads.len() == limit {
                    return Ok(Heads { heads, next: Some(place.to_string()) });
                }
                heads.push(Head { record, next: scope.next, damaged });
            }
            Ok(Heads { heads, next: None })
        })
    }

    async fn load(&self, run: &RunId, scope: &ScopePath, seq: u64) -> Result<Record, StoreError> {
        self.with(run, |kept| {
            let found = kept.scope(scope).ok_or_else(|| StoreError::no_scope(run, scope))?;
            let missing = || StoreError::no_record(run, scope, seq);
            let stored = found.records.get(seq).ok_or_else(missing)?;
            found.open(stored).map_err(|flaw| {
                StoreError::of_damage(found.damage(run, seq, flaw), found.newest_sound_below(seq))
            })
        })
    }

    async fn scan(&self, scan: &Scan) -> Result<Scanned, StoreError> {
        let begin = scan.cursor.as_ref().map(|cursor| place_of(cursor)).transpose()?;
        self.with(&scan.run, |run| {
            let mut found = Scanned { records: Vec::new(), damaged: Vec::new(), next: None };
            for (place, scope, seq, stored) in run.in_range(scan, begin) {
                match stored.open_header() {
                    Err(flaw) => found.damaged.push(scope.damage(&scan.run, seq, flaw)),
                    Ok(record) if !scan.wants(&record) => {}
                    Ok(_) if found.records.len() == scan.limit.clamp(1, PAGE_ITEMS_MAX) => {
                        found.next = Some(format!("{place}.{seq}"));
                        break;
                    }
                    Ok(record) => found.records.push(record),
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
        let mut found = Runs { runs: Vec::new(), damaged: Vec::new(), next: None };
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
            let scope = run.scope_mut(&damage.scope);
            let scope = scope.ok_or_else(|| StoreError::no_scope(&damage.run, &damage.scope))?;
            match scope.records.get(damage.seq).map(Stored::open) {
                Some(Err(_)) => {}
                _ => return Err(StoreError::Invalid(format!("record {} is not damaged", damage.seq))),
            }
            let removed = scope.records.remove(damage.seq);
            run.quarantine.extend(removed);
            Ok(())
        })
    }

    async fn trim(&self, lease: &Lease, keep: u32, mode: TrimMode) -> Result<Trimmed, StoreError> {
        self.with(lease.run(), |run| {
            if mode == TrimMode::Apply {
                run.check(lease)?;
            }
            let mut trimmed = Trimmed::default();
            for scope in &mut run.scopes {
                // Damaged records are neither counted nor changed: they belong to quarantine.
                let stored = scope.records.iter().rev().filter(|(_, stored)| stored.body.is_some());
                let sound: Vec<Record> = stored.filter_map(|(_, stored)| stored.open().ok()).collect();
                let newest = sound.first().map(Mark::of_newest);
                let older = sound.iter().skip(1).map(|record| Mark::of(record.header()));
                let stays = retention::kept(&newest.into_iter().chain(older).collect::<Vec<_>>(), keep);
                for record in sound.iter().filter(|record| !stays.contains(&record.header().seq)) {
                    trimmed.checkpoints += 1;
                    trimmed.bytes += record.body_bytes().map_or(0, |body| body.len()) as u64;
                    if mode == TrimMode::Apply
                        && let Some(stored) = scope.records.get_mut(record.header().seq)
                    {
                        stored.body = None;
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
            return Err(StoreError::Held { run: run.clone(), holder: Some(holder.clone()), until: None });
        }
        kept.runs.remove(run);
        Ok(())
    }

    async fn deletions(&self) -> Result<Vec<RunId>, StoreError> {
        self.open().map(|_| Vec::new())
    }

    async fn inspect(&self, run: Option<&RunId>) -> Result<Vec<String>, StoreError> {
        // All other data is derived from records on demand.
        if let Some(run) = run {
            self.run(run).await?;
        }
        Ok(Vec::new())
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

    fn queue(&self) -> Option<&dyn Queue> {
        None
    }

    fn folder(&self, _: &RunId) -> Option<PathBuf> {
        None
    }

    fn scopes_max(&self) -> Option<u64> {
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

    async fn sync(&self, lease: &Lease, name: &str) -> Result<(), StoreError> {
        check_blob_name(name)?;
        self.held(lease, |_| Ok(()))
    }

    async fn read(&self, run: &RunId, name: &str, offset: u64) -> Result<Vec<u8>, StoreError> {
        let kept = self.open()?;
        let blob = kept.runs.get(run).and_then(|run| run.blobs.get(name));
        let rest = blob.and_then(|blob| blob.get(usize::try_from(offset).ok()?..)).unwrap_or_default();
        Ok(rest[..rest.len().min(BLOB_CHUNK_BYTES)].to_vec())
    }

    fn log_folder(&self, _: &RunId) -> Option<PathBuf> {
        None
    }
}
