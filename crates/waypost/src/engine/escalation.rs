//! Escalation of a final failure: ends the branch of the failed step, or the run with all siblings.
//!
//! ```text
//!   main --fork, collects--> P --fork, stops--> a: fails
//!                                               b: in flight, is cancelled, and lands
//!   one commit, once all below P is quiet:  P ends as failed, a as failed, b as cancelled
//! ```
//!
//! A branch ends only when none of its descendants has a running attempt. Cancelled attempts are recorded as
//! cancelled, and no child stays open.

use std::collections::HashSet;

use crate::id::{BranchPath, StepId};
use crate::record::{End, Failure, Phase, Reason, Status, StepBelow, Try};

use super::chain::Draft;
use super::completion::{Failing, before_what_comes_after};
use super::scheduler::collects;
use super::scope::{Caught, Found, Line, LineId, Opener};
use super::session::Session;
use super::{Program, StepFailure, StepReport, StopLevel};

/// A branch about to end as failed.
#[derive(Debug)]
pub(super) struct Dying {
    /// The failed step, or the opener of the failed children.
    place: usize,
    failure: Failure,
}

impl<P: Program> Session<'_, P> {
    /// Applies a final failure of a step: ends its branch, or the run with all siblings. If the failure of a
    /// branch fails its opener and the opener has hooks, the hooks run first.
    pub(super) fn end_by_failure(&mut self, id: LineId, place: usize, failure: Failure) {
        let origin = self.lines.get(id);
        let (step, below) = (origin.step_id(place).clone(), origin.branch().clone());
        let mut failed = id;
        while let Some(opener) = self.lines.get(failed).opener {
            let parent = self.lines.get(opener.line);
            if collects(parent, opener.place) {
                let mut dying = Dying { place, failure };
                if failed != id {
                    dying.failure.error.insert(0, format!("branch `{below}` failed"));
                    let line = self.lines.get(failed);
                    dying.place = line.fans.first().expect("a branch above another has a fan-out").place;
                }
                self.lines.get_mut(failed).cancel.stop(StopLevel::Graceful, "a step of the branch failed");
                self.lines.get_mut(failed).dying.get_or_insert(dying);
                self.dying.insert(failed);
                return;
            }
            let by = format!("branch `{}` failed", self.lines.get(failed).branch());
            self.lines.get_mut(opener.line).fan_mut(opener.place).stopped = true;
            if self.is_caught(opener, (&below, &step, &failure)) {
                return self.cancel_below(opener.line, None, &by);
            }
            self.cancel_below(opener.line, Some(failed), &by);
            failed = opener.line;
        }
        self.halted = true;
        let (branch, step) = match &failure.below {
            Some(at) => (at.branch.clone(), at.step.clone()),
            None => (below, step),
        };
        self.failed.get_or_insert(StepFailure { branch, step, failure });
    }

    /// Ends a branch of a graph with `needs` after a failed step, once no step can run: the branch ends as
    /// failed, or its opener fails.
    pub(super) fn fail_branch(&mut self, id: LineId) {
        let line = self.lines.get(id);
        let opener = line.opener.expect("a child has an opener");
        let Some(StepFailure { step, failure, .. }) = line.failures.first().cloned() else { return };
        let parent = self.lines.get(opener.line);
        if collects(parent, opener.place) {
            self.end_failed_child(id);
        } else if parent.shape.is_routed() {
            let place = line.position.failed.first().and_then(|entry| line.shape.place(entry.step.as_str()));
            self.end_by_failure(id, place.expect("a failed step is one of the shape"), failure);
        } else if !parent.caught.iter().any(|caught| caught.place == opener.place) {
            // The first failure cancels the other branches. A second cancel would wake these repeatedly.
            let branch = line.branch().clone();
            let by = format!("branch `{branch}` failed");
            self.lines.get_mut(opener.line).fan_mut(opener.place).stopped = true;
            self.catch(opener, (&branch, &step, &failure));
            self.cancel_below(opener.line, Some(id), &by);
        }
    }

    /// Ends a child as failed with its newest record: the record of the failure.
    fn end_failed_child(&mut self, id: LineId) {
        let line = self.lines.get_mut(id);
        let is_failure = |draft: &Draft| matches!(&draft.phase, Phase::Failed(failure) if !failure.retried && !failure.tolerated);
        if !line.drafts.last().is_some_and(is_failure)
            && let (Some(entry), Some(first)) = (line.position.failed.first(), line.failures.first())
        {
            let mut failure = first.failure.clone();
            if first.branch != *line.branch() {
                failure.error.insert(0, format!("branch `{}` failed", first.branch));
            }
            let (step, at) = (entry.step.clone(), entry.at.clone());
            line.draft(Phase::Failed(failure), Reason::Step, step, at);
        }
        line.end = Some(End::Failed);
        self.mark_dirty(id);
    }

    /// Defers the failure of an opener until its branches are at rest.
    fn catch(&mut self, opener: Opener, failed: (&BranchPath, &StepId, &Failure)) {
        if self.is_caught(opener, failed) {
            return;
        }
        let failure = with_branch(failed);
        let caught = Caught { place: opener.place, failure, items: Vec::new(), told: StepReport::default() };
        self.lines.get_mut(opener.line).caught.push(caught);
    }

    /// Returns whether the opener of a failed branch has hooks for this failure; if so, defers the failure.
    fn is_caught(
        &mut self,
        opener: Opener,
        (branch, step, failure): (&BranchPath, &StepId, &Failure),
    ) -> bool {
        let (program, line) = (self.program, self.lines.get(opener.line));
        if line.caught.iter().any(|caught| caught.place == opener.place) {
            return true;
        }
        if line.shape.steps()[opener.place].after.is_none() || line.comes_after(opener.place) {
            return false;
        }
        let failure = with_branch((branch, step, failure));
        let items = program.on_failure(line.spot(opener.place), &failure).opens;
        if items.is_empty() {
            return false;
        }
        let (place, told) = (opener.place, before_what_comes_after(StepReport::default(), &failure));
        self.lines.get_mut(opener.line).caught.push(Caught { place, failure, items, told });
        true
    }

    /// Applies the deferred failures of openers, once their branches are at rest and written. Returns whether
    /// there were any. Then the hooks of these openers begin.
    ///
    /// The branches keep their positions for a resume of the run. If only an enclosing branch ends, and not the
    /// run, the branches end with that branch.
    pub(super) fn leave_the_quiet(&mut self) -> bool {
        let caught = |(id, line): (LineId, &Line<'_, P::State>)| {
            line.caught.iter().map(move |caught| (id, caught.place)).collect::<Vec<_>>()
        };
        let all: Vec<(LineId, usize)> = self.lines.iter().flat_map(caught).collect();
        let mut any = false;
        for (id, place) in all {
            let below = self.below_step(id, place);
            if below.iter().any(|id| self.lines.get(*id).is_active()) {
                continue;
            }
            let is_open = |id: &LineId| self.lines.get(*id).end.is_none();
            if self.ends_by_itself(id) && below.iter().any(is_open) {
                self.end_all(&below);
                any = true;
            } else if below.iter().all(|id| self.lines.get(*id).drafts.is_empty()) {
                self.leave(id, place, below);
                any = true;
            }
        }
        any
    }

    /// Defers the failure of an opener with too many failed branches, until the running branches have ended.
    pub(super) fn catch_limit(&mut self, id: LineId, place: usize, failure: Failure) {
        let (program, line) = (self.program, self.lines.get(id));
        let opens = line.shape.steps()[place].after.is_some() && !line.comes_after(place);
        let items = if opens { program.on_failure(line.spot(place), &failure).opens } else { Vec::new() };
        let told = if items.is_empty() {
            StepReport::default()
        } else {
            before_what_comes_after(StepReport::default(), &failure)
        };
        self.lines.get_mut(id).caught.push(Caught { place, failure, items, told });
        self.touched.insert(id);
    }

    /// Removes the branches of a failed opener from memory. The opener begins its hooks, or fails.
    fn leave(&mut self, id: LineId, place: usize, below: Vec<LineId>) {
        let mut causes = Vec::new();
        if !collects(self.lines.get(id), place) {
            let opened = below.iter().map(|child| self.lines.get(*child));
            let opened = opened.filter(|line| line.opener.is_some_and(|opener| opener.line == id));
            causes.extend(opened.flat_map(|line| line.failures.clone()));
        }
        below.into_iter().for_each(|id| self.forget(id));
        let line = self.lines.get_mut(id);
        let at = line.caught.iter().position(|caught| caught.place == place);
        let Caught { failure, items, told, .. } = line.caught.remove(at.expect("it was just seen"));
        if causes.is_empty() {
            let (branch, step) = (line.branch().clone(), line.step_id(place).clone());
            causes.push(StepFailure { branch, step, failure: failure.clone() });
        }
        self.touched.insert(id);
        if items.is_empty() {
            self.settle_failure(id, place, Failing { failure, told, pause: None, causes });
        } else {
            let failure = Some(failure);
            line.found.push(Found { place, items, told, after: true, failure, joined: None });
        }
    }

    /// Returns whether deferred failures wait only for the write of branches at rest.
    pub(super) fn is_leaving(&self) -> bool {
        let is_quiet = |(id, line): (LineId, &Line<'_, P::State>)| {
            let quiet = |place| !self.below_step(id, place).iter().any(|id| self.lines.get(*id).is_active());
            line.caught.iter().any(|caught| quiet(caught.place))
        };
        self.lines.iter().any(is_quiet)
    }

    /// Returns whether a failure ends the branch or an enclosing branch, and not the run.
    fn ends_by_itself(&self, id: LineId) -> bool {
        let mut line = self.lines.get(id);
        while let Some(opener) = line.opener {
            line = self.lines.get(opener.line);
            if collects(line, opener.place) {
                return true;
            }
        }
        false
    }

    /// Ends the failing branches without running attempts on any descendant. Returns whether there were any.
    pub(super) fn bury_the_quiet(&mut self) -> bool {
        let mut any = false;
        for id in self.dying.clone() {
            let below = self.below(id);
            let quiet = |id: &LineId| !self.lines.get(*id).is_active();
            if quiet(&id) && below.iter().all(quiet) {
                self.dying.remove(&id);
                self.bury(id, &below);
                any = true;
            }
        }
        any
    }

    fn bury(&mut self, id: LineId, below: &[LineId]) {
        self.end_all(below);
        let line = self.lines.get_mut(id);
        let Dying { place, failure } = line.dying.take().expect("it was noted as dying");
        let said = line.drafts.last().is_some_and(|draft| matches!(draft.phase, Phase::Failed(_)));
        if !said {
            line.draft_of(place, Phase::Failed(failure), Reason::Step);
        }
        line.end = Some(End::Failed);
        self.mark_dirty(id);
        self.touched.insert(id);
    }

    /// Ends branches at their current positions.
    fn end_all(&mut self, branches: &[LineId]) {
        for child in branches {
            self.dying.remove(child);
            let line = self.lines.get_mut(*child);
            if line.end.is_some() {
                continue;
            }
            let has_failed = line.has(Status::Failed) || line.has_failed_end();
            let end = if has_failed { End::Failed } else { End::Cancelled };
            if line.drafts.is_empty() {
                let by = line.cancel.asked().map_or_else(|| "its branch failed".to_owned(), |stop| stop.by);
                let phase = Phase::Interrupted { in_progress: false, by };
                line.drafts.push(Draft::new(phase, Reason::Cancel, None, Try::default()));
            }
            (line.end, line.is_counted_out) = (Some(end), true);
            line.drafts.last_mut().expect("there is one by now").end = Some(end);
            self.mark_dirty(*child);
        }
    }

    /// Returns the in-memory branches of an opener, with all descendants.
    fn below_step(&self, id: LineId, place: usize) -> Vec<LineId> {
        let is_own = |line: &Line<'_, P::State>| {
            line.opener.is_some_and(|opener| opener.line == id && opener.place == place)
        };
        let mut found: Vec<LineId> =
            self.lines.iter().filter(|(_, line)| is_own(line)).map(|(child, _)| child).collect();
        let below: Vec<LineId> = found.iter().flat_map(|child| self.below(*child)).collect();
        found.extend(below);
        found
    }

    /// Returns a branch with its in-memory descendants.
    fn below(&self, id: LineId) -> Vec<LineId> {
        let mut found = vec![id];
        let mut next = 0;
        while let Some(above) = found.get(next).copied() {
            next += 1;
            if !self.lines.get(above).fans.is_empty() {
                let opened =
                    |line: &Line<'_, P::State>| line.opener.is_some_and(|opener| opener.line == above);
                found.extend(self.lines.iter().filter(|(_, line)| opened(line)).map(|(child, _)| child));
            }
        }
        found.remove(0);
        found
    }

    /// Cancels the running work of all descendants of a branch, except those of the branch `except`.
    pub(super) fn cancel_below(&mut self, id: LineId, except: Option<LineId>, by: &str) {
        let spared: HashSet<LineId> = except.into_iter().flat_map(|id| self.below(id)).collect();
        for child in self.below(id) {
            if Some(child) != except && !spared.contains(&child) {
                self.cancel(child, by);
            }
        }
    }

    fn cancel(&mut self, id: LineId, by: &str) {
        let line = self.lines.get_mut(id);
        if line.end.is_some() {
            return;
        }
        line.cancel.stop(StopLevel::Graceful, by);
        for fan in &mut line.fans {
            fan.stopped = true;
        }
        self.touched.insert(id);
        let line = self.lines.get_mut(id);
        line.alone.clear();
        let phase = || Phase::Interrupted { in_progress: false, by: by.to_owned() };
        let mut written = false;
        for place in std::mem::take(&mut line.starting) {
            line.draft_of(place, phase(), Reason::Cancel);
            line.unmark_started(place);
            written = true;
        }
        // Withdraws an open question of a cancelled branch.
        for place in line.asking_places() {
            line.draft_of(place, phase(), Reason::Cancel);
            let entry = line.entry_mut(place);
            (entry.status, entry.since, entry.wake_at) = (Status::Ready, 0, None);
            entry.waits.clear();
            written = true;
        }
        if written {
            self.mark_dirty(id);
        }
    }
}

/// Returns the failure of an opener with a failed branch.
fn with_branch((branch, step, failure): (&BranchPath, &StepId, &Failure)) -> Failure {
    let below = failure.below.clone();
    let below = below.unwrap_or_else(|| StepBelow { branch: branch.clone(), step: step.clone() });
    let mut error = failure.error.clone();
    error.insert(0, format!("branch `{branch}` failed"));
    Failure { below: Some(below), ..Failure::new(failure.kind, error) }
}
