//! Hooks: steps that are done after another, on branches of their own, before what became of that counts.
//!
//! ```text
//!   step ends for good --> opens its hooks, with what it came to --> they end --> step starts, as the join,
//!                                                                                 and comes to just that
//! ```

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waypost::StepId;
use waypost::engine::{Item, Joined, Performed, Told};
use waypost::record::{End, Ending, Failure, FailureKind, Note};

use crate::file::HookOn;

use super::failure;
use super::state::StepOutput;

/// How the key of the hook of the run begins.
const OF_RUN: &str = "run";
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

/// Names the hook of a file: that of the run is 0, one that it runs is 1, one which that runs is 2.
pub(super) fn key_of_file(depth: usize) -> String {
    match depth {
        0 => format!("{OF_RUN}{OF_FILE}"),
        1 => format!("workflow{OF_FILE}"),
        _ => format!("workflow-{depth}{OF_FILE}"),
    }
}

/// Returns what stands before the ids of the steps of a hook: those of another file may have the same as those of the
/// run.
pub(super) fn prefix(key: &str) -> Option<&str> {
    key.strip_suffix(OF_FILE).filter(|file| *file != OF_RUN)
}

/// Returns which file a hook is of, as for [`key_of_file`]; `None` for that of a step.
pub(super) fn file_of(key: &str) -> Option<usize> {
    match key.strip_suffix(OF_FILE)?.split_once('-') {
        Some((_, depth)) => depth.parse().ok(),
        None => Some(usize::from(prefix(key).is_some())),
    }
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

/// Returns what a step came to, for the state of the branch of one of its hooks.
pub(super) fn came_to(value: &Value) -> Option<Result<(StepOutput, Ending), Failure>> {
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
