//! Lists runs by their run record and newest commit only.

use std::io;
use std::path::Path;

use crate::id::{RunId, ScopePath};
use crate::record::{Flaw, RunStatus, SealedRun};
use crate::store::{Damage, RunEntry, RunQuery, RunSummary, Runs, StoreError, Summary, UnreadableRun};
use crate::system::disk::Kind;

use super::FileStore;
use super::paths::{RUN_FILE, files_in};
use super::read::{RunReader, number, read_error};
use super::run_record::read_run;

impl FileStore {
    pub(super) fn entry(&self, run: &RunId) -> Result<RunEntry, StoreError> {
        self.check_there(run)?;
        let paths = self.run_paths(run);
        let flaw = match read_run(self.disk.as_ref(), run, &paths)? {
            Some((_, Ok(record))) => {
                let summary = self.summarise(run, Some(&record))?;
                return Ok(RunEntry { record, summary });
            }
            Some((_, Err(flaw))) => flaw,
            None => Flaw::Missing,
        };
        let damage =
            Damage { run: run.clone(), scope: ScopePath::main(), seq: 0, place: RUN_FILE.to_owned(), flaw };
        Err(StoreError::of_damage(damage, None))
    }

    /// Returns the summary of a run. With a damaged run record, only the newest commit is used.
    fn summarise(&self, run: &RunId, record: Option<&SealedRun>) -> Result<RunSummary, StoreError> {
        let reader = self.reader(run);
        // Read the lock first: a run that ends in between was still running at the time of the call.
        let holder = self.holder_of(run)?;
        let newest = reader.newest()?;
        let lease = reader.lease()?.and_then(Result::ok);
        // The lease is released, although the process may still hold the lock for a moment.
        let given_back = newest.as_ref().is_some_and(|commit| {
            commit.release && lease.as_ref().is_none_or(|lease| lease.token <= commit.token)
        });
        let holder = holder.filter(|_| !given_back);
        let record = record.map(SealedRun::record);
        let created_at = record.map_or(jiff::Timestamp::UNIX_EPOCH, |record| record.created_at);
        let mut summary = newest.as_ref().map_or_else(unknown, |commit| commit.summary.clone());
        if let Some(lease) = lease
            && lease.wake_at.is_some()
            && newest.as_ref().is_some_and(|commit| commit.number == lease.commit)
        {
            summary.wake_at = lease.wake_at;
        }
        let changed_at = newest.as_ref().and_then(|commit| {
            commit.updated_at.or_else(|| commit.records.last().map(|(_, record)| record.header().created_at))
        });
        Ok(RunSummary {
            run: run.clone(),
            workflow: record.map(|record| record.workflow.clone()).unwrap_or_default(),
            path: record.and_then(|record| record.path.clone()),
            status: RunSummary::true_status(&summary, holder.as_ref()),
            summary,
            labels: record.map(|record| record.labels.clone()).unwrap_or_default(),
            created_at,
            updated_at: changed_at.unwrap_or(created_at),
            checkpoints: newest.as_ref().map_or(0, |commit| commit.checkpoints),
            bytes: bytes_of(&reader)?,
            blob_bytes: 0,
            holder,
            until: None,
        })
    }

    pub(super) fn list(&self, query: &RunQuery) -> Result<Runs, StoreError> {
        let mut all = Vec::new();
        for run in self.run_ids()? {
            if query.prefix.as_ref().is_some_and(|prefix| !run.as_str().starts_with(prefix.as_str())) {
                continue;
            }
            match read_run(self.disk.as_ref(), &run, &self.run_paths(&run)) {
                Ok(Some((ordinal, record))) => all.push((ordinal, run, Ok(record.ok()))),
                // The run exists without `run.json`: the file was removed by hand, since creation and deletion
                // use other names.
                Ok(None) if self.is_there(&run)? => all.push((0, run, Ok(None))),
                Ok(None) => {}
                Err(error) if is_of_one_run(&error) => all.push((0, run, Err(error))),
                Err(error) => return Err(error),
            }
        }
        all.sort_unstable_by(|(a, run, _), (b, other, _)| (b, other).cmp(&(a, run)));
        let after = query.cursor.as_deref().map(cursor).transpose()?;
        let mut found = Runs { runs: Vec::new(), damaged: Vec::new(), next: None };
        let mut last = None;
        for (ordinal, run, record) in all {
            if after.as_ref().is_some_and(|after| (ordinal, run.as_str()) >= (after.0, after.1.as_str())) {
                continue;
            }
            let summary = match record.and_then(|record| self.summarise(&run, record.as_ref())) {
                Err(StoreError::NotFound { .. }) => continue,
                // Other runs are not affected.
                Err(error) if is_of_one_run(&error) => {
                    let cause = std::error::Error::source(&error)
                        .map(|cause| format!(": {cause}"))
                        .unwrap_or_default();
                    found.damaged.push(UnreadableRun { run, why: format!("{error}{cause}") });
                    continue;
                }
                summary => summary?,
            };
            if query.wants(&summary) {
                if found.runs.len() == query.limit() {
                    found.next = last;
                    return Ok(found);
                }
                last = Some(format!("{ordinal}.{run}"));
                found.runs.push(summary);
            }
        }
        Ok(found)
    }

    /// Returns the ids of all runs.
    pub(super) fn run_ids(&self) -> Result<Vec<RunId>, StoreError> {
        let runs = self.runs_folder();
        let entries = match self.disk.list(&runs) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|source| read_error(&runs, source))?,
        };
        let folders = entries.into_iter().filter(|entry| entry.kind == Kind::Folder);
        Ok(folders.filter_map(|entry| RunId::new(entry.name.to_str()?).ok()).collect())
    }
}

/// Returns true if an error concerns the files of a single run: its records, or an unexpected file type.
fn is_of_one_run(error: &StoreError) -> bool {
    match error {
        StoreError::Version { .. } | StoreError::Damaged { .. } => true,
        StoreError::Io { source, .. } => matches!(
            source.kind(),
            io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput
        ),
        _ => false,
    }
}

/// The summary of a run without a sound commit.
pub(super) fn unknown() -> Summary {
    Summary::of_status(RunStatus::Interrupted)
}

/// Returns the size of the records of a run, in bytes.
fn bytes_of(reader: &RunReader<'_>) -> Result<u64, StoreError> {
    let history = reader.paths.history();
    let names = files_in(reader.disk, &history).map_err(|source| read_error(&history, source))?;
    let of = |path: &Path| match reader.disk.metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(source) => Err(read_error(path, source)),
        Ok(metadata) => Ok(metadata.len),
    };
    let mut bytes = of(&reader.paths.journal())?;
    for name in names.iter().filter(|name| super::paths::commit_number(name).is_some()) {
        bytes += of(&history.join(name))?;
    }
    Ok(bytes)
}

fn cursor(text: &str) -> Result<(u64, String), StoreError> {
    let (ordinal, run) = text.split_once('.').unwrap_or((text, ""));
    Ok((number(ordinal)?, run.to_owned()))
}
