//! Run records and summaries. The row of a run never changes; the row of the main scope has the summary.

use tokio_postgres::Row;
use waypost::id::{Digest, RunId, ScopePath};
use waypost::lock::Holder;
use waypost::record::{Flaw, RunStatus, SealedRun};
use waypost::store::{
    Damage, Progress, RunEntry, RunQuery, RunSummary, Runs, StoreError, Summary, UnreadableRun,
};
use waypost_codec::header::{self, RUN_BYTES_MAX};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::{count, int, main_key, time_of, time_text};
use crate::tables::lease::{HELD, UNTIL, with_lease};
use crate::tables::read::unknown_cursor;

/// Most rows read per statement, for a query with filters.
const ROWS_AT_ONCE: usize = 1_000;

/// Returns the text of a query for summaries; `$1` is the key of the main scope. The counts follow after the limit.
fn summaries(conditions: &str, limit: usize) -> String {
    let held = with_lease(HELD);
    format!(
        "SELECT q.*, c.records, c.bytes, b.bytes FROM (
             SELECT r.id, r.name, r.workflow, r.path, r.labels, r.created_at, m.updated_at, m.status, m.doubtful,
                 m.step, m.done, m.total, m.wake_at, m.lost,
                 CASE WHEN {held} THEN m.holder END AS holder,
                 (extract(epoch FROM {UNTIL}) * 1000000)::bigint AS until
             FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $1
             WHERE {conditions} ORDER BY r.id DESC LIMIT {limit}) q
         CROSS JOIN LATERAL (SELECT coalesce(sum(s.records), 0)::bigint AS records,
             coalesce(sum(s.bytes), 0)::bigint AS bytes FROM waypost.scopes s WHERE s.run = q.id) c
         CROSS JOIN LATERAL (SELECT coalesce(sum(length(d.bytes)), 0)::bigint AS bytes
             FROM (SELECT d.bytes FROM waypost.blobs d WHERE d.run = q.id
                 UNION ALL SELECT l.bytes FROM waypost.logs l
                 WHERE l.run = q.id AND l.month = left(q.created_at, 7)) d) b
         ORDER BY q.id DESC"
    )
}

/// Returns the frozen record and the summary of a run.
pub(crate) async fn run(database: &Database, run: &RunId) -> Result<RunEntry, Failure> {
    let record = frozen(database, run).await?;
    let find = Statement::new(summaries("r.name = $2", 1)).bytes(main_key()).text(run.as_str());
    let answer = database.run(&find).await?;
    let row = answer.rows.first().ok_or_else(|| StoreError::no_run(&database.name, run))?;
    let summary = summary(row).map_err(|why| StoreError::Invalid(format!("run {run}: {why}")))?;
    Ok(RunEntry { record, summary })
}

/// Returns the verified record of a run.
pub(crate) async fn frozen(database: &Database, run: &RunId) -> Result<SealedRun, Failure> {
    const FROZEN: &str = "SELECT r.id, f.digest, f.record FROM waypost.runs r
        LEFT JOIN waypost.frozen f ON f.run = r.id WHERE r.name = $1";
    let answer = database.run(&Statement::new(FROZEN).text(run.as_str())).await?;
    let row = answer.rows.first().ok_or_else(|| StoreError::no_run(&database.name, run))?;
    let opened = match (row.get::<_, Option<&[u8]>>(1), row.get::<_, Option<Vec<u8>>>(2)) {
        (Some(digest), Some(record)) => open_frozen(database, digest, record),
        _ => Err(Flaw::Missing),
    };
    opened.map_err(|flaw| {
        let place = format!("{}, table `frozen`, run {}", database.name, row.get::<_, i64>(0));
        let damage = Damage { run: run.clone(), scope: ScopePath::main(), seq: 0, place, flaw };
        StoreError::of_damage(damage, None).into()
    })
}

fn open_frozen(database: &Database, digest: &[u8], record: Vec<u8>) -> Result<SealedRun, Flaw> {
    let digest = digest.try_into().map_err(|_| Flaw::Malformed("the digest is truncated".to_owned()))?;
    let contexts = &mut database.delta_cache.compressor.contexts();
    let record = header::decode(contexts, record, RUN_BYTES_MAX).map_err(Flaw::Malformed)?;
    SealedRun::open(Digest::from_bytes(digest), record)
}

/// Returns the summaries of the matching runs, newest first.
pub(crate) async fn runs(database: &Database, query: &RunQuery) -> Result<Runs, Failure> {
    let mut before = match &query.cursor {
        Some(text) => text.parse().map_err(|_| unknown_cursor(text))?,
        None => i64::MAX,
    };
    let limit = query.limit();
    // This process applies some filters, so a page may need several statements.
    let at_once = if query.statuses.is_empty() && query.labels.is_empty() { limit + 1 } else { ROWS_AT_ONCE };
    let mut found = Runs { runs: Vec::new(), damaged: Vec::new(), next: None };
    let mut last = before;
    loop {
        let answer = database.run(&select(query, before, at_once)).await?;
        for row in &answer.rows {
            before = row.get(0);
            match summary(row) {
                Ok(summary) if !query.wants(&summary) => {}
                Ok(_) if found.runs.len() == limit => {
                    found.next = Some(last.to_string());
                    return Ok(found);
                }
                Ok(summary) => {
                    last = before;
                    found.runs.push(summary);
                }
                Err(why) => {
                    let run = RunId::new(row.get(1));
                    found.damaged.extend(run.ok().map(|run| UnreadableRun { run, why }));
                }
            }
        }
        if answer.rows.len() < at_once {
            return Ok(found);
        }
    }
}

/// Returns the statement for the next rows before an id, as far as the server can judge the filters.
fn select(query: &RunQuery, before: i64, limit: usize) -> Statement {
    let mut statement = Statement::new("").bytes(main_key()).int(before);
    let mut conditions = "r.id < $2".to_owned();
    let mut add = |statement: Statement, condition: &str| {
        let number = format!("${}", statement.count());
        conditions.push_str(" AND ");
        conditions.push_str(&condition.replace('?', &number));
        statement
    };
    if let Some(prefix) = &query.prefix {
        statement = add(statement.text(prefix.as_str()), "starts_with(r.name, ?) AND r.name >= ?");
    }
    if let Some(workflow) = &query.workflow {
        statement = add(statement.text(workflow.as_str()), "r.workflow = ?");
    }
    if let Some(path) = &query.path {
        statement = add(statement.text(path.as_str()), "r.path = ?");
    }
    if let Some(since) = query.since {
        statement = add(statement.text(time_text(since)), "m.updated_at >= ?");
    }
    if !query.statuses.is_empty() {
        // The caller judges the effect of a live holder on a status.
        let names = written_statuses(query);
        statement = add(statement.texts(names), "(m.held OR m.status = ANY(?))");
    }
    statement.sql = summaries(&conditions, limit).into();
    statement
}

/// Returns the stored statuses for the requested statuses of a run without a holder.
fn written_statuses(query: &RunQuery) -> Vec<String> {
    let mut names: Vec<_> = query.statuses.iter().map(|status| status.name().to_owned()).collect();
    if query.statuses.contains(&RunStatus::InDoubt) {
        names.push(RunStatus::Interrupted.name().to_owned());
    }
    if query.statuses.contains(&RunStatus::Interrupted) || query.statuses.contains(&RunStatus::InDoubt) {
        names.push(RunStatus::Running.name().to_owned());
    }
    names
}

/// Reads a summary.
///
/// # Errors
/// The unreadable column.
fn summary(row: &Row) -> Result<RunSummary, String> {
    let run = RunId::new(row.get(1)).map_err(|error| error.to_string())?;
    let labels: &str = row.get(4);
    let status: &str = row.get::<_, Option<&str>>(7).unwrap_or_default();
    let status = status_of(status).ok_or_else(|| format!("`{status}` is not a status"))?;
    let wake_at: Option<&str> = row.get(12);
    let summary = Summary {
        status,
        doubtful: row.get(8),
        step: row.get(9),
        progress: Progress { done: count(row.get(10)), total: count(row.get(11)) },
        wake_at: wake_at.map(time_of).transpose()?,
        lost: count(row.get(13)),
    };
    let holder: Option<&str> = row.get(14);
    let holder: Option<Holder> = holder.map(holder_of).transpose()?;
    // The lease of a dead process of this machine need not run out.
    let holder = holder.filter(|holder| !holder.is_gone());
    let until: Option<i64> = row.get::<_, Option<i64>>(15).filter(|_| holder.is_some());
    let created_at = time_of(row.get(5))?;
    Ok(RunSummary {
        run,
        workflow: row.get(2),
        path: row.get(3),
        status: RunSummary::true_status(&summary, holder.as_ref()),
        summary,
        labels: serde_json::from_str(labels)
            .map_err(|error| format!("the labels are unreadable: {error}"))?,
        created_at,
        updated_at: row.get::<_, Option<&str>>(6).map_or(Ok(created_at), time_of)?,
        checkpoints: count(row.get(16)),
        bytes: count(row.get(17)),
        blob_bytes: count(row.get(18)),
        holder,
        until: until.and_then(|until| jiff::Timestamp::from_microsecond(until).ok()),
    })
}

/// Parses a stored holder.
pub(crate) fn holder_of(text: &str) -> Result<Holder, String> {
    serde_json::from_str(text).map_err(|error| format!("the holder is unreadable: {error}"))
}

/// Formats a holder for storage.
pub(crate) fn holder_text(holder: &Holder) -> String {
    serde_json::to_string(holder).expect("a holder is plain JSON")
}

/// Returns the status with this name.
pub(crate) fn status_of(name: &str) -> Option<RunStatus> {
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

/// The columns of a summary, for a write; `None` keeps the stored columns.
pub(crate) fn with_summary(statement: Statement, summary: Option<&Summary>) -> Statement {
    let none = Summary::of_status(RunStatus::Running);
    let given = summary.unwrap_or(&none);
    statement
        .bool(summary.is_some())
        .text(given.status.name())
        .bool(given.doubtful)
        // PostgreSQL's text has no NUL.
        .maybe_text(given.step.as_ref().map(|step| step.replace('\0', "\u{fffd}")))
        .int(int(given.progress.done))
        .int(int(given.progress.total))
        .maybe_text(given.wake_at.map(time_text))
        .int(int(given.lost))
}
