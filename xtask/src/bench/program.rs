//! Programs whose steps do nothing, so that a run measures the cost of a step.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use waypost::engine::{
    Admission, Attempt, BeginError, Engine, Exited, Follow, Item, Joined, OnFailure, Performed, Program,
    Recovered, SessionOptions, Settlement, StateError, StepRef, StepReport, Unjoined, Upstream,
};
use waypost::record::{
    Claim, Durability, Ending, FORMAT, Failure, FailureKind, Flaw, Phase, RunRecord, RunStatus,
    STATE_BYTES_WARN, Try,
};
use waypost::shape::{Retry, Shape, Step};
use waypost::store::{Lease, Store, StoreExt as _};
use waypost::{Clock as _, Digest, RunId, ScopePath, StepId, SystemClock};

use super::measure;

/// Bytes of a state besides its text: `{"steps":0,"text":""}`, with up to five more digits.
const STATE_FRAME_BYTES: usize = 26;

/// The state: a step counter, and a text that each step replaces.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct State {
    steps: u64,
    text: String,
}

/// Sequential steps that only change the state, or fail.
pub(super) struct Row<S> {
    shape: Shape,
    begin: S,
    change: Box<dyn Fn(&mut S) + Send + Sync>,
    failure: Option<FailingAttempts>,
}

/// Attempts that fail and are retried. From attempt `last` on, each calls `then`.
struct FailingAttempts {
    last: u32,
    then: fn(),
}

impl<S: fmt::Debug> fmt::Debug for Row<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").field("begin", &self.begin).finish_non_exhaustive()
    }
}

impl Row<State> {
    /// Returns `count` steps over a state of about `state_bytes`; each step replaces the text.
    pub(super) fn new(count: u32, state_bytes: usize) -> Self {
        let text_bytes = state_bytes - STATE_FRAME_BYTES;
        assert!(state_bytes < STATE_BYTES_WARN, "a state of {state_bytes} bytes is no usual one");
        let letter = |byte: u8| char::from(b'a' + byte % 26);
        // Twice the length, so that each step has a different excerpt.
        let noise: String = measure::noise(2 * text_bytes).into_iter().map(letter).collect();
        let begin = State { steps: 0, text: noise[..text_bytes].to_owned() };
        Self::of(count, begin, move |state: &mut State| {
            let begin = state.steps as usize % text_bytes;
            state.text.clear();
            state.text.push_str(&noise[begin..begin + text_bytes]);
            state.steps += 1;
        })
    }

    /// Checks the records of run `name`: the newest state counts every step, and every step has a record.
    ///
    /// # Errors
    /// If a step or record is missing.
    pub(super) async fn check(&self, store: &dyn Store, name: &str) -> anyhow::Result<()> {
        let newest = store.newest(&RunId::new(name)?, &ScopePath::main()).await?;
        let state: State = serde_json::from_slice(newest.state_bytes().context("the newest has no state")?)?;
        let (expect, seq) = (self.shape.steps().len() as u64, newest.header().seq);
        ensure!(state.steps == expect, "the newest state has {} steps of {expect}", state.steps);
        ensure!(seq > expect, "{expect} steps left {seq} records");
        Ok(())
    }
}

impl Row<String> {
    /// Returns a step that fails and is retried, with a checkpoint per attempt; the attempts from number `last`
    /// on call `then`.
    pub(super) fn failing(last: u32, then: fn()) -> Self {
        let mut step = Step::new(id(1), Vec::new(), Digest::of(b"again"));
        step.retry = Retry { max: u32::MAX, ..Retry::default() };
        let shape = Shape::new(vec![step], 1).expect("a step is a graph");
        let failure = Some(FailingAttempts { last, then });
        Self { shape, begin: String::new(), change: Box::new(|_| ()), failure }
    }

    /// Returns the run record.
    ///
    /// # Errors
    /// If `name` is not a valid run id.
    pub(super) fn record(&self, name: &str, durability: Durability) -> anyhow::Result<RunRecord> {
        run_record(&self.shape, name, durability)
    }
}

impl<S: Serialize + DeserializeOwned + Clone + Send + Sync> Row<S> {
    /// Returns `count` steps that apply `change` to the state, starting with `begin`.
    pub(super) fn of(count: u32, begin: S, change: impl Fn(&mut S) + Send + Sync + 'static) -> Self {
        let steps = (1..=count).map(|number| {
            let needs = (number > 1).then(|| id(number - 1)).into_iter().collect();
            Step::new(id(number), needs, Digest::of(&number.to_le_bytes()))
        });
        let shape = Shape::new(steps.collect(), 1).expect("steps in a row are a graph");
        Self { shape, begin, change: Box::new(change), failure: None }
    }

    /// Runs all steps in `store`, as run `name`.
    ///
    /// # Errors
    /// If the run does not complete every step.
    pub(super) async fn run(
        &self,
        store: Arc<dyn Store>,
        name: &str,
        durability: Durability,
    ) -> anyhow::Result<()> {
        let record = run_record(&self.shape, name, durability)?;
        let engine = Engine::new(store);
        let outcome = engine.run_program(self, record, self.begin.clone(), SessionOptions::default()).await?;
        ensure!(outcome.status == RunStatus::Completed, "run {name} ended as {:?}", outcome.status);
        Ok(())
    }
}

fn id(number: u32) -> StepId {
    StepId::new(&format!("step-{number}")).expect("letters, digits and a hyphen are a step id")
}

fn run_record(shape: &Shape, name: &str, durability: Durability) -> anyhow::Result<RunRecord> {
    Ok(RunRecord {
        v: FORMAT,
        run: RunId::new(name)?,
        workflow: "bench".to_owned(),
        definition: shape.definition(None),
        path: None,
        base: None,
        params: serde_json::Map::new(),
        env: BTreeMap::new(),
        labels: BTreeMap::new(),
        settings: serde_json::Map::new(),
        config: serde_json::Map::new(),
        durability,
        retention: None,
        parent: None,
        tool: "xtask bench".to_owned(),
        actor: String::new(),
        created_at: SystemClock.now(),
    })
}

#[async_trait]
impl<S: Serialize + DeserializeOwned + Clone + Send + Sync> Program for Row<S> {
    type State = S;
    type Job = ();
    type Output = ();

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn schema(&self, _: usize) -> u32 {
        1
    }

    fn encode(&self, _: usize, state: &S, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        serde_json::to_writer(bytes, state).map_err(|error| Flaw::Malformed(error.to_string()))
    }

    fn decode(&self, _: usize, bytes: &[u8], _: u32) -> Result<S, StateError> {
        serde_json::from_slice(bytes).map_err(|error| StateError::Malformed(error.to_string()))
    }

    fn open(&self, _: StepRef<'_>, _: &S) -> Result<Vec<Item>, Failure> {
        Ok(Vec::new())
    }

    fn child(&self, _: StepRef<'_>, state: &S, _: &Item) -> Result<S, Failure> {
        Ok(state.clone())
    }

    fn attach(&self, _: StepRef<'_>, _: &S, _: &mut S) {}

    fn admit(&self, _: StepRef<'_>, _: &S, upstream: Upstream<'_>) -> Result<Admission, Failure> {
        Ok(upstream.admission())
    }

    fn prepare(&self, _: StepRef<'_>, _: &S, _: Option<Joined>) -> Result<(), Failure> {
        Ok(())
    }

    async fn perform(&self, (): (), attempt: Attempt) -> Performed<()> {
        if let Some(FailingAttempts { last, then }) = &self.failure {
            if attempt.at.attempt >= *last {
                then();
            }
            let ending = Ending { exit_code: Some(1), ..Ending::default() };
            let error = vec!["exit code 1".to_owned()];
            let failure = Failure { ending, ..Failure::new(FailureKind::Exit, error) };
            return Performed::Failed { failure, report: StepReport::default() };
        }
        Performed::Completed { output: (), ending: Ending::default(), report: StepReport::default() }
    }

    fn subjects(&self, _: StepRef<'_>, _: &S) -> Vec<String> {
        Vec::new()
    }

    /// Steps have no own part in the state.
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

    fn is_of_item(&self, _: &S, _: &Item) -> bool {
        true
    }

    fn set_index(&self, _: &mut S, _: u64) -> bool {
        false
    }

    fn reads(&self, _: StepRef<'_>) -> Vec<StepId> {
        Vec::new()
    }

    fn undo(&self, _: StepRef<'_>, _: &Try, _: &Self::State) -> Result<Option<()>, Failure> {
        Ok(None)
    }

    async fn recover(&self, _: StepRef<'_>, _: &Self::State, _: Option<&Exited>) -> Option<Recovered<()>> {
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

    fn on_failure(&self, _: StepRef<'_>, _: &Failure) -> OnFailure {
        OnFailure { retry: self.failure.is_some(), tolerate: false, ..OnFailure::default() }
    }

    fn apply(&self, state: &mut S, _: StepRef<'_>, _: Settlement<'_, ()>) -> Result<Follow, Failure> {
        (self.change)(state);
        Ok(Follow::Needs)
    }

    async fn begin(&self, _: &Lease) -> Result<(), BeginError> {
        Ok(())
    }

    async fn end(&self) {}
}

/// Returns a single-threaded runtime, as used by the command `waypost`.
///
/// # Errors
/// If the system cannot create a runtime.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}
