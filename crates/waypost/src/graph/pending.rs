//! The open waits of an attempt, and the test whether a step does nothing but wait.
//!
//! A pending future has left a clone of the waker with its event source. The step is polled with a waker that
//! counts its clones. If only open waits hold clones, only the end of a wait can wake the step, and the step is
//! suspended. Further clones mean other work, as in `tokio::join!(question, work)`; that work finishes first.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::waits::{CallKeys, SLEEP_IN_MEMORY_MAX};
use crate::engine::session::pending_wait::{PendingWait, WaitEnd};
use crate::record::Wait;

/// The waits of an attempt.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub(super) keys: CallKeys,
    open: Mutex<Vec<Arc<PendingWait>>>,
    /// Signals a new wait, possibly from another task.
    opened: Notify,
}

impl Waits {
    /// Waits for the end of `wait`; without `wait`, for the stop of the step.
    pub(super) async fn pause(&self, wait: Option<Wait>, due: Option<Instant>) -> WaitEnd {
        let pending = Arc::new(PendingWait::new(wait, due));
        self.open().push(Arc::clone(&pending));
        self.opened.notify_one();
        let closing = Closing(&pending);
        let end = poll_fn(|context| pending.poll(context)).await;
        drop(closing);
        end
    }

    /// Resolves after a wait was opened.
    pub(super) async fn opened(&self) {
        self.opened.notified().await;
    }

    /// Sleeps until the earliest deadline, then ends all waits that are due.
    pub(super) async fn ends_due(&self) {
        let earliest = self.open().iter().filter(|wait| wait.is_open()).filter_map(|wait| wait.due).min();
        match earliest {
            Some(due) => tokio::time::sleep_until(due).await,
            None => return std::future::pending().await,
        }
        let now = Instant::now();
        self.open()
            .iter()
            .filter(|wait| wait.due.is_some_and(|due| due <= now))
            .for_each(|wait| wait.deliver(WaitEnd::Due));
    }

    /// Ends the waits for the stop of the step.
    pub(super) fn stop(&self) {
        self.open().iter().filter(|wait| wait.wait.is_none()).for_each(|wait| wait.deliver(WaitEnd::Due));
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<PendingWait>>> {
        let mut open = self.open.lock().expect("no code panics while it holds this lock");
        open.retain(|wait| wait.is_open());
        open
    }
}

/// Closes a wait when its future is dropped.
struct Closing<'a>(&'a PendingWait);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The future of a step, polled turn by turn.
pub(super) struct Turns<'a, F> {
    work: Pin<&'a mut F>,
    waits: &'a Waits,
    task: Arc<StepWaker>,
}

/// The result of a turn.
pub(super) enum Turn<T> {
    /// The function returned.
    Ended(T),
    /// The step only waits: these are its open waits.
    Waits(Vec<Wait>),
    /// New waits for messages must be recorded; other work continues.
    Opened(Vec<Arc<PendingWait>>),
}

impl<'a, F: Future> Turns<'a, F> {
    pub(super) fn new(work: Pin<&'a mut F>, waits: &'a Waits) -> Self {
        Self { work, waits, task: Arc::default() }
    }

    /// Polls the function until there is a turn to report.
    pub(super) async fn next(&mut self) -> Turn<F::Output> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<Turn<F::Output>> {
        self.task.set(context.waker());
        let waker = Waker::from(Arc::clone(&self.task));
        if let Poll::Ready(end) = self.work.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Poll::Ready(Turn::Ended(end));
        }
        let open = self.waits.open().clone();
        let waits: Vec<Wait> = open.iter().filter_map(|pending| pending.wait.clone()).collect();
        if waits.is_empty() {
            return Poll::Pending;
        }
        if self.is_quiet(&open, &waker) && !open.iter().any(|wait| is_soon(wait)) {
            return Poll::Ready(Turn::Waits(waits));
        }
        let opened: Vec<_> = open.into_iter().filter(|wait| wait.is_to_be_recorded()).collect();
        if opened.is_empty() { Poll::Pending } else { Poll::Ready(Turn::Opened(opened)) }
    }

    /// Returns true if only open waits can wake the step. A wait in a separate task, or in a collection with its
    /// own wakers, hides the work next to the wait; the step then counts as quiet.
    fn is_quiet(&self, open: &[Arc<PendingWait>], waker: &Waker) -> bool {
        let own = open.iter().filter(|wait| wait.wakes(waker)).count();
        // The task holds a reference, and so does `waker`.
        let clones = Arc::strong_count(&self.task).saturating_sub(2);
        own < open.len() || clones <= own
    }
}

/// Returns true if the deadline of a wait is so near that the step stays in memory.
fn is_soon(wait: &PendingWait) -> bool {
    wait.due.is_some_and(|due| due.saturating_duration_since(Instant::now()) <= SLEEP_IN_MEMORY_MAX)
}

/// Wakes the task that polls the step. Each clone of the waker is a reference.
#[derive(Debug, Default)]
struct StepWaker(Mutex<Option<Waker>>);

impl StepWaker {
    fn set(&self, waker: &Waker) {
        let mut known = self.0.lock().expect("no code panics while it holds this lock");
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }
}

impl Wake for StepWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = self.0.lock().expect("no code panics while it holds this lock").clone();
        waker.into_iter().for_each(Waker::wake);
    }
}
