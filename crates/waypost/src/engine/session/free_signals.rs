//! Free signals: consumed only by abandoned work, so that a step can consume these again.
//!
//! The log is the source: the record of a consumed signal names the signal. A signal is free if no record in
//! force has consumed it.
//!
//! ```text
//!   @3 progress: `ship` takes signal s-1       in force before the rollback, and not after it
//!   @4 completed ship
//!   @5 restored (basis 2)                      s-1 is free
//!   @7 progress: `ship` takes signal s-1       s-1 is taken again
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::id::{RunId, ScopePath, StepId};
use crate::record::{Phase, Position, Reason, Record, TakenSignal};
use crate::store::{Scan, Signal, SignalKind, Store, StoreError, StoreExt as _};

use crate::engine::inspect::position_of;

/// A step in a scope in an iteration.
type Visit = (ScopePath, StepId, Vec<u32>);

/// Returns the free signals of a run, in the order of sending.
///
/// `positions`: the positions of the open scopes. A step there in a newer epoch has lost its consumed signals.
///
/// # Errors
/// Those of the store.
pub(crate) async fn free_signals<'a>(
    store: &dyn Store,
    run: &RunId,
    positions: impl Iterator<Item = (&'a ScopePath, &'a Position)>,
) -> Result<Vec<Signal>, StoreError> {
    let entries = positions.flat_map(|(scope, position)| {
        position.frontier.iter().map(move |entry| {
            let visit = (scope.clone(), entry.step.clone(), entry.at.iteration.clone());
            (visit, entry.at.epoch)
        })
    });
    let epochs: HashMap<Visit, u32> = entries.collect();
    let newest = store.newest(run, &ScopePath::main()).await?.header().seq;
    Ok(signals_of(store, run, newest, epochs).await?.free)
}

/// The signals of a run, from the records.
#[derive(Debug, Default)]
pub(crate) struct RunSignals {
    /// The free signals, in the order of sending.
    pub(crate) free: Vec<Signal>,
    /// The records in force of consumed signals.
    pub(crate) taken: Vec<Record>,
}

/// Returns the signals of a run with the main scope at record `seq`: for a fork. Steps in `begun` restart from the top,
/// and have lost their consumed signals. Signals that no step has consumed yet are free, too.
pub(crate) async fn signals_at(
    store: &dyn Store,
    run: &RunId,
    seq: u64,
    begun: &Position,
) -> Result<RunSignals, StoreError> {
    let entries = begun
        .frontier
        .iter()
        .map(|entry| ((ScopePath::main(), entry.step.clone(), entry.at.iteration.clone()), u32::MAX));
    let epochs = entries.collect();
    let mut signals = signals_of(store, run, seq, epochs).await?;
    let named = |signal: &Signal| matches!(signal.kind, SignalKind::Named { .. });
    signals.free.extend(store.signals(run).await?.into_iter().filter(named));
    Ok(signals)
}

async fn signals_of(
    store: &dyn Store,
    run: &RunId,
    seq: u64,
    epochs: HashMap<Visit, u32>,
) -> Result<RunSignals, StoreError> {
    let known = taken_signals(store, run).await?;
    if known.is_empty() {
        return Ok(RunSignals::default());
    }
    let mut force = RecordsInForce { store, run, scopes: BTreeMap::new(), epochs };
    force.add_main(seq).await?;
    let mut scopes: BTreeSet<(usize, ScopePath)> = BTreeSet::new();
    for record in &known {
        let scope = &record.header().scope;
        let above = std::iter::successors(Some(scope.clone()), ScopePath::parent);
        scopes.extend(above.map(|scope| (scope.depth(), scope)));
    }
    for (_, scope) in scopes {
        force.add_child(&scope).await?;
    }
    let (taken, left): (Vec<Record>, Vec<Record>) = known.into_iter().partition(|record| force.holds(record));
    let id_of = |record: &Record| signal_of(record).map(|(signal, _)| signal.id.clone());
    let held: BTreeSet<String> = taken.iter().filter_map(id_of).collect();
    let left = left.iter().filter_map(|record| Some((id_of(record)?, record)));
    // Of several records of a signal, the newest.
    let left: BTreeMap<String, &Record> = left.filter(|(id, _)| !held.contains(id)).collect();
    let mut free: Vec<Signal> = left.into_values().filter_map(message).collect();
    free.sort_by(|one, other| (one.created_at, &one.id).cmp(&(other.created_at, &other.id)));
    Ok(RunSignals { free, taken })
}

/// Returns the records of a run that name a signal.
async fn taken_signals(store: &dyn Store, run: &RunId) -> Result<Vec<Record>, StoreError> {
    let progress = Scan { phase: Some("progress"), ..Scan::of(run) };
    store.scan_where(progress, &|record| signal_of(record).is_some()).await
}

fn signal_of(record: &Record) -> Option<(&TakenSignal, &serde_json::Value)> {
    let header = record.header();
    match &header.phase {
        Phase::Progress { value, .. } => Some((header.taken.as_ref()?.signal.as_ref()?, value)),
        _ => None,
    }
}

/// Restores the message from the record that consumed it.
pub(crate) fn message(record: &Record) -> Option<Signal> {
    let (signal, value) = signal_of(record)?;
    let kind = SignalKind::Named { name: signal.name.clone(), value: value.clone() };
    let (id, created_at) = (signal.id.clone(), signal.sent_at);
    Some(Signal { id, kind, scope: None, sender: String::new(), created_at })
}

/// The records in force of the scopes of a run.
struct RecordsInForce<'a> {
    store: &'a dyn Store,
    run: &'a RunId,
    scopes: BTreeMap<ScopePath, BTreeSet<u64>>,
    /// The newest epoch of each visit.
    epochs: HashMap<Visit, u32>,
}

impl RecordsInForce<'_> {
    async fn add_main(&mut self, seq: u64) -> Result<(), StoreError> {
        let main = ScopePath::main();
        let seqs = self.walk(&main, seq).await?;
        self.scopes.insert(main, seqs);
        Ok(())
    }

    /// Adds the records of a child scope. The scope may have several openings; each is in force together with
    /// its parent record. An opening with a pruned position counts as in force.
    async fn add_child(&mut self, scope: &ScopePath) -> Result<(), StoreError> {
        let Some(parent) = scope.parent() else { return Ok(()) };
        if self.scopes.contains_key(scope) {
            return Ok(());
        }
        let mut seqs = BTreeSet::new();
        let mut newest = self.store.newest(self.run, scope).await?.header().seq;
        while newest > 0 {
            let opening = self.walk(scope, newest).await?;
            let record = self.store.load(self.run, scope, newest).await.ok();
            let kept = record.filter(|record| record.body_bytes().is_some());
            let origin = kept.and_then(|record| position_of(&record).ok()?.origin);
            let above = self.scopes.get(&parent);
            if origin.is_none_or(|origin| above.is_none_or(|above| above.contains(&origin))) {
                seqs.extend(opening.iter().copied());
            }
            newest = opening.first().map_or(0, |first| first - 1);
        }
        self.scopes.insert(scope.clone(), seqs);
        Ok(())
    }

    /// Returns the effective history of a scope from `seq` back, and notes its epochs.
    async fn walk(&mut self, scope: &ScopePath, seq: u64) -> Result<BTreeSet<u64>, StoreError> {
        let records = self.store.history(self.run, scope, seq).await?;
        for record in &records {
            let header = record.header();
            let starts = header.started.iter().map(|start| (&start.step, &start.at));
            for (step, at) in header.step.iter().map(|step| (step, &header.at)).chain(starts) {
                let visit = (scope.clone(), step.clone(), at.iteration.clone());
                let epoch = self.epochs.entry(visit).or_default();
                *epoch = at.epoch.max(*epoch);
            }
        }
        Ok(records.iter().map(|record| record.header().seq).collect())
    }

    /// Returns whether a record consumed its signal and is in force.
    fn holds(&self, record: &Record) -> bool {
        let header = record.header();
        let Some(step) = header.step.clone().filter(|_| header.reason == Reason::Answer) else {
            return false;
        };
        let visit = (header.scope.clone(), step, header.at.iteration.clone());
        let is_newest = self.epochs.get(&visit).is_none_or(|epoch| *epoch <= header.at.epoch);
        is_newest && self.scopes.get(&header.scope).is_some_and(|seqs| seqs.contains(&header.seq))
    }
}
