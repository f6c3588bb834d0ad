//! The walk: the order of steps, and the decision for each step.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::definition::{MAIN, Name, Step, StepPath, When, children};
use super::super::position::{Activity, Digest, End, How, Progress};
use super::super::rule::Rule;
use super::{Engine, FailurePolicy, Halt, Mode};

/// A step to decide.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub scope: Name,
    pub step: Arc<Step>,
    pub activity: Activity,
}

impl Turn {
    pub(super) fn path(&self) -> StepPath {
        StepPath { scope: self.scope.clone(), step: self.step.id.clone() }
    }
}

/// The decision from a step's condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The step runs.
    Run,
    /// The step ends without an execution.
    Avoid(How),
}

impl Engine {
    /// Returns all steps that are ready for a decision.
    pub(super) fn turns(&self) -> Vec<Turn> {
        let mut found = Vec::new();
        self.turns_of(MAIN, &mut found);
        found
    }

    fn turns_of(&self, scope: &str, found: &mut Vec<Turn>) {
        for (id, activity) in &self.position(scope).frontier {
            let step = self.step(scope, id).expect("only steps of today are on the frontier");
            let turn = || Turn { scope: scope.into(), step: step.clone(), activity: activity.clone() };
            if activity.progress != Progress::Children {
                found.push(turn());
                continue;
            }
            let scopes = children(scope, &step, activity.pass, &activity.items);
            let is_at_rest = |child: &Name| {
                self.positions.get(child).is_some_and(|position| position.opening == activity.opening)
                    && self.is_closed(child)
            };
            if scopes.iter().all(is_at_rest) {
                found.push(turn());
            } else if self.on(Rule::StopStartsNoItem) && self.is_stopped_fan_out(scope, &step, activity) {
                found.push(turn());
                continue;
            }
            for child in scopes.iter().filter(|child| self.positions.contains_key(*child)) {
                self.turns_of(child, found);
            }
        }
    }

    /// Handles ready steps in random order until none is ready.
    pub(super) fn walk(&mut self) -> Result<(), Halt> {
        while !self.stopped {
            let mut turns = self.turns();
            turns.retain(|turn| !self.blocked.contains(&turn.path()));
            if turns.is_empty() {
                return Ok(());
            }
            let index = self.random.below(turns.len() as u64) as usize;
            self.take_turn(&turns.swap_remove(index))?;
        }
        Ok(())
    }

    /// Handles a step: condition, then reuse, then a question, then execution, opening or join.
    fn take_turn(&mut self, turn: &Turn) -> Result<(), Halt> {
        let Turn { scope, step, activity } = turn;
        if activity.progress == Progress::Children {
            return self.join(turn);
        }
        if let Decision::Avoid(how) = self.condition(scope, step) {
            let end = self.avoided_end(turn, how);
            self.settle(turn, end);
            return Ok(());
        }
        let is_fresh = activity.progress == Progress::Ready && !activity.retry;
        let set_aside = self.position(scope).reusable.contains_key(&(step.id.clone(), activity.pass));
        let old = self.set_aside_end(scope, step, activity);
        if let Some(base) = self.broken_base(scope, step)
            && !(is_fresh && self.reusable_end(scope, step, activity).is_some())
        {
            return self.rerun_base(scope, base);
        }
        if let Some(decided) = self.position(scope).skipped.get(&step.id) {
            let holds = match decided {
                None => true,
                Some(trace) => {
                    self.on(Rule::SkipHoldsForSameInput) && *trace == self.trace(scope, step, activity)
                }
            };
            if holds {
                self.skip_by_hand(turn);
                return Ok(());
            }
            self.change(scope).skipped.remove(&step.id);
        }
        if self.is_plan {
            return self.plan_turn(turn);
        }
        if is_fresh && self.has_unknown_evidence(scope, step, activity) {
            self.blocked.insert(turn.path());
            return Ok(());
        }
        let reused = if is_fresh { self.reusable_end(scope, step, activity) } else { None };
        if let Some(end) = reused {
            self.reused += 1;
            let opening = self.with_opening_of_children(scope, step, &end);
            self.settle(turn, End { before: activity.before.clone(), opening, ..End::clone(&end) });
            return Ok(());
        }
        if !step.is_leaf() {
            return self.open_children(turn);
        }
        let was_started = set_aside || activity.progress == Progress::Interrupted;
        if !step.idempotent && !activity.retry && was_started {
            return self.ask(turn, old);
        }
        self.execute(turn)
    }

    /// Returns the upstream step in this scope that shares the step's file, if the file has changed since
    /// that step.
    fn broken_base(&self, scope: &str, step: &Step) -> Option<Arc<Step>> {
        let file = step.file_in(scope).filter(|_| self.on(Rule::SharedFileFromUpstream))?;
        let position = self.position(scope);
        let mut owners = BTreeSet::new();
        let mut remaining = step.needs.clone();
        while let Some(id) = remaining.pop() {
            let Some(upstream) = self.step(scope, &id) else { continue };
            remaining.extend(upstream.needs.iter().cloned());
            let is_owner = upstream.is_leaf() && upstream.file_in(scope).as_ref() == Some(&file);
            if is_owner && position.ledger.contains_key(&id) {
                owners.insert(id);
            }
        }
        let steps = self.steps_of(scope);
        let newest = steps.iter().rev().find(|step| owners.contains(&step.id))?;
        let end = position.ledger.get(&newest.id)?;
        let is_broken = end.how == How::Completed && !self.world.holds(&end.pins);
        is_broken.then(|| newest.clone())
    }

    /// Opens the step that wrote the file. It runs even if its evidence holds later.
    fn rerun_base(&mut self, scope: &str, base: Arc<Step>) -> Result<(), Halt> {
        self.invalidate(scope, BTreeSet::from([base.id.clone()]), Mode::Keep);
        let position = self.change(scope);
        let key = (base.id.clone(), 1);
        if let Some(reusable) = position.reusable.remove(&key)
            && !base.idempotent
        {
            position.reusable.insert(key, reusable.to_confirm());
        }
        self.may_rerun.insert(StepPath::new(scope, &base.id));
        self.commit()
    }

    /// Decides from the ends of the needs whether a step runs, with the current definition.
    pub(in super::super) fn condition(&self, scope: &str, step: &Step) -> Decision {
        let ledger = &self.position(scope).ledger;
        let needs: Vec<&Arc<End>> = step.needs.iter().filter_map(|id| ledger.get(id)).collect();
        // A failure counts for all downstream steps, as in workflow files.
        let has_failed = needs.iter().any(|end| end.is_dead() || end.failed_upstream);
        let run_if = |is_true| if is_true { Decision::Run } else { Decision::Avoid(How::Skipped) };
        let depends = step.when != When::Success || step.skip_if.is_some();
        if self.is_plan && depends && needs.iter().any(|end| end.output_digest == Digest::UNKNOWN) {
            return Decision::Run;
        }
        match step.when {
            When::OnSuccess => return run_if(needs[0].ran()),
            When::OnFailure => return run_if(needs[0].how == How::Failed),
            When::Always => return Decision::Run,
            When::Failure => return run_if(has_failed),
            When::Success => {}
        }
        if has_failed {
            return Decision::Avoid(How::PassedOver);
        }
        let any_failed = || ledger.values().any(|end| end.how == How::Failed);
        if self.policy == FailurePolicy::FailFast && any_failed() {
            return Decision::Avoid(How::PassedOver);
        }
        if needs.iter().any(|end| end.how == How::Skipped) {
            return Decision::Avoid(How::Skipped);
        }
        let output = step.skip_if.as_ref().and_then(|id| ledger.get(id)).and_then(|end| end.output);
        run_if(!matches!(output, Some(0 | 3 | 6)))
    }
}
