//! A new definition: steps and items added and removed, changed steps rerun or kept.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::definition::{Definition, MAIN, Name, Step, children};
use super::super::position::{Activity, Progress, Reusable};
use super::super::request::Adoption;
use super::super::rule::Rule;
use super::invalidate::Cut;
use super::walk::Turn;
use super::{Engine, Mode};

impl Engine {
    /// Adopts a new definition.
    pub(super) fn adopt(&mut self, adoption: &Adoption) {
        let accepted = self.definition.accepted.clone();
        self.definition = Definition { steps: adoption.steps.clone(), accepted };
        for id in &adoption.keep_finished {
            let versions =
                if self.on(Rule::AcceptedVersions) { self.versions_of(id) } else { BTreeSet::new() };
            self.definition.accepted.entry(id.clone()).or_default().extend(versions);
        }
        for id in &adoption.rerun_changed {
            self.definition.accepted.remove(id);
        }
        let scopes = self.scopes_deepest_first();
        let mended: BTreeSet<&Name> = scopes.iter().filter(|scope| self.remove_steps(scope)).collect();
        for scope in &scopes {
            if mended.contains(scope) && &**scope != MAIN && self.in_force(scope) {
                self.open_path(scope);
            }
            self.open_changed(scope, adoption);
        }
        for scope in &scopes {
            for step in self.steps_of(scope).iter() {
                self.change_items(scope, step);
            }
        }
    }

    fn scopes_deepest_first(&self) -> Vec<Name> {
        let mut scopes: Vec<Name> = self.positions.keys().cloned().collect();
        scopes.sort_by_key(|scope| std::cmp::Reverse(scope.matches('/').count()));
        scopes
    }

    /// Returns the versions of all results of a step that are in force or reusable.
    fn versions_of(&self, id: &str) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for position in self.positions.values() {
            found.extend(position.ledger.get(id).map(|end| end.version));
            let reusable = position.reusable.iter().filter(|((step, _), _)| &**step == id);
            found.extend(reusable.filter_map(|(_, reusable)| reusable.end()).map(|end| end.version));
        }
        found
    }

    /// Removes the records of steps that are no longer defined. Returns whether a removed step had failed:
    /// then its opener joins again.
    fn remove_steps(&mut self, scope: &str) -> bool {
        let mut had_failed = false;
        let ids: BTreeSet<Name> = self.steps_of(scope).iter().map(|step| step.id.clone()).collect();
        let gone: Vec<Name> = self.position(scope).known_steps().difference(&ids).cloned().collect();
        for id in gone {
            let position = self.change(scope);
            had_failed |= position.ledger.remove(&id).is_some_and(|end| end.is_dead());
            position.frontier.remove(&id);
            position.forget_reusable(&id);
            position.skipped.remove(&id);
        }
        had_failed
    }

    fn open_changed(&mut self, scope: &str, adoption: &Adoption) {
        let steps = self.steps_of(scope);
        if steps.is_empty() || !self.in_force(scope) {
            return;
        }
        self.free(scope);
        if scope != MAIN && !self.position(scope).frontier.is_empty() {
            self.open_path(scope);
        }
        let position = self.position(scope);
        let is_changed = |step: &&Arc<Step>| {
            let end = position.ledger.get(&step.id);
            adoption.rerun_changed.contains(&step.id)
                && (end.is_some_and(|end| !self.definition.accepts(step, end.version))
                    || (!step.is_leaf() && position.frontier.contains_key(&step.id)))
        };
        let changed: BTreeSet<Name> = steps.iter().filter(is_changed).map(|step| step.id.clone()).collect();
        if !changed.is_empty() {
            self.invalidate(scope, changed, Mode::Drop);
        }
    }

    fn change_items(&mut self, scope: &str, step: &Arc<Step>) {
        if self.can_take_items(scope, step) {
            let end = self.position(scope).ledger.get(&step.id).cloned().expect("the fan-out has ended");
            let steps = BTreeSet::from([step.id.clone()]);
            self.invalidate_here(&Cut { scope: scope.into(), steps, mode: Mode::Keep, at_pass: 0 });
            let position = self.change(scope);
            position.reusable.remove(&(step.id.clone(), 1));
            let open = Activity {
                progress: Progress::Children,
                items: end.items.clone(),
                opening: end.opening,
                ..Activity::ready()
            };
            position.frontier.insert(step.id.clone(), open);
            if scope != MAIN {
                self.open_path(scope);
            }
        }
        let activity = self.position(scope).frontier.get(&step.id).cloned();
        let is_open = |open: &Activity| open.progress == Progress::Children && open.items != step.items;
        if step.kind == super::super::definition::Kind::ForEach
            && let Some(activity) = activity.filter(is_open)
        {
            self.add_items(&Turn { scope: scope.into(), step: step.clone(), activity });
        }
    }

    /// Adds and removes items of an open fan-out. An item with an earlier result is reopened.
    fn add_items(&mut self, turn: &Turn) {
        let Turn { scope, step, activity } = turn;
        let is_new = |item: &&Name| !activity.items.contains(item);
        let new: Vec<Name> = step.items.iter().filter(is_new).cloned().collect();
        for child in children(scope, step, 1, &new) {
            self.open_child(turn, &child, false);
        }
        if let Some(open) = self.change(scope).frontier.get_mut(&step.id) {
            open.items = step.items.clone();
        }
    }

    /// Opens the openers above a scope with an unfinished step.
    fn open_path(&mut self, scope: &str) {
        self.invalidate(scope, BTreeSet::new(), Mode::Keep);
    }

    /// Returns the end of a step for a person to confirm, or a start if the step has not ended.
    pub(super) fn to_confirm_of(&self, scope: &str, id: &Name) -> Option<Reusable> {
        let position = self.positions.get(scope)?;
        if let Some(end) = position.ledger.get(id) {
            return Some(if end.ran() { Reusable::Ended(end.clone()) } else { Reusable::Started });
        }
        position.reusable.get(&(id.clone(), 1)).cloned()
    }
}
