//! Executions, openings, joins and answers of a person, and the resulting ends.

use std::sync::Arc;

use super::super::definition::{Kind, Name, OnItemFailure, Parent, Step, children};
use super::super::position::{
    Activity, Content, Digest, End, How, Pin, Position, Progress, Provenance, Reusable, Truth,
};
use super::super::rule::Rule;
use super::super::world::{Confirmed, Execution};
use super::walk::Turn;
use super::{Engine, Halt};

impl Engine {
    /// Returns an end without outputs and pins; its trace is the current input of the step.
    pub(super) fn end_now(&mut self, turn: &Turn, how: How) -> End {
        let Turn { scope, step, activity } = turn;
        End {
            number: self.next_number(),
            how,
            pass: activity.pass,
            version: step.version,
            trace: self.trace(scope, step, activity),
            output_digest: Digest::UNKNOWN,
            pin_digest: self.pin_digest(scope, step, Digest::of(Vec::<Pin>::new())),
            output: None,
            pins: Vec::new(),
            before: activity.before.clone(),
            items: Vec::new(),
            opening: 0,
            by_hand: false,
            failed_upstream: self.failed_upstream(scope, step),
            truth: Provenance::default(),
        }
    }

    /// Returns the end of a skipped or passed-over step.
    pub(super) fn avoided_end(&mut self, turn: &Turn, how: How) -> End {
        let ledger = &self.position(&turn.scope).ledger;
        let failed = ledger.values().filter(|end| end.how == How::Failed);
        let mut causes: Vec<_> = failed.map(|end| end.output_digest).collect();
        causes.sort_unstable();
        let output_digest = if how == How::Skipped { Digest::of(how) } else { Digest::of((how, &causes)) };
        let seen = if how == How::Skipped { Vec::new() } else { causes };
        let output = Truth::list([Truth::How(how), Truth::Unique(hash(&seen))]);
        let pins = Truth::list([Truth::list([]), self.pins_upstream(&turn.scope, &turn.step)]);
        End { output_digest, truth: Provenance { output, pins }, ..self.end_now(turn, how) }
    }

    /// Executes a step: records its start, applies the effect, and records its end.
    pub(super) fn execute(&mut self, turn: &Turn) -> Result<(), Halt> {
        self.start(turn)?;
        let end = self.effect(turn)?;
        let is_failed = matches!(end.how, How::Failed | How::Tolerated);
        if is_failed && turn.activity.attempt <= turn.step.retries && self.on(Rule::RetryBudget) {
            let next = Activity { retry: true, attempt: turn.activity.attempt + 1, ..turn.activity.clone() };
            let next = Activity { progress: Progress::Ready, ..next };
            self.change(&turn.scope).frontier.insert(turn.step.id.clone(), next);
        } else {
            self.settle(turn, end);
        }
        self.commit()
    }

    /// Ends a step as skipped by a person, and stores the decision with the current input of the step.
    pub(super) fn skip_by_hand(&mut self, turn: &Turn) {
        let Turn { scope, step, activity } = turn;
        let trace = self.trace(scope, step, activity);
        let truth = self.truth_given(scope, step, activity);
        self.change(scope).skipped.insert(step.id.clone(), Some(trace));
        self.world.skipped.insert(turn.path(), Some(truth));
        let end = self.avoided_end(turn, How::Skipped);
        self.must_run.remove(&turn.path());
        self.settle(turn, End { by_hand: true, ..end });
    }

    /// Records the start and removes the reusable end, whose effects the execution overwrites.
    fn start(&mut self, turn: &Turn) -> Result<(), Halt> {
        self.check_needless(turn);
        let key = (turn.step.id.clone(), turn.activity.pass);
        let takes = self.on(Rule::StartTakesReusable);
        let position = self.change(&turn.scope);
        if let Some(activity) = position.frontier.get_mut(&turn.step.id) {
            *activity =
                Activity { progress: Progress::Started, retry: false, opening: 0, ..turn.activity.clone() };
        }
        if takes {
            position.reusable.remove(&key);
        }
        self.commit()
    }

    /// Executes a step in the world.
    fn effect(&mut self, turn: &Turn) -> Result<End, Halt> {
        let Turn { scope, step, activity } = turn;
        let path = turn.path();
        let input = self.truth_given(scope, step, activity);
        self.executed_now.insert(path.clone());
        self.must_run.remove(&path);
        self.check_decisions(turn, &input);
        let file = step.file_in(scope);
        let over_edited = step.edits && !self.base_is_as_left(scope, step);
        let mut value = i64::from(step.version) + self.value_read(scope, step);
        let world = &mut self.world;
        value += world.hidden.get(&step.id).copied().unwrap_or(0);
        world.executed.push(path.clone());
        if !step.idempotent {
            let count = world.counts.entry(path.clone()).or_default();
            *count += 1;
            if *count > 1 + world.allowed.get(&path).copied().unwrap_or(0) {
                world.twice.push(format!("{path:?} ran twice"));
            }
        }
        let execution = Execution { input, version: step.version, pins: Vec::new() };
        world.last.insert(path.clone(), execution.clone());
        world.good.remove(&path);
        if over_edited {
            world.twice.push(format!("{path:?} edited a file twice"));
        }
        if step.edits
            && let Some(Content::Number(number)) = file.as_ref().and_then(|file| world.files.get(file))
        {
            value += number;
        }
        let remaining = world.flaky.get(&step.id).copied().unwrap_or(0);
        let fails = world.fails(scope, &step.id) || remaining > 0;
        world.flaky.insert(step.id.clone(), remaining.saturating_sub(1));
        let in_a_row = world.failed_in_a_row.get(&path).copied().unwrap_or(0);
        world.failed_in_a_row.insert(path.clone(), if fails { in_a_row + 1 } else { 0 });
        if let Some(file) = &file {
            let content =
                if fails { Content::Half } else { Content::Number(value.rem_euclid(step.file_modulus)) };
            world.files.insert(file.clone(), content);
        }
        self.die_if_due()?;
        if fails {
            return Ok(self.failed_end(turn));
        }
        let content = |file: Name| Pin { content: self.world.files[&file], file };
        let pins: Vec<Pin> = file.into_iter().map(content).collect();
        self.world.good.insert(path.clone(), Execution { pins: pins.clone(), ..execution });
        self.may_rerun.remove(&path);
        Ok(self.completed_end(turn, value.rem_euclid(step.output_modulus), pins))
    }

    /// For the oracles: returns whether the file to edit is unchanged since the upstream step.
    fn base_is_as_left(&self, scope: &str, step: &Step) -> bool {
        let ledger = &self.position(scope).ledger;
        let steps = self.steps_of(scope);
        let is_owner = |other: &&Arc<Step>| {
            other.id != step.id && other.file == step.file && ledger.contains_key(&other.id)
        };
        let end = steps.iter().rev().find(is_owner).and_then(|owner| ledger.get(&owner.id));
        end.is_none_or(|end| end.how != How::Completed || self.world.holds(&end.pins))
    }

    /// Returns the end of a failure with unique digests: a half-written file affects all downstream steps.
    fn failed_end(&mut self, turn: &Turn) -> End {
        let how = if turn.step.continue_on_error { How::Tolerated } else { How::Failed };
        self.world.allow(&turn.path());
        let number = self.next_number();
        let unique = Digest::of(("failed", number));
        let end = self.end_now(turn, how);
        let pin_digest = if self.on(Rule::FailureHasPinDigest) { unique } else { end.pin_digest };
        let truth = Provenance { output: Truth::Unique(number), pins: Truth::Unique(number) };
        End { output_digest: unique, pin_digest, truth, ..end }
    }

    fn completed_end(&mut self, turn: &Turn, output: i64, pins: Vec<Pin>) -> End {
        let truth = self.truth_of(turn, Some(output), &pins);
        let end = self.end_now(turn, How::Completed);
        let pin_digest = self.pin_digest(&turn.scope, &turn.step, Digest::of(&pins));
        let output_digest = Digest::of(("completed", output));
        End { output_digest, pin_digest, output: Some(output), pins, truth, ..end }
    }

    fn truth_of(&self, turn: &Turn, output: Option<i64>, pins: &[Pin]) -> Provenance {
        let own = Truth::list(pins.iter().cloned().map(Truth::Pin));
        Provenance {
            output: output.map(Truth::Number).unwrap_or_default(),
            pins: Truth::list([own, self.pins_upstream(&turn.scope, &turn.step)]),
        }
    }

    /// Puts an end in force with the next commit. The reusable end is dropped, unless the step was only
    /// skipped or passed over.
    pub(super) fn settle(&mut self, turn: &Turn, end: End) {
        let Turn { scope, step, activity } = turn;
        let keeps = end.was_avoided() && self.on(Rule::PassedOverKeepsReusable);
        let position = self.change(scope);
        position.frontier.remove(&step.id);
        if step.kind == Kind::Group && end.ran() && end.pass < step.passes {
            position.reusable.remove(&(step.id.clone(), end.pass));
            let next = Activity { pass: end.pass + 1, before: Some(Arc::new(end)), ..Activity::ready() };
            position.frontier.insert(step.id.clone(), next);
            return;
        }
        if !keeps {
            position.forget_reusable(&step.id);
            if end.ran() {
                position.rerun_whole.remove(&step.id);
            }
        } else if !step.idempotent && activity.progress == Progress::Interrupted {
            position.reusable.insert((step.id.clone(), activity.pass), Reusable::Started);
        }
        position.ledger.insert(step.id.clone(), Arc::new(end));
        self.free(scope);
    }

    /// Asks a person: `done` accepts the old result for the current input, `retry` runs the step.
    pub(super) fn ask(&mut self, turn: &Turn, old: Option<Arc<End>>) -> Result<(), Halt> {
        self.asked += 1;
        let Turn { scope, step, activity } = turn;
        let path = turn.path();
        let is_usable = |end: &Arc<End>| end.how == How::Completed && self.world.holds(&end.pins);
        match old.filter(is_usable) {
            Some(old) if self.random.below(100) < self.confirm_percent => {
                let input = self.truth_given(scope, step, activity);
                let execution = Execution { input, version: step.version, pins: old.pins.clone() };
                self.must_run.remove(&path);
                let truth = self.truth_of(turn, old.output, &old.pins);
                let now = self.end_now(turn, How::Completed);
                let confirmed = Confirmed {
                    input: execution.input.clone(),
                    version: step.version,
                    executions: self.world.executions(&path),
                };
                self.world.confirmed.insert(now.number, confirmed);
                self.world.good.insert(path, execution);
                let (number, trace, version) = (now.number, now.trace, now.version);
                let pin_digest = self.pin_digest(scope, step, Digest::of(&old.pins));
                self.settle(turn, End { number, trace, version, pin_digest, truth, ..End::clone(&old) });
            }
            _ => {
                let position = self.change(scope);
                position.reusable.remove(&(step.id.clone(), activity.pass));
                let retry = Activity {
                    pass: activity.pass,
                    before: activity.before.clone(),
                    retry: true,
                    ..Activity::ready()
                };
                position.frontier.insert(step.id.clone(), retry);
                self.world.allow(&path);
                self.may_rerun.insert(path);
            }
        }
        self.commit()
    }

    /// Opens or reopens the child scopes of a step. Their results are reusable unless a person requested a
    /// rerun.
    pub(super) fn open_children(&mut self, turn: &Turn) -> Result<(), Halt> {
        let Turn { scope, step, activity } = turn;
        let opening = self.next_number();
        let takes = self.on(Rule::StartTakesReusable);
        let position = self.change(scope);
        if takes {
            position.reusable.remove(&(step.id.clone(), activity.pass));
        }
        let items = if step.kind == Kind::ForEach { step.items.clone() } else { Vec::new() };
        let open =
            Activity { progress: Progress::Children, items, opening, retry: false, ..activity.clone() };
        position.frontier.insert(step.id.clone(), open.clone());
        let is_whole = position.rerun_whole.contains(&step.id);
        let turn = Turn { activity: open, ..turn.clone() };
        for child in children(scope, step, turn.activity.pass, &turn.activity.items) {
            self.open_child(&turn, &child, is_whole);
        }
        if step.kind == Kind::ForEach || activity.pass >= step.passes {
            self.change(scope).rerun_whole.remove(&step.id);
        }
        self.commit()
    }

    /// Opens a child with its input. The input excludes the opener's definition and the other items, so that
    /// a new item does not rerun all items.
    pub(super) fn open_child(&mut self, turn: &Turn, child: &str, is_whole: bool) {
        let Turn { scope, step, activity } = turn;
        self.reopen_child(child, is_whole);
        let own_name = child.rsplit('/').next().unwrap_or(child);
        let siblings = (!self.on(Rule::InputWithoutSiblings)).then(|| (step.version, step.items.clone()));
        let digest = Digest::of((self.trace(scope, step, activity), own_name, siblings));
        let truth = self.truth_given(scope, step, activity);
        let before = activity.before.as_ref().and_then(|end| end.output).unwrap_or(0);
        let value = self.value_read(scope, step) + before;
        let position: &mut Position = self.change(child);
        position.input.digest = Some(digest);
        position.input.truth = truth;
        position.input.value = value;
        position.input.is_unknown = false;
        position.opening = activity.opening;
        self.free(child);
    }

    /// Joins children at rest. The opener fails with its children, unless the number of failures is
    /// tolerated.
    pub(super) fn join(&mut self, turn: &Turn) -> Result<(), Halt> {
        let Turn { scope, step, activity } = turn;
        let scopes = children(scope, step, activity.pass, &activity.items);
        if !scopes.iter().all(|child| self.is_closed(child)) {
            // A failed item stopped the others: the fan-out fails with unstarted steps.
            let end = self.failed_end(turn);
            let items = activity.items.clone();
            self.settle(turn, End { how: How::Failed, items, opening: activity.opening, ..end });
            return self.commit();
        }
        let mut ends = Vec::new();
        let mut dead = 0;
        for child in &scopes {
            let steps = self.steps_of(child);
            let ledger = &self.position(child).ledger;
            dead += usize::from(self.is_dead(child));
            ends.extend(steps.iter().filter_map(|inner| ledger.get(&inner.id).cloned()));
        }
        let joined = self.joined(scope, step, &scopes);
        let tolerated = if step.kind == Kind::ForEach { step.failures_max } else { 0 };
        let how = if dead == 0 {
            How::Completed
        } else if dead <= tolerated || step.continue_on_error {
            How::Tolerated
        } else {
            How::Failed
        };
        let items = || activity.items.iter().cloned().map(Truth::Name);
        let output = |end: &Arc<End>| Truth::list([Truth::How(end.how), end.truth.output.clone()]);
        let pins = items().chain(ends.iter().map(|end| end.truth.pins.clone()));
        let truth = Provenance {
            output: Truth::list(items().chain(ends.iter().map(output))),
            pins: Truth::list([Truth::list(pins), self.pins_upstream(scope, step)]),
        };
        let sum: i64 = ends.iter().filter_map(|end| end.output).sum();
        let end = End {
            output_digest: joined.output,
            pin_digest: joined.pins,
            output: Some(sum.rem_euclid(97)),
            items: activity.items.clone(),
            opening: activity.opening,
            truth,
            ..self.end_now(turn, how)
        };
        self.settle(turn, end);
        self.commit()
    }

    /// For the oracles: records an execution against a decision to skip, or after a failed item stopped the
    /// fan-out.
    fn check_decisions(&mut self, turn: &Turn, input: &Truth) {
        let path = turn.path();
        let is_decided = |truth: &Option<Truth>| truth.as_ref().is_none_or(|truth| truth == input);
        if self.world.skipped.get(&path).is_some_and(is_decided) {
            self.world.twice.push(format!("{path:?} ran although it is skipped by hand"));
        }
        self.world.skipped.remove(&path);
        let mut scope = turn.scope.clone();
        while let Some(parent) = Parent::of(&scope) {
            let opener = self.step(&parent.scope, &parent.opener);
            let open = self.position(&parent.scope).frontier.get(&parent.opener);
            if let (Some(opener), Some(open)) = (opener, open)
                && self.is_stopped_fan_out(&parent.scope, &opener, open)
            {
                self.world.twice.push(format!("{path:?} started after an item failed"));
            }
            scope = parent.scope;
        }
    }

    /// Returns whether an open fan-out is stopped by a failed item.
    pub(super) fn is_stopped_fan_out(&self, scope: &str, step: &Step, open: &Activity) -> bool {
        step.kind == Kind::ForEach
            && step.on_item_failure == OnItemFailure::Stop
            && children(scope, step, open.pass, &open.items).iter().any(|child| self.is_dead(child))
    }

    /// Returns whether a scope has a failed or passed-over step, except hooks.
    pub(super) fn is_dead(&self, scope: &str) -> bool {
        let Some(position) = self.positions.get(scope) else { return false };
        let is_dead = |inner: &Arc<Step>| {
            !inner.when.is_hook() && position.ledger.get(&inner.id).is_some_and(|end| end.is_dead())
        };
        self.steps_of(scope).iter().any(is_dead)
    }

    /// For the oracles: records an execution with an existing valid result.
    fn check_needless(&mut self, turn: &Turn) {
        let path = turn.path();
        let Some(good) = self.world.good.get(&path) else { return };
        let is_there = good.input == self.truth_given(&turn.scope, &turn.step, &turn.activity)
            && self.definition.accepts(&turn.step, good.version)
            && self.world.holds(&good.pins);
        if is_there && !turn.activity.retry && !self.may_rerun.contains(&path) {
            self.world.needless.push(path);
        }
    }
}

fn hash(causes: &[Digest]) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    causes.hash(&mut hasher);
    hasher.finish()
}
