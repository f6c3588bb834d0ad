//! Choices of a person: a step is skipped, or counts as done, at its turn.
//!
//! A choice is recorded before anything runs. The position keeps the choice until the turn of the step, across
//! crashes and failed evidence.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::Decision;
use crate::plan::shape::{Shape, Unfinished};
use crate::projection::events::STEP_SETTLED;
use crate::record::{Choice, Note, Position, SettleBy, SkipCause, Status};

use crate::engine::resume::in_doubt::{note_trace, traced};
use crate::engine::scope::{Scope, ScopeId};
use crate::engine::session::Session;
use crate::engine::{KnownOutputs, Program, RunError, StepRef, StepReport};

/// The kind of a settlement that keeps the result of a changed definition.
pub(crate) const KEPT: &str = "kept";

/// A scope whose steps a person settles.
#[derive(Clone, Copy)]
pub(crate) struct ChoiceScope<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) scope: &'a ScopePath,
    pub(crate) shape: &'a Shape,
}

/// Adds choices to the position of a scope, and removes the answered questions.
///
/// # Errors
/// [`RunError::UnknownStep`]: the graph has no such step. [`RunError::NotSettled`]: the step is finished.
pub(crate) fn choose(
    ChoiceScope { run, scope, shape }: ChoiceScope<'_>,
    choices: &BTreeMap<StepId, Choice>,
    position: &mut Position,
) -> Result<(), RunError> {
    let unfinished = Unfinished::of(shape, position);
    for (step, choice) in choices {
        let place = shape.place(step.as_str()).ok_or_else(|| RunError::InvalidStep(step.clone()))?;
        if !unfinished.has(place) {
            let path = if scope.is_main() { step.to_string() } else { format!("{scope}/{step}") };
            let why = format!("the step is finished; `--from {path}` reruns it");
            let (run, scope, step) = (run.clone(), scope.clone(), step.clone());
            return Err(RunError::NotSettled { run, scope, step, why });
        }
        let known = position.frontier.iter().find(|entry| entry.step == *step);
        let had_effect = position.had_effect(step)
            || position.has_result(step)
            || known.is_some_and(|entry| shape.steps()[place].has_begun(entry));
        position.reusable.remove(step);
        if had_effect {
            // A later rerun of a skipped step repeats the effect.
            position.note_effect(step);
        }
        if let Some(entry) = position.frontier.iter_mut().find(|entry| entry.step == *step) {
            entry.drop_children();
            (entry.status, entry.wake_at, entry.exited) = (Status::Ready, None, None);
            entry.waits.clear();
        }
        position.choices.insert(step.clone(), choice.clone());
    }
    Ok(())
}

/// Removes the questions about steps with a choice.
pub(crate) fn answer(chosen: &BTreeSet<(ScopePath, StepId)>, questions: &mut Vec<Decision>) {
    questions.retain(|asked| !chosen.contains(&(asked.scope.clone(), asked.step.clone())));
}

/// Returns the note about a step settled by a person.
pub(crate) fn settled_by_person(step: &StepId, how: &str, by: Option<&str>) -> Note {
    settled(step, how, json!({ "code": "settled", "by": by }))
}

fn settled(step: &StepId, how: &str, cause: Value) -> Note {
    let data = json!({ "step": step, "how": how, "cause": cause });
    Note::Event { name: STEP_SETTLED.to_owned(), data }
}

impl<P: Program> Session<'_, P> {
    /// Settles a ready step by choice. Returns false if the step has no choice.
    pub(crate) fn settle_by_choice(&mut self, id: ScopeId, place: usize) -> bool {
        let program = self.program;
        let scope = self.scopes.get_mut(id);
        let step = scope.step_id(place).clone();
        let Some(Choice { settle, by, at }) = scope.position.choices.remove(&step) else { return false };
        let how = if settle == SettleBy::Skip { "skipped" } else { "done" };
        let note = settled(&step, how, json!({ "code": "settled", "by": by, "at": at }));
        let outputs = match settle {
            SettleBy::Skip => {
                self.skip(id, place, SkipCause::ByHand(by));
                self.scopes.get_mut(id).notes.push(note);
                return true;
            }
            SettleBy::Done(outputs) => outputs,
        };
        let Scope { chain, shape, state, .. } = &mut *scope;
        let step_ref =
            StepRef { scope: &chain.scope, level: shape.level(), place, step: &shape.steps()[place] };
        match program.settle_as_done(step_ref, state, KnownOutputs::Given(&outputs)) {
            Ok(settled) => {
                let traced = traced(program, scope, place, None);
                scope.settle_as_decided(place, settled);
                note_trace(scope, place, traced);
                scope.notes.push(note);
                self.mark_dirty(id);
            }
            Err(why) => {
                let text = format!("the step cannot count as done: {why}");
                let failure = crate::record::Failure::new(crate::record::FailureKind::Fatal, vec![text]);
                self.fail(id, place, failure, StepReport::default());
            }
        }
        true
    }
}
