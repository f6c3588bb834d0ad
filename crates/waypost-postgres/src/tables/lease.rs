//! Leases: the right to write a run, with a token and an end.
//!
//! The lease of a run is the row of the main scope. It ends with the worker that holds it: a process has a single row in
//! `workers`, and a single renewal. The clock of the server counts. A renewal counts from the end of its waits for locks.
//! A comparison counts from the begin of its statement, as the compared end: a newer end is not visible to the statement.

use jiff::Timestamp;
use waypost::id::RunId;
use waypost::lock::Holder;
use waypost::store::{Lease, Renewal, StoreError};
use waypost::{Clock as _, SystemClock};

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::schema::VERSION;
use crate::database::statement::Statement;
use crate::database::values::{count, int, main_key, time_text};
use crate::tables::runs::{holder_of, holder_text};
use crate::tables::signals;

/// The end of the worker of scope `m`; null without a worker. After a start of the server, every worker has the time of a
/// lease for a renewal.
pub(crate) const UNTIL: &str =
    "(SELECT greatest(w.until, pg_postmaster_start_time() + w.lease_ms * interval '1 ms')
    FROM waypost.workers w WHERE w.id = m.worker)";
/// Whether a worker holds scope `m`.
pub(crate) const HELD: &str = "coalesce(m.held AND {UNTIL} > statement_timestamp(), false)";
/// Whether living worker `w` lost its lease: its process was frozen, or the server was away.
const LOST: &str = "w.lease_ms > 0 AND w.until < pg_postmaster_start_time()";

/// Returns a statement with the conditions about leases.
pub(crate) fn with_lease(text: &str) -> String {
    text.replace("{HELD}", HELD).replace("{UNTIL}", UNTIL).replace("{LOST}", LOST)
}

/// Whether a worker may claim scope `m`: a run at rest keeps its place in the queue until the next claim.
const CLAIMABLE: &str = "m.status IN ('queued', 'waiting', 'running')";

/// Returns a statement with the conditions about leases and claims.
pub(crate) fn with_claimable(text: &str) -> String {
    with_lease(&text.replace("{CLAIMABLE}", CLAIMABLE))
}

/// The row of a lease.
#[derive(Debug)]
pub(crate) struct LeaseRow {
    pub(crate) token: u64,
    /// Not released; the lease may have ended.
    pub(crate) held: bool,
    pub(crate) batch: (u64, u64),
    /// The present holder, and the end of the lease.
    pub(crate) holder: Option<(Option<Holder>, Timestamp)>,
}

impl LeaseRow {
    /// Reads the row of a run.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]: the run does not exist.
    pub(crate) async fn get(database: &Database, run: &RunId) -> Result<Self, Failure> {
        const ROW: &str = "SELECT m.token, m.held, m.batch_token, m.batch_count,
                {HELD}, m.holder, (extract(epoch FROM {UNTIL}) * 1000000)::bigint
            FROM waypost.runs r JOIN waypost.scopes m ON m.run = r.id AND m.key = $2 WHERE r.name = $1";
        let find = Statement::new(with_lease(ROW)).text(run.as_str()).bytes(main_key());
        let answer = database.run(&find).await?;
        let row = answer.rows.first().ok_or_else(|| StoreError::no_run(&database.name, run))?;
        let is_held: bool = row.get(4);
        let until: Option<i64> = row.get(6);
        let until = until.and_then(|until| Timestamp::from_microsecond(until).ok());
        let holder: Option<&str> = row.get(5);
        Ok(Self {
            token: count(row.get(0)),
            held: row.get(1),
            batch: (count(row.get(2)), count(row.get(3))),
            holder: until
                .filter(|_| is_held)
                .map(|until| (holder.and_then(|text| holder_of(text).ok()), until)),
        })
    }

    /// Returns the error for a lease of another process.
    pub(crate) fn held_error(&self, run: &RunId) -> Option<StoreError> {
        let (holder, until) = self.holder.as_ref()?;
        Some(StoreError::Held { run: run.clone(), holder: holder.clone(), until: Some(*until) })
    }

    /// Returns the token of a dead holder: an ended process of this machine. The lease need not run out. The supervisor
    /// ends the remaining processes of the run.
    pub(crate) fn token_of_dead(&self) -> Option<u64> {
        let (holder, _) = self.holder.as_ref()?;
        holder.as_ref().filter(|holder| holder.is_gone()).map(|_| self.token)
    }

    pub(crate) fn fenced(&self, run: &RunId, token: u64) -> StoreError {
        StoreError::Fenced { run: run.clone(), token, newest: self.token }
    }
}

/// Takes the lease of a run for a worker; returns the token.
pub(crate) async fn acquire(
    database: &Database,
    run: &RunId,
    holder: &Holder,
    worker: i64,
) -> Result<u64, Failure> {
    const ACQUIRE: &str = "UPDATE waypost.scopes m
        SET token = m.token + 1, held = true, holder = $3, worker = $4
        FROM waypost.runs r WHERE r.name = $1 AND m.run = r.id AND m.key = $2
            AND (NOT {HELD} OR m.token = $5)
            AND (SELECT version FROM waypost.version) = $6
        RETURNING m.token";
    let mut dead = None;
    // A second attempt after the death of the holder, a third after the death of the next holder.
    for _ in 0..3 {
        let acquire = Statement::new(with_lease(ACQUIRE))
            .text(run.as_str())
            .bytes(main_key())
            .text(holder_text(holder))
            .int(worker)
            .int(dead.map(int))
            .int(i64::from(VERSION));
        let answer = database.run(&acquire).await?;
        if let Some(row) = answer.rows.first() {
            return Ok(count(row.get(0)));
        }
        let row = LeaseRow::get(database, run).await?;
        let is_ours =
            |row: &LeaseRow| row.holder.as_ref().is_some_and(|(found, _)| found.as_ref() == Some(holder));
        if answer.repeated && is_ours(&row) {
            return Ok(row.token);
        }
        dead = row.token_of_dead();
        match row.held_error(run) {
            Some(held) if dead.is_none() => return Err(held.into()),
            Some(_) => {}
            // The lease ended in between, or the schema has another version.
            None => crate::database::schema::check(database).await?,
        }
    }
    let row = LeaseRow::get(database, run).await?;
    Err(row
        .held_error(run)
        .unwrap_or(StoreError::Held { run: run.clone(), holder: None, until: None })
        .into())
}

/// Confirms a lease by a write to its row; returns whether the lease holds.
pub(crate) async fn confirm(database: &Database, run: &RunId, token: u64) -> Result<bool, Failure> {
    const CONFIRM: &str = "UPDATE waypost.scopes m SET held = m.held
        FROM waypost.runs r WHERE r.name = $1 AND m.run = r.id AND m.key = $2 AND m.held AND m.token = $3
        RETURNING m.token";
    let confirm = Statement::new(CONFIRM).text(run.as_str()).bytes(main_key()).int(int(token));
    Ok(!database.run(&confirm).await?.rows.is_empty())
}

/// Answers a renewal: whether the lease holds, and the pending requests to the run.
pub(crate) async fn renewal(database: &Database, lease: &Lease) -> Result<Renewal, Failure> {
    const RENEWAL: &str = "SELECT s.message FROM waypost.runs r
        JOIN waypost.scopes m ON m.run = r.id AND m.key = $2 AND m.held AND m.token = $3
        LEFT JOIN waypost.signals s ON s.run = r.id AND NOT s.consumed WHERE r.name = $1 ORDER BY s.id";
    let find = Statement::new(RENEWAL).text(lease.run().as_str()).bytes(main_key()).int(int(lease.token()));
    let answer = database.run(&find).await?;
    if answer.rows.is_empty() {
        return Ok(Renewal::Lost);
    }
    let messages = answer.rows.iter().filter_map(|row| row.get::<_, Option<&[u8]>>(0));
    let signals = messages.map(signals::parse).collect::<Result<Vec<_>, _>>()?;
    Ok(Renewal::Held(signals.into_iter().filter(|signal| signal.kind.is_for_the_run()).collect()))
}

/// Releases a lease. A claimed run without a place in the queue is not `queued` any more.
pub(crate) async fn release(
    database: &Database,
    run: &RunId,
    token: u64,
    wake_at: Option<Timestamp>,
) -> Result<(), Failure> {
    const RELEASE: &str = "WITH released AS (
            UPDATE waypost.scopes m SET held = false, wake_at = coalesce($4, m.wake_at),
                status = CASE WHEN m.status = 'queued' AND $4 IS NULL
                    AND NOT EXISTS (SELECT 1 FROM waypost.ready q WHERE q.scope = m.id)
                    THEN 'interrupted' ELSE m.status END
            FROM waypost.runs r WHERE r.name = $1 AND m.run = r.id AND m.key = $2 AND m.held AND m.token = $3
            RETURNING m.id, m.run),
        woken AS (INSERT INTO waypost.ready (scope, run, priority, not_before)
            SELECT m.id, m.run, j.priority, clock_timestamp() + $5 * interval '1 microsecond'
            FROM released m JOIN waypost.jobs j ON j.run = m.run
            WHERE $4 IS NOT NULL ON CONFLICT (scope) DO NOTHING)
        SELECT 1 FROM released";
    let release = Statement::new(RELEASE)
        .text(run.as_str())
        .bytes(main_key())
        .int(int(token))
        .maybe_text(wake_at.map(time_text))
        .int(wake_at.map_or(0, rest_of_wait));
    let answer = database.run(&release).await?;
    if !answer.rows.is_empty() {
        return Ok(());
    }
    let row = LeaseRow::get(database, run).await?;
    match answer.repeated && row.token == token && !row.held {
        true => Ok(()),
        false => Err(row.fenced(run, token).into()),
    }
}

/// Returns the microseconds until a time, by the clock of this process: the queue counts by the clock of the server.
fn rest_of_wait(wake_at: Timestamp) -> i64 {
    let rest = wake_at.duration_since(SystemClock.now()).as_micros();
    i64::try_from(rest).unwrap_or(i64::MAX)
}

/// Ends a lease without a release, as the end of its worker does: a submitted run is ready again at the next look for
/// ended leases.
pub(crate) async fn abandon(database: &Database, run: &RunId, token: u64) -> Result<(), Failure> {
    const ABANDON: &str = "UPDATE waypost.scopes m SET worker = NULL
        FROM waypost.runs r WHERE r.name = $1 AND m.run = r.id AND m.key = $2 AND m.held AND m.token = $3";
    let abandon = Statement::new(ABANDON).text(run.as_str()).bytes(main_key()).int(int(token));
    database.run(&abandon).await.map(drop)
}
