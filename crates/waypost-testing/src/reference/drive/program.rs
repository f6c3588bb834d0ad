//! A generated workflow as a program of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use waypost::engine::{
    Admission, Attempt, BeginError, Exited, Follow, Item, Joined, OnFailure, Performed, Program, Recovered,
    Settlement, StateError, StepRef, StepReport, Unjoined, Upstream,
};
use waypost::record::{Claim, Ending, Failure, FailureKind, Flaw, Pack, Phase, RunRecord, Try};
use waypost::shape::{self, Children, FailureLimits, OnChildFailure, Shape};
use waypost::store::Lease;
use waypost::{Digest, RunId, ScopePath, StepId};

use super::super::definition::{Definition, Kind, MAIN, Name, Step, StepPath, Steps, children};
use super::shared_world::{Given, KIND, SharedWorld};

/// Parallel steps: two are enough for every relevant order of ends.
const PARALLEL_MAX: usize = 2;

/// The state of a scope.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// The scope.
    scope: String,
    /// The value of the scope.
    input: i64,
    /// Outputs by step.
    outputs: BTreeMap<String, i64>,
    /// Finished passes per step.
    passes: BTreeMap<String, u32>,
    /// Digests of the joined children's results, per step: equal sums in `outputs` may hide a difference.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    joined: BTreeMap<String, Digest>,
}

impl State {
    /// Returns the initial state of the main scope.
    pub(super) fn first() -> Self {
        Self { scope: MAIN.to_owned(), ..Self::default() }
    }

    /// Returns the scope.
    pub(super) fn scope(&self) -> &str {
        &self.scope
    }
}

/// The work of a step.
#[derive(Debug)]
pub(super) struct Job {
    given: Given,
    joined: Option<Joined>,
}

/// A program over the world.
#[derive(Debug)]
pub(super) struct Driven {
    shape: Shape,
    definition: Definition,
    world: SharedWorld,
}

impl Driven {
    pub(super) fn new(steps: Steps, world: SharedWorld) -> Self {
        let shape = shape_of(&steps, &mut 0);
        Self { shape, definition: Definition::new(steps), world }
    }

    /// Returns the record of a run.
    pub(super) fn record(&self, run: &RunId) -> RunRecord {
        let record = RunRecord::new(run.clone(), "reference", jiff::Timestamp::UNIX_EPOCH);
        RunRecord { definition: self.shape.definition(None), ..record }
    }

    fn step(&self, step_ref: StepRef<'_>, state: &State) -> Arc<Step> {
        let steps = self.definition.steps_of(&state.scope);
        let found = steps.iter().find(|step| *step.id == *step_ref.step.id.as_str());
        found.expect("the shape has the steps of the definition").clone()
    }

    fn outputs(&self, step: &Step, state: &State) -> BTreeMap<Name, i64> {
        let read = |id: &Name| Some((id.clone(), *state.outputs.get(&**id)?));
        step.upstream().filter_map(read).collect()
    }
}

fn shape_of(steps: &Steps, level: &mut usize) -> Shape {
    let own = *level;
    let nodes = steps.iter().map(|step| node(step, level)).collect();
    Shape::new(nodes, PARALLEL_MAX).expect("generated steps are a graph").at_level(own)
}

fn node(step: &Step, level: &mut usize) -> shape::Step {
    let id = |name: &Name| StepId::new(name).expect("generated names are ids");
    let text = format!("{} {}", step.id, step.version);
    let needs = step.needs.iter().map(id).collect();
    let mut node = shape::Step::new(id(&step.id), needs, Digest::of(text.as_bytes()));
    node.idempotent = step.idempotent;
    node.claims = step.file.is_some();
    if step.is_leaf() {
        return node;
    }
    *level += 1;
    let shape = shape_of(&step.body, level);
    let is_group = step.kind == Kind::Group;
    node.claims = false;
    node.children = Some(Children {
        name: id(&step.id),
        shape: Box::new(shape),
        named: Vec::new(),
        parallel_max: PARALLEL_MAX,
        on_failure: OnChildFailure::Stop,
        by_work: false,
        limits: FailureLimits::default(),
        passes: is_group,
        whole: is_group,
    });
    if step.passes > 1 {
        node.routes = vec![id(&step.id)];
    }
    node
}

/// Returns the name of a scope in the model: `a:x` for an item, `a~1` for a pass of a group.
pub(super) fn scope_of(scope: &ScopePath) -> String {
    let scope = scope.to_string();
    let parts = scope.split('/').filter(|part| *part != MAIN);
    std::iter::once(MAIN).chain(parts).collect::<Vec<_>>().join("/")
}

#[async_trait]
impl Program for Driven {
    type State = State;
    type Job = Job;
    type Output = Prepared;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn schema(&self, _: usize) -> u32 {
        1
    }

    fn encode(&self, _: usize, state: &State, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        serde_json::to_writer(bytes, state).map_err(|error| Flaw::Malformed(error.to_string()))
    }

    fn decode(&self, _: usize, bytes: &[u8], _: u32) -> Result<State, StateError> {
        serde_json::from_slice(bytes).map_err(|error| StateError::Malformed(error.to_string()))
    }

    fn admit(&self, _: StepRef<'_>, _: &State, upstream: Upstream<'_>) -> Result<Admission, Failure> {
        Ok(upstream.admission())
    }

    fn open(&self, step_ref: StepRef<'_>, state: &State) -> Result<Vec<Item>, Failure> {
        let step = self.step(step_ref, state);
        let item = |(index, key): (usize, &Name)| Item {
            key: key.to_string(),
            value: Value::Null,
            index: index as u64,
            start: None,
        };
        Ok(step.items.iter().enumerate().map(item).collect())
    }

    fn child(&self, step_ref: StepRef<'_>, state: &State, item: &Item) -> Result<State, Failure> {
        let step = self.step(step_ref, state);
        let pass = state.passes.get(&*step.id).copied().unwrap_or(0) + 1;
        let items = [Name::from(item.key.as_str())];
        let scope = children(&state.scope, &step, pass, &items)[0].to_string();
        let before = if pass > 1 { state.outputs.get(&*step.id).copied().unwrap_or(0) } else { 0 };
        let input = state.input + self.outputs(&step, state).values().sum::<i64>() + before;
        Ok(State { scope, input, ..State::default() })
    }

    fn attach(&self, _: StepRef<'_>, _: &State, _: &mut State) {}

    fn forget(&self, step_ref: StepRef<'_>, state: &mut State) {
        state.outputs.remove(step_ref.step.id.as_str());
        state.passes.remove(step_ref.step.id.as_str());
        state.joined.remove(step_ref.step.id.as_str());
    }

    fn apply_unjoined(&self, _: StepRef<'_>, _: &mut State, _: Unjoined<'_, State>) {}

    fn forget_failure(&self, step_ref: StepRef<'_>, state: &mut State) {
        self.forget(step_ref, state);
    }

    fn restore(&self, step_ref: StepRef<'_>, state: &mut State, then: &State) {
        self.forget(step_ref, state);
        let id = step_ref.step.id.as_str();
        state.outputs.extend(then.outputs.get_key_value(id).map(|(id, output)| (id.clone(), *output)));
        state.passes.extend(then.passes.get_key_value(id).map(|(id, passes)| (id.clone(), *passes)));
        state.joined.extend(then.joined.get_key_value(id).map(|(id, digest)| (id.clone(), *digest)));
    }

    fn forget_join(&self, step_ref: StepRef<'_>, state: &mut State) {
        let id = step_ref.step.id.as_str();
        let before = state.passes.get(id).map(|passes| passes.saturating_sub(1));
        self.forget(step_ref, state);
        state.passes.extend(before.map(|passes| (id.to_owned(), passes)));
    }

    fn redact(&self, _: &mut Claim) {}

    fn redact_answer(&self, _: &mut Value) {}

    fn undo(&self, _: StepRef<'_>, _: &Try, _: &State) -> Result<Option<Job>, Failure> {
        Ok(None)
    }

    async fn recover(&self, _: StepRef<'_>, _: &State, _: Option<&Exited>) -> Option<Recovered<Prepared>> {
        None
    }

    fn settle_as_done(
        &self,
        _: StepRef<'_>,
        _: &mut State,
        _: waypost::engine::KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String> {
        Err("the player decides that steps run again".to_owned())
    }

    fn follow(&self, _: StepRef<'_>, _: &State) -> Result<Follow, String> {
        Ok(Follow::Needs)
    }

    fn keeps_apart(&self) -> bool {
        true
    }

    fn output_of(&self, step_ref: StepRef<'_>, state: &State) -> Option<Value> {
        let id = step_ref.step.id.as_str();
        state.outputs.get(id).map(|output| json!([output, state.joined.get(id)]))
    }

    fn reads_index(&self, _: StepRef<'_>) -> bool {
        false
    }

    fn is_of_item(&self, _: &State, _: &Item) -> bool {
        true
    }

    fn set_index(&self, _: &mut State, _: u64) -> bool {
        false
    }

    fn reads(&self, step_ref: StepRef<'_>) -> Vec<StepId> {
        let mut steps = vec![self.definition.steps.clone()];
        while let Some(list) = steps.pop() {
            if let Some(step) = list.iter().find(|step| *step.id == *step_ref.step.id.as_str()) {
                return step.reads.iter().filter_map(|id| StepId::new(id).ok()).collect();
            }
            steps.extend(list.iter().map(|step| step.body.clone()));
        }
        Vec::new()
    }

    fn prepare(&self, step_ref: StepRef<'_>, state: &State, joined: Option<Joined>) -> Result<Job, Failure> {
        let step = self.step(step_ref, state);
        let path = StepPath::new(&state.scope, &step.id);
        let outputs = self.outputs(&step, state);
        Ok(Job { given: Given { path, step, input: state.input, outputs }, joined })
    }

    async fn perform(&self, job: Job, attempt: Attempt) -> Performed<Prepared> {
        let Job { given, joined } = job;
        let (output, evidence) = match joined {
            Some(joined) => match made_by_children(&joined).await {
                Ok(made) => (made, None),
                Err(failure) => return Performed::Failed { failure, report: StepReport::default() },
            },
            None => {
                let output = self.world.lock().execute(&given);
                let file = given.step.file_in(&given.path.scope);
                let pack = file.map(|file| Pack::all([Claim::new(KIND, &*file).pinning()]));
                let evidence = match &pack {
                    Some(pack) => Some(attempt.check_evidence(pack, None).await),
                    None => None,
                };
                (Prepared { output, joined: None }, evidence)
            }
        };
        let outputs = serde_json::Map::from_iter([("output".to_owned(), json!(output.output))]);
        let ending =
            Ending { exit_code: Some(0), outputs: outputs.into_iter().collect(), ..Ending::default() };
        Performed::Completed { output, ending, report: StepReport { evidence, ..StepReport::default() } }
    }

    fn subjects(&self, step_ref: StepRef<'_>, state: &State) -> Vec<String> {
        let step = self.step(step_ref, state);
        step.file_in(&state.scope).map(|file| file.to_string()).into_iter().collect()
    }

    fn on_failure(&self, _: StepRef<'_>, _: &Failure) -> OnFailure {
        OnFailure::default()
    }

    fn apply(
        &self,
        state: &mut State,
        step_ref: StepRef<'_>,
        settled: Settlement<'_, Prepared>,
    ) -> Result<Follow, Failure> {
        let id = step_ref.step.id.to_string();
        if let Settlement::Completed(output, _) = settled {
            let name = id.clone();
            state.outputs.insert(name.clone(), output.output);
            state.joined.extend(output.joined.map(|digest| (name, digest)));
        }
        let step = self.step(step_ref, state);
        if step.kind != Kind::Group || step.passes == 1 {
            return Ok(Follow::Needs);
        }
        let passes = state.passes.entry(id).or_default();
        *passes += 1;
        Ok(if *passes < step.passes { Follow::To(step_ref.place) } else { Follow::Needs })
    }

    async fn begin(&self, _: &Lease) -> Result<(), BeginError> {
        Ok(())
    }

    async fn end(&self) {}
}

/// The result of a step.
#[derive(Debug)]
pub(super) struct Prepared {
    output: i64,
    /// For a join: the digest of the children's results.
    joined: Option<Digest>,
}

/// Returns the result of a join: the sum over the children, and the digest of their results.
async fn made_by_children(joined: &Joined) -> Result<Prepared, Failure> {
    let failed = |error: String| Failure::new(FailureKind::Error, vec![error]);
    let mut outcomes = joined.outcomes().await.map_err(|error| failed(error.to_string()))?;
    let (mut sum, mut gave) = (0, Vec::new());
    while let Some(child) = outcomes.next().await.map_err(|error| failed(error.to_string()))? {
        let bytes = child.record.state_bytes().ok_or_else(|| failed("a child has no state".to_owned()))?;
        let state: State = serde_json::from_slice(bytes).map_err(|error| failed(error.to_string()))?;
        sum += state.outputs.values().sum::<i64>();
        gave.push(json!([state.scope, state.outputs, state.joined]).to_string());
    }
    let digest = Digest::of_parts(gave.iter().map(String::as_bytes));
    Ok(Prepared { output: sum.rem_euclid(97), joined: Some(digest) })
}
