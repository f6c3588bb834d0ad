//! Writes `events.jsonl` and `report.md` off the commit path.
//!
//! Log lines and report sections are derived from durable records, so commits need not wait for them. Until
//! they are written, `recent.rs` records what was acknowledged. A thread writes them; it starts with the
//! first commit of a store:
//!
//! ```text
//!   commit   commit   commit            commit
//!     |        |        |                 |
//!     +--------+--------+--> backlog      +--> wakes the thread
//!                              |                  |
//!   thread ---- nap  5 ms ---- writes ---- nap --- writes
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

use crate::commit::lock;
use crate::recent::Recent;

/// How long commits gather before they are written; a reader does not notice the delay. A kill leaves this
/// much to add at the next resume.
const NAP: Duration = Duration::from_millis(5);
/// The delay with many runs.
const LONG_NAP: Duration = Duration::from_millis(50);
/// Number of runs from which the longer delay applies.
const MANY_FOLDERS: usize = 16;
/// Most queued batches. With more, the disk is too slow, and commits wait for it.
const BACKLOG_BATCHES_MAX: usize = 4 << 10;
/// Most bytes of queued records.
const BACKLOG_BYTES_MAX: usize = 16 << 20;

/// Most bytes of written records kept until the next commit frees them.
const SPENT_BYTES_MAX: usize = BACKLOG_BYTES_MAX;

/// Approximate memory of a record besides its bytes, mainly the parsed header.
const RECORD_BYTES: usize = 1 << 10;

/// The files of a run next to the database, written by two threads.
#[derive(Debug)]
pub(crate) struct RunFiles {
    /// The log and report.
    pub(crate) folder: RunFolder,
    pub(crate) recent: Recent,
}

impl RunFiles {
    pub(crate) fn of(folder: RunFolder, run: &RunId) -> Self {
        let recent = Recent::new(folder.path(), run);
        Self { folder, recent }
    }
}

/// Writes committed batches in order.
#[derive(Debug, Default)]
pub(crate) struct Teller {
    desk: Arc<Desk>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Desk {
    backlog: Mutex<Backlog>,
    /// Signals work, or a waiter for the end of work.
    call: Condvar,
    /// Signals that everything is written.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Backlog {
    jobs: Vec<Job>,
    /// Bytes of the records in `jobs`.
    bytes: usize,
    /// Written jobs; the next committing thread frees them. Memory is freed on the thread that allocated it:
    /// two threads that allocate and free the same memory wait longer than the writes take.
    spent: Vec<Job>,
    thread: Thread,
    /// Whether the thread is writing jobs from the backlog.
    busy: bool,
    /// Number of waiters for an empty backlog.
    waiting: usize,
    closing: bool,
}

/// State of the thread.
#[derive(Debug, Default, PartialEq, Eq)]
enum Thread {
    /// Not started, failed to start, or ended.
    #[default]
    None,
    /// Checks the backlog without a wake-up.
    Awake,
    /// Waits for a wake-up.
    Asleep,
}

#[derive(Debug)]
struct Job {
    files: Arc<RunFiles>,
    batch: Arc<Batch>,
    /// The last entry in the tail journal, if it was written.
    recent: Option<u64>,
}

/// Pending work of a run.
#[derive(Default)]
struct Work<'a> {
    batches: Vec<&'a Batch>,
    recent: Option<u64>,
}

/// Writes the committed batches of each run; returns the number of runs.
fn write(jobs: &[Job]) -> usize {
    let mut works: Vec<(&RunFiles, Work<'_>)> = Vec::new();
    let mut places: HashMap<*const RunFiles, usize> = HashMap::new();
    for Job { files, batch, recent } in jobs {
        let place = *places.entry(Arc::as_ptr(files)).or_insert_with(|| {
            works.push((files, Work::default()));
            works.len() - 1
        });
        let work = &mut works[place].1;
        work.batches.push(batch);
        work.recent = work.recent.max(*recent);
    }
    for (RunFiles { folder, recent }, work) in &works {
        let records = || work.batches.iter().flat_map(|batch| &batch.records);
        folder.log(records());
        if let Some(entry) = work.recent {
            recent.is_logged(entry);
        }
        folder.report(records());
    }
    works.len()
}

impl Teller {
    /// Queues the records of `batch` for writing; writes before returning if the tail journal has no entry
    /// for them.
    pub(crate) fn tell(&self, files: Arc<RunFiles>, batch: Arc<Batch>) {
        let bytes = batch.records.iter().map(bytes_of).sum::<usize>();
        let recent = files.recent.tell(&batch.records);
        let job = Job { files, batch, recent };
        let mut backlog = lock(&self.desk.backlog);
        match backlog.thread {
            Thread::Awake => {}
            Thread::Asleep => {
                backlog.thread = Thread::Awake;
                self.desk.call.notify_one();
            }
            Thread::None if self.start() => backlog.thread = Thread::Awake,
            // The system cannot create another thread.
            Thread::None => {
                drop(backlog);
                write(&[job]);
                return;
            }
        }
        backlog.jobs.push(job);
        backlog.bytes += bytes;
        let full =
            recent.is_none() || backlog.jobs.len() > BACKLOG_BATCHES_MAX || backlog.bytes > BACKLOG_BYTES_MAX;
        let spent = std::mem::take(&mut backlog.spent);
        drop(backlog);
        drop(spent);
        if full {
            self.finish();
        }
    }

    /// Returns after all queued batches are written.
    pub(crate) fn finish(&self) {
        let mut backlog = lock(&self.desk.backlog);
        backlog.waiting += 1;
        while backlog.thread != Thread::None && (backlog.busy || !backlog.jobs.is_empty()) {
            self.desk.call.notify_one();
            backlog = self.desk.done.wait(backlog).unwrap_or_else(PoisonError::into_inner);
        }
        backlog.waiting -= 1;
    }

    fn start(&self) -> bool {
        let desk = Arc::clone(&self.desk);
        let thread = Builder::new().name("waypost-teller".to_owned()).spawn(move || Shift(desk).work());
        let started = thread.ok();
        let is_started = started.is_some();
        *lock(&self.thread) = started;
        is_started
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        lock(&self.desk.backlog).closing = true;
        self.desk.call.notify_one();
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
struct Shift(Arc<Desk>);

impl Shift {
    fn work(self) {
        let desk = &self.0;
        let mut backlog = lock(&desk.backlog);
        loop {
            while backlog.jobs.is_empty() {
                if backlog.closing {
                    return;
                }
                backlog.thread = Thread::Asleep;
                backlog = desk.call.wait(backlog).unwrap_or_else(PoisonError::into_inner);
            }
            backlog.thread = Thread::Awake;
            backlog.busy = true;
            let bytes = std::mem::take(&mut backlog.bytes);
            let mut jobs = std::mem::take(&mut backlog.jobs);
            drop(backlog);
            let folders = write(&jobs);
            if bytes > SPENT_BYTES_MAX {
                jobs.clear();
            }
            backlog = lock(&desk.backlog);
            backlog.spent.append(&mut jobs);
            backlog.busy = false;
            if backlog.waiting > 0 && backlog.jobs.is_empty() {
                desk.done.notify_all();
            }
            if backlog.waiting == 0 && !backlog.closing {
                let nap = if folders < MANY_FOLDERS { NAP } else { LONG_NAP };
                backlog = desk.call.wait_timeout(backlog, nap).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl Drop for Shift {
    fn drop(&mut self) {
        let mut backlog = lock(&self.0.backlog);
        backlog.thread = Thread::None;
        backlog.busy = false;
        self.0.done.notify_all();
    }
}
