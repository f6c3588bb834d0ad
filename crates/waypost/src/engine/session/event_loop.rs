//! The event loop of a session, turn by turn.
//!
//! ```text
//!   launch --> [ a step ends | a request | a timer | a stop | renewal ] --> schedule --> commit --> launch ...
//! ```
//!
//! Input: the ends of steps, requests of running steps, timers and stops. Output: a commit per turn, and the
//! status of the run at rest. The [`scheduler`](crate::engine::walk::scheduler) decides without I/O; this module opens
//! children, reads digests and verifies reusable results for the scheduler.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::StreamExt as _;
use jiff::Timestamp;
use tokio::time::MissedTickBehavior;

use crate::record::{Phase, Reason, RunStatus, Status, WaitKind};

use super::attempt::{EXITED_KEY, RUNNING_KEY};
use super::request::{REQUESTS_MAX, Request, RequestKind};
use super::signals::Suspended;
use super::{EndedAttempt, Session};
use crate::engine::scope::{MAIN, RunningStep, ScopeId};
use crate::engine::walk::scheduler::children_of;
use crate::engine::{Performed, Program, RENEW_INTERVAL, RunError};

impl<P: Program> Session<'_, P> {
    /// Runs turn by turn. Returns the status of the run, or `None` if another session continues.
    pub(crate) async fn turns(&mut self) -> Result<Option<RunStatus>, RunError> {
        let mut renewal = tokio::time::interval(RENEW_INTERVAL);
        renewal.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.options.stop.clone();
        let mut stopped = pin!(stop.stopped());
        let mut stopping = false;
        // The first batch could not do work that needs the lease.
        if let Some(status) = self.turn().await? {
            return Ok(Some(status));
        }
        loop {
            self.launch().await?;
            let due = if stopping { None } else { self.timers.first().map(|(due, _)| *due) };
            let now = self.now();
            tokio::select! {
                biased;
                // First, because steps that end at once could starve the renewal.
                _ = renewal.tick() => self.renew().await?,
                Some(ended) = self.jobs.next(), if !self.jobs.is_empty() => self.apply_ends(ended),
                Some(request) = self.requests.recv() => self.apply_requests(request),
                _ = &mut stopped, if !stopping => {
                    stopping = true;
                    self.touched.insert(MAIN);
                }
                () = sleep_until(due, now), if due.is_some() => self.wake(),
            }
            if self.lease().is_over() {
                self.renew().await?;
            }
            // Steps and stores that never wait must not block timers and other work of the thread.
            tokio::task::coop::consume_budget().await;
            if std::mem::take(&mut self.may_have_message) {
                self.deliver_all().await?;
            }
            if let Some(status) = self.turn().await? {
                return Ok(Some(status));
            }
            let looks_again = self.is_pausing || self.needs_final_check();
            if looks_again && self.jobs.is_empty() && self.launching.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Schedules and commits the changes. Returns the status of the run if nothing can progress.
    async fn turn(&mut self) -> Result<Option<RunStatus>, RunError> {
        loop {
            self.schedule().await?;
            if let Some(status) = self.commit_turn().await? {
                return Ok(Some(status));
            }
            if !self.has_applicable_failures() {
                return Ok(None);
            }
            if !self.dirty.is_empty() {
                // Deferred failures apply only to written scopes.
                self.commit_surely().await?;
            }
        }
    }

    /// Commits the changes of a turn. Returns the status of the run if nothing can progress.
    async fn commit_turn(&mut self) -> Result<Option<RunStatus>, RunError> {
        let status = self.idle_status();
        // The last record has the status; a requested checkpoint is then written by the caller, after that
        // record.
        if status.is_none() {
            self.draft_requested_checkpoints();
        }
        if !self.dirty.is_empty() || status.is_some() {
            self.trim(status.is_some()).await?;
            self.commit(status).await?;
        }
        Ok(status)
    }

    /// Applies an ended step, and all other ended steps, for a shared commit.
    fn apply_ends(&mut self, first: EndedAttempt<P::Output>) {
        self.apply_end(first);
        while let Some(Some(ended)) = self.jobs.next().now_or_never() {
            self.apply_end(ended);
        }
    }

    /// Applies the end of an attempt. Under an ended lease, the next holder decides about an attempt without a result.
    pub(super) fn apply_end(&mut self, ended: EndedAttempt<P::Output>) {
        if self.lease().is_over() && !ended.is_decided() {
            return;
        }
        self.touched.append(&mut self.waiting_to_start);
        let EndedAttempt { scope: id, job, place, performed, root } = ended;
        let Some(scope) = self.scopes.find(id) else { return };
        let Some(at) = scope.running_steps.iter().position(|running| running.job == job) else { return };
        let RunningStep { waits, was_delivered, .. } = scope.running_steps.remove(at);
        match performed {
            Some(performed) => self.take(id, place, performed, root),
            None if waits.is_empty() => self.take(id, place, Performed::Stopped { in_progress: true }, None),
            None => self.suspend(id, place, Suspended { waits, was_delivered }),
        }
    }

    /// Applies a request of a running step, and all other pending requests, for a shared commit.
    pub(super) fn apply_requests(&mut self, first: Request) {
        self.apply_request(first);
        for _ in 0..REQUESTS_MAX {
            let Ok(request) = self.requests.try_recv() else { return };
            self.apply_request(request);
        }
    }

    fn apply_request(&mut self, request: Request) {
        let Request { scope: id, job, kind } = request;
        let Some(scope) = self.scopes.find(id) else { return };
        let Some(running) = scope.running_steps.iter_mut().find(|running| running.job == job) else { return };
        match kind {
            RequestKind::Memo { key, value, report, stored } => {
                let place = running.place;
                let entry = scope.entry_mut(place);
                entry.memos += 1;
                if key == EXITED_KEY {
                    entry.exited = value["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
                }
                let (step, at) = (entry.step.clone(), entry.at.clone());
                scope.draft(Phase::Progress { key, value }, Reason::Step, step, at).report = report;
                self.on_commit.push(stored);
                self.mark_dirty(id);
            }
            RequestKind::Progress { value, report } => {
                let place = running.place;
                let phase = Phase::Progress { key: RUNNING_KEY.to_owned(), value };
                scope.draft_of(place, phase, Reason::Interval).report = report;
                self.mark_dirty(id);
            }
            RequestKind::Wait(pending) => self.listen(id, job, pending),
            RequestKind::Suspend(waits) => {
                running.waits = waits;
                running.abort.abort();
            }
        }
    }

    /// Decides the starts of the next commit, within the parallel limits.
    pub(crate) async fn schedule(&mut self) -> Result<(), RunError> {
        let now = self.now();
        loop {
            let Some(id) = self.touched.pop_first() else {
                if self.end_failing_scopes() || self.apply_deferred_failures() { continue } else { break }
            };
            if self.scopes.find(id).is_none() {
                continue;
            }
            // Listed children are recorded even if nothing may start.
            for listed in std::mem::take(&mut self.scopes.get_mut(id).listed_children) {
                self.open_listed(id, listed).await?;
            }
            self.pass_over(id);
            if !self.is_stopping() {
                self.reuse_ready(id).await?;
                self.check_earlier_declarers(id, now).await?;
                for place in self.start_ready(id, now) {
                    self.open(id, place).await?;
                }
                self.fill_fans(id).await?;
                self.cancel_begun(id);
                if self.has_undecided_reuse(id) {
                    self.touched.insert(id);
                }
            }
            if self.scopes.get(id).position.frontier.is_empty() {
                self.read_digests(id).await?;
            }
            self.close_if_done(id);
            self.set_timer(id);
        }
        Ok(())
    }

    /// Starts children of a scope's fan-outs up to the parallel limit, and joins complete fan-outs.
    async fn fill_fans(&mut self, id: ScopeId) -> Result<(), RunError> {
        let scope = self.scopes.get(id);
        if scope.end.is_some() || scope.failing.is_some() {
            return Ok(());
        }
        let places: Vec<usize> = scope.fans.iter().map(|fan| fan.place).collect();
        for place in places {
            let scope = self.scopes.get(id);
            let waits = scope.entry(place).waits.iter().any(|wait| wait.on == WaitKind::Children);
            let is_deferred = scope.deferred_failures.iter().any(|deferred| deferred.place == place);
            if !waits || is_deferred || !self.is_selected(id, place) {
                continue;
            }
            loop {
                let scope = self.scopes.get_mut(id);
                let parallel_max = children_of(scope, place).parallel_max;
                let fan = scope.fan_mut(place);
                if fan.stopped || fan.active >= parallel_max || !fan.has_more() || !self.has_capacity(id) {
                    break;
                }
                let fan = self.scopes.get_mut(id).fan_mut(place);
                if let Some(waiting_for_capacity) = fan.waiting_for_capacity.pop_front() {
                    if self.take_capacity(id, place, waiting_for_capacity) {
                        self.touched.insert(waiting_for_capacity);
                    }
                } else if let Some(queued) = fan.queue.pop_front() {
                    self.begin_child(id, place, queued).await?;
                } else if let Some(unloading) = fan.unloading.pop_front() {
                    self.keep_loaded(id, place, unloading);
                } else if fan.opened == fan.total
                    && let Some(interrupted) = fan.interrupted.pop_front()
                {
                    if self.take_capacity(id, place, interrupted) {
                        self.touched.insert(interrupted);
                    }
                } else {
                    self.open_page(id, place).await?;
                    if !self.scopes.get(id).fans.iter().any(|fan| fan.place == place) {
                        // The child could not be opened, and the step has failed.
                        return Ok(());
                    }
                }
            }
            if self.scopes.get_mut(id).fan_mut(place).is_complete() {
                self.join(id, place).await?;
            }
        }
        Ok(())
    }

    /// Makes the join of ended children ready.
    async fn join(&mut self, id: ScopeId, place: usize) -> Result<(), RunError> {
        if !self.gather(id, place).await? {
            self.touched.insert(id);
            return Ok(());
        }
        let scope = self.scopes.get_mut(id);
        let failed = scope.fan_mut(place).failed;
        let are_hooks = scope.runs_hooks(place);
        // Hooks do not affect the result of the step's work.
        let failures = if are_hooks { 0 } else { failed };
        let entry = scope.entry_mut(place);
        entry.status = Status::Ready;
        entry.waits.clear();
        if let Some(fan) = entry.open_fan_mut() {
            fan.failures = failures;
        }
        self.touched.insert(id);
        Ok(())
    }
}

async fn sleep_until(due: Option<Timestamp>, now: Timestamp) {
    match due {
        None => pending().await,
        Some(due) => {
            tokio::time::sleep(Duration::try_from(due.duration_since(now)).unwrap_or_default()).await
        }
    }
}
