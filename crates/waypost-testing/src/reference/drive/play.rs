//! Plays a script on the engine, undisturbed and with a crash at each store call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use waypost::engine::{
    Adoption, DryRun, OnDoubt, Outcome, Program as _, ResumeFrom, ResumeOptions, RunError, SessionOptions,
    Settle, TreatAs,
};
use waypost::evidence::Verifier;
use waypost::memory::MemoryStore;
use waypost::plan::Decision;
use waypost::record::{Phase, RunStatus};
use waypost::store::{Scan, Store as _, StoreError};
use waypost::{Digest, Engine, RunId, ScopePath, StepId};

use super::super::definition::{MAIN, StepPath, Steps};
use super::super::position::Content;
use super::super::request::Request;
use super::program::{Driven, State, scope_of};
use super::script::{Requests, Script, ScriptRound, size};
use super::shared_world::{FileProbe, SharedWorld};
use crate::faults::faulty::{Fault, FaultyStore};

/// Most sessions per round; more is a defect.
const SESSIONS_MAX: usize = 12;

/// The kinds of steps in a workflow. A level is useful once the engine passes the level before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Leaves with needs and evidence.
    Leaves,
    /// Also fan-outs.
    Items,
    /// Also groups with a single pass.
    Groups,
    /// Also groups with several passes.
    Passes,
    /// Chains: steps with a shared state and routes.
    Chains,
}

/// A defect of the engine, with the play that exposes it.
#[derive(Debug, Clone)]
pub struct Defect {
    /// The seed of the workflow.
    pub seed: u64,
    /// The round, from 0.
    pub round: usize,
    /// The number of steps of the workflow.
    pub steps: usize,
    /// The crash; `None` if the undisturbed play exposes the defect.
    pub crash: Option<Crash>,
    /// The findings.
    pub found: Vec<String>,
}

/// A crash at a call to the store, in the last round.
#[derive(Debug, Clone, Copy)]
pub struct Crash {
    /// The call, from 1.
    pub call: u64,
    /// Before or after the call.
    pub fault: Fault,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {} ({} steps), round {}", self.seed, self.steps, self.round)?;
        match self.crash {
            Some(Crash { call, fault }) => write!(f, ", {fault:?} call {call}")?,
            None => write!(f, ", undisturbed")?,
        }
        write!(f, ": {}", self.found.join(", "))
    }
}

/// Plays the script of a seed, undisturbed and with crashes in each round, and returns the first defect.
///
/// `crashes_max` limits the crash points per round to an even sample of calls.
pub async fn find(seed: u64, level: Level, requests: Requests, crashes_max: u64) -> Option<Defect> {
    if level == Level::Chains {
        return super::super::chains::drive::find(seed, crashes_max).await;
    }
    let script = match Script::of(seed, level, requests) {
        Ok(script) => script,
        Err(halt) => {
            let found = vec![format!("the model has no rest: {halt:?}")];
            return Some(Defect { seed, round: 0, steps: 0, crash: None, found });
        }
    };
    let found = first_defect(|| Replay::new(&script), script.rounds.len(), crashes_max).await?;
    Some(found.of(seed, size(&script)))
}

/// A run played in rounds.
pub(in super::super) trait Rounds {
    /// Plays a round to rest, with an optional crash, and returns the defects.
    async fn play(&mut self, round: usize, crash: Option<Crash>) -> Vec<String>;

    /// Returns the number of calls to the store so far.
    fn calls(&self) -> u64;
}

/// A defect of a play.
pub(in super::super) struct Found {
    round: usize,
    crash: Option<Crash>,
    found: Vec<String>,
}

impl Found {
    pub(in super::super) fn of(self, seed: u64, steps: usize) -> Defect {
        let Self { round, crash, found } = self;
        Defect { seed, round, steps, crash, found }
    }
}

/// Plays all rounds without a crash, then again with crashes at an even sample of the calls of each round.
/// Returns the first defect.
pub(in super::super) async fn first_defect<P: Rounds>(
    make: impl Fn() -> P,
    rounds: usize,
    crashes_max: u64,
) -> Option<Found> {
    let mut calls = Vec::new();
    let mut play = make();
    for round in 0..rounds {
        let counted = play.calls();
        let found = play.play(round, None).await;
        if !found.is_empty() {
            return Some(Found { round, crash: None, found });
        }
        calls.push(play.calls() - counted);
    }
    for (number, total) in calls.into_iter().enumerate() {
        let stride = 1 + total / crashes_max.max(1);
        for call in (1..=total).step_by(stride as usize) {
            let fault = if call.is_multiple_of(2) { Fault::DieBefore } else { Fault::DieAfter };
            let crash = Some(Crash { call, fault });
            let mut play = make();
            for round in 0..=number {
                let found = play.play(round, crash.filter(|_| round == number)).await;
                if !found.is_empty() {
                    return Some(Found { round: number, crash, found });
                }
            }
        }
    }
    None
}

struct Replay<'a> {
    script: &'a Script,
    memory: Arc<MemoryStore>,
    world: SharedWorld,
    run: RunId,
    /// The steps of the definition in force.
    steps: Steps,
    /// Per step, the definitions whose results a person kept.
    accepted: BTreeMap<String, BTreeSet<Digest>>,
    /// The request that is not in the store yet.
    request: PendingRequest,
    /// Calls to the store so far.
    calls: u64,
}

/// A request as options of a resume.
#[derive(Debug, Clone, Default)]
struct PendingRequest {
    from: Option<ResumeFrom>,
    adopt: Option<Adoption>,
}

impl Rounds for Replay<'_> {
    async fn play(&mut self, round: usize, crash: Option<Crash>) -> Vec<String> {
        let round = &self.script.rounds[round];
        let mut found = self.round(round, crash).await;
        if !found.is_empty() && !matches!(round.request, Request::None) {
            found.push(format!("the request was {}", round.request));
        }
        found
    }

    fn calls(&self) -> u64 {
        self.calls
    }
}

impl<'a> Replay<'a> {
    fn new(script: &'a Script) -> Self {
        Self {
            script,
            memory: Arc::new(MemoryStore::new()),
            world: SharedWorld::new(script.steps.clone()),
            steps: script.steps.clone(),
            accepted: BTreeMap::new(),
            request: PendingRequest::default(),
            run: RunId::new("r").expect("the name of the run is an id"),
            calls: 0,
        }
    }

    async fn round(&mut self, round: &ScriptRound, crash: Option<Crash>) -> Vec<String> {
        let before = {
            let mut world = self.world.lock();
            world.files.retain(|file, _| !round.lost.contains(file));
            world.hidden.extend(round.hidden.clone());
            world.executed.len()
        };
        self.take_request(round);
        let plan = if crash.is_none() { self.dry_run().await } else { Ok(None) };
        if let Err(why) = self.rest(crash).await {
            return vec![why];
        }
        let mut found = self.world.lock().check();
        let executed = self.world.lock().executed.len();
        if crash.is_none() {
            found.extend(self.compare(&round.expected, before));
        }
        match plan {
            Ok(Some(plan)) => found.extend(self.check_plan(&plan, before)),
            Ok(None) => {}
            Err(why) => found.push(format!("no dry run: {why}")),
        }
        if found.is_empty() {
            if let Err(why) = self.rest(None).await {
                return vec![why];
            }
            let again = self.world.lock().executed[executed..].to_vec();
            found.extend(again.iter().map(|path| format!("{path:?} ran in a second resume")));
        }
        found
    }

    /// Makes the request of a round pending.
    fn take_request(&mut self, round: &ScriptRound) {
        let mut world = self.world.lock();
        match &round.request {
            Request::From(path) => {
                let step = StepId::new(&path.step).expect("generated names are ids");
                let scope = path.scope.strip_prefix(MAIN).unwrap_or_default().strip_prefix('/');
                let scope = scope.map(|name| ScopePath::new(name).expect("generated scopes are valid"));
                self.request.from = Some(match scope {
                    Some(scope) => ResumeFrom::StepOn(scope, step),
                    None => ResumeFrom::Step(step),
                });
                // A person named the step: it is not in doubt.
                world.allow(path.clone());
            }
            Request::Adopt(adoption) => {
                let before = Driven::new(self.steps.clone(), self.world.clone());
                let after = Driven::new(adoption.steps.clone(), self.world.clone());
                let old = before.shape().definition(None);
                for print in &old.steps {
                    let name = print.id.as_str();
                    if adoption.keep_finished.iter().any(|step| **step == *name) {
                        self.accepted.entry(name.to_owned()).or_default().insert(print.fingerprint);
                    }
                    if adoption.rerun_changed.iter().any(|step| **step == *name) {
                        self.accepted.remove(name);
                    }
                }
                let mut definition = after.shape().definition(None);
                definition.accepted = self.accepted.clone();
                let kept = adoption.keep_finished.iter().filter_map(|step| StepId::new(step).ok());
                self.request.adopt = Some(Adoption {
                    before: before.shape().clone(),
                    definition,
                    redo: true,
                    kept: kept.collect(),
                    rerun: Vec::new(),
                    within: BTreeSet::new(),
                    entered: BTreeSet::new(),
                });
                self.steps = adoption.steps.clone();
                world.adopt(self.steps.clone());
            }
            _ => return,
        }
        world.allow_reruns(&round.expected);
    }

    /// Makes a dry run of the next resume; returns `None` before the run is created.
    async fn dry_run(&self) -> Result<Option<DryRun>, String> {
        let driven = Driven::new(self.steps.clone(), self.world.clone());
        let PendingRequest { from, adopt } = self.request.clone();
        let options =
            || ResumeOptions { from: from.clone(), adopt: adopt.clone(), ..ResumeOptions::default() };
        match self.engine(self.memory.clone()).dry_run(&driven, &self.run, options).await {
            Err(RunError::Store(StoreError::NotFound { .. })) => Ok(None),
            dry_run => dry_run.map(Some).map_err(|error| error.to_string()),
        }
    }

    /// Compares the executions of a round with the preceding dry run. A planned start with an unknown input
    /// may become a reuse.
    fn check_plan(&self, plan: &DryRun, before: usize) -> Vec<String> {
        let executed: BTreeSet<StepPath> = self.world.lock().executed[before..].iter().cloned().collect();
        let mut allowed = BTreeSet::new();
        let mut found = Vec::new();
        for (scope, step, is_known) in plan.starts() {
            let path = StepPath::new(&scope_of(scope), step.as_str());
            if is_known && !executed.contains(&path) {
                found.push(format!("the dry run starts {path:?}, which does not run"));
            }
            allowed.insert(path);
        }
        let missing = executed.iter().filter(|path| !allowed.contains(path));
        found.extend(missing.map(|path| format!("{path:?} ran, and the dry run does not start it")));
        found
    }

    /// Compares the executions of a round with the model.
    fn compare(&self, expected: &[StepPath], before: usize) -> Vec<String> {
        let mut difference: BTreeMap<StepPath, i64> = BTreeMap::new();
        for path in &self.world.lock().executed[before..] {
            *difference.entry(path.clone()).or_default() += 1;
        }
        for path in expected {
            *difference.entry(path.clone()).or_default() -= 1;
        }
        let told = |(path, count): (StepPath, i64)| match count {
            0 => None,
            1.. => Some(format!("{path:?} ran {count} times more than in the model")),
            _ => Some(format!("{path:?} ran {} times less than in the model", -count)),
        };
        difference.into_iter().filter_map(told).collect()
    }

    /// Resumes the run, session by session, until it is complete.
    async fn rest(&mut self, mut crash: Option<Crash>) -> Result<(), String> {
        self.world.lock().retries_all = false;
        for _ in 0..SESSIONS_MAX {
            let store = FaultyStore::around(self.memory.clone());
            if let Some(Crash { call, fault }) = crash.take() {
                store.plan_call(call, fault);
            }
            let records = self.records().await;
            let end = self.session(&store).await;
            self.calls += store.calls();
            if end.is_none() {
                self.memory = Arc::new(self.memory.reopen());
                self.lose_ends().await;
            }
            if self.records().await > records {
                self.request = PendingRequest::default();
            }
            match end {
                None => {}
                Some(Ok(outcome)) => match outcome.status {
                    RunStatus::Completed => return Ok(()),
                    RunStatus::InDoubt => {}
                    status => return Err(format!("the run is {status:?}: {:?}", outcome.failed)),
                },
                Some(Err(RunError::Store(StoreError::NotFound { .. }))) => self.create().await?,
                Some(Err(RunError::InDoubt { questions, .. })) => self.decide(&questions),
                Some(Err(error)) => return Err(format!("the engine refuses: {error}")),
            }
        }
        Err("the run never completes".to_owned())
    }

    /// Records the decision of a person to rerun all steps in doubt, now and in the next sessions.
    fn decide(&self, questions: &[Decision]) {
        let mut world = self.world.lock();
        world.retries_all = true;
        for question in questions {
            let scope = scope_of(&question.scope);
            world.allow(StepPath::new(&scope, question.step.as_str()));
        }
    }

    /// Creates the run without a finished step.
    async fn create(&self) -> Result<(), String> {
        let driven = Driven::new(self.steps.clone(), self.world.clone());
        let engine = self.engine(self.memory.clone());
        let stop = waypost::engine::StopHandle::default();
        stop.stop(waypost::engine::StopLevel::Graceful, "the player");
        let options = SessionOptions { stop, ..SessionOptions::default() };
        let first = engine.run_program(&driven, driven.record(&self.run), State::first(), options).await;
        first.map(drop).map_err(|error| format!("the engine does not create the run: {error}"))
    }

    fn engine(&self, store: Arc<dyn waypost::store::Store>) -> Engine {
        let world = self.world.clone();
        let read = move |file: &str| match world.lock().files.get(file) {
            Some(Content::Number(number)) => Some(*number),
            _ => None,
        };
        Engine::new(store).with_verifier(Verifier::new().with_probe(Arc::new(FileProbe(read))))
    }

    /// Resumes until the planned crash; returns the outcome if the session ends before.
    async fn session(&self, store: &Arc<FaultyStore>) -> Option<Result<Outcome<State>, RunError>> {
        let driven = Driven::new(self.steps.clone(), self.world.clone());
        let engine = self.engine(store.clone());
        let world = self.world.clone();
        let settle = move |state: &mut State, doubtful: &waypost::engine::Doubtful| {
            world.lock().allow(StepPath::new(state.scope(), doubtful.step.as_str()));
            Ok(TreatAs::Retry)
        };
        let retries_all = self.world.lock().retries_all;
        let on_doubt = if retries_all { OnDoubt::Retry } else { OnDoubt::Settle(Settle(Box::new(settle))) };
        let PendingRequest { from, adopt } = self.request.clone();
        let options = ResumeOptions { from, adopt, on_doubt, ..ResumeOptions::default() };
        tokio::select! {
            biased;
            end = engine.resume_program(&driven, &self.run, options) => Some(end),
            () = store.died() => None,
        }
    }

    /// Returns the number of records of the run.
    async fn records(&self) -> usize {
        let mut scan = Scan::of(&self.run);
        let mut count = 0;
        while let Ok(page) = self.memory.scan(&scan).await {
            count += page.records.len();
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => break,
            }
        }
        count
    }

    /// Reads from the store which executions have a durable end.
    async fn lose_ends(&self) {
        let mut recorded: BTreeMap<StepPath, usize> = BTreeMap::new();
        let mut scan = Scan::of(&self.run);
        while let Ok(page) = self.memory.scan(&scan).await {
            for record in &page.records {
                let header = record.header();
                if let (Phase::Completed(_), Some(step)) = (&header.phase, &header.step) {
                    let scope = scope_of(&header.scope);
                    *recorded.entry(StepPath::new(&scope, step.as_str())).or_default() += 1;
                }
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => break,
            }
        }
        let count = |path: &StepPath| recorded.get(path).copied().unwrap_or(0);
        self.world.lock().lose_ends(count);
    }
}
