//! Tables and schema versions. Only [`init`] changes the schema, in one transaction under an advisory lock.
//!
//! Columns are described in docs/concepts/format-postgres.md.

use tokio_postgres::Client;
use waypost::store::StoreError;

use crate::database::connect::Database;
use crate::database::error::{Failure, no_schema};
use crate::database::statement::Statement;
use crate::database::values::main_key;

/// The version of this crate. Version 6 has the tables of version 5, and records of format 3.
pub(crate) const VERSION: u32 = 6;

/// The key of the advisory lock for changes of the schema: `WAYPOST` in ASCII.
const LOCK: i64 = 0x0057_4159_504f_5354;

/// Records the change of the schema.
const MIGRATION: &str = concat!(
    "INSERT INTO waypost.migrations (version, tool) SELECT version, 'waypost ",
    env!("CARGO_PKG_VERSION"),
    "' FROM waypost.version;"
);

const TABLES: &str = r#"
CREATE TABLE waypost.version (
    id      boolean PRIMARY KEY DEFAULT true CHECK (id),
    version bigint NOT NULL
);
CREATE TABLE waypost.migrations (
    version    bigint PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tool       text NOT NULL
);
CREATE TABLE waypost.runs (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    workflow   text NOT NULL,
    path       text,
    labels     text NOT NULL,
    created_at text COLLATE "C" NOT NULL
);
CREATE TABLE waypost.frozen (
    run    bigint PRIMARY KEY REFERENCES waypost.runs ON DELETE CASCADE,
    digest bytea NOT NULL,
    record bytea NOT NULL
);
CREATE TABLE waypost.scopes (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run         bigint NOT NULL REFERENCES waypost.runs ON DELETE CASCADE,
    key         bytea NOT NULL,
    path        text NOT NULL,
    open        boolean NOT NULL,
    newest      bigint NOT NULL,
    tip         bytea,
    bodies      bigint NOT NULL,
    records     bigint NOT NULL,
    bytes       bigint NOT NULL,
    token       bigint NOT NULL DEFAULT 0,
    held        boolean NOT NULL DEFAULT false,
    holder      text,
    until       timestamptz,
    batch_token bigint NOT NULL DEFAULT 0,
    batch_count bigint NOT NULL DEFAULT 0,
    updated_at  text COLLATE "C",
    status      text,
    doubtful    boolean NOT NULL DEFAULT false,
    step        text,
    done        bigint NOT NULL DEFAULT 0,
    total       bigint NOT NULL DEFAULT 0,
    wake_at     text,
    lost        bigint NOT NULL DEFAULT 0,
    UNIQUE (run, key)
) WITH (fillfactor = 70);
CREATE INDEX scopes_run ON waypost.scopes (run, id);
CREATE TABLE waypost.records (
    scope    bigint NOT NULL REFERENCES waypost.scopes ON DELETE CASCADE,
    seq      bigint NOT NULL,
    external bytea,
    about    bigint,
    codec    bigint,
    base     bigint CHECK (base < seq),
    digest   bytea NOT NULL,
    header   bytea NOT NULL,
    body     bytea,
    PRIMARY KEY (scope, seq)
);
ALTER TABLE waypost.records ALTER COLUMN header SET STORAGE EXTERNAL;
ALTER TABLE waypost.records ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX records_external ON waypost.records (scope, sha256(external), seq) WHERE external IS NOT NULL;
CREATE INDEX records_about ON waypost.records (scope, about, seq) WHERE about IS NOT NULL;
CREATE TABLE waypost.signals (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run      bigint NOT NULL REFERENCES waypost.runs ON DELETE CASCADE,
    key      bytea NOT NULL,
    consumed boolean NOT NULL DEFAULT false,
    message  bytea NOT NULL,
    UNIQUE (run, key)
);
CREATE INDEX signals_pending ON waypost.signals (run, id) WHERE NOT consumed;
CREATE TABLE waypost.quarantine (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run      bigint NOT NULL REFERENCES waypost.runs ON DELETE CASCADE,
    scope    bigint NOT NULL,
    seq      bigint NOT NULL,
    why      text NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    codec    bigint,
    base     bigint,
    digest   bytea,
    header   bytea,
    body     bytea
);
CREATE INDEX quarantine_place ON waypost.quarantine (scope, seq);
CREATE INDEX quarantine_run ON waypost.quarantine (run);
CREATE TABLE waypost.blobs (
    run   bigint NOT NULL REFERENCES waypost.runs ON DELETE CASCADE,
    name  text COLLATE "C" NOT NULL,
    at    bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (run, name, at)
);
"#;

/// The tables of the queue, new in version 2: the lease of a scope ends with its worker.
const QUEUE: &str = r#"
ALTER TABLE waypost.scopes DROP COLUMN until, ADD COLUMN worker bigint;
CREATE INDEX scopes_worker ON waypost.scopes (worker) WHERE held;
CREATE TABLE waypost.workers (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    holder   text NOT NULL,
    lease_ms bigint NOT NULL,
    until    timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
CREATE TABLE waypost.jobs (
    run        bigint PRIMARY KEY REFERENCES waypost.runs ON DELETE CASCADE,
    priority   bigint NOT NULL,
    needs      text NOT NULL,
    not_before timestamptz,
    missing    text,
    since      timestamptz
);
CREATE TABLE waypost.ready (
    scope      bigint PRIMARY KEY REFERENCES waypost.scopes ON DELETE CASCADE,
    run        bigint NOT NULL REFERENCES waypost.jobs ON DELETE CASCADE,
    priority   bigint NOT NULL,
    rank       timestamptz NOT NULL DEFAULT clock_timestamp(),
    not_before timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX ready_order ON waypost.ready (priority DESC, rank);
"#;

/// The tasks of workers, new in version 3.
const TASKS: &str = r#"
CREATE TABLE waypost.tasks (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run        bigint NOT NULL REFERENCES waypost.runs ON DELETE CASCADE,
    token      bigint NOT NULL,
    key        text COLLATE "C" NOT NULL,
    priority   bigint NOT NULL,
    needs      text NOT NULL,
    losses_max bigint NOT NULL,
    request    text NOT NULL,
    definition text NOT NULL,
    step       text NOT NULL,
    worker     bigint,
    holder     text,
    losses     bigint NOT NULL DEFAULT 0,
    cancelled  bigint,
    missing    text,
    result     text,
    UNIQUE (run, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX tasks_order ON waypost.tasks (priority DESC, id) WHERE result IS NULL;
"#;

/// The change of the tasks in version 4: a limit for each.
const LOSSES: &str =
    "ALTER TABLE waypost.tasks ALTER COLUMN repeatable TYPE bigint USING 3 * repeatable::int;
ALTER TABLE waypost.tasks RENAME COLUMN repeatable TO losses_max;";

/// The changes of version 5. Logs: a partition for the runs of each month, and one for all others. Tasks: an end.
const LOGS: &str = r#"
CREATE TABLE waypost.logs (
    month text COLLATE "C" NOT NULL,
    run   bigint NOT NULL REFERENCES waypost.runs ON DELETE CASCADE,
    name  text COLLATE "C" NOT NULL,
    at    bigint NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (run, name, at, month)
) PARTITION BY RANGE (month);
CREATE TABLE waypost.logs_default PARTITION OF waypost.logs DEFAULT;
ALTER TABLE waypost.tasks ADD COLUMN until timestamptz;
"#;

/// Months with a partition ahead of need: a worker has no right to make tables.
const MONTHS_AHEAD: u32 = 3;
/// How long a change of partitions waits for a lock, and writes of logs with the change.
const PARTITION_LOCK_TIMEOUT: &str = "3s";

/// Returns the statement that makes the partitions of this month and the next ones, by a role with the rights.
///
/// A month with rows in the default partition gets no partition: their move would delay writes of logs.
fn month_partitions() -> String {
    format!(
        "DO $$
        DECLARE
            start timestamp;
            this text;
            name text;
        BEGIN
            IF NOT pg_has_role((SELECT relowner FROM pg_class WHERE oid = 'waypost.logs'::regclass), 'USAGE')
                OR NOT has_schema_privilege('waypost', 'CREATE') THEN
                RETURN;
            END IF;
            PERFORM pg_advisory_xact_lock({LOCK}), set_config('lock_timeout', '{PARTITION_LOCK_TIMEOUT}', true);
            FOR ahead IN 0..{MONTHS_AHEAD} LOOP
                start := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') + ahead * interval '1 month';
                this := to_char(start, 'YYYY-MM');
                name := to_char(start, '\"logs_\"YYYY_MM');
                CONTINUE WHEN to_regclass('waypost.' || name) IS NOT NULL;
                LOCK TABLE waypost.logs;
                CONTINUE WHEN EXISTS (SELECT FROM waypost.logs_default d WHERE d.month = this);
                EXECUTE format('CREATE TABLE waypost.%I PARTITION OF waypost.logs FOR VALUES FROM (%L) TO (%L)',
                    name, this, to_char(start + interval '1 month', 'YYYY-MM'));
            END LOOP;
        END $$;"
    )
}

/// Makes the partitions of this month and the next ones, and drops those of past months without a kept run. Returns the
/// dropped months. A role without rights changes nothing.
///
/// Logs of runs in `doomed` are dropped, unless the run is held.
pub(crate) async fn rotate_logs(database: &Database, doomed: Vec<String>) -> Result<Vec<String>, Failure> {
    // A run of the last seconds of a month may still come: the month ends a day later.
    const OLD: &str = "WITH kept AS MATERIALIZED (
            SELECT DISTINCT left(r.created_at, 7) AS month
            FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2
            LEFT JOIN unnest($1::text[]) d (name) ON d.name = r.name WHERE d.name IS NULL OR m.held),
        months AS (
            SELECT replace(substr(c.relname, 6), '_', '-') AS month, c.relowner
            FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'waypost.logs'::regclass AND c.relname ~ '^logs_[0-9]{4}_[0-9]{2}$')
        SELECT month FROM months
        WHERE month < to_char((clock_timestamp() - interval '1 day') AT TIME ZONE 'UTC', 'YYYY-MM')
            AND month NOT IN (SELECT month FROM kept) AND pg_has_role(relowner, 'USAGE')
        ORDER BY month";
    let old = database.run(&Statement::new(OLD).texts(doomed).bytes(main_key())).await?;
    let old: Vec<String> = old.rows.iter().map(|row| row.get(0)).collect();
    let client = database.client().await?;
    for month in &old {
        let name = month.replace('-', "_");
        let drop = format!(
            "SET LOCAL lock_timeout = '{PARTITION_LOCK_TIMEOUT}'; DROP TABLE IF EXISTS waypost.logs_{name}"
        );
        client.batch_execute(&drop).await.map_err(Failure::of_statement)?;
    }
    client.batch_execute(&month_partitions()).await.map_err(Failure::of_statement)?;
    Ok(old)
}

/// Moves the logs of older versions.
const MOVED_LOGS: &str = "SET LOCAL statement_timeout = 0;
WITH moved AS (DELETE FROM waypost.blobs WHERE name LIKE 'logs/%' RETURNING *)
INSERT INTO waypost.logs (month, run, name, at, bytes)
SELECT left(r.created_at, 7), m.run, m.name, m.at, m.bytes FROM moved m JOIN waypost.runs r ON r.id = m.run;";

/// Returns whether a run has records of format 2, packed or not. Records are sealed, so no upgrade converts these.
const HAS_FORMAT_2: &str = r#"SELECT EXISTS (SELECT FROM waypost.frozen
    WHERE substr(record, 1, 1) = '\x02'::bytea OR substr(record, 1, 7) = '{"v":2,'::bytea)"#;

/// Returns the schema version of a database; `None` without tables.
pub(crate) async fn version(database: &Database) -> Result<Option<u32>, Failure> {
    let exists = Statement::new("SELECT to_regclass('waypost.version') IS NOT NULL");
    let answer = database.run(&exists).await?;
    if !answer.row()?.get::<_, bool>(0) {
        return Ok(None);
    }
    let answer = database.run(&Statement::new("SELECT version FROM waypost.version")).await?;
    let version: i64 = answer.row()?.get(0);
    Ok(Some(u32::try_from(version).unwrap_or(u32::MAX)))
}

/// Checks the schema version of the database.
///
/// # Errors
/// - [`StoreError::NotFound`]: the database has no tables of a store.
/// - [`StoreError::Version`]: another version made the tables.
pub(crate) async fn check(database: &Database) -> Result<(), Failure> {
    match version(database).await? {
        Some(VERSION) => Ok(()),
        Some(found) => Err(version_error(database, found).into()),
        None => Err(no_schema(database.name.clone()).into()),
    }
}

fn version_error(database: &Database, found: u32) -> StoreError {
    StoreError::Version { what: database.name.clone(), found, supported: VERSION }
}

/// Refuses to upgrade a database with runs of a prerelease.
///
/// # Errors
/// [`StoreError::Invalid`]: the database has such a run.
async fn check_formats(database: &Database) -> Result<(), Failure> {
    let answer = database.run(&Statement::new(HAS_FORMAT_2)).await?;
    match answer.row()?.get(0) {
        false => Ok(()),
        true => {
            let why = "its runs have records of a prerelease; use a new database, and start the runs again";
            Err(StoreError::Invalid(format!("cannot upgrade {}: {why}", database.name)).into())
        }
    }
}

/// Makes or upgrades the tables. Returns the version before; `None` if there were no tables.
pub(crate) async fn init(database: &Database) -> Result<Option<u32>, Failure> {
    match version(database).await? {
        Some(found) if found > VERSION => Err(version_error(database, found).into()),
        Some(VERSION) => {
            let client = database.client().await?;
            client.batch_execute(&month_partitions()).await.map_err(Failure::of_statement)?;
            Ok(Some(VERSION))
        }
        Some(found) => {
            check_formats(database).await?;
            let client = database.client().await?;
            let queue = if found < 2 { QUEUE } else { "" };
            let tasks = match found {
                ..3 => TASKS,
                3 => LOSSES,
                _ => "",
            };
            let (logs, moved_logs) = if found < 5 { (LOGS, MOVED_LOGS) } else { ("", "") };
            let partitions = month_partitions();
            let text = format!(
                "SELECT pg_advisory_xact_lock({LOCK}); LOCK TABLE waypost.scopes; {queue} {tasks} {logs} {partitions}
                 {moved_logs}
                 UPDATE waypost.version SET version = {VERSION}; {MIGRATION}"
            );
            match client.batch_execute(&text).await {
                Ok(()) => {}
                // Another process was faster.
                Err(_) if matches!(version(database).await, Ok(Some(VERSION))) => {}
                Err(error) => return Err(Failure::of_statement(error)),
            }
            Ok(Some(found))
        }
        None => {
            let client = database.client().await?;
            match make(&client).await {
                Ok(()) => {}
                // Another process was faster.
                Err(_) if matches!(version(database).await, Ok(Some(VERSION))) => return Ok(Some(VERSION)),
                Err(error) => return Err(error),
            }
            check(database).await.map(|()| None)
        }
    }
}

/// Makes the tables with a single message. Without an explicit transaction, the message is a single transaction, and
/// no `COMMIT` can answer `ROLLBACK` unnoticed.
async fn make(client: &Client) -> Result<(), Failure> {
    let exists = client.query_typed("SELECT to_regnamespace('waypost') IS NOT NULL", &[]).await;
    let exists = exists.map_err(Failure::of_statement)?;
    // A role without the right to make schemas can use an existing schema.
    let schema = if exists[0].get(0) { "" } else { "CREATE SCHEMA waypost;" };
    let partitions = month_partitions();
    let text = format!(
        "SELECT pg_advisory_xact_lock({LOCK}); {schema} {TABLES} {QUEUE} {TASKS} {LOGS} {partitions}
         INSERT INTO waypost.version (version) VALUES ({VERSION});
         {MIGRATION}"
    );
    client.batch_execute(&text).await.map_err(Failure::of_statement)
}
