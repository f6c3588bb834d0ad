//! The executions of a step, from the records of its scope: runs, reuses and skips, with causes.

use std::collections::BTreeSet;

use serde::Deserialize as _;
use serde_json::Value;
use waypost::StepId;
use waypost::events::RerunCause;
use waypost::record::{Header, Note, Phase, Reason, Record, SkipCause, Start, Try, WaitKind};

use waypost_workflow::program::WORKER_LOST;

use crate::view::{CauseView, ExecutionView};

/// Facts about the step so far.
#[derive(Debug, Default)]
struct Seen {
    /// The passes with an execution.
    passes: BTreeSet<Vec<u32>>,
    /// A start has no end yet.
    is_open: bool,
    has_failed: bool,
    /// The step waits, or waited until its next start: an answer, a signal or a time continues the execution.
    has_waited: bool,
    /// The requester of the stop of the last attempt.
    stopped_by: Option<String>,
    /// The cause of all later starts without a cause of their own: the scope continued from an older record.
    went_back: Option<CauseView>,
    /// The cause of the next start, from an event, and the person who requested it.
    cause: Option<CauseView>,
    by: Option<String>,
}

/// Lists the executions of a step, oldest first. `records`: all records of the scope, oldest first.
pub(super) fn of(step: &StepId, records: &[Record]) -> Vec<ExecutionView> {
    let mut seen = Seen::default();
    let mut found: Vec<ExecutionView> = Vec::new();
    for header in records.iter().map(Record::header) {
        let reference = header.reference().to_string();
        let view = |action, cause| {
            let (reference, at) = (reference.clone(), header.created_at);
            ExecutionView { reference, action, cause, by: None, at }
        };
        for (name, data) in events(header) {
            match name {
                "step_invalidated" if data["step"] == step.as_str() => {
                    let cause = RerunCause::deserialize(&data["cause"]);
                    let unknown = |_| CauseView::named("upstream_changed", None);
                    seen.cause = Some(cause.map_or_else(unknown, |cause| CauseView::from(&cause)));
                    seen.by = data["cause"]["by"].as_str().map(ToOwned::to_owned);
                }
                "evidence_failed" if data["step"] == step.as_str() => {
                    seen.cause = Some(CauseView::of_evidence(claims(data), header.evidence.as_ref()));
                }
                "step_reused" if reuses(data, step) => {
                    let text = "the input is unchanged and the evidence holds".to_owned();
                    let cause = CauseView { text, ..CauseView::named("reused", None) };
                    found.push(view("reuse", cause));
                    seen.cause = None;
                }
                // The start repeats that of the lost session.
                "adopted" if header.step.as_ref() == Some(step) && data["losses"] == 0 => {
                    if let Some(last) = found.last_mut().filter(|last| last.cause.code == "cut") {
                        let text =
                            "the step continued on its worker after the loss of its session".to_owned();
                        last.action = "reuse";
                        last.cause = CauseView { text, ..CauseView::named("adopted", None) };
                    }
                }
                WORKER_LOST if header.step.as_ref() == Some(step) => {
                    let again = || {
                        let text = "the worker of the step was lost".to_owned();
                        view("rerun", CauseView { text, ..CauseView::named("cut", None) })
                    };
                    found.extend((0..further_executions(header)).map(|_| again()));
                }
                "step_settled" if data["step"] == step.as_str() => {
                    let by = data["cause"]["by"].as_str().map(ToOwned::to_owned);
                    let cause = CauseView { text: settled(data), ..CauseView::named("settled", None) };
                    let action = if data["how"] == "skipped" { "skip" } else { "reuse" };
                    found.push(ExecutionView { by, ..view(action, cause) });
                }
                _ => {}
            }
        }
        match header.reason {
            Reason::Rollback => {
                (seen.is_open, seen.has_failed) = (false, false);
                seen.went_back = Some(CauseView::of_rollback());
            }
            // A restart is based on no record.
            Reason::Redo if header.basis == Some(0) => {
                (seen.is_open, seen.has_failed) = (false, false);
                let text = "the run was restarted".to_owned();
                seen.went_back = Some(CauseView { text, ..CauseView::named("requested", None) });
            }
            Reason::Repair => {
                let text = "newer records were lost".to_owned();
                seen.went_back = Some(CauseView { text, ..CauseView::named("lost_record", None) });
            }
            _ => {}
        }
        let is_own = header.step.as_ref() == Some(step);
        match &header.phase {
            Phase::Skipped(SkipCause::ByHand(_)) => {}
            Phase::Skipped(cause) if is_own => found.push(view("skip", CauseView::from(cause))),
            Phase::Completed(_) if is_own => {
                // A result that a fork has copied has no start.
                seen.passes.insert(header.at.iteration.clone());
                (seen.is_open, seen.has_failed) = (false, false);
            }
            Phase::Failed(_) if is_own => (seen.is_open, seen.has_failed) = (false, true),
            Phase::Waiting(waits) if is_own => {
                seen.has_waited = waits.iter().any(|wait| wait.on != WaitKind::Children);
            }
            Phase::Interrupted { by, .. } if is_own && header.reason == Reason::Stopped => {
                seen.stopped_by = Some(by.clone());
            }
            Phase::Restored if is_own && header.reason == Reason::Redo && seen.cause.is_none() => {
                seen.cause = Some(CauseView::named("requested", None));
            }
            _ => {}
        }
        if let Some(at) = execution(header, step, &seen) {
            let by = seen.by.take();
            let (has_waited, stopped_by) = (std::mem::take(&mut seen.has_waited), seen.stopped_by.take());
            if has_waited && seen.is_open && seen.cause.is_none() {
                continue;
            }
            let (action, cause) = seen.start(at, stopped_by);
            found.push(ExecutionView { by, ..view(action, cause) });
        }
    }
    found
}

/// Returns the decisions of a person to keep the results of an opener, for the steps within.
pub(super) fn settled_with(opener: &StepId, records: &[Record]) -> impl Iterator<Item = ExecutionView> {
    let is_kept = |execution: &ExecutionView| execution.action == "reuse" && execution.by.is_some();
    of(opener, records).into_iter().filter(is_kept).map(move |mut execution| {
        execution.cause.text = format!("{}, with `{opener}`", execution.cause.text);
        execution
    })
}

/// Returns the begin of an execution in a record: a start, or the opening of a group. A join executes nothing, unless it
/// reopens a failed step, whose failed items are retried.
fn execution<'h>(header: &'h Header, step: &StepId, seen: &Seen) -> Option<&'h Try> {
    let is_own = header.step.as_ref() == Some(step);
    let opens = is_own && header.reason == Reason::Fork && matches!(header.phase, Phase::Waiting(_));
    // The record of the end of another step may start the join, too.
    let executes = |start: &&Start| start.step == *step && (!start.joins || seen.has_failed);
    let start = header.started.iter().find(executes).map(|start| &start.at);
    start.or_else(|| (opens && !seen.is_open).then_some(&header.at))
}

impl Seen {
    /// Processes a start; returns the action and the cause. `stopped_by`: the requester of the stop before.
    fn start(&mut self, at: &Try, stopped_by: Option<String>) -> (&'static str, CauseView) {
        let told = self.cause.take();
        let (is_later, is_new) = (!self.passes.is_empty(), self.passes.insert(at.iteration.clone()));
        let pass = at.iteration.last().filter(|_| is_later);
        let decided = match (told, pass) {
            (Some(cause), _) => ("rerun", cause),
            (None, _) if self.is_open => {
                let cut = CauseView::named("cut", None);
                let stopped = |by| format!("the previous attempt was stopped before its end ({by})");
                ("rerun", CauseView { text: stopped_by.map_or_else(|| cut.text.clone(), stopped), ..cut })
            }
            (None, _) if self.has_failed => ("retry", CauseView::named("retry", None)),
            (None, Some(pass)) if is_new => {
                let text = format!("first execution in iteration {pass}");
                ("run", CauseView { text, ..CauseView::named("first", None) })
            }
            (None, _) if is_later => ("rerun", self.went_back.clone().unwrap_or_else(ran_again)),
            (None, _) => ("run", CauseView::named("first", None)),
        };
        (self.is_open, self.has_failed) = (true, false);
        decided
    }
}

/// The cause of a rerun without a recorded one: the hooks of a run run again at each end of the run.
fn ran_again() -> CauseView {
    CauseView { text: "an upstream step ran again".to_owned(), ..CauseView::named("upstream_changed", None) }
}

/// Returns how a person settled a step, and the person.
pub(super) fn settled(data: &Value) -> String {
    let by = data["cause"]["by"].as_str().unwrap_or("a person");
    format!("{} by {by}", data["how"].as_str().unwrap_or_default())
}

/// Returns the number of executions of the ended attempt beyond the first: those after the loss of a worker.
pub(super) fn further_executions(header: &Header) -> u32 {
    let losses =
        events(header).find(|(name, _)| *name == WORKER_LOST).and_then(|(_, data)| data["losses"].as_u64());
    losses.and_then(|losses| u32::try_from(losses).ok()).unwrap_or_default()
}

pub(super) fn events(header: &Header) -> impl Iterator<Item = (&str, &Value)> {
    header.notes.iter().filter_map(|note| match note {
        Note::Event { name, data } => Some((name.as_str(), data)),
        _ => None,
    })
}

fn reuses(data: &Value, step: &StepId) -> bool {
    let steps = data["steps"].as_array();
    steps.is_some_and(|steps| steps.iter().any(|reused| reused["step"] == step.as_str()))
}

fn claims(data: &Value) -> Vec<String> {
    let claims = data["claims"].as_array().into_iter().flatten();
    claims.filter_map(|claim| claim.as_str().map(ToOwned::to_owned)).collect()
}
