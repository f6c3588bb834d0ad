//! A resume: interrupted steps, the request, failed steps, then rounds of evidence check and walk until all
//! evidence holds.

use std::collections::BTreeSet;

use super::super::definition::{Kind, MAIN, Name, Parent, Step, StepPath, children};
use super::super::position::{Activity, How, Position, Progress};
use super::super::request::Request;
use super::super::rule::Rule;
use super::{Engine, Halt, Mode};

/// Most evidence checks of a resume; more is a defect of the model.
const LOOKS_MAX: usize = 30;
/// From this check on, steps executed by this resume whose evidence is broken again undo each other.
const UNDO_LOOK: usize = 4;
/// From this check on, a reused step with broken evidence runs.
const RERUN_LOOK: usize = 2;

/// The failures to rerun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failures {
    /// Failures that count.
    Counted,
    /// Also tolerated failures.
    All,
}

impl Engine {
    /// Resumes or starts the run.
    ///
    /// # Errors
    /// - [`Halt::Crash`]: the process crashed as planned.
    /// - [`Halt::NoEnd`]: a defect of the model.
    pub fn resume(&mut self, request: &Request) -> Result<(), Halt> {
        self.executed_now.clear();
        self.stopped = false;
        self.blocked.clear();
        self.world.failed_in_a_row.clear();
        if self.disk.is_empty() {
            self.positions.clear();
            self.positions.insert(MAIN.into(), Position::default());
            self.free(MAIN);
            self.commit()?;
        } else {
            self.begin(request)?;
        }
        for look in 0..LOOKS_MAX {
            let broken = self.broken();
            if self.on(Rule::UnknownStops) && !self.is_plan {
                self.blocked.extend(self.unknown());
                if !self.blocked.is_empty() {
                    return Ok(());
                }
            }
            let again = look >= UNDO_LOOK && broken.iter().any(|path| self.executed_now.contains(path));
            if again && !self.is_plan {
                self.stopped = true;
                return Ok(());
            }
            for path in &broken {
                self.open_broken(path, look);
            }
            if !broken.is_empty() {
                self.commit()?;
            } else if self.turns().is_empty() {
                // The last reused ends: a request of the next resume must find them in force.
                return if self.changed.is_empty() { Ok(()) } else { self.commit() };
            }
            self.walk()?;
        }
        Err(Halt::NoEnd)
    }

    fn begin(&mut self, request: &Request) -> Result<(), Halt> {
        if !self.is_plan {
            self.load();
        }
        let scopes: Vec<Name> = self.positions.keys().cloned().collect();
        for scope in &scopes {
            self.interrupt(scope, Interrupt::Started);
        }
        self.apply(request);
        let failed = self.failed_steps(Failures::Counted);
        self.open_steps(failed, Mode::Keep);
        if self.changed.is_empty() { Ok(()) } else { self.commit() }
    }

    fn apply(&mut self, request: &Request) {
        match request {
            Request::None => {}
            Request::Adopt(adoption) => self.adopt(adoption),
            Request::RetryFailed => {
                let failed = self.failed_steps(Failures::All);
                self.open_steps(failed, Mode::Keep);
            }
            Request::Skip(path) => self.record_skip(path),
            Request::From(path) => self.open_steps([path.clone()], Mode::Drop),
            Request::Rollback(at) => self.rollback(*at),
        }
    }

    /// Records that a step is to end as skipped.
    fn record_skip(&mut self, path: &StepPath) {
        if self.positions.contains_key(&path.scope) && self.step(&path.scope, &path.step).is_some() {
            self.change(&path.scope).skipped.insert(path.step.clone(), None);
            self.world.skipped.insert(path.clone(), None);
        }
    }

    /// Makes started steps ready, or interrupted if not idempotent.
    pub(super) fn interrupt(&mut self, scope: &str, which: Interrupt) {
        let steps = self.steps_of(scope);
        let Some(position) = self.positions.get_mut(scope) else { return };
        for (id, activity) in &mut position.frontier {
            let is_meant = match activity.progress {
                Progress::Started => true,
                Progress::Interrupted => which == Interrupt::All,
                Progress::Ready | Progress::Children => false,
            };
            activity.attempt = 1;
            if is_meant {
                let repeats = steps.iter().find(|step| step.id == *id).is_none_or(|step| step.idempotent);
                activity.progress = if repeats { Progress::Ready } else { Progress::Interrupted };
            }
        }
    }

    fn open_broken(&mut self, path: &StepPath, look: usize) {
        self.open_steps([path.clone()], Mode::Keep);
        let reruns = look >= RERUN_LOOK && self.on(Rule::SkippedClaimReruns);
        if let Some(position) = self.positions.get_mut(&path.scope)
            && let Some(reusable) = position.reusable.get_mut(&(path.step.clone(), 1))
            && reruns
        {
            *reusable = reusable.to_confirm();
        }
    }

    pub(super) fn open_steps(&mut self, steps: impl IntoIterator<Item = StepPath>, mode: Mode) {
        for path in steps {
            let Some(position) = self.positions.get(&path.scope) else { continue };
            let is_known =
                position.ledger.contains_key(&path.step) || position.frontier.contains_key(&path.step);
            if is_known && self.in_force(&path.scope) {
                self.invalidate(&path.scope, BTreeSet::from([path.step.clone()]), mode);
            }
        }
    }

    /// Returns whether the ends of a scope are in force.
    pub fn in_force(&self, scope: &str) -> bool {
        let Some(parent) = Parent::of(scope) else { return scope == MAIN };
        let Some(position) = self.positions.get(&parent.scope) else { return false };
        let ends = position.passes(&parent.opener);
        let ended = ends.iter().find(|end| end.pass == parent.pass).map(|end| &end.items);
        let is_open = |open: &&Activity| open.progress == Progress::Children && open.pass == parent.pass;
        let open = position.frontier.get(&parent.opener).filter(is_open).map(|open| &open.items);
        let Some(items) = ended.or(open) else { return false };
        parent.item.is_none_or(|item| items.contains(&item)) && self.in_force(&parent.scope)
    }

    /// Returns failed or passed-over leaves below failed openers.
    pub fn failures(&self) -> Vec<StepPath> {
        self.failed_steps(Failures::Counted)
    }

    pub(super) fn failed_steps(&self, which: Failures) -> Vec<StepPath> {
        let mut found = Vec::new();
        self.failed_steps_of(MAIN, which, &mut found);
        found
    }

    fn failed_steps_of(&self, scope: &str, which: Failures, found: &mut Vec<StepPath>) {
        let position = self.position(scope);
        let also_tolerated = which == Failures::All;
        for step in self.steps_of(scope).iter() {
            let how = position.ledger.get(&step.id).map(|end| end.how);
            if step.is_leaf() || how == Some(How::PassedOver) {
                let is_meant = match how {
                    Some(How::Failed | How::PassedOver) => true,
                    Some(How::Tolerated) => also_tolerated,
                    _ => false,
                };
                found.extend(is_meant.then(|| StepPath::new(scope, &step.id)));
                continue;
            }
            for child in self.children_with_failures(scope, step, which) {
                if self.positions.contains_key(&child) {
                    self.failed_steps_of(&child, which, found);
                }
            }
        }
    }

    fn children_with_failures(&self, scope: &str, step: &Step, which: Failures) -> Vec<Name> {
        let position = self.position(scope);
        let mut passes: Vec<(u32, Vec<Name>)> = Vec::new();
        if let Some(end) = position.ledger.get(&step.id)
            && end.how == How::Failed
        {
            passes.push((end.pass, end.items.clone()));
        }
        if let Some(open) = position.frontier.get(&step.id)
            && open.progress == Progress::Children
        {
            passes.push((open.pass, open.items.clone()));
        }
        if which == Failures::All {
            let ends = position.passes(&step.id);
            passes.extend(ends.iter().map(|end| (end.pass, end.items.clone())));
        }
        let mut found: Vec<Name> = Vec::new();
        for (pass, items) in passes {
            let scopes = children(scope, step, pass, &items);
            found.extend(scopes.into_iter().filter(|child| !found.contains(child)).collect::<Vec<_>>());
        }
        found
    }

    /// Returns whether new items can join an ended fan-out.
    pub(super) fn can_take_items(&self, scope: &str, step: &Step) -> bool {
        let end = self.position(scope).ledger.get(&step.id);
        step.kind == Kind::ForEach
            && end.is_some_and(|end| (end.ran() || end.how == How::Failed) && end.items != step.items)
            && self.in_force(scope)
    }
}

/// The steps that a resume treats as interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// Steps with a recorded start.
    Started,
    /// Also interrupted steps.
    All,
}
