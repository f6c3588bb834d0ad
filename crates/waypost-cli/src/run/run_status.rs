//! The status of a run with damaged or missing newest records. The stored summary may describe a record that is damaged,
//! so it is corrected by the newest sound record.

use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use waypost::engine::Snapshot;
use waypost::events::Cursor;
use waypost::record::{Durability, RunStatus, Status};
use waypost::shape::Unfinished;
use waypost::store::{Damage, Heads, Page, RunSummary, Scan, Store, StoreError};
use waypost::{CheckpointRef, RunId};

use crate::error::Error;
use crate::run::definition::Chosen;
use crate::run::keepalive;
use crate::run::reference;

/// The bytes read from the end of a log to find the last line: far more than the longest line.
const TAIL_BYTES: u64 = 64 << 10;

/// Reads the status of a run that a store lists without a summary: a newer version wrote it, or a part is damaged.
///
/// # Errors
/// The cause that prevents a resume.
pub(crate) async fn unlisted(store: &dyn Store, run: &RunId) -> Result<RunStatus, Error> {
    match Snapshot::read(store, run).await {
        Ok(snapshot) => Ok(snapshot.status()),
        // Stores also list folders with a log whose run they do not have.
        Err(error @ StoreError::NotFound { .. }) => {
            Err(reference::lost(store, run.as_str()).await.unwrap_or(error.into()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the end of the next delay or sleep of a run that is running or waiting.
pub(crate) fn waits_until(run: &RunSummary) -> Option<Timestamp> {
    run.summary.wake_at.filter(|_| matches!(run.status, RunStatus::Running | RunStatus::Waiting))
}

/// Returns whether an error affects one run only, and not the store.
fn is_of_one_run(error: &StoreError) -> bool {
    match error {
        StoreError::Version { .. } | StoreError::Damaged { .. } => true,
        StoreError::Io { source, .. } => matches!(
            source.kind(),
            ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::InvalidInput
        ),
        _ => false,
    }
}

/// The result of [`correct`].
#[derive(Debug)]
pub(crate) enum Correction {
    /// The newest records are sound, and the summary is unchanged.
    Unneeded,
    /// Newer records are damaged or missing, and the summary describes the newest sound record.
    Applied,
    /// The summary cannot be verified: the run record is damaged, or a newer version wrote a record.
    Unreadable(StoreError),
}

/// Corrects a summary by the newest sound record of the run, if newer records are damaged.
///
/// The summary of a running run is unchanged: its session has the position in memory.
pub(crate) async fn correct(store: &dyn Store, summary: &mut RunSummary) -> Result<Correction, Error> {
    keepalive::report_commands(store, summary);
    if summary.holder.is_some() || summary.status == RunStatus::Running {
        return Ok(Correction::Unneeded);
    }
    // The listing can be sound while the run record is damaged.
    if let Err(error @ (StoreError::Damaged { .. } | StoreError::Version { .. })) =
        store.run(&summary.run).await
    {
        return Ok(Correction::Unreadable(error));
    }
    let page = match store.heads(&summary.run, &Page { limit: 1, ..Page::default() }).await {
        Ok(page) => page,
        Err(StoreError::Damaged { .. }) => {
            summary.status = RunStatus::Interrupted;
            summary.summary.progress.done = 0;
            summary.summary.step = None;
            return Ok(Correction::Applied);
        }
        // Deleted meanwhile.
        Err(StoreError::NotFound { .. }) => return Ok(Correction::Unneeded),
        Err(error @ StoreError::Version { .. }) => return Ok(Correction::Unreadable(error)),
        Err(error) if is_of_one_run(&error) => return Ok(Correction::Applied),
        Err(error) => return Err(error.into()),
    };
    let is_done = matches!(summary.status, RunStatus::Completed | RunStatus::CompletedWithFailures);
    let is_open = page.heads.iter().any(|head| head.record.header().scope.is_main());
    if !(has_damage(store, &summary.run, page).await? || is_done && is_open) {
        return Ok(Correction::Unneeded);
    }
    match Snapshot::read(store, &summary.run).await {
        Ok(mut snapshot) => {
            correct_snapshot(store, &mut snapshot);
            *summary = snapshot.entry.summary;
        }
        Err(StoreError::Damaged { .. }) => summary.status = RunStatus::Interrupted,
        Err(error) => return Err(error.into()),
    }
    Ok(Correction::Applied)
}

/// Returns whether newer records of an open scope are damaged or missing. `page`: the first page of the heads.
async fn has_damage(store: &dyn Store, run: &RunId, mut page: Heads) -> Result<bool, Error> {
    loop {
        if page.heads.iter().any(|head| !head.damaged.is_empty()) {
            return Ok(true);
        }
        let Some(cursor) = page.next else { return Ok(false) };
        page = match store.heads(run, &Page { cursor: Some(cursor), ..Page::default() }).await {
            Err(StoreError::Damaged { .. }) => return Ok(true),
            Err(StoreError::NotFound { .. }) => return Ok(false),
            page => page?,
        };
    }
}

/// Corrects the summary in a snapshot, as [`correct`].
pub(crate) fn correct_snapshot(store: &dyn Store, snapshot: &mut Snapshot) {
    keepalive::report_commands(store, &mut snapshot.entry.summary);
    let summary = &snapshot.entry.summary;
    let is_right = snapshot.damaged().next().is_none() && !snapshot.is_overstated();
    if is_right || summary.holder.is_some() || summary.status == RunStatus::Running {
        return;
    }
    let position = snapshot.newest().position().unwrap_or_default().with_failures_open();
    let chosen = Chosen::in_force(store, snapshot);
    let lost_steps = chosen.as_ref().map(|chosen| snapshot.steps_in_lost(&chosen.shape)).unwrap_or_default();
    let summary = &mut snapshot.entry.summary;
    summary.status = RunStatus::Interrupted;
    let of = |status: Status| position.frontier.iter().find(|entry| entry.status == status);
    let step = of(Status::Failed).or_else(|| of(Status::Started)).or_else(|| of(Status::Waiting));
    summary.summary.step = step.map(|entry| entry.step.to_string());
    // The shape of a run of another program is unknown, and so is its progress.
    let Ok(chosen) = chosen else { return };
    let steps = chosen.shape.steps();
    let progress = &mut summary.summary.progress;
    progress.total = steps.len() as u64;
    progress.done =
        progress.total - (Unfinished::of(&chosen.shape, &position).count() as u64).min(progress.total);
    let started = position.frontier.iter().filter(|entry| entry.status == Status::Started);
    let lost = !lost_steps.is_empty();
    if lost || started.into_iter().any(|entry| chosen.shape.must_ask(&position, &entry.step)) {
        summary.status = RunStatus::InDoubt;
    }
}

/// Returns the damaged and missing records of child scopes that `snapshot` does not name: those below the newest one of a
/// scope that is open, and all of a scope that has ended.
///
/// # Errors
/// As [`Store::scan`].
pub(crate) async fn damaged_items(store: &dyn Store, snapshot: &Snapshot) -> Result<Vec<Damage>, StoreError> {
    let mut damages = Vec::new();
    let mut scan = Scan::of(&snapshot.entry.record.record().run);
    loop {
        let page = store.scan(&scan).await?;
        let is_new = |damage: &Damage| {
            let is_known = |known: &Damage| known.scope == damage.scope && known.seq == damage.seq;
            !damage.scope.is_main() && !snapshot.damaged().any(is_known)
        };
        damages.extend(page.damaged.into_iter().filter(is_new));
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return Ok(damages),
        }
    }
}

/// Returns the last checkpoint in the log of a run, if the store lacks this checkpoint.
///
/// A line of `events.jsonl` is written after the acknowledgement of its record. The log is ahead of the store only if the
/// store was replaced by an older copy, or lost files. Another session may append between the two reads, so the store is
/// read a second time. Runs with durability `async` are not checked: a power cut may take acknowledged checkpoints.
/// Damaged and quarantined records are not lost.
pub(crate) async fn logged_and_lost(store: &dyn Store, snapshot: &Snapshot) -> Option<CheckpointRef> {
    if !log_is_comparable(snapshot) {
        return None;
    }
    let run = snapshot.entry.record.record().run.clone();
    let Cursor { scope, seq, .. } = last_event(&store.folder(&run)?)?;
    if !scope.is_main() || seq <= newest(snapshot) {
        return None;
    }
    let again = Snapshot::read(store, &run).await.ok()?;
    (log_is_comparable(&again) && seq > newest(&again)).then_some(CheckpointRef { run, scope, seq })
}

/// Returns whether the log of a run must not be ahead of its store: no session writes, and every record is durable.
fn log_is_comparable(snapshot: &Snapshot) -> bool {
    let is_async = snapshot.entry.record.record().durability == Durability::Async;
    !is_async && snapshot.entry.summary.holder.is_none()
}

/// Returns the last seq of the main scope, with damaged records.
fn newest(snapshot: &Snapshot) -> u64 {
    let open = snapshot.heads.iter().find(|head| head.record.header().scope.is_main());
    open.map_or_else(|| snapshot.newest().header().seq, |head| head.next - 1)
}

/// Returns the cursor of the last whole line of a run's log.
fn last_event(folder: &Path) -> Option<Cursor> {
    #[derive(Deserialize)]
    struct Line {
        cursor: Cursor,
    }
    let mut file = crate::atomic_file::open_regular(&folder.join("events.jsonl")).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let end = tail.iter().rposition(|byte| *byte == b'\n')?;
    let begin = tail[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |before| before + 1);
    serde_json::from_slice::<Line>(&tail[begin..end]).ok().map(|line| line.cursor)
}

#[cfg(test)]
mod tests {
    use waypost::record::RunRecord;
    use waypost_testing::contract::block_on;
    use waypost_testing::records::{Links, holder, run_id, run_record, sealed, time};

    use super::*;

    /// Creates a store in a folder, with a run of one checkpoint and without a holder.
    async fn store_with_run(folder: &Path) -> (waypost::FileStore, Links) {
        let store = waypost::FileStore::open(folder).unwrap();
        let run = run_id("r-1");
        let mut links = Links::of(&run);
        let record = RunRecord { created_at: time(0), ..run_record(&run) };
        let lease = store.create(&sealed(record), links.step(), &holder("first")).await.unwrap();
        store.release(lease, None).await.unwrap();
        (store, links)
    }

    // What happened: of several resumes of one run at once, some ended with "checkpoints are lost" (7), now and then,
    // instead of "held" (6). Why: the log was read after the store, and another resume had appended in between. What
    // stops it now: a checkpoint that only the log names is looked up in the store once more.
    #[test]
    fn what_another_added_meanwhile_is_not_lost() {
        block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let (store, mut links) = store_with_run(folder.path()).await;
            let run = run_id("r-1");
            let before = Snapshot::read(&store, &run).await.unwrap();

            let lease = store.acquire(&run, &waypost::ScopePath::main(), &holder("second")).await.unwrap();
            links.under(&lease);
            store.append(&[&lease], links.step()).await.unwrap();
            store.release(lease, None).await.unwrap();

            assert_eq!(logged_and_lost(&store, &before).await, None);
        });
    }

    #[test]
    fn what_only_the_log_tells_of_is_lost() {
        block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let (store, _) = store_with_run(folder.path()).await;
            let snapshot = Snapshot::read(&store, &run_id("r-1")).await.unwrap();
            let log = store.folder(&run_id("r-1")).unwrap().join("events.jsonl");
            let lines = std::fs::read_to_string(&log).unwrap();
            std::fs::write(&log, lines.replace("main@1.", "main@7.")).unwrap();

            let lost = logged_and_lost(&store, &snapshot).await.expect("a checkpoint is missed");

            assert_eq!(lost.to_string(), "r-1@7");
        });
    }
}
