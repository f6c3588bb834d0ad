//! The state of a workflow's run: what expressions may read of finished steps.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use waypost::RunId;

use crate::expr::{Scope, StepView};

/// Params, and by step id what became of the steps that are finished.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkflowState {
    params: Map<String, Value>,
    steps: BTreeMap<String, StepState>,
    /// The same for expressions; made when first asked for, then kept up to date.
    #[serde(skip)]
    scope: OnceLock<Scope>,
}

/// What became of a step. What is usual is left out: completed, with exit code 0, without outputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepState {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<Settled>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    outputs: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stdout: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Settled {
    Failed,
    Skipped,
}

/// What a step gives to the state.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutput {
    /// Its outputs.
    pub outputs: Map<String, Value>,
    /// Its standard output, where an expression reads it.
    pub stdout: Option<String>,
}

impl StepState {
    pub(super) fn completed(output: StepOutput, exit_code: Option<i32>) -> Self {
        let StepOutput { outputs, stdout } = output;
        Self { status: None, exit_code: exit_code.filter(|code| *code != 0), outputs, stdout }
    }

    pub(super) fn failed(exit_code: Option<i32>) -> Self {
        Self { status: Some(Settled::Failed), exit_code, ..Self::default() }
    }

    pub(super) fn skipped() -> Self {
        Self { status: Some(Settled::Skipped), ..Self::default() }
    }

    fn view(&self) -> StepView {
        let (status, usual_code) = match self.status {
            None => ("completed", Some(0)),
            Some(Settled::Failed) => ("failed", None),
            Some(Settled::Skipped) => ("skipped", None),
        };
        StepView {
            status: status.to_owned(),
            exit_code: self.exit_code.or(usual_code).map(i64::from),
            stdout: self.stdout.clone(),
            outputs: (self.status != Some(Settled::Skipped)).then(|| self.outputs.clone()),
        }
    }

    /// Returns its outputs.
    pub fn outputs(&self) -> &Map<String, Value> {
        &self.outputs
    }
}

impl WorkflowState {
    pub(super) fn new(params: Map<String, Value>) -> Self {
        Self { params, steps: BTreeMap::new(), scope: OnceLock::new() }
    }

    /// Returns the params.
    pub fn params(&self) -> &Map<String, Value> {
        &self.params
    }

    /// Returns what became of a step, if it is finished.
    pub fn step(&self, id: &str) -> Option<&StepState> {
        self.steps.get(id)
    }

    pub(super) fn is_skipped(&self, id: &str) -> bool {
        self.steps.get(id).is_some_and(|step| step.status == Some(Settled::Skipped))
    }

    pub(super) fn settle(&mut self, id: &str, settled: StepState) {
        if let Some(scope) = self.scope.get_mut() {
            scope.insert_step(id, &settled.view());
        }
        self.steps.insert(id.to_owned(), settled);
    }

    pub(super) fn scope(&self, run: &RunId) -> Scope {
        let made = || {
            let mut scope = Scope::new(run.as_str(), &self.params);
            for (id, step) in &self.steps {
                scope.insert_step(id, &step.view());
            }
            scope
        };
        self.scope.get_or_init(made).clone()
    }
}
