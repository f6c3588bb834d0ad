//! From a store: reading together what belongs to a checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{BranchPath, CheckpointRef, Digest, RunId};
use crate::record::{Position, Record};
use crate::store::{Damage, Scan, ScanOrder, Store, StoreError, StoreExt as _};

use super::{ExportError, PORTABLE_BYTES_MAX, Portable, size_of};

impl Portable {
    /// Reads a checkpoint and all that belongs to it from a store, every byte verified.
    ///
    /// In the middle of a fan-out the child branches come along as they stand now, so only the newest checkpoint of a
    /// branch can be taken there. Reads only, and needs no lease: the run may be going on.
    ///
    /// # Errors
    /// Every [`ExportError`]. Of what is damaged nothing is exported, not even an older one in its place:
    /// [`StoreError::Damaged`] names that.
    pub async fn of(store: &dyn Store, reference: &CheckpointRef) -> Result<Self, ExportError> {
        let CheckpointRef { run, branch, seq } = reference;
        let entry = store.run(run).await?;
        let checkpoint = store.load(run, branch, *seq).await?;
        if checkpoint.body_bytes().is_none() {
            return Err(ExportError::Absent { reference: reference.clone() });
        }
        let position = position_of(&checkpoint)?;
        let mut export = Export { store, reference, bytes: 0, children: Vec::new(), blobs: BTreeMap::new() };
        export.grow(size_of(&checkpoint) + entry.record.bytes().len())?;
        let history = export.history(&position).await?;
        let fans_out = position.frontier.iter().find(|entry| entry.fan.is_some());
        if let Some(step) = fans_out.map(|entry| entry.step.to_string()) {
            if newest_of(store, run, branch).await? != *seq {
                return Err(ExportError::Amid { reference: reference.clone(), step });
            }
            export.collect(&checkpoint).await?;
            if newest_of(store, run, branch).await? != *seq {
                return Err(ExportError::Overtaken { reference: reference.clone() });
            }
        }
        let Export { mut children, blobs, .. } = export;
        children.sort_by(|a, b| a.header().branch.cmp(&b.header().branch));
        let config = entry.record.record().config.clone();
        Ok(Self { run: entry.record, config, checkpoint, position, history, children, blobs })
    }
}

/// An export under way.
struct Export<'a> {
    store: &'a dyn Store,
    reference: &'a CheckpointRef,
    bytes: usize,
    children: Vec<Record>,
    blobs: BTreeMap<String, Vec<u8>>,
}

impl Export<'_> {
    /// Counts what was read, before more is.
    fn grow(&mut self, bytes: usize) -> Result<(), ExportError> {
        // In base64, four bytes stand for three.
        self.bytes += bytes + bytes.div_ceil(3);
        if self.bytes as u64 > PORTABLE_BYTES_MAX {
            return Err(ExportError::TooLarge { reference: self.reference.clone() });
        }
        Ok(())
    }

    /// Reads the headers that the position refers to, oldest first.
    async fn history(&mut self, position: &Position) -> Result<Vec<Record>, ExportError> {
        let CheckpointRef { run, branch, seq } = self.reference;
        let mut needed: BTreeSet<u64> = position.ledger.values().map(|settled| settled.seq()).collect();
        needed.extend(position.definition);
        let since: BTreeMap<_, _> =
            position.frontier.iter().map(|entry| (&entry.step, entry.since)).collect();
        let of_frontier = |record: &Record| {
            let header = record.header();
            let since = header.step.as_ref().and_then(|step| since.get(step));
            since.is_some_and(|since| header.seq >= *since)
        };
        let mut history = self.store.history(run, branch, *seq).await?;
        history.retain(|record| {
            let at = record.header().seq;
            at != *seq && (needed.remove(&at) || of_frontier(record))
        });
        needed.remove(seq);
        // The walk passes over what is damaged; here it is wanted by name.
        for seq in needed {
            history.push(self.store.load(run, branch, seq).await?.without_body());
        }
        history.sort_by_key(|record| record.header().seq);
        self.grow(history.iter().map(size_of).sum())?;
        Ok(history)
    }

    /// Reads the child branches of `parent`, and of those among them that are amid a fan-out themselves.
    async fn collect(&mut self, parent: &Record) -> Result<(), ExportError> {
        let run = &self.reference.run;
        let mut children: BTreeMap<Option<BranchPath>, Vec<BranchPath>> = BTreeMap::new();
        for branch in self.store.branches(run).await? {
            children.entry(branch.parent()).or_default().push(branch);
        }
        let mut open = vec![parent.clone()];
        while let Some(parent) = open.pop() {
            let position = position_of(&parent)?;
            self.items(&position).await?;
            let fans: BTreeSet<u64> = fan_outs(&position).collect();
            let branch = Some(parent.header().branch.clone());
            for child in children.get(&branch).map_or(&[][..], Vec::as_slice) {
                let newest = newest_of(self.store, run, child).await?;
                let record = self.store.load(run, child, newest).await?;
                // What an earlier pass or a rollback left behind does not belong to it.
                if position_of(&record)?.origin.is_none_or(|origin| !fans.contains(&origin)) {
                    continue;
                }
                if record.body_bytes().is_none() {
                    return Err(ExportError::Absent { reference: record.header().reference() });
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

    /// Reads the frozen items of each fan-out.
    async fn items(&mut self, position: &Position) -> Result<(), ExportError> {
        let fans = position.frontier.iter().filter_map(|entry| entry.fan.as_ref());
        for items in fans.filter_map(|fan| fan.items.as_ref()) {
            let mut bytes = Vec::new();
            loop {
                let chunk =
                    self.store.blobs().read(&self.reference.run, &items.blob, bytes.len() as u64).await?;
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

/// The records in which the fan-outs of a position began; their children name them as their origin.
fn fan_outs(position: &Position) -> impl Iterator<Item = u64> {
    position.frontier.iter().filter_map(|entry| Some(entry.fan.as_ref()?.since))
}

fn position_of(record: &Record) -> Result<Position, StoreError> {
    // Its digest holds, so a position that cannot be decoded was written so.
    record.position().map_err(|flaw| {
        let reference = record.header().reference();
        let place = "the record".to_owned();
        let damage = Damage { run: reference.run, branch: reference.branch, seq: reference.seq, place, flaw };
        StoreError::of_damage(damage, None)
    })
}

/// Returns the seq of the newest record of a branch; a damaged one is not passed over.
async fn newest_of(store: &dyn Store, run: &RunId, branch: &BranchPath) -> Result<u64, StoreError> {
    let order = ScanOrder::NewestFirst;
    let found = store.scan(&Scan { branch: Some(branch.clone()), order, limit: 1, ..Scan::of(run) }).await?;
    let newest = found.records.first().map(|record| record.header().seq);
    match found.damaged.into_iter().find(|damage| newest.is_none_or(|seq| damage.seq > seq)) {
        Some(damage) => Err(StoreError::of_damage(damage, newest)),
        None => newest.ok_or_else(|| StoreError::no_branch(run, branch)),
    }
}
