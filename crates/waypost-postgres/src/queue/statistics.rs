//! Figures for an operator: the queue, the leases, the sizes of tables, and the connections of the server.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;
use waypost::lock::Holder;

use super::jobs;
use super::worker::with_ended;
use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::{count, main_key};
use crate::tables::lease::with_claimable;
use crate::tables::runs::holder_of;

/// The load of a database.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Statistics {
    /// Runs that a worker may claim now.
    pub ready: u64,
    /// The longest wait among them.
    pub oldest: Duration,
    /// Runs in the queue that no worker may claim yet.
    pub later: u64,
    /// Runs in the queue for which a worker lacked something.
    pub lacking: u64,
    /// Steps that wait for another worker than that of their run.
    pub tasks: u64,
    /// The processes with leases, and the leases without a process.
    pub holders: Vec<HolderStatistics>,
    /// The tables, largest first.
    pub tables: Vec<TableStatistics>,
    /// Connections to the server, to this database, and the most for ordinary roles.
    pub connections: Connections,
}

/// The leases of a process.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HolderStatistics {
    /// The process; `None` if its record is unreadable.
    pub holder: Option<Holder>,
    /// The end of its leases without another renewal; `None` for an ended lease.
    pub until: Option<Timestamp>,
    /// Runs under its leases.
    pub runs: u64,
    /// Steps that it executes for the runs of other workers.
    pub tasks: u64,
}

/// A table, or the partition of a month.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TableStatistics {
    /// The name without the schema.
    pub table: String,
    /// Bytes with indexes and large values.
    pub bytes: u64,
    /// Estimated rows in use.
    pub rows: u64,
    /// Estimated rows whose space is free after the next vacuum.
    pub dead_rows: u64,
    /// The last vacuum, automatic or not; `None` if the server knows of none.
    pub vacuumed_at: Option<Timestamp>,
}

/// The connections of the server.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Connections {
    /// In use, over all databases.
    pub used: u64,
    /// In use by this database.
    pub database: u64,
    /// The limit for ordinary roles.
    pub max: u64,
}

/// Reads the figures.
pub(crate) async fn read(database: &Database) -> Result<Statistics, Failure> {
    const QUEUE: &str = "SELECT
            count(*) FILTER (WHERE coalesce(q.not_before <= statement_timestamp(), true)),
            count(*) FILTER (WHERE q.not_before > statement_timestamp()),
            count(*) FILTER (WHERE j.missing IS NOT NULL),
            (SELECT count(*) FROM waypost.tasks t WHERE t.worker IS NULL AND t.result IS NULL)
        FROM waypost.ready q JOIN waypost.jobs j ON j.run = q.run
        JOIN waypost.scopes m ON m.id = q.scope AND {CLAIMABLE}";
    let queue = database.run(&Statement::new(with_claimable(QUEUE))).await?;
    let queue = queue.row()?;
    Ok(Statistics {
        ready: count(queue.get(0)),
        oldest: jobs::oldest(database).await?,
        later: count(queue.get(1)),
        lacking: count(queue.get(2)),
        tasks: count(queue.get(3)),
        holders: holders(database).await?,
        tables: tables(database).await?,
        connections: connections(database).await?,
    })
}

async fn holders(database: &Database) -> Result<Vec<HolderStatistics>, Failure> {
    // A lease without a worker was given up: its run goes to the next worker.
    const HOLDERS: &str = "WITH held AS (
            SELECT m.worker, min(m.holder) AS holder, count(*) AS runs FROM waypost.scopes m
            WHERE m.held AND m.key = $1 GROUP BY m.worker),
        tasks AS (
            SELECT t.worker, count(*) AS tasks FROM waypost.tasks t
            WHERE t.worker IS NOT NULL AND t.result IS NULL GROUP BY t.worker)
        SELECT coalesce(w.holder, h.holder), CASE WHEN NOT {ENDED} THEN (extract(epoch FROM
                greatest(w.until, pg_postmaster_start_time() + w.lease_ms * interval '1 ms')) * 1000000)::bigint END,
            coalesce(h.runs, 0), coalesce(t.tasks, 0)
        FROM waypost.workers w FULL JOIN held h ON h.worker = w.id LEFT JOIN tasks t ON t.worker = w.id
        WHERE NOT coalesce({ENDED} AND h.runs IS NULL AND t.tasks IS NULL, false) ORDER BY w.id";
    let answer = database.run(&Statement::new(with_ended(HOLDERS)).bytes(main_key())).await?;
    let holder = |row: &Row| HolderStatistics {
        holder: row.get::<_, Option<&str>>(0).and_then(|text| holder_of(text).ok()),
        until: micros(row.get(1)),
        runs: count(row.get(2)),
        tasks: count(row.get(3)),
    };
    Ok(answer.rows.iter().map(holder).collect())
}

async fn tables(database: &Database) -> Result<Vec<TableStatistics>, Failure> {
    // A table dropped in between has no size.
    const TABLES: &str = "SELECT c.relname::text, coalesce(pg_total_relation_size(c.oid), 0) AS bytes,
            coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
            (extract(epoch FROM greatest(s.last_vacuum, s.last_autovacuum)) * 1000000)::bigint
        FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
        WHERE c.relnamespace = 'waypost'::regnamespace AND c.relkind = 'r' ORDER BY bytes DESC, c.relname";
    let answer = database.run(&Statement::new(TABLES)).await?;
    let table = |row: &Row| TableStatistics {
        table: row.get(0),
        bytes: count(row.get(1)),
        rows: count(row.get(2)),
        dead_rows: count(row.get(3)),
        vacuumed_at: micros(row.get(4)),
    };
    Ok(answer.rows.iter().map(table).collect())
}

async fn connections(database: &Database) -> Result<Connections, Failure> {
    // The activity of other roles is hidden, its count is not.
    const CONNECTIONS: &str = "SELECT sum(numbackends)::bigint,
            coalesce(sum(numbackends) FILTER (WHERE datname = current_database()), 0)::bigint,
            current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
                - coalesce(current_setting('reserved_connections', true), '0')::bigint
        FROM pg_stat_database";
    let answer = database.run(&Statement::new(CONNECTIONS)).await?;
    let row = answer.row()?;
    Ok(Connections { used: count(row.get(0)), database: count(row.get(1)), max: count(row.get(2)) })
}

fn micros(value: Option<i64>) -> Option<Timestamp> {
    value.and_then(|micros| Timestamp::from_microsecond(micros).ok())
}
