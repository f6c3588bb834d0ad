//! Params of a run in progress: present values, and values set by a resume.
//!
//! The run record has the initial params. `resume --set` changes them for the remaining steps; the state of
//! every later checkpoint has the new values, and they are read there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use waypost::BranchPath;
use waypost::engine::Snapshot;
use waypost::plan::{Action, Plan};
use waypost::record::{End, FrontierEntry, Position, Record, SettledAs};
use waypost::shape::{Shape, Unfinished};
use waypost::store::{Store, StoreError, StoreExt as _};
use waypost_workflow::file::{Body, GivenParams, Step, Workflow};

use crate::error::Error;
use crate::run::reference::step_on;

/// Returns the params in the state of a checkpoint; `None` without a state, or with another kind of state.
pub(crate) fn of_record(record: &Record) -> Option<Map<String, Value>> {
    let state: Value = serde_json::from_slice(record.state_bytes()?).ok()?;
    Some(state.get("params")?.as_object()?.clone())
}

/// Returns the params for the next step of a run.
pub(crate) fn current(snapshot: &Snapshot) -> Map<String, Value> {
    of_record(snapshot.newest()).unwrap_or_else(|| snapshot.entry.record.record().params.clone())
}

/// The arguments of `resume --set`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    /// Names and values as given.
    pub(crate) set: &'a [(String, String)],
    /// The step of `--from`.
    pub(crate) from: Option<&'a str>,
}

impl Setting<'_> {
    /// Returns the params after the change, given the present ones; `None` without a change.
    pub(crate) fn over(
        &self,
        workflow: &Workflow,
        mut now: Map<String, Value>,
    ) -> Result<Option<Map<String, Value>>, Error> {
        if self.set.is_empty() {
            return Ok(None);
        }
        // Drop params that the present file does not declare; null means not given.
        now.retain(|name, value| {
            !value.is_null() && workflow.params().iter().any(|param| param.name == *name)
        });
        let given = GivenParams { file: now.clone(), text: self.set.to_vec() };
        let params = workflow.resolve_params(&given).map_err(Error::Params)?;
        let differs = params.iter().any(|(name, value)| now.get(name).unwrap_or(&Value::Null) != value);
        Ok(differs.then_some(params))
    }

    /// As [`Setting::over`], for a resumed run.
    ///
    /// # Errors
    /// A param does not match its declaration, or was read by a finished step that would not rerun.
    pub(crate) fn apply(
        &self,
        work: &BegunWork<'_>,
        plan: &Plan,
    ) -> Result<Option<Map<String, Value>>, Error> {
        let BegunWork { workflow, snapshot, .. } = work;
        let now = current(snapshot);
        let Some(params) = self.over(workflow, now.clone())? else { return Ok(None) };
        let run = &snapshot.entry.summary.run;
        let again = self.from.map(|from| behind(workflow, from)).unwrap_or_default();
        let position = snapshot.newest().position().unwrap_or_default();
        let mut finished = finished(workflow, plan);
        let retried = workflow.steps().iter().filter(|step| work.is_retried(&position, step));
        retried.for_each(|step| {
            finished.remove(step.id.as_str());
        });
        for (name, value) in &params {
            if now.get(name).unwrap_or(&Value::Null) == value {
                continue;
            }
            let reader = |step: &Step| match finished.contains(step.id.as_str()) {
                true => step.uses_param(name).then(|| step.id.clone()),
                false => work.reader_within(&BranchPath::main(), step, name),
            };
            let kept = workflow.steps().iter().filter(|step| !again.contains(&step.id));
            let mut readers = kept.filter_map(|step| Some((step, reader(step)?)));
            if let Some((first, reader)) = readers.next() {
                return Err(Error::usage(
                    format!("cannot change param `{name}`: step {reader} has read it, and does not rerun"),
                    format!(
                        "`waypost resume {run} --from {} --set …` reruns the step and all steps \
                         downstream; `--restart --set …` starts over",
                        first.id
                    ),
                ));
            }
        }
        if snapshot.ended.is_some() && again.is_empty() && !work.retries {
            return Err(Error::usage(
                format!("cannot change params of run {run}: it has ended, and no step would read them"),
                format!("`waypost resume {run} --from STEP --set …` reruns a step and all steps downstream"),
            ));
        }
        Ok(Some(params))
    }
}

/// A param with a new value, and a finished step that reads the param.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReadParam {
    pub(crate) step: String,
    pub(crate) param: String,
}

/// The start of a run at a checkpoint of another run.
pub(crate) struct Begin<'a> {
    pub(crate) workflow: &'a Workflow,
    pub(crate) at: &'a Record,
    /// The step to rerun, with all downstream steps.
    pub(crate) from: Option<&'a str>,
    /// The open branches in the other run, if the store has this run.
    pub(crate) work: Option<&'a BegunWork<'a>>,
}

impl Begin<'_> {
    /// Returns a param with a new value and a finished step that reads the param and is not rerun.
    pub(crate) fn read_param(
        &self,
        before: &Map<String, Value>,
        now: &Map<String, Value>,
    ) -> Option<ReadParam> {
        let position = self.at.position().unwrap_or_default().with_failures_open();
        let again = self.from.map(|from| behind(self.workflow, from)).unwrap_or_default();
        let mut to_come = again.clone();
        for entry in &position.frontier {
            to_come.extend(behind(self.workflow, entry.step.as_str()));
        }
        let is_begun = |step: &Step| {
            let mut entries = position.frontier.iter();
            !again.contains(&step.id)
                && entries.any(|entry| entry.step.as_str() == step.id && entry.has_children())
        };
        let changed = now.iter().filter(|(name, value)| before.get(*name).unwrap_or(&Value::Null) != *value);
        let mut read = changed.filter_map(|(param, _)| {
            let reads = |step: &&Step| match (is_begun(step), self.work) {
                (true, Some(work)) => work.reader_within(&BranchPath::main(), step, param).is_some(),
                (is_begun, _) => (is_begun || !to_come.contains(&step.id)) && step.uses_param(param),
            };
            let step = self.workflow.steps().iter().find(reads)?;
            Some(ReadParam { step: step.id.clone(), param: param.clone() })
        });
        read.next()
    }
}

/// The newest records of a run, for the steps that have read a param.
pub(crate) struct BegunWork<'a> {
    pub(crate) workflow: &'a Workflow,
    shape: &'a Shape,
    pub(crate) snapshot: &'a Snapshot,
    /// The newest record of each branch, unless damaged.
    newest: BTreeMap<BranchPath, Option<Record>>,
    /// True if tolerated failures are retried.
    retries: bool,
}

impl<'a> BegunWork<'a> {
    /// Reads the branches of a run.
    pub(crate) async fn of(
        store: &dyn Store,
        (workflow, shape): (&'a Workflow, &'a Shape),
        snapshot: &'a Snapshot,
    ) -> Result<Self, Error> {
        let run = &snapshot.entry.summary.run;
        let mut newest = BTreeMap::new();
        for branch in store.branches(run).await? {
            let record = match store.newest(run, &branch).await {
                Err(StoreError::Damaged { .. }) => None,
                record => Some(record?),
            };
            newest.insert(branch, record);
        }
        newest.insert(BranchPath::main(), Some(snapshot.newest().clone()));
        Ok(Self { workflow, shape, snapshot, newest, retries: false })
    }

    /// Sets whether tolerated failures are retried.
    pub(crate) fn retrying(self, retries: bool) -> Self {
        Self { retries, ..self }
    }

    /// Returns the graph and the position of a branch, with the steps that a retry opens.
    fn at(&self, branch: &BranchPath) -> Option<(&'a Shape, Position)> {
        let record = self.newest.get(branch)?.as_ref()?;
        let position = record.position().ok()?;
        let is_retried = matches!(record.header().end, None | Some(End::Failed));
        let position = if is_retried { position.with_failures_open() } else { position };
        Some((self.shape.of_branch(branch)?, position))
    }

    /// Returns whether a step ended with failures that are retried.
    fn is_retried(&self, position: &Position, step: &Step) -> bool {
        let mut ends = position.ledger.iter().filter(|(id, _)| id.as_str() == step.id);
        self.retries && ends.any(|(_, end)| end.how == SettledAs::Tolerated || end.failures > 0)
    }

    /// Returns the path of a step that has read a param and does not rerun: an unfinished or retried step with branches, or
    /// a finished step on a branch.
    fn reader_within(&self, branch: &BranchPath, step: &Step, param: &str) -> Option<String> {
        let (shape, position) = self.at(branch)?;
        let is_it = |entry: &FrontierEntry| entry.step.as_str() == step.id && entry.has_children();
        let is_retried = step.work.body().is_some() && self.is_retried(&position, step);
        if !is_retried && !position.frontier.iter().any(is_it) {
            return None;
        }
        if step.reads_param(param) {
            return Some(path_of(branch, step));
        }
        if step.work.child().is_some() {
            // An included file has params of its own.
            return None;
        }
        let place = shape.place(&step.id);
        let is_child = |child: &&BranchPath| {
            let name = child.opened_by().filter(|_| child.parent().as_ref() == Some(branch));
            name.and_then(|(name, _)| shape.children_named(&name)).map(|(place, _)| place) == place
        };
        self.newest.keys().filter(is_child).find_map(|child| self.reader_on(child, step, param))
    }

    /// Returns the path of a step on a branch of `opener` that has read a param and does not rerun.
    fn reader_on(&self, branch: &BranchPath, opener: &Step, param: &str) -> Option<String> {
        let steps = opener.work.body().into_iter().flat_map(Body::steps);
        let mut readers = steps.filter(|step| step.uses_param(param));
        let Some((shape, position)) = self.at(branch) else {
            return readers.next().map(|step| path_of(branch, step));
        };
        let unfinished = Unfinished::of(shape, &position);
        readers.find_map(|step| {
            let is_finished = shape.place(&step.id).is_some_and(|place| !unfinished.has(place));
            match is_finished && !self.is_retried(&position, step) {
                true => Some(path_of(branch, step)),
                false => self.reader_within(branch, step, param),
            }
        })
    }
}

fn path_of(branch: &BranchPath, step: &Step) -> String {
    step_on(branch, &step.id)
}

/// Returns the top-level steps that rerun with `from`: the given step, and all downstream steps.
fn behind(workflow: &Workflow, from: &str) -> BTreeSet<String> {
    let home = |step: &&Step| step.id == from || step.work.body().is_some_and(|body| has(body, from));
    let mut again: BTreeSet<String> =
        workflow.steps().iter().find(home).map(|step| step.id.clone()).into_iter().collect();
    // Needs may appear later in the file.
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

/// Returns the finished top-level steps.
fn finished<'w>(workflow: &'w Workflow, plan: &Plan) -> BTreeSet<&'w str> {
    let is_finished = |id: &&str| {
        plan.decisions.iter().any(|decision| {
            let is_kept = matches!(decision.action, Action::Reuse | Action::Recheck | Action::Skip);
            is_kept && decision.branch.is_main() && decision.step.as_str() == *id
        })
    };
    workflow.steps().iter().map(|step| step.id.as_str()).filter(is_finished).collect()
}
