//! Oracles: the defects of a run at rest. Oracles compare the values that executions read, never digests.

use super::Engine;
use super::definition::{Kind, MAIN, OnItemFailure, Parent, Step, StepPath, children};
use super::engine::{Decision, FailurePolicy, Halt, Planned};
use super::play::{Feature, Statistics};
use super::position::{Activity, End, How, Truth};
use super::request::Request;
use crate::random::seed::Seeded;

/// Returns the defects of a run at rest, compared with a run without interruption.
pub fn check(engine: &Engine) -> Vec<String> {
    let mut checks = Checks { engine, has_failed: !engine.failures().is_empty(), found: Vec::new() };
    checks.scope(MAIN);
    checks.requests();
    let mut found = checks.found;
    found.extend(engine.world.twice.iter().cloned());
    found.extend(engine.world.needless.iter().map(|path| format!("{path:?} ran needlessly")));
    if !engine.stopped && engine.blocked.is_empty() {
        found.extend(engine.broken().iter().map(|path| format!("the evidence of {path:?} fails")));
    }
    found
}

/// Changes the world, plans, resumes, and returns the defects of the plan.
///
/// # Errors
/// [`Halt::NoEnd`]: plan or resume does not end.
pub fn check_plan(
    random: &mut Seeded,
    engine: &mut Engine,
    statistics: &mut Statistics,
) -> Result<Vec<String>, Halt> {
    let steps = engine.disk_definition.steps.clone();
    super::generate::upset(random, &mut engine.world, &steps, &[Feature::Plan].into());
    if random.below(2) == 0 {
        engine.world.failing.clear();
        engine.world.hidden.clear();
    }
    let planned = engine.plan(&Request::None)?;
    let before = engine.world.executed.len();
    engine.crash_at = None;
    engine.resume(&Request::None)?;
    statistics.plans += 1;
    let executed = &engine.world.executed[before..];
    let is_missing = |path: &&StepPath| matches!(planned.get(*path), None | Some(Planned::Reuse));
    let missing = executed.iter().filter(is_missing);
    let mut found: Vec<String> =
        missing.map(|path| format!("{path:?} ran, planned as {:?}", planned.get(path))).collect();
    if found.is_empty() {
        found = check(engine);
    }
    Ok(found)
}

struct Checks<'a> {
    engine: &'a Engine,
    has_failed: bool,
    found: Vec<String>,
}

impl Checks<'_> {
    fn scope(&mut self, scope: &str) {
        let engine = self.engine;
        let Some(position) = engine.positions.get(scope) else {
            self.found.push(format!("{scope} was never opened"));
            return;
        };
        if self.engine.blocked.is_empty() && !position.frontier.is_empty() && !self.is_stopped(scope) {
            self.found.push(format!("{scope} has unfinished steps: {:?}", position.frontier.keys()));
        }
        self.input(scope, &position.input.truth);
        for step in engine.steps_of(scope).iter() {
            match position.ledger.get(&step.id) {
                Some(end) => self.end(scope, step, end),
                None if self.is_stopped(scope) || !engine.blocked.is_empty() => {}
                None => self.found.push(format!("{scope}/{} has no end", step.id)),
            }
        }
    }

    /// Returns whether a failed item of a fan-out above stopped the scope before all of its steps started.
    fn is_stopped(&self, scope: &str) -> bool {
        let Some(parent) = Parent::of(scope) else { return false };
        let Some(opener) = self.engine.step(&parent.scope, &parent.opener) else { return false };
        let end = self.engine.position(&parent.scope).ledger.get(&parent.opener);
        let is_failed = end.is_some_and(|end| end.how == How::Failed);
        (is_failed && opener.on_item_failure == OnItemFailure::Stop) || self.is_stopped(&parent.scope)
    }

    fn input(&mut self, scope: &str, truth: &Truth) {
        let engine = self.engine;
        let Some(parent) = Parent::of(scope) else { return };
        let opener = engine.step(&parent.scope, &parent.opener).expect("openers of today are looked at");
        let ends = engine.position(&parent.scope).passes(&parent.opener);
        let before = ends.into_iter().find(|end| end.pass + 1 == parent.pass);
        let activity = Activity { pass: parent.pass, before, ..Activity::ready() };
        if *truth != engine.truth_given(&parent.scope, &opener, &activity) {
            self.found.push(format!("the input of {scope} is stale"));
        }
    }

    fn end(&mut self, scope: &str, step: &Step, end: &End) {
        let engine = self.engine;
        let path = StepPath::new(scope, &step.id);
        let runs = engine.condition(scope, step) == Decision::Run;
        if runs == end.was_avoided() && !end.by_hand && engine.policy == FailurePolicy::KeepGoing {
            self.found.push(format!("{path:?} ended {:?} against its condition", end.how));
        }
        if end.how == How::PassedOver && !self.has_failed && scope == MAIN {
            self.found.push(format!("{path:?} is passed over without a failure"));
        }
        if end.was_avoided() {
            return;
        }
        if step.is_leaf() {
            self.leaf(&path, step, end);
            return;
        }
        let ends = engine.position(scope).passes(&step.id);
        let mut passes: Vec<u32> = ends.iter().map(|end| end.pass).collect();
        passes.sort_unstable();
        if end.ran() && passes != (1..=step.passes).collect::<Vec<_>>() {
            self.found.push(format!("{path:?} has the passes {passes:?}"));
        }
        if step.kind == Kind::ForEach && end.items != step.items {
            self.found.push(format!("{path:?} has the items {:?}", end.items));
        }
        for end in ends {
            for child in children(scope, step, end.pass, &end.items) {
                self.scope(&child);
            }
        }
    }

    /// A completed leaf was executed with its current input and current definition.
    fn leaf(&mut self, path: &StepPath, step: &Step, end: &End) {
        let engine = self.engine;
        if end.how != How::Completed {
            let failures = engine.world.failed_in_a_row.get(path).copied().unwrap_or(0);
            if failures > 0 && failures <= step.retries {
                self.found.push(format!("{path:?} failed before its retries were used up"));
            }
            return;
        }
        let executions = engine.world.executions(path);
        let confirmed = engine.world.confirmed.get(&end.number);
        let confirmed = confirmed.filter(|confirmed| confirmed.executions == executions);
        let last = engine.world.last.get(path).map(|execution| (&execution.input, execution.version));
        let told = confirmed.map(|confirmed| (&confirmed.input, confirmed.version));
        let Some((input, version)) = told.or(last) else {
            self.found.push(format!("{path:?} ended without an execution"));
            return;
        };
        if *input != engine.truth_given(&path.scope, step, &Activity::ready()) {
            self.found.push(format!("{path:?} is stale"));
        }
        if !engine.definition.accepts(step, version) {
            self.found.push(format!("{path:?} has version {version} instead of {}", step.version));
        }
    }

    /// Each requested step ran again, if it is in force.
    fn requests(&mut self) {
        let engine = self.engine;
        for path in &engine.must_run {
            let Some(position) = engine.positions.get(&path.scope) else { continue };
            let counts = engine.in_force(&path.scope) && engine.step(&path.scope, &path.step).is_some();
            if counts && position.ledger.get(&path.step).is_some_and(|end| end.ran()) {
                self.found.push(format!("{path:?} did not run, as requested"));
            }
        }
    }
}
