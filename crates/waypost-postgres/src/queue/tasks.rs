//! Tasks: steps of a run that workers execute for its holder. Each call is a single statement.

use std::collections::BTreeSet;
use std::time::Duration;

use waypost::id::RunId;
use waypost::store::{Lease, StoreError, Submitted, Task, TaskEntry, TaskState, TaskStop, TasksOf, UNLEASED};

use super::jobs::{Claim, needs_of, needs_text};
use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::schema::VERSION;
use crate::database::statement::Statement;
use crate::database::values::{count, int, main_key};
use crate::tables::lease::{LeaseRow, with_lease};
use crate::tables::runs::{holder_of, holder_text};

/// Whether the worker of task `t` lives.
const ALIVE: &str = "EXISTS (SELECT 1 FROM waypost.workers w WHERE w.id = t.worker
    AND greatest(w.until, pg_postmaster_start_time() + w.lease_ms * interval '1 ms') > statement_timestamp())";
/// Whether task `t` is in time.
const TIMELY: &str = "coalesce(t.until > statement_timestamp(), true)";
/// Whether a worker may claim task `t`.
const CLAIMABLE: &str = "t.result IS NULL AND t.cancelled IS NULL AND {TIMELY}
    AND (t.worker IS NULL OR t.losses < t.losses_max AND NOT {ALIVE})";

fn with_task(text: &str) -> String {
    let text = text.replace("{CLAIMABLE}", CLAIMABLE).replace("{TIMELY}", TIMELY).replace("{ALIVE}", ALIVE);
    with_lease(&text)
}

/// Adds a task, or adopts the same task. The lock of the lease orders the task before the next lease.
pub(crate) async fn submit(database: &Database, lease: &Lease, task: &Task) -> Result<Submitted, Failure> {
    const SUBMIT: &str = "WITH locked AS MATERIALIZED (
            SELECT m.run FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
            WHERE r.name = $1 AND m.token = $3 AND m.held FOR SHARE OF m),
        added AS (
            INSERT INTO waypost.tasks AS t (run, token, key, priority, needs, losses_max, request, definition, step)
            SELECT l.run, $3, $4, coalesce(j.priority, 0), $5, $6, $7, $8, $9
            FROM locked l LEFT JOIN waypost.jobs j ON j.run = l.run
            ON CONFLICT (run, key) DO UPDATE SET token = excluded.token
                WHERE t.definition = excluded.definition AND t.cancelled IS NULL
            RETURNING id)
        SELECT (SELECT count(*) FROM locked), (SELECT count(*) FROM added)";
    let (run, token) = (lease.run(), lease.token());
    let submit = Statement::new(SUBMIT)
        .text(run.as_str())
        .bytes(main_key())
        .int(int(token))
        .text(&task.key)
        .text(needs_text(&task.needs))
        .int(i64::from(task.losses_max))
        .text(&task.request)
        .text(&task.definition)
        .text(&task.step);
    let answer = database.run(&submit).await?;
    let row = answer.row()?;
    match (row.get::<_, i64>(0), row.get::<_, i64>(1)) {
        (0, _) => Err(LeaseRow::get(database, run).await?.fenced(run, token).into()),
        (_, 0) => Ok(Submitted::Other),
        _ => Ok(Submitted::Done),
    }
}

/// Adds tasks without a lease, which end after some time: their process may be gone.
pub(crate) async fn submit_unleased(
    database: &Database,
    run: &RunId,
    (tasks, time): (&[Task], Duration),
) -> Result<(), Failure> {
    const SUBMIT: &str = "WITH run AS (SELECT id FROM waypost.runs WHERE name = $1),
        added AS (
            INSERT INTO waypost.tasks (run, token, key, priority, needs, losses_max, request, definition, step, until)
            SELECT run.id, $2, t.key, coalesce(j.priority, 0), t.needs, t.losses_max, t.request, t.definition, t.step,
                clock_timestamp() + $9 * interval '1 ms'
            FROM run LEFT JOIN waypost.jobs j ON j.run = run.id,
                unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[])
                    AS t (key, needs, request, definition, step, losses_max)
            ON CONFLICT (run, key) DO NOTHING)
        SELECT 1 FROM run";
    let texts = |text: fn(&Task) -> String| tasks.iter().map(text).collect();
    let submit = Statement::new(SUBMIT)
        .text(run.as_str())
        .int(int(UNLEASED))
        .texts(texts(|task| task.key.clone()))
        .texts(texts(|task| needs_text(&task.needs)))
        .texts(texts(|task| task.request.clone()))
        .texts(texts(|task| task.definition.clone()))
        .texts(texts(|task| task.step.clone()))
        .ints(tasks.iter().map(|task| Some(i64::from(task.losses_max))).collect())
        .int(int(time.as_millis() as u64));
    match database.run(&submit).await?.rows.is_empty() {
        true => Err(StoreError::no_run(&database.name, run).into()),
        false => Ok(()),
    }
}

/// Returns the tasks of a run.
pub(crate) async fn tasks(database: &Database, run: &RunId) -> Result<Vec<TaskEntry>, Failure> {
    const TASKS: &str = "SELECT t.key, t.result, {CLAIMABLE} OR t.worker IS NULL, t.missing,
            CASE WHEN {ALIVE} THEN t.holder END, t.step
        FROM waypost.runs r JOIN waypost.tasks t ON t.run = r.id WHERE r.name = $1 AND {TIMELY}
        ORDER BY t.id";
    let answer = database.run(&Statement::new(with_task(TASKS)).text(run.as_str())).await?;
    let state = |row: &tokio_postgres::Row| match (row.get(1), row.get::<_, Option<&str>>(4)) {
        (Some(result), _) => TaskState::Ended(result),
        _ if row.get(2) => TaskState::Waiting(row.get(3)),
        (None, holder) => match holder.and_then(|text| holder_of(text).ok()) {
            Some(holder) => TaskState::Claimed(holder),
            None => TaskState::Lost,
        },
    };
    let entry =
        |row: &tokio_postgres::Row| TaskEntry { key: row.get(0), step: row.get(5), state: state(row) };
    Ok(answer.rows.iter().map(entry).collect())
}

/// Removes tasks of the lease in force, or verifications.
pub(crate) async fn remove(
    database: &Database,
    run: &RunId,
    token: u64,
    keys: Vec<String>,
) -> Result<(), Failure> {
    const REMOVE: &str = "DELETE FROM waypost.tasks t
        USING waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
        WHERE r.name = $1 AND t.run = r.id AND t.token = $3 AND ($3 = $4 OR m.token = $3) AND t.key = ANY($5)";
    let remove = Statement::new(REMOVE)
        .text(run.as_str())
        .bytes(main_key())
        .int(int(token))
        .int(int(UNLEASED))
        .texts(keys);
    database.run(&remove).await.map(drop)
}

/// Removes tasks and changes the needs of their run, unless a worker has claimed one of the tasks.
pub(crate) async fn withdraw(
    database: &Database,
    run: &RunId,
    keys: Vec<String>,
    (needs, missing): (&BTreeSet<String>, &str),
) -> Result<bool, Failure> {
    // The lock returns the newest rows: no claim is in between.
    const WITHDRAW: &str = "WITH asked AS MATERIALIZED (
            SELECT t.id, t.run, t.worker FROM waypost.runs r JOIN waypost.tasks t ON t.run = r.id
            WHERE r.name = $1 AND t.key = ANY($2) FOR UPDATE OF t),
        removed AS (
            DELETE FROM waypost.tasks t USING asked a
            WHERE t.id = a.id AND NOT EXISTS (SELECT 1 FROM asked WHERE worker IS NOT NULL) RETURNING a.run)
        UPDATE waypost.jobs j SET needs = $3, missing = $4, since = clock_timestamp()
        WHERE j.run IN (SELECT run FROM removed) RETURNING j.run";
    let withdraw = Statement::new(WITHDRAW)
        .text(run.as_str())
        .texts(keys)
        .text(needs_text(needs))
        .text(missing.replace('\0', "\u{fffd}"));
    Ok(!database.run(&withdraw).await?.rows.is_empty())
}

/// Removes a waiting task, and requests the end of a claimed one.
pub(crate) async fn cancel(
    database: &Database,
    run: &RunId,
    key: &str,
    stop: TaskStop,
) -> Result<(), Failure> {
    const CANCEL: &str = "WITH removed AS (
            DELETE FROM waypost.tasks t USING waypost.runs r
            WHERE r.name = $1 AND t.run = r.id AND t.key = $2 AND t.worker IS NULL)
        UPDATE waypost.tasks t SET cancelled = greatest(t.cancelled, $3) FROM waypost.runs r
        WHERE r.name = $1 AND t.run = r.id AND t.key = $2 AND t.worker IS NOT NULL";
    let cancel = Statement::new(CANCEL).text(run.as_str()).text(key).int(stop_number(stop));
    database.run(&cancel).await.map(drop)
}

/// Cancels the tasks of earlier leases. Returns the number that living workers still execute.
pub(crate) async fn clear(database: &Database, lease: &Lease) -> Result<u64, Failure> {
    const CLEAR: &str = "WITH earlier AS MATERIALIZED (
            SELECT t.id, t.result IS NULL AND {ALIVE} AS lives
            FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $4 AND m.token = $2
                JOIN waypost.tasks t ON t.run = r.id
            WHERE r.name = $1 AND t.token < $2 FOR UPDATE OF t),
        removed AS (
            DELETE FROM waypost.tasks t USING earlier e WHERE t.id = e.id AND NOT e.lives),
        cancelled AS (
            UPDATE waypost.tasks t SET cancelled = $3 FROM earlier e WHERE t.id = e.id AND e.lives AND t.losses_max > 0)
        SELECT count(*) FROM earlier WHERE lives";
    let clear = Statement::new(with_task(CLEAR))
        .text(lease.run().as_str())
        .int(int(lease.token()))
        .int(stop_number(TaskStop::Kill))
        .bytes(main_key());
    Ok(count(database.run(&clear).await?.row()?.get(0)))
}

/// Returns the unknown sets of needs of waiting tasks.
pub(crate) async fn needs(
    database: &Database,
    known: &BTreeSet<BTreeSet<String>>,
) -> Result<Vec<BTreeSet<String>>, Failure> {
    const NEEDS: &str =
        "SELECT DISTINCT t.needs FROM waypost.tasks t WHERE {CLAIMABLE} AND NOT t.needs = ANY($1)";
    let needs = Statement::new(with_task(NEEDS)).texts(known.iter().map(needs_text).collect());
    Ok(database.run(&needs).await?.rows.iter().map(|row| needs_of(row.get(0))).collect())
}

/// Records what a worker lacks for waiting tasks with these needs, unless a worker lacked less before.
pub(crate) async fn report_missing(
    database: &Database,
    needs: &BTreeSet<String>,
    missing: &str,
) -> Result<(), Failure> {
    const REPORT: &str = "UPDATE waypost.tasks t SET missing = $2
        WHERE t.needs = $1 AND t.worker IS NULL AND (t.missing IS NULL OR length(t.missing) > length($2))";
    database.run(&Statement::new(REPORT).text(needs_text(needs)).text(missing)).await.map(drop)
}

/// A task claimed by a worker.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) id: u64,
    pub(crate) run: RunId,
    pub(crate) token: u64,
    pub(crate) key: String,
    pub(crate) request: String,
    pub(crate) losses: u32,
}

/// Claims waiting tasks: of no lease, or of runs with a living holder.
///
/// A lock returns the newest row of a task, but a worker that is newer than the statement is invisible: its task would be
/// that of a lost worker. So only a task with the same worker as at the begin of the statement is claimed.
///
/// A living worker without its lease counts as lost, but the task has another try: no process was killed.
const CLAIM: &str = "WITH candidates AS MATERIALIZED (
        SELECT t.id, t.worker, t.losses FROM waypost.tasks t JOIN waypost.scopes m ON m.run = t.run AND m.key = $5
        WHERE {CLAIMABLE} AND t.needs = ANY($1) AND (t.token = 0 AND NOT $7 OR m.token = t.token AND {HELD})
            AND (NOT $7 OR m.worker = $4)
            AND (SELECT version FROM waypost.version) = $6),
    picked AS MATERIALIZED (
        SELECT t.id FROM candidates c JOIN waypost.tasks t ON t.id = c.id
        WHERE t.worker IS NOT DISTINCT FROM c.worker AND t.losses = c.losses
            AND t.result IS NULL AND t.cancelled IS NULL
        ORDER BY t.priority DESC, t.id LIMIT $2 FOR UPDATE OF t SKIP LOCKED)
    UPDATE waypost.tasks t
        SET worker = $4, holder = $3, missing = NULL, losses = t.losses + (t.worker IS NOT NULL)::int,
            losses_max = t.losses_max
                + EXISTS (SELECT 1 FROM waypost.workers w WHERE w.id = t.worker AND {LOST})::int
        FROM picked p, waypost.runs r WHERE t.id = p.id AND r.id = t.run
    RETURNING t.id, r.name, t.token, t.key, t.request, t.losses";

/// Claims waiting tasks for a worker.
///
/// After a lost answer, the tasks of the first attempt are claimed too: all tasks of the worker are returned.
pub(crate) async fn claim(
    database: &Database,
    claim: Claim<'_>,
    of: TasksOf,
) -> Result<Vec<Claimed>, Failure> {
    const OWN: &str = "SELECT t.id, r.name, t.token, t.key, t.request, t.losses
        FROM waypost.tasks t JOIN waypost.runs r ON r.id = t.run WHERE t.worker = $1 AND t.result IS NULL";
    let statement = Statement::new(with_task(CLAIM))
        .texts(claim.served.iter().map(needs_text).collect())
        .int(int(claim.count as u64))
        .text(holder_text(claim.holder))
        .int(claim.worker)
        .bytes(main_key())
        .int(i64::from(VERSION))
        .bool(of == TasksOf::OwnRuns);
    let mut answer = database.run(&statement).await?;
    if answer.repeated {
        answer = database.run(&Statement::new(OWN).int(claim.worker)).await?;
    }
    let claimed = |row: &tokio_postgres::Row| {
        let run = RunId::new(row.get(1)).ok()?;
        let (id, token) = (count(row.get(0)), count(row.get(2)));
        let losses = u32::try_from(row.get::<_, i64>(5)).unwrap_or(u32::MAX);
        Some(Claimed { id, run, token, key: row.get(3), request: row.get(4), losses })
    };
    Ok(answer.rows.iter().filter_map(claimed).collect())
}

/// Returns the tasks of these that must end: cancelled, removed, of an ended run, or claimed by another worker.
pub(crate) async fn cancelled(
    database: &Database,
    tasks: &[(u64, u32)],
) -> Result<Vec<(u64, TaskStop)>, Failure> {
    // The result of a step is useless after the end of its run.
    const STATES: &str = "SELECT t.id, t.losses,
            CASE WHEN m.open OR t.token = 0 THEN t.cancelled ELSE $3 END
        FROM waypost.tasks t JOIN waypost.scopes m ON m.run = t.run AND m.key = $2 WHERE t.id = ANY($1)";
    let ids = tasks.iter().map(|(id, _)| Some(int(*id))).collect();
    let states = Statement::new(STATES).ints(ids).bytes(main_key()).int(stop_number(TaskStop::Kill));
    let answer = database.run(&states).await?;
    let stop = |(id, losses): (u64, u32)| {
        let row = answer
            .rows
            .iter()
            .find(|row| count(row.get(0)) == id && row.get::<_, i64>(1) == i64::from(losses));
        match row.map(|row| row.get::<_, Option<i64>>(2)) {
            Some(None) => None,
            Some(Some(0)) => Some((id, TaskStop::Graceful)),
            Some(Some(_)) | None => Some((id, TaskStop::Kill)),
        }
    };
    Ok(tasks.iter().copied().filter_map(stop).collect())
}

/// Records the result of a claimed task; returns whether the claim still counts.
pub(crate) async fn finish(
    database: &Database,
    (id, losses): (u64, u32),
    result: &str,
) -> Result<bool, Failure> {
    const FINISH: &str = "UPDATE waypost.tasks SET result = $3
        WHERE id = $1 AND losses = $2 AND (result IS NULL OR result = $3) RETURNING id";
    let finish = Statement::new(FINISH).int(int(id)).int(i64::from(losses)).text(result);
    Ok(!database.run(&finish).await?.rows.is_empty())
}

fn stop_number(stop: TaskStop) -> i64 {
    match stop {
        TaskStop::Graceful => 0,
        TaskStop::Kill => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_postgres::NoTls;
    use waypost_testing::contract::block_on;
    use waypost_testing::postgres::{USER, cluster};
    use waypost_testing::records::holder;

    use super::*;
    use crate::database::schema;
    use crate::database::settings::{PostgresOptions, Settings};

    /// A held run with two waiting tasks, as rows.
    const TASKS: &str = "INSERT INTO waypost.workers (holder, lease_ms, until)
            VALUES ('{}', 60000, clock_timestamp() + interval '1 min');
        INSERT INTO waypost.runs (name, workflow, labels, created_at) VALUES ('r-1', 'w', '{}', '');
        INSERT INTO waypost.scopes (run, key, path, open, newest, bodies, records, bytes, status, held, worker, token)
            SELECT id, '\\x00', 'main', true, 0, 0, 0, 0, 'running', true, 1, 1 FROM waypost.runs;
        INSERT INTO waypost.tasks (run, token, key, priority, needs, losses_max, request, definition, step)
            SELECT r.id, 1, k, 0, '', 3, '', '', '' FROM waypost.runs r, unnest(ARRAY['a', 'b']) k";

    /// Claims while a new worker claims the first task. Returns the number of claimed tasks.
    async fn race(name: &str, text: &str) -> usize {
        cluster().database(name, "SELECT 1");
        let url = cluster().connection(USER, name);
        let database = Database::new(Settings::parse(&url).unwrap(), PostgresOptions::default());
        schema::init(&database).await.unwrap();
        let (other, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(async { drop(connection.await) });
        other.batch_execute(TASKS).await.unwrap();
        other.execute("UPDATE waypost.scopes SET key = $1", &[&main_key()]).await.unwrap();
        // The statement has begun, and picks the tasks after the pause.
        let text = text.replacen("WITH", "WITH paused AS MATERIALIZED (SELECT pg_sleep(1)),", 1);
        let text = text.replace("FROM candidates c JOIN", "FROM paused, candidates c JOIN");
        let statement = Statement::new(with_task(&text))
            .texts(vec![String::new()])
            .int(10)
            .text(holder_text(&holder("worker")))
            .int(1)
            .bytes(main_key())
            .int(i64::from(VERSION))
            .bool(false);
        let claimed_by_other = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let text = "INSERT INTO waypost.workers (holder, lease_ms, until)
                    VALUES ('{}', 60000, clock_timestamp() + interval '1 min');
                UPDATE waypost.tasks SET worker = 2 WHERE key = 'a'";
            other.batch_execute(text).await.unwrap();
        };
        tokio::join!(database.run(&statement), claimed_by_other).0.unwrap().rows.len()
    }

    #[test]
    fn a_claim_takes_no_task_of_a_new_worker() {
        block_on(async {
            assert_eq!(race("new_worker", CLAIM).await, 1);
            // A negative control: without the comparison, the task of the new worker is taken.
            let same = "t.worker IS NOT DISTINCT FROM c.worker AND t.losses = c.losses";
            assert_eq!(race("stolen_task", &CLAIM.replace(same, CLAIMABLE)).await, 2);
        });
    }
}
