//! A wait of a running step, shared by the future of the step and the session.
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

/// The end of a wait.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WaitEnd {
    /// An answer or a signal.
    Delivered(Value),
    /// The deadline.
    Due,
}

/// A wait of a running step.
#[derive(Debug)]
pub(crate) struct PendingWait {
    /// The condition; `None` waits for a stop of the step.
    pub(crate) wait: Option<Wait>,
    /// The deadline.
    pub(crate) due: Option<Instant>,
    progress: Mutex<WaitState>,
}

#[derive(Debug, Default)]
struct WaitState {
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

    /// Ends the wait, unless already ended.
    pub(crate) fn deliver(&self, end: WaitEnd) {
        let mut progress = self.progress();
        if progress.is_closed || progress.end.is_some() {
            return;
        }
        progress.end = Some(end);
        let waker = progress.waker.take();
        drop(progress);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Closes the wait: its future is gone.
    pub(crate) fn close(&self) {
        let mut progress = self.progress();
        (progress.is_closed, progress.waker) = (true, None);
    }

    /// Returns whether the wait is neither ended nor closed.
    pub(crate) fn is_open(&self) -> bool {
        let progress = self.progress();
        !progress.is_closed && progress.end.is_none()
    }

    /// Returns whether the end of the wait wakes this task.
    pub(crate) fn wakes(&self, waker: &Waker) -> bool {
        self.progress().waker.as_ref().is_some_and(|own| own.will_wake(waker))
    }

    /// Returns true once if the session must be informed: the wait is for a message, and the session does not
    /// know the wait.
    pub(crate) fn is_to_be_recorded(&self) -> bool {
        let on_message = |wait: &Wait| matches!(wait.on, WaitKind::Answer | WaitKind::Signal(_));
        let mut progress = self.progress();
        self.wait.as_ref().is_some_and(on_message) && !std::mem::replace(&mut progress.is_recorded, true)
    }

    fn progress(&self) -> MutexGuard<'_, WaitState> {
        self.progress.lock().expect("no code panics while it holds this lock")
    }
}
