//! Questions about steps with `idempotent: false`, with causes from the records of the scope.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;
use waypost::engine::{Snapshot, idempotency_key};
use waypost::events::RerunCause;
use waypost::plan::{Action, Cause, Decision};
use waypost::record::{FrontierEntry, Header, Note, Reason, Record, SettledAs, Status};
use waypost::shape::Shape;
use waypost::store::{Store, StoreExt as _, TaskState};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::Workflow;

use crate::error::Error;
use crate::run::definition::Chosen;
use crate::view::doubt::Doubt;
use crate::view::step_names::called;
use crate::view::{file_of, step_of};

/// Returns the steps in doubt of these questions.
pub(crate) async fn doubts(
    store: &dyn Store,
    run: &RunId,
    workflow: &Workflow,
    questions: impl IntoIterator<Item = &Decision>,
) -> Result<Vec<Doubt>, Error> {
    let mut doubts = Vec::new();
    for question in questions {
        let (scope, step) = (&question.scope, question.step.as_str());
        let keeps = matches!(question.cause, Cause::Undone)
            && has_result(&store.newest(run, scope).await?, &question.step);
        let outputs = if keeps { Vec::new() } else { outputs_of(workflow, scope, step) };
        let cause = cause_of(store, run, question).await?;
        doubts.push(Doubt { step: called(Some(workflow), scope, step), cause, outputs });
    }
    Ok(doubts)
}

/// Returns whether the state of a scope has the result of an earlier execution of a step: a rollback, a fork and a
/// restart return to a state before the result.
pub(crate) fn has_result(newest: &Record, step: &StepId) -> bool {
    let state = newest.state_bytes().and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    state.is_some_and(|state| state["steps"].get(step.as_str()).is_some())
}

/// Returns the steps in doubt of a run, by its records.
pub(crate) async fn doubts_of(
    store: &dyn Store,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Result<Vec<Doubt>, Error> {
    let chosen = Chosen::in_force(store, snapshot)?;
    let plan = chosen.plan(store, snapshot, None, now).await?;
    let mut asked: Vec<Decision> = Vec::new();
    for question in plan.questions() {
        let question = asked_around(snapshot, &chosen.shape, question).unwrap_or_else(|| question.clone());
        if !asked.iter().any(|known| (&known.scope, &known.step) == (&question.scope, &question.step)) {
            asked.push(question);
        }
    }
    if asked.is_empty() {
        // The questions come at the turn of their steps, after a failed step.
        asked.extend(plan.decisions.iter().filter(|decision| decision.action == Action::Ask).cloned());
    }
    doubts(store, &snapshot.entry.summary.run, &chosen.workflow, &asked).await
}

/// Returns the started steps of a run whose tasks on workers have such a state.
pub(crate) async fn started_tasks(
    store: &dyn Store,
    snapshot: &Snapshot,
    is_meant: impl Fn(&TaskState) -> bool,
) -> Result<BTreeSet<(ScopePath, StepId)>, Error> {
    let Some(queue) = store.queue() else { return Ok(BTreeSet::new()) };
    let run = &snapshot.entry.summary.run;
    let tasks = queue.tasks().task_states(run).await?.into_iter();
    let known: BTreeSet<String> = tasks.filter(|task| is_meant(&task.state)).map(|task| task.key).collect();
    let mut started = BTreeSet::new();
    for head in snapshot.heads.iter().filter(|_| !known.is_empty()) {
        let scope = &head.record.header().scope;
        // The resume reports a damaged position.
        let frontier = head.record.position().map(|position| position.frontier).unwrap_or_default();
        let is_known = |entry: &FrontierEntry| {
            entry.status == Status::Started
                && known.contains(&idempotency_key(run, (scope, &entry.step), &entry.at))
        };
        started.extend(frontier.into_iter().filter(is_known).map(|entry| (scope.clone(), entry.step)));
    }
    Ok(started)
}

/// Returns the question about the outermost opener of a step in doubt that is downstream of a failed step: a resume retries
/// the failed step first, and asks about the opener at its turn.
fn asked_around(snapshot: &Snapshot, shape: &Shape, question: &Decision) -> Option<Decision> {
    let around = std::iter::successors(Some(question.scope.clone()), ScopePath::parent);
    let after_failure = around.filter_map(|scope| {
        let (above, (opener, _)) = (scope.parent()?, scope.opened_by()?);
        let own = shape.of_scope(&above)?;
        let place = own.place(opener.as_str()).filter(|place| !own.steps()[*place].is_for_hooks)?;
        let head = snapshot.heads.iter().find(|head| head.record.header().scope == above)?;
        let position = head.record.position().ok()?;
        let failed =
            |step: &StepId| position.ledger.get(step).is_some_and(|settled| settled.how == SettledAs::Failed);
        let upstream = own.with_needs(place);
        let is_after_failure =
            (0..upstream.len()).any(|at| at != place && upstream[at] && failed(&own.steps()[at].id));
        let cause = Cause::AskedInTurn;
        is_after_failure.then_some(Decision { scope: above, step: opener, action: Action::Ask, cause })
    });
    after_failure.last()
}

/// Returns the outputs of a step: the declared, and the read by other steps.
fn outputs_of(workflow: &Workflow, scope: &ScopePath, step: &str) -> Vec<String> {
    let declared = step_of(workflow, scope, step).into_iter().flat_map(|step| &step.outputs);
    let mut outputs: Vec<String> = declared.map(|(name, _)| name.clone()).collect();
    let workflow = file_of(workflow, scope);
    loop {
        let is_known = |name: &str| outputs.iter().any(|known| known == name);
        let Some(read) = workflow.readers_of_missing(step, is_known).find_map(|(_, name)| name) else {
            return outputs;
        };
        outputs.push(read);
    }
}

/// Returns the cause of a decision as text. If a step that must not be repeated ran before, the text names the change
/// since then, as far as the records have it.
pub(crate) async fn cause_of(store: &dyn Store, run: &RunId, decision: &Decision) -> Result<String, Error> {
    let (ran, turn) = match decision.cause {
        Cause::Undone => ("completed", ""),
        Cause::Begun => ("started", ""),
        Cause::AskedInTurn => ("ran", ": the question comes at its turn"),
        _ => return Ok(decision.cause.to_string()),
    };
    let newest = store.newest(run, &decision.scope).await?;
    // Newest first.
    let history = store.history(run, &decision.scope, newest.header().seq).await?;
    let found = history.iter().map(Record::header).find_map(|header| change(header, &decision.step));
    let change = match found {
        None if store.run(run).await?.record.record().parent.is_some() => {
            Some("the run was forked".to_owned())
        }
        found => found,
    };
    Ok(match change {
        Some(change) => format!("not idempotent, and {change} after it {ran}{turn}"),
        None => decision.cause.to_string(),
    })
}

/// Returns the change by a record after which the step must not rerun without a question.
fn change(header: &Header, step: &StepId) -> Option<String> {
    let invalidated = |note: &Note| match note {
        Note::Event { name, data } if name == "step_invalidated" && data["step"] == step.as_str() => {
            RerunCause::deserialize(&data["cause"]).ok()
        }
        _ => None,
    };
    if let Some(cause) = header.notes.iter().find_map(invalidated) {
        return Some(match cause {
            RerunCause::UpstreamChanged { step: Some(upstream) } => format!("upstream `{upstream}` changed"),
            RerunCause::UpstreamChanged { step: None } => "the input of its scope changed".to_owned(),
            RerunCause::EvidenceFailed { .. } => "its evidence failed".to_owned(),
            RerunCause::DefinitionChanged => "its definition changed".to_owned(),
            RerunCause::Requested { by_rollback: true, .. } => "the run was rolled back".to_owned(),
            RerunCause::Requested { .. } => "a person requested its rerun".to_owned(),
        });
    }
    let text = match header.reason {
        Reason::Rollback => "the run was rolled back",
        Reason::Repair => "newer records were lost",
        // A restart is based on no record.
        Reason::Redo if header.basis == Some(0) => "the run was restarted",
        _ => return None,
    };
    Some(text.to_owned())
}
