//! Hooks: steps that are done after another, on branches of their own, before what became of that counts.
//!
//! ```text
//!   step ends for good --> opens its hooks, with what it came to --> they end --> step starts, as the join,
//!                                                                                 and comes to just that
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waypost::StepId;
use waypost::engine::{Item, Joined, Performed, Told};
use waypost::record::{End, Ending, Failure, FailureKind, Note};

use crate::file::{HookOn, Step};

use super::failure;
use super::state::{StepOutput, StepState, WorkflowState};

/// How the key of the hook of a file ends.
const OF_FILE: &str = ".on_failure";

/// Steps that are done after another.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Names their branch.
    key: String,
    on: HookOn,
    start: StepId,
}

/// What a step came to, kept for when its hooks have ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CameTo {
    Completed {
        output: StepOutput,
        ending: Ending,
    },
    Failed(Failure),
    /// The same of one whose standard output an expression reads, which a failure does not keep itself.
    FailedAndPrinted {
        failure: Failure,
        stdout: String,
    },
}

/// Names the hook of a file: that of the run, or of one that is run by a step of another.
pub(super) fn key_of_file(is_run: bool) -> String {
    format!("{}{OF_FILE}", if is_run { "run" } else { "workflow" })
}

/// Plans a hook whose first step is known.
pub(super) fn plan(key: String, on: HookOn, start: StepId) -> Plan {
    Plan { key, on, start }
}

/// Returns what is to be opened after a failure for good.
pub(super) fn after_failure(plans: &[Plan], failure: &Failure, tolerated: bool) -> Vec<Item> {
    let code = failure.ending.exit_code.and_then(|code| u8::try_from(code).ok());
    let meant = |plan: &&Plan| match plan.on {
        HookOn::Failure => !(tolerated && plan.key.ends_with(OF_FILE)),
        HookOn::ExitCode(wanted) => code == Some(wanted),
        HookOn::Success => false,
    };
    let came_to = match failure.ending.stdout.clone() {
        Some(stdout) => CameTo::FailedAndPrinted { failure: failure.clone(), stdout },
        None => CameTo::Failed(failure.clone()),
    };
    items(plans.iter().filter(meant), &came_to)
}

/// Has the hooks of a success opened, if there are some; a failure is the engine's to judge.
pub(super) fn after(plans: &[Plan], performed: Performed<StepOutput>) -> Performed<StepOutput> {
    let Performed::Completed { output, ending, told } = performed else { return performed };
    let code = ending.exit_code.and_then(|code| u8::try_from(code).ok());
    let meant = |plan: &&Plan| match plan.on {
        HookOn::Success => true,
        HookOn::ExitCode(wanted) => code == Some(wanted),
        HookOn::Failure => false,
    };
    if !plans.iter().any(|plan| meant(&plan)) {
        return Performed::Completed { output, ending, told };
    }
    let came_to = CameTo::Completed { output, ending };
    Performed::Opened { items: items(plans.iter().filter(meant), &came_to), told }
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

/// Returns the state with which the branch of a hook of `step` begins: with what that came to.
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
            state.settle(&step.id, StepState::failed(ending, step.keeps_stdout), folder);
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

/// Comes to what the step came to before its hooks.
pub(super) async fn join(joined: Joined) -> Performed<StepOutput> {
    match joined_outcome(joined).await {
        Ok(performed) => performed,
        Err(failure) => Performed::Failed { failure, told: Told::default() },
    }
}

async fn joined_outcome(joined: Joined) -> Result<Performed<StepOutput>, Failure> {
    let unread = |error: waypost::store::StoreError| failure(FailureKind::Error, error);
    let mut outcomes = joined.outcomes().await.map_err(unread)?;
    let (mut told, mut came) = (Told::default(), None);
    while let Some(end) = outcomes.next().await.map_err(unread)? {
        if end.end == End::Failed {
            let why = end.failure().map(|failure| failure.error.join(": ")).unwrap_or_default();
            told.notes.push(Note::Warning(format!("its `{}` failed: {why}", end.item.key)));
        }
        came = came.or_else(|| came_to(&end.item.value));
    }
    match came {
        Some(Ok((output, ending))) => Ok(Performed::Completed { output, ending, told }),
        Some(Err(failure)) => Ok(Performed::Failed { failure, told }),
        None => {
            let text = "what the step came to before its hooks cannot be read".to_owned();
            Err(Failure::new(FailureKind::Error, vec![text]))
        }
    }
}
