//! A run that begins at a checkpoint of another run: common parts of `fork` and `import`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use waypost::engine::{Adoption, Edit, OnChange, SessionOptions, Snapshot, StartOptions};
use waypost::record::{Record, RunRecord};
use waypost::store::{Signal, SignalKind, Store};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::{GivenParams, Workflow};
use waypost_workflow::program::{WorkflowProgram, WorkflowState};

use super::Context;
use super::run::{free_id, refuse_secrets};
use crate::error::Error;
use crate::output::shown;
use crate::run::environment;
use crate::run::params;
use crate::run::reference::{self, step_on};

/// The params of the new run: the params of the other run, and the changes.
pub(super) struct Params {
    before: Map<String, Value>,
    now: Map<String, Value>,
}

impl Params {
    /// Applies params given as text to the params of a checkpoint.
    pub(super) fn resolve(
        workflow: &Workflow,
        checkpoint: &Record,
        frozen: &RunRecord,
        text: &[(String, String)],
    ) -> Result<Self, Error> {
        let mut before = params::of_record(checkpoint).unwrap_or_else(|| frozen.params.clone());
        // Drop params without a value, and params that this workflow does not declare.
        let declared = |name: &str| workflow.params().iter().any(|param| param.name == name);
        before.retain(|name, value| !value.is_null() && declared(name));
        let given = GivenParams { file: before.clone(), text: text.to_vec() };
        let now = workflow.resolve_params(&given).map_err(Error::Params)?;
        environment::refuse_missing_secrets(workflow)?;
        Ok(Self { before, now })
    }

    /// Returns a param with a new value and a finished step of the workflow that reads the param.
    pub(super) fn read_before(&self, begin: &params::Begin<'_>) -> Option<params::ReadParam> {
        begin.read_param(&self.before, &self.now)
    }

    pub(super) fn now(&self) -> &Map<String, Value> {
        &self.now
    }

    /// Returns the start options of the run; refuses secrets in params and record, as for any run.
    pub(super) fn start(
        self,
        program: &WorkflowProgram,
        record: &RunRecord,
        (session, adoption): (SessionOptions, Option<Adoption>),
        from: Option<(ScopePath, StepId)>,
    ) -> Result<StartOptions<WorkflowState>, Error> {
        let Self { before, now } = self;
        program.initial_state(now.clone())?;
        refuse_secrets(program, record)?;
        let is_new = now.iter().any(|(name, value)| before.get(name).unwrap_or(&Value::Null) != value);
        let edit =
            is_new.then(|| Edit(Box::new(move |state: &mut WorkflowState| state.set_params(now)) as _));
        let on_change = OnChange::Adopt;
        Ok(StartOptions { session, edit, on_change, adoption, from, ..StartOptions::default() })
    }
}

/// Warns of pending answers of a run: the new run does not inherit them.
pub(super) async fn report_pending(context: &Context, store: &dyn Store, run: &RunId) -> Result<(), Error> {
    let mut given = pending(store, run).await?;
    given.retain(|one| matches!(one.kind, SignalKind::Answer { .. }));
    let snapshot = Snapshot::read(store, run).await?;
    report_given(context, run, &given, snapshot.heads.iter().map(|head| &head.record));
    Ok(())
}

/// Returns the pending answers and signals of a run.
pub(super) async fn pending(store: &dyn Store, run: &RunId) -> Result<Vec<Signal>, Error> {
    let is_given = |one: &Signal| matches!(one.kind, SignalKind::Answer { .. } | SignalKind::Named { .. });
    Ok(store.signals(run).await?.into_iter().filter(is_given).collect())
}

/// Warns that the new run does not inherit these answers and signals. `newest`: the newest record of each scope, to name
/// the steps that wait.
pub(super) fn report_given<'a>(
    context: &Context,
    run: &RunId,
    given: &[Signal],
    newest: impl Iterator<Item = &'a Record>,
) {
    let mut asking = BTreeMap::new();
    for record in newest {
        for entry in record.position().unwrap_or_default().frontier {
            let step = step_on(&record.header().scope, entry.step.as_str());
            asking.extend(entry.waits.into_iter().map(|wait| (wait.id, step.clone())));
        }
    }
    let named = |one: &Signal| match &one.kind {
        SignalKind::Answer { wait, value } => Some(match asking.get(wait) {
            Some(step) => format!("answer {value} to step `{step}`"),
            None => format!("answer {value} to a step that no longer asks"),
        }),
        SignalKind::Named { name, .. } => Some(format!("signal `{name}`")),
        _ => None,
    };
    let named: Vec<String> = given.iter().filter_map(named).collect();
    if !named.is_empty() {
        context.output.warn(&shown(&format!(
            "not inherited: {}, sent after the last session of run {run}; send again to the new run",
            named.join(", ")
        )));
    }
}

/// Returns the given id, if free, or generates one.
pub(super) async fn id_of(
    store: &dyn Store,
    given: Option<RunId>,
    workflow: &Workflow,
) -> Result<RunId, Error> {
    match given {
        Some(id) if reference::is_there(store, &id).await? => {
            Err(Error::usage(format!("run {id} already exists"), "choose another name with `--id`"))
        }
        Some(id) => Ok(id),
        None => free_id(store, workflow.name()).await,
    }
}
