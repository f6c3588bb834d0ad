//! Run records and summaries.

use rusqlite::{Connection, OptionalExtension, Row, ToSql};
use waypost::id::{BranchPath, Digest, RunId};
use waypost::record::{Flaw, RunStatus, SealedRun};
use waypost::store::{Damage, Progress, RunEntry, RunQuery, RunSummary, Runs, StoreError, Summary};

use crate::fault::{Failure, Fault};
use crate::header::{self, RUN_BYTES_MAX};
use crate::lease;
use crate::open::Place;
use crate::read::{View, unknown_cursor};
use crate::rows::{RunRow, count, time_of, time_text};

const SUMMARY: &str =
    "SELECT id, name, workflow, path, labels, created_at, updated_at, status, doubtful, step, done,
    total, wake_at, lost, checkpoints, bytes, leased FROM runs";

/// A summary as kept, before its truth is found out.
struct Kept {
    id: i64,
    leased: bool,
    summary: RunSummary,
}

impl View<'_> {
    /// Returns the frozen record of a run and its summary.
    pub(crate) fn run(&self, run: &RunId) -> Result<RunEntry, Failure> {
        let id = RunRow::get(self.connection, self.place, run)?.id;
        let record = self.frozen(id, run)?;
        let mut statement = self.connection.prepare_cached(&format!("{SUMMARY} WHERE id = ?1"))?;
        let mut rows = statement.query([id])?;
        let row = rows.next()?.ok_or_else(|| StoreError::no_run(&self.place.name, run))?;
        let kept = Kept::read(row)?;
        Ok(RunEntry { record, summary: self.find_out(kept)? })
    }

    /// Returns the frozen record of a run, verified.
    pub(crate) fn frozen(&self, id: i64, run: &RunId) -> Result<SealedRun, Failure> {
        let flaw = match frozen_columns(self.connection, id) {
            Ok(Some((digest, kept))) => match open(self.place, digest, kept) {
                Ok(sealed) if sealed.record().run == *run => return Ok(sealed),
                Ok(sealed) => Flaw::Malformed(format!("it is that of run {}", sealed.record().run)),
                Err(flaw) => flaw,
            },
            Ok(None) => Flaw::Malformed("it is not there any more".to_owned()),
            Err(Failure::Sqlite(fault)) if fault.is_corrupt() => Flaw::Malformed(fault.to_string()),
            Err(failure) => return Err(failure),
        };
        let place = format!("{}, table `frozen`, row {id}", self.place.file.display());
        let damage = Damage { run: run.clone(), branch: BranchPath::main(), seq: 0, place, flaw };
        Err(StoreError::of_damage(damage, None).into())
    }

    /// Returns a page of summaries, newest first.
    pub(crate) fn runs(&self, query: &RunQuery) -> Result<Runs, Failure> {
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
        let mut found = Runs { runs: Vec::new(), next: None };
        let mut last = 0;
        while let Some(row) = rows.next()? {
            let kept = Kept::read(row)?;
            let id = kept.id;
            let summary = self.find_out(kept)?;
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
        Ok(found)
    }

    /// Asks the kernel whether the holder lives, where a lease was not given back.
    fn find_out(&self, kept: Kept) -> Result<RunSummary, Failure> {
        let Kept { leased, mut summary, .. } = kept;
        if leased {
            summary.holder = lease::holder(self.place, &summary.run)?;
        }
        summary.status = RunSummary::true_status(&summary.summary, summary.holder.as_ref());
        Ok(summary)
    }
}

/// Returns the statuses that runs without a holder may be kept with, if they are to turn out as asked.
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

fn open(place: &Place, digest: [u8; 32], kept: Vec<u8>) -> Result<SealedRun, Flaw> {
    let bytes =
        header::unpack(&mut place.frames.squeezer.lend(), kept, RUN_BYTES_MAX).map_err(Flaw::Malformed)?;
    SealedRun::open(Digest::from_bytes(digest), bytes)
}

/// The digest of a run record, and its bytes as they are kept.
type Frozen = ([u8; 32], Vec<u8>);

fn frozen_columns(connection: &Connection, id: i64) -> Result<Option<Frozen>, Failure> {
    Ok(connection
        .prepare_cached("SELECT digest, record FROM frozen WHERE run = ?1")?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?)
}

impl Kept {
    fn read(row: &Row<'_>) -> Result<Self, Failure> {
        let name: String = row.get(1)?;
        let wrong = |what: &str, found: &str| Fault::corrupt(format!("run `{name}` has {what} `{found}`"));
        let run = RunId::new(&name).map_err(|error| Fault::corrupt(error.to_string()))?;
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
            holder: None,
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
