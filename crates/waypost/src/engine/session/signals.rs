//! Messages to a run: requests to the run itself, such as a stop, and the answers and signals of its waits. The
//! engine sends a message, and a session receives it.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::stream::StreamExt as _;
use serde_json::Value;
use tokio::sync::Notify;

use crate::id::{Digest, RunId};
use crate::record::{
    FrontierEntry, Phase, Reason, Record, RunStatus, Status, Taken, TakenSignal, Wait, WaitKind,
};
use crate::store::{Renewal, Scan, Signal, SignalKind, Signalled, StoreExt as _};

use super::Session;
use super::free_signals::free_signals;
use super::pending_wait::{PendingWait, WaitEnd};
use crate::engine::inspect::{Snapshot, position_of};
use crate::engine::manual::mark;
use crate::engine::scope::{MAIN, Scope, ScopeId};
use crate::engine::{Engine, Program, RunError, Waiting};

/// Longest time for the outputs and the log of an ended step after the end of the lease.
const ENDS_KEPT: Duration = Duration::from_secs(60);

impl Engine {
    /// Answers the wait `id` of a run. The running session, or the next resume, continues with the answer.
    ///
    /// # Errors
    /// - [`RunError::NoSuchWait`]: the run has no such open wait; nothing changed.
    /// - [`RunError::Answered`]: the wait already has an answer, and the answer stays.
    pub async fn answer(
        &self,
        run: impl AsRef<str>,
        id: impl AsRef<str>,
        value: impl Into<Value>,
    ) -> Result<(), RunError> {
        let (run, id, value) = (RunId::new(run.as_ref())?, id.as_ref(), value.into());
        let (mut since, now) = (None, self.clock.now());
        let mut waiting = Vec::new();
        for head in &Snapshot::read(self.store.as_ref(), &run).await?.heads {
            let position = position_of(&head.record)?;
            let is_open = |wait: &Wait| wait.until.is_none_or(|until| now <= until);
            let asks = |entry: &&FrontierEntry| {
                entry.waits.iter().any(|wait| wait.id == id && !id.is_empty() && is_open(wait))
            };
            since = since.or(position.frontier.iter().find(asks).map(|entry| entry.since));
            waiting.extend(Waiting::of_position(&head.record.header().scope, &position));
        }
        let Some(since) = since else {
            // Another answer came first, or the deadline of the wait has passed.
            return match self.was_answered(&run, id).await? {
                true => Err(RunError::Answered { run, id: id.to_owned() }),
                false => Err(RunError::NoSuchWait { run, id: id.to_owned(), waiting }),
            };
        };
        if self.has_answer(&run, id).await? {
            return Err(RunError::Answered { run, id: id.to_owned() });
        }
        // An answer per opening of the wait: if damage removed the record of an answer, the question is open
        // again.
        let known = format!("answer-{id}-{since}");
        let kind = SignalKind::Answer { wait: id.to_owned(), value };
        match self.store.signal(&run, &Signal { id: known, ..self.message(kind) }).await? {
            Signalled::Now => Ok(()),
            Signalled::Before => Err(RunError::Answered { run, id: id.to_owned() }),
        }
    }

    /// Answers the question of a step, named by id (`send`) or by path (`each:a/send`): see [`answer`](Self::answer).
    ///
    /// # Errors
    /// Those of [`answer`](Self::answer), and [`RunError::SeveralWaits`] if the step asks several questions.
    pub async fn answer_step(
        &self,
        run: impl AsRef<str>,
        step: impl AsRef<str>,
        value: impl Into<Value>,
    ) -> Result<(), RunError> {
        let (run, step) = (RunId::new(run.as_ref())?, step.as_ref());
        let waiting = self.waiting(&run).await?;
        let is_meant = |waiting: &&Waiting| {
            let Waiting { scope, step: id, wait } = waiting;
            wait.on == WaitKind::Answer && (id.as_str() == step || format!("{scope}/{id}") == step)
        };
        let meant: Vec<Waiting> = waiting.iter().filter(is_meant).cloned().collect();
        match meant.as_slice() {
            [] => Err(RunError::NoSuchWait { run, id: step.to_owned(), waiting }),
            [one] => self.answer(run, &one.wait.id, value).await,
            _ => Err(RunError::SeveralWaits { run, step: step.to_owned(), waiting: meant }),
        }
    }

    /// Sends a named signal to a run. The first step that waits for the name consumes the signal, now or later.
    ///
    /// A signal taken after a checkpoint is free again after a rollback to the checkpoint, in a fork from the
    /// checkpoint, and for a rerun of the step.
    ///
    /// # Errors
    /// - [`StoreError::NotFound`](crate::StoreError::NotFound): the run does not exist.
    /// - [`RunError::Ended`]: the run has ended, so no step can consume the signal.
    pub async fn signal(
        &self,
        run: impl AsRef<str>,
        name: impl AsRef<str>,
        value: impl Into<Value>,
    ) -> Result<(), RunError> {
        let (run, name, value) = (RunId::new(run.as_ref())?, name.as_ref(), value.into());
        let status = self.store.run(&run).await?.summary.status;
        if !status.is_resumable() && status != RunStatus::Running {
            return Err(RunError::Ended { run, signal: name.to_owned(), status });
        }
        let kind = SignalKind::Named { name: name.to_owned(), value };
        let count = self.store.signals(&run).await?.len();
        let now = self.clock.now().as_nanosecond().to_le_bytes();
        let parts = [name.as_bytes(), &now, &count.to_le_bytes()[..], &std::process::id().to_le_bytes()];
        let id = format!("signal-{}", &Digest::of_parts(parts).to_string()[..24]);
        self.store.signal(&run, &Signal { id, ..self.message(kind) }).await?;
        Ok(())
    }

    /// Lists the external waits of a run, scope by scope.
    ///
    /// # Errors
    /// Those of [`Snapshot::read`].
    pub async fn waiting(&self, run: &RunId) -> Result<Vec<Waiting>, RunError> {
        let snapshot = Snapshot::read(self.store.as_ref(), run).await?;
        let mut waiting = Vec::new();
        for head in &snapshot.heads {
            let position = position_of(&head.record)?;
            waiting.extend(Waiting::of_position(&head.record.header().scope, &position));
        }
        Ok(waiting)
    }

    fn message(&self, kind: SignalKind) -> Signal {
        Signal { id: String::new(), kind, scope: None, sender: String::new(), created_at: self.clock.now() }
    }

    /// Returns whether the wait `id` has an unconsumed answer.
    pub(crate) async fn has_answer(&self, run: &RunId, id: &str) -> Result<bool, RunError> {
        let answers = |kind: &SignalKind| matches!(kind, SignalKind::Answer { wait, .. } if wait == id);
        Ok(self.store.signals(run).await?.iter().any(|pending| answers(&pending.kind)))
    }

    /// Returns whether the wait `id` was answered, consumed or not. A wait withdrawn by the cancel of its scope
    /// was not.
    async fn was_answered(&self, run: &RunId, id: &str) -> Result<bool, RunError> {
        if self.has_answer(run, id).await? {
            return Ok(true);
        }
        let answers = |record: &Record| {
            record.header().taken.as_ref().is_some_and(|taken| taken.wait == id && !id.is_empty())
        };
        let progress = Scan { phase: Some("progress"), ..Scan::of(run) };
        Ok(!self.store.scan_where(progress, &answers).await?.is_empty())
    }
}

impl<P: Program> Session<'_, P> {
    /// Renews the lease, and handles stop requests and answers. Steps proceed meanwhile: a store that is away answers late.
    pub(crate) async fn renew(&mut self) -> Result<(), RunError> {
        let lease = self.lease().clone();
        let (leases, mut ended) = ([&lease], Vec::new());
        let mut renewal = self.engine.store.renew(&leases);
        let answers = loop {
            tokio::select! {
                biased;
                answers = &mut renewal => break answers,
                Some(end) = self.jobs.next(), if !self.jobs.is_empty() => ended.push(end),
            }
        };
        ended.into_iter().for_each(|end| self.apply_end(end));
        let answers = match answers {
            Ok(answers) if answers.contains(&Renewal::Expired) => {
                self.keep_ends().await?;
                answers
            }
            Ok(answers) => answers,
            Err(error) if error.retry() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for answer in answers {
            for signal in answer.requests(&lease, self.engine.store.as_ref())? {
                self.accept_signal(signal);
            }
        }
        if self.scopes.iter().any(|(_, scope)| scope.asks()) {
            self.deliver_all().await?;
        }
        Ok(())
    }

    /// Commits the ends of steps at the end of the lease: a result counts unless another process has claimed the run.
    /// Nothing more starts.
    async fn keep_ends(&mut self) -> Result<(), RunError> {
        self.halted = true;
        let late = tokio::time::sleep(ENDS_KEPT);
        let mut late = std::pin::pin!(late);
        loop {
            self.schedule().await?;
            if !self.dirty.is_empty() {
                self.commit(None).await?;
            }
            tokio::select! {
                ended = self.jobs.next() => match ended {
                    Some(ended) => self.apply_end(ended),
                    None => return Ok(()),
                },
                Some(request) = self.requests.recv() => self.apply_requests(request),
                () = &mut late => return Ok(()),
            }
        }
    }

    fn accept_signal(&mut self, signal: Signal) {
        if self.consumed.contains(&signal.id) {
            return;
        }
        match signal.kind {
            SignalKind::Stop => {
                let by = if signal.sender.is_empty() { "waypost stop" } else { &signal.sender };
                self.options.stop.stop(StopLevel::Graceful, by);
                self.consumed.push(signal.id);
            }
            SignalKind::Checkpoint { label }
                if self.requested_checkpoints.iter().all(|(id, _)| *id != signal.id) =>
            {
                self.requested_checkpoints.push((signal.id, label));
            }
            _ => {}
        }
    }

    /// Adds the requested checkpoints to the next commit.
    pub(crate) fn draft_requested_checkpoints(&mut self) {
        for (id, label) in std::mem::take(&mut self.requested_checkpoints) {
            self.main_mut().drafts.push(mark(label.as_deref(), &id));
            self.mark_dirty(MAIN);
            self.consumed.push(id);
        }
    }

    /// Delivers answers and signals to their waits.
    ///
    /// Free signals of abandoned work come first, since these were sent first.
    pub(crate) async fn deliver_all(&mut self) -> Result<(), RunError> {
        self.scopes.iter_mut().for_each(|(_, scope)| scope.drop_closed_waits());
        if !self.scopes.iter().any(|(_, scope)| scope.asks()) {
            return Ok(());
        }
        let run = self.main().chain.run.clone();
        if self.free_signals.is_none() && self.scopes.iter().any(|(_, scope)| scope.asks_for_signal()) {
            let positions = self.scopes.iter().map(|(_, scope)| (scope.path(), &scope.position));
            let mut own = free_signals(self.engine.store.as_ref(), &run, positions).await?;
            let drafts = || self.scopes.iter().flat_map(|(_, scope)| &scope.drafts);
            let taken = || drafts().filter_map(|draft| draft.taken.as_ref()?.signal.as_ref());
            own.retain(|signal| taken().all(|taken| taken.id != signal.id));
            self.free_signals = Some(own);
        }
        for signal in self.free_signals.take().unwrap_or_default() {
            if !self.deliver(&signal) {
                self.free_signals.get_or_insert_default().push(signal);
            }
        }
        self.free_signals.get_or_insert_default();
        for signal in self.engine.store.signals(&run).await? {
            if !self.consumed.contains(&signal.id) && self.deliver(&signal) {
                self.consumed.push(signal.id);
            }
        }
        Ok(())
    }

    /// Consumes the remaining answers and signals: an ended run takes no message, and a message may hold a
    /// secret.
    ///
    /// After an error of the store, the messages stay.
    pub(crate) async fn consume_messages(&mut self) {
        let run = self.main().chain.run.clone();
        let Ok(signals) = self.engine.store.signals(&run).await else { return };
        let is_message =
            |signal: &Signal| Message::of(signal).is_some() && !self.consumed.contains(&signal.id);
        let messages: Vec<String> = signals.into_iter().filter(is_message).map(|signal| signal.id).collect();
        self.consumed.extend(messages);
    }

    /// Delivers a message to the first matching wait. Returns whether there is one.
    fn deliver(&mut self, signal: &Signal) -> bool {
        let Some(message) = Message::of(signal) else { return false };
        let meant =
            |scope: &Scope<'_, P::State>| signal.scope.as_ref().is_none_or(|path| path == scope.path());
        let scopes = self.scopes.iter().filter(|(_, scope)| meant(scope));
        let waiter = scopes.filter_map(|(id, scope)| Some((id, scope.waiter_for(&message)?))).next();
        let Some((id, waiter)) = waiter else { return false };
        let mut value = message.value;
        self.program.redact_answer(&mut value);
        self.scopes.get_mut(id).take_in(&waiter, value.clone(), message.signal);
        self.delivered.extend(waiter.pending.map(|pending| (pending, WaitEnd::Delivered(value))));
        self.mark_dirty(id);
        self.touched.insert(id);
        true
    }

    /// Registers the waits of a step with other running work: the questions are shown, and a message ends its
    /// wait without a restart of the step.
    pub(crate) fn listen(&mut self, id: ScopeId, job: u64, pending: Arc<PendingWait>) {
        let scope = self.scopes.get_mut(id);
        let Some(running) = scope.running_steps.iter_mut().find(|running| running.job == job) else { return };
        let (place, wait) = (running.place, pending.wait.clone());
        running.pending.push(pending);
        let entry = scope.entry_mut(place);
        entry.waits.extend(wait);
        let waits = entry.waits.clone();
        scope.draft_of(place, Phase::Waiting(waits), Reason::Interrupt);
        self.mark_dirty(id);
        self.may_have_message = true;
    }

    /// Suspends a step until a wait ends.
    pub(crate) fn suspend(&mut self, id: ScopeId, place: usize, suspended: Suspended) {
        self.touched.insert(id);
        self.mark_dirty(id);
        let now = self.now();
        let scope = self.scopes.get_mut(id);
        let entry = scope.entry_mut(place);
        entry.status = Status::Waiting;
        entry.since = 0;
        entry.wait_until(suspended.waits.iter().filter_map(Wait::due).min(), now);
        entry.waits.clone_from(&suspended.waits);
        if entry.at.epoch > 0 {
            // A rerun step has lost its signals since the last look.
            self.free_signals = None;
        }
        scope.draft_of(place, Phase::Waiting(suspended.waits), Reason::Interrupt);
        if suspended.was_delivered {
            scope.entry_mut(place).end_wait();
        }
        self.may_have_message = true;
    }
}

/// The waits of a suspended step.
#[derive(Debug)]
pub(crate) struct Suspended {
    pub(crate) waits: Vec<Wait>,
    /// True if a wait has received its message in the meantime.
    pub(crate) was_delivered: bool,
}

/// An answer or a signal.
struct Message {
    wanted: MessageKind,
    value: Value,
    signal: Option<TakenSignal>,
    sent_at: jiff::Timestamp,
}

/// The kind of wait for a message.
enum MessageKind {
    Answer(String),
    Signal(WaitKind),
}

impl Message {
    fn of(signal: &Signal) -> Option<Self> {
        let sent_at = signal.created_at;
        match &signal.kind {
            SignalKind::Answer { wait, value } => Some(Self {
                wanted: MessageKind::Answer(wait.clone()),
                value: value.clone(),
                signal: None,
                sent_at,
            }),
            SignalKind::Named { name, value } => {
                let taken = TakenSignal { id: signal.id.clone(), name: name.clone(), sent_at };
                let wanted = MessageKind::Signal(WaitKind::Signal(name.clone()));
                Some(Self { wanted, value: value.clone(), signal: Some(taken), sent_at })
            }
            SignalKind::Stop | SignalKind::Cancel | SignalKind::Checkpoint { .. } => None,
        }
    }

    /// Returns whether the message fulfils a wait and was sent before the deadline.
    fn fulfils(&self, wait: &Wait) -> bool {
        let is_meant = match &self.wanted {
            MessageKind::Answer(id) => wait.id == *id,
            MessageKind::Signal(on) => wait.on == *on,
        };
        is_meant && wait.until.is_none_or(|until| self.sent_at <= until)
    }
}

/// A wait with a matching message.
struct Waiter {
    place: usize,
    wait: Wait,
    /// Set for a running step.
    pending: Option<Arc<PendingWait>>,
}

fn is_on_message(wait: &Wait) -> bool {
    matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_))
}

impl<S> Scope<'_, S> {
    /// Returns whether a step of the scope waits for an answer or a signal.
    pub(crate) fn asks(&self) -> bool {
        self.waiting_for(&is_on_message).is_some() || self.pending_waits().next().is_some()
    }

    fn asks_for_signal(&self) -> bool {
        let on_signal = |wait: &Wait| matches!(wait.on, WaitKind::Signal(_));
        self.waiting_for(&on_signal).is_some() || self.pending_waits().any(|(_, wait, _)| on_signal(wait))
    }

    /// Returns the waits of running steps.
    fn pending_waits(&self) -> impl Iterator<Item = (usize, &Wait, &Arc<PendingWait>)> {
        let pending =
            self.running_steps.iter().flat_map(|running| running.pending.iter().map(|p| (running.place, p)));
        pending.filter_map(|(place, pending)| {
            Some((place, pending.wait.as_ref().filter(|_| pending.is_open())?, pending))
        })
    }

    fn waiter_for(&self, message: &Message) -> Option<Waiter> {
        let fulfils = |wait: &Wait| message.fulfils(wait);
        if let Some(place) = self.waiting_for(&fulfils) {
            let wait = self.entry(place).waits.iter().find(|wait| fulfils(wait))?.clone();
            return Some(Waiter { place, wait, pending: None });
        }
        let (place, wait, pending) = self.pending_waits().find(|(_, wait, _)| fulfils(wait))?;
        Some(Waiter { place, wait: wait.clone(), pending: Some(Arc::clone(pending)) })
    }

    /// Stores the message of a wait for its step, under the id of the wait. A suspended step may restart.
    fn take_in(&mut self, waiter: &Waiter, value: Value, signal: Option<TakenSignal>) {
        let Waiter { place, wait, pending } = waiter;
        let entry = self.entry_mut(*place);
        entry.memos += 1;
        if pending.is_some() {
            entry.waits.retain(|other| other.id != wait.id);
        } else {
            entry.end_wait();
        }
        let phase = Phase::Progress { key: wait.key.clone(), value };
        let taken = Taken { wait: wait.id.clone(), signal };
        self.draft_of(*place, phase, Reason::Answer).taken = Some(Box::new(taken));
        for running in self.running_steps.iter_mut().filter(|running| running.place == *place) {
            running.was_delivered = true;
            // A second message for this wait stays queued.
            running.pending.retain(|other| other.wait.as_ref().is_none_or(|other| other.id != wait.id));
        }
    }

    /// Removes the closed waits of running steps.
    fn drop_closed_waits(&mut self) {
        for index in 0..self.running_steps.len() {
            let running = &mut self.running_steps[index];
            let (closed, open) = std::mem::take(&mut running.pending).into_iter().partition(|p| !p.is_open());
            running.pending = open;
            let (place, closed): (usize, Vec<Arc<PendingWait>>) = (running.place, closed);
            let is_closed = |wait: &Wait| closed.iter().any(|closed| closed.wait.as_ref() == Some(wait));
            self.entry_mut(place).waits.retain(|wait| !is_closed(wait));
        }
    }
}

/// The urgency of a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    /// Start nothing more, end running steps with grace, write a checkpoint.
    Graceful,
    /// End running steps at once, write a checkpoint.
    Kill,
}

/// A stop request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The urgency.
    pub level: StopLevel,
    /// The source: `SIGINT`, or a person.
    pub by: String,
}

/// A handle for stop requests; clones share the request.
#[derive(Debug, Clone, Default)]
pub struct StopHandle {
    asked: Arc<StopState>,
}

/// Small, since every scope in memory has a separate state.
#[derive(Debug, Default)]
struct StopState {
    /// The source of the first request; set before `level`.
    by: OnceLock<String>,
    /// 0 without a request; else the level plus one.
    level: AtomicU8,
    /// The run returns to the queue of its store; set before `level`.
    returns: AtomicBool,
    changed: Notify,
}

impl StopHandle {
    /// Requests a stop. A more urgent request replaces a less urgent request; the first source is kept.
    pub fn stop(&self, level: StopLevel, by: &str) {
        self.asked.by.get_or_init(|| by.to_owned());
        let level = level as u8 + 1;
        if self.asked.level.fetch_max(level, Ordering::AcqRel) < level {
            self.asked.changed.notify_waiters();
        }
    }

    /// Requests a stop, and queues the run again. Both are in one batch: a crash in between loses no run.
    pub(crate) fn stop_and_return(&self, level: StopLevel, by: &str) {
        // An earlier stop, of a person, keeps the run out of the queue.
        if !self.is_asked() {
            self.asked.returns.store(true, Ordering::Release);
        }
        self.stop(level, by);
    }

    /// Returns whether the run returns to the queue after the stop.
    pub(crate) fn returns(&self) -> bool {
        self.asked.returns.load(Ordering::Acquire)
    }

    /// Returns whether a stop was requested.
    pub fn is_asked(&self) -> bool {
        self.level().is_some()
    }

    /// Returns the request, if any.
    pub fn asked(&self) -> Option<Stop> {
        let level = self.level()?;
        let by = self.asked.by.get().expect("set before the level starts");
        Some(Stop { level, by: by.clone() })
    }

    fn level(&self) -> Option<StopLevel> {
        match self.asked.level.load(Ordering::Acquire) {
            0 => None,
            level if level == StopLevel::Graceful as u8 + 1 => Some(StopLevel::Graceful),
            _ => Some(StopLevel::Kill),
        }
    }

    /// Resolves on a stop request.
    pub async fn stopped(&self) -> Stop {
        self.at_least(StopLevel::Graceful).await
    }

    /// Resolves on a stop request without grace.
    pub async fn killed(&self) {
        self.at_least(StopLevel::Kill).await;
    }

    async fn at_least(&self, level: StopLevel) -> Stop {
        loop {
            // Created before the check, so no change is missed.
            let changed = self.asked.changed.notified();
            if let Some(stop) = self.asked().filter(|stop| stop.level >= level) {
                return stop;
            }
            changed.await;
        }
    }
}
