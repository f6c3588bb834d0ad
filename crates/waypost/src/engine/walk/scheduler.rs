//! Decides the starts of the next commit: steps, children, joins.
//!
//! Input: a scope with ready steps, and the limits of running steps. Output: for each ready step a start, an opening of
//! children, a skip, a hold, a question or a failure, as a draft. Reads no store.

use jiff::Timestamp;

use crate::id::Digest;
use crate::plan::shape::{Children, OnChildFailure};
use crate::record::{
    End, EndDigests, Failure, FailureKind, FrontierEntry, Phase, Reason, RunStatus, Settled, SettledAs,
    SkipCause, Status, Try, WAIT_HOOKS, Wait, WaitKind,
};
use crate::store::Progress;

use super::trace::{failed_digests, scope_digests, skipped_digests, trace_of};
use crate::engine::scope::{MAIN, Scope, ScopeId};
use crate::engine::session::Session;
use crate::engine::{Admission, Program, Settlement, StepRef, StepReport, TreatAs};

/// The key of a hold before a step. A hold after step `a` has the key `after a`.
pub(crate) const BEFORE: &str = "before";

impl<'a, P: Program> Session<'a, P> {
    /// Decides the starts of the first batch of a run. Without a lease, no children open.
    pub(crate) fn schedule_first(&mut self) {
        let now = self.now();
        let _ = self.start_ready(MAIN, now);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.halted || self.is_pausing || self.options.stop.is_asked()
    }

    /// Marks the next starts of a scope, up to the limits. Returns the openers whose children must open first.
    pub(crate) fn start_ready(&mut self, id: ScopeId, now: Timestamp) -> Vec<usize> {
        let mut openings = Vec::new();
        loop {
            let scope = self.scopes.get(id);
            if self.is_stopping() || scope.end.is_some() || scope.cancel.is_asked() {
                return openings;
            }
            if scope.active() + openings.len() >= scope.shape.parallel_max() {
                return openings;
            }
            let free = |place: &usize| !openings.contains(place) && self.may_start(id, *place);
            let Some(place) = scope.next_ready(now, free) else { return openings };
            if !self.has_capacity(id) {
                return openings;
            }
            if (self.is_full() || self.must_wait_to_be_alone(id, place)) && !self.only_opens(id, place) {
                self.waiting_to_start.insert(id);
                return openings;
            }
            if self.settle_by_choice(id, place) {
                continue;
            }
            // An invalid condition fails the step at the start.
            if let Ok(Admission::Skip(cause)) = self.admission(id, place) {
                self.skip(id, place, cause);
                continue;
            }
            if self.ask_before_start(id, place)
                || self.hold_before(id, place)
                || self.fail_over_limit(id, place)
                || self.fail_after_cuts(id, place)
            {
                continue;
            }
            self.open_or_start(id, place, &mut openings);
        }
    }

    /// Takes capacity for a scope among its siblings, if available here and for its ancestors. If not, queues
    /// the scope.
    pub(crate) fn has_capacity(&mut self, id: ScopeId) -> bool {
        let scope = self.scopes.get(id);
        let Some(opener) = scope.opener.filter(|_| !scope.has_capacity) else { return true };
        if scope.is_waiting_for_capacity {
            return false;
        }
        let is_opener_in = self.has_capacity(opener.scope);
        let parallel_max = children_of(self.scopes.get(opener.scope), opener.place).parallel_max;
        let fan = self.scopes.get_mut(opener.scope).fan_mut(opener.place);
        if is_opener_in && fan.active < parallel_max {
            fan.active += 1;
            self.scopes.get_mut(id).has_capacity = true;
            return true;
        }
        fan.waiting_for_capacity.push_back(id);
        self.scopes.get_mut(id).is_waiting_for_capacity = true;
        false
    }

    /// Returns whether the start of a step only opens its children: the step itself has no work before the join.
    fn only_opens(&self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get(id);
        let children = scope.shape.steps()[place].children.as_ref();
        children.is_some_and(|children| !children.by_work) && !scope.entry(place).has_children()
    }

    /// Marks the start of a step, or adds an opener to `openings`. A non-idempotent step starts after a commit of its own.
    fn open_or_start(&mut self, id: ScopeId, place: usize, openings: &mut Vec<usize>) {
        if self.only_opens(id, place) {
            return openings.push(place);
        }
        self.record_input(id, place);
        self.launching.insert(id);
        let scope = self.scopes.get_mut(id);
        if !scope.shape.steps()[place].idempotent {
            return scope.starting_alone.push(place);
        }
        let joins = scope.entry(place).has_children();
        scope.mark_started(place);
        scope.starting.push(place);
        if joins {
            scope.reason = Reason::Join;
        }
        self.mark_dirty(id);
    }

    pub(crate) fn skip(&mut self, id: ScopeId, place: usize, cause: SkipCause) {
        let (program, keeps_traces) = (self.program, self.keeps_traces);
        let scope = self.scopes.get_mut(id);
        let follow = {
            let Scope { chain, shape, state, .. } = &mut *scope;
            let step = &shape.steps()[place];
            let step_ref = StepRef { scope: &chain.scope, level: shape.level(), place, step };
            program.apply(state, step_ref, Settlement::Skipped)
        };
        let at = Try { attempt: 0, ..scope.entry(place).at.clone() };
        let step = scope.step_id(place).clone();
        if scope.shape.steps()[place].is_for_hooks {
            scope.position.drop_results(&step);
            scope.position.rerun_whole.insert(step.clone());
        }
        let reason = scope.reason;
        match follow {
            Ok(follow) => {
                let seq = scope.seq_of_next_draft();
                let (how, traced) = match cause {
                    SkipCause::UpstreamFailed(_) => {
                        (SettledAs::PassedOver, failed_digests(scope.path(), &step, seq))
                    }
                    SkipCause::ByHand(_) => (SettledAs::SkippedByHand, skipped_digests(scope, place)),
                    _ => (SettledAs::Skipped, skipped_digests(scope, place)),
                };
                let traced = keeps_traces.then_some(traced);
                let has_trace = keeps_traces && how == SettledAs::SkippedByHand;
                let trace = has_trace.then(|| trace_of(program, scope, place)).flatten();
                scope.settle(place, Some(Settled::new(how, seq)), follow);
                scope.digests.extend(traced.map(|digests| (step.clone(), digests)));
                let draft = scope.draft(Phase::Skipped(cause), reason, step, at);
                (draft.trace, draft.digests) = (trace, traced);
                self.mark_dirty(id);
            }
            Err(failure) => self.fail(id, place, failure, StepReport::default()),
        }
    }

    /// Puts a non-idempotent step in doubt if an upstream step reran after its end, or settles the step by the answer of a
    /// person. Returns whether the step does not start.
    fn ask_before_start(&mut self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get_mut(id);
        let step = scope.step_id(place).clone();
        let retries = self.answers.retries(scope.path(), &step);
        let is_undone = scope.shape.steps()[place].is_asked(&scope.position, Some(scope.entry(place)));
        if is_undone && let Some(answer) = self.answer_in_turn(id, place) {
            return answer == TreatAs::Done;
        }
        let scope = self.scopes.get_mut(id);
        let asks = is_undone || (!retries && scope.asks_about(place));
        if asks {
            scope.doubt(&step);
            self.mark_dirty(id);
        }
        asks
    }

    /// Holds a step before its start, if requested; a resume releases the hold. Returns whether the step is held.
    fn hold_before(&mut self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get_mut(id);
        let entry = scope.entry(place);
        if !self.options.interrupts.before.contains(&entry.step) {
            return false;
        }
        // The join of a fork is held after its scopes; an opener with its own scopes is held before these
        // open.
        let joins = scope.shape.steps()[place].children.as_ref().is_some_and(|c| c.name != entry.step);
        let new = entry.at.attempt == 0 && entry.memos == 0 && entry.has_children() == joins;
        // The next pass of a loop has a separate entry, and is held again.
        if !new || entry.passed {
            return false;
        }
        let (step, at) = (entry.step.clone(), entry.at.clone());
        let wait = wait_for_resume(BEFORE.to_owned());
        let entry = scope.entry_mut(place);
        entry.status = Status::Waiting;
        entry.since = 0;
        entry.waits = vec![wait];
        let by = format!("held before `{step}`");
        scope.draft(Phase::Interrupted { in_progress: false, by }, Reason::Interrupt, step, at);
        self.mark_dirty(id);
        true
    }

    /// Fails a step above the step limit. Returns whether the step has failed.
    fn fail_over_limit(&mut self, id: ScopeId, place: usize) -> bool {
        let Some(limit) = self.options.step_limit else { return false };
        if self.scopes.get(id).position.steps_started < limit {
            return false;
        }
        let text = format!("the step limit of {limit} is reached; the limit counts all steps of the run");
        self.fail(id, place, Failure::new(FailureKind::Limit, vec![text]), StepReport::default());
        true
    }

    /// Ends a child scope without remaining work, and counts the end in the fan-out of its opener.
    pub(crate) fn close_if_done(&mut self, id: ScopeId) {
        let keeps_traces = self.keeps_traces;
        let scope = self.scopes.get_mut(id);
        if id == MAIN || scope.is_counted_out {
            return;
        }
        if scope.drafts.is_empty() {
            // The step that the scope waits for may rest without a new draft.
            return self.rest_if_waiting(id);
        }
        if scope.end.is_none() && scope.position.frontier.is_empty() && !scope.is_held_at_end {
            match scope.has_failed_end() {
                true => self.fail_scope(id),
                false => scope.end = Some(End::Completed),
            }
        }
        let scope = self.scopes.get_mut(id);
        let Some(end) = scope.end else {
            self.rest_if_waiting(id);
            return;
        };
        scope.is_counted_out = true;
        let digests = match keeps_traces {
            true => scope_digests(scope),
            // In a graph with routes, the state contains the outputs of nested children.
            false => scope.position.pins.map(|pins| EndDigests { output: Digest::merkle(&[]), pins }),
        };
        if let Some(last) = scope.drafts.last_mut() {
            last.scope_digests = digests;
        }
        let had_capacity = std::mem::take(&mut scope.has_capacity);
        let failures = scope.end_with_last_draft(end);
        let error = scope
            .drafts
            .last()
            .and_then(|draft| draft.phase.failure())
            .map(|failure| failure.error.join(": "));
        let opener = scope.opener.expect("a child has an opener");
        let fan = self.scopes.get_mut(opener.scope).fan_mut(opener.place);
        fan.active -= usize::from(had_capacity);
        fan.ended += 1;
        fan.mark_ended_here(opener.index);
        fan.failed += failures;
        if end == End::Failed {
            fan.note_failure(error.unwrap_or_default());
        } else if end == End::Completed {
            fan.note_success();
        }
        // If the opener's scope was rewound, its reuse is decided before the join runs again.
        let above = self.scopes.get(opener.scope);
        self.is_pausing |= above.position.chain.as_ref().is_some_and(|chain| chain.head.is_some());
        self.touched.insert(opener.scope);
        self.stop_at_limit(opener.scope, opener.place);
    }

    /// Fails an opener whose children exceed a failure limit.
    fn stop_at_limit(&mut self, id: ScopeId, place: usize) {
        let scope = self.scopes.get(id);
        let limits = children_of(scope, place).limits;
        let fan = scope.fans.iter().find(|fan| fan.place == place).expect("the fan-out is under way");
        let Some(why) = fan.exceeded(&limits).filter(|_| !fan.stopped) else { return };
        let is_routed = scope.shape.is_routed();
        self.scopes.get_mut(id).fan_mut(place).stopped = true;
        if !is_routed {
            // Running children continue to their end.
            return self.defer_limit_failure(id, place, Failure::new(FailureKind::Limit, vec![why]));
        }
        self.cancel_children(id, place, None, "too many of its siblings failed");
        self.fail(id, place, Failure::new(FailureKind::Limit, vec![why]), StepReport::default());
    }

    /// Frees the capacity of a child that only waits.
    fn rest_if_waiting(&mut self, id: ScopeId) {
        let scope = self.scopes.get_mut(id);
        if !scope.has_capacity || !scope.rests() {
            return;
        }
        scope.has_capacity = false;
        let opener = scope.opener.expect("a child has an opener");
        self.scopes.get_mut(opener.scope).fan_mut(opener.place).active -= 1;
        self.touched.insert(opener.scope);
    }

    /// Gives capacity to a queued scope. Returns whether the scope still needed capacity.
    pub(crate) fn take_capacity(&mut self, id: ScopeId, place: usize, child: ScopeId) -> bool {
        let Some(scope) = self.scopes.find(child) else { return false };
        let ours = scope.opener.is_some_and(|opener| opener.scope == id && opener.place == place);
        if ours {
            scope.is_waiting_for_capacity = false;
        }
        if !ours || scope.has_capacity || scope.rests() || scope.end.is_some() {
            return false;
        }
        scope.has_capacity = true;
        self.scopes.get_mut(id).fan_mut(place).active += 1;
        true
    }

    /// Gives capacity to a scope before its opening is written: its start is written together with the opening.
    pub(crate) fn keep_loaded(&mut self, id: ScopeId, place: usize, child: ScopeId) {
        let scope = self.scopes.get_mut(child);
        (scope.unloading, scope.has_capacity) = (false, true);
        self.scopes.get_mut(id).fan_mut(place).active += 1;
        self.touched.insert(child);
    }

    pub(crate) fn set_timer(&mut self, id: ScopeId) {
        let Some(scope) = self.scopes.find(id) else { return };
        let due = scope.next_due();
        let before = std::mem::replace(&mut scope.timer, due);
        if before != due {
            if let Some(before) = before {
                self.timers.remove(&(before, id));
            }
            if let Some(due) = due {
                self.timers.insert((due, id));
            }
        }
    }

    /// Makes due steps ready.
    pub(crate) fn wake(&mut self) {
        let now = self.now();
        while let Some((due, id)) = self.timers.first().copied() {
            if due > now {
                return;
            }
            self.timers.pop_first();
            let Some(scope) = self.scopes.find(id) else { continue };
            scope.timer = None;
            scope.wake(now);
            self.touched.insert(id);
        }
    }

    /// Returns the status of the run if nothing can progress without an external event.
    pub(crate) fn idle_status(&self) -> Option<RunStatus> {
        if !self.jobs.is_empty() || !self.launching.is_empty() || !self.touched.is_empty() {
            return None;
        }
        let main = self.main();
        if self.may_have_message
            || self.needs_final_check()
            || self.scopes.iter().any(|(_, scope)| !scope.deferred_failures.is_empty())
        {
            return None;
        }
        if main.position.frontier.is_empty() && !main.is_held_at_end {
            return Some(main.status_at_end());
        }
        let any =
            |test: &dyn Fn(&Scope<'_, P::State>) -> bool| self.scopes.iter().any(|(_, scope)| test(scope));
        if self.scopes.iter().any(|(id, _)| self.is_in_doubt(id)) {
            return Some(RunStatus::InDoubt);
        }
        if self.halted || any(&|scope| scope.end.is_none() && scope.has(Status::Failed)) {
            return Some(RunStatus::Failed);
        }
        if self.is_pausing && main.has_failed_end() {
            return Some(RunStatus::Failed);
        }
        if self.options.stop.is_asked() || any(&|scope| scope.has(Status::Started)) {
            return Some(RunStatus::Interrupted);
        }
        if self.is_pausing || self.scopes.iter().any(|(id, scope)| self.is_runnable(id, scope)) {
            return None;
        }
        let held = any(&|scope| scope.is_held() || scope.is_held_at_end);
        let waits = any(&|scope| scope.asks() || scope.sleeps());
        if main.has_failed_end() && !waits && !held {
            return Some(RunStatus::Failed);
        }
        Some(if waits && !held { RunStatus::Waiting } else { RunStatus::Interrupted })
    }

    /// Returns whether all steps have ended, and evidence must be verified again before the end of the run.
    pub(crate) fn needs_final_check(&self) -> bool {
        let main = self.main();
        let is_done = main.position.frontier.is_empty() && !main.is_held_at_end && !main.has_failed_end();
        self.pending_claims.is_any() && is_done
    }

    fn is_runnable(&self, id: ScopeId, scope: &Scope<'_, P::State>) -> bool {
        let runnable = |entry: &FrontierEntry| {
            let place = scope.shape.place(entry.step.as_str());
            // A step that the graph lost is reported at its turn.
            entry.status == Status::Ready && place.is_none_or(|place| self.may_start(id, place))
        };
        scope.position.frontier.iter().any(runnable)
    }

    pub(crate) fn progress(&self) -> Progress {
        self.main().progress()
    }
}

pub(crate) fn children_of<'a, S>(scope: &Scope<'a, S>, place: usize) -> &'a Children {
    let step = &scope.shape.steps()[place];
    let entry = scope.position.frontier.iter().find(|entry| entry.step == step.id);
    let children = entry.map_or(step.children.as_ref(), |entry| step.opened(entry));
    children.expect("only a step with children fans out")
}

/// Returns the wait of a step for its scopes.
pub(crate) fn wait_for_children() -> Wait {
    Wait { on: WaitKind::Children, ..wait_for_resume("children".to_owned()) }
}

/// Returns the wait of a step for its hooks.
pub(crate) fn wait_for_hooks() -> Wait {
    Wait { key: WAIT_HOOKS.to_owned(), ..wait_for_children() }
}

/// Returns a wait that only a resume ends.
pub(crate) fn wait_for_resume(key: String) -> Wait {
    Wait { id: String::new(), key, on: WaitKind::Resume, question: None, until: None }
}

/// Returns whether the failure of a child ends only the child: the opener collects failures.
pub(crate) fn collects<S>(scope: &Scope<'_, S>, place: usize) -> bool {
    children_of(scope, place).on_failure == OnChildFailure::Collect
}
