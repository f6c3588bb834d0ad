//! Applies ended attempts in memory, between two commits.

use std::time::Duration;

use jiff::Timestamp;

use crate::id::{Digest, RunId, StepId};
use crate::record::{
    EndDigests, Ending, Failure, FailureKind, Note, OUTPUTS_INLINE_BYTES_MAX, Phase, Reason, Settled,
    SettledAs, Status,
};

use super::Session;
use super::signals::StopLevel;
use crate::engine::scope::fan_out::JoinedDigests;
use crate::engine::scope::{DeferredFailure, ListedChildren, MAIN, Scope, ScopeId};
use crate::engine::walk::early_cutoff::ReusableVerdicts;
use crate::engine::walk::rewind::drop_chain;
use crate::engine::walk::scheduler::wait_for_resume;
use crate::engine::walk::trace::{
    EndResult, digests_of, failed_digests, join_trace, route_digests, trace_of,
};
use crate::engine::{Follow, OnFailure, Performed, Program, Settlement, StepFailure, StepRef, StepReport};

/// The end of a completed attempt.
struct Completed<O> {
    output: O,
    ending: Ending,
    report: StepReport,
    /// The joined children, for a join.
    joined: Option<JoinedDigests>,
}

impl<P: Program> Session<'_, P> {
    /// Applies the end of an attempt: state, position and draft change together.
    pub(crate) fn take(
        &mut self,
        id: ScopeId,
        place: usize,
        performed: Performed<P::Output>,
        root: Option<JoinedDigests>,
    ) {
        self.touched.insert(id);
        self.mark_dirty(id);
        match performed {
            Performed::Completed { output, ending, report } => {
                self.complete(id, place, Completed { output, ending, report, joined: root });
            }
            Performed::Failed { failure, report } => self.fail(id, place, failure, report),
            Performed::Opened { items, report } => {
                let scope = self.scopes.get_mut(id);
                let step = &scope.shape.steps()[place];
                let are_hooks = step.children.is_none() || scope.entry(place).fan.is_some();
                let listed = ListedChildren { place, items, report, are_hooks, failure: None, joined: root };
                scope.listed_children.push(listed);
            }
            Performed::Cut { why, was_killed, report } => {
                self.scopes.get_mut(id).entry_mut(place).cuts += u32::from(was_killed);
                self.cut(id, place, why, report);
            }
            Performed::Stopped { in_progress } => self.stopped(id, place, in_progress),
        }
    }

    /// Applies an interrupted attempt with a possible effect: a resume or a person decides about the step.
    ///
    /// Nothing more starts. If the step is not idempotent, other non-idempotent steps run to their end: a stop would put
    /// these steps in doubt as well.
    fn cut(&mut self, id: ScopeId, place: usize, why: String, report: StepReport) {
        if self.scopes.get(id).shape.steps()[place].idempotent {
            self.options.stop.stop(StopLevel::Graceful, &why);
        } else {
            self.halted = true;
            self.scopes.iter_mut().for_each(|(_, scope)| scope.cancel.stop(StopLevel::Graceful, &why));
            self.cut_by.get_or_insert_with(|| why.clone());
        }
        let scope = self.scopes.get_mut(id);
        scope.draft_of(place, Phase::Interrupted { in_progress: true, by: why }, Reason::Stopped).report =
            report;
    }

    fn complete(
        &mut self,
        id: ScopeId,
        place: usize,
        Completed { output, mut ending, report, joined }: Completed<P::Output>,
    ) {
        let root = joined.map(|joined| joined.root);
        inline_outputs(&mut ending);
        let (program, keeps_traces, keeps_state_digests) =
            (self.program, self.keeps_traces, self.keeps_state_digests);
        self.reusable_verdicts = ReusableVerdicts::default();
        let scope = self.scopes.get_mut(id);
        let joins = scope.shape.steps()[place].opens_evidence();
        // A changed list of items or a rerun inside enters the joined children again.
        let is_routed = scope.shape.is_routed();
        let children = scope.shape.steps()[place].children.as_ref();
        let has_fan = children.is_some_and(|children| children.passes || !is_routed);
        let matters = keeps_traces
            || report.evidence.is_some()
            || joins
            || has_fan
            || !ending.outputs.is_empty()
            || ending.outputs_bytes.is_some();
        let about = scope.entry(place).fan.as_ref().filter(|_| joins).map(|fan| fan.since);
        let follow = apply(program, scope, place, Settlement::Completed(output, &ending));
        let follow = match follow {
            Ok(follow) => follow,
            Err(mut failure) => {
                failure.ending = ending;
                if scope.runs_hooks(place) {
                    // The step is no longer completed, and its hooks are no longer in force.
                    scope.end_hooks(place);
                }
                return self.fail(id, place, failure, report);
            }
        };
        let failures = scope.failures_joined(place);
        let settled = Settled { failures, ..Settled::completed(scope.seq_of_next_draft()) };
        let settled = (matters || failures > 0).then_some(settled);
        let reason = match scope.entry(place) {
            _ if root.is_some() => Reason::Join,
            entry if entry.at.attempt > 1 => Reason::Retry,
            _ => Reason::Step,
        };
        let (step, at) = (scope.step_id(place).clone(), scope.entry(place).at.clone());
        let trace = keeps_traces.then(|| trace_of(program, scope, place)).flatten();
        let made = |scope: &Scope<'_, P::State>| {
            let output = program.output_of(scope.step_ref(place), &scope.state);
            let work = scope.entry(place).hooks.as_ref().and_then(|hooks| hooks.work_digests);
            let below: Vec<EndDigests> = joined.map(|joined| joined.nested).into_iter().chain(work).collect();
            let children = (!below.is_empty()).then(|| EndDigests::together(&below));
            EndResult { output, evidence: report.evidence.as_ref(), children }
        };
        let digests = match keeps_state_digests {
            true => routed_end_digests(program, scope, &made(scope)),
            false => trace.is_some().then(|| digests_of(scope, place, &made(scope))),
        };
        let outcomes = joined.filter(|_| keeps_state_digests).map(|joined| joined.outcomes);
        let trace = trace.or(outcomes.map(|outcomes| join_trace(&scope.shape.steps()[place], outcomes)));
        scope.settle(place, settled, follow);
        scope.digests.remove(&step);
        scope.digests.extend(digests.map(|digests| (step.clone(), digests)));
        let is_due = self.pending_claims.note_end(scope.path(), &step, report.evidence.as_ref());
        let draft = scope.draft(Phase::Completed(ending), reason, step, at);
        draft.report = report;
        draft.children = root;
        draft.about = about;
        (draft.trace, draft.digests) = (trace, digests);
        self.hold_after(id, place, follow);
        self.pause(id, is_due);
    }

    /// Pauses new starts if a check is due first.
    ///
    /// - After a rerun: are the downstream results reusable?
    /// - After a rerun without downstream steps: has the rerun invalidated other evidence?
    /// - The ended step had blocked a check.
    fn pause(&mut self, id: ScopeId, is_due: bool) {
        let scope = self.scopes.get_mut(id);
        let ends = scope.position.frontier.is_empty() && (id == MAIN || scope.is_held_at_end);
        self.is_pausing |= is_due && !ends;
        if scope.position.chain.as_ref().is_none_or(|chain| chain.head.is_none()) {
            return;
        }
        if scope.position.frontier.is_empty() {
            // The scope has ended without a rejoin.
            drop_chain(&mut scope.position, scope.shape);
        } else {
            self.is_pausing = true;
        }
        self.pending_claims.is_redone = true;
    }

    /// Holds the steps after a step, if requested.
    fn hold_after(&mut self, id: ScopeId, place: usize, follow: Follow) {
        let scope = self.scopes.get_mut(id);
        let step = scope.step_id(place);
        if !self.options.interrupts.after.contains(step) {
            return;
        }
        let key = format!("after {step}");
        let after: Vec<usize> = match follow {
            Follow::To(next) => vec![next],
            Follow::End => Vec::new(),
            Follow::Needs => scope.shape.followers(place).to_vec(),
        };
        let mut held = false;
        for next in after {
            let next = scope.step_id(next);
            if let Some(entry) = scope.position.frontier.iter_mut().find(|entry| entry.step == *next) {
                entry.status = Status::Waiting;
                entry.waits = vec![wait_for_resume(key.clone())];
                held = true;
            }
        }
        if !held && scope.position.frontier.is_empty() {
            scope.is_held_at_end = true;
        }
    }

    fn stopped(&mut self, id: ScopeId, place: usize, in_progress: bool) {
        let scope = self.scopes.get_mut(id);
        let (by, reason) = match (scope.cancel.asked(), self.options.stop.asked()) {
            (Some(cut), _) if self.cut_by.is_some() => (cut.by, Reason::Stopped),
            (Some(cancel), _) => (cancel.by, Reason::Cancel),
            (None, Some(stop)) => (stop.by, Reason::Stopped),
            (None, None) => ("a stop".to_owned(), Reason::Stopped),
        };
        scope.draft_of(place, Phase::Interrupted { in_progress, by }, reason);
        if !in_progress {
            scope.unmark_started(place);
        }
    }

    /// Applies a failure: the step is retried, its hooks open, the failure is tolerated, or the failure ends the
    /// scope or the run.
    pub(crate) fn fail(&mut self, id: ScopeId, place: usize, failure: Failure, report: StepReport) {
        let program = self.program;
        let scope = self.scopes.get_mut(id);
        let step = &scope.shape.steps()[place];
        // The join of the hooks reports the result of the step again.
        if step.hooks.is_none() || scope.runs_hooks(place) {
            return self.fail_now(id, place, failure, report);
        }
        let verdict = program.on_failure(scope.step_ref(place), &failure);
        if verdict.opens.is_empty() || self.pause_before_retry(id, place, (&verdict, &failure)).is_some() {
            return self.fail_now(id, place, failure, report);
        }
        self.touched.insert(id);
        self.mark_dirty(id);
        let scope = self.scopes.get_mut(id);
        let report = report_before_hooks(report, &failure);
        let items = verdict.opens;
        if scope.fans.iter().any(|fan| fan.place == place) && scope.entry(place).status == Status::Waiting {
            scope.deferred_failures.push(DeferredFailure { place, failure, items, report });
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

    /// Returns the delay before a retry; `None` without a retry.
    fn pause_before_retry(
        &self,
        id: ScopeId,
        place: usize,
        (verdict, failure): (&OnFailure, &Failure),
    ) -> Option<Duration> {
        let scope = self.scopes.get(id);
        let (step, entry) = (&scope.shape.steps()[place], scope.entry(place));
        let is_final = matches!(failure.kind, FailureKind::Limit | FailureKind::Cancelled);
        let retries = verdict.retry && !is_final && !scope.runs_hooks(place);
        let random = chance(&scope.chain.run, scope.path().as_str(), &step.id, entry.at.attempt);
        step.retry.pause(entry.failures + 1, random).filter(|_| retries)
    }

    /// Applies a failure that opens no hooks.
    pub(crate) fn fail_now(&mut self, id: ScopeId, place: usize, failure: Failure, report: StepReport) {
        let scope = self.scopes.get(id);
        let verdict = self.program.on_failure(scope.step_ref(place), &failure);
        let pause = self.pause_before_retry(id, place, (&verdict, &failure));
        let (path, step) = match failure.below.clone() {
            Some(below) => (below.scope, below.step),
            None => (scope.path().clone(), scope.step_id(place).clone()),
        };
        let own = StepFailure { scope: path, step, failure: failure.clone() };
        let failing = Failing { failure, report, pause, causes: vec![own] };
        self.settle_failure(id, place, failing);
    }

    /// Applies a failure: the step is retried after the delay, or the failure is tolerated, or the step ends as
    /// failed.
    pub(crate) fn settle_failure(&mut self, id: ScopeId, place: usize, failing: Failing) {
        let Failing { mut failure, report, pause, causes } = failing;
        self.touched.insert(id);
        self.mark_dirty(id);
        let now = self.now();
        let (program, keeps_traces) = (self.program, self.keeps_traces);
        self.reusable_verdicts = ReusableVerdicts::default();
        let (mut trace, mut digests) = (None, None);
        let verdict = program.on_failure(self.scopes.get(id).step_ref(place), &failure);
        // The work of a cancelled step is unfinished.
        let tolerates = verdict.tolerate && failure.kind != FailureKind::Cancelled;
        let scope = self.scopes.get_mut(id);
        let step = &scope.shape.steps()[place];
        let entry = scope.entry(place);
        let (at, failures) = (entry.at.clone(), entry.failures + 1);
        let reason = if at.attempt > 1 { Reason::Retry } else { Reason::Step };
        // A step with exit code 0 may have taken effect, even if its evidence failed.
        let code = failure.ending.exit_code;
        let is_unsettled = !step.idempotent && (failure.kind == FailureKind::Evidence || code == Some(0));
        let exited = is_unsettled.then(|| code.unwrap_or(0));
        let mut ends_all = false;
        if let Some(pause) = pause {
            failure.retried = true;
            let entry = scope.entry_mut(place);
            (entry.status, entry.continues) = (Status::Ready, false);
            entry.failures = failures;
            entry.cuts = 0;
            entry.since = 0;
            let due = (!pause.is_zero()).then(|| now.checked_add(pause).unwrap_or(Timestamp::MAX));
            entry.wait_until(due, now);
        } else if let (true, Ok(follow)) =
            (tolerates, apply_tolerated(program, scope, place, tolerates, &failure))
        {
            failure.tolerated = true;
            let seq = scope.seq_of_next_draft();
            if keeps_traces {
                trace = trace_of(program, scope, place);
                digests = Some(failed_digests(scope.path(), &step.id, seq));
                scope.digests.extend(digests.map(|digests| (step.id.clone(), digests)));
            }
            let failures = scope.failures_joined(place);
            let settled = Settled { failures, ..Settled::new(SettledAs::Tolerated, seq) };
            scope.settle(place, Some(settled), follow);
        } else {
            if scope.runs_hooks(place) {
                scope.end_hooks(place);
            }
            let entry = scope.entry_mut(place);
            entry.status = Status::Failed;
            entry.exited = exited;
            entry.failures = failures;
            entry.since = 0;
            ends_all = true;
            if !scope.shape.is_routed() {
                // A program error leaves the state unchanged.
                let _ = apply(program, scope, place, Settlement::Failed(&failure));
            }
        }
        // The state already has the outputs.
        inline_outputs(&mut failure.ending);
        scope.drafts.push(crate::engine::chain::Draft::new(
            Phase::Failed(failure.clone()),
            reason,
            Some(step.id.clone()),
            at,
        ));
        let last = scope.drafts.last_mut().expect("a draft was just added");
        (last.report, last.trace, last.digests) = (report, trace, digests);
        if ends_all {
            self.end_step(id, place, (failure, causes));
        }
    }

    /// Ends a step as failed. In a graph with `needs`, independent steps continue. In a graph with routes, the
    /// failure ends the scope or the run.
    fn end_step(&mut self, id: ScopeId, place: usize, (failure, causes): (Failure, Vec<StepFailure>)) {
        let keeps_traces = self.keeps_traces;
        let scope = self.scopes.get_mut(id);
        if scope.shape.is_routed() {
            return self.end_by_failure(id, place, failure);
        }
        let fails_fast = self.options.fail_fast || scope.shape.fails_fast();
        scope.end_as_failed(place);
        if keeps_traces {
            let step = scope.step_id(place).clone();
            let digests = failed_digests(scope.path(), &step, scope.seq_of_next_draft() - 1);
            scope.digests.insert(step, digests);
            scope.drafts.last_mut().expect("the failure is the newest draft").digests = Some(digests);
        }
        scope.failures.extend(causes);
        if fails_fast {
            self.touched.extend(self.scopes.iter().map(|(id, _)| id));
        }
    }
}

/// A final or retried failure of a step, without hooks to open.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) failure: Failure,
    pub(crate) report: StepReport,
    /// The delay before the retry; `None` without a retry.
    pub(crate) pause: Option<Duration>,
    /// The causes: the failure itself, or the failures of the step's scopes.
    pub(crate) causes: Vec<StepFailure>,
}

/// Adds the failure to the report of a step with hooks: the record of the step has the failure only after its hooks.
pub(crate) fn report_before_hooks(mut report: StepReport, failure: &Failure) -> StepReport {
    let text = failure.error.first().cloned().unwrap_or_default();
    report.notes.push(Note::Warning(format!("the step failed, and its failure hook runs: {text}")));
    report
}

/// Applies the result of a step to the state.
fn apply<P: Program>(
    program: &P,
    scope: &mut Scope<'_, P::State>,
    place: usize,
    settled: Settlement<'_, P::Output>,
) -> Result<Follow, Failure> {
    let Scope { chain, shape, state, .. } = scope;
    let step_ref = StepRef { scope: &chain.scope, level: shape.level(), place, step: &shape.steps()[place] };
    program.apply(state, step_ref, settled)
}

/// Returns the digests of an end in a graph with routes, and adds the pins of the step to the position. `None` if the state
/// cannot be encoded; the commit then reports the error.
fn routed_end_digests<P: Program>(
    program: &P,
    scope: &mut Scope<'_, P::State>,
    made: &EndResult<'_>,
) -> Option<EndDigests> {
    let mut state = Vec::new();
    program.encode(scope.shape.level(), &scope.state, &mut state).ok()?;
    let digests = route_digests(scope.position.pins, &state, made);
    scope.position.pins = Some(digests.pins);
    Some(digests)
}

fn apply_tolerated<P: Program>(
    program: &P,
    scope: &mut Scope<'_, P::State>,
    place: usize,
    tolerate: bool,
    failure: &Failure,
) -> Result<Follow, Failure> {
    if !tolerate {
        return Err(failure.clone());
    }
    apply(program, scope, place, Settlement::Tolerated(failure))
}

/// Keeps small outputs in the header, only the size of large outputs, and no printed text.
pub(crate) fn inline_outputs(ending: &mut Ending) {
    ending.stdout = None;
    if ending.outputs.is_empty() {
        return;
    }
    let bytes = serde_json::to_vec(&ending.outputs).map_or(usize::MAX, |bytes| bytes.len());
    if bytes > OUTPUTS_INLINE_BYTES_MAX {
        ending.outputs.clear();
        ending.outputs_bytes = Some(bytes as u64);
    }
}

/// Returns a jitter value between 0 and 1: fixed for a run, scope, step and attempt.
fn chance(run: &RunId, scope: &str, step: &StepId, attempt: u32) -> f64 {
    let names = [run.as_str().as_bytes(), scope.as_bytes(), step.as_str().as_bytes()];
    let digest = Digest::of_parts(names.into_iter().chain([&attempt.to_le_bytes()[..]]));
    let [a, b, c, d, ..] = *digest.as_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX)
}
