//! A run in memory, with the rules of the chain.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use super::rows::Rows;
use crate::id::{Digest, RunId, ScopePath};
use crate::record::{Bytes, Flaw, Header, Reason, Record, RunStatus, SealedRun};
use crate::store::{
    Batch, BatchId, Damage, FIRST_TOKEN, Lease, RunSummary, Scan, ScanOrder, Signal, StoreError, Summary,
};
use crate::system::lock::Holder;

pub(super) struct MemoryRun {
    /// The 1-based creation number of the run in the store.
    pub(super) made: u64,
    pub(super) sealed: SealedRun,
    pub(super) bytes: Bytes,
    pub(super) token: u64,
    pub(super) holder: Option<Holder>,
    pub(super) last: BatchId,
    pub(super) summary: Summary,
    pub(super) updated_at: Timestamp,
    /// In order of opening.
    pub(super) scopes: Vec<ScopeRecords>,
    /// The index of each scope.
    places: HashMap<ScopePath, usize>,
    /// Signals, each with a flag whether it is consumed.
    pub(super) signals: Vec<(Signal, bool)>,
    pub(super) quarantine: Vec<Stored>,
    pub(super) blobs: BTreeMap<String, Vec<u8>>,
}

pub(super) struct ScopeRecords {
    pub(super) path: ScopePath,
    pub(super) records: Rows,
    /// One more than the highest seq so far, quarantine included.
    pub(super) next: u64,
    /// The last appended record, parsed.
    tip: Option<Record>,
}

#[derive(Clone)]
pub(super) struct Stored {
    pub(super) digest: Digest,
    pub(super) header: Bytes,
    pub(super) body: Option<Bytes>,
}

impl Stored {
    pub(super) fn open(&self) -> Result<Record, Flaw> {
        Record::open_shared(self.digest, Arc::clone(&self.header), self.body.clone())
    }

    pub(super) fn open_header(&self) -> Result<Record, Flaw> {
        Record::open_shared(self.digest, Arc::clone(&self.header), None)
    }
}

impl ScopeRecords {
    /// Reads a record; returns the cached tip if its bytes did not change.
    pub(super) fn open(&self, stored: &Stored) -> Result<Record, Flaw> {
        let is_same = |tip: &&Record| {
            Arc::ptr_eq(tip.header_bytes(), &stored.header)
                && match (tip.body_bytes(), &stored.body) {
                    (Some(tip), Some(stored)) => Arc::ptr_eq(tip, stored),
                    (tip, stored) => tip.is_none() && stored.is_none(),
                }
        };
        self.tip.as_ref().filter(is_same).map_or_else(|| stored.open(), |tip| Ok(tip.clone()))
    }

    pub(super) fn damage(&self, run: &RunId, seq: u64, flaw: Flaw) -> Damage {
        let place = format!("memory, scope {} record {seq}", self.path);
        Damage { run: run.clone(), scope: self.path.clone(), seq, place, flaw }
    }

    pub(super) fn newest_sound_below(&self, seq: u64) -> Option<u64> {
        let below = self.records.iter().rev().filter(|(at, _)| *at < seq);
        below.filter(|(_, stored)| stored.open().is_ok()).map(|(at, _)| *at).next()
    }

    /// Returns the newest sound record with a body, and the damaged records above.
    pub(super) fn newest(&self, run: &RunId) -> (Option<Record>, Vec<Damage>) {
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

    /// Returns why a record does not continue the scope; `None` for a valid record.
    pub(super) fn refuses(&self, header: &Header) -> Option<String> {
        let newest = self.records.last();
        let (last, digest) = newest.map_or((0, None), |(seq, stored)| (*seq, Some(stored.digest)));
        if header.reason == Reason::Repair {
            let sound = |digest: &Digest| {
                let mut records = self.records.iter().rev();
                records.any(|(_, stored)| stored.digest == *digest && stored.open().is_ok())
            };
            let fits = header.seq > last && header.seq <= self.next;
            let why = || format!("the scope ends at {last}, the next seq is at most {}", self.next);
            return if !fits {
                Some(why())
            } else {
                (!header.prev.as_ref().is_none_or(sound)).then(|| "`prev` is not a sound record".to_owned())
            };
        }
        if header.seq != self.next || last + 1 != self.next {
            return Some(format!("the scope ends at {last}, the new record is {}", self.next));
        }
        (header.prev != digest)
            .then(|| format!("`prev` is {:?}, but the record before has {digest:?}", header.prev))
    }
}

impl MemoryRun {
    pub(super) fn new(sealed: &SealedRun, made: u64, first: &Batch, holder: &Holder) -> Self {
        Self {
            made,
            sealed: sealed.clone(),
            bytes: sealed.bytes().clone(),
            token: FIRST_TOKEN,
            holder: Some(holder.clone()),
            last: BatchId { token: 0, count: 0 },
            summary: first.summary.clone().unwrap_or_else(|| Summary::of_status(RunStatus::Running)),
            updated_at: sealed.record().created_at,
            scopes: Vec::new(),
            places: HashMap::new(),
            signals: Vec::new(),
            quarantine: Vec::new(),
            blobs: BTreeMap::new(),
        }
    }

    pub(super) fn id(&self) -> &RunId {
        &self.sealed.record().run
    }

    pub(super) fn check(&self, lease: &Lease) -> Result<(), StoreError> {
        if self.holder.is_some() && lease.token() == self.token {
            return Ok(());
        }
        Err(StoreError::Fenced { run: self.id().clone(), token: lease.token(), newest: self.token })
    }

    /// Checks a whole batch, then applies it.
    pub(super) fn apply(&mut self, batch: Batch) -> Result<(), StoreError> {
        batch.check(self.id(), self.token)?;
        let mut tips: HashMap<&ScopePath, (u64, Digest)> = HashMap::with_capacity(batch.records.len());
        for record in &batch.records {
            let header = record.header();
            let refused = match (tips.get(&header.scope), self.scope(&header.scope)) {
                (Some((seq, digest)), _) => (header.seq != seq + 1 || header.prev != Some(*digest))
                    .then(|| format!("the batch has {seq} after digest {digest}")),
                (None, Some(scope)) => scope.refuses(header),
                (None, None) => (header.seq != 1 || header.prev.is_some())
                    .then(|| "a scope begins with 1, without `prev`".to_owned()),
            };
            if let Some(why) = refused {
                let (run, scope, seq) = (header.run.clone(), header.scope.clone(), header.seq);
                return Err(StoreError::Conflict { run, scope, seq, why });
            }
            tips.insert(&header.scope, (header.seq, record.digest()));
        }
        for record in &batch.records {
            self.insert(record);
        }
        self.updated_at = batch.changed_at().unwrap_or(self.updated_at);
        for (signal, consumed) in &mut self.signals {
            *consumed |= batch.consumed.contains(&signal.id);
        }
        self.last = batch.id;
        self.summary = batch.summary.unwrap_or_else(|| self.summary.clone());
        if batch.release {
            self.holder = None;
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, record: &Record) {
        let header = record.header();
        let place = self.place(&header.scope).unwrap_or_else(|| {
            let path = header.scope.clone();
            self.places.insert(path.clone(), self.scopes.len());
            self.scopes.push(ScopeRecords { path, records: Rows::default(), next: 1, tip: None });
            self.scopes.len() - 1
        });
        let (header_bytes, body) = (record.header_bytes().clone(), record.body_bytes().cloned());
        let stored = Stored { digest: record.digest(), header: header_bytes, body };
        let scope = &mut self.scopes[place];
        scope.records.push(header.seq, stored);
        scope.next = header.seq + 1;
        scope.tip = Some(record.clone());
    }

    fn place(&self, path: &ScopePath) -> Option<usize> {
        self.places.get(path).copied()
    }

    pub(super) fn scope(&self, path: &ScopePath) -> Option<&ScopeRecords> {
        self.place(path).map(|place| &self.scopes[place])
    }

    pub(super) fn scope_mut(&mut self, path: &ScopePath) -> Option<&mut ScopeRecords> {
        self.place(path).map(|place| &mut self.scopes[place])
    }

    /// Returns the records in the range of a scan, in order, from `begin` on: scope index, scope, seq and
    /// record.
    pub(super) fn in_range(
        &self,
        scan: &Scan,
        begin: Option<(usize, u64)>,
    ) -> impl Iterator<Item = (usize, &ScopeRecords, u64, &Stored)> {
        let places = match &scan.scope {
            Some(path) => self.place(path).map_or(0..0, |place| place..place + 1),
            None => 0..self.scopes.len(),
        };
        let first = begin.map_or(0, |(place, _)| place);
        let scopes = places.filter(move |place| *place >= first);
        let newest_first = scan.order == ScanOrder::NewestFirst;
        let (seq_min, seq_max) = (scan.seq_min.unwrap_or(0), scan.seq_max.unwrap_or(u64::MAX));
        scopes.flat_map(move |place| {
            let scope = &self.scopes[place];
            let from = begin.filter(|(at, _)| *at == place).map(|(_, seq)| seq);
            let (least, most) = match from {
                Some(from) if newest_first => (seq_min, seq_max.min(from)),
                Some(from) => (seq_min.max(from), seq_max),
                None => (seq_min, seq_max),
            };
            let mut records = scope.records.between(least, most).iter();
            let next = move || if newest_first { records.next_back() } else { records.next() };
            std::iter::from_fn(next).map(move |(seq, stored)| (place, scope, *seq, stored))
        })
    }

    pub(super) fn summary(&self) -> RunSummary {
        let record = self.sealed.record();
        let stored = || self.scopes.iter().flat_map(|scope| scope.records.iter().map(|(_, stored)| stored));
        let bytes = |stored: &Stored| stored.header.len() + stored.body.as_ref().map_or(0, |body| body.len());
        RunSummary {
            run: record.run.clone(),
            workflow: record.workflow.clone(),
            path: record.path.clone(),
            status: RunSummary::true_status(&self.summary, self.holder.as_ref()),
            summary: self.summary.clone(),
            labels: record.labels.clone(),
            created_at: record.created_at,
            updated_at: self.updated_at,
            checkpoints: stored().count() as u64,
            bytes: stored().map(bytes).sum::<usize>() as u64,
            blob_bytes: self.blobs.values().map(|blob| blob.len() as u64).sum(),
            holder: self.holder.clone(),
            until: None,
        }
    }
}
