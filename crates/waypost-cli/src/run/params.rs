//! Params of a run in progress: present values, and values set by a resume.
//!
//! The run record has the initial params. `resume --set` changes them for the remaining steps; the state of
//! every later checkpoint has the new values, and they are read there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use waypost::engine::Snapshot;
use waypost::plan::{Action, Plan};
use waypost::record::{End, FrontierEntry, Position, Record, SettledAs};
use waypost::shape::{Shape, Unfinished};
use waypost::store::{Store, StoreError, StoreExt as _};
use waypost::{ScopePath, StepId};
use waypost_workflow::file::{Body, GivenParams, Step, Workflow};

use crate::error::Error;
use crate::view::step_names::called;

/// Returns the params in the state of a checkpoint; `None` without a state, or with another kind of state.
pub(crate) fn of_record(record: &Record) -> Option<Map<String, Value>> {
    let state: Value = serde_json::from_slice(record.state_bytes()?).ok()?;
    Some(state.get("params")?.as_object()?.clone())
}

/// Returns the params for the next step of a run.
pub(crate) fn current(snapshot: &Snapshot) -> Map<String, Value> {
    of_record(snapshot.newest()).unwrap_or_else(|| snapshot.entry.record.record().params.clone())
}

/// Returns the params with the defaults of params that a changed file adds; `None` if it adds none.
///
/// # Errors
/// An added param has no default.
pub(crate) fn with_added(
    workflow: &Workflow,
    mut now: Map<String, Value>,
) -> Result<Option<Map<String, Value>>, Error> {
    if workflow.params().iter().all(|param| now.contains_key(&param.name)) {
        return Ok(None);
    }
    now.retain(|name, value| !value.is_null() && workflow.params().iter().any(|param| param.name == *name));
    let given = GivenParams { file: now, text: Vec::new() };
    let how = "give the value of an added param with `--set NAME=VALUE`";
    workflow.resolve_params(&given).map(Some).map_err(|error| Error::usage(error.to_string(), how))
}

/// The arguments of `resume --set`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting<'a> {
    /// Names and values as given.
    pub(crate) set: &'a [(String, String)],
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
        let again = work.again();
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
            let reader = |step: &Step| match finished.contains(step.id.as_str())
                && !work.is_above_from(&ScopePath::main(), step)
            {
                true => step.uses_param(name).then(|| step.id.clone()),
                false => work.reader_within(&ScopePath::main(), step, name),
            };
            let kept = workflow.steps().iter().filter(|step| !again.contains(&step.id));
            let mut readers = kept.filter_map(|step| Some((step, reader(step)?)));
            if let Some((first, reader)) = readers.next() {
                let leads = |from: &&StepId| workflow.leads_to(from.as_str(), &first.id);
                let from = position.frontier.iter().map(|entry| &entry.step).find(leads);
                return Err(Error::usage(
                    format!("cannot change param `{name}`: step {reader} has read it, and does not rerun"),
                    format!(
                        "`waypost resume {run} --from {} --set …` reruns the step and all steps \
                         downstream; `--restart --set …` starts over",
                        from.map_or(first.id.as_str(), StepId::as_str)
                    ),
                ));
            }
        }
        if snapshot.ended.is_some() && work.from.is_none() && !work.retries {
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
    /// The path of the step.
    pub(crate) step: String,
    /// The top-level step that contains it, or the step itself.
    pub(crate) top: String,
    pub(crate) param: String,
}

/// The start of a run at a checkpoint of another run.
pub(crate) struct Begin<'a> {
    pub(crate) workflow: &'a Workflow,
    pub(crate) at: &'a Record,
    /// The open scopes in the other run and the step to rerun, if the store has this run.
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
        let again = self.work.map(BegunWork::again).unwrap_or_default();
        let mut to_come = again.clone();
        for entry in &position.frontier {
            to_come.extend(behind(self.workflow, entry.step.as_str()));
        }
        let is_begun = |step: &Step| {
            let mut entries = position.frontier.iter();
            let is_above = self.work.is_some_and(|work| work.is_above_from(&ScopePath::main(), step));
            let is_open = entries.any(|entry| entry.step.as_str() == step.id && entry.has_children());
            !again.contains(&step.id) && (is_above || is_open)
        };
        let changed = now.iter().filter(|(name, value)| before.get(*name).unwrap_or(&Value::Null) != *value);
        let mut read = changed.filter_map(|(param, _)| {
            let reader = |step: &Step| match (is_begun(step), self.work) {
                (true, Some(work)) => work.reader_within(&ScopePath::main(), step, param),
                (is_begun, _) => {
                    let reads = (is_begun || !to_come.contains(&step.id)) && step.uses_param(param);
                    reads.then(|| step.id.clone())
                }
            };
            let mut steps = self.workflow.steps().iter();
            let (top, step) = steps.find_map(|step| Some((step.id.clone(), reader(step)?)))?;
            Some(ReadParam { step, top, param: param.clone() })
        });
        read.next()
    }
}

/// The newest records of a run, for the steps that have read a param.
pub(crate) struct BegunWork<'a> {
    pub(crate) workflow: &'a Workflow,
    shape: &'a Shape,
    pub(crate) snapshot: &'a Snapshot,
    /// The newest record of each scope, unless damaged.
    newest: BTreeMap<ScopePath, Option<Record>>,
    /// True if tolerated failures are retried.
    retries: bool,
    /// The step of `--from`, with its scope: it and all downstream steps rerun.
    from: Option<(ScopePath, StepId)>,
}

impl<'a> BegunWork<'a> {
    /// Reads the scopes of a run.
    pub(crate) async fn of(
        store: &dyn Store,
        (workflow, shape): (&'a Workflow, &'a Shape),
        snapshot: &'a Snapshot,
    ) -> Result<Self, Error> {
        let run = &snapshot.entry.summary.run;
        let mut newest = BTreeMap::new();
        for scope in store.scopes(run).await? {
            let record = match store.newest(run, &scope).await {
                Err(StoreError::Damaged { .. }) => None,
                record => Some(record?),
            };
            newest.insert(scope, record);
        }
        newest.insert(ScopePath::main(), Some(snapshot.newest().clone()));
        Ok(Self { workflow, shape, snapshot, newest, retries: false, from: None })
    }

    /// Sets whether tolerated failures are retried.
    pub(crate) fn retrying(self, retries: bool) -> Self {
        Self { retries, ..self }
    }

    /// Sets the step of `--from`.
    pub(crate) fn rerunning(self, from: Option<(ScopePath, StepId)>) -> Self {
        Self { from, ..self }
    }

    /// Returns the child of a scope on the path to the step of `--from`.
    fn child_on_path(&self, scope: &ScopePath) -> Option<ScopePath> {
        let (on, _) = self.from.as_ref()?;
        let mut around = std::iter::successors(Some(on.clone()), ScopePath::parent);
        around.find(|below| below.parent().as_ref() == Some(scope))
    }

    /// Returns whether a child is a pass after the pass of the step of `--from`.
    fn is_later_pass(&self, scope: &ScopePath, child: &ScopePath) -> bool {
        let opener = |child: &ScopePath| child.opened_by().map(|(opener, _)| opener);
        self.child_on_path(scope)
            .is_some_and(|named| opener(&named) == opener(child) && named.pass_number() < child.pass_number())
    }

    /// Returns the step of a scope on the path to the step of `--from`, that step included.
    fn on_path(&self, scope: &ScopePath) -> Option<&str> {
        let (on, step) = self.from.as_ref()?;
        if on == scope {
            return Some(step.as_str());
        }
        let below = self.child_on_path(scope)?;
        let shape = self.shape.of_scope(scope)?;
        let (place, _) = shape.children_named(&below.opened_by()?.0)?;
        Some(shape.steps()[place].id.as_str())
    }

    /// Returns whether a step has opened the scope of the step of `--from`, or a scope above it.
    fn is_above_from(&self, scope: &ScopePath, step: &Step) -> bool {
        let is_named = self.from.as_ref().is_some_and(|(on, _)| on == scope);
        !is_named && self.on_path(scope) == Some(&step.id)
    }

    /// Returns whether a step of a scope reruns: the step of `--from`, or a step downstream of the path to it.
    fn reruns(&self, scope: &ScopePath, step: &Step) -> bool {
        let Some((shape, on_path)) = self.shape.of_scope(scope).zip(self.on_path(scope)) else {
            return false;
        };
        let (from, place) = (shape.place(on_path), shape.place(&step.id));
        let is_downstream =
            from.zip(place).is_some_and(|(from, place)| shape.downstream(&[from]).contains(&place));
        !self.is_above_from(scope, step) && (is_downstream || on_path == step.id)
    }

    /// Returns the top-level steps that rerun as a whole: the step of `--from`, and all downstream steps.
    fn again(&self) -> BTreeSet<String> {
        let main = ScopePath::main();
        let mut again = self.on_path(&main).map(|from| behind(self.workflow, from)).unwrap_or_default();
        for step in self.workflow.steps().iter().filter(|step| self.is_above_from(&main, step)) {
            again.remove(&step.id);
        }
        again
    }

    /// Returns the graph and the position of a scope, with the steps that a retry opens.
    fn at(&self, scope: &ScopePath) -> Option<(&'a Shape, Position)> {
        let record = self.newest.get(scope)?.as_ref()?;
        let position = record.position().ok()?;
        let is_retried = matches!(record.header().end, None | Some(End::Failed));
        let position = if is_retried { position.with_failures_open() } else { position };
        Some((self.shape.of_scope(scope)?, position))
    }

    /// Returns whether a step ended with failures that are retried.
    fn is_retried(&self, position: &Position, step: &Step) -> bool {
        let mut ends = position.ledger.iter().filter(|(id, _)| id.as_str() == step.id);
        self.retries && ends.any(|(_, end)| end.how == SettledAs::Tolerated || end.failures > 0)
    }

    /// Returns the path of a step that has read a param and does not rerun: an unfinished or retried step with scopes, or
    /// a finished step in a scope.
    fn reader_within(&self, scope: &ScopePath, step: &Step, param: &str) -> Option<String> {
        let (shape, position) = self.at(scope)?;
        let is_it = |entry: &FrontierEntry| entry.step.as_str() == step.id && entry.has_children();
        let is_retried = step.work.body().is_some() && self.is_retried(&position, step);
        let is_above = self.is_above_from(scope, step);
        if self.reruns(scope, step) || !is_above && !is_retried && !position.frontier.iter().any(is_it) {
            return None;
        }
        if step.reads_param(param) {
            return Some(called(Some(self.workflow), scope, &step.id));
        }
        if step.work.child().is_some() {
            // An included file has params of its own.
            return None;
        }
        let place = shape.place(&step.id);
        let is_child = |child: &&ScopePath| {
            let name = child.opened_by().filter(|_| child.parent().as_ref() == Some(scope));
            name.and_then(|(name, _)| shape.children_named(&name)).map(|(place, _)| place) == place
        };
        let mut kept =
            self.newest.keys().filter(|child| is_child(child) && !self.is_later_pass(scope, child));
        kept.find_map(|child| self.reader_on(child, step, param))
    }

    /// Returns the path of a step in a scope of `opener` that has read a param and does not rerun.
    fn reader_on(&self, scope: &ScopePath, opener: &Step, param: &str) -> Option<String> {
        let steps = opener.work.body().into_iter().flat_map(Body::steps);
        let mut readers = steps.filter(|step| step.uses_param(param));
        let Some((shape, position)) = self.at(scope) else {
            return readers.next().map(|step| called(Some(self.workflow), scope, &step.id));
        };
        let unfinished = Unfinished::of(shape, &position);
        readers.find_map(|step| {
            let is_finished = shape.place(&step.id).is_some_and(|place| !unfinished.has(place));
            let is_open = self.is_retried(&position, step)
                || self.is_above_from(scope, step)
                || self.reruns(scope, step);
            match is_finished && !is_open {
                true => Some(called(Some(self.workflow), scope, &step.id)),
                false => self.reader_within(scope, step, param),
            }
        })
    }
}

/// Returns a top-level step and all downstream steps.
fn behind(workflow: &Workflow, from: &str) -> BTreeSet<String> {
    let mut again: BTreeSet<String> = workflow.step(from).map(|step| step.id.clone()).into_iter().collect();
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

/// Returns the finished top-level steps.
fn finished<'w>(workflow: &'w Workflow, plan: &Plan) -> BTreeSet<&'w str> {
    let is_finished = |id: &&str| {
        plan.decisions.iter().any(|decision| {
            let is_kept = matches!(decision.action, Action::Reuse | Action::Recheck | Action::Skip);
            is_kept && decision.scope.is_main() && decision.step.as_str() == *id
        })
    };
    workflow.steps().iter().map(|step| step.id.as_str()).filter(is_finished).collect()
}
