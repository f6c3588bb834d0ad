//! Writing down for people what was committed, behind the back of those who commit.
//!
//! The lines of the log and the sections of the report are derived from records that are durable already, so that nobody
//! need wait for them: what was acknowledged, `recent.rs` tells of meanwhile. They are written by a thread of their own,
//! which begins at the first commit of a store:
//!
//! ```text
//!   commit   commit   commit            commit
//!     |        |        |                 |
//!     +--------+--------+--> backlog      +--> wakes the thread
//!                              |                  |
//!   thread ---- nap  5 ms ---- writes ---- nap --- writes
//! ```
//!
//! While commits follow one another, the thread naps between two looks, so that no commit pays for waking it; after a
//! pause, the first one does. Where many runs share the store it naps longer: what gathers of a run is one write, and
//! of each run there is less to gather. What is not written when the process dies is added when the run is taken up again.

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

/// How long commits gather before they are put into the report: nobody who reads along sees the difference. A kill
/// leaves so much to be added when the run is taken up again.
const NAP: Duration = Duration::from_millis(5);
/// The same where there is something to write about many runs.
const LONG_NAP: Duration = Duration::from_millis(50);
/// So many runs are many.
const MANY_FOLDERS: usize = 16;
/// Batches that may wait. With more, the disk does not keep up, and commits wait for it.
const BACKLOG_BATCHES_MAX: usize = 4 << 10;
/// Bytes of records that may wait with them.
const BACKLOG_BYTES_MAX: usize = 16 << 20;

/// Bytes of records that are kept at most, once written, until somebody tells the next.
const SPENT_BYTES_MAX: usize = BACKLOG_BYTES_MAX;

/// What a record takes in memory beside its bytes, about: its header, as it was read, with all its names.
const RECORD_BYTES: usize = 1 << 10;

/// What is written of a run beside the database, from two threads.
#[derive(Debug)]
pub(crate) struct RunFiles {
    /// What people read.
    pub(crate) folder: RunFolder,
    pub(crate) recent: Recent,
}

impl RunFiles {
    pub(crate) fn of(folder: RunFolder, run: &RunId) -> Self {
        let recent = Recent::new(folder.path(), run);
        Self { folder, recent }
    }
}

/// Writes down, in the order in which it is told.
#[derive(Debug, Default)]
pub(crate) struct Teller {
    desk: Arc<Desk>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Desk {
    backlog: Mutex<Backlog>,
    /// There is work, or somebody waits for its end.
    call: Condvar,
    /// All is written.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Backlog {
    jobs: Vec<Job>,
    /// Bytes of records of `jobs`.
    bytes: usize,
    /// What was written, for who tells next: memory is given back where it was taken, since two threads that give and
    /// take the same memory wait for each other more than the writing costs.
    spent: Vec<Job>,
    thread: Thread,
    /// The thread is writing what it took from the backlog.
    busy: bool,
    /// So many wait until nothing waits.
    waiting: usize,
    closing: bool,
}

/// What is known of the thread.
#[derive(Debug, Default, PartialEq, Eq)]
enum Thread {
    /// It was not needed yet, or could not be made, or has ended.
    #[default]
    None,
    /// It looks at the backlog of its own accord.
    Awake,
    /// It waits to be called.
    Asleep,
}

#[derive(Debug)]
struct Job {
    files: Arc<RunFiles>,
    batch: Arc<Batch>,
    /// The entry up to which it was told among the recent ones, if it was.
    recent: Option<u64>,
}

/// What there is to write of a run.
#[derive(Default)]
struct Work<'a> {
    batches: Vec<&'a Batch>,
    recent: Option<u64>,
}

/// Writes what was committed of each run, and returns of how many there was something.
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
    /// Has the records of `batch` written down, soon; before this returns if they could not be told of otherwise.
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
            // The system has no thread left to give.
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

    /// Returns once all that was told before is written down.
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
            // A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Returns what a record takes in memory: small ones have more beside their bodies than in them, and a fan-out commits a
/// thousand at once.
fn bytes_of(record: &Record) -> usize {
    let body = record.body_bytes().map_or(0, |body| body.len());
    RECORD_BYTES + record.header_bytes().len() + body
}

/// The work of the thread; whoever waits for it learns when it ends, however it does.
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
