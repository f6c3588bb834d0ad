//! Export: reads a checkpoint and its dependencies from a store.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{BranchPath, CheckpointRef, Digest, RunId, StepId};
use crate::record::{Fan, FrontierEntry, Phase, Position, Record};
use crate::store::{Damage, Scan, ScanOrder, Store, StoreError, StoreExt as _};

use super::{ExportError, PORTABLE_BYTES_MAX, Portable, place_of, referred_to, size_of};

impl Portable {
    /// Reads a checkpoint and its dependencies from a store, and verifies every byte.
    ///
    /// During a fan-out the export includes the child branches in their present state, so only the newest
    /// checkpoint of a branch can be exported. The export only reads, and needs no lease: the run may
    /// continue.
    ///
    /// # Errors
    /// Every [`ExportError`]. Damaged records are not exported, nor replaced by an older record:
    /// [`StoreError::Damaged`] names the damage.
    pub async fn of(store: &dyn Store, reference: &CheckpointRef) -> Result<Self, ExportError> {
        let CheckpointRef { run, branch, seq } = reference;
        let entry = store.run(run).await?;
        let checkpoint = store.load(run, branch, *seq).await?;
        if checkpoint.body_bytes().is_none() {
            return Err(ExportError::Absent { reference: reference.clone() });
        }
        let position = position_of(&checkpoint)?;
        let mut export = Export {
            store,
            reference,
            bytes: 0,
            history: Vec::new(),
            children: Vec::new(),
            blobs: BTreeMap::new(),
        };
        export.grow(size_of(&checkpoint) + entry.record.bytes().len())?;
        match position.frontier.iter().find(|entry| entry.has_children()) {
            None => export.history(&checkpoint, &position).await?,
            Some(_) if newest_of(store, run, branch).await? == *seq => {
                export.collect(&checkpoint).await?;
                if newest_of(store, run, branch).await? != *seq {
                    return Err(ExportError::Overtaken { reference: reference.clone() });
                }
            }
            Some(entry) => {
                let step = entry.step.to_string();
                return Err(ExportError::Amid { reference: reference.clone(), step });
            }
        }
        let begun_since = begun_since(store, reference).await?;
        let Export { mut history, mut children, blobs, .. } = export;
        history.sort_by(|a, b| place_of(a).cmp(&place_of(b)));
        children.sort_by(|a, b| place_of(a).cmp(&place_of(b)));
        Ok(Self { run: entry.record, checkpoint, position, history, children, blobs, begun_since })
    }
}

/// An export in progress.
struct Export<'a> {
    store: &'a dyn Store,
    reference: &'a CheckpointRef,
    bytes: usize,
    history: Vec<Record>,
    children: Vec<Record>,
    blobs: BTreeMap<String, Vec<u8>>,
}

impl Export<'_> {
    /// Adds `bytes` to the size so far, and enforces the limit before the next read.
    fn grow(&mut self, bytes: usize) -> Result<(), ExportError> {
        // Base64 encodes three bytes as four.
        self.bytes += bytes + bytes.div_ceil(3);
        if self.bytes as u64 > PORTABLE_BYTES_MAX {
            return Err(ExportError::TooLarge { reference: self.reference.clone() });
        }
        Ok(())
    }

    /// Reads the headers that the position of `newest` refers to.
    async fn history(&mut self, newest: &Record, position: &Position) -> Result<(), ExportError> {
        let CheckpointRef { run, branch, seq } = newest.header().reference();
        let mut needed = referred_to(position);
        let since: BTreeMap<_, _> =
            position.frontier.iter().map(|entry| (&entry.step, entry.since)).collect();
        let of_frontier = |record: &Record| {
            let header = record.header();
            let since = header.step.as_ref().and_then(|step| since.get(step));
            since.is_some_and(|since| header.seq >= *since)
        };
        let mut history = self.store.history(&run, &branch, seq).await?;
        let changes: BTreeSet<u64> = position.definition.into_iter().chain(position.config).collect();
        let found: BTreeSet<u64> = history.iter().map(|record| record.header().seq).collect();
        let mut repeated = BTreeSet::new();
        let mut repeats = |record: &Record| {
            let again = record.header().repeated.as_ref().map(|again| again.of);
            again.is_some_and(|of| changes.contains(&of) && !found.contains(&of) && repeated.insert(of))
        };
        let of_newest = repeats(newest);
        history.retain(|record| {
            let at = record.header().seq;
            let wanted = needed.remove(&at) || of_frontier(record);
            (wanted || (!of_newest && repeats(record))) && at != seq
        });
        needed.remove(&seq);
        needed.retain(|seq| !repeated.contains(seq));
        // The walk skips damaged records; here they are required by seq, and fail the export.
        for seq in needed {
            history.push(self.store.load(&run, &branch, seq).await?.without_body());
        }
        self.grow(history.iter().map(size_of).sum())?;
        self.history.append(&mut history);
        Ok(())
    }

    /// Reads the child branches of `newest` and, recursively, of open children, with the headers of their
    /// positions.
    async fn collect(&mut self, newest: &Record) -> Result<(), ExportError> {
        let run = &self.reference.run;
        let mut children: BTreeMap<Option<BranchPath>, Vec<BranchPath>> = BTreeMap::new();
        for branch in self.store.branches(run).await? {
            children.entry(branch.parent()).or_default().push(branch);
        }
        let mut open = vec![newest.clone()];
        while let Some(parent) = open.pop() {
            let position = position_of(&parent)?;
            self.history(&parent, &position).await?;
            self.items(&position).await?;
            // Match by origin, not by name: the branches of a fork are named after the step before it, and a
            // join waits for them.
            let origins: BTreeSet<u64> = fan_outs(&position).map(|fan| fan.since).collect();
            if origins.is_empty() {
                continue;
            }
            let branch = Some(parent.header().branch.clone());
            for child in children.get(&branch).map_or(&[][..], Vec::as_slice) {
                let found = self.newest_of(child).await;
                if let Err(StoreError::Damaged { older: Some(older), .. }) = &found
                    && !is_of(&self.store.load(run, child, *older).await?, &origins)?
                {
                    // A child abandoned by another fan-out is skipped, damaged or not.
                    continue;
                }
                let record = found?;
                if record.body_bytes().is_none() {
                    return Err(ExportError::Absent { reference: record.header().reference() });
                }
                if !is_of(&record, &origins)? {
                    continue;
                }
                self.grow(size_of(&record))?;
                if record.header().end.is_none() {
                    open.push(record.clone());
                }
                self.children.push(record);
            }
        }
        Ok(())
    }

    async fn newest_of(&self, child: &BranchPath) -> Result<Record, StoreError> {
        let run = &self.reference.run;
        let newest = newest_of(self.store, run, child).await?;
        self.store.load(run, child, newest).await
    }

    /// Reads the frozen items of each fan-out.
    async fn items(&mut self, position: &Position) -> Result<(), ExportError> {
        for items in fan_outs(position).filter_map(|fan| fan.items.as_ref()) {
            let mut bytes = Vec::new();
            while (bytes.len() as u64) < items.bytes {
                let offset = bytes.len() as u64;
                let chunk = self.store.blobs().read(&self.reference.run, &items.blob, offset).await?;
                if chunk.is_empty() {
                    break;
                }
                self.grow(chunk.len())?;
                bytes.extend_from_slice(&chunk);
            }
            if Digest::of(&bytes) != items.digest {
                let (reference, name) = (self.reference.clone(), items.blob.clone());
                return Err(ExportError::Items { reference, name });
            }
            self.blobs.insert(items.blob.clone(), bytes);
        }
        Ok(())
    }
}

/// Returns the steps of a branch that were started, opened children or ended after a checkpoint.
async fn begun_since(store: &dyn Store, after: &CheckpointRef) -> Result<BTreeSet<StepId>, StoreError> {
    let (branch, order) = (Some(after.branch.clone()), ScanOrder::NewestFirst);
    let mut scan = Scan { branch, order, ..Scan::of(&after.run) };
    let mut begun = BTreeSet::new();
    loop {
        let page = store.scan(&scan).await?;
        for record in page.records {
            let header = record.header();
            if header.seq <= after.seq {
                return Ok(begun);
            }
            begun.extend(header.started.iter().map(|start| start.step.clone()));
            let has_begun =
                matches!(header.phase, Phase::Completed(_) | Phase::Failed(_) | Phase::Waiting(_));
            begun.extend(header.step.clone().filter(|_| has_begun));
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(begun),
        }
    }
}

/// Returns the open fan-outs of a position, with the fan-outs of the work before hooks.
fn fan_outs(position: &Position) -> impl Iterator<Item = &Fan> {
    position.frontier.iter().flat_map(FrontierEntry::fans)
}

/// Returns whether a record belongs to a branch of these fan-outs.
fn is_of(record: &Record, origins: &BTreeSet<u64>) -> Result<bool, StoreError> {
    if record.body_bytes().is_none() {
        return Ok(true);
    }
    Ok(position_of(record)?.origin.is_some_and(|origin| origins.contains(&origin)))
}

fn position_of(record: &Record) -> Result<Position, StoreError> {
    // The digest is valid, so a position that cannot be decoded was written like this.
    record.position().map(Position::with_failures_open).map_err(|flaw| {
        let reference = record.header().reference();
        let place = "the record".to_owned();
        let damage = Damage { run: reference.run, branch: reference.branch, seq: reference.seq, place, flaw };
        StoreError::of_damage(damage, None)
    })
}

/// Returns the seq of the newest record of a branch; does not skip a damaged record.
async fn newest_of(store: &dyn Store, run: &RunId, branch: &BranchPath) -> Result<u64, StoreError> {
    let order = ScanOrder::NewestFirst;
    let found = store.scan(&Scan { branch: Some(branch.clone()), order, limit: 1, ..Scan::of(run) }).await?;
    let newest = found.records.first().map(|record| record.header().seq);
    match found.damaged.into_iter().find(|damage| newest.is_none_or(|seq| damage.seq > seq)) {
        Some(damage) => Err(StoreError::of_damage(damage, newest)),
        None => newest.ok_or_else(|| StoreError::no_branch(run, branch)),
    }
}
