//! Records of earlier undos, and refusals based on these.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::engine::resume::reruns::opener_of;
use crate::engine::time_travel::rollback::PointInTime;
use crate::engine::{Engine, ResumeFrom, RunError};
use crate::id::{RunId, ScopePath, StepId};
use crate::plan::shape::Shape;
use crate::record::{Phase, Position, Record};
use crate::store::{Scan, StoreExt as _};

use super::{EffectKey, UNDO};

/// The undone steps, each with the record of its newest undone end.
pub(crate) type UndoneEnds = HashMap<(ScopePath, StepId), u64>;

/// The undone steps that have not started again.
pub(crate) type UndoneSteps = BTreeSet<(ScopePath, StepId)>;

/// The content of an undo record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum UndoRecord {
    /// An undo of the steps that finished after this record of the main scope has begun.
    Begun {
        to: u64,
    },
    Started {
        scope: ScopePath,
        step: StepId,
        seq: u64,
    },
    Done {
        scope: ScopePath,
        step: StepId,
        seq: u64,
    },
    Failed {
        scope: ScopePath,
        step: StepId,
        seq: u64,
        error: Vec<String>,
    },
}

/// The effects undone or begun by earlier calls.
#[derive(Debug, Default)]
pub(super) struct Before {
    pub(super) done: HashSet<EffectKey>,
    /// The number of starts of each undo.
    pub(super) started: HashMap<EffectKey, usize>,
}

impl Before {
    pub(super) fn of(records: Vec<(u64, UndoRecord)>) -> Self {
        let mut before = Self::default();
        for (_, record) in records {
            match record {
                UndoRecord::Done { scope, step, seq } => drop(before.done.insert((scope, step, seq))),
                UndoRecord::Started { scope, step, seq } => {
                    *before.started.entry((scope, step, seq)).or_default() += 1;
                }
                UndoRecord::Begun { .. } | UndoRecord::Failed { .. } => {}
            }
        }
        before
    }
}

/// Reads all undo records of a run with their seqs, across all rollbacks.
pub(super) async fn undo_records(engine: &Engine, run: &RunId) -> Result<Vec<(u64, UndoRecord)>, RunError> {
    let (scope, phase) = (Some(ScopePath::main()), Some("progress"));
    let mut scan = Scan { scope, phase, ..Scan::of(run) };
    let mut records = Vec::new();
    loop {
        let page = engine.store.scan(&scan).await?;
        records.extend(page.records.iter().filter_map(|record| match &record.header().phase {
            Phase::Progress { key, value } if key == UNDO && record.header().step.is_none() => {
                Some((record.header().seq, serde_json::from_value(value.clone()).ok()?))
            }
            _ => None,
        }));
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(records),
        }
    }
}

/// Returns the steps of the main scope with undone effects.
pub(crate) async fn undone_steps(engine: &Engine, run: &RunId) -> Result<BTreeSet<StepId>, RunError> {
    let on_main = |(scope, step): (ScopePath, StepId)| match scope.is_main() {
        true => Some(step),
        false => opened_on_main(&scope),
    };
    Ok(undone_within(engine, run).await?.into_iter().filter_map(on_main).collect())
}

/// Returns the undone steps of a run, each with its scope. A step that has started again after the undone end has another
/// effect, and is not undone.
pub(crate) async fn undone_within(engine: &Engine, run: &RunId) -> Result<UndoneSteps, RunError> {
    let ends = undone_ends(engine, run).await?;
    still_undone(engine, run, &ends, &ScopePath::main()).await
}

/// Returns the undone steps of a run, each with the record of its newest undone end.
pub(crate) async fn undone_ends(engine: &Engine, run: &RunId) -> Result<UndoneEnds, RunError> {
    let mut newest = UndoneEnds::new();
    for (_, record) in undo_records(engine, run).await? {
        if let UndoRecord::Done { scope, step, seq } = record {
            let known = newest.entry((scope, step)).or_default();
            *known = seq.max(*known);
        }
    }
    Ok(newest)
}

/// Returns the undone steps in a scope and below that have not started again.
pub(crate) async fn still_undone(
    engine: &Engine,
    run: &RunId,
    ends: &UndoneEnds,
    scope: &ScopePath,
) -> Result<UndoneSteps, RunError> {
    let mut undone = UndoneSteps::new();
    for ((path, step), seq) in ends.iter().filter(|((path, _), _)| is_within(path, scope)) {
        let starts = |record: &Record| record.header().started.iter().any(|start| start.step == *step);
        let since = Scan { scope: Some(path.clone()), seq_min: Some(seq + 1), ..Scan::of(run) };
        if engine.store.scan_where(since, &starts).await?.is_empty() {
            undone.insert((path.clone(), step.clone()));
        }
    }
    Ok(undone)
}

/// Returns the steps of a scope without an effect after an undo: the undone steps, and the openers of scopes with undone
/// steps.
pub(crate) fn undone_on(root: &Shape, undone: &UndoneSteps, scope: &ScopePath) -> BTreeSet<StepId> {
    let on_scope = |(on, step): &(ScopePath, StepId)| match on == scope {
        true => Some(step.clone()),
        false => {
            let mut around = std::iter::successors(Some(on.clone()), ScopePath::parent);
            opener_of(root, &around.find(|below| below.parent().as_ref() == Some(scope))?)
        }
    };
    undone.iter().filter_map(on_scope).collect()
}

/// Returns whether `path` is `scope`, or below it.
fn is_within(path: &ScopePath, scope: &ScopePath) -> bool {
    std::iter::successors(Some(path.clone()), ScopePath::parent).any(|around| around == *scope)
}

/// Refuses to continue from a checkpoint with finished steps that were undone later.
///
/// # Errors
/// [`RunError::NoState`]: there is such a step.
pub(crate) async fn refuse_undone(engine: &Engine, run: &RunId, seq: u64) -> Result<(), RunError> {
    let (store, main) = (engine.store.as_ref(), ScopePath::main());
    let records = undo_records(engine, run).await?;
    let undone = |(at, record)| match record {
        UndoRecord::Done { scope, step, seq } => Some((at, scope, step, seq)),
        _ => None,
    };
    let undone: Vec<(u64, ScopePath, StepId, u64)> = records.into_iter().filter_map(undone).collect();
    if undone.is_empty() {
        return Ok(());
    }
    let point = PointInTime::of(store.load(run, &main, seq).await?.header());
    let history = store.history(run, &main, seq).await?;
    // A rerun after the undo has another end.
    for (_, scope, step, end) in undone.into_iter().filter(|(undone_at, ..)| *undone_at > seq) {
        let was_finished = match scope.is_main() {
            true => history.iter().any(|record| record.header().seq == end),
            false => PointInTime::of(store.load(run, &scope, end).await?.header()) <= point,
        };
        if was_finished {
            let why = format!("step `{step}`, finished at the checkpoint, was undone since");
            return Err(RunError::NoState { at: format!("{run}@{seq}"), why });
        }
    }
    Ok(())
}

/// Returns the step of the main scope above a scope.
fn opened_on_main(scope: &ScopePath) -> Option<StepId> {
    let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    around.filter_map(|scope| scope.opened_by()).last().map(|(step, _)| step)
}

/// Refuses to continue a run with an unfinished undo, except for a rollback at least as far.
///
/// # Errors
/// [`RunError::Undoing`]: the undo is unfinished.
pub(crate) fn refuse_unfinished_undo(
    run: &RunId,
    position: &Position,
    from: Option<&ResumeFrom>,
) -> Result<(), RunError> {
    match (position.undoing, from) {
        (None, _) => Ok(()),
        (Some(to), Some(ResumeFrom::Checkpoint(back_to))) if *back_to <= to => Ok(()),
        (Some(to), _) => Err(RunError::Undoing { run: run.clone(), to }),
    }
}
