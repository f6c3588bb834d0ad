//! `repeat`: passes of a step or of a group.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use waypost::engine::{Follow, Joined, Performed, StepRef, StepReport};
use waypost::record::{End, Ending, Failure, FailureKind};

use crate::expr::Scope;
use crate::file::{Body, ITERATION, Repeat, Step, Work};

use super::state::{StepOutput, StepState, WorkflowState, not_yet};
use super::{WorkflowProgram, expression, failure};

impl WorkflowProgram {
    /// Returns the scope of a step in its current or next pass.
    pub(super) fn scope_of(&self, step: &Step, state: &WorkflowState) -> Scope {
        let scope = self.scope(state);
        match &step.repeat {
            Some(_) => in_pass(&scope, state.passes(&step.id) + 1),
            None => scope,
        }
    }

    /// Returns the scope that the steps of a group read from outside. Steps of the group without a run, also
    /// those of groups within, are pending.
    pub(super) fn scope_of_group(&self, step: &Step, state: &WorkflowState) -> Scope {
        let mut scope = self.scope_of(step, state);
        let own = step.work.body().into_iter().flat_map(Body::steps);
        let is_group = |inner: &&Step| matches!(inner.work, Work::Group(_));
        let within = own.clone().filter(is_group).filter_map(|inner| inner.work.body()).flat_map(Body::steps);
        for inner in own.chain(within) {
            if state.step(&inner.id).is_none() && !state.has_failed(&inner.id) {
                scope.insert_step(&inner.id, &not_yet());
            }
        }
        scope
    }

    /// Returns whether a step that has ended runs another pass.
    ///
    /// `settled` is the result of the step in this pass, and `steps` the results of the steps of the group.
    /// With a `tolerated` failure, reaching the limit is not a failure either.
    pub(super) fn passes_on(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
        (settled, tolerated): (&StepState, bool),
        steps: &BTreeMap<String, StepState>,
    ) -> Result<Follow, Failure> {
        let step = self.step(step_ref);
        let Some(repeat) = &step.repeat else { return Ok(Follow::Needs) };
        let passes = state.passes(&step.id) + 1;
        let passing = Passing::new(step_ref, passes, self.scope(state));
        if self.is_until(&passing, settled, steps)? {
            return Ok(Follow::Needs);
        }
        if passes < repeat.max || (fails_in_next(step) && !tolerated) {
            return Ok(Follow::To(step_ref.place));
        }
        if tolerated { Ok(Follow::Needs) } else { Err(self.in_vain(repeat, passes)) }
    }

    /// Fails a step without passes left that would start another pass.
    pub(super) fn check_passes(&self, step: &Step, state: &WorkflowState) -> Result<(), Failure> {
        let passes = state.passes(&step.id);
        match step.repeat.as_ref().filter(|repeat| passes >= repeat.max && fails_in_next(step)) {
            Some(repeat) => Err(self.in_vain(repeat, passes)),
            None => Ok(()),
        }
    }

    fn in_vain(&self, repeat: &Repeat, passes: u32) -> Failure {
        let until = self.mask().mask_str(repeat.until.as_str()).into_owned();
        let text = format!("`{until}` is still false after {passes} iterations, the maximum");
        Failure::new(FailureKind::Limit, vec![text])
    }

    /// Returns whether this pass is the last; the success hooks then run.
    pub(super) fn is_last_pass(&self, passing: &Passing, performed: &Performed<StepOutput>) -> bool {
        let Performed::Completed { output, ending, .. } = performed else { return true };
        let settled = StepState::completed(output.clone(), ending.exit_code);
        // An evaluation error fails the step later, when its result is applied.
        self.is_until(passing, &settled, &output.steps).unwrap_or(false)
    }

    /// Returns whether the `until` condition holds after a pass.
    fn is_until(
        &self,
        passing: &Passing,
        settled: &StepState,
        steps: &BTreeMap<String, StepState>,
    ) -> Result<bool, Failure> {
        let step = &self.levels[passing.level].steps[passing.place];
        let Some(repeat) = &step.repeat else { return Ok(true) };
        let folder = self.folder();
        let mut scope = passing.scope.clone();
        let own = [(&step.id, settled)].into_iter().chain(steps);
        own.for_each(|(id, step)| scope.insert_step(id, &step.view(folder.as_deref())));
        let env = step.resolve_shared_env(&scope).map_err(expression)?;
        repeat.until.holds(&scope.for_step(&step.id, &env)).map_err(expression)
    }
}

/// Pass of a step.
#[derive(Debug, Clone)]
pub(super) struct Passing {
    level: usize,
    place: usize,
    /// Scope in this pass.
    scope: Scope,
}

impl Passing {
    pub(super) fn new(step_ref: StepRef<'_>, pass: u32, scope: Scope) -> Self {
        Self { level: step_ref.level, place: step_ref.place, scope: in_pass(&scope, pass) }
    }
}

/// Returns whether an exhausted step fails at the next start, not at the end of the last pass.
///
/// True for steps with `idempotent: false`. Other steps and groups fail at the last pass, so a resume repeats
/// it and evaluates `until` again.
fn fails_in_next(step: &Step) -> bool {
    !matches!(step.work, Work::Group(_)) && !step.idempotent
}

pub(super) fn in_pass(scope: &Scope, pass: u32) -> Scope {
    scope.with_local(ITERATION, &Value::from(pass))
}

/// Returns the steps with results in the state of a scope: the steps of the scope, and the steps of its groups.
pub(super) fn steps_of_state(steps: &[Step]) -> BTreeSet<&str> {
    let mut ids = BTreeSet::new();
    for step in steps {
        ids.insert(step.id.as_str());
        if let Work::Group(body) = &step.work {
            ids.append(&mut steps_of_state(body.steps()));
        }
    }
    ids
}

/// Removes the results of all passes of a step from the state, and of the steps of a group.
pub(super) fn forget(step: &Step, state: &mut WorkflowState) {
    state.forget(&step.id);
    if let Work::Group(body) = &step.work {
        body.steps().iter().for_each(|inner| forget(inner, state));
    }
}

/// Adds the results of the steps of a failed group to the state. A step without a result was skipped.
pub(super) fn fail(step: &Step, state: &mut WorkflowState, results: &BTreeMap<String, StepState>) {
    let Work::Group(body) = &step.work else { return };
    for inner in body.steps() {
        let result = results.get(&inner.id).cloned().unwrap_or_else(StepState::skipped);
        if state.refuse_growth(&inner.id, &result).is_ok() {
            state.fail(&inner.id, result, None);
        }
    }
}

/// Removes the failure of a step from the state, and the results of the steps of a failed group.
pub(super) fn forget_failure(step: &Step, state: &mut WorkflowState) {
    state.forget_failure(&step.id);
    if let Work::Group(body) = &step.work {
        body.steps().iter().for_each(|inner| state.forget_failure(&inner.id));
    }
}

/// Restores the result of a step, and of the steps of a group, from the earlier state `then`.
pub(super) fn restore(step: &Step, state: &mut WorkflowState, then: &WorkflowState) {
    state.restore(&step.id, then);
    if let Work::Group(body) = &step.work {
        body.steps().iter().for_each(|inner| restore(inner, state, then));
    }
}

/// Settles the steps of a skipped group as skipped.
pub(super) fn skip(step: &Step, state: &mut WorkflowState) {
    for inner in step.work.body().into_iter().flat_map(Body::steps) {
        if matches!(step.work, Work::Group(_)) {
            state.settle(&inner.id, StepState::skipped(), None);
            skip(inner, state);
        }
    }
}

/// Returns the result of a step in the state, with the results of the steps of a group.
pub(super) fn output_of(step: &Step, state: &WorkflowState) -> Option<Value> {
    let own = serde_json::to_value(state.step(&step.id)?).ok()?;
    let Work::Group(body) = &step.work else { return Some(own) };
    // By name, since the order of steps changes no result. The digests of the joined scopes cover the steps of inner groups.
    let result = |inner: &Step| Some((inner.id.clone(), serde_json::to_value(state.step(&inner.id)?).ok()?));
    let inner: Map<String, Value> = body.steps().iter().filter_map(result).collect();
    Some(json!([own, inner]))
}

/// Returns the results of the steps of a group.
pub(super) async fn gather(joined: Joined) -> Performed<StepOutput> {
    match gathered(joined).await {
        Ok(output) => {
            Performed::Completed { output, ending: Ending::default(), report: StepReport::default() }
        }
        Err(failure) => Performed::Failed { failure, report: StepReport::default() },
    }
}

/// Returns the results of all steps of the joined scopes.
pub(super) async fn gathered(joined: Joined) -> Result<StepOutput, Failure> {
    let unread = |error: waypost::store::StoreError| failure(FailureKind::Error, error);
    let mut output = StepOutput::default();
    let mut outcomes = joined.outcomes().await.map_err(unread)?;
    while let Some(end) = outcomes.next().await.map_err(unread)? {
        if !matches!(end.end, End::Completed | End::Skipped) {
            let text = format!("scope {} ended as {:?}", end.record.header().reference(), end.end);
            return Err(Failure::new(FailureKind::Error, vec![text.to_lowercase()]));
        }
        let gone = || {
            let text = format!("the state of {} is missing", end.record.header().reference());
            Failure::new(FailureKind::Error, vec![text])
        };
        let bytes = end.record.state_bytes().ok_or_else(gone)?;
        let state: WorkflowState =
            serde_json::from_slice(bytes).map_err(|error| failure(FailureKind::Error, error))?;
        output.steps.extend(state.into_steps());
    }
    Ok(output)
}
