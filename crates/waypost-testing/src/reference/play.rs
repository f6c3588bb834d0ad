//! Plays of random workflows: rounds of trouble, each resumed until rest, with crashes at any commit.

use super::check::{check, check_plan};
use super::definition::{MAIN, StepPath};
use super::engine::{FailurePolicy, Halt};
use super::generate::{Features, adoption, chance, one_of, upset, workflow};
use super::request::Request;
use super::{Engine, Rules};
use crate::random::seed::Seeded;

/// A feature of random workflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// Tolerated failures of items, and their retry.
    DeadLetters,
    /// Edits of the definition.
    Edits,
    /// Conditions, skipped steps, tolerated failures.
    Failures,
    /// Hooks.
    Hooks,
    /// Rollback, and reruns from a step.
    Travel,
    /// Plans.
    Plan,
    /// Files that several steps edit in order.
    InPlace,
    /// Retries of failed attempts.
    Retries,
    /// Steps that a person skips.
    Skip,
    /// Fan-outs that stop at the first failed item.
    Stop,
    /// Evidence that cannot be verified.
    Unknown,
    /// Independent openers, several of which fail in the same round.
    Scopes,
    /// In lockstep with the command: rollback to the end of an earlier round.
    Rollback,
}

impl Feature {
    /// All features, except for [`Self::Scopes`] with other workflows, and [`Self::Rollback`]: here, [`Self::Travel`]
    /// includes rollbacks.
    pub const ALL: [Self; 11] = [
        Self::DeadLetters,
        Self::Edits,
        Self::Failures,
        Self::Hooks,
        Self::Travel,
        Self::Plan,
        Self::InPlace,
        Self::Retries,
        Self::Skip,
        Self::Stop,
        Self::Unknown,
    ];
}

/// Counters over plays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Runs at rest.
    pub rests: usize,
    /// Runs at rest with failures.
    pub failed: usize,
    /// Crashes.
    pub crashes: usize,
    /// Executions.
    pub executed: usize,
    /// Reused results.
    pub reused: usize,
    /// Questions.
    pub asked: usize,
    /// Plans.
    pub plans: usize,
    /// Rejoined chains.
    pub rejoined: usize,
}

/// Attempts of a resume that may crash; later attempts reach rest.
const CRASHING_ATTEMPTS: u32 = 5;
const ATTEMPTS_MAX: u32 = 12;

/// Plays a random workflow and returns its defects.
pub fn play(seed: u64, features: &Features, rules: &Rules, statistics: &mut Statistics) -> Vec<String> {
    let mut random = Seeded::new(seed);
    let steps = workflow(&mut random, features);
    let policy = if chance(&mut random, 50) { FailurePolicy::KeepGoing } else { FailurePolicy::FailFast };
    let engine = Engine::new(steps, policy, rules.clone(), Seeded::new(!seed));
    let mut play = Play { random, engine, features, statistics };
    let rounds = 2 + play.random.below(4);
    for number in 0..rounds {
        let found = play.round(Round { is_first: number == 0, is_last: number + 1 == rounds });
        let found = found.unwrap_or_else(|halt| vec![format!("no rest: {halt:?}")]);
        if !found.is_empty() {
            return found;
        }
    }
    play.statistics.executed += play.engine.world.executed.len();
    play.statistics.reused += play.engine.reused;
    play.statistics.asked += play.engine.asked;
    Vec::new()
}

#[derive(Clone, Copy)]
struct Round {
    is_first: bool,
    is_last: bool,
}

struct Play<'a> {
    random: Seeded,
    engine: Engine,
    features: &'a Features,
    statistics: &'a mut Statistics,
}

impl Play<'_> {
    fn round(&mut self, round: Round) -> Result<Vec<String>, Halt> {
        let mut request = Request::None;
        if !round.is_first {
            self.upset();
        }
        if round.is_last {
            self.engine.world.mend();
        }
        if !round.is_first {
            request = self.request();
        }
        if !self.resume_to_rest(request, round)? {
            return Ok(vec!["no rest".to_owned()]);
        }
        let mut found = check(&self.engine);
        self.statistics.rests += 1;
        let has_failed = !self.engine.failures().is_empty();
        self.statistics.failed += usize::from(has_failed);
        if !self.engine.blocked.is_empty() {
            return Ok(found);
        }
        if found.is_empty() && round.is_last && !self.engine.stopped {
            found = self.end()?;
        } else if found.is_empty() && !has_failed && !self.engine.stopped {
            found = self.idle()?;
        }
        if found.is_empty() && self.features.contains(&Feature::Plan) {
            found = check_plan(&mut self.random, &mut self.engine, self.statistics)?;
        }
        Ok(found)
    }

    fn upset(&mut self) {
        let steps = self.engine.disk_definition.steps.clone();
        upset(&mut self.random, &mut self.engine.world, &steps, self.features);
    }

    fn request(&mut self) -> Request {
        let has = |feature| self.features.contains(&feature);
        let mut kinds: Vec<u32> = Vec::new();
        kinds.extend(has(Feature::Edits).then_some(0));
        kinds.extend(has(Feature::DeadLetters).then_some(1));
        kinds.extend(has(Feature::Travel).then_some([2, 3]).into_iter().flatten());
        kinds.extend(has(Feature::Skip).then_some(5));
        kinds.push(4);
        match one_of(&mut self.random, &kinds) {
            0 => Request::Adopt(adoption(&mut self.random, &mut self.engine)),
            1 => Request::RetryFailed,
            2 => Request::From(self.step_in_force()),
            3 => Request::Rollback(self.random.below(self.engine.history() as u64) as usize),
            5 => Request::Skip(self.step_to_skip()),
            _ => Request::None,
        }
    }

    /// Returns a failed or unfinished leaf, if any.
    fn step_to_skip(&mut self) -> StepPath {
        let engine = &self.engine;
        let scopes = engine.positions.iter().filter(|(scope, _)| engine.in_force(scope));
        let open = scopes.flat_map(|(scope, position)| {
            position.frontier.keys().map(|id| StepPath { scope: scope.clone(), step: id.clone() })
        });
        let is_leaf =
            |path: &StepPath| engine.step(&path.scope, &path.step).is_some_and(|step| step.is_leaf());
        let mut candidates: Vec<StepPath> = open.chain(engine.failures()).filter(is_leaf).collect();
        if candidates.is_empty() {
            candidates = vec![self.step_in_force()];
        }
        one_of(&mut self.random, &candidates)
    }

    fn step_in_force(&mut self) -> StepPath {
        let engine = &self.engine;
        let scopes = engine.positions.iter().filter(|(scope, _)| engine.in_force(scope));
        let ended = scopes.flat_map(|(scope, position)| {
            position.ledger.keys().map(|id| StepPath { scope: scope.clone(), step: id.clone() })
        });
        let ended: Vec<StepPath> = ended.collect();
        if ended.is_empty() { StepPath::new(MAIN, "?") } else { one_of(&mut self.random, &ended) }
    }

    /// Resumes with crashes until rest. A request that is already in the store is not repeated.
    fn resume_to_rest(&mut self, mut request: Request, round: Round) -> Result<bool, Halt> {
        for attempt in 0..ATTEMPTS_MAX {
            self.engine.commits = 0;
            let crashes = attempt < CRASHING_ATTEMPTS && chance(&mut self.random, 60);
            self.engine.crash_at = crashes.then(|| self.random.below(9) as usize);
            let history = self.engine.history();
            match self.engine.resume(&request) {
                Ok(()) => {
                    self.engine.crash_at = None;
                    return Ok(true);
                }
                Err(Halt::NoEnd) => return Err(Halt::NoEnd),
                Err(Halt::Crash) => self.statistics.crashes += 1,
            }
            if self.engine.disk.is_empty() {
                continue;
            }
            if self.engine.history() > history {
                request = Request::None;
            }
            if chance(&mut self.random, 40) {
                self.upset();
            }
            if round.is_last {
                self.engine.world.mend();
            }
        }
        Ok(false)
    }

    /// Ends all failures: failed items are retried, and then a resume is idle.
    fn end(&mut self) -> Result<Vec<String>, Halt> {
        for _ in 0..2 {
            if self.features.contains(&Feature::DeadLetters) {
                self.engine.resume(&Request::RetryFailed)?;
                let found = check(&self.engine);
                if !found.is_empty() {
                    return Ok(found);
                }
            }
            let mut found = self.idle()?;
            found.extend(check(&self.engine));
            found.extend(self.engine.failures().iter().map(|path| format!("{path:?} failed at the end")));
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    fn idle(&mut self) -> Result<Vec<String>, Halt> {
        let before = self.engine.world.executed.len();
        self.engine.resume(&Request::None)?;
        let executed = &self.engine.world.executed[before..];
        Ok(executed.iter().map(|path| format!("{path:?} ran in a second resume")).collect())
    }
}
