//! Rollback: restores earlier positions. Steps begun since then have overwritten the effects of their earlier
//! ends.

use std::collections::BTreeMap;

use super::super::definition::{Name, StepPath};
use super::super::position::{Position, Reusable};
use super::super::rule::Rule;
use super::invalidate::Cut;
use super::resume::Interrupt;
use super::{Engine, Mode};

impl Engine {
    /// Restores the positions after commit `at`.
    pub(super) fn rollback(&mut self, at: usize) {
        let then = self.history[at].clone();
        let copy = |(scope, position): (&Name, &std::sync::Arc<Position>)| {
            (scope.clone(), Position::clone(position))
        };
        let positions: BTreeMap<_, _> = then.positions.iter().map(copy).collect();
        let now = std::mem::replace(&mut self.positions, positions);
        self.definition = then.definition;
        self.removed =
            self.disk.keys().filter(|scope| !self.positions.contains_key(*scope)).cloned().collect();
        let scopes: Vec<Name> = self.positions.keys().cloned().collect();
        for scope in &scopes {
            self.forget_answers(scope);
        }
        let mut since: Vec<StepPath> = Vec::new();
        for path in &self.world.executed[then.executed..] {
            if !since.contains(path) {
                since.push(path.clone());
            }
        }
        self.may_rerun.extend(since.iter().cloned());
        self.must_run.clear();
        self.world.skipped.clear();
        if self.on(Rule::BegunSince) {
            for path in &since {
                self.cut_since(path);
            }
        }
        if self.on(Rule::ConfirmAfterRollback) {
            let then = std::mem::replace(&mut self.positions, now);
            let kept: Vec<_> =
                since.iter().map(|path| (path, self.to_confirm_of(&path.scope, &path.step))).collect();
            self.positions = then;
            for (path, reusable) in kept {
                // A person asked to go back before it: its newest result is confirmed, never reused.
                self.keep_to_confirm(path, reusable.map_or(Reusable::Started, |newest| newest.to_confirm()));
            }
        }
        self.changed = self.positions.keys().cloned().collect();
    }

    /// Forgets the answers of a person, which were given for the question asked at that time.
    fn forget_answers(&mut self, scope: &str) {
        let steps = self.steps_of(scope);
        let keeps = self.on(Rule::ReusableOfThen);
        self.interrupt(scope, Interrupt::All);
        let position = self.change(scope);
        position.skipped.clear();
        for activity in position.frontier.values_mut() {
            activity.retry = false;
        }
        if !keeps {
            position
                .reusable
                .retain(|(id, _), _| steps.iter().any(|step| step.id == *id && !step.idempotent));
        }
    }

    fn cut_since(&mut self, path: &StepPath) {
        let StepPath { scope, step: id } = path;
        let Some(step) = self.step(scope, id) else { return };
        let Some(position) = self.positions.get(scope) else { return };
        if position.ledger.contains_key(id) {
            let steps = std::collections::BTreeSet::from([id.clone()]);
            if self.in_force(scope) {
                self.invalidate(scope, steps, Mode::Keep);
            } else {
                self.invalidate_here(&Cut { scope: scope.clone(), steps, mode: Mode::Keep, at_pass: 0 });
            }
        }
        if step.idempotent {
            self.change(scope).reusable.remove(&(id.clone(), 1));
        }
    }

    fn keep_to_confirm(&mut self, path: &StepPath, reusable: Reusable) {
        if self.step(&path.scope, &path.step).is_none_or(|step| step.idempotent) {
            return;
        }
        let mut end = 0;
        while let Some(next) = path.scope[end..].find('/') {
            self.positions.entry(path.scope[..end + next].into()).or_default();
            end += next + 1;
        }
        let position = self.positions.entry(path.scope.clone()).or_default();
        position.reusable.insert((path.step.clone(), 1), reusable);
    }
}
