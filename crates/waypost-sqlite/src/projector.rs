//! Writes `events.jsonl` and `report.md` off the commit path.
//!
//! Log lines and report sections are derived from durable records, so commits need not wait for them. Until
//! they are written, `ack_journal.rs` records what was acknowledged. A thread writes them; it starts with the
//! first commit of a store:
//!
//! ```text
//!   commit   commit   commit            commit
//!     |        |        |                 |
//!     +--------+--------+--> backlog      +--> wakes the thread
//!                              |                  |
//!   thread ---- sleep 5 ms --- writes ---- sleep - writes
//! ```
//!
//! During frequent commits the thread sleeps between writes, so that commits need not wake it; only the first
//! commit after a pause does. With many runs the thread sleeps longer: the lines of a run are a single write,
//! and each run has fewer lines to gather. Lines that are unwritten when the process dies are added at the
//! next resume.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use waypost::folder::RunFolder;
use waypost::id::RunId;
use waypost::record::Record;
use waypost::store::Batch;

use crate::lock;
use crate::tables::ack_journal::AckJournal;

/// How long commits gather before they are written; a reader does not notice the delay. A kill leaves this
/// much to add at the next resume.
const POLL_DELAY: Duration = Duration::from_millis(5);
/// The delay with many runs.
const POLL_DELAY_MANY: Duration = Duration::from_millis(50);
/// Number of runs from which the longer delay applies.
const FOLDERS_MANY: usize = 16;
/// Most queued batches. With more, the disk is too slow, and commits wait for it.
const BACKLOG_BATCHES_MAX: usize = 4 << 10;
/// Most bytes of queued records.
const BACKLOG_BYTES_MAX: usize = 16 << 20;

/// Most bytes of written records kept until the next commit frees them.
const WRITTEN_BYTES_MAX: usize = BACKLOG_BYTES_MAX;

/// Approximate memory of a record besides its bytes, mainly the parsed header.
const RECORD_BYTES: usize = 1 << 10;

/// The files of a run next to the database, written by two threads.
#[derive(Debug)]
pub(crate) struct RunFiles {
    /// The log and report.
    pub(crate) folder: RunFolder,
    pub(crate) journal: AckJournal,
}

impl RunFiles {
    pub(crate) fn of(folder: RunFolder, run: &RunId) -> Self {
        let journal = AckJournal::new(folder.path(), run);
        Self { folder, journal }
    }
}

/// Writes committed batches in order.
#[derive(Debug, Default)]
pub(crate) struct Projector {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    backlog: Mutex<Backlog>,
    /// Signals work, or a waiter for the end of work.
    wake_up: Condvar,
    /// Signals that everything is written.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Backlog {
    jobs: Vec<ProjectorJob>,
    /// Bytes of the records in `jobs`.
    bytes: usize,
    /// Written jobs; the next committing thread frees them. Memory is freed on the thread that allocated it:
    /// two threads that allocate and free the same memory wait longer than the writes take.
    written: Vec<ProjectorJob>,
    thread: ThreadState,
    /// Whether the thread is writing jobs from the backlog.
    busy: bool,
    /// Number of waiters for an empty backlog.
    waiting: usize,
    closing: bool,
}

/// State of the thread.
#[derive(Debug, Default, PartialEq, Eq)]
enum ThreadState {
    /// Not started, failed to start, or ended.
    #[default]
    None,
    /// Checks the backlog without a wake-up.
    Awake,
    /// Waits for a wake-up.
    Asleep,
}

#[derive(Debug)]
struct ProjectorJob {
    files: Arc<RunFiles>,
    batch: Arc<Batch>,
    /// The last entry in the tail journal, if it was written.
    journal: Option<u64>,
}

/// Pending work of a run.
#[derive(Default)]
struct ProjectorWork<'a> {
    batches: Vec<&'a Batch>,
    journal: Option<u64>,
}

/// Writes the committed batches of each run; returns the number of runs.
fn write(jobs: &[ProjectorJob]) -> usize {
    let mut works: Vec<(&RunFiles, ProjectorWork<'_>)> = Vec::new();
    let mut indexes: HashMap<*const RunFiles, usize> = HashMap::new();
    for ProjectorJob { files, batch, journal } in jobs {
        let index = *indexes.entry(Arc::as_ptr(files)).or_insert_with(|| {
            works.push((files, ProjectorWork::default()));
            works.len() - 1
        });
        let work = &mut works[index].1;
        work.batches.push(batch);
        work.journal = work.journal.max(*journal);
    }
    for (RunFiles { folder, journal }, work) in &works {
        let records = || work.batches.iter().flat_map(|batch| &batch.records);
        folder.log(records());
        if let Some(entry) = work.journal {
            journal.mark_logged(entry);
        }
        folder.report(records());
    }
    works.len()
}

impl Projector {
    /// Queues the records of `batch` for writing; writes before returning if the tail journal has no entry
    /// for them.
    pub(crate) fn enqueue(&self, files: Arc<RunFiles>, batch: Arc<Batch>) {
        let bytes = batch.records.iter().map(bytes_of).sum::<usize>();
        let journal = files.journal.record(&batch.records);
        let job = ProjectorJob { files, batch, journal };
        let mut backlog = lock(&self.shared.backlog);
        match backlog.thread {
            ThreadState::Awake => {}
            ThreadState::Asleep => {
                backlog.thread = ThreadState::Awake;
                self.shared.wake_up.notify_one();
            }
            ThreadState::None if self.start() => backlog.thread = ThreadState::Awake,
            // The system cannot create another thread.
            ThreadState::None => {
                drop(backlog);
                write(&[job]);
                return;
            }
        }
        backlog.jobs.push(job);
        backlog.bytes += bytes;
        let full = journal.is_none()
            || backlog.jobs.len() > BACKLOG_BATCHES_MAX
            || backlog.bytes > BACKLOG_BYTES_MAX;
        let written = std::mem::take(&mut backlog.written);
        drop(backlog);
        drop(written);
        if full {
            self.finish();
        }
    }

    /// Returns after all queued batches are written.
    pub(crate) fn finish(&self) {
        let mut backlog = lock(&self.shared.backlog);
        backlog.waiting += 1;
        while backlog.thread != ThreadState::None && (backlog.busy || !backlog.jobs.is_empty()) {
            self.shared.wake_up.notify_one();
            backlog = self.shared.done.wait(backlog).unwrap_or_else(PoisonError::into_inner);
        }
        backlog.waiting -= 1;
    }

    fn start(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        let thread =
            Builder::new().name("waypost-teller".to_owned()).spawn(move || ProjectorThread(shared).work());
        let started = thread.ok();
        let is_started = started.is_some();
        *lock(&self.thread) = started;
        is_started
    }
}

impl Drop for Projector {
    fn drop(&mut self) {
        lock(&self.shared.backlog).closing = true;
        self.shared.wake_up.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}

/// Returns the memory of a record. Small records need more memory besides their bodies, and a fan-out commits
/// a thousand at once.
fn bytes_of(record: &Record) -> usize {
    let body = record.body_bytes().map_or(0, |body| body.len());
    RECORD_BYTES + record.header_bytes().len() + body
}

/// The work of the thread; waiters are notified at its end, even on a panic.
struct ProjectorThread(Arc<Shared>);

impl ProjectorThread {
    fn work(self) {
        let shared = &self.0;
        let mut backlog = lock(&shared.backlog);
        loop {
            while backlog.jobs.is_empty() {
                if backlog.closing {
                    return;
                }
                backlog.thread = ThreadState::Asleep;
                backlog = shared.wake_up.wait(backlog).unwrap_or_else(PoisonError::into_inner);
            }
            backlog.thread = ThreadState::Awake;
            backlog.busy = true;
            let bytes = std::mem::take(&mut backlog.bytes);
            let mut jobs = std::mem::take(&mut backlog.jobs);
            drop(backlog);
            let folders = write(&jobs);
            if bytes > WRITTEN_BYTES_MAX {
                jobs.clear();
            }
            backlog = lock(&shared.backlog);
            backlog.written.append(&mut jobs);
            backlog.busy = false;
            if backlog.waiting > 0 && backlog.jobs.is_empty() {
                shared.done.notify_all();
            }
            if backlog.waiting == 0 && !backlog.closing {
                let delay = if folders < FOLDERS_MANY { POLL_DELAY } else { POLL_DELAY_MANY };
                backlog =
                    shared.wake_up.wait_timeout(backlog, delay).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl Drop for ProjectorThread {
    fn drop(&mut self) {
        let mut backlog = lock(&self.0.backlog);
        backlog.thread = ThreadState::None;
        backlog.busy = false;
        self.0.done.notify_all();
    }
}
