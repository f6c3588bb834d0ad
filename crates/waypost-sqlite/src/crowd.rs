//! A thread that commits while many share commits.
//!
//! Whoever leads a commit does so on its own thread, which is best for few. With many, their work and the commits should
//! go on side by side: on a runtime with one thread nobody gets anywhere while one of them leads.
//!
//! ```text
//!   runtime   A B C queue   D E F queue   G H queue ...
//!                  |
//!   thread         +---> [ A B C  sync ] [ D E F  sync ] ...
//! ```
//!
//! The thread begins when a commit is first shared by many, and what comes soon after goes to it, too; a run that is
//! by itself again has its commits made where it is (docs/decisions/0004-commit-path.md).

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{Builder, JoinHandle};

use crate::commit::{Writer, lock};

/// So many that share a commit are a crowd: below that, waking a thread costs more than they gain.
const CROWD_JOBS: usize = 8;
/// Commits that nobody shares until there is no crowd any more, counted from the last that many shared. With many runs the
/// first to come is often alone.
const LONELY_MAX: u32 = 64;

thread_local! {
    static SHARED_BY_MANY: Cell<bool> = const { Cell::new(false) };
}

/// Says whether the commit that is under way on this thread is shared by many.
pub(crate) fn is_shared_by_many() -> bool {
    SHARED_BY_MANY.get()
}

/// Knows whether many share commits, and has the thread that makes them then.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// How many lonely commits are left until it is over.
    patience: AtomicU32,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct Thread {
    bell: SyncSender<()>,
    handle: JoinHandle<()>,
}

impl Crowd {
    /// Takes note of a commit that so many are about to share.
    pub(crate) fn saw(&self, jobs: usize) {
        SHARED_BY_MANY.set(jobs >= CROWD_JOBS);
        if jobs >= CROWD_JOBS {
            self.patience.store(LONELY_MAX, Ordering::Relaxed);
        } else if jobs == 1 {
            let less = |patience: u32| patience.checked_sub(1);
            // It is 0 where there is no crowd.
            let _ = self.patience.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Has the thread commit all that is queued, if there is a crowd; `false` if the caller has to.
    pub(crate) fn takes_over(&self, writer: &Arc<Writer>) -> bool {
        if self.patience.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            *thread = start(Arc::downgrade(writer));
        }
        match thread.as_ref().map(|thread| thread.bell.try_send(())) {
            // It is about to look anyway where it was called before.
            Some(Ok(()) | Err(TrySendError::Full(()))) => true,
            Some(Err(TrySendError::Disconnected(()))) => {
                *thread = None;
                false
            }
            // The system has no thread left to give.
            None => false,
        }
    }

    /// Ends the thread once it is done with what was queued.
    pub(crate) fn dissolve(&self) {
        let Some(Thread { bell, handle }) = lock(&self.thread).take() else { return };
        drop(bell);
        // A panic in it was reported when it happened.
        let _ = handle.join();
    }
}

fn start(writer: Weak<Writer>) -> Option<Thread> {
    let (bell, calls) = sync_channel(1);
    let work = move || commit_when_called(&writer, &calls);
    let handle = Builder::new().name("waypost-writer".to_owned()).spawn(work).ok()?;
    Some(Thread { bell, handle })
}

fn commit_when_called(writer: &Weak<Writer>, calls: &Receiver<()>) {
    while let Ok(()) = calls.recv() {
        // Whoever waits for a commit has the writer: without it, nobody does.
        let Some(writer) = writer.upgrade() else { return };
        writer.lead();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_there(crowd: &Crowd) -> bool {
        crowd.patience.load(Ordering::Relaxed) > 0
    }

    #[test]
    fn a_few_are_no_crowd_and_a_crowd_is_over_once_commits_are_lonely() {
        let crowd = Crowd::default();
        crowd.saw(CROWD_JOBS - 1);
        assert!(!is_there(&crowd));

        crowd.saw(CROWD_JOBS);
        assert!(is_there(&crowd) && is_shared_by_many());
        for _ in 1..LONELY_MAX {
            crowd.saw(1);
        }
        assert!(is_there(&crowd) && !is_shared_by_many(), "one may be alone by chance");

        crowd.saw(2);
        crowd.saw(1);
        assert!(!is_there(&crowd));
        crowd.saw(1);
        assert!(!is_there(&crowd));
    }
}
