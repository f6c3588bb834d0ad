//! What a changed definition means for a run that is under way. Pure.
//!
//! Steps are compared by id and fingerprint, never by place: comments, order, names, timeouts and retries are not in a
//! fingerprint and so touch nothing. A step is touched where what it does changed, where it came or went, or where a
//! step that is not finished any more stands before it.

use std::collections::HashMap;
use std::fmt;

use crate::id::{Digest, StepId};
use crate::record::{Definition, FrontierEntry, Position};
use crate::shape::{Shape, Unfinished};

/// How one step differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The step.
    pub step: StepId,
    /// What happened to it.
    pub kind: ChangeKind,
    /// It is finished in this run, so that its result would have to be thrown away.
    pub touches_finished: bool,
}

/// What happened to a step between two definitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It does something else.
    Altered,
    /// It is as it was, but now comes after this step, which is not finished.
    Reordered(StepId),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = &self.step;
        match &self.kind {
            ChangeKind::Added => write!(f, "step `{step}` is new"),
            ChangeKind::Removed => write!(f, "step `{step}` is gone"),
            ChangeKind::Altered => write!(f, "step `{step}` does something else"),
            ChangeKind::Reordered(before) => write!(f, "step `{step}` now comes after `{before}`"),
        }
    }
}

/// Compares the definition of a run with another graph.
///
/// `before` is the graph of the run's own definition, `position` where it stands.
pub fn changes(before: &Shape, position: &Position, definition: &Definition, after: &Shape) -> Vec<Change> {
    let unfinished = Unfinished::of(before, position);
    let finished = |id: &StepId| before.place(id.as_str()).is_some_and(|place| !unfinished.has(place));
    let old: HashMap<&StepId, Digest> =
        definition.steps.iter().map(|step| (&step.id, step.fingerprint)).collect();
    let mut changes = Vec::new();
    for step in after.steps() {
        match old.get(&step.id) {
            None => changes.push(Change {
                step: step.id.clone(),
                kind: ChangeKind::Added,
                touches_finished: false,
            }),
            Some(print) if *print != step.fingerprint => {
                let touches_finished = finished(&step.id);
                changes.push(Change { step: step.id.clone(), kind: ChangeKind::Altered, touches_finished });
            }
            Some(_) => {}
        }
    }
    for step in &definition.steps {
        if after.place(step.id.as_str()).is_none() {
            let touches_finished = finished(&step.id);
            changes.push(Change { step: step.id.clone(), kind: ChangeKind::Removed, touches_finished });
        }
    }
    for place in after.order() {
        let step = &after.steps()[place];
        let mut open =
            after.needs(place).iter().map(|need| &after.steps()[*need].id).filter(|need| !finished(need));
        if let Some(need) = open.next().filter(|_| finished(&step.id)) {
            let kind = ChangeKind::Reordered(need.clone());
            changes.push(Change { step: step.id.clone(), kind, touches_finished: true });
        }
    }
    changes
}

/// Carries a position over to another graph: what is finished in both stays finished, everything else is open.
///
/// # Errors
/// The finished steps that the change touches; the position cannot be carried over.
pub fn carry_over(
    before: &Shape,
    position: &Position,
    definition: &Definition,
    after: &Shape,
) -> Result<Position, Vec<Change>> {
    let touching: Vec<Change> = changes(before, position, definition, after)
        .into_iter()
        .filter(|change| change.touches_finished)
        .collect();
    if !touching.is_empty() {
        return Err(touching);
    }
    let unfinished = Unfinished::of(before, position);
    let finished = |id: &StepId| before.place(id.as_str()).is_some_and(|place| !unfinished.has(place));
    let minimal = |place: &usize| {
        !finished(&after.steps()[*place].id)
            && after.needs(*place).iter().all(|need| finished(&after.steps()[*need].id))
    };
    let entry = |place: usize| {
        let step = after.steps()[place].id.clone();
        let known = position.frontier.iter().find(|entry| entry.step == step).cloned();
        known.unwrap_or_else(|| FrontierEntry::ready(step))
    };
    let frontier = (0..after.steps().len()).filter(minimal).map(entry).collect();
    let ledger = position.ledger.iter().filter(|(id, _)| after.place(id.as_str()).is_some());
    Ok(Position { frontier, ledger: ledger.map(|(id, at)| (id.clone(), *at)).collect(), ..position.clone() })
}
