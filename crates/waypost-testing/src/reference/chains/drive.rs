//! Runs random chains on the real engine: graphs with routes, the memory store, and a crash at each store
//! call.
//!
//! The executions of the play without a crash are compared with the model. All plays are checked at rest:
//! each step in force saw the current state and pins, and a second resume runs nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use waypost::engine::{RunError, TreatAs};
use waypost::evidence::Verifier;
use waypost::graph::END;
use waypost::memory::MemoryStore;
use waypost::record::{Claim, Pack, Phase, RunStatus};
use waypost::store::{Store, StoreError};
use waypost::{Context, Engine, Graph, StepError};

use super::super::definition::Name;
use super::super::drive::{Crash, Defect, FileProbe, KIND, Rounds, first_defect};
use super::super::generate::{chance, one_of};
use super::super::rule::Rules;
use super::play::{RETENTION_OF_ALL, nodes};
use super::run::{ChainRun, LENGTH_MAX, Node};
use crate::faults::faulty::FaultyStore;
use crate::random::seed::Seeded;

/// Most sessions per round; more is a defect.
const SESSIONS_MAX: usize = 30;

/// A step in an iteration.
type Visit = (String, Vec<u32>);
type Files = BTreeMap<Name, i64>;

/// The state of the graph.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct ChainState {
    steps: u64,
    value: i64,
}

/// An execution with its inputs.
#[derive(Debug, Clone, PartialEq)]
struct ChainExecution {
    state: ChainState,
    /// The pins of all executions before.
    seen: BTreeMap<Visit, Option<(Name, i64)>>,
    output: ChainState,
    pin: Option<(Name, i64)>,
}

/// Files and executions.
#[derive(Debug, Default)]
struct ChainWorld {
    files: Files,
    hidden: BTreeMap<Name, i64>,
    executed: Vec<Name>,
    last: BTreeMap<Visit, ChainExecution>,
    counts: BTreeMap<Visit, usize>,
    allowed: BTreeMap<String, usize>,
    twice: Vec<String>,
    /// Whether a person decided to rerun all steps in doubt in this resume.
    retries_all: bool,
}

#[derive(Debug, Clone, Default)]
struct ChainOutside(Arc<Mutex<ChainWorld>>);

impl ChainOutside {
    fn lock(&self) -> MutexGuard<'_, ChainWorld> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn execute(&self, node: &Node, visit: Visit, state: &ChainState) -> ChainState {
        let mut world = self.lock();
        let seen = world.last.iter().map(|(visit, last)| (visit.clone(), last.pin.clone())).collect();
        let hidden = world.hidden.get(&node.id).copied().unwrap_or(0);
        let value = (state.value + hidden + 1).rem_euclid(node.modulus);
        let content = (value + state.steps as i64).rem_euclid(node.file_modulus);
        let pin = node.file.clone().map(|file| (file, content));
        world.files.extend(pin.clone());
        world.executed.push(node.id.clone());
        let count = world.counts.entry(visit.clone()).or_default();
        *count += 1;
        let allowed = 1 + world.allowed.get(&visit.0).copied().unwrap_or(0);
        if !node.idempotent && world.counts[&visit] > allowed && !world.retries_all {
            world.twice.push(format!("{visit:?} ran twice unasked"));
        }
        let output = ChainState { steps: state.steps + 1, value };
        let execution = ChainExecution { state: state.clone(), seen, output: output.clone(), pin };
        world.last.insert(visit, execution);
        output
    }
}

/// The changes before a round, and the expected executions.
#[derive(Debug, Clone, Default)]
struct ChainRound {
    lost: Vec<Name>,
    hidden: BTreeMap<Name, i64>,
    /// The executions of the model.
    expected: Vec<Name>,
}

struct ChainScript {
    nodes: Vec<Node>,
    rounds: Vec<ChainRound>,
}

impl ChainScript {
    fn of(seed: u64) -> Result<Self, String> {
        let mut random = Seeded::new(seed);
        let nodes = nodes(&mut random);
        let mut model = ChainRun::new(nodes.clone(), RETENTION_OF_ALL + 30, Rules::default());
        let mut rounds = Vec::new();
        for number in 0..2 + random.below(3) {
            let mut round = ChainRound::default();
            if number > 0 {
                round.lost = model.world.files.keys().filter(|_| chance(&mut random, 25)).cloned().collect();
                for node in &nodes {
                    if chance(&mut random, 30) {
                        round.hidden.insert(node.id.clone(), one_of(&mut random, &[0, 0, 1, 3]));
                    }
                }
            }
            model.world.files.retain(|file, _| !round.lost.contains(file));
            model.world.hidden.extend(round.hidden.clone());
            let before = model.world.executed.len();
            model.resume().map_err(|stop| format!("the model has no rest: {stop:?}"))?;
            round.expected = model.world.executed[before..].iter().map(|path| path.step.clone()).collect();
            rounds.push(round);
        }
        Ok(Self { nodes, rounds })
    }
}

/// Plays the chain of a seed, undisturbed and with crashes in each round, and returns the first defect.
pub(in super::super) async fn find(seed: u64, crashes_max: u64) -> Option<Defect> {
    match ChainScript::of(seed) {
        Ok(script) => {
            let found = first_defect(|| ChainPlay::new(&script), script.rounds.len(), crashes_max).await?;
            Some(found.of(seed, script.nodes.len()))
        }
        Err(why) => Some(Defect { seed, round: 0, steps: 0, crash: None, found: vec![why] }),
    }
}

struct ChainPlay<'a> {
    script: &'a ChainScript,
    memory: Arc<MemoryStore>,
    outside: ChainOutside,
    graph: Graph<ChainState>,
    calls: u64,
}

impl Rounds for ChainPlay<'_> {
    async fn play(&mut self, round: usize, crash: Option<Crash>) -> Vec<String> {
        self.round(&self.script.rounds[round], crash).await
    }

    fn calls(&self) -> u64 {
        self.calls
    }
}

impl<'a> ChainPlay<'a> {
    fn new(script: &'a ChainScript) -> Self {
        let outside = ChainOutside::default();
        let graph = graph(&script.nodes, &outside);
        Self { script, memory: Arc::new(MemoryStore::new()), outside, graph, calls: 0 }
    }

    async fn round(&mut self, round: &ChainRound, crash: Option<Crash>) -> Vec<String> {
        let before = {
            let mut world = self.outside.lock();
            world.files.retain(|file, _| !round.lost.contains(file));
            world.hidden.extend(round.hidden.clone());
            world.executed.len()
        };
        let state = match self.rest(crash).await {
            Ok(state) => state,
            Err(why) => return vec![why],
        };
        let mut found = self.check(&state).await;
        let executed = self.outside.lock().executed.len();
        if crash.is_none() {
            let ran = self.outside.lock().executed[before..].to_vec();
            // The engine may run fewer steps: the model also reruns a careful step after an execution outside
            // of the lineage.
            let mut expected = round.expected.clone();
            let mut is_needless = |step: &Name| match expected.iter().position(|other| other == step) {
                Some(at) => {
                    expected.swap_remove(at);
                    false
                }
                None => true,
            };
            if ran.iter().any(&mut is_needless) {
                found.push(format!("{ran:?} ran, and in the model {:?}", round.expected));
            }
        }
        if found.is_empty() {
            if let Err(why) = self.rest(None).await {
                return vec![why];
            }
            let again = self.outside.lock().executed[executed..].to_vec();
            found.extend(again.iter().map(|step| format!("{step:?} ran in a second resume")));
        }
        found
    }

    /// Resumes the run, session by session, until completion; returns the state.
    async fn rest(&mut self, mut crash: Option<Crash>) -> Result<ChainState, String> {
        let mut retries = false;
        for _ in 0..SESSIONS_MAX {
            let store = FaultyStore::around(self.memory.clone());
            if let Some(Crash { call, fault }) = crash.take() {
                store.plan_call(call, fault);
            }
            self.outside.lock().retries_all = retries;
            let engine = self.engine(store.clone());
            let outside = self.outside.clone();
            let resume = engine.resume(&self.graph, "r");
            let resume = match retries {
                true => resume.retry_doubtful(),
                false => resume.settle_doubtful(move |_, doubtful| {
                    *outside.lock().allowed.entry(doubtful.step.to_string()).or_default() += 1;
                    Ok(TreatAs::Retry)
                }),
            };
            let end = tokio::select! {
                biased;
                end = resume => Some(end),
                () = store.died() => None,
            };
            self.calls += store.calls();
            match end {
                None => self.memory = Arc::new(self.memory.reopen()),
                Some(Ok(outcome)) => match outcome.status {
                    RunStatus::Completed => return Ok(outcome.state),
                    RunStatus::InDoubt => {}
                    status => return Err(format!("the run is {status:?}: {:?}", outcome.failed)),
                },
                Some(Err(RunError::Store(StoreError::NotFound { .. }))) => {
                    let engine = self.engine(self.memory.clone());
                    let stop = waypost::engine::StopHandle::default();
                    stop.stop(waypost::engine::StopLevel::Graceful, "the player");
                    let run = engine.run(&self.graph, "r", ChainState::default()).stop_handle(&stop);
                    run.await.map_err(|error| format!("the engine does not create the run: {error}"))?;
                }
                Some(Err(RunError::InDoubt { questions, .. })) => {
                    // A person decides: all steps in doubt run again in this resume.
                    retries = true;
                    let mut world = self.outside.lock();
                    for node in self.script.nodes.iter().filter(|node| !node.idempotent) {
                        *world.allowed.entry(node.id.to_string()).or_default() += questions.len();
                    }
                }
                Some(Err(error)) => return Err(format!("the engine refuses: {error}")),
            }
        }
        Err("the run never completes".to_owned())
    }

    fn engine(&self, store: Arc<dyn Store>) -> Engine {
        let outside = self.outside.clone();
        let read = move |file: &str| outside.lock().files.get(file).copied();
        Engine::new(store).with_verifier(Verifier::new().with_probe(Arc::new(FileProbe(read))))
    }

    /// Returns the defects of a run at rest: follows the steps in force from the first state on.
    async fn check(&self, end: &ChainState) -> Vec<String> {
        let engine = self.engine(self.memory.clone());
        let history = match engine.history("r").await {
            Ok(history) => history,
            Err(error) => return vec![format!("no history: {error}")],
        };
        let world = self.outside.lock();
        let mut found = world.twice.clone();
        let (mut state, mut pins, mut upstream) = (ChainState::default(), Files::new(), Vec::new());
        let mut next = Some(self.script.nodes[0].id.to_string());
        for entry in &history {
            let header = entry.record().header();
            let (Phase::Completed(_), Some(step)) = (&header.phase, &header.step) else { continue };
            let visit = (step.to_string(), header.at.iteration.clone());
            if next.as_deref() != Some(step.as_str()) {
                found.push(format!("{visit:?} is not on the route, which leads to {next:?}"));
            }
            let Some(last) = world.last.get(&visit) else {
                found.push(format!("{visit:?} never ran"));
                continue;
            };
            let is_seen = |before: &Visit| last.seen.get(before) == Some(&world.last[before].pin);
            if last.state != state || !upstream.iter().all(is_seen) {
                found.push(format!("{visit:?} is stale: it saw {:?}, and now {state:?} counts", last.state));
            }
            upstream.push(visit);
            pins.extend(last.pin.clone());
            state = last.output.clone();
            next = route(&self.script.nodes, step.as_str(), &state);
        }
        if state != *end || next.is_some() {
            found.push(format!("the end is {end:?}, and the steps in force lead to {state:?} and {next:?}"));
        }
        let holds = pins.iter().all(|(file, content)| world.files.get(file) == Some(content));
        if !holds {
            found.push("evidence in force does not hold".to_owned());
        }
        found
    }
}

/// Returns the next step by the state; `None` at the end.
fn route(nodes: &[Node], step: &str, state: &ChainState) -> Option<String> {
    let node = nodes.iter().find(|node| &*node.id == step)?;
    let then = &node.then[state.value as usize % node.then.len()];
    (state.steps <= LENGTH_MAX).then(|| then.to_string())
}

fn graph(nodes: &[Node], outside: &ChainOutside) -> Graph<ChainState> {
    let mut builder = Graph::<ChainState>::builder("chain").start(&nodes[0].id);
    for node in nodes {
        let (own, outside) = (node.clone(), outside.clone());
        builder = builder.step(&node.id, move |state: ChainState, context: Context| {
            let visit = (context.step().to_string(), context.iteration().to_vec());
            let output = outside.execute(&own, visit, &state);
            async move { Ok::<_, StepError>(output) }
        });
        if !node.idempotent {
            builder = builder.not_idempotent();
        }
        if let Some(file) = node.file.clone() {
            builder = builder.evidence(move |_| Pack::all([Claim::new(KIND, &*file).pinning()]));
        }
    }
    for node in nodes {
        let targets: Vec<String> =
            nodes.iter().map(|node| node.id.to_string()).chain([END.to_owned()]).collect();
        let (all, id) = (nodes.to_vec(), node.id.clone());
        let choose = move |state: &ChainState| route(&all, &id, state).unwrap_or_else(|| END.to_owned());
        builder = builder.route(&node.id, targets, choose);
    }
    builder.build().expect("the routes lead to steps of the graph")
}
