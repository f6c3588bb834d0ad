//! `repeat`: passes of a step, and of the steps of a group.

use serde_json::Value;
use waypost::engine::{Follow, Joined, Performed, Spot, Told};
use waypost::record::{End, Ending, Failure, FailureKind};

use crate::expr::Scope;
use crate::file::{ITERATION, Step, Work};

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
    /// `settled` is what became of it in its pass, `steps` of those of the group that it is.
    pub(super) fn passes_on(
        &self,
        spot: Spot<'_>,
        state: &WorkflowState,
        settled: &StepState,
        steps: &std::collections::BTreeMap<String, StepState>,
    ) -> Result<Follow, Failure> {
        let step = self.step(spot);
        let Some(repeat) = &step.repeat else { return Ok(Follow::Needs) };
        let passes = state.passes(&step.id) + 1;
        let folder = self.folder();
        let mut scope = in_pass(&self.scope(state), passes);
        let own = [(&step.id, settled)].into_iter().chain(steps);
        own.for_each(|(id, step)| scope.insert_step(id, &step.view(folder.as_deref())));
        let env = step.resolve_shared_env(&scope).map_err(expression)?;
        if repeat.until.holds(&scope.for_step(&step.id, &env)).map_err(expression)? {
            return Ok(Follow::Needs);
        }
        if passes < repeat.max {
            return Ok(Follow::To(spot.place));
        }
        let until = self.mask().mask_str(repeat.until.as_str()).into_owned();
        let text = format!("`{until}` did not come true in {passes} passes, and no more are allowed");
        Err(Failure::new(FailureKind::Limit, vec![text]))
    }
}

fn in_pass(scope: &Scope, pass: u32) -> Scope {
    scope.with_local(ITERATION, &Value::from(pass))
}

/// Says whether a step is a group.
pub(super) fn is_group(step: &Step) -> bool {
    matches!(step.work, Work::Group(_))
}

/// Takes out of a state what became of a step in all its passes, and of the steps of the group that it is.
pub(super) fn forget(step: &Step, state: &mut WorkflowState) {
    state.forget(&step.id);
    if let Work::Group(body) = &step.work {
        body.steps().iter().for_each(|inner| forget(inner, state));
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
