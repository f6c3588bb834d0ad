//! Invalidation: the only way to reopen finished work.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::definition::{MAIN, Name, Parent, Step, StepPath, children};
use super::super::position::{Activity, End, How, Progress, Reusable, passes_of};
use super::super::rule::Rule;
use super::{Engine, Mode};

/// The steps of a scope to invalidate.
#[derive(Debug)]
pub(super) struct Cut {
    pub scope: Name,
    pub steps: BTreeSet<Name>,
    pub mode: Mode,
    /// For an opener on the path to the main scope: the pass to open. Its children stay unchanged.
    pub at_pass: u32,
}

/// The records of a step before its invalidation.
struct Old<'a> {
    end: Option<&'a Arc<End>>,
    activity: Option<&'a Activity>,
}

impl Engine {
    /// Moves the result of a step out of force. `is_wanted`: whether the result is reusable.
    fn set_aside(&mut self, scope: &str, id: &Name, old: &Old<'_>, is_wanted: bool) {
        let must_not_repeat = self.step(scope, id).is_some_and(|step| !step.idempotent);
        let confirms = self.on(Rule::DroppedIsConfirmed);
        let passes = match old.end {
            Some(end) => passes_of(Some(end)),
            None => passes_of(old.activity.and_then(|activity| activity.before.as_ref())),
        };
        let position = self.change(scope);
        for end in passes.into_iter().filter(|end| end.ran()) {
            let key = (id.clone(), end.pass);
            if is_wanted || (must_not_repeat && !confirms) {
                position.reusable.insert(key, Reusable::Ended(end));
            } else if must_not_repeat {
                position.reusable.insert(key, Reusable::Confirm(end));
            }
        }
        let started = old
            .activity
            .is_some_and(|activity| matches!(activity.progress, Progress::Started | Progress::Interrupted));
        if must_not_repeat && started {
            position.reusable.insert((id.clone(), 1), Reusable::Started);
        }
        if is_wanted {
            return;
        }
        if !must_not_repeat {
            position.forget_reusable(id);
        } else if confirms {
            for (_, reusable) in position.reusable.iter_mut().filter(|((step, _), _)| step == id) {
                *reusable = reusable.to_confirm();
            }
        }
    }

    /// Opens the steps of a cut and all downstream steps, within the scope.
    pub(super) fn invalidate_here(&mut self, cut: &Cut) {
        let scope = &*cut.scope;
        for id in self.downstream(scope, &cut.steps) {
            let step = self.step(scope, &id).expect("only steps of today are downstream");
            let position = self.change(scope);
            let (activity, end) = (position.frontier.remove(&id), position.ledger.remove(&id));
            let was_avoided = end.as_ref().is_some_and(|end| end.was_avoided());
            let survives =
                self.on(Rule::CutStaysReusable) || !cut.steps.contains(&id) || was_avoided || !step.is_leaf();
            // A cut contains a tolerated failure only for a retry.
            let is_retry =
                |end: &&Arc<End>| step.is_leaf() && cut.steps.contains(&id) && end.how == How::Tolerated;
            let is_retry = end.as_ref().filter(is_retry).is_some();
            let old = Old { end: end.as_ref().filter(|_| !is_retry), activity: activity.as_ref() };
            self.set_aside(scope, &id, &old, cut.mode == Mode::Keep && survives);
            if cut.mode == Mode::Keep {
                continue;
            }
            if !step.is_leaf() && self.on(Rule::RerunWhole) {
                self.change(scope).rerun_whole.insert(id.clone());
            }
            self.change(scope).skipped.remove(&id);
            self.world.skipped.remove(&StepPath::new(scope, &id));
            self.may_rerun.insert(StepPath::new(scope, &id));
            let first = if cut.steps.contains(&id) { cut.at_pass } else { 0 };
            for pass in passes_of(end.as_ref()).into_iter().filter(|pass| pass.pass > first) {
                let told = self.leaves_of(scope, &step, &pass);
                self.must_run.extend(told);
            }
        }
        self.free(scope);
    }

    /// Opens steps in a scope, and each opener above at its pass. Sibling scopes stay unchanged.
    pub(super) fn invalidate(&mut self, scope: &str, steps: BTreeSet<Name>, mode: Mode) {
        self.invalidate_here(&Cut { scope: scope.into(), steps, mode, at_pass: 0 });
        let mut scope: Name = scope.into();
        while &*scope != MAIN {
            let opening = self.position(&scope).opening;
            let parent = Parent::of(&scope).expect("only the main scope has no parent");
            if !self.open_opener(&parent, opening, mode) {
                return;
            }
            scope = parent.scope;
        }
    }

    /// Opens an opener at a pass, with unchanged children. Returns `false` if the opener is already open at
    /// the pass, or not in force.
    pub(super) fn open_opener(&mut self, parent: &Parent, opening: u64, mode: Mode) -> bool {
        let Parent { scope, opener, pass, .. } = parent;
        let position = self.change(scope);
        let activity = position.frontier.get(opener).cloned();
        if let Some(open) = &activity
            && open.progress == Progress::Children
            && open.pass == *pass
        {
            return false;
        }
        let ends = position.passes(opener);
        if ends.is_empty() {
            return false;
        }
        let was_whole = position.rerun_whole.contains(opener);
        let steps = BTreeSet::from([opener.clone()]);
        self.invalidate_here(&Cut { scope: scope.clone(), steps, mode, at_pass: *pass });
        let at = |number: u32| ends.iter().find(|end| end.pass == number).cloned();
        let items = match at(*pass) {
            Some(end) => end.items.clone(),
            None => activity.map(|activity| activity.items).unwrap_or_default(),
        };
        let before = if *pass > 1 { at(*pass - 1) } else { None };
        let open = Activity {
            progress: Progress::Children,
            pass: *pass,
            before,
            items,
            opening,
            ..Activity::ready()
        };
        let passes = self.step(scope, opener).map_or(1, |step| step.passes);
        let position = self.change(scope);
        position.frontier.insert(opener.clone(), open);
        for number in 1..=*pass {
            position.reusable.remove(&(opener.clone(), number));
        }
        if !was_whole && *pass >= passes {
            position.rerun_whole.remove(opener);
        }
        true
    }

    /// Opens a child scope: new, or reopened with reusable ends.
    pub(super) fn reopen_child(&mut self, child: &str, is_whole: bool) {
        let position = self.positions.entry(child.into()).or_default().clone();
        self.changed.insert(child.into());
        for id in position.known_steps() {
            let old = Old { end: position.ledger.get(&id), activity: position.frontier.get(&id) };
            self.set_aside(child, &id, &old, !is_whole);
            if !is_whole {
                continue;
            }
            self.change(child).skipped.remove(&id);
            self.world.skipped.remove(&StepPath::new(child, &id));
            self.may_rerun.insert(StepPath::new(child, &id));
            if self.step(child, &id).is_some_and(|step| !step.is_leaf()) {
                self.change(child).rerun_whole.insert(id);
            }
        }
        let position = self.change(child);
        position.ledger.clear();
        position.frontier.clear();
    }

    /// Returns the steps and all downstream steps, in graph order.
    fn downstream(&self, scope: &str, steps: &BTreeSet<Name>) -> Vec<Name> {
        let mut found = steps.clone();
        let mut ordered = Vec::new();
        for step in self.steps_of(scope).iter() {
            if step.upstream().any(|id| found.contains(id)) {
                found.insert(step.id.clone());
            }
            if found.contains(&step.id) {
                ordered.push(step.id.clone());
            }
        }
        ordered
    }

    /// For the oracles: returns the leaves in force below an end.
    fn leaves_of(&self, scope: &str, step: &Step, end: &End) -> BTreeSet<StepPath> {
        if step.is_leaf() {
            return end.ran().then(|| StepPath::new(scope, &step.id)).into_iter().collect();
        }
        let mut found = BTreeSet::new();
        for child in children(scope, step, end.pass, &end.items) {
            let Some(position) = self.positions.get(&child) else { continue };
            for inner in self.steps_of(&child).iter() {
                for pass in passes_of(position.ledger.get(&inner.id)) {
                    found.extend(self.leaves_of(&child, inner, &pass));
                }
            }
        }
        found
    }

    /// Makes steps ready after all needs have ended.
    pub(super) fn free(&mut self, scope: &str) {
        let steps = self.steps_of(scope);
        let position = self.change(scope);
        for step in steps.iter() {
            let is_known = position.ledger.contains_key(&step.id) || position.frontier.contains_key(&step.id);
            if !is_known && step.upstream().all(|id| position.ledger.contains_key(id)) {
                position.frontier.insert(step.id.clone(), Activity::ready());
            }
        }
    }
}
