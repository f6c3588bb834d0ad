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

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{Builder, JoinHandle};

use crate::database::open::set_commits_group;
use crate::lock;
use crate::write::commit::Writer;

/// Fewest jobs per commit for use of the thread; below this limit, waking a thread costs more than the gain.
const GROUP_JOBS_MIN: usize = 8;
/// Number of single-job commits after the last large commit until the thread is no longer used. With many
/// runs, the first job is often alone.
const SINGLE_JOBS_MAX: u32 = 64;

/// Tracks whether many tasks share commits, and owns the committing thread.
#[derive(Debug, Default)]
pub(crate) struct GroupCommit {
    /// Remaining single-job commits before the thread is no longer used.
    remaining: AtomicU32,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct Thread {
    wake_up: SyncSender<()>,
    handle: JoinHandle<()>,
}

impl GroupCommit {
    /// Records the number of jobs of the next commit.
    pub(crate) fn record_jobs(&self, jobs: usize) {
        set_commits_group(jobs >= GROUP_JOBS_MIN);
        if jobs >= GROUP_JOBS_MIN {
            self.remaining.store(SINGLE_JOBS_MAX, Ordering::Relaxed);
        } else if jobs == 1 {
            let less = |remaining: u32| remaining.checked_sub(1);
            // The count is already 0 if the thread is not in use.
            let _ = self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Wakes the thread to commit the queue, if it is in use; `false` if the caller must lead.
    pub(crate) fn wake(&self, writer: &Arc<Writer>) -> bool {
        if self.remaining.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            *thread = start(Arc::downgrade(writer));
        }
        match thread.as_ref().map(|thread| thread.wake_up.try_send(())) {
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
    pub(crate) fn stop(&self) {
        let Some(Thread { wake_up, handle }) = lock(&self.thread).take() else { return };
        drop(wake_up);
        // A panic of the thread was already reported.
        let _ = handle.join();
    }
}

fn start(writer: Weak<Writer>) -> Option<Thread> {
    let (wake_up, calls) = sync_channel(1);
    let work = move || commit_on_wake(&writer, &calls);
    let handle = Builder::new().name("waypost-writer".to_owned()).spawn(work).ok()?;
    Some(Thread { wake_up, handle })
}

fn commit_on_wake(writer: &Weak<Writer>, calls: &Receiver<()>) {
    while let Ok(()) = calls.recv() {
        // Waiting tasks hold the writer: if it is gone, the queue is empty.
        let Some(writer) = writer.upgrade() else { return };
        writer.lead();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::open::commits_group;

    fn is_there(group_commit: &GroupCommit) -> bool {
        group_commit.remaining.load(Ordering::Relaxed) > 0
    }

    #[test]
    fn a_group_commit_ends_once_commits_are_single() {
        let group_commit = GroupCommit::default();
        group_commit.record_jobs(GROUP_JOBS_MIN - 1);
        assert!(!is_there(&group_commit));

        group_commit.record_jobs(GROUP_JOBS_MIN);
        assert!(is_there(&group_commit) && commits_group());
        for _ in 1..SINGLE_JOBS_MAX {
            group_commit.record_jobs(1);
        }
        assert!(is_there(&group_commit) && !commits_group(), "one may be alone by chance");

        group_commit.record_jobs(2);
        group_commit.record_jobs(1);
        assert!(!is_there(&group_commit));
        group_commit.record_jobs(1);
        assert!(!is_there(&group_commit));
    }
}
