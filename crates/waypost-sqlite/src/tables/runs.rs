//! Run records and summaries.

use std::collections::HashSet;
use std::io::ErrorKind;

use jiff::Timestamp;
use rusqlite::{Row, ToSql};
use waypost::disk::RealDisk;
use waypost::folder::has_log;
use waypost::id::{RunId, ScopePath};
use waypost::record::{Header, Phase, RunRecord, RunStatus};
use waypost::store::{Progress, RunEntry, RunQuery, RunSummary, Runs, StoreError, Summary, UnreadableRun};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::values::{count, int, time_of, time_text};
use crate::tables::inspect;
use crate::tables::lease;
use crate::tables::read::{View, unknown_cursor};
use crate::tables::rows::{Found, Want, fetch};
use crate::tables::scope::Scope;
use crate::tables::tail_check::folder_of;

const SUMMARY: &str =
    "SELECT id, name, workflow, path, labels, created_at, updated_at, status, doubtful, step, done,
    total, wake_at, lost, checkpoints, bytes, leased FROM runs";

/// Most records read to count the steps of a run with a lost summary.
const STEPS_COUNTED_MAX: u64 = 10_000;

/// The end of a run, by its records.
struct Ended {
    status: RunStatus,
    /// Completed and skipped steps.
    done: u64,
    at: Timestamp,
}

/// A stored summary, before its status is verified.
struct StoredSummary {
    id: i64,
    leased: bool,
    summary: RunSummary,
}

impl View<'_> {
    /// Returns the frozen record of a run and its summary.
    pub(crate) fn run(&self, run: &RunId) -> Result<RunEntry, Failure> {
        let id = RunRow::get(self.connection, run)?.id;
        let record = self.frozen(id, run)?;
        let mut statement = self.connection.prepare_cached(&format!("{SUMMARY} WHERE id = ?1"))?;
        let mut rows = statement.query([id])?;
        let row = rows.next()?.ok_or_else(|| StoreError::no_run(&self.place.name, run))?;
        let kept = match StoredSummary::read(row) {
            Err(Failure::Sqlite(_)) => StoredSummary::without(id, record.record()),
            kept => kept?,
        };
        Ok(RunEntry { record, summary: self.find_out(kept)? })
    }

    /// Returns the defect of a run's summary, if any.
    pub(crate) fn summary_finding(&self, id: i64) -> Result<Option<String>, Failure> {
        let mut statement = self.connection.prepare_cached(&format!("{SUMMARY} WHERE id = ?1"))?;
        let mut rows = statement.query([id])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        match StoredSummary::read(row) {
            Ok(_) => Ok(None),
            Err(Failure::Sqlite(fault)) => Ok(Some(format!("table `runs`, row {id}: {fault}"))),
            Err(failure) => Err(failure),
        }
    }

    /// Rewrites an unreadable summary from the frozen record, and from the records of the main scope if they
    /// have ended the run. The next append restores the other values.
    pub(crate) fn repair_summary(&self, id: i64, run: &RunId) -> Result<(), Failure> {
        if self.summary_finding(id)?.is_none() {
            return Ok(());
        }
        let record = self.frozen(id, run)?;
        let record = record.record();
        let created_at = time_text(record.created_at);
        let end = self.end_of(id, run)?;
        let (status, done) = end.as_ref().map_or((RunStatus::Interrupted, 0), |end| (end.status, end.done));
        let updated_at = end.map_or_else(|| created_at.clone(), |end| time_text(end.at));
        self.connection.execute(
            "UPDATE runs SET workflow = ?2, path = ?3, labels = ?4, created_at = ?5, updated_at = ?6,
                 status = ?7, doubtful = 0, step = NULL, done = ?8, total = ?8, wake_at = NULL, lost = 0,
                 checkpoints = max(checkpoints, 0), bytes = max(bytes, 0)
             WHERE id = ?1",
            (
                id,
                &record.workflow,
                &record.path,
                labels_text(record),
                created_at,
                updated_at,
                status.name(),
                int(done),
            ),
        )?;
        Ok(())
    }

    /// Returns the end of a run by the newest record of its main scope, if the record is sound and ends the
    /// run.
    fn end_of(&self, id: i64, run: &RunId) -> Result<Option<Ended>, Failure> {
        let Some(main) = Scope::find(self.connection, id, &ScopePath::main())? else { return Ok(None) };
        let main = main.settled(self.connection, id)?;
        let header = |seq| match fetch(self.connection, self.place, run, &main, seq, Want::Header)? {
            Found::Sound(record) => Ok(Some(record)),
            Found::Damaged(_) | Found::Absent => Ok::<_, Failure>(None),
        };
        let Some(newest) = header(main.newest)? else { return Ok(None) };
        let Some(status) = newest.header().status.filter(|_| newest.header().end.is_some()) else {
            return Ok(None);
        };
        let mut done = HashSet::new();
        for seq in main.newest.saturating_sub(STEPS_COUNTED_MAX).max(1)..=main.newest {
            if let Some(record) = header(seq)?
                && let Header { step: Some(step), phase: Phase::Completed(_) | Phase::Skipped(_), .. } =
                    record.header()
            {
                done.insert(step.clone());
            }
        }
        Ok(Some(Ended { status, done: done.len() as u64, at: newest.header().created_at }))
    }

    /// Returns a page of summaries, newest first, and the number of runs in the database.
    ///
    /// `logged` is an earlier result of [`inspect::logged_runs`]; its lost runs are reported too.
    pub(crate) fn runs(
        &self,
        query: &RunQuery,
        logged: Option<Vec<RunId>>,
    ) -> Result<(Runs, usize), Failure> {
        let before = match &query.cursor {
            None => i64::MAX,
            Some(text) => text.parse().map_err(|_| unknown_cursor(text))?,
        };
        let statuses = serde_json::to_string(&kept_statuses(query)).expect("a list of words is plain JSON");
        let since = query.since.map(time_text);
        let end = query.prefix.as_ref().map(|prefix| format!("{prefix}\u{10ffff}"));
        let mut values: Vec<&dyn ToSql> = vec![&before, &query.workflow, &query.path, &since, &statuses];
        let mut sql = format!(
            "{SUMMARY} WHERE id < ?1 AND ifnull(workflow = ?2, 1) AND (?3 IS NULL OR path = ?3)
             AND (?4 IS NULL OR updated_at >= ?4)
             AND (leased OR ?5 = '[]' OR status IN (SELECT value FROM json_each(?5)))"
        );
        if let Some((prefix, end)) = query.prefix.as_ref().zip(end.as_ref()) {
            sql.push_str(" AND name >= ?6 AND name < ?7");
            values.extend([prefix as &dyn ToSql, end as &dyn ToSql]);
        }
        sql.push_str(" ORDER BY id DESC");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(values.as_slice())?;
        let mut found = Runs { runs: Vec::new(), damaged: Vec::new(), next: None };
        let mut seen = HashSet::new();
        let mut last = 0;
        while let Some(row) = rows.next()? {
            let kept = match StoredSummary::read(row) {
                // Other runs are unaffected.
                Err(Failure::Sqlite(fault)) => {
                    let unreadable = unreadable(row, &fault);
                    seen.extend(unreadable.as_ref().map(|run| run.run.clone()));
                    found.damaged.extend(unreadable);
                    continue;
                }
                kept => kept?,
            };
            let id = kept.id;
            let run = kept.summary.run.clone();
            seen.insert(run.clone());
            let summary = match self.find_out(kept) {
                Err(Failure::Refused(error)) if stands_elsewhere(&error) => {
                    found.damaged.push(UnreadableRun { run, why: with_cause(&error) });
                    continue;
                }
                summary => summary?,
            };
            if !query.wants(&summary) {
                continue;
            }
            if found.runs.len() == query.limit() {
                found.next = Some(last.to_string());
                break;
            }
            last = id;
            found.runs.push(summary);
        }
        let all = RunQuery { limit: query.limit, ..RunQuery::default() };
        // The whole table was read, or it has no rows to read.
        if query.cursor.is_none() && found.next.is_none() && (*query == all || found.runs.is_empty()) {
            for run in inspect::lost_rows(self.connection)? {
                if query.prefix.as_ref().is_none_or(|prefix| run.as_str().starts_with(prefix.as_str())) {
                    let why = "table `runs` has lost its row".to_owned();
                    found.damaged.push(UnreadableRun { run: run.clone(), why });
                }
                seen.insert(run);
            }
        }
        let seen = (*query == all && found.next.is_none()).then_some(seen);
        let known = match (&seen, query.cursor.is_none()) {
            (Some(seen), _) => seen.len(),
            (None, true) => inspect::count_runs(self.connection),
            (None, false) => usize::MAX,
        };
        if let Some(logged) = logged {
            found.damaged.extend(self.lost(query, logged, seen));
        }
        Ok((found, known))
    }

    /// Returns the runs with a log next to the database but without a row; `seen` is the set of all read runs,
    /// if the page was complete. An index entry alone is not a row: pages of the index may be sound while pages
    /// of the table are not.
    fn lost(
        &self,
        query: &RunQuery,
        mut logged: Vec<RunId>,
        seen: Option<HashSet<RunId>>,
    ) -> Vec<UnreadableRun> {
        if let Some(seen) = seen {
            logged.retain(|run| !seen.contains(run) && has_log(&RealDisk, &folder_of(self.place, run)));
            logged.sort_unstable();
            let why = "the run has an event log, but no row in the database";
            return logged.into_iter().map(|run| UnreadableRun { run, why: why.to_owned() }).collect();
        }
        // A list must not check every run.
        if logged.len() <= inspect::count_runs(self.connection) {
            return Vec::new();
        }
        logged.retain(|run| query.prefix.as_ref().is_none_or(|prefix| run.as_str().starts_with(prefix)));
        let why = "the run has an event log, but no row in the database";
        let lost = inspect::lost(self.connection, self.place, logged).into_iter();
        lost.map(|run| UnreadableRun { run, why: why.to_owned() }).collect()
    }

    /// Checks with the kernel lock whether the holder is alive, if the lease was not released.
    fn find_out(&self, kept: StoredSummary) -> Result<RunSummary, Failure> {
        let StoredSummary { leased, mut summary, .. } = kept;
        if leased {
            summary.holder = lease::holder(self.place, &summary.run)?;
        }
        summary.status = RunSummary::true_status(&summary.summary, summary.holder.as_ref());
        Ok(summary)
    }
}

/// Returns the stored statuses that can result in the requested statuses for a run without a holder.
fn kept_statuses(query: &RunQuery) -> Vec<&'static str> {
    let mut names: Vec<_> = query.statuses.iter().map(|status| status.name()).collect();
    if query.statuses.contains(&RunStatus::InDoubt) {
        names.push(RunStatus::Interrupted.name());
    }
    if query.statuses.contains(&RunStatus::Interrupted) || query.statuses.contains(&RunStatus::InDoubt) {
        names.push(RunStatus::Running.name());
    }
    names
}

/// Returns whether an error concerns another kind of file at the lock path of a single run.
fn stands_elsewhere(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } if source.kind() == ErrorKind::InvalidInput)
}

fn with_cause(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Returns a run with an unreadable summary, if its name is readable.
fn unreadable(row: &Row<'_>, fault: &SqliteError) -> Option<UnreadableRun> {
    let run = RunId::new(&row.get::<_, String>(1).ok()?).ok()?;
    Some(UnreadableRun { run, why: fault.to_string() })
}

/// Formats labels for storage.
pub(crate) fn labels_text(record: &RunRecord) -> String {
    serde_json::to_string(&record.labels).expect("a map of text is plain JSON")
}

impl StoredSummary {
    /// Returns a placeholder for an unreadable summary; the lock shows whether a worker holds the run.
    fn without(id: i64, record: &RunRecord) -> Self {
        let summary = Summary::of_status(RunStatus::Interrupted);
        let summary = RunSummary {
            run: record.run.clone(),
            workflow: record.workflow.clone(),
            path: record.path.clone(),
            status: summary.status,
            summary,
            labels: record.labels.clone(),
            created_at: record.created_at,
            updated_at: record.created_at,
            checkpoints: 0,
            bytes: 0,
            blob_bytes: 0,
            holder: None,
            until: None,
        };
        Self { id, leased: true, summary }
    }

    fn read(row: &Row<'_>) -> Result<Self, Failure> {
        let name: String = row.get(1)?;
        let wrong =
            |what: &str, found: &str| SqliteError::corrupt(format!("run `{name}` has {what} `{found}`"));
        let run = RunId::new(&name).map_err(|error| SqliteError::corrupt(error.to_string()))?;
        let labels: String = row.get(4)?;
        let status: String = row.get(7)?;
        let status = status_of(&status).ok_or_else(|| wrong("status", &status))?;
        let wake_at: Option<String> = row.get(12)?;
        let summary = Summary {
            status,
            doubtful: row.get(8)?,
            step: row.get(9)?,
            progress: Progress { done: count(row.get(10)?)?, total: count(row.get(11)?)? },
            wake_at: wake_at.as_deref().map(time_of).transpose()?,
            lost: count(row.get(13)?)?,
        };
        let summary = RunSummary {
            run,
            workflow: row.get(2)?,
            path: row.get(3)?,
            status,
            summary,
            labels: serde_json::from_str(&labels).map_err(|_| wrong("labels", &labels))?,
            created_at: time_of(&row.get::<_, String>(5)?)?,
            updated_at: time_of(&row.get::<_, String>(6)?)?,
            checkpoints: count(row.get(14)?)?,
            bytes: count(row.get(15)?)?,
            blob_bytes: 0,
            holder: None,
            until: None,
        };
        Ok(Self { id: row.get(0)?, leased: row.get(16)?, summary })
    }
}

fn status_of(name: &str) -> Option<RunStatus> {
    const ALL: [RunStatus; 9] = [
        RunStatus::Queued,
        RunStatus::Running,
        RunStatus::Waiting,
        RunStatus::Interrupted,
        RunStatus::Failed,
        RunStatus::InDoubt,
        RunStatus::Completed,
        RunStatus::CompletedWithFailures,
        RunStatus::Cancelled,
    ];
    ALL.into_iter().find(|status| status.name() == name)
}
