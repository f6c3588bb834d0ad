//! Export: reads a checkpoint and its dependencies from a store.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{CheckpointRef, Digest, RunId, ScopePath, StepId};
use crate::record::{ACCEPTED_LABEL, End, Fan, FrontierEntry, Phase, Position, Record};
use crate::store::{Damage, FILES_BLOB, Scan, ScanOrder, Store, StoreError, StoreExt as _};

use super::{ExportError, PORTABLE_BYTES_MAX, Portable, place_of, referred_to, size_of};

/// The treatment of a child scope with a damaged newest record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDamagedChild {
    /// The damage is an error.
    Refuse,
    /// The newest sound record counts; a child without a sound record is left out.
    TakeOlder,
}

impl Portable {
    /// Reads a checkpoint and its dependencies from a store, and verifies every byte.
    ///
    /// During a fan-out the export includes the child scopes in their present state, so only the newest
    /// checkpoint of a scope can be exported. The export only reads, and needs no lease: the run may
    /// continue.
    ///
    /// # Errors
    /// Every [`ExportError`]. Damaged records are not exported, nor replaced by an older record:
    /// [`StoreError::Damaged`] names the damage.
    pub async fn of(store: &dyn Store, reference: &CheckpointRef) -> Result<Self, ExportError> {
        let CheckpointRef { run, scope, seq } = reference;
        let checkpoint = store.load(run, scope, *seq).await?;
        if checkpoint.body_bytes().is_none() {
            return Err(ExportError::Absent { reference: reference.clone() });
        }
        let position = position_of(&checkpoint)?;
        let opener = position.frontier.iter().find(|entry| entry.has_children());
        let opener = opener.map(|entry| entry.step.to_string());
        if let Some(step) = opener.clone()
            && newest_of(store, run, scope).await? != *seq
        {
            return Err(ExportError::Amid { reference: reference.clone(), step });
        }
        let refuse = (OnDamagedChild::Refuse, &BTreeMap::new());
        let portable = Self::at(store, checkpoint, position, refuse).await?;
        if opener.is_some() && newest_of(store, run, scope).await? != *seq {
            return Err(ExportError::Overtaken { reference: reference.clone() });
        }
        Ok(Self { begun_since: begun_since(store, reference).await?, ..portable })
    }

    /// Reads the dependencies of a checkpoint with this position, for an export or a fork. Does not read the
    /// steps begun since. `reopened`: the records of children with steps to rerun, each with its new position.
    ///
    /// # Errors
    /// Those of [`of`](Self::of), except for [`ExportError::Amid`] and [`ExportError::Overtaken`].
    pub(crate) async fn at(
        store: &dyn Store,
        checkpoint: Record,
        position: Position,
        (on_damaged_child, reopened): (OnDamagedChild, &BTreeMap<ScopePath, (Record, Position)>),
    ) -> Result<Self, ExportError> {
        let reference = checkpoint.header().reference();
        let run = store.run(&reference.run).await?.record;
        let (history, children, blobs) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut export =
            Export { store, reference, on_damaged_child, reopened, bytes: 0, history, children, blobs };
        export.grow(size_of(&checkpoint) + run.bytes().len())?;
        export.collect(&checkpoint, &position).await?;
        export.files().await?;
        let Export { mut history, mut children, blobs, .. } = export;
        history.sort_by(|a, b| place_of(a).cmp(&place_of(b)));
        history.dedup_by(|a, b| place_of(a) == place_of(b));
        children.sort_by(|a, b| place_of(a).cmp(&place_of(b)));
        Ok(Self { run, checkpoint, position, history, children, blobs, begun_since: BTreeSet::new() })
    }
}

/// An export in progress.
struct Export<'a> {
    store: &'a dyn Store,
    reference: CheckpointRef,
    on_damaged_child: OnDamagedChild,
    reopened: &'a BTreeMap<ScopePath, (Record, Position)>,
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

    async fn history(&mut self, newest: &Record, position: &Position) -> Result<(), ExportError> {
        let mut history = history_of(self.store, newest, position).await?;
        self.grow(history.iter().map(size_of).sum())?;
        self.history.append(&mut history);
        Ok(())
    }

    /// Reads the child scopes of `newest` and, recursively, of open children, with the headers of their
    /// positions.
    async fn collect(&mut self, newest: &Record, position: &Position) -> Result<(), ExportError> {
        let mut children: BTreeMap<Option<ScopePath>, Vec<ScopePath>> = BTreeMap::new();
        let mut open = vec![(newest.clone(), position.clone())];
        while let Some((parent, position)) = open.pop() {
            self.history(&parent, &position).await?;
            self.items(&position).await?;
            // Match by origin, not by name: the scopes of a fork are named after the step before it, and a
            // join waits for them.
            if fan_outs(&position).next().is_none() {
                continue;
            }
            if children.is_empty() {
                for scope in self.store.scopes(&self.reference.run).await? {
                    children.entry(scope.parent()).or_default().push(scope);
                }
            }
            let scope = Some(parent.header().scope.clone());
            for child in children.get(&scope).map_or(&[][..], Vec::as_slice) {
                let origins = origins_of(&position, child);
                let reopened = self.reopened.get(child).cloned();
                let (record, position) = match &reopened {
                    Some(reopened) => reopened.clone(),
                    None => {
                        let Some(record) = self.child(child, &origins).await? else { continue };
                        let position = position_of(&record)?;
                        (record, position)
                    }
                };
                self.grow(size_of(&record))?;
                // A retry of a failed child continues its children.
                match record.header().end.filter(|end| reopened.is_none() && *end != End::Failed) {
                    None => open.push((record.clone(), position)),
                    Some(_) => {
                        let ended = Position { frontier: Vec::new(), ..position };
                        self.history(&record, &ended).await?;
                    }
                }
                self.children.push(record);
            }
        }
        Ok(())
    }

    /// Reads the newest record of a child; `None` for a child of another fan-out.
    async fn child(&self, child: &ScopePath, origins: &BTreeSet<u64>) -> Result<Option<Record>, ExportError> {
        let (store, run) = (self.store, &self.reference.run);
        let takes_older = self.on_damaged_child == OnDamagedChild::TakeOlder;
        let mut found = match newest_of(store, run, child).await {
            Ok(newest) => store.load(run, child, newest).await,
            Err(error) => Err(error),
        };
        while let Err(StoreError::Damaged { older: Some(older), .. }) = &found {
            let sound = store.load(run, child, *older).await;
            if takes_older {
                found = sound;
            } else if is_of(&sound?, origins)? {
                break;
            } else {
                // A child abandoned by another fan-out is skipped, damaged or not.
                return Ok(None);
            }
        }
        let record = match found {
            Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) if takes_older => return Ok(None),
            found => found?,
        };
        if record.body_bytes().is_none() {
            let reference = record.header().reference();
            return if takes_older { Ok(None) } else { Err(ExportError::Absent { reference }) };
        }
        Ok(is_of(&record, origins)?.then_some(record))
    }

    /// Reads at most `most` bytes of a blob.
    async fn blob(&mut self, name: &str, most: u64) -> Result<Vec<u8>, ExportError> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < most {
            let offset = bytes.len() as u64;
            let chunk = self.store.blobs().read(&self.reference.run, name, offset).await?;
            if chunk.is_empty() {
                break;
            }
            self.grow(chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// Reads the files of the submission, if any.
    async fn files(&mut self) -> Result<(), ExportError> {
        let files = self.blob(FILES_BLOB, u64::MAX).await?;
        if !files.is_empty() {
            self.blobs.insert(FILES_BLOB.to_owned(), files);
        }
        Ok(())
    }

    /// Reads the frozen items of each fan-out.
    async fn items(&mut self, position: &Position) -> Result<(), ExportError> {
        for items in fan_outs(position).filter_map(|fan| fan.items.as_ref()) {
            let bytes = self.blob(&items.blob, items.bytes).await?;
            if Digest::of(&bytes) != items.digest {
                let (reference, name) = (self.reference.clone(), items.blob.clone());
                return Err(ExportError::Items { reference, name });
            }
            self.blobs.insert(items.blob.clone(), bytes);
        }
        Ok(())
    }
}

/// Reads the headers that the position of `newest` refers to, and the acceptances of their evidence.
pub(crate) async fn history_of(
    store: &dyn Store,
    newest: &Record,
    position: &Position,
) -> Result<Vec<Record>, StoreError> {
    let CheckpointRef { run, scope, seq } = newest.header().reference();
    let mut needed = referred_to(position);
    needed.remove(&seq);
    let mut history = Vec::new();
    if !needed.is_empty() || !position.frontier.is_empty() {
        history = store.history(&run, &scope, seq).await?;
    }
    let since: BTreeMap<_, _> = position.frontier.iter().map(|entry| (&entry.step, entry.since)).collect();
    let of_frontier = |record: &Record| {
        let header = record.header();
        let since = header.step.as_ref().and_then(|step| since.get(step));
        since.is_some_and(|since| header.seq >= *since)
    };
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
    needed.retain(|seq| !repeated.contains(seq));
    // The walk skips damaged records; here they are required by seq, and fail the export.
    for seq in needed {
        history.push(store.load(&run, &scope, seq).await?.without_body());
    }
    if history.iter().chain([newest]).any(|record| record.header().evidence.is_some()) {
        // An acceptance stays in force after a rollback.
        let (key, value) = ACCEPTED_LABEL;
        let label = Some((key.to_owned(), value.to_owned()));
        let scan = Scan { scope: Some(scope), label, ..Scan::of(&run) };
        history.extend(store.scan_where(scan, &|record| record.header().seq != seq).await?);
    }
    Ok(history)
}

/// Returns the steps of a scope that were started, opened children or ended after a checkpoint.
pub(crate) async fn begun_since(
    store: &dyn Store,
    after: &CheckpointRef,
) -> Result<BTreeSet<StepId>, StoreError> {
    let (scope, seq_min) = (Some(after.scope.clone()), Some(after.seq + 1));
    let begins = |record: &Record| {
        matches!(record.header().phase, Phase::Completed(_) | Phase::Failed(_) | Phase::Waiting(_))
    };
    let scan = Scan { scope, seq_min, ..Scan::of(&after.run) };
    let is_wanted = |record: &Record| begins(record) || !record.header().started.is_empty();
    let mut begun = BTreeSet::new();
    for record in store.scan_where(scan, &is_wanted).await? {
        begun.extend(record.header().started.iter().map(|start| start.step.clone()));
        begun.extend(record.header().step.clone().filter(|_| begins(&record)));
    }
    Ok(begun)
}

/// Returns the open fan-outs of a position, with the fan-outs of the work before hooks.
fn fan_outs(position: &Position) -> impl Iterator<Item = &Fan> {
    position.frontier.iter().flat_map(FrontierEntry::fans)
}

/// Returns the records of the fan-outs that may have opened a child. Several steps may open in one batch, with the same
/// record; the name of an open step then selects the children.
fn origins_of(position: &Position, child: &ScopePath) -> BTreeSet<u64> {
    let name = child.opened_by().map(|(name, _)| name);
    let named = position.frontier.iter().find(|entry| Some(&entry.step) == name.as_ref());
    match named.filter(|entry| entry.fan.is_some()) {
        Some(entry) => entry.fan.iter().map(|fan| fan.since).collect(),
        None => fan_outs(position).map(|fan| fan.since).collect(),
    }
}

/// Returns whether a record belongs to a scope of these fan-outs.
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
        let damage = Damage { run: reference.run, scope: reference.scope, seq: reference.seq, place, flaw };
        StoreError::of_damage(damage, None)
    })
}

/// Returns the seq of the newest record of a scope; does not skip a damaged record.
async fn newest_of(store: &dyn Store, run: &RunId, scope: &ScopePath) -> Result<u64, StoreError> {
    let order = ScanOrder::NewestFirst;
    let found = store.scan(&Scan { scope: Some(scope.clone()), order, limit: 1, ..Scan::of(run) }).await?;
    let newest = found.records.first().map(|record| record.header().seq);
    match found.damaged.into_iter().find(|damage| newest.is_none_or(|seq| damage.seq > seq)) {
        Some(damage) => Err(StoreError::of_damage(damage, newest)),
        None => newest.ok_or_else(|| StoreError::no_scope(run, scope)),
    }
}
