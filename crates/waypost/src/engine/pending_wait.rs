//! A wait of a step in flight, shared by the future of the step and the session.
//!
//! ```text
//!   future of the step --poll--> PendingWait <--give-- session: an answer or a signal, once it is durable
//!                                     ^------ give --- the attempt: the wait is due, or the step is to stop
//! ```

use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use serde_json::Value;
use tokio::time::Instant;

use crate::record::{Wait, WaitKind};

/// How a wait ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WaitEnd {
    /// With an answer or a signal.
    Given(Value),
    /// It is due.
    Due,
}

/// A wait of a step in flight.
#[derive(Debug)]
pub(crate) struct PendingWait {
    /// The condition; none for a stop of the step.
    pub(crate) wait: Option<Wait>,
    /// When it is due.
    pub(crate) due: Option<Instant>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    waker: Option<Waker>,
    end: Option<WaitEnd>,
    is_closed: bool,
    is_recorded: bool,
}

impl PendingWait {
    pub(crate) fn new(wait: Option<Wait>, due: Option<Instant>) -> Self {
        Self { wait, due, progress: Mutex::default() }
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<WaitEnd> {
        let mut progress = self.progress();
        match progress.end.take() {
            Some(end) => {
                progress.is_closed = true;
                Poll::Ready(end)
            }
            None => {
                progress.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Ends the wait, unless it has ended.
    pub(crate) fn give(&self, end: WaitEnd) {
        let mut progress = self.progress();
        if progress.is_closed || progress.end.is_some() {
            return;
        }
        progress.end = Some(end);
        let waker = progress.waker.take();
        drop(progress);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Closes the wait: nobody polls it any more.
    pub(crate) fn close(&self) {
        let mut progress = self.progress();
        (progress.is_closed, progress.waker) = (true, None);
    }

    /// Says whether it has neither ended nor been closed.
    pub(crate) fn is_open(&self) -> bool {
        let progress = self.progress();
        !progress.is_closed && progress.end.is_none()
    }

    /// Says whether its end wakes this task.
    pub(crate) fn wakes(&self, waker: &Waker) -> bool {
        self.progress().waker.as_ref().is_some_and(|own| own.will_wake(waker))
    }

    /// Says once whether the session must be told of it: it waits for a message, and the session does not know it.
    pub(crate) fn is_to_be_recorded(&self) -> bool {
        let on_message = |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_));
        let mut progress = self.progress();
        self.wait.as_ref().is_some_and(on_message) && !std::mem::replace(&mut progress.is_recorded, true)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no code panics while it holds this lock")
    }
}
