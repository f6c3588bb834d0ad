//! Group commit on a thread, while many tasks share commits.
//!
//! A leader commits on its own thread. For few tasks this is best. With many tasks, work and commits should
//! overlap: on a single-threaded runtime all tasks stop while a task leads.
//!
//! ```text
//!   runtime   A B C queue   D E F queue   G H queue ...
//!                  |
//!   thread         +---> [ A B C  sync ] [ D E F  sync ] ...
//! ```
//!
//! The thread starts with the first commit of many jobs, and also commits the jobs that follow soon after. A
//! run that is alone again commits on its own thread (docs/decisions/0004-commit-path.md).

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{Builder, JoinHandle};

use crate::commit::{Writer, lock};

/// Fewest jobs per commit for use of the thread; below this limit, waking a thread costs more than the gain.
const CROWD_JOBS: usize = 8;
/// Number of single-job commits after the last large commit until the thread is no longer used. With many
/// runs, the first job is often alone.
const LONELY_MAX: u32 = 64;

thread_local! {
    static SHARED_BY_MANY: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the current commit of this thread has many jobs.
pub(crate) fn is_shared_by_many() -> bool {
    SHARED_BY_MANY.get()
}

/// Tracks whether many tasks share commits, and owns the committing thread.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    /// Remaining single-job commits before the thread is no longer used.
    patience: AtomicU32,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct Thread {
    bell: SyncSender<()>,
    handle: JoinHandle<()>,
}

impl Crowd {
    /// Records the number of jobs of the next commit.
    pub(crate) fn saw(&self, jobs: usize) {
        SHARED_BY_MANY.set(jobs >= CROWD_JOBS);
        if jobs >= CROWD_JOBS {
            self.patience.store(LONELY_MAX, Ordering::Relaxed);
        } else if jobs == 1 {
            let less = |patience: u32| patience.checked_sub(1);
            // The count is already 0 if the thread is not in use.
            let _ = self.patience.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Wakes the thread to commit the queue, if it is in use; `false` if the caller must lead.
    pub(crate) fn takes_over(&self, writer: &Arc<Writer>) -> bool {
        if self.patience.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            *thread = start(Arc::downgrade(writer));
        }
        match thread.as_ref().map(|thread| thread.bell.try_send(())) {
            // A full channel means that a wake-up is already pending.
            Some(Ok(()) | Err(TrySendError::Full(()))) => true,
            Some(Err(TrySendError::Disconnected(()))) => {
                *thread = None;
                false
            }
            // The system cannot create another thread.
            None => false,
        }
    }

    /// Ends the thread after it has committed the queue.
    pub(crate) fn dissolve(&self) {
        let Some(Thread { bell, handle }) = lock(&self.thread).take() else { return };
        drop(bell);
        // A panic of the thread was already reported.
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
        // Waiting tasks hold the writer: if it is gone, the queue is empty.
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
