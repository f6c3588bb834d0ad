//! Escalation of a final failure: ends the scope of the failed step, or the run with all siblings.
//!
//! ```text
//!   main --fork, collects--> P --fork, stops--> a: fails
//!                                               b: running, is cancelled, and its attempt ends
//!   one commit, once no step below P runs:  P ends as failed, a as failed, b as cancelled
//! ```
//!
//! A scope ends only when none of its descendants has a running attempt. Cancelled attempts are recorded as
//! cancelled, and no child stays open.

use crate::record::{End, Failure, FailureKind, Phase, Reason, Status, StepBelow, Try};
use crate::{ScopePath, StepId};
use std::collections::HashSet;

use super::Session;
use super::completion::{Failing, report_before_hooks};
use crate::engine::chain::Draft;
use crate::engine::outcome::place_of;
use crate::engine::scope::{DeferredFailure, ListedChildren, Opener, Scope, ScopeId};
use crate::engine::walk::scheduler::collects;
use crate::engine::{Program, StepFailure, StepRef, StepReport, StopLevel, Unjoined};

/// A scope about to end as failed.
#[derive(Debug)]
pub(crate) struct FailingScope {
    /// The failed step, or the opener of the failed children.
    place: usize,
    failure: Failure,
}

impl<P: Program> Session<'_, P> {
    /// Applies a final failure of a step: ends its scope, or the run with all siblings. If the failure of a
    /// scope fails its opener and the opener has hooks, the hooks run first.
    pub(crate) fn end_by_failure(&mut self, id: ScopeId, place: usize, failure: Failure) {
        let origin = self.scopes.get(id);
        let (step, path) = (origin.step_id(place).clone(), origin.path().clone());
        let mut failure = StepFailure { scope: path, step, failure };
        let mut failed = id;
        while let Some(opener) = self.scopes.get(failed).opener {
            let parent = self.scopes.get(opener.scope);
            if collects(parent, opener.place) {
                let mut failing = FailingScope { place, failure: failure.failure };
                if failed != id {
                    failing.failure.error.insert(0, failed_below(&failure.scope, &failure.step));
                    let scope = self.scopes.get(failed);
                    failing.place = scope.fans.first().expect("a scope above another has a fan-out").place;
                }
                self.scopes.get_mut(failed).cancel.stop(StopLevel::Graceful, "another step failed");
                self.scopes.get_mut(failed).failing.get_or_insert(failing);
                self.failing.insert(failed);
                return;
            }
            let by = failed_below(&failure.scope, &failure.step);
            self.scopes.get_mut(opener.scope).fan_mut(opener.place).stopped = true;
            if self.is_deferred(opener, &failure) {
                return self.cancel_children(opener.scope, opener.place, None, &by);
            }
            self.cancel_children(opener.scope, opener.place, Some(failed), &by);
            failed = opener.scope;
        }
        self.halted = true;
        if let Some(at) = &failure.failure.below {
            (failure.scope, failure.step) = (at.scope.clone(), at.step.clone());
        }
        self.failed.get_or_insert(failure);
    }

    /// Ends a scope of a graph with `needs` after a failed step, once no step can run: the scope ends as
    /// failed, or its opener fails.
    pub(crate) fn fail_scope(&mut self, id: ScopeId) {
        let scope = self.scopes.get(id);
        let opener = scope.opener.expect("a child has an opener");
        let Some(failed) = scope.failures.first().cloned() else { return };
        let parent = self.scopes.get(opener.scope);
        if collects(parent, opener.place) {
            self.end_failed_child(id);
        } else if parent.shape.is_routed() {
            let place =
                scope.position.failed.first().and_then(|entry| scope.shape.place(entry.step.as_str()));
            self.end_by_failure(id, place.expect("a failed step is one of the shape"), failed.failure);
        } else if !parent.deferred_failures.iter().any(|deferred| deferred.place == opener.place) {
            // The first failure cancels the other scopes. A second cancel would wake these repeatedly.
            let by = failed_below(&failed.scope, &failed.step);
            self.scopes.get_mut(opener.scope).fan_mut(opener.place).stopped = true;
            self.catch(opener, &failed);
            self.cancel_children(opener.scope, opener.place, Some(id), &by);
        }
    }

    /// Ends a child as failed with its newest record: the record of the failure.
    fn end_failed_child(&mut self, id: ScopeId) {
        let scope = self.scopes.get_mut(id);
        let is_failure = |draft: &Draft| matches!(&draft.phase, Phase::Failed(failure) if !failure.retried && !failure.tolerated);
        if !scope.drafts.last().is_some_and(is_failure)
            && let (Some(entry), Some(first)) = (scope.position.failed.first(), scope.failures.first())
        {
            let mut failure = first.failure.clone();
            failure.ending.stdout = None;
            if first.scope != *scope.path() {
                failure.error.insert(0, failed_below(&first.scope, &first.step));
            }
            let (step, at) = (entry.step.clone(), entry.at.clone());
            let failed_at = scope.position.ledger.get(&step).map(|end| end.seq);
            scope.draft(Phase::Failed(failure), Reason::Step, step, at).about = failed_at;
        }
        scope.end = Some(End::Failed);
        self.mark_dirty(id);
    }

    /// Defers the failure of an opener until its scopes are at rest.
    fn catch(&mut self, opener: Opener, failed: &StepFailure) {
        if self.is_deferred(opener, failed) {
            return;
        }
        let failure = with_scope(failed);
        let deferred = DeferredFailure {
            place: opener.place,
            failure,
            items: Vec::new(),
            report: StepReport::default(),
        };
        self.scopes.get_mut(opener.scope).deferred_failures.push(deferred);
    }

    /// Returns whether the opener of a failed scope has hooks for this failure; if so, defers the failure.
    fn is_deferred(&mut self, opener: Opener, failed: &StepFailure) -> bool {
        let (program, scope) = (self.program, self.scopes.get(opener.scope));
        if scope.deferred_failures.iter().any(|deferred| deferred.place == opener.place) {
            return true;
        }
        if scope.shape.steps()[opener.place].hooks.is_none() || scope.runs_hooks(opener.place) {
            return false;
        }
        let failure = with_scope(failed);
        let items = program.on_failure(scope.step_ref(opener.place), &failure).opens;
        if items.is_empty() {
            return false;
        }
        let (place, report) = (opener.place, report_before_hooks(StepReport::default(), &failure));
        self.scopes.get_mut(opener.scope).deferred_failures.push(DeferredFailure {
            place,
            failure,
            items,
            report,
        });
        true
    }

    /// Applies the deferred failures of openers, once their scopes are at rest and written. Returns whether
    /// there were any. Then the hooks of these openers begin.
    ///
    /// The scopes keep their positions for a resume of the run. If only an enclosing scope ends, and not the
    /// run, the scopes end with that scope.
    pub(crate) fn apply_deferred_failures(&mut self) -> bool {
        let deferred = |(id, scope): (ScopeId, &Scope<'_, P::State>)| {
            scope.deferred_failures.iter().map(move |deferred| (id, deferred.place)).collect::<Vec<_>>()
        };
        let all: Vec<(ScopeId, usize)> = self.scopes.iter().flat_map(deferred).collect();
        let mut any = false;
        for (id, place) in all {
            // The failure of an enclosing opener removes its scopes.
            if self.scopes.find_ref(id).is_none() {
                continue;
            }
            if self.withdraw_cancellation(id, place) {
                any = true;
                continue;
            }
            let below = self.below_step(id, place);
            if below.iter().any(|id| self.scopes.get(*id).is_active()) {
                continue;
            }
            let is_open = |id: &ScopeId| self.scopes.get(*id).end.is_none();
            if self.ends_by_itself(id) && below.iter().any(is_open) {
                self.end_all(&below);
                any = true;
            } else if below.iter().all(|id| self.scopes.get(*id).drafts.is_empty()) {
                self.apply_deferred_failure(id, place, below);
                any = true;
            }
        }
        any
    }

    /// Defers the failure of a cancelled opener, until its scopes are at rest.
    pub(crate) fn defer_cancellation(&mut self, id: ScopeId, place: usize, failure: Failure) {
        let deferred = DeferredFailure { place, failure, items: Vec::new(), report: StepReport::default() };
        self.scopes.get_mut(id).deferred_failures.push(deferred);
    }

    /// Withdraws the cancellation of an opener if all its scopes have ended meanwhile. Returns whether it was withdrawn.
    fn withdraw_cancellation(&mut self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get_mut(id);
        let has_ended = scope.fans.iter().any(|fan| fan.place == place && fan.is_complete());
        let is_meant = |deferred: &DeferredFailure| {
            deferred.place == place && deferred.failure.kind == FailureKind::Cancelled
        };
        if !has_ended || !scope.deferred_failures.iter().any(is_meant) {
            return false;
        }
        scope.deferred_failures.retain(|deferred| !is_meant(deferred));
        self.touched.insert(id);
        true
    }

    /// Returns whether a failure in a scope of a step fails the step, too: no opener in between collects failures.
    pub(crate) fn fails_by_scope(&self, id: ScopeId, place: usize) -> bool {
        let escalates = |below: &ScopeId| {
            let openers = std::iter::successors(self.scopes.get(*below).opener, |opener| {
                self.scopes.get(opener.scope).opener.filter(|_| opener.scope != id)
            });
            openers.into_iter().all(|opener| !collects(self.scopes.get(opener.scope), opener.place))
        };
        let failed = |below: &ScopeId| self.scopes.get(*below).has_failed_end();
        self.below_step(id, place).iter().any(|below| failed(below) && escalates(below))
    }

    /// Defers the failure of an opener with too many failed scopes, until the running scopes have ended.
    pub(crate) fn defer_limit_failure(&mut self, id: ScopeId, place: usize, failure: Failure) {
        let (program, scope) = (self.program, self.scopes.get(id));
        let opens = scope.shape.steps()[place].hooks.is_some() && !scope.runs_hooks(place);
        let items =
            if opens { program.on_failure(scope.step_ref(place), &failure).opens } else { Vec::new() };
        let report = if items.is_empty() {
            StepReport::default()
        } else {
            report_before_hooks(StepReport::default(), &failure)
        };
        self.scopes.get_mut(id).deferred_failures.push(DeferredFailure { place, failure, items, report });
        self.touched.insert(id);
    }

    /// Removes the scopes of a failed opener from memory. The opener begins its hooks, or fails.
    fn apply_deferred_failure(&mut self, id: ScopeId, place: usize, below: Vec<ScopeId>) {
        let mut causes = Vec::new();
        if !collects(self.scopes.get(id), place) {
            let opened = below.iter().map(|child| self.scopes.get(*child));
            let opened = opened.filter(|scope| scope.opener.is_some_and(|opener| opener.scope == id));
            causes.extend(opened.flat_map(|scope| scope.failures.clone()));
        }
        self.take_in_unjoined(id, place, below);
        let scope = self.scopes.get_mut(id);
        let at = scope.deferred_failures.iter().position(|deferred| deferred.place == place);
        let DeferredFailure { failure, items, report, .. } =
            scope.deferred_failures.remove(at.expect("the caller has found the failure"));
        if causes.is_empty() {
            let (path, step) = (scope.path().clone(), scope.step_id(place).clone());
            causes.push(StepFailure { scope: path, step, failure: failure.clone() });
        }
        self.touched.insert(id);
        if items.is_empty() {
            self.settle_failure(id, place, Failing { failure, report, pause: None, causes });
        } else {
            let failure = Some(failure);
            scope.listed_children.push(ListedChildren {
                place,
                items,
                report,
                are_hooks: true,
                failure,
                joined: None,
            });
        }
    }

    /// Removes the scopes of a failed opener from memory, and adds their results to the state of the opener's scope.
    fn take_in_unjoined(&mut self, id: ScopeId, place: usize, below: Vec<ScopeId>) {
        let removed: Vec<Scope<'_, P::State>> = below.into_iter().filter_map(|id| self.forget(id)).collect();
        let scope = self.scopes.get_mut(id);
        let Some(fan) = scope.fans.iter().find(|fan| fan.place == place) else { return };
        let children = removed.iter().filter(|child| child.opener.is_some_and(|opener| opener.scope == id));
        let failed_now = children.clone().filter(|child| child.end.is_none() && !child.failures.is_empty());
        let failed = fan.failed + failed_now.count() as u64;
        let succeeded = fan.ended.saturating_sub(fan.failed);
        let states = children.map(|child| &child.state).collect();
        let children = Unjoined { total: fan.total, succeeded, failed, states };
        let Scope { chain, shape, state, .. } = scope;
        let step_ref =
            StepRef { scope: &chain.scope, level: shape.level(), place, step: &shape.steps()[place] };
        self.program.apply_unjoined(step_ref, state, children);
    }

    /// Returns whether deferred failures wait only for the write of scopes at rest.
    pub(crate) fn has_applicable_failures(&self) -> bool {
        let is_at_rest = |(id, scope): (ScopeId, &Scope<'_, P::State>)| {
            let at_rest =
                |place| !self.below_step(id, place).iter().any(|id| self.scopes.get(*id).is_active());
            scope.deferred_failures.iter().any(|deferred| at_rest(deferred.place))
        };
        self.scopes.iter().any(is_at_rest)
    }

    /// Returns whether a failure ends the scope or an enclosing scope, and not the run.
    fn ends_by_itself(&self, id: ScopeId) -> bool {
        let mut scope = self.scopes.get(id);
        while let Some(opener) = scope.opener {
            scope = self.scopes.get(opener.scope);
            if collects(scope, opener.place) {
                return true;
            }
        }
        false
    }

    /// Ends the failing scopes without running attempts on any descendant. Returns whether there were any.
    pub(crate) fn end_failing_scopes(&mut self) -> bool {
        let mut any = false;
        for id in self.failing.clone() {
            let below = self.below(id);
            let at_rest = |id: &ScopeId| !self.scopes.get(*id).is_active();
            if at_rest(&id) && below.iter().all(at_rest) {
                self.failing.remove(&id);
                self.end_failing_scope(id, &below);
                any = true;
            }
        }
        any
    }

    fn end_failing_scope(&mut self, id: ScopeId, below: &[ScopeId]) {
        self.end_all(below);
        let scope = self.scopes.get_mut(id);
        let FailingScope { place, failure } = scope.failing.take().expect("the scope was marked as failed");
        let said = scope.drafts.last().is_some_and(|draft| matches!(draft.phase, Phase::Failed(_)));
        if !said {
            scope.draft_of(place, Phase::Failed(failure), Reason::Step);
        }
        scope.end = Some(End::Failed);
        self.mark_dirty(id);
        self.touched.insert(id);
    }

    /// Ends scopes at their current positions.
    fn end_all(&mut self, scopes: &[ScopeId]) {
        for child in scopes {
            self.failing.remove(child);
            let scope = self.scopes.get_mut(*child);
            if scope.end.is_some() {
                continue;
            }
            let has_failed = scope.has(Status::Failed) || scope.has_failed_end();
            let end = if has_failed { End::Failed } else { End::Cancelled };
            if scope.drafts.is_empty() {
                let by =
                    scope.cancel.asked().map_or_else(|| "another step failed".to_owned(), |stop| stop.by);
                let phase = Phase::Interrupted { in_progress: false, by };
                scope.drafts.push(Draft::new(phase, Reason::Cancel, None, Try::default()));
            }
            (scope.end, scope.is_counted_out) = (Some(end), true);
            scope.drafts.last_mut().expect("the parent has an entry").end = Some(end);
            self.mark_dirty(*child);
        }
    }

    /// Returns the in-memory scopes of an opener, with all descendants.
    fn below_step(&self, id: ScopeId, place: usize) -> Vec<ScopeId> {
        let is_own = |scope: &Scope<'_, P::State>| {
            scope.opener.is_some_and(|opener| opener.scope == id && opener.place == place)
        };
        let mut found: Vec<ScopeId> =
            self.scopes.iter().filter(|(_, scope)| is_own(scope)).map(|(child, _)| child).collect();
        let below: Vec<ScopeId> = found.iter().flat_map(|child| self.below(*child)).collect();
        found.extend(below);
        found
    }

    /// Returns a scope with its in-memory descendants.
    fn below(&self, id: ScopeId) -> Vec<ScopeId> {
        let mut found = vec![id];
        let mut next = 0;
        while let Some(above) = found.get(next).copied() {
            next += 1;
            if !self.scopes.get(above).fans.is_empty() {
                let opened =
                    |scope: &Scope<'_, P::State>| scope.opener.is_some_and(|opener| opener.scope == above);
                found.extend(self.scopes.iter().filter(|(_, scope)| opened(scope)).map(|(child, _)| child));
            }
        }
        found.remove(0);
        found
    }

    /// Cancels the running work of the children of a step, except that of the child `except`. The children of other steps
    /// are independent.
    pub(crate) fn cancel_children(&mut self, id: ScopeId, place: usize, except: Option<ScopeId>, by: &str) {
        let spared: HashSet<ScopeId> = except.into_iter().flat_map(|id| self.below(id)).collect();
        for child in self.below_step(id, place) {
            if Some(child) != except && !spared.contains(&child) {
                self.cancel(child, by);
            }
        }
    }

    fn cancel(&mut self, id: ScopeId, by: &str) {
        let scope = self.scopes.get_mut(id);
        if scope.end.is_some() {
            return;
        }
        scope.cancel.stop(StopLevel::Graceful, by);
        for fan in &mut scope.fans {
            fan.stopped = true;
        }
        self.touched.insert(id);
        let scope = self.scopes.get_mut(id);
        scope.starting_alone.clear();
        let phase = || Phase::Interrupted { in_progress: false, by: by.to_owned() };
        let mut written = false;
        for place in std::mem::take(&mut scope.starting) {
            scope.draft_of(place, phase(), Reason::Cancel);
            scope.unmark_started(place);
            written = true;
        }
        // Withdraws an open question of a cancelled scope.
        for place in scope.asking_places() {
            scope.draft_of(place, phase(), Reason::Cancel);
            let entry = scope.entry_mut(place);
            (entry.status, entry.since, entry.wake_at) = (Status::Ready, 0, None);
            entry.waits.clear();
            written = true;
        }
        if written {
            self.mark_dirty(id);
        }
    }
}

/// Names the failed step by its path.
fn failed_below(scope: &ScopePath, step: &StepId) -> String {
    format!("{} failed", place_of(scope, step))
}

/// Returns the failure of an opener with a failed scope.
fn with_scope(StepFailure { scope, step, failure }: &StepFailure) -> Failure {
    let below = failure.below.clone();
    let below = below.unwrap_or_else(|| StepBelow { scope: scope.clone(), step: step.clone() });
    let mut error = failure.error.clone();
    error.insert(0, failed_below(scope, step));
    Failure { below: Some(below), ..Failure::new(failure.kind, error) }
}
