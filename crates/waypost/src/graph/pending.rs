//! The waits that an attempt has open, and the moment at which nothing else of the step is under way.
//!
//! A future that waits for something has left a waker with it. The step is polled with a waker that counts its clones: if
//! no clones are left but those of open waits, only the end of a wait can wake the step, and the step is suspended.
//! Otherwise other work is under way, as in `tokio::join!(question, work)`, and comes to its end first.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::waits::{Keys, SLEEP_IN_MEMORY_MAX};
use crate::engine::pending_wait::{PendingWait, WaitEnd};
use crate::record::Wait;

/// The waits of an attempt.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub(super) keys: Keys,
    open: Mutex<Vec<Arc<PendingWait>>>,
    /// A wait was opened, maybe by another task.
    opened: Notify,
}

impl Waits {
    /// Waits for the end of a wait; without `wait`, for the stop of the step.
    pub(super) async fn pause(&self, wait: Option<Wait>, due: Option<Instant>) -> WaitEnd {
        let pending = Arc::new(PendingWait::new(wait, due));
        self.open().push(Arc::clone(&pending));
        self.opened.notify_one();
        let closing = Closing(&pending);
        let end = poll_fn(|context| pending.poll(context)).await;
        drop(closing);
        end
    }

    /// Resolves when a wait was opened.
    pub(super) async fn opened(&self) {
        self.opened.notified().await;
    }

    /// Ends the waits that are due, at the time of the earliest.
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
            .for_each(|wait| wait.give(WaitEnd::Due));
    }

    /// Ends the waits for the stop of the step.
    pub(super) fn stop(&self) {
        self.open().iter().filter(|wait| wait.wait.is_none()).for_each(|wait| wait.give(WaitEnd::Due));
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<PendingWait>>> {
        let mut open = self.open.lock().expect("no code panics while it holds this lock");
        open.retain(|wait| wait.is_open());
        open
    }
}

/// Closes a wait whose future is dropped.
struct Closing<'a>(&'a PendingWait);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The function of a step, one turn at a time.
pub(super) struct Turns<'a, F> {
    work: Pin<&'a mut F>,
    waits: &'a Waits,
    task: Arc<Task>,
}

/// What came of a turn.
pub(super) enum Turn<T> {
    /// The function returned.
    Ended(T),
    /// Nothing of the step is under way but these waits.
    Waits(Vec<Wait>),
    /// Waits were opened for messages, and other work is under way.
    Opened(Vec<Arc<PendingWait>>),
}

impl<'a, F: Future> Turns<'a, F> {
    pub(super) fn new(work: Pin<&'a mut F>, waits: &'a Waits) -> Self {
        Self { work, waits, task: Arc::default() }
    }

    /// Polls the function until something is to be told.
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

    /// Says whether only open waits can wake the step. A wait in a task of its own, or in a collection with wakers of its
    /// own, hides what is beside it: then the step counts as quiet.
    fn is_quiet(&self, open: &[Arc<PendingWait>], waker: &Waker) -> bool {
        let own = open.iter().filter(|wait| wait.wakes(waker)).count();
        // One is the task's own, and one is `waker`.
        let clones = Arc::strong_count(&self.task).saturating_sub(2);
        own < open.len() || clones <= own
    }
}

/// Says whether a wait is due so soon that the step stays in memory.
fn is_soon(wait: &PendingWait) -> bool {
    wait.due.is_some_and(|due| due.saturating_duration_since(Instant::now()) <= SLEEP_IN_MEMORY_MAX)
}

/// Wakes the task that polls the step. Each clone of its waker is a reference.
#[derive(Debug, Default)]
struct Task(Mutex<Option<Waker>>);

impl Task {
    fn set(&self, waker: &Waker) {
        let mut known = self.0.lock().expect("no code panics while it holds this lock");
        if !known.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *known = Some(waker.clone());
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = self.0.lock().expect("no code panics while it holds this lock").clone();
        waker.into_iter().for_each(Waker::wake);
    }
}
