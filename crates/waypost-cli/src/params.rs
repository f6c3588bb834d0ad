//! Params of a run under way: what they are now, and what a resume makes them.
//!
//! The params with which a run was made are frozen with it. `resume --set` gives other ones to the steps that are still to
//! come; from then on they stand in the state of every checkpoint, which is where they are read.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use waypost::engine::Snapshot;
use waypost::plan::{Action, Plan};
use waypost::record::Record;
use waypost_workflow::file::{Body, GivenParams, Step, Workflow};

use crate::error::Error;

/// Returns the params in the state of a checkpoint; none if it has no state, or of another kind.
pub(crate) fn of_record(record: &Record) -> Option<Map<String, Value>> {
    let state: Value = serde_json::from_slice(record.state_bytes()?).ok()?;
    Some(state.get("params")?.as_object()?.clone())
}

/// Returns the params that the next step of a run reads.
pub(crate) fn current(snapshot: &Snapshot) -> Map<String, Value> {
    of_record(snapshot.newest()).unwrap_or_else(|| snapshot.entry.record.record().params.clone())
}

/// What `resume --set` says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    /// Names and values as they were given.
    pub(crate) set: &'a [(String, String)],
    /// The step that the run goes back to before.
    pub(crate) from: Option<&'a str>,
}

impl Setting<'_> {
    /// Returns what the params become, `now` being what they are; nothing if they stay as they are.
    pub(crate) fn over(
        &self,
        workflow: &Workflow,
        mut now: Map<String, Value>,
    ) -> Result<Option<Map<String, Value>>, Error> {
        if self.set.is_empty() {
            return Ok(None);
        }
        // Of another version of the file it may have some that are not there any more; null is what nobody gave.
        now.retain(|name, value| {
            !value.is_null() && workflow.params().iter().any(|param| param.name == *name)
        });
        let given = GivenParams { file: now.clone(), text: self.set.to_vec() };
        let params = workflow.resolve_params(&given).map_err(Error::Params)?;
        let differs = params.iter().any(|(name, value)| now.get(name).unwrap_or(&Value::Null) != value);
        Ok(differs.then_some(params))
    }

    /// As [`Setting::over`], for a run that goes on.
    ///
    /// # Errors
    /// A param does not fit, or a step has read it that would not be done again.
    pub(crate) fn apply(
        &self,
        workflow: &Workflow,
        snapshot: &Snapshot,
        plan: &Plan,
    ) -> Result<Option<Map<String, Value>>, Error> {
        let now = current(snapshot);
        let Some(params) = self.over(workflow, now.clone())? else { return Ok(None) };
        let run = &snapshot.entry.summary.run;
        let again = self.from.map(|from| behind(workflow, from)).unwrap_or_default();
        let has_begun = begun(workflow, snapshot, plan);
        for (name, value) in &params {
            if now.get(name).unwrap_or(&Value::Null) == value {
                continue;
            }
            let reads = |step: &&Step| reads(step, name);
            let steps = workflow.steps().iter().filter(reads);
            let mut read =
                steps.filter(|step| has_begun.contains(step.id.as_str()) && !again.contains(&step.id));
            if let Some(first) = read.next() {
                return Err(Error::usage(
                    format!("param `{name}` was read by step {}, which is not done again", first.id),
                    format!(
                        "`waypost resume {run} --from {} --set …` does it and what comes after it again; `--restart --set …` starts over",
                        first.id
                    ),
                ));
            }
        }
        if snapshot.ended.is_some() && again.is_empty() {
            return Err(Error::usage(
                format!("run {run} has ended, so that no step would read another param"),
                format!(
                    "`waypost resume {run} --from STEP --set …` does a step and what comes after it again"
                ),
            ));
        }
        Ok(Some(params))
    }
}

/// Tells of params that a run which begins at a checkpoint has otherwise than steps have read them that are done there.
pub(crate) fn read_before(
    workflow: &Workflow,
    at: &Record,
    (before, now): (&Map<String, Value>, &Map<String, Value>),
) -> Vec<String> {
    let position = at.position().unwrap_or_default().with_failures_open();
    let mut to_come: BTreeSet<String> = BTreeSet::new();
    for entry in &position.frontier {
        let is_begun = |id: &String| *id == entry.step.as_str() && entry.fan.is_some();
        to_come.extend(behind(workflow, entry.step.as_str()).into_iter().filter(|id| !is_begun(id)));
    }
    let was = |name: &String| before.get(name).unwrap_or(&Value::Null);
    let told = |(name, value): (&String, &Value)| {
        let is_done = |step: &&Step| !to_come.contains(&step.id);
        let first = workflow.steps().iter().filter(is_done).find(|step| reads(step, name))?;
        Some(format!(
            "step {} has read param `{name}` as {}, not {value}, and is not done again",
            first.id,
            was(name)
        ))
    };
    now.iter().filter(|(name, value)| was(name) != *value).filter_map(told).collect()
}

/// Says whether a step, or one within it, reads a param.
fn reads(step: &Step, param: &str) -> bool {
    let within = step.work.body().is_some_and(|body| body.steps().iter().any(|step| reads(step, param)));
    let hooks = step.hooks.iter().flat_map(|hook| hook.body.steps()).any(|step| reads(step, param));
    within || hooks || step.reads_param(param)
}

/// Returns the steps of the workflow's own list that are done again with `from`: it, and all that comes after it.
fn behind(workflow: &Workflow, from: &str) -> BTreeSet<String> {
    let home = |step: &&Step| step.id == from || step.work.body().is_some_and(|body| has(body, from));
    let mut again: BTreeSet<String> =
        workflow.steps().iter().find(home).map(|step| step.id.clone()).into_iter().collect();
    // Needs may stand behind in the file.
    loop {
        let count = again.len();
        for step in workflow.steps() {
            if workflow.upstream(step).any(|need| again.contains(&need.id)) {
                again.insert(step.id.clone());
            }
        }
        if again.len() == count {
            return again;
        }
    }
}

fn has(body: &Body, id: &str) -> bool {
    body.steps().iter().any(|step| step.id == id || step.work.body().is_some_and(|body| has(body, id)))
}

/// Returns the steps of the workflow's own list that are finished, or of whose branches some have begun.
fn begun<'w>(workflow: &'w Workflow, snapshot: &Snapshot, plan: &Plan) -> BTreeSet<&'w str> {
    let position = snapshot.newest().position().unwrap_or_default().with_failures_open();
    let opened =
        |id: &str| position.frontier.iter().any(|entry| entry.step.as_str() == id && entry.fan.is_some());
    let finished = |id: &str| {
        plan.decisions.iter().any(|decision| {
            let is_kept = matches!(decision.action, Action::Reuse | Action::Recheck | Action::Skip);
            is_kept && decision.branch.is_main() && decision.step.as_str() == id
        })
    };
    let ids = workflow.steps().iter().map(|step| step.id.as_str());
    ids.filter(|id| opened(id) || finished(id)).collect()
}
