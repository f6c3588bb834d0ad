//! The state of a workflow's run: what expressions may read of finished steps.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use waypost::RunId;
use waypost::record::{Ending, Failure, FailureKind, Phase, STATE_BYTES_MAX};

use crate::expr::{ItemsView, Scope, StepView};
use crate::file::ITEM_INDEX;

use super::service::Service;

/// The folder of a run in which files of many outcomes stand.
pub(super) const OUTCOMES_FOLDER: &str = "outcomes";

/// Params, and by step id what became of the steps that are finished; of a branch over an item that in place of params.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkflowState {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params: Option<Map<String, Value>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    item: Option<OfItem>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hook: Option<OfHook>,
    steps: BTreeMap<String, StepState>,
    /// Steps that ended as failed, until they are retried: what they gave by earlier passes is among `steps`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    failed: BTreeMap<String, StepState>,
    /// What it reads of the branch that opened it, which keeps that.
    #[serde(skip)]
    outer: Option<Outer>,
    /// The same for expressions; made when first asked for, then kept up to date.
    #[serde(skip)]
    scope: OnceLock<Scope>,
    /// Its size as JSON, likewise; a few bytes too many after a step was settled twice.
    #[serde(skip)]
    bytes: OnceLock<usize>,
}

/// What a branch is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfItem {
    index: u64,
    value: Value,
}

/// What the branch of a hook is done after.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfHook {
    /// The step that failed: the one that it comes after, or one on the branches of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed_step: Option<String>,
}

/// What expressions read of the branches around this one.
#[derive(Debug, Clone)]
pub(super) struct Outer {
    pub(super) scope: Scope,
    /// The name of the item, on a branch over one.
    pub(super) name: Option<String>,
    /// The services that have been started there.
    pub(super) services: Arc<[Service]>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    items: Option<StepItems>,
    /// How often it was done, if it is done until something holds.
    #[serde(default, skip_serializing_if = "is_zero")]
    passes: u32,
}

/// What became of the items of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepItems {
    /// How many there were.
    pub total: u64,
    /// How many came to their end.
    pub succeeded: u64,
    /// How many failed.
    pub failed: u64,
    /// What became of each, in their order, if they are few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<Value>>,
    /// The name of the file with a line of JSON for each, in the folder `outcomes` of the run, if they are many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Settled {
    Failed,
    Skipped,
}

/// What a step gives to the state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepOutput {
    /// Its outputs.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub outputs: Map<String, Value>,
    /// Its standard output, where an expression reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// What became of its items, if it worked on some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<StepItems>,
    /// What the steps of it came to, if it is a group.
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

    /// One that failed; `keeps_stdout` if expressions read what it printed, be it nothing.
    pub(super) fn failed(ending: Ending, keeps_stdout: bool) -> Self {
        let Ending { exit_code, outputs, stdout, log, .. } = ending;
        let outputs = outputs.into_iter().collect();
        let stdout = stdout.or_else(|| (keeps_stdout && log.is_none()).then(String::new));
        Self { status: Some(Settled::Failed), exit_code, outputs, stdout, items: None, passes: 0 }
    }

    /// The same after so many passes.
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

    /// Returns what a record tells of its end, as far as that is kept. `is_process`: it has an exit code.
    fn ending(&self, is_process: bool) -> Ending {
        let usual_code = (is_process && self.status.is_none()).then_some(0);
        let outputs = self.outputs.clone().into_iter().collect();
        Ending { exit_code: self.exit_code.or(usual_code), outputs, ..Ending::default() }
    }

    /// Returns what became of its items, if it worked on some.
    pub fn items(&self) -> Option<&StepItems> {
        self.items.as_ref()
    }

    /// Returns its outputs.
    pub fn outputs(&self) -> &Map<String, Value> {
        &self.outputs
    }
}

impl WorkflowState {
    pub(super) fn new(params: Map<String, Value>) -> Self {
        Self::of(Some(params), None, BTreeMap::new())
    }

    /// The state of a branch over an item.
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
            outer,
            scope: OnceLock::new(),
            bytes: OnceLock::new(),
        }
    }

    /// The state of a branch for a group of steps.
    pub(super) fn of_group() -> Self {
        Self::of(None, None, BTreeMap::new())
    }

    /// Has its expressions read what is known where the step stands that opened its branch.
    pub(super) fn attach(&mut self, outer: Outer) {
        self.outer = Some(outer);
        self.scope = OnceLock::new();
    }

    /// Makes it that of the branch of a hook, which is done as `failed_step` failed, or after a success.
    pub(super) fn set_hook(&mut self, failed_step: Option<String>) {
        self.hook = Some(OfHook { failed_step });
    }

    /// Returns the step for whose failure its branch is a hook; of the branch of a hook after a success none.
    pub(super) fn hook(&self) -> Option<Option<&str>> {
        self.hook.as_ref().map(|hook| hook.failed_step.as_deref())
    }

    /// Says how a step ended: completed, or with a failure that is tolerated.
    pub(super) fn phase_of(&self, id: &str, is_process: bool) -> Phase {
        let ending = self.ending_of(id, is_process);
        if self.steps.get(id).is_none_or(|step| step.status != Some(Settled::Failed)) {
            return Phase::Completed(ending);
        }
        let why = match ending.exit_code {
            Some(code) => format!("exit code {code}"),
            None => "it failed before".to_owned(),
        };
        Phase::Failed(Failure { tolerated: true, ending, ..Failure::new(FailureKind::Exit, vec![why]) })
    }

    /// Returns what a record tells of the end of a step that is finished, as far as that is kept. `is_process`: it has an
    /// exit code.
    pub(super) fn ending_of(&self, id: &str, is_process: bool) -> Ending {
        self.steps.get(id).map(|step| step.ending(is_process)).unwrap_or_default()
    }

    /// Returns the params; a branch over an item has none.
    pub fn params(&self) -> &Map<String, Value> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        self.params.as_ref().unwrap_or(&NONE)
    }

    /// Returns the item, of a branch over one.
    pub fn item(&self) -> Option<&Value> {
        self.item.as_ref().map(|item| &item.value)
    }

    /// Returns the place of the item among the others, from 0.
    pub fn item_index(&self) -> Option<u64> {
        self.item.as_ref().map(|item| item.index)
    }

    /// Has its steps work on another item.
    pub fn set_item(&mut self, value: Value) {
        if let Some(item) = &mut self.item {
            item.value = value;
            (self.scope, self.bytes) = (OnceLock::new(), OnceLock::new());
        }
    }

    /// Has steps from now on read other params.
    pub fn set_params(&mut self, params: Map<String, Value>) {
        *self = Self::of(Some(params), None, std::mem::take(&mut self.steps));
    }

    /// Returns what became of a step, if it is finished.
    pub fn step(&self, id: &str) -> Option<&StepState> {
        self.steps.get(id)
    }

    /// Returns how many items of its steps failed that are finished.
    pub fn items_failed(&self) -> u64 {
        self.steps.values().filter_map(StepState::items).map(|items| items.failed).sum()
    }

    /// Returns the services that have been started outside of the branch; none of the main one.
    pub(super) fn services(&self) -> Option<Arc<[Service]>> {
        self.outer.as_ref().map(|outer| Arc::clone(&outer.services))
    }

    /// Takes out what became of a step: it is as if it had not run.
    pub(super) fn forget(&mut self, id: &str) {
        self.steps.remove(id);
        self.forget_failure(id);
    }

    /// Takes out that a step failed: what it gave by earlier passes stays.
    pub(super) fn forget_failure(&mut self, id: &str) {
        self.failed.remove(id);
        (self.scope, self.bytes) = (OnceLock::new(), OnceLock::new());
    }

    /// Notes that a step ended as failed.
    pub(super) fn fail(&mut self, id: &str, failed: StepState, folder: Option<&Path>) {
        if let Some(scope) = self.scope.get_mut() {
            scope.insert_step(id, &failed.view(folder));
        }
        self.bytes = OnceLock::new();
        self.failed.insert(id.to_owned(), failed);
    }

    /// Puts what became of a step by an earlier state in the place of what became of it since.
    pub(super) fn restore(&mut self, id: &str, then: &Self) {
        match then.steps.get(id) {
            Some(step) => drop(self.steps.insert(id.to_owned(), step.clone())),
            None => self.forget(id),
        }
    }

    /// Takes back that a step was done once more.
    pub(super) fn unpass(&mut self, id: &str) {
        if let Some(step) = self.steps.get_mut(id) {
            step.passes = step.passes.saturating_sub(1);
        }
    }

    /// Says whether a step completed.
    pub(super) fn is_completed(&self, id: &str) -> bool {
        !self.failed.contains_key(id) && self.steps.get(id).is_some_and(|step| step.status.is_none())
    }

    /// Returns how often a step was done that is done until something holds.
    pub(super) fn passes(&self, id: &str) -> u32 {
        self.steps.get(id).map_or(0, |step| step.passes)
    }

    /// Returns what became of all steps that are finished.
    pub(super) fn into_steps(self) -> BTreeMap<String, StepState> {
        self.steps
    }

    pub(super) fn is_skipped(&self, id: &str) -> bool {
        self.steps.get(id).is_some_and(|step| step.status == Some(Settled::Skipped))
    }

    /// Returns what became of these steps of it, of which one `failed` with its exit code, as expressions read it of an item.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What expressions see of a step of a group that has not been done in any pass.
pub(super) fn not_yet() -> StepView {
    StepView { status: "pending".to_owned(), exit_code: None, stdout: None, outputs: None, items: None }
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
    /// Returns what its expressions read; `folder` is that of the run.
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

    // What happened: outputs that made the state too long ended the run with an error that named neither step nor output,
    // and every resume ran the step again.
    // Why: the length was looked at when the checkpoint was made, when nobody knew whose it was.
    // What stops it now: the step that would make it too long has failed, and says by which output.
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
        state.settle("a", completed(json!({ "x": [1, 2] })), None);
        state.settle("b", StepState::skipped(), None);

        let bytes = state.bytes();

        assert!(bytes > begin && (json_bytes(&state)..json_bytes(&state) + 2).contains(&bytes), "{bytes}");
    }
}
