//! `repeat`: passes of a step, and of the steps of a group.

use std::collections::BTreeMap;

use serde_json::Value;
use waypost::engine::{Follow, Joined, Performed, Spot, Told};
use waypost::record::{End, Ending, Failure, FailureKind};

use crate::expr::Scope;
use crate::file::{ITERATION, Repeat, Step, Work};

use super::state::{StepOutput, StepState, WorkflowState, not_yet};
use super::{WorkflowProgram, expression, failure};

impl WorkflowProgram {
    /// Returns what a step reads in the pass that it is in or about to begin.
    pub(super) fn scope_of(&self, step: &Step, state: &WorkflowState) -> Scope {
        let scope = self.scope(state);
        match &step.repeat {
            Some(_) => in_pass(&scope, state.passes(&step.id) + 1),
            None => scope,
        }
    }

    /// Returns what the steps of a group read of what is around them: before the first pass, of each other nothing.
    pub(super) fn scope_of_group(&self, step: &Step, state: &WorkflowState) -> Scope {
        let mut scope = self.scope_of(step, state);
        for inner in step.work.body().into_iter().flat_map(crate::file::Body::steps) {
            if state.step(&inner.id).is_none() {
                scope.insert_step(&inner.id, &not_yet());
            }
        }
        scope
    }

    /// Decides whether a step that has ended is done once more.
    ///
    /// `settled` is what became of it in its pass, `steps` of those of the group that it is. Where a failure is `tolerated`,
    /// so is that the passes are used up.
    pub(super) fn passes_on(
        &self,
        spot: Spot<'_>,
        state: &WorkflowState,
        (settled, tolerated): (&StepState, bool),
        steps: &BTreeMap<String, StepState>,
    ) -> Result<Follow, Failure> {
        let step = self.step(spot);
        let Some(repeat) = &step.repeat else { return Ok(Follow::Needs) };
        let passes = state.passes(&step.id) + 1;
        let passing = Passing::new(spot, passes, self.scope(state));
        if self.is_until(&passing, settled, steps)? {
            return Ok(Follow::Needs);
        }
        if passes < repeat.max || (fails_in_next(step) && !tolerated) {
            return Ok(Follow::To(spot.place));
        }
        if tolerated { Ok(Follow::Needs) } else { Err(self.in_vain(repeat, passes)) }
    }

    /// Fails a step that has been done as often as it may, and is to be done once more.
    pub(super) fn check_passes(&self, step: &Step, state: &WorkflowState) -> Result<(), Failure> {
        let passes = state.passes(&step.id);
        match step.repeat.as_ref().filter(|repeat| passes >= repeat.max && fails_in_next(step)) {
            Some(repeat) => Err(self.in_vain(repeat, passes)),
            None => Ok(()),
        }
    }

    fn in_vain(&self, repeat: &Repeat, passes: u32) -> Failure {
        let until = self.mask().mask_str(repeat.until.as_str()).into_owned();
        let text = format!("`{until}` did not come true in {passes} passes, and no more are allowed");
        Failure::new(FailureKind::Limit, vec![text])
    }

    /// Says whether a pass that has ended so is the last: what comes after a success is done then.
    pub(super) fn is_last_pass(&self, passing: &Passing, performed: &Performed<StepOutput>) -> bool {
        let Performed::Completed { output, ending, .. } = performed else { return true };
        let settled = StepState::completed(output.clone(), ending.exit_code);
        // What cannot be evaluated fails the step when its end is taken in.
        self.is_until(passing, &settled, &output.steps).unwrap_or(false)
    }

    /// Says whether what a step is repeated for has come true with a pass.
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

/// A pass of a step.
#[derive(Debug, Clone)]
pub(super) struct Passing {
    level: usize,
    place: usize,
    /// What is known in it.
    scope: Scope,
}

impl Passing {
    pub(super) fn new(spot: Spot<'_>, pass: u32, scope: Scope) -> Self {
        Self { level: spot.level, place: spot.place, scope: in_pass(&scope, pass) }
    }
}

/// Says whether a step that was done as often as it may fails as it is to begin once more, and not by its last pass. Who
/// resumes has that pass once more, which finds out whether it holds by now; but not of one that must not be repeated.
fn fails_in_next(step: &Step) -> bool {
    !matches!(step.work, Work::Group(_)) && !step.idempotent
}

pub(super) fn in_pass(scope: &Scope, pass: u32) -> Scope {
    scope.with_local(ITERATION, &Value::from(pass))
}

/// Takes out of a state what became of a step in all its passes, and of the steps of the group that it is.
pub(super) fn forget(step: &Step, state: &mut WorkflowState) {
    state.forget(&step.id);
    if let Work::Group(body) = &step.work {
        body.steps().iter().for_each(|inner| forget(inner, state));
    }
}

/// Leaves of a step what it had come to by an earlier state, and of the steps of the group that it is.
pub(super) fn restore(step: &Step, state: &mut WorkflowState, then: &WorkflowState) {
    state.restore(&step.id, then);
    if let Work::Group(body) = &step.work {
        body.steps().iter().for_each(|inner| restore(inner, state, then));
    }
}

/// Settles the steps of a group that was passed over: nothing of them can be read but that.
pub(super) fn skip(step: &Step, state: &mut WorkflowState) {
    for inner in step.work.body().into_iter().flat_map(crate::file::Body::steps) {
        if matches!(step.work, Work::Group(_)) {
            state.settle(&inner.id, StepState::skipped(), None);
            skip(inner, state);
        }
    }
}

/// Returns what a step came to by the state, with what those of the group did that it is.
pub(super) fn gave(step: &Step, state: &WorkflowState) -> Option<Value> {
    let own = serde_json::to_value(state.step(&step.id)?).ok()?;
    let Work::Group(body) = &step.work else { return Some(own) };
    let inner = body.steps().iter().map(|inner| gave(inner, state).unwrap_or(Value::Null));
    Some(std::iter::once(own).chain(inner).collect())
}

/// Takes over what the steps of a group came to.
pub(super) async fn gather(joined: Joined) -> Performed<StepOutput> {
    match gathered(joined).await {
        Ok(output) => Performed::Completed { output, ending: Ending::default(), told: Told::default() },
        Err(failure) => Performed::Failed { failure, told: Told::default() },
    }
}

/// Returns what all steps of the branches that were opened came to.
pub(super) async fn gathered(joined: Joined) -> Result<StepOutput, Failure> {
    let unread = |error: waypost::store::StoreError| failure(FailureKind::Error, error);
    let mut output = StepOutput::default();
    let mut outcomes = joined.outcomes().await.map_err(unread)?;
    while let Some(end) = outcomes.next().await.map_err(unread)? {
        if !matches!(end.end, End::Completed | End::Skipped) {
            let text = format!("branch {} ended as {:?}", end.record.header().reference(), end.end);
            return Err(Failure::new(FailureKind::Error, vec![text.to_lowercase()]));
        }
        let gone = || {
            let text = format!("the state of {} is gone", end.record.header().reference());
            Failure::new(FailureKind::Error, vec![text])
        };
        let bytes = end.record.state_bytes().ok_or_else(gone)?;
        let state: WorkflowState =
            serde_json::from_slice(bytes).map_err(|error| failure(FailureKind::Error, error))?;
        output.steps.extend(state.into_steps());
    }
    Ok(output)
}
