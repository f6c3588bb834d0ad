//! Submitted runs, and claims: each a single statement.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use waypost::id::RunId;
use waypost::lock::Holder;
use waypost::store::{BLOB_CHUNK_BYTES, FILES_BLOB, Job, QueuedJob, STEP_NEED};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::schema::VERSION;
use crate::database::statement::Statement;
use crate::database::values::{count, int, main_key, time_text};
use crate::tables::lease::{with_claimable, with_lease};
use crate::tables::runs::holder_text;

/// Formats needs for comparison: one a line.
pub(super) fn needs_text(needs: &BTreeSet<String>) -> String {
    needs.iter().map(|need| need.replace('\0', "\u{fffd}")).collect::<Vec<_>>().join("\n")
}

pub(super) fn needs_of(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// Adds the place of a run in the queue to a statement: priority, needs, the time of the first claim, and the files.
pub(crate) fn with_place(statement: Statement, job: &Job) -> Statement {
    let not_before = job.not_before.map(time_text);
    let chunks = job.files.chunks(BLOB_CHUNK_BYTES);
    let offsets = (0..chunks.len()).map(|index| Some(int((index * BLOB_CHUNK_BYTES) as u64))).collect();
    statement
        .int(i64::from(job.priority))
        .text(needs_text(&job.needs))
        .maybe_text(not_before)
        .text(FILES_BLOB)
        .ints(offsets)
        .bytes_list(chunks.map(|chunk| Some(chunk.to_vec())).collect())
}

/// Makes an interrupted run without a holder ready; a run that was not submitted gets the place of `job`.
pub(crate) async fn requeue(database: &Database, run: &RunId, job: Option<&Job>) -> Result<(), Failure> {
    const REQUEUE: &str = "WITH added AS (
            INSERT INTO waypost.jobs (run, priority, needs)
            SELECT r.id, $3, $4 FROM waypost.runs r WHERE r.name = $1 AND $4 IS NOT NULL
            ON CONFLICT (run) DO NOTHING RETURNING run, priority),
        places AS (
            SELECT run, priority FROM added UNION ALL
            SELECT j.run, j.priority FROM waypost.runs r JOIN waypost.jobs j ON j.run = r.id WHERE r.name = $1),
        freed AS (
            UPDATE waypost.scopes m SET status = 'queued' FROM places p
            WHERE m.run = p.run AND m.key = $2 AND NOT m.held
                AND m.status IN ('interrupted', 'running', 'queued')
            RETURNING m.id, m.run, p.priority)
        INSERT INTO waypost.ready (scope, run, priority) SELECT id, run, priority FROM freed
        ON CONFLICT (scope) DO NOTHING";
    let requeue = Statement::new(REQUEUE)
        .text(run.as_str())
        .bytes(main_key())
        .int(job.map(|job| i64::from(job.priority)))
        .maybe_text(job.map(|job| needs_text(&job.needs)));
    database.run(&requeue).await.map(drop)
}

/// Makes a released run ready after a pause, and records what its worker lacked: since the first claim without a later
/// record.
pub(crate) async fn defer(
    database: &Database,
    run: &RunId,
    missing: &str,
    pause: Duration,
) -> Result<(), Failure> {
    const DEFER: &str = "WITH released AS (
            SELECT m.id, m.run, m.updated_at::timestamptz AS recorded FROM waypost.runs r
            JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
            WHERE r.name = $1 AND NOT m.held AND (m.status = 'interrupted' OR {CLAIMABLE})
            FOR NO KEY UPDATE OF m),
        queued AS (
            UPDATE waypost.scopes m SET status = 'queued' FROM released f
            WHERE m.id = f.id AND m.status IN ('interrupted', 'running')),
        reported AS (
            UPDATE waypost.jobs j SET missing = $3,
                since = CASE WHEN j.since > f.recorded THEN j.since ELSE clock_timestamp() END
            FROM released f WHERE j.run = f.run RETURNING f.id, j.run, j.priority)
        INSERT INTO waypost.ready (scope, run, priority, not_before)
        SELECT id, run, priority, clock_timestamp() + $4 * interval '1 ms' FROM reported
        ON CONFLICT (scope) DO NOTHING";
    let defer = Statement::new(with_claimable(DEFER))
        .text(run.as_str())
        .bytes(main_key())
        .text(missing.replace('\0', "\u{fffd}"))
        .int(int(pause.as_millis() as u64));
    database.run(&defer).await.map(drop)
}

/// Returns the state of a run in the queue.
pub(crate) async fn job(database: &Database, run: &RunId) -> Result<Option<QueuedJob>, Failure> {
    const JOB: &str = "SELECT j.priority, j.needs, (extract(epoch FROM coalesce(q.not_before, j.not_before)) * 1000000)::bigint,
            m.id IS NOT NULL, j.missing, (extract(epoch FROM j.since) * 1000000)::bigint
        FROM waypost.runs r JOIN waypost.jobs j ON j.run = r.id LEFT JOIN waypost.ready q ON q.run = r.id
        LEFT JOIN waypost.scopes m ON m.id = q.scope AND {CLAIMABLE}
        WHERE r.name = $1";
    let answer = database.run(&Statement::new(with_claimable(JOB)).text(run.as_str())).await?;
    let Some(row) = answer.rows.first() else { return Ok(None) };
    let time = |at: usize| {
        let micros: Option<i64> = row.get(at);
        micros.and_then(|micros| Timestamp::from_microsecond(micros).ok())
    };
    let job = Job {
        priority: i32::try_from(row.get::<_, i64>(0)).unwrap_or_default(),
        not_before: time(2),
        needs: needs_of(row.get(1)).into_iter().filter(|need| !need.starts_with(STEP_NEED)).collect(),
        files: Vec::new(),
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

/// Records what a worker lacks for ready runs with these needs, unless a worker lacked less before.
pub(crate) async fn report_missing(
    database: &Database,
    needs: &BTreeSet<String>,
    missing: &str,
) -> Result<(), Failure> {
    const REPORT: &str = "UPDATE waypost.jobs j SET missing = $2,
            since = CASE WHEN j.missing IS NULL THEN clock_timestamp() ELSE j.since END FROM waypost.ready q
        WHERE q.run = j.run AND j.needs = $1 AND (j.missing IS NULL OR length(j.missing) > length($2))";
    database.run(&Statement::new(REPORT).text(needs_text(needs)).text(missing)).await.map(drop)
}

/// Makes the submitted runs of ended leases ready, and removes late tasks, and the rows of ended runs. The leases stay: a
/// late result before the claim counts.
pub(crate) async fn expire(database: &Database) -> Result<(), Failure> {
    const EXPIRE: &str = "WITH late AS (DELETE FROM waypost.tasks t USING waypost.scopes m
            WHERE m.run = t.run AND m.key = $1
                AND (t.until <= statement_timestamp() OR t.token > 0 AND NOT m.open)),
        ended AS (DELETE FROM waypost.ready q USING waypost.scopes m WHERE m.id = q.scope AND NOT m.open)
        INSERT INTO waypost.ready (scope, run, priority)
        SELECT m.id, m.run, j.priority FROM waypost.scopes m JOIN waypost.jobs j ON j.run = m.run
        WHERE m.held AND m.key = $1 AND NOT {HELD} AND NOT EXISTS (SELECT 1 FROM waypost.ready q WHERE q.scope = m.id)
        ON CONFLICT (scope) DO NOTHING";
    database.run(&Statement::new(with_lease(EXPIRE)).bytes(main_key())).await.map(drop)
}

/// Claims ready runs for a worker: locks the first rows in order without a wait, deletes them, and takes their leases.
///
/// The comparison of the token excludes a lease that another process took in between. After the loss of a
/// lease by a living worker, the claim is that of a returned run: no process was killed, and no step was cut.
const CLAIM: &str = "WITH picked AS MATERIALIZED (
        SELECT q.scope, m.token FROM waypost.ready q JOIN waypost.jobs j ON j.run = q.run
        JOIN waypost.scopes m ON m.id = q.scope
        WHERE coalesce(q.not_before <= clock_timestamp(), true) AND j.needs = ANY($1) AND NOT {HELD}
            AND (SELECT version FROM waypost.version) = $5
        ORDER BY q.priority DESC, q.rank LIMIT $2 FOR UPDATE OF q SKIP LOCKED),
    taken AS (
        DELETE FROM waypost.ready q USING picked p WHERE q.scope = p.scope RETURNING q.scope, p.token),
    claimed AS (
        UPDATE waypost.scopes m SET token = m.token + 1, held = true, holder = $3, worker = $4,
            status = CASE WHEN m.status = 'running'
                AND EXISTS (SELECT 1 FROM waypost.workers w WHERE w.id = m.worker AND {LOST})
                THEN 'queued' ELSE m.status END
        FROM taken t
        WHERE m.id = t.scope AND m.token = t.token AND {CLAIMABLE}
        RETURNING m.run, m.token),
    cleared AS (
        UPDATE waypost.jobs j SET missing = NULL, needs = array_to_string(ARRAY(
            SELECT need FROM unnest(string_to_array(j.needs, E'\\n')) need WHERE need NOT LIKE 'step:%'), E'\\n')
        FROM claimed c WHERE j.run = c.run AND j.missing IS NOT NULL)
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
    let statement = Statement::new(with_claimable(CLAIM))
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

/// Returns the age of the oldest ready run, counted from `not_before` for a delayed run.
pub(crate) async fn oldest(database: &Database) -> Result<Duration, Failure> {
    const OLDEST: &str = "SELECT (extract(epoch FROM clock_timestamp() - min(greatest(q.rank, q.not_before)))
            * 1000)::bigint
        FROM waypost.ready q JOIN waypost.scopes m ON m.id = q.scope
        WHERE coalesce(q.not_before <= clock_timestamp(), true) AND {CLAIMABLE}";
    let answer = database.run(&Statement::new(with_claimable(OLDEST))).await?;
    let millis: Option<i64> = answer.row()?.get(0);
    Ok(Duration::from_millis(millis.map_or(0, count)))
}

/// Returns the number of ready runs.
pub(crate) async fn depth(database: &Database) -> Result<u64, Failure> {
    const DEPTH: &str = "SELECT count(*) FROM waypost.ready q JOIN waypost.scopes m ON m.id = q.scope
        WHERE {CLAIMABLE}";
    let answer = database.run(&Statement::new(with_claimable(DEPTH))).await?;
    Ok(count(answer.row()?.get(0)))
}

#[cfg(test)]
mod tests {
    use tokio_postgres::{Client, NoTls};
    use waypost_testing::contract::block_on;
    use waypost_testing::postgres::{USER, cluster};
    use waypost_testing::records::holder;

    use super::*;
    use crate::database::schema;
    use crate::database::settings::{PostgresOptions, Settings};

    /// Two ready runs, as rows.
    const RUNS: &str = "INSERT INTO waypost.runs (name, workflow, labels, created_at)
            VALUES ('r-1', 'w', '{}', ''), ('r-2', 'w', '{}', '');
        INSERT INTO waypost.scopes (run, key, path, open, newest, bodies, records, bytes, status)
            SELECT id, '\\x00', 'main', true, 0, 0, 0, 0, 'queued' FROM waypost.runs ORDER BY id;
        INSERT INTO waypost.jobs (run, priority, needs) SELECT id, 0, '' FROM waypost.runs;
        INSERT INTO waypost.ready (scope, run, priority) SELECT id, run, 0 FROM waypost.scopes ORDER BY id;
        INSERT INTO waypost.workers (holder, lease_ms, until)
            VALUES ('{}', 60000, clock_timestamp() + interval '1 min')";

    async fn site(name: &str) -> (Database, Client) {
        cluster().database(name, "SELECT 1");
        let url = cluster().connection(USER, name);
        let database = Database::new(Settings::parse(&url).unwrap(), PostgresOptions::default());
        schema::init(&database).await.unwrap();
        let (other, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(async { drop(connection.await) });
        other.batch_execute(RUNS).await.unwrap();
        (database, other)
    }

    /// Claims a run by a text of the statement.
    async fn claimed(database: &Database, text: &str) -> Vec<String> {
        let statement = Statement::new(with_claimable(text))
            .texts(vec![String::new()])
            .int(1)
            .text(holder_text(&holder("worker")))
            .int(1)
            .int(i64::from(VERSION));
        database.run(&statement).await.unwrap().rows.iter().map(|row| row.get(0)).collect()
    }

    /// Claims a run while another transaction holds rows of `r-1`, and ends after the begin of the claim. Returns the
    /// claimed runs, and whether the claim waited for the end.
    async fn race(name: &str, begin: &str, text: &str) -> (Vec<String>, bool) {
        let (database, other) = site(name).await;
        other.batch_execute(&format!("BEGIN; {begin}")).await.unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        let end = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            other.batch_execute("COMMIT").await.unwrap();
        };
        let claim = async {
            let claimed = claimed(&database, text).await;
            (claimed, ended.load(std::sync::atomic::Ordering::Relaxed))
        };
        tokio::join!(claim, end).0
    }

    #[test]
    fn a_claim_passes_over_the_claim_of_another_worker() {
        let claim = "DELETE FROM waypost.ready WHERE scope = (SELECT min(scope) FROM waypost.ready)";
        block_on(async {
            assert_eq!(race("skipped", claim, CLAIM).await, (vec!["r-2".to_owned()], false));
            // A negative control: without SKIP LOCKED, the claim waits for the other.
            let waits = CLAIM.replace(" SKIP LOCKED", "");
            assert!(race("waited", claim, &waits).await.1);
        });
    }

    /// Returns the pages that a claim reads.
    async fn pages_of_claim(database: &Database) -> u64 {
        let statement = Statement::new(format!("EXPLAIN (ANALYZE, BUFFERS) {}", with_claimable(CLAIM)))
            .texts(vec![String::new()])
            .int(1)
            .text(holder_text(&holder("worker")))
            .int(1)
            .int(i64::from(VERSION));
        let answer = database.run(&statement).await.unwrap();
        let mut lines = answer.rows.iter().map(|row| row.get::<_, String>(0));
        let line = lines.find(|line| line.trim().starts_with("Buffers: ")).unwrap();
        let count = |word: &str| word.split_once('=').and_then(|(_, count)| count.parse::<u64>().ok());
        line.split(' ')
            .filter(|word| word.starts_with("hit=") || word.starts_with("read="))
            .filter_map(count)
            .sum()
    }

    /// No vacuum removes the rows of past claims while a dump or a forgotten session holds an old snapshot.
    #[test]
    fn an_old_snapshot_stops_no_claim() {
        const CLAIMS: u64 = 1_000;
        const RETURN: &str = "UPDATE waypost.scopes SET held = false, status = 'queued';
            INSERT INTO waypost.ready (scope, run, priority) SELECT id, run, 0 FROM waypost.scopes
            ON CONFLICT (scope) DO NOTHING";
        block_on(async {
            let (database, other) = site("old_snapshot").await;
            let (old, connection) =
                tokio_postgres::connect(&cluster().connection(USER, "old_snapshot"), NoTls).await.unwrap();
            tokio::spawn(async { drop(connection.await) });
            let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM waypost.ready";
            old.batch_execute(begin).await.unwrap();

            for _ in 0..CLAIMS {
                assert_eq!(claimed(&database, CLAIM).await.len(), 1);
                other.batch_execute(RETURN).await.unwrap();
            }
            let under = pages_of_claim(&database).await;
            other.batch_execute(RETURN).await.unwrap();
            old.batch_execute("COMMIT").await.unwrap();
            other.batch_execute("VACUUM waypost.ready, waypost.scopes").await.unwrap();
            let after = pages_of_claim(&database).await;

            assert!(under < 4 * CLAIMS, "few pages for each past claim: {under}");
            assert!(after < 100, "{after}");
        });
    }

    #[test]
    fn a_claim_takes_no_lease_that_was_taken_meanwhile() {
        let resume = "UPDATE waypost.scopes SET token = token + 1, held = true, worker = 1
            WHERE id = (SELECT min(id) FROM waypost.scopes)";
        block_on(async {
            assert_eq!(race("fenced_claim", resume, CLAIM).await.0, [""; 0]);
            // A negative control: without the token, the run of another process is stolen.
            let steals = CLAIM.replace("AND m.token = t.token", "");
            assert_eq!(race("stolen_claim", resume, &steals).await.0, ["r-1"]);
        });
    }

    /// A start of the server after the end of a lease: its worker could not renew it, and lives.
    #[test]
    fn a_server_that_was_away_cuts_no_step() {
        block_on(async {
            for (name, worker, expect) in [
                ("away", "until = pg_postmaster_start_time() - interval '1 s', lease_ms = 1", "queued"),
                ("buried", "until = '-infinity', lease_ms = 0", "running"),
                ("late", "until = clock_timestamp() - interval '1 ms', lease_ms = 1", "running"),
            ] {
                let (database, other) = site(name).await;
                let held = "UPDATE waypost.scopes SET held = true, worker = 1, status = 'running'";
                other.batch_execute(&format!("{held}; UPDATE waypost.workers SET {worker}")).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;

                assert_eq!(claimed(&database, CLAIM).await, ["r-1"]);

                let row = other.query_one("SELECT status FROM waypost.scopes ORDER BY id LIMIT 1", &[]).await;
                assert_eq!(row.unwrap().get::<_, &str>(0), expect, "{name}");
            }
        });
    }

    #[test]
    fn the_clock_of_the_server_ends_a_lease() {
        let fast =
            |text: &str| with_claimable(text).replace("statement_timestamp()", "now() + interval '1 h'");
        block_on(async {
            let (database, other) = site("clocks").await;
            let held = "UPDATE waypost.scopes SET held = true, worker = 1, status = 'running'";
            other.batch_execute(held).await.unwrap();

            assert_eq!(claimed(&database, CLAIM).await, [""; 0]);
            // A negative control: the clock of a worker may be fast.
            assert_eq!(claimed(&database, &fast(CLAIM)).await, ["r-1"]);
        });
    }
}
