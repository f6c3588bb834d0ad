//! Commits the changes of a session: seals drafts, and appends the records to the store.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::id::{RunId, StepId};
use crate::projection::events::CHECKPOINT_FAILED;
use crate::record::{Body, End, FailedStep, Note, Phase, Position, Reason, RunStatus, Status};
use crate::store::{Batch, BatchId, Lease, StoreError, Summary, TrimMode};

use super::Session;
use crate::engine::chain::{Chain, Draft};
use crate::engine::scope::fan_out::Queued;
use crate::engine::scope::{MAIN, Scope, ScopeId};
use crate::engine::{OnLostCheckpoint, Program, RunError, StepFailure};

/// Limit of pending checkpoints in memory, if write failures are tolerated.
const DRAFTS_PENDING_MAX: usize = 1_000;
/// The trim interval in batches: rare enough to be cheap, frequent enough to bound the disk usage.
const TRIM_BATCHES: u64 = 16;

impl<'a, P: Program> Session<'a, P> {
    pub(crate) fn summary(&self, status: Option<RunStatus>) -> Summary {
        let frontier = &self.main().position.frontier;
        let of = |status: Status| frontier.iter().find(|entry| entry.status == status);
        let step = of(Status::Failed).or_else(|| of(Status::Started)).or_else(|| of(Status::Waiting));
        // The first failure, also on a child: this failure stopped the run.
        let failed = self.first_failure().map(|StepFailure { scope, step, .. }| match scope.is_main() {
            true => step.to_string(),
            false => format!("{scope}/{step}"),
        });
        let due = self.timers.first().map(|(due, _)| *due);
        Summary {
            status: match status {
                Some(RunStatus::Interrupted) if self.options.stop.returns() => RunStatus::Queued,
                status => status.unwrap_or(RunStatus::Running),
            },
            doubtful: self.doubtful > 0,
            step: failed.or_else(|| step.map(|entry| entry.step.to_string())),
            progress: self.progress(),
            wake_at: due.or_else(|| frontier.iter().filter_map(|entry| entry.wake_at).min()),
            lost: self.lost,
        }
    }

    /// Returns the cause of an early end of the session: a stop request or an interrupted step.
    pub(crate) fn stopped_by(&self) -> Option<String> {
        self.options.stop.asked().map(|stop| stop.by).or_else(|| self.cut_by.clone())
    }

    /// Makes the batch of all drafts and of the accompanying starts.
    pub(crate) fn batch(&mut self, status: Option<RunStatus>) -> Result<Batch, RunError> {
        // The first record of a resume, with the end of the pause, is in the main scope.
        if self.dirty.is_empty() || self.main().chain.idle_since.is_some() {
            self.mark_dirty(MAIN);
        }
        let ids = self.dirty_in_order();
        let by = self.stopped_by();
        let other = match status {
            Some(RunStatus::InDoubt) => "a step in doubt",
            Some(RunStatus::Waiting) => "an open wait",
            Some(RunStatus::Failed) => "a failed step",
            _ => "--until",
        };
        let by = || by.clone().unwrap_or_else(|| other.to_owned());
        for id in &ids {
            self.scopes.get_mut(*id).complete_drafts(status, by);
        }
        self.mark_status(&ids, status);
        for id in &ids {
            self.number(*id);
            self.note_doubt(*id);
            self.scopes.get_mut(*id).write_copies();
        }
        let now = self.time();
        let mut records = Vec::with_capacity(ids.len());
        for id in &ids {
            let body = self.body_of(*id)?;
            let scope = self.scopes.get_mut(*id);
            let shape = scope.shape;
            for draft in &mut scope.drafts {
                let step = draft.step.as_ref().and_then(|step| shape.step(step.as_str()));
                draft.step_name = step.and_then(|step| step.name.clone());
            }
            scope.chain.seal(&scope.drafts, body, now, &mut records).map_err(|source| {
                let (run, step) = reporter(scope);
                RunError::Record { run, step, source }
            })?;
        }
        // The store may have applied a failed batch; the replacement needs a new id.
        self.batches += 1;
        let id = BatchId { token: self.main().chain.token, count: self.batches };
        let consumed = std::mem::take(&mut self.consumed);
        Ok(Batch {
            id,
            records,
            consumed,
            summary: Some(self.summary(status)),
            updated_at: None,
            release: status.is_some(),
        })
    }

    /// Encodes the position and the state of a scope.
    fn body_of(&mut self, id: ScopeId) -> Result<Body, RunError> {
        let (program, scope) = (self.program, self.scopes.get_mut(id));
        let level = scope.shape.level();
        let encode = |bytes: &mut Vec<u8>| program.encode(level, &scope.state, bytes);
        let body = Body::with(&scope.position, program.schema(level), encode).map_err(|source| {
            let (run, step) = reporter(scope);
            RunError::Serialize { run, step, source }
        })?;
        if let Some(warning) = scope.warn_of_size(body.state_bytes()) {
            self.engine.observer.warned(&warning);
        }
        Ok(body)
    }

    /// Gives the uncommitted end of a pass its own body, if the next pass has a result: the result replaces the state.
    pub(crate) fn keep_state_of_ended_pass(&mut self, id: ScopeId) -> Result<(), RunError> {
        let scope = self.scopes.get(id);
        let new = scope.drafts.iter().rev().take_while(|draft| draft.body.is_none());
        let mut ended = new.filter(|draft| matches!(draft.phase, Phase::Completed(_)));
        if !ended.any(|draft| draft.step.as_ref().is_some_and(|step| scope.position.has_result(step))) {
            return Ok(());
        }
        self.number(id);
        let body = self.body_of(id)?;
        if let Some(last) = self.scopes.get_mut(id).drafts.last_mut() {
            last.body = Some(body);
        }
        Ok(())
    }

    /// Returns the scopes with drafts in the order of their records in a batch: by depth, then by name, as
    /// readers sort records of the same time. New scopes keep their order of opening.
    fn dirty_in_order(&self) -> Vec<ScopeId> {
        let mut ids: Vec<ScopeId> = self.dirty.iter().map(|(_, id)| *id).collect();
        if ids.len() > 1 {
            ids.sort_by_cached_key(|id| {
                let Chain { scope, next, .. } = &self.scopes.get(*id).chain;
                (scope.depth(), Some(scope).filter(|_| *next > 1).cloned())
            });
        }
        ids
    }

    /// Returns the time of a commit: always later than the previous commit, whatever the clock shows. So times
    /// reflect the write order.
    fn time(&mut self) -> Timestamp {
        let next = self.latest.checked_add(SignedDuration::from_nanos(1)).unwrap_or(Timestamp::MAX);
        self.latest = self.engine.clock.now().max(next);
        self.latest
    }

    /// Writes the status of the run on a record, and the end of the main scope on its last record.
    fn mark_status(&mut self, ids: &[ScopeId], status: Option<RunStatus>) {
        let Some(status) = status else { return };
        let id = if ids.contains(&MAIN) { MAIN } else { *ids.last().expect("a batch names its scope") };
        let failed = self.failed_as_seen_on(id);
        let last = self.scopes.get_mut(id).drafts.last_mut().expect("a scope in a batch has a draft");
        last.status = Some(status);
        if status == RunStatus::Failed {
            last.failed = failed.filter(|failed| !says_itself(last, failed));
        }
        if id == MAIN {
            let done = matches!(status, RunStatus::Completed | RunStatus::CompletedWithFailures);
            last.end = done.then_some(End::Completed);
        }
    }

    /// Returns the failure that stopped the run, or the first failure of the main scope.
    fn first_failure(&self) -> Option<&StepFailure> {
        self.failed.as_ref().or(self.main().failures.first())
    }

    /// Returns the failure that stopped the run, as named in a record of a scope.
    fn failed_as_seen_on(&self, id: ScopeId) -> Option<FailedStep> {
        let StepFailure { scope, step, failure } = self.first_failure()?;
        let scope = Some(scope).filter(|scope| *scope != self.scopes.get(id).path());
        Some(FailedStep { scope: scope.cloned(), step: step.clone(), error: failure.error.clone() })
    }

    /// Fills in values known only at the commit: the start of a status, the fan-out of a child, and the highest
    /// epoch.
    fn number(&mut self, id: ScopeId) {
        let scope = self.scopes.get_mut(id);
        let since = scope.chain.next + scope.drafts.len() as u64 - 1;
        if id == MAIN {
            let tries =
                scope.drafts.iter().flat_map(|draft| draft.started.iter().map(|s| &s.at).chain([&draft.at]));
            let newest = tries.map(|at| at.epoch).max().unwrap_or_default();
            scope.position.epoch_max = scope.position.epoch_max.max(newest);
        }
        if let Some(chain) =
            scope.position.chain.as_mut().filter(|chain| chain.head.is_some() && chain.since == 0)
        {
            chain.since = since;
        }
        let Position { frontier, failed, .. } = &mut scope.position;
        for entry in frontier.iter_mut().chain(failed.iter_mut()).filter(|entry| entry.since == 0) {
            entry.since = since;
        }
        let entries = frontier.iter_mut().chain(failed);
        let fans = entries.flat_map(|entry| entry.fan.iter_mut().chain(&mut entry.hooks));
        // All children of a fan-out may be at rest before the record of the opening has a seq.
        fans.filter(|fan| fan.since == 0).for_each(|fan| fan.since = since);
        if let (Some(0), Some(opener)) = (scope.position.origin, scope.opener) {
            let fan = self.scopes.get(opener.scope).entry(opener.place).open_fan();
            let since = fan.map(|fan| fan.since);
            self.scopes.get_mut(id).position.origin = since;
        }
    }

    /// Updates the count of scopes in doubt for a scope.
    fn note_doubt(&mut self, id: ScopeId) {
        let is_doubtful = self.is_in_doubt(id);
        let scope = self.scopes.get_mut(id);
        let before = std::mem::replace(&mut scope.is_doubtful, is_doubtful);
        self.doubtful = self.doubtful + usize::from(is_doubtful) - usize::from(before);
    }

    /// Commits the changes since the last commit.
    ///
    /// With a status, the session ends: the commit releases the lease.
    pub(crate) async fn commit(&mut self, status: Option<RunStatus>) -> Result<(), RunError> {
        self.commit_as(status, status.is_some()).await
    }

    /// Commits the start of a non-idempotent step: without this record the step must not start.
    pub(crate) async fn commit_surely(&mut self) -> Result<(), RunError> {
        self.commit_as(None, true).await
    }

    async fn commit_as(&mut self, status: Option<RunStatus>, surely: bool) -> Result<(), RunError> {
        if matches!(status, Some(RunStatus::Completed | RunStatus::CompletedWithFailures)) {
            self.consume_messages().await;
        }
        let mut batch = self.batch(status)?;
        // A trim needs the lease, so the release follows the trim.
        let keep = status.and(self.options.retention);
        batch.release &= keep.is_none();
        let lease = self.lease().clone();
        let mut answer = self.engine.store.append(&[&lease], batch.clone()).await;
        if let Err(StoreError::Unknown { .. }) = answer {
            // The id makes the repetition harmless: it is answered, not applied again.
            answer = self.engine.store.append(&[&lease], batch.clone()).await;
        }
        match answer {
            Ok(_) => {
                self.acknowledged(&batch);
                if let Some(keep) = keep {
                    let wake_at = batch.summary.as_ref().and_then(|summary| summary.wake_at);
                    self.tidy_up(lease, keep, wake_at).await;
                }
                Ok(())
            }
            Err(source) => self.not_written(source, &batch, surely),
        }
    }

    /// Trims old states and releases the lease at the end of a session. Everything is already written, so an
    /// error is only a warning.
    async fn tidy_up(&mut self, lease: Lease, keep: u32, wake_at: Option<Timestamp>) {
        let store = &self.engine.store;
        if let Err(error) = store.trim(&lease, keep, TrimMode::Apply).await {
            self.engine.observer.warned(&format!("cannot drop old states: {error}"));
        }
        if let Err(error) = store.release(lease, wake_at).await {
            self.engine.observer.warned(&format!("cannot release the run before its end: {error}"));
        }
    }

    pub(crate) fn acknowledged(&mut self, batch: &Batch) {
        let mut records = batch.records.iter().peekable();
        let (mut gone, mut parents) = (Vec::new(), BTreeSet::new());
        let ids = self.dirty_in_order();
        self.dirty.clear();
        for id in ids {
            let scope = self.scopes.get_mut(id);
            let mut last = None;
            while let Some(record) = records.next_if(|record| record.header().scope == scope.chain.scope) {
                last = Some(record);
                scope.copies.note(record.header());
            }
            let last = last.expect("every scope of a batch has a record in it");
            scope.chain.advance(last);
            scope.drafts.clear();
            scope.reason = Reason::Step;
            let (ended, unloading, opener) = (scope.end.is_some(), scope.unloading, scope.opener);
            if id == MAIN || !(ended || unloading) {
                continue;
            }
            gone.push(id);
            // The scope was joined before this session, so no step waits for the scope.
            let Some(opener) = opener else { continue };
            if ended {
                let fan = self.scopes.get_mut(opener.scope).fan_mut(opener.place);
                fan.keep_end(opener.index, last);
            } else {
                parents.insert((opener.scope, opener.place));
            }
        }
        parents.into_iter().for_each(|(id, place)| self.queue_unloaded(id, place));
        gone.into_iter().for_each(|id| drop(self.forget(id)));
        for sender in self.on_commit.drain(..) {
            // The receiver may have been dropped; its step restarts with the stored result.
            let _ = sender.send(());
        }
        self.delivered.drain(..).for_each(|(pending, end)| pending.deliver(end));
        self.engine.observer.committed(&batch.records, &self.scopes.get(MAIN).position, self.progress());
    }

    /// Queues the scopes with a written opening, in order, so that these leave memory.
    fn queue_unloaded(&mut self, id: ScopeId, place: usize) {
        let unloading = std::mem::take(&mut self.scopes.get_mut(id).fan_mut(place).unloading);
        for child in unloading {
            let scope = self.scopes.get(child);
            let (Some(opener), None) = (scope.opener, scope.end) else { continue };
            let (path, seq) = (scope.path().clone(), scope.chain.next - 1);
            let queued = Queued { scope: path, index: opener.index, seq };
            self.scopes.get_mut(id).fan_mut(place).queue.push_back(queued);
        }
    }

    /// Removes an ended or unstarted scope from memory. The scope has no running attempt and no open child.
    pub(crate) fn forget(&mut self, id: ScopeId) -> Option<Scope<'a, P::State>> {
        let scope = self.scopes.remove(id)?;
        self.doubtful -= usize::from(scope.is_doubtful);
        if let Some(due) = scope.timer {
            self.timers.remove(&(due, id));
        }
        self.touched.remove(&id);
        self.launching.remove(&id);
        self.waiting_to_start.remove(&id);
        Some(scope)
    }

    pub(crate) fn not_written(
        &mut self,
        source: StoreError,
        batch: &Batch,
        surely: bool,
    ) -> Result<(), RunError> {
        let at =
            batch.records.last().map(|record| record.header().reference().to_string()).unwrap_or_default();
        let tolerable = !matches!(
            source,
            StoreError::Fenced { .. }
                | StoreError::Conflict { .. }
                | StoreError::Invalid(_)
                | StoreError::Unknown { .. }
        );
        let tolerate = self.options.on_lost_checkpoint == OnLostCheckpoint::Tolerate;
        let pending: usize = self.dirty.iter().map(|(_, id)| self.scopes.get(*id).drafts.len()).sum();
        if !tolerate || !tolerable || surely || pending > DRAFTS_PENDING_MAX {
            return Err(RunError::Checkpoint { at, source });
        }
        self.lost += 1;
        self.consumed.extend(batch.consumed.iter().cloned());
        let data = json!({ "at": at, "error": source.to_string() });
        self.note(Note::Event { name: CHECKPOINT_FAILED.to_owned(), data });
        let text = format!(
            "cannot write checkpoint {at} ({source}); a crash now would lose the steps since the last \
             checkpoint"
        );
        self.engine.observer.warned(&text);
        Ok(())
    }

    /// Adds a note to the next record, if there is a draft.
    fn note(&mut self, note: Note) {
        let first = self.dirty.iter().map(|(_, id)| *id).next();
        if let Some(draft) = first.and_then(|id| self.scopes.get_mut(id).drafts.first_mut()) {
            draft.report.notes.push(note);
        }
    }

    /// Trims old states if the run has a retention limit: at intervals, and before the `last` record, with a
    /// note.
    pub(crate) async fn trim(&mut self, last: bool) -> Result<(), RunError> {
        if let Some(keep) = self.options.retention
            && (last || self.batches.is_multiple_of(TRIM_BATCHES))
        {
            let lease = self.lease().clone();
            let trimmed = self.engine.store.trim(&lease, keep, TrimMode::Apply).await?;
            trimmed.note(keep).into_iter().for_each(|note| self.note(note));
        }
        Ok(())
    }
}

/// Returns whether a draft is the failure that its record would name.
fn says_itself(draft: &Draft, failed: &FailedStep) -> bool {
    failed.scope.is_none() && draft.step.as_ref() == Some(&failed.step) && is_final(&draft.phase)
}

fn is_final(phase: &Phase) -> bool {
    matches!(phase, Phase::Failed(failure) if !failure.retried && !failure.tolerated)
}

/// Returns the run, and the step that a failed commit names: the newest completed one.
fn reporter<S>(scope: &Scope<'_, S>) -> (RunId, Option<StepId>) {
    let made = scope.drafts.iter().rfind(|draft| matches!(draft.phase, Phase::Completed(_)));
    let draft = made.or(scope.drafts.last());
    (scope.chain.run.clone(), draft.and_then(|draft| draft.step.clone()))
}
