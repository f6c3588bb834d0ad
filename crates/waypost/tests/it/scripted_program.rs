//! A program with scripted steps, for tests of the engine.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use waypost::engine::{
    Admission, Attempt, BeginError, CancelCause, Exited, Follow, Item, Joined, OnFailure, Performed, Program,
    Recovered, Settlement, StateError, StepRef, StepReport, Unjoined, Upstream,
};
use waypost::record::{Claim, Ending, Failure, FailureKind, Flaw, Phase, RunRecord, SkipCause, Try};
use waypost::shape::{Retry, Shape, Step};
use waypost::store::Lease;
use waypost::{Digest, RunId, StepId};

/// The action of a step on an attempt.
#[derive(Debug, Clone)]
pub(crate) enum Does {
    /// Completes with outputs.
    Ok(Value),
    /// Fails.
    Fail,
    /// Hangs until a stop.
    Hang,
    /// Ends without a result, as after a kill.
    Cut,
    /// Is skipped.
    Skip,
}

/// The condition of a step that is also decided after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    /// `always()`.
    Always,
    /// `failure()`.
    Only,
}

/// Steps and their actions, by step and attempt; a step without an entry completes.
#[derive(Debug)]
pub(crate) struct Toy {
    shape: Shape,
    does: HashMap<(String, u32), Does>,
    tolerated: Vec<String>,
    after_failure: HashMap<String, AfterFailure>,
    is_unable: bool,
    pub(crate) trace: Arc<Mutex<Vec<String>>>,
}

impl Toy {
    /// Parses `a; b: a; c!: a b`: steps with their needs. `!` marks a step as not idempotent.
    pub(crate) fn new(text: &str, parallel_max: usize) -> Self {
        let step = |line: &str| {
            let (id, needs) = line.trim().split_once(':').unwrap_or((line.trim(), ""));
            let needs = needs.split_whitespace().map(|need| StepId::new(need).unwrap()).collect();
            let mut step =
                Step::new(StepId::new(id.trim_end_matches('!')).unwrap(), needs, Digest::of(id.as_bytes()));
            step.idempotent = !id.ends_with('!');
            step
        };
        let shape = Shape::new(text.split(';').map(step).collect(), parallel_max).unwrap();
        Self {
            shape,
            does: HashMap::new(),
            tolerated: Vec::new(),
            after_failure: HashMap::new(),
            is_unable: false,
            trace: Arc::default(),
        }
    }

    pub(crate) fn does(mut self, step: &str, attempt: u32, does: Does) -> Self {
        self.does.insert((step.to_owned(), attempt), does);
        self
    }

    pub(crate) fn retry(mut self, step: &str, max: u32, delay: Duration) -> Self {
        let mut steps = self.shape.steps().to_vec();
        let found = steps.iter_mut().find(|s| s.id.as_str() == step).unwrap();
        found.retry = Retry { max, delay, ..Retry::default() };
        self.shape = Shape::new(steps, self.shape.parallel_max()).unwrap();
        self
    }

    pub(crate) fn timeout(mut self, step: &str, timeout: Duration) -> Self {
        let mut steps = self.shape.steps().to_vec();
        steps.iter_mut().find(|s| s.id.as_str() == step).unwrap().timeout = Some(timeout);
        self.shape = Shape::new(steps, self.shape.parallel_max()).unwrap();
        self
    }

    /// Changes the fingerprint of a step.
    pub(crate) fn meaning(mut self, step: &str, what: &str) -> Self {
        let mut steps = self.shape.steps().to_vec();
        steps.iter_mut().find(|s| s.id.as_str() == step).unwrap().fingerprint = Digest::of(what.as_bytes());
        self.shape = Shape::new(steps, self.shape.parallel_max()).unwrap();
        self
    }

    pub(crate) fn tolerate(mut self, step: &str) -> Self {
        self.tolerated.push(step.to_owned());
        self
    }

    /// Gives a step this condition.
    pub(crate) fn decides(mut self, step: &str, condition: AfterFailure) -> Self {
        self.after_failure.insert(step.to_owned(), condition);
        self
    }

    /// Makes one failure keep all other steps from starting.
    pub(crate) fn failing_fast(mut self) -> Self {
        self.shape = self.shape.failing_fast(true);
        self
    }

    /// Makes the preparation of every step fail.
    pub(crate) fn unable_to_begin(mut self) -> Self {
        self.is_unable = true;
        self
    }

    /// Returns the same steps for another session, with a shared trace.
    pub(crate) fn again(&self) -> Self {
        Self {
            shape: self.shape.clone(),
            does: self.does.clone(),
            tolerated: self.tolerated.clone(),
            after_failure: self.after_failure.clone(),
            is_unable: self.is_unable,
            trace: Arc::clone(&self.trace),
        }
    }

    /// Returns the same steps, all completing.
    pub(crate) fn healed(&self) -> Self {
        Self { does: HashMap::new(), ..self.again() }
    }

    pub(crate) fn trace(&self) -> String {
        self.trace.lock().unwrap().join(" ")
    }

    pub(crate) fn record(&self, run: &str) -> RunRecord {
        let created_at = "2026-11-21T12:00:00Z".parse().unwrap();
        let record = RunRecord::new(RunId::new(run).unwrap(), "toy", created_at);
        RunRecord { definition: self.shape.definition(None), tool: "test".to_owned(), ..record }
    }
}

pub(crate) fn failure(kind: FailureKind, error: &str) -> Failure {
    let ending = Ending { exit_code: Some(1), ..Ending::default() };
    Failure { kind, error: vec![error.to_owned()], retried: false, tolerated: false, ending, below: None }
}

#[async_trait]
impl Program for Toy {
    type State = BTreeMap<String, Value>;
    type Job = Does;
    type Output = Value;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn schema(&self, _: usize) -> u32 {
        1
    }

    fn encode(&self, _: usize, state: &Self::State, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        serde_json::to_writer(bytes, state).map_err(|error| Flaw::Malformed(error.to_string()))
    }

    fn decode(&self, _: usize, bytes: &[u8], _: u32) -> Result<Self::State, StateError> {
        serde_json::from_slice(bytes).map_err(|error| StateError::Malformed(error.to_string()))
    }

    fn open(&self, _: StepRef<'_>, _: &Self::State) -> Result<Vec<Item>, Failure> {
        unreachable!("no step of the toy has children")
    }

    fn child(&self, _: StepRef<'_>, _: &Self::State, _: &Item) -> Result<Self::State, Failure> {
        unreachable!("no step of the toy has children")
    }

    fn attach(&self, _: StepRef<'_>, _: &Self::State, _: &mut Self::State) {}

    fn admit(
        &self,
        step_ref: StepRef<'_>,
        _: &Self::State,
        upstream: Upstream<'_>,
    ) -> Result<Admission, Failure> {
        match self.does.get(&(step_ref.step.id.to_string(), 1)) {
            Some(Does::Skip) => Ok(Admission::Skip(SkipCause::Condition("false".to_owned()))),
            _ => Ok(match (self.after_failure.get(step_ref.step.id.as_str()), upstream.failed()) {
                (Some(AfterFailure::Always), _) | (Some(AfterFailure::Only), Some(_)) => Admission::Run,
                (Some(AfterFailure::Only), None) => {
                    Admission::Skip(SkipCause::Condition("failure()".to_owned()))
                }
                (None, _) => upstream.admission(),
            }),
        }
    }

    fn prepare(&self, _: StepRef<'_>, _: &Self::State, _: Option<Joined>) -> Result<Does, Failure> {
        Ok(Does::Ok(Value::Null))
    }

    async fn perform(&self, _: Does, attempt: Attempt) -> Performed<Value> {
        self.trace.lock().unwrap().push(attempt.step.to_string());
        let key = (attempt.step.to_string(), attempt.at.attempt);
        match self.does.get(&key).cloned().unwrap_or(Does::Ok(json!({ "n": attempt.at.attempt }))) {
            Does::Ok(value) => {
                let outputs =
                    value.as_object().map(|map| map.clone().into_iter().collect()).unwrap_or_default();
                let ending = Ending { exit_code: Some(0), outputs, ..Ending::default() };
                Performed::Completed { output: value, ending, report: StepReport::default() }
            }
            Does::Fail => Performed::Failed {
                failure: failure(FailureKind::Exit, "exit code 1"),
                report: StepReport::default(),
            },
            Does::Hang => match attempt.stopped().await {
                CancelCause::Stop(_) => Performed::Stopped { in_progress: true },
                CancelCause::Timeout(_) => Performed::Failed {
                    failure: failure(FailureKind::Timeout, "too slow"),
                    report: StepReport::default(),
                },
            },
            Does::Cut => Performed::Cut {
                why: "its supervisor is gone".to_owned(),
                was_killed: true,
                report: StepReport::default(),
            },
            Does::Skip => unreachable!("a skipped step is not performed"),
        }
    }

    fn subjects(&self, step_ref: StepRef<'_>, _: &Self::State) -> Vec<String> {
        step_ref.step.subjects.clone()
    }

    /// A step that runs again overwrites its own value.
    fn forget(&self, _: StepRef<'_>, _: &mut Self::State) {}

    fn apply_unjoined(&self, _: StepRef<'_>, _: &mut Self::State, _: Unjoined<'_, Self::State>) {}

    fn forget_failure(&self, _: StepRef<'_>, _: &mut Self::State) {}

    fn forget_join(&self, _: StepRef<'_>, _: &mut Self::State) {}

    fn restore(&self, _: StepRef<'_>, _: &mut Self::State, _: &Self::State) {}

    fn redact(&self, _: &mut Claim) {}

    fn redact_answer(&self, _: &mut Value) {}

    fn keeps_apart(&self) -> bool {
        false
    }

    fn output_of(&self, _: StepRef<'_>, _: &Self::State) -> Option<Value> {
        None
    }

    fn reads_index(&self, _: StepRef<'_>) -> bool {
        false
    }

    fn is_of_item(&self, _: &BTreeMap<String, Value>, _: &Item) -> bool {
        true
    }

    fn set_index(&self, _: &mut BTreeMap<String, Value>, _: u64) -> bool {
        false
    }

    fn reads(&self, _: StepRef<'_>) -> Vec<StepId> {
        Vec::new()
    }

    fn undo(&self, _: StepRef<'_>, _: &Try, _: &Self::State) -> Result<Option<Does>, Failure> {
        Ok(None)
    }

    async fn recover(&self, _: StepRef<'_>, _: &Self::State, _: Option<&Exited>) -> Option<Recovered<Value>> {
        None
    }

    fn settle_as_done(
        &self,
        _: StepRef<'_>,
        _: &mut Self::State,
        _: waypost::engine::KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String> {
        Err("what it gave is for the caller to say".to_owned())
    }

    fn follow(&self, _: StepRef<'_>, _: &Self::State) -> Result<Follow, String> {
        Ok(Follow::Needs)
    }

    fn on_failure(&self, step_ref: StepRef<'_>, _: &Failure) -> OnFailure {
        OnFailure {
            retry: true,
            tolerate: self.tolerated.contains(&step_ref.step.id.to_string()),
            ..OnFailure::default()
        }
    }

    fn apply(
        &self,
        state: &mut Self::State,
        step_ref: StepRef<'_>,
        settled: Settlement<'_, Value>,
    ) -> Result<Follow, Failure> {
        let value = match settled {
            Settlement::Completed(value, _) => value,
            Settlement::Tolerated(_) => json!("tolerated"),
            Settlement::Failed(_) => json!("failed"),
            Settlement::Skipped => json!("skipped"),
        };
        state.insert(step_ref.step.id.to_string(), value);
        Ok(Follow::Needs)
    }

    async fn begin(&self, _: &Lease) -> Result<(), BeginError> {
        if self.is_unable { Err(BeginError("it is unable to".into())) } else { Ok(()) }
    }

    async fn end(&self) {}
}
