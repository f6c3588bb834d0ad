//! Documents about open waits of runs.

use crate::view::step_names::called;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use waypost::record::{FrontierEntry, Wait, WaitKind};
use waypost::store::{Signal, SignalKind};
use waypost::{ScopePath, StepId};
use waypost_workflow::file::{AnswerKind, ChildWorkflow, Step, Work, Workflow};

/// An open wait.
#[derive(Debug, Serialize)]
pub(crate) struct WaitView {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) scope: String,
    pub(crate) step: String,
    /// The path of the step; for screens.
    #[serde(skip)]
    pub(crate) called: String,
    pub(crate) question: Option<Value>,
    /// The allowed answers, if the choice is limited.
    pub(crate) choices: Option<Vec<String>>,
    /// The time of the record in which the wait began, if the reader has this record.
    pub(crate) since: Option<Timestamp>,
    /// The end of a sleep, or the deadline of an answer or a signal.
    pub(crate) until: Option<Timestamp>,
    /// The kind of the wait; for screens.
    #[serde(skip)]
    pub(crate) on: WaitKind,
    /// The type of the answer, if the workflow defines it; for screens.
    #[serde(skip)]
    pub(crate) wanted: Option<AnswerKind>,
}

/// The answer of `answer`.
#[derive(Debug, Serialize)]
pub(crate) struct AnsweredView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) id: String,
    pub(crate) scope: String,
    pub(crate) step: String,
    pub(crate) value: Value,
}

/// The answer of `signal`.
#[derive(Debug, Serialize)]
pub(crate) struct SignalledView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) name: String,
    pub(crate) value: Value,
}

impl WaitView {
    /// Converts the waits of a frontier entry.
    pub(crate) fn of_entry<'a>(
        scope: &'a ScopePath,
        entry: &'a FrontierEntry,
        workflow: Option<&'a Workflow>,
    ) -> impl Iterator<Item = Self> + 'a {
        // Child scopes report their own waits.
        let outside = entry.waits.iter().filter(|wait| wait.on != WaitKind::Children);
        outside.map(move |wait| Self::of(scope, &entry.step, wait, workflow))
    }

    /// Converts a wait of a step, with the workflow's requirements for the answer.
    pub(crate) fn of(scope: &ScopePath, step: &StepId, wait: &Wait, workflow: Option<&Workflow>) -> Self {
        let asks = |step: &Step| match &step.work {
            Work::Approve(approval) => Some(approval.answer.clone()),
            _ => None,
        };
        let wanted = workflow.and_then(|workflow| step_of(workflow, scope, step.as_str())).and_then(asks);
        Self {
            id: wait.id.clone(),
            key: wait.key.clone(),
            scope: scope.to_string(),
            step: step.to_string(),
            called: called(workflow, scope, step.as_str()),
            question: wait.question.clone(),
            choices: match &wanted {
                Some(AnswerKind::Choice(choices)) => Some(choices.clone()),
                _ => None,
            },
            since: None,
            until: wait.due(),
            on: wait.on.clone(),
            wanted,
        }
    }
}

/// Returns a step of a scope, possibly from an included file.
pub(crate) fn step_of<'w>(workflow: &'w Workflow, scope: &ScopePath, id: &str) -> Option<&'w Step> {
    file_of(workflow, scope).step(id)
}

/// Returns the workflow with the steps of a scope: an included file, or the workflow itself.
pub(crate) fn file_of<'w>(workflow: &'w Workflow, scope: &ScopePath) -> &'w Workflow {
    let mut around: Vec<ScopePath> = std::iter::successors(Some(scope.clone()), ScopePath::parent).collect();
    around.reverse();
    let openers = around.iter().filter_map(ScopePath::opened_by);
    openers.fold(workflow, |within, (opener, _)| {
        let opener = within.step(opener.as_str());
        opener.and_then(|opener| opener.work.child()).map_or(within, ChildWorkflow::workflow)
    })
}

/// Returns whether a signal fulfils the wait with this id.
pub(crate) fn gives(signal: &Signal, id: &str, on: &WaitKind) -> bool {
    match (&signal.kind, on) {
        (SignalKind::Answer { wait, .. }, WaitKind::Answer) => wait == id,
        (SignalKind::Named { name, .. }, WaitKind::Signal(wanted)) => name == wanted,
        _ => false,
    }
}
