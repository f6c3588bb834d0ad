//! State of a workflow's run: values of finished steps for expressions.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use waypost::RunId;
use waypost::record::{Ending, Failure, FailureKind, Phase, STATE_BYTES_MAX};

use crate::expr::{ItemsView, Scope, StepView};
use crate::file::{ITEM_INDEX, Step};

use super::service::Service;

/// Folder of a run for files of many outcomes.
pub(super) const OUTCOMES_FOLDER: &str = "outcomes";

/// Params, and the results of finished steps by step id. The scope of an item has the item in place of
/// params.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkflowState {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    item: Option<OfItem>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hook: Option<OfHook>,
    steps: BTreeMap<String, StepState>,
    /// Failed steps and the steps of failed groups, until a retry; `steps` keeps their results of earlier passes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    failed: BTreeMap<String, StepState>,
    /// Failures of the scope, until a retry, in the order of their ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failures: Vec<FailureOf>,
    /// Names of the parent scope; not serialised, because the parent has them.
    #[serde(skip)]
    outer: Option<Outer>,
    /// Scope of expressions; made on first use, then updated.
    #[serde(skip)]
    scope: OnceLock<Scope>,
    /// Size as JSON; made on first use, then updated. A few bytes too large after a step was settled twice.
    #[serde(skip)]
    bytes: OnceLock<usize>,
}

/// Item of a scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfItem {
    index: u64,
    value: Value,
}

/// Origin of a hook's scope.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfHook {
    /// Failed step: the step with the hook, or a step in a child scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed_step: Option<String>,
}

/// Failure of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FailureOf {
    /// Step of the scope.
    step: String,
    /// The same step, or the failed step in a child scope.
    origin: String,
}

/// Names of the parent scopes.
#[derive(Debug, Clone)]
pub(super) struct Outer {
    pub(super) scope: Scope,
    /// Name of the item, in the scope of an item.
    pub(super) name: Option<String>,
    /// Services that were started in the parent scopes.
    pub(super) services: Arc<[Service]>,
}

/// Result of a step. Defaults are left out: completed, exit code 0, no outputs.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    items: Option<StepItems>,
    /// Number of passes, for a step with `repeat`.
    #[serde(default, skip_serializing_if = "is_zero")]
    passes: u32,
}

/// Outcomes of the items of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepItems {
    /// Number of items.
    pub total: u64,
    /// Number of completed items.
    pub succeeded: u64,
    /// Number of failed items.
    pub failed: u64,
    /// Outcome of each item, in order, if there are few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<Value>>,
    /// Name of a file with one line of JSON per item, in the folder `outcomes` of the run, if there are many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Settled {
    Failed,
    Skipped,
}

/// Output of a step for the state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepOutput {
    /// Outputs.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub outputs: Map<String, Value>,
    /// Standard output, if an expression reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Outcomes of the items, for a step with `foreach`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<StepItems>,
    /// Results of the steps of a group.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub steps: BTreeMap<String, StepState>,
}

impl StepState {
    pub(super) fn completed(output: StepOutput, exit_code: Option<i32>) -> Self {
        let StepOutput { outputs, stdout, items, steps: _ } = output;
        Self {
            status: None,
            exit_code: exit_code.filter(|code| *code != 0),
            outputs,
            stdout,
            items,
            passes: 0,
        }
    }

    /// Makes the result of a step with `foreach` that failed.
    pub(super) fn failed_items(items: StepItems) -> Self {
        Self { status: Some(Settled::Failed), items: Some(items), ..Self::default() }
    }

    /// Sets the number of passes.
    pub(super) fn after(self, passes: u32) -> Self {
        Self { passes, ..self }
    }

    pub(super) fn skipped() -> Self {
        Self { status: Some(Settled::Skipped), ..Self::default() }
    }

    pub(super) fn view(&self, folder: Option<&Path>) -> StepView {
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
            items: self.items.as_ref().map(|items| ItemsView {
                total: items.total,
                succeeded: items.succeeded,
                failed: items.failed,
                items: items.items.clone(),
                file: items.file.as_ref().map(|file| match folder {
                    Some(folder) => folder.join(OUTCOMES_FOLDER).join(file).to_string_lossy().into_owned(),
                    None => file.clone(),
                }),
            }),
        }
    }

    /// Returns the ending for a record, as far as the state has it. `is_process`: the step has an exit code.
    fn ending(&self, is_process: bool) -> Ending {
        let usual_code = (is_process && self.status.is_none()).then_some(0);
        let outputs = self.outputs.clone().into_iter().collect();
        Ending { exit_code: self.exit_code.or(usual_code), outputs, ..Ending::default() }
    }

    /// Returns the outcomes of the items, for a step with `foreach`.
    pub fn items(&self) -> Option<&StepItems> {
        self.items.as_ref()
    }

    /// Returns the outputs.
    pub fn outputs(&self) -> &Map<String, Value> {
        &self.outputs
    }
}

impl WorkflowState {
    pub(super) fn new(params: Map<String, Value>) -> Self {
        Self::of(Some(params), None, BTreeMap::new())
    }

    /// Makes the state of an item's scope.
    pub(super) fn of_item(value: Value, index: u64) -> Self {
        Self::of(None, Some(OfItem { index, value }), BTreeMap::new())
    }

    fn of(
        params: Option<Map<String, Value>>,
        item: Option<OfItem>,
        steps: BTreeMap<String, StepState>,
    ) -> Self {
        let (failed, outer) = (BTreeMap::new(), None);
        Self {
            params,
            item,
            hook: None,
            steps,
            failed,
            failures: Vec::new(),
            outer,
            scope: OnceLock::new(),
            bytes: OnceLock::new(),
        }
    }

    /// Makes the state of a group's scope.
    pub(super) fn of_group() -> Self {
        Self::of(None, None, BTreeMap::new())
    }

    /// Sets the names of the parent scope, which expressions read.
    pub(super) fn attach(&mut self, outer: Outer) {
        self.outer = Some(outer);
        self.scope = OnceLock::new();
    }

    /// Marks the state as that of a hook's scope: after the failure of `failed_step`, or after a success.
    pub(super) fn set_hook(&mut self, failed_step: Option<String>) {
        self.hook = Some(OfHook { failed_step });
    }

    /// Returns the failed step of a hook's scope, or `Some(None)` for a hook after a success.
    pub(super) fn hook(&self) -> Option<Option<&str>> {
        self.hook.as_ref().map(|hook| hook.failed_step.as_deref())
    }

    /// Returns how a step ended: completed, or failed and tolerated.
    pub(super) fn phase_of(&self, id: &str, is_process: bool) -> Phase {
        let ending = self.ending_of(id, is_process);
        if self.steps.get(id).is_none_or(|step| step.status != Some(Settled::Failed)) {
            return Phase::Completed(ending);
        }
        let why = match ending.exit_code {
            Some(code) => format!("exit code {code}"),
            None => "failed in an earlier session".to_owned(),
        };
        Phase::Failed(Failure { tolerated: true, ending, ..Failure::new(FailureKind::Exit, vec![why]) })
    }

    /// Returns the ending of a finished step for a record, as far as the state has it. `is_process`: the step
    /// has an exit code.
    pub(super) fn ending_of(&self, id: &str, is_process: bool) -> Ending {
        self.steps.get(id).map(|step| step.ending(is_process)).unwrap_or_default()
    }

    /// Returns the params; empty in the scope of an item.
    pub fn params(&self) -> &Map<String, Value> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        self.params.as_ref().unwrap_or(&NONE)
    }

    /// Returns the item, in the scope of an item.
    pub fn item(&self) -> Option<&Value> {
        self.item.as_ref().map(|item| &item.value)
    }

    /// Returns the place of the item among all items, from 0.
    pub fn item_index(&self) -> Option<u64> {
        self.item.as_ref().map(|item| item.index)
    }

    /// Sets the place of the item. Returns whether the state had another place.
    pub(super) fn set_item_index(&mut self, index: u64) -> bool {
        self.item.as_mut().is_some_and(|item| std::mem::replace(&mut item.index, index) != index)
    }

    /// Replaces the item.
    pub fn set_item(&mut self, value: Value) {
        if let Some(item) = &mut self.item {
            item.value = value;
            (self.scope, self.bytes) = (OnceLock::new(), OnceLock::new());
        }
    }

    /// Replaces the params for the steps from now on.
    pub fn set_params(&mut self, params: Map<String, Value>) {
        *self = Self::of(Some(params), None, std::mem::take(&mut self.steps));
    }

    /// Returns the result of a step, if finished.
    pub fn step(&self, id: &str) -> Option<&StepState> {
        self.steps.get(id)
    }

    /// Returns whether the state has the failure of a step.
    pub(super) fn has_failed(&self, id: &str) -> bool {
        self.failed.contains_key(id)
    }

    /// Returns the number of failed items of all finished steps.
    pub fn items_failed(&self) -> u64 {
        self.steps.values().filter_map(StepState::items).map(|items| items.failed).sum()
    }

    /// Returns the services that were started in the parent scopes; `None` in the main scope.
    pub(super) fn services(&self) -> Option<Arc<[Service]>> {
        self.outer.as_ref().map(|outer| Arc::clone(&outer.services))
    }

    /// Removes the result of a step, as if the step had not run.
    pub(super) fn forget(&mut self, id: &str) {
        self.steps.remove(id);
        self.forget_failure(id);
    }

    /// Removes the results and failures of all steps except `ids`.
    pub(super) fn keep_steps(&mut self, ids: &BTreeSet<&str>) {
        let is_kept = |id: &str| ids.contains(id);
        self.steps.retain(|id, _| is_kept(id));
        self.failed.retain(|id, _| is_kept(id));
        self.failures.retain(|failure| is_kept(&failure.step));
        (self.scope, self.bytes) = (OnceLock::new(), OnceLock::new());
    }

    /// Removes the failure of a step; results of earlier passes stay.
    pub(super) fn forget_failure(&mut self, id: &str) {
        self.failed.remove(id);
        self.failures.retain(|failure| failure.step != id);
        (self.scope, self.bytes) = (OnceLock::new(), OnceLock::new());
    }

    /// Records the failure of a step.
    pub(super) fn fail(&mut self, id: &str, failed: StepState, folder: Option<&Path>) {
        if let Some(scope) = self.scope.get_mut() {
            scope.insert_step(id, &failed.view(folder));
        }
        self.bytes = OnceLock::new();
        self.failed.insert(id.to_owned(), failed);
    }

    /// Adds the failure of a step; `origin` is the failed step in a child scope, or the same step.
    pub(super) fn add_failure(&mut self, id: &str, origin: &str) {
        self.failures.retain(|failure| failure.step != id);
        self.failures.push(FailureOf { step: id.to_owned(), origin: origin.to_owned() });
        self.bytes = OnceLock::new();
    }

    /// Returns the first failed step of the scope, or of its child scopes.
    pub(super) fn first_failed(&self) -> Option<&str> {
        self.failures.first().map(|failure| failure.origin.as_str())
    }

    /// Makes the result of a failed step. Of a `foreach`, the result has the outcomes of the items.
    pub(super) fn failed_by(&self, step: &Step, ending: Ending) -> StepState {
        let Ending { exit_code, outputs, stdout, log, .. } = ending;
        let outputs = outputs.into_iter().collect();
        let failed = StepState { status: Some(Settled::Failed), exit_code, outputs, ..StepState::default() };
        if step.work.foreach().is_some() {
            let joined = stdout.and_then(|items| serde_json::from_str(&items).ok());
            let counted = || self.failed.get(&step.id)?.items.clone();
            return StepState { items: joined.or_else(counted), ..failed };
        }
        // Expressions read the standard output, which may be empty.
        let stdout = stdout.or_else(|| (step.keeps_stdout && log.is_none()).then(String::new));
        StepState { stdout, ..failed }
    }

    /// Returns the results of all ended steps, with failed steps.
    pub(super) fn results(&self) -> BTreeMap<String, StepState> {
        let all = self.steps.iter().chain(&self.failed);
        all.map(|(id, step)| (id.clone(), step.clone())).collect()
    }

    /// Restores the result of a step from the earlier state `then`.
    pub(super) fn restore(&mut self, id: &str, then: &Self) {
        self.forget(id);
        self.steps.extend(then.steps.get(id).map(|step| (id.to_owned(), step.clone())));
    }

    /// Decrements the number of passes of a step.
    pub(super) fn unpass(&mut self, id: &str) {
        if let Some(step) = self.steps.get_mut(id) {
            step.passes = step.passes.saturating_sub(1);
        }
    }

    /// Returns whether a step completed.
    pub(super) fn is_completed(&self, id: &str) -> bool {
        !self.failed.contains_key(id) && self.steps.get(id).is_some_and(|step| step.status.is_none())
    }

    /// Returns the number of passes of a step.
    pub(super) fn passes(&self, id: &str) -> u32 {
        self.steps.get(id).map_or(0, |step| step.passes)
    }

    /// Returns the results of all finished steps.
    pub(super) fn into_steps(self) -> BTreeMap<String, StepState> {
        self.steps
    }

    /// Returns whether a step has a result.
    pub(super) fn has_ended(&self, id: &str) -> bool {
        self.steps.get(id).is_some_and(|step| step.status.is_some())
    }

    pub(super) fn is_skipped(&self, id: &str) -> bool {
        self.steps.get(id).is_some_and(|step| step.status == Some(Settled::Skipped))
    }

    /// Returns the results of `steps` in the form of an item's outcome. `failed`: the failed step with its
    /// exit code.
    pub(super) fn outcomes<'s>(
        &self,
        steps: impl Iterator<Item = &'s str>,
        failed: Option<(&str, Option<i32>)>,
    ) -> Value {
        let one = |id: &str| {
            let Some(step) = self.failed.get(id).or_else(|| self.steps.get(id)) else {
                let failed = failed.filter(|(failed, _)| *failed == id);
                let status = if failed.is_some() { "failed" } else { "pending" };
                let code = failed.and_then(|(_, code)| code);
                let value = json!({ "status": status, "exit_code": code, "outputs": {} });
                return (id.to_owned(), value);
            };
            let view = step.view(None);
            let value =
                json!({ "status": view.status, "exit_code": view.exit_code, "outputs": step.outputs });
            (id.to_owned(), value)
        };
        Value::Object(steps.map(one).collect())
    }

    pub(super) fn settle(&mut self, id: &str, settled: StepState, folder: Option<&Path>) {
        if let Some(scope) = self.scope.get_mut() {
            scope.insert_step(id, &settled.view(folder));
        }
        if let Some(bytes) = self.bytes.get().map(|bytes| bytes + entry_bytes(id, &settled)) {
            self.bytes = OnceLock::from(bytes);
        }
        self.failed.remove(id);
        self.failures.retain(|failure| failure.step != id);
        self.steps.insert(id.to_owned(), settled);
    }

    /// Returns the size as JSON, which every checkpoint carries.
    pub(super) fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| json_bytes(self))
    }

    /// Checks that the result of a step fits into the state of a checkpoint.
    ///
    /// # Errors
    /// A failure that names the step's largest output; a retry cannot help.
    pub(super) fn refuse_growth(&self, id: &str, settled: &StepState) -> Result<(), Failure> {
        let bytes = self.bytes() + entry_bytes(id, settled);
        if bytes <= STATE_BYTES_MAX {
            return Ok(());
        }
        let what = largest(&settled.outputs, settled.stdout.as_deref());
        let text = format!(
            "cannot keep the outputs of step `{id}`: the state of the run would have {bytes} bytes ({what}), the \
             maximum is {STATE_BYTES_MAX}. Write large data to a file, and its path or hash to the output"
        );
        Err(Failure::new(FailureKind::Limit, vec![text]))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is defined by serde")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Returns the view of a step of a group before its first run.
pub(super) fn not_yet() -> StepView {
    StepView { status: "pending".to_owned(), exit_code: None, stdout: None, outputs: None, items: None }
}

/// Returns the name and size of the largest output, or of the standard output if that is larger.
pub(super) fn largest(outputs: &Map<String, Value>, stdout: Option<&str>) -> String {
    let sized = outputs.iter().map(|(name, value)| (json_bytes(value), format!("output `{name}`")));
    let printed = stdout.map(|text| (json_bytes(text), "`stdout`, read by an expression,".to_owned()));
    let (bytes, what) = sized.chain(printed).max().unwrap_or((0, "the step".to_owned()));
    format!("{what} has {bytes}")
}

/// Returns the bytes of a step in the JSON of the state: id with colon, result, comma.
fn entry_bytes(id: &str, settled: &StepState) -> usize {
    json_bytes(id) + json_bytes(settled) + 2
}

/// Counts the bytes of the JSON of a value, without building the text.
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
    /// Returns the scope of expressions; `folder` is the run's folder.
    pub(super) fn scope(&self, run: &RunId, folder: Option<&Path>) -> Scope {
        let made = || {
            let mut scope = match (&self.outer, &self.item) {
                (Some(Outer { scope, name: Some(name), .. }), Some(OfItem { index, value })) => {
                    scope.with_local(name, value).with_local(ITEM_INDEX, &Value::from(*index))
                }
                (Some(Outer { scope, .. }), _) => scope.clone(),
                _ => Scope::new(run.as_str(), self.params()),
            };
            for (id, step) in self.steps.iter().chain(&self.failed) {
                scope.insert_step(id, &step.view(folder));
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
        StepState::completed(StepOutput { outputs, ..StepOutput::default() }, Some(0))
    }

    // What happened: outputs made the state too large, and the run ended with an error that named neither
    // step nor output. Every resume ran the step again. Why: the size was checked when the checkpoint was
    // written, where the step was not known. What stops it now: the step that exceeds the limit fails, and
    // the error names the largest output.
    #[test]
    fn a_step_that_makes_the_state_too_long_fails_by_name() {
        let mut state = WorkflowState::new(Map::new());
        let large = "x".repeat(1 << 20);
        for index in 0..63 {
            state.settle(&format!("s{index}"), completed(json!({ "text": large })), None);
        }

        let failure = state.refuse_growth("last", &completed(json!({ "small": 1, "text": large })));

        let failure = failure.expect_err("it does not fit");
        assert_eq!(failure.kind, FailureKind::Limit);
        let text = &failure.error[0];
        assert!(text.contains("step `last`: the state of the run would have 671"), "{text}");
        assert!(
            text.contains(&format!("(output `text` has 1048578), the maximum is {STATE_BYTES_MAX}")),
            "{text}"
        );
    }

    #[test]
    fn the_size_is_kept_up_to_date() {
        let mut state = WorkflowState::new(Map::new());
        let begin = state.bytes();
        state.settle("a", completed(json!({ "x": [1, 2] })), None);
        state.settle("b", StepState::skipped(), None);

        let bytes = state.bytes();

        assert!(bytes > begin && (json_bytes(&state)..json_bytes(&state) + 2).contains(&bytes), "{bytes}");
    }
}
