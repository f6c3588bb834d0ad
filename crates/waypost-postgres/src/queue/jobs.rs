//! Submitted runs, and claims: each a single statement.

use std::collections::BTreeSet;

use jiff::Timestamp;
use waypost::id::RunId;
use waypost::lock::Holder;
use waypost::store::{Job, QueuedJob, StoreError};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::schema::VERSION;
use crate::database::statement::Statement;
use crate::database::values::{count, int, main_key, time_text};
use crate::tables::lease::with_lease;
use crate::tables::runs::holder_text;

/// Formats needs for comparison: one a line.
fn needs_text(needs: &BTreeSet<String>) -> String {
    needs.iter().map(|need| need.replace('\0', "\u{fffd}")).collect::<Vec<_>>().join("\n")
}

fn needs_of(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// Adds a run to the queue.
pub(crate) async fn submit(database: &Database, run: &RunId, job: &Job) -> Result<(), Failure> {
    const SUBMIT: &str = "WITH run AS (
            SELECT r.id, m.id AS scope FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
            WHERE r.name = $1),
        job AS (
            INSERT INTO waypost.jobs (run, priority, needs, not_before)
            SELECT id, $3, $4, $5::timestamptz FROM run ON CONFLICT (run) DO NOTHING RETURNING run),
        ready AS (
            INSERT INTO waypost.ready (scope, run, priority, not_before)
            SELECT run.scope, run.id, $3, $5::timestamptz FROM run JOIN job ON job.run = run.id)
        SELECT count(*) FROM run";
    let submit = Statement::new(SUBMIT)
        .text(run.as_str())
        .bytes(main_key())
        .int(i64::from(job.priority))
        .text(needs_text(&job.needs))
        .maybe_text(job.not_before.map(time_text));
    match database.run(&submit).await?.row()?.get::<_, i64>(0) {
        0 => Err(StoreError::no_run(&database.name, run).into()),
        _ => Ok(()),
    }
}

/// Makes an interrupted run without a holder ready.
pub(crate) async fn requeue(database: &Database, run: &RunId) -> Result<(), Failure> {
    const REQUEUE: &str = "WITH freed AS (
            UPDATE waypost.scopes m SET status = 'queued' FROM waypost.runs r JOIN waypost.jobs j ON j.run = r.id
            WHERE r.name = $1 AND m.run = r.id AND m.key = $2 AND NOT m.held
                AND m.status IN ('interrupted', 'running', 'queued')
            RETURNING m.id, m.run, j.priority)
        INSERT INTO waypost.ready (scope, run, priority) SELECT id, run, priority FROM freed
        ON CONFLICT (scope) DO NOTHING";
    database.run(&Statement::new(REQUEUE).text(run.as_str()).bytes(main_key())).await.map(drop)
}

/// Returns the state of a run in the queue.
pub(crate) async fn job(database: &Database, run: &RunId) -> Result<Option<QueuedJob>, Failure> {
    const JOB: &str = "SELECT j.priority, j.needs, (extract(epoch FROM coalesce(q.not_before, j.not_before)) * 1000000)::bigint,
            q.scope IS NOT NULL, j.missing, (extract(epoch FROM j.since) * 1000000)::bigint
        FROM waypost.runs r JOIN waypost.jobs j ON j.run = r.id LEFT JOIN waypost.ready q ON q.run = r.id
        WHERE r.name = $1";
    let answer = database.run(&Statement::new(JOB).text(run.as_str())).await?;
    let Some(row) = answer.rows.first() else { return Ok(None) };
    let time = |at: usize| {
        let micros: Option<i64> = row.get(at);
        micros.and_then(|micros| Timestamp::from_microsecond(micros).ok())
    };
    let job = Job {
        priority: i32::try_from(row.get::<_, i64>(0)).unwrap_or_default(),
        not_before: time(2),
        needs: needs_of(row.get(1)),
    };
    let missing = row.get::<_, Option<String>>(4).zip(time(5));
    Ok(Some(QueuedJob { job, is_ready: row.get(3), missing }))
}

/// Returns the unknown sets of needs of ready runs.
pub(crate) async fn needs(
    database: &Database,
    known: &BTreeSet<BTreeSet<String>>,
) -> Result<Vec<BTreeSet<String>>, Failure> {
    const NEEDS: &str = "SELECT DISTINCT j.needs FROM waypost.ready q JOIN waypost.jobs j ON j.run = q.run
        WHERE NOT j.needs = ANY($1)";
    let needs = Statement::new(NEEDS).texts(known.iter().map(needs_text).collect());
    Ok(database.run(&needs).await?.rows.iter().map(|row| needs_of(row.get(0))).collect())
}

/// Records what a worker lacks for ready runs with these needs, unless a worker lacked something before.
pub(crate) async fn report_missing(
    database: &Database,
    needs: &BTreeSet<String>,
    missing: &str,
) -> Result<(), Failure> {
    const REPORT: &str =
        "UPDATE waypost.jobs j SET missing = $2, since = clock_timestamp() FROM waypost.ready q
        WHERE q.run = j.run AND j.needs = $1 AND j.missing IS NULL";
    database.run(&Statement::new(REPORT).text(needs_text(needs)).text(missing)).await.map(drop)
}

/// Makes the submitted runs of ended leases ready. Their leases stay: a late result before the claim counts.
pub(crate) async fn expire(database: &Database) -> Result<(), Failure> {
    const EXPIRE: &str = "INSERT INTO waypost.ready (scope, run, priority)
        SELECT m.id, m.run, j.priority FROM waypost.scopes m JOIN waypost.jobs j ON j.run = m.run
        WHERE m.held AND m.key = $1 AND NOT {HELD} AND NOT EXISTS (SELECT 1 FROM waypost.ready q WHERE q.scope = m.id)
        ON CONFLICT (scope) DO NOTHING";
    database.run(&Statement::new(with_lease(EXPIRE)).bytes(main_key())).await.map(drop)
}

/// Claims ready runs for a worker: locks the first rows in order without a wait, deletes them, and takes their leases.
///
/// The comparison of the token excludes a lease that another process took in between.
const CLAIM: &str = "WITH picked AS MATERIALIZED (
        SELECT q.scope, m.token FROM waypost.ready q JOIN waypost.jobs j ON j.run = q.run
        JOIN waypost.scopes m ON m.id = q.scope
        WHERE coalesce(q.not_before <= clock_timestamp(), true) AND j.needs = ANY($1) AND NOT {HELD}
            AND (SELECT version FROM waypost.version) = $5
        ORDER BY q.priority DESC, q.rank LIMIT $2 FOR UPDATE OF q SKIP LOCKED),
    taken AS (
        DELETE FROM waypost.ready q USING picked p WHERE q.scope = p.scope RETURNING q.scope, p.token),
    claimed AS (
        UPDATE waypost.scopes m SET token = m.token + 1, held = true, holder = $3, worker = $4 FROM taken t
        WHERE m.id = t.scope AND m.token = t.token AND m.status IN ('queued', 'waiting', 'running')
        RETURNING m.run, m.token)
    SELECT r.name, c.token FROM claimed c JOIN waypost.runs r ON r.id = c.run";

/// The claim of a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub(crate) holder: &'a Holder,
    pub(crate) worker: i64,
    pub(crate) served: &'a BTreeSet<BTreeSet<String>>,
    pub(crate) count: usize,
}

/// Claims ready runs; returns names and tokens.
///
/// After a lost answer, the runs of the first attempt are among the leases of the worker.
pub(crate) async fn claim(database: &Database, claim: Claim<'_>) -> Result<Vec<(RunId, u64)>, Failure> {
    const HELD: &str = "SELECT r.name, m.token FROM waypost.scopes m JOIN waypost.runs r ON r.id = m.run
        WHERE m.worker = $1 AND m.held AND m.key = $2";
    let statement = Statement::new(with_lease(CLAIM))
        .texts(claim.served.iter().map(needs_text).collect())
        .int(int(claim.count as u64))
        .text(holder_text(claim.holder))
        .int(claim.worker)
        .int(i64::from(VERSION));
    let mut answer = database.run(&statement).await?;
    if answer.repeated {
        answer = database.run(&Statement::new(HELD).int(claim.worker).bytes(main_key())).await?;
    }
    let named = |row: &tokio_postgres::Row| Some((RunId::new(row.get(0)).ok()?, count(row.get(1))));
    Ok(answer.rows.iter().filter_map(named).collect())
}

/// Returns the number of ready runs.
pub(crate) async fn depth(database: &Database) -> Result<u64, Failure> {
    let answer = database.run(&Statement::new("SELECT count(*) FROM waypost.ready")).await?;
    Ok(count(answer.row()?.get(0)))
}
