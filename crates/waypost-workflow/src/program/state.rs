//! The state of a workflow's run: what expressions may read of finished steps.

use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use waypost::RunId;
use waypost::record::{Failure, FailureKind, STATE_BYTES_MAX};

use crate::expr::{Scope, StepView};

/// Params, and by step id what became of the steps that are finished.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkflowState {
    params: Map<String, Value>,
    steps: BTreeMap<String, StepState>,
    /// The same for expressions; made when first asked for, then kept up to date.
    #[serde(skip)]
    scope: OnceLock<Scope>,
    /// Its size as JSON, likewise; a few bytes too many after a step was settled twice.
    #[serde(skip)]
    bytes: OnceLock<usize>,
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

    pub(super) fn failed(outputs: Map<String, Value>, exit_code: Option<i32>) -> Self {
        Self { status: Some(Settled::Failed), exit_code, outputs, stdout: None }
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
        Self { params, steps: BTreeMap::new(), scope: OnceLock::new(), bytes: OnceLock::new() }
    }

    /// Returns the params.
    pub fn params(&self) -> &Map<String, Value> {
        &self.params
    }

    /// Has steps from now on read other params.
    pub fn set_params(&mut self, params: Map<String, Value>) {
        *self = Self {
            params,
            steps: std::mem::take(&mut self.steps),
            scope: OnceLock::new(),
            bytes: OnceLock::new(),
        };
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
        if let Some(bytes) = self.bytes.get().map(|bytes| bytes + entry_bytes(id, &settled)) {
            self.bytes = OnceLock::from(bytes);
        }
        self.steps.insert(id.to_owned(), settled);
    }

    /// Returns its size as JSON, which every checkpoint carries.
    pub(super) fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| json_bytes(self))
    }

    /// Refuses a step that would make it larger than a checkpoint may be.
    ///
    /// # Errors
    /// A failure that names the step's largest output; no further try can mend it.
    pub(super) fn refuse_growth(&self, id: &str, settled: &StepState) -> Result<(), Failure> {
        let bytes = self.bytes() + entry_bytes(id, settled);
        if bytes <= STATE_BYTES_MAX {
            return Ok(());
        }
        let what = largest(&settled.outputs, settled.stdout.as_deref());
        let text = format!(
            "step `{id}` makes the state of the run {bytes} bytes long, and {STATE_BYTES_MAX} are allowed: {what} of them. \
             Keep large data in a file, and its path or hash in the output"
        );
        Err(Failure::new(FailureKind::Limit, vec![text]))
    }
}

/// Names the largest output with its size, or what was printed if an expression reads that and it is more.
pub(super) fn largest(outputs: &Map<String, Value>, stdout: Option<&str>) -> String {
    let sized = outputs.iter().map(|(name, value)| (json_bytes(value), format!("output `{name}`")));
    let printed = stdout.map(|text| (json_bytes(text), "`stdout`, which an expression reads,".to_owned()));
    let (bytes, what) = sized.chain(printed).max().unwrap_or((0, "the step".to_owned()));
    format!("{what} has {bytes}")
}

/// How much a step adds to the JSON of the state: its id with a colon, itself, and a comma.
fn entry_bytes(id: &str, settled: &StepState) -> usize {
    json_bytes(id) + json_bytes(settled) + 2
}

/// Counts the bytes of the JSON of a value without making it.
pub(super) fn json_bytes(value: &(impl Serialize + ?Sized)) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).expect("maps of JSON are JSON, and counting does not fail");
    counter.0
}

impl WorkflowState {
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

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use waypost::record::{FailureKind, STATE_BYTES_MAX};

    use super::{StepOutput, StepState, WorkflowState, json_bytes};

    fn completed(outputs: Value) -> StepState {
        let Value::Object(outputs) = outputs else { panic!("outputs are a map") };
        StepState::completed(StepOutput { outputs, stdout: None }, Some(0))
    }

    // What happened: outputs that made the state too long ended the run with an error that named neither step nor output,
    // and every resume ran the step again.
    // Why: the length was looked at when the checkpoint was made, when nobody knew whose it was.
    // What stops it now: the step that would make it too long has failed, and says by which output.
    #[test]
    fn a_step_that_makes_the_state_too_long_fails_by_name() {
        let mut state = WorkflowState::new(Map::new());
        let large = "x".repeat(1 << 20);
        for index in 0..63 {
            state.settle(&format!("s{index}"), completed(json!({ "text": large })));
        }

        let failure = state.refuse_growth("last", &completed(json!({ "small": 1, "text": large })));

        let failure = failure.expect_err("it does not fit");
        assert_eq!(failure.kind, FailureKind::Limit);
        let text = &failure.error[0];
        assert!(text.starts_with("step `last` makes the state of the run 671"), "{text}");
        assert!(
            text.contains(&format!("and {STATE_BYTES_MAX} are allowed: output `text` has 1048578 of them")),
            "{text}"
        );
    }

    #[test]
    fn the_size_is_kept_up_to_date() {
        let mut state = WorkflowState::new(Map::new());
        let begin = state.bytes();
        state.settle("a", completed(json!({ "x": [1, 2] })));
        state.settle("b", StepState::skipped());

        let bytes = state.bytes();

        assert!(bytes > begin && (json_bytes(&state)..json_bytes(&state) + 2).contains(&bytes), "{bytes}");
    }
}
