//! Failed ends: failed steps of a graph with `needs`, their retry by a resume, and failed scopes skipped by a
//! person.
//!
//! ```text
//!   a: failed ---> b: passed over ---> c, `always()`: completed
//!   resume:  a is ready, b and c are unfinished, and the results of all three leave the state
//! ```

use std::collections::BTreeSet;

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::shape::{Shape, Unfinished};
use crate::record::{
    End, Failure, FailureKind, FrontierEntry, Phase, Position, Reason, Record, Settled, SettledAs, SkipCause,
    Status, Try,
};
use crate::store::{Batch, BatchId, Lease, Store, StoreError, StoreExt as _};

use super::invalidate::{Invalidated, ReusePolicy};
use super::scheduler::collects;
use crate::engine::chain::{Chain, Draft, unchanged_body};
use crate::engine::inspect::position_as_recorded;
use crate::engine::resume::definition::Forget;
use crate::engine::scope::{MAIN, Opener, Scope, ScopeId};
use crate::engine::session::Session;
use crate::engine::{Admission, Engine, Program, RunError, StepReport, Upstream};

impl<P: Program> Session<'_, P> {
    /// Returns whether the admission of a step was already decided: the step has waited or has attempts, and no
    /// resume retries the step.
    fn is_admitted(&self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get(id);
        let entry = scope.entry(place);
        // For a retried opener, `decide_begun` has decided.
        entry.has_children() || !scope.redecided.contains(&entry.step) && entry.at.attempt > 0
    }

    /// Decides by its condition whether a ready step runs.
    pub(crate) fn admission(&self, id: ScopeId, place: usize) -> Result<Admission, Failure> {
        if self.is_admitted(id, place) { Ok(Admission::Run) } else { self.decide(id, place) }
    }

    /// Evaluates the condition of a step. The condition is that of all passes: a later pass is not decided again.
    pub(crate) fn decide(&self, id: ScopeId, place: usize) -> Result<Admission, Failure> {
        let (scope, failed) = (self.scopes.get(id), self.failed_upstream(id, place));
        if scope.shape.steps()[place].is_later_pass(scope.entry(place)) {
            return Ok(Admission::Run);
        }
        self.program.admit(scope.step_ref(place), &scope.state, upstream(failed.as_ref()))
    }

    /// Returns the failed step that keeps a step from running, unless the condition of the step admits failures.
    pub(crate) fn failed_upstream(&self, id: ScopeId, place: usize) -> Option<StepId> {
        let scope = self.scopes.get(id);
        let has_begun = scope.shape.steps()[place].is_later_pass(scope.entry(place));
        failed_upstream(scope.shape, &scope.position, place)
            .or_else(|| self.failed_fast(id).filter(|_| !has_begun))
    }

    fn is_in_hooks(&self, id: ScopeId) -> bool {
        self.scopes.get(id).opener.is_some_and(|Opener { scope, place, .. }| {
            self.scopes.get(scope).runs_hooks(place) || self.is_in_hooks(scope)
        })
    }

    /// Returns whether a person must decide about a step of a scope. The hooks of a failed run need no decision: a resume
    /// retries the failure, and another failure has hooks of its own.
    pub(crate) fn is_in_doubt(&self, id: ScopeId) -> bool {
        self.scopes.get(id).has_doubt() && !self.is_in_hooks_of_failed_run(id)
    }

    fn is_in_hooks_of_failed_run(&self, id: ScopeId) -> bool {
        self.scopes.get(id).opener.is_some_and(|Opener { scope, place, .. }| {
            let is_of_run = self.scopes.get(scope).shape.steps()[place].is_for_hooks;
            is_of_run && self.failed_upstream(scope, place).is_some() || self.is_in_hooks_of_failed_run(scope)
        })
    }

    /// Returns the failed step that stops new starts in a scope under `fail_fast`. The failed step is on the
    /// scope, on an ancestor, or in a scope with a failure that an ancestor does not tolerate. Hooks of a step run to
    /// their end.
    fn failed_fast(&self, id: ScopeId) -> Option<StepId> {
        if !self.options.fail_fast && !self.scopes.get(id).shape.fails_fast() || self.is_in_hooks(id) {
            return None;
        }
        let up = |from: ScopeId| {
            std::iter::successors(Some(from), |id| Some(self.scopes.get(*id).opener?.scope))
                .collect::<Vec<_>>()
        };
        let around = up(id);
        let fails_with = |from: ScopeId| {
            let mut top = from;
            while let Some(opener) = self.scopes.get(top).opener
                && !collects(self.scopes.get(opener.scope), opener.place)
            {
                top = opener.scope;
            }
            top
        };
        let failed = self.scopes.iter().filter(|(_, scope)| scope.has_failed_end() && scope.end.is_none());
        let mut failed =
            failed.filter(|(other, _)| around.contains(other) || around.contains(&fails_with(*other)));
        failed.find_map(|(_, scope)| Some(scope.position.failed.first()?.step.clone()))
    }

    /// Returns whether a step may start in this session: the step is wanted, and no failure elsewhere stops it.
    pub(crate) fn may_start(&self, id: ScopeId, place: usize) -> bool {
        self.is_selected(id, place) && !self.is_stopped(id, place)
    }

    /// Returns whether a failure stops a step under `fail_fast`: a step of another open scope, which is cancelled with the
    /// opener of the scope, or a step between two passes. Other steps are passed over.
    fn is_stopped(&self, id: ScopeId, place: usize) -> bool {
        let is_begun = self.is_between_passes(id, place) || !self.ends_by_failure(id);
        is_begun && !self.is_admitted(id, place) && self.cancelled_by(id, place).is_some()
    }

    /// Returns whether a step without scopes waits for its next pass.
    fn is_between_passes(&self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get(id);
        let (step, entry) = (&scope.shape.steps()[place], scope.entry(place));
        step.is_later_pass(entry) && !step.opens() && entry.status == Status::Ready
    }

    /// Returns whether steps of a scope are passed over after a failure under `fail_fast`: in the main scope, and in a scope
    /// with a failed step.
    fn ends_by_failure(&self, id: ScopeId) -> bool {
        id == MAIN || self.scopes.get(id).has_failed_end()
    }

    /// Returns the failed step that stops a step under `fail_fast`; `None` if the condition of the step admits failures.
    fn cancelled_by(&self, id: ScopeId, place: usize) -> Option<StepId> {
        let (scope, failed) = (self.scopes.get(id), self.failed_fast(id)?);
        let admitted = self.program.admit(scope.step_ref(place), &scope.state, Upstream::Failed(&failed));
        matches!(admitted, Ok(Admission::Skip(SkipCause::UpstreamFailed(_)))).then_some(failed)
    }

    /// Cancels the begun steps of a scope after a failure under `fail_fast`: an opener fails once its scopes are at rest,
    /// and a step between two passes fails at once. The next resume continues both.
    pub(crate) fn cancel_begun(&mut self, id: ScopeId) {
        if self.scopes.get(id).end.is_some() || !self.ends_by_failure(id) {
            return;
        }
        let scope = self.scopes.get(id);
        for place in places(scope.shape, &scope.position, |_| true) {
            let scope = self.scopes.get(id);
            let is_deferred = scope.deferred_failures.iter().any(|deferred| deferred.place == place);
            let waits = scope.entry(place).status == Status::Waiting && !scope.runs_hooks(place);
            let is_open = waits && scope.fans.iter().any(|fan| fan.place == place) && !is_deferred;
            if !is_open && !self.is_between_passes(id, place) || self.fails_by_scope(id, place) {
                continue;
            }
            let Some(failed) = self.cancelled_by(id, place) else { continue };
            let text = format!("cancelled before its end: step `{failed}` failed");
            let failure = Failure::new(FailureKind::Cancelled, vec![text]);
            match is_open {
                true => self.defer_cancellation(id, place, failure),
                false => self.fail_now(id, place, failure, StepReport::default()),
            }
        }
    }

    /// Passes over the steps of a scope with a failed upstream step. Applies even when no new step may start,
    /// since passing over starts no work.
    pub(crate) fn pass_over(&mut self, id: ScopeId) {
        loop {
            let scope = self.scopes.get(id);
            let fails_fast = self.options.fail_fast || scope.shape.fails_fast();
            if scope.end.is_some() || !(scope.has_failed_end() || fails_fast) {
                return;
            }
            let ready = scope.position.frontier.iter().filter(|entry| entry.status == Status::Ready);
            let places = ready.filter_map(|entry| scope.shape.place(entry.step.as_str()));
            let cause = |place: usize| {
                let is_decided = self.is_admitted(id, place) || self.is_stopped(id, place);
                let failed = self.failed_upstream(id, place).filter(|_| !is_decided)?;
                let admitted =
                    self.program.admit(scope.step_ref(place), &scope.state, Upstream::Failed(&failed));
                match admitted {
                    Ok(Admission::Skip(cause @ SkipCause::UpstreamFailed(_))) => Some((place, cause)),
                    _ => None,
                }
            };
            let Some((place, cause)) = places.collect::<Vec<_>>().into_iter().find_map(cause) else { return };
            self.skip(id, place, cause);
        }
    }
}

/// Returns the upstream state of a step, as an argument for programs.
pub(crate) fn upstream(failed: Option<&StepId>) -> Upstream<'_> {
    failed.map_or(Upstream::Succeeded, Upstream::Failed)
}

/// Reads the position of a record and retries its failures, except for the claim of a run at rest. Returns the results to
/// remove from the state.
pub(crate) fn position_for_retry(
    shape: &Shape,
    record: &Record,
    keeps_failures: bool,
) -> Result<(Position, Vec<Forget>), StoreError> {
    let mut position = position_as_recorded(record)?;
    if keeps_failures {
        return Ok((position, Vec::new()));
    }
    let forgotten = retry_failures(shape, &mut position);
    Ok((position, forgotten))
}

/// Returns the failures to remove from the state of a record, for a retry in another run.
pub(crate) fn failures_of(shape: &Shape, record: &Record) -> Result<Vec<Forget>, StoreError> {
    let (_, mut forgotten) = position_for_retry(shape, record, false)?;
    forgotten.retain(|forget| matches!(forget, Forget::Failure(_)));
    Ok(forgotten)
}

/// Takes failed and passed-over ends out of force, with every downstream end. Returns the results to remove from
/// the state.
///
/// The most upstream failed steps are back in the frontier. A downstream non-idempotent step that ran is marked,
/// so that a person is asked at its turn.
pub(crate) fn retry_failures(shape: &Shape, position: &mut Position) -> Vec<Forget> {
    let before = Unfinished::of(shape, position);
    let passed_over = |settled: &Settled| settled.how == SettledAs::PassedOver;
    let passed: BTreeSet<StepId> =
        position.ledger.iter().filter(|(_, end)| passed_over(end)).map(|(step, _)| step.clone()).collect();
    *position = std::mem::take(position).with_failures_open();
    let around = shape.passes_around(position).to_vec();
    if shape.is_routed() {
        return Vec::new();
    }
    let failed = places(shape, position, |entry| entry.status == Status::Failed);
    if failed.is_empty() {
        return Vec::new();
    }
    let skipped = passed.iter().filter_map(|step| shape.place(step.as_str()));
    let to_retry: Vec<usize> = failed.iter().copied().chain(skipped).collect();
    let mut forgotten = Vec::new();
    let mut downstream = shape.downstream(&to_retry);
    let open = shape.downstream(&places(shape, position, |_| true));
    downstream.extend(to_retry.iter().filter(|place| open.contains(place)));
    // Under `fail_fast` a failure may have stopped independent steps.
    for place in to_retry.iter().filter(|place| !downstream.contains(place) && !failed.contains(place)) {
        let mut entry = FrontierEntry::ready(shape.steps()[*place].id.clone());
        entry.at.iteration = shape.first_iteration(*place, &around);
        entry.at.epoch = position.epoch;
        position.frontier.push(entry);
        forgotten.push(Forget::Step(shape.steps()[*place].id.clone()));
    }
    let retried = failed.iter().filter(|place| !downstream.contains(place));
    forgotten.extend(retried.map(|place| Forget::Failure(shape.steps()[*place].id.clone())));
    let mut after = Invalidated { position: std::mem::take(position), forgotten };
    let mut has_run = false;
    for place in downstream {
        let step = &shape.steps()[place];
        let entry = after.position.frontier.iter().find(|entry| entry.step == step.id);
        let is_finished = !before.has(place) && entry.is_none() && !passed.contains(&step.id);
        has_run |= is_finished && after.position.did(&step.id)
            || after.position.asks_about(&step.id)
            || entry.is_some_and(|entry| entry.at.attempt > 0 || entry.has_children());
        // At its turn, a person may keep the result of a step, or rerun the step.
        after.drop_end(step, is_finished, ReusePolicy::Drop);
        after.forgotten.push(Forget::Failure(step.id.clone()));
    }
    let forgotten = after.forgotten;
    *position = after.position;
    if has_run {
        let known = position.frontier.iter().map(|entry| entry.at.epoch);
        let epoch = known.chain([position.epoch, position.epoch_max]).max().unwrap_or_default() + 1;
        (position.epoch, position.epoch_max) = (epoch, epoch);
    }
    forgotten
}

/// Decides the admission of openers and waiting steps again, by the condition and the params of now. A skipped step
/// drops open scopes and waits.
pub(crate) fn decide_begun<P: Program>(program: &P, scope: &mut Scope<'_, P::State>) {
    for step in scope.redecided.clone() {
        let Some(place) = scope.shape.place(step.as_str()) else { continue };
        let (step, entry) = (&scope.shape.steps()[place], scope.entry(place));
        if !entry.has_children() && entry.status != Status::Waiting || step.is_later_pass(entry) {
            continue;
        }
        let failed = failed_upstream(scope.shape, &scope.position, place);
        let admitted = program.admit(scope.step_ref(place), &scope.state, upstream(failed.as_ref()));
        if matches!(admitted, Ok(Admission::Skip(_))) {
            let entry = scope.entry_mut(place);
            *entry = FrontierEntry {
                at: Try { attempt: 0, ..entry.at.clone() },
                ..FrontierEntry::ready(entry.step.clone())
            };
            scope.position.note_rerun();
        }
    }
}

/// Returns the places of the frontier entries that satisfy `is_meant`, if the shape has their steps.
fn places(shape: &Shape, position: &Position, is_meant: impl Fn(&FrontierEntry) -> bool) -> Vec<usize> {
    let meant = position.frontier.iter().filter(|entry| is_meant(entry));
    meant.filter_map(|entry| shape.place(entry.step.as_str())).collect()
}

/// Returns the first failed step upstream of a step, by the failed ends of the position.
pub(crate) fn failed_upstream(shape: &Shape, position: &Position, place: usize) -> Option<StepId> {
    if position.failed.is_empty() {
        return None;
    }
    let upstream = shape.with_needs(place);
    let is_upstream = |entry: &&FrontierEntry| {
        let at = shape.place(entry.step.as_str()).filter(|at| *at != place && upstream[*at]);
        at.is_some()
            && position.ledger.get(&entry.step).is_some_and(|settled| settled.how == SettledAs::Failed)
    };
    position.failed.iter().find(is_upstream).map(|entry| entry.step.clone())
}

/// Lists the steps that ended with a tolerated failure, in every scope.
pub(crate) async fn tolerated(
    store: &dyn Store,
    run: &RunId,
) -> Result<Vec<(ScopePath, StepId)>, StoreError> {
    let mut found = Vec::new();
    for scope in store.scopes(run).await? {
        let position = position_as_recorded(&store.newest(run, &scope).await?)?;
        let ends = position.ledger.iter().filter(|(_, settled)| settled.how == SettledAs::Tolerated);
        found.extend(ends.map(|(step, _)| (scope.clone(), step.clone())));
    }
    Ok(found)
}

impl Engine {
    /// Ends failed scopes as skipped, by decision of the person `by`; all of these or none. A join that has not run
    /// yet sees the scopes as skipped; a finished join does not run again. The scopes still count as
    /// tolerated failures of the run.
    ///
    /// # Errors
    /// - [`RunError::NotEdited`]: a scope has not failed. Nothing changed.
    /// - [`RunError::Store`] with [`StoreError::Held`]: another worker holds the lease.
    pub async fn leave_scopes(&self, run: &RunId, scopes: &[ScopePath], by: &str) -> Result<(), RunError> {
        self.store.wait_for_release(run).await?;
        let lease = self.store.acquire(run, &ScopePath::main(), &self.holder()?).await?;
        match self.leave_under(&lease, scopes, by).await {
            // The batch has released the lease.
            Ok(true) => Ok(()),
            other => {
                let _ = self.store.release(lease, None).await;
                other.map(|_| ())
            }
        }
    }

    async fn leave_under(&self, lease: &Lease, scopes: &[ScopePath], by: &str) -> Result<bool, RunError> {
        let (store, run) = (self.store.as_ref(), lease.run());
        let mut records = Vec::new();
        for scope in scopes {
            let newest = store.newest(run, scope).await?;
            let header = newest.header();
            if header.end != Some(End::Failed) {
                let why = "the item has not failed".to_owned();
                return Err(RunError::NotEdited { run: run.clone(), scope: scope.clone(), why });
            }
            let body = unchanged_body(&newest, &position_as_recorded(&newest)?)?;
            let step = header.step.clone();
            let unwritable =
                |source| RunError::Serialize { run: run.clone(), step: header.step.clone(), source };
            let cause = SkipCause::ByHand(by.to_owned());
            let mut draft = Draft::new(Phase::Skipped(cause), Reason::Manual, step, header.at.clone());
            draft.step_name.clone_from(&header.step_name);
            draft.end = Some(End::Skipped);
            // The scope has failed: its join counts a tolerated failure.
            draft.failures = header.failures + 1;
            let chain = Chain { token: lease.token(), ..Chain::after(&newest) };
            chain.seal(&[draft], body, self.clock.now(), &mut records).map_err(unwritable)?;
        }
        if records.is_empty() {
            return Ok(false);
        }
        let id = BatchId { token: lease.token(), count: 1 };
        let at = records.last().map(|record| record.header().reference().to_string()).unwrap_or_default();
        // The time of the last session stays.
        let updated_at = Some(store.run(run).await?.summary.updated_at);
        let batch = Batch { id, records, consumed: Vec::new(), summary: None, updated_at, release: true };
        let lost = |source| RunError::Checkpoint { at, source };
        self.store.append(&[lease], batch).await.map_err(lost)?;
        Ok(true)
    }
}
