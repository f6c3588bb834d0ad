//! Hooks: steps that run in child scopes after a step has ended, before the step's result counts.
//!
//! ```text
//!   step ends for good --> opens its hooks with its result --> hooks end --> step starts as the join,
//!                                                                            and returns the same result
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waypost::StepId;
use waypost::engine::{Item, Joined, Performed, StepReport};
use waypost::record::{End, Ending, Failure, FailureKind, Note};

use crate::file::{HookOn, Step};

use super::failure;
use super::state::{StepOutput, StepState, WorkflowState};

/// Hook of a step.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Key of the hook's scope.
    key: String,
    on: HookOn,
    start: StepId,
}

/// Result of a step, kept until its hooks have ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CameTo {
    Completed {
        output: StepOutput,
        ending: Ending,
    },
    Failed(Failure),
    /// Failure with standard output, if an expression reads the standard output. A failure alone does not
    /// serialise it.
    FailedAndPrinted {
        failure: Failure,
        stdout: String,
    },
}

/// Makes a hook that begins with step `start`.
pub(super) fn plan(key: String, on: HookOn, start: StepId) -> Plan {
    Plan { key, on, start }
}

/// Returns the hooks to open after a final failure.
pub(super) fn after_failure(plans: &[Plan], failure: &Failure) -> Vec<Item> {
    let code = failure.ending.exit_code.and_then(|code| u8::try_from(code).ok());
    let meant = |plan: &&Plan| match plan.on {
        HookOn::Failure => true,
        HookOn::ExitCode(wanted) => code == Some(wanted),
        HookOn::Success | HookOn::Run => false,
    };
    let came_to = match failure.ending.stdout.clone() {
        Some(stdout) => CameTo::FailedAndPrinted { failure: failure.clone(), stdout },
        None => CameTo::Failed(failure.clone()),
    };
    items(plans.iter().filter(meant), &came_to)
}

/// Opens the hooks of a successful step, if any. A failure is passed on: the engine decides about retries
/// first.
pub(super) fn after(plans: &[Plan], performed: Performed<StepOutput>) -> Performed<StepOutput> {
    let Performed::Completed { output, ending, report } = performed else { return performed };
    let code = ending.exit_code.and_then(|code| u8::try_from(code).ok());
    let meant = |plan: &&Plan| match plan.on {
        HookOn::Success | HookOn::Run => true,
        HookOn::ExitCode(wanted) => code == Some(wanted),
        HookOn::Failure => false,
    };
    if !plans.iter().any(|plan| meant(&plan)) {
        return Performed::Completed { output, ending, report };
    }
    let came_to = CameTo::Completed { output, ending };
    Performed::Opened { items: items(plans.iter().filter(meant), &came_to), report }
}

fn items<'p>(plans: impl Iterator<Item = &'p Plan>, came_to: &CameTo) -> Vec<Item> {
    let value = serde_json::to_value(came_to).unwrap_or(Value::Null);
    let item = |(index, plan): (usize, &Plan)| Item {
        key: plan.key.clone(),
        value: value.clone(),
        index: index as u64,
        start: Some(plan.start.clone()),
    };
    plans.enumerate().map(item).collect()
}

/// Returns the initial state of a hook's scope, with the result of `step`.
pub(super) fn state_of(step: &Step, item: &Item, folder: Option<&Path>) -> WorkflowState {
    let mut state = WorkflowState::of_group();
    match came_to(&item.value) {
        Some(Ok((mut output, ending))) => {
            let steps = std::mem::take(&mut output.steps);
            state.settle(&step.id, StepState::completed(output, ending.exit_code), folder);
            steps.into_iter().for_each(|(id, step)| state.settle(&id, step, folder));
            state.set_hook(None);
        }
        Some(Err(Failure { ending, below, .. })) => {
            let failed = state.failed_by(step, ending);
            state.settle(&step.id, failed, folder);
            state.set_hook(Some(below.map_or(step.id.clone(), |below| below.step.to_string())));
        }
        None => {
            state.settle(&step.id, StepState::skipped(), folder);
            state.set_hook(None);
        }
    }
    state
}

fn came_to(value: &Value) -> Option<Result<(StepOutput, Ending), Failure>> {
    match serde_json::from_value(value.clone()).ok()? {
        CameTo::Completed { output, ending } => Some(Ok((output, ending))),
        CameTo::Failed(failure) => Some(Err(failure)),
        CameTo::FailedAndPrinted { mut failure, stdout } => {
            failure.ending.stdout = Some(stdout);
            Some(Err(failure))
        }
    }
}

/// Returns the result of the step from before its hooks; a failed hook adds a warning.
pub(super) async fn join(joined: Joined) -> Performed<StepOutput> {
    match joined_outcome(joined).await {
        Ok(performed) => performed,
        Err(failure) => Performed::Failed { failure, report: StepReport::default() },
    }
}

async fn joined_outcome(joined: Joined) -> Result<Performed<StepOutput>, Failure> {
    let unread = |error: waypost::store::StoreError| failure(FailureKind::Error, error);
    let mut outcomes = joined.outcomes().await.map_err(unread)?;
    let (mut report, mut came) = (StepReport::default(), None);
    while let Some(end) = outcomes.next().await.map_err(unread)? {
        if end.end == End::Failed {
            let why = end.failure().map(|failure| failure.error.join(": ")).unwrap_or_default();
            report.notes.push(Note::Warning(format!("its `{}` failed: {why}", end.item.key)));
        }
        came = came.or_else(|| came_to(&end.item.value));
    }
    match came {
        Some(Ok((output, ending))) => Ok(Performed::Completed { output, ending, report }),
        Some(Err(failure)) => Ok(Performed::Failed { failure, report }),
        None => {
            let text = "cannot read the outcome of the step before its hooks".to_owned();
            Err(Failure::new(FailureKind::Error, vec![text]))
        }
    }
}
