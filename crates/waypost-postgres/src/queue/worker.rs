//! The worker: the row of this process in `workers`, and the thread that renews it.
//!
//! All leases of a process end with its row. The thread has its own runtime and connection, so no busy step delays a
//! renewal. After a lease without an answer the row is given up: its runs go to other workers, and the next lease of
//! this process is that of a new worker.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio_postgres::Client;
use tokio_postgres::types::Type;
use waypost::deadline::{BootTime, Deadline};
use waypost::lock::Holder;

use crate::database::connect::Database;
use crate::database::error::Failure;
use crate::database::statement::Statement;
use crate::database::values::int;
use crate::lock;
use crate::tables::runs::{holder_of, holder_text};

/// A lease is renewed after this part of the time.
const RENEWALS_PER_LEASE: u32 = 4;
/// A lost renewal is repeated after this part of the time.
const REPETITIONS_PER_LEASE: u32 = 60;
/// The steps end this part of the time before the lease, so that no process is left at its end.
const MARGIN_PER_LEASE: u32 = 6;

/// The row of this process.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) id: i64,
    /// When the steps of this worker end; `None` without files in memory.
    pub(crate) deadline: Option<Arc<Deadline>>,
    length: Duration,
    /// The sending of the last answered renewal.
    renewed: Mutex<BootTime>,
    /// Ends the thread at its drop.
    thread: Sender<Weak<Worker>>,
}

impl Worker {
    /// Adds a row for this process, and starts its renewal. The renewal has its connection before the first lease exists:
    /// a server without a free connection ends no lease.
    pub(crate) async fn register(database: &Arc<Database>, holder: &Holder) -> Result<Arc<Self>, Failure> {
        // A row with a held run says how its lease ended.
        const REGISTER: &str = "WITH gone AS (
                DELETE FROM waypost.workers w WHERE {ENDED}
                    AND NOT EXISTS (SELECT 1 FROM waypost.scopes m WHERE m.held AND m.worker = w.id)
                    AND NOT EXISTS (SELECT 1 FROM waypost.tasks t WHERE t.result IS NULL AND t.worker = w.id))
            INSERT INTO waypost.workers (holder, lease_ms, until)
            VALUES ($1, $2, clock_timestamp() + $2 * interval '1 ms') RETURNING id";
        let length = database.options.lease;
        let (thread, _) = database.with_patience(|| start_renewal(database)).await?;
        let sent = BootTime::now();
        let register = Statement::new(with_ended(REGISTER))
            .text(holder_text(holder))
            .int(int(length.as_millis() as u64));
        let id = database.run(&register).await?.row()?.get(0);
        let deadline = Deadline::new(sent.after(length - length / MARGIN_PER_LEASE)).ok().map(Arc::new);
        let worker = Arc::new(Self { id, deadline, length, renewed: Mutex::new(sent), thread });
        // An ended thread renews no lease, and the lease ends.
        let _ = worker.thread.send(Arc::downgrade(&worker));
        Ok(worker)
    }

    /// Returns the time since the sending of the last answered renewal.
    pub(crate) fn renewed(&self) -> Duration {
        lock(&self.renewed).elapsed()
    }

    /// Returns the time after which the leases count as lost, without a renewal.
    pub(crate) fn time(&self) -> Duration {
        self.length - self.length / MARGIN_PER_LEASE
    }

    /// Returns whether the leases of this worker have certainly not ended.
    pub(crate) fn lasts(&self) -> bool {
        self.renewed() < self.time()
    }

    fn extend(&self, sent: BootTime) {
        *lock(&self.renewed) = sent;
        if let Some(deadline) = &self.deadline {
            // Without the write the steps end early, which is safe.
            let _ = deadline.set(sent.after(self.time()));
        }
    }
}

/// Starts the thread of the renewals; returns once its connection is open.
async fn start_renewal(database: &Arc<Database>) -> Result<Sender<Weak<Worker>>, Failure> {
    let (thread, worker) = channel();
    let (connected, connection) = oneshot::channel();
    let database = Arc::clone(database);
    let renew = move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let opened = runtime.map_err(|error| Failure::Away(error.into())).and_then(|runtime| {
            let client = runtime.block_on(database.connect_apart())?;
            Ok((runtime, client))
        });
        let database = Arc::downgrade(&database);
        let (opened, failure) =
            opened.map_or_else(|failure| (None, Err(failure)), |opened| (Some(opened), Ok(())));
        let _ = connected.send(failure);
        if let Some((runtime, client)) = opened {
            renew_until(&worker, &database, &runtime, client);
        }
    };
    let started = std::thread::Builder::new().name("waypost-lease".to_owned()).spawn(renew);
    started.map_err(|error| Failure::Away(error.into()))?;
    connection.await.map_err(|error| Failure::Away(error.into()))??;
    Ok(thread)
}

/// Renews the received worker until the drop of the worker, the end of the lease, or the loss of the row.
fn renew_until(begun: &Receiver<Weak<Worker>>, database: &Weak<Database>, runtime: &Runtime, client: Client) {
    let Ok(worker) = begun.recv() else { return };
    let Some(length) = worker.upgrade().map(|worker| worker.length) else { return };
    let (mut client, mut pause) = (Some(client), length / RENEWALS_PER_LEASE);
    while let Err(RecvTimeoutError::Timeout) = begun.recv_timeout(pause) {
        let (Some(worker), Some(database)) = (worker.upgrade(), database.upgrade()) else { return };
        if !worker.lasts() {
            return;
        }
        let sent = BootTime::now();
        let renewal = renew(&database, &mut client, worker.id);
        match runtime.block_on(async { tokio::time::timeout(length / RENEWALS_PER_LEASE, renewal).await }) {
            Ok(Ok(true)) => {
                worker.extend(sent);
                pause = length / RENEWALS_PER_LEASE;
            }
            Ok(Ok(false)) => return,
            Ok(Err(_)) | Err(_) => {
                client = None;
                pause = length / REPETITIONS_PER_LEASE;
            }
        }
    }
}

/// Extends a lease, by the clock of the server.
const RENEW: &str = "UPDATE waypost.workers SET until = clock_timestamp() + lease_ms * interval '1 ms'
    WHERE id = $1 RETURNING id";

/// Extends the lease of a worker; returns whether its row exists.
async fn renew(database: &Database, client: &mut Option<Client>, id: i64) -> Result<bool, Failure> {
    let client = match client {
        Some(client) => client,
        None => client.insert(database.connect_apart().await?),
    };
    let rows = client.query_typed(RENEW, &[(&id, Type::INT8)]).await.map_err(Failure::of_statement)?;
    Ok(!rows.is_empty())
}

/// Removes the row of a worker without leases.
pub(crate) async fn leave(database: &Database, worker: &Worker) -> Result<(), Failure> {
    const LEAVE: &str = "DELETE FROM waypost.workers WHERE id = $1";
    database.run(&Statement::new(LEAVE).int(worker.id)).await.map(drop)
}

/// Returns the living workers, by row.
pub(crate) async fn living(database: &Database) -> Result<BTreeMap<i64, Holder>, Failure> {
    const LIVING: &str = "SELECT id, holder FROM waypost.workers WHERE until > clock_timestamp()";
    let living = database.run(&Statement::new(LIVING)).await?;
    let worker = |row: &tokio_postgres::Row| Some((row.get(0), holder_of(row.get(1)).ok()?));
    Ok(living.rows.iter().filter_map(worker).collect())
}

/// Whether the lease of worker `w` has ended; after a start of the server, not before the time of a lease.
const ENDED: &str =
    "greatest(w.until, pg_postmaster_start_time() + w.lease_ms * interval '1 ms') <= clock_timestamp()";

/// Returns a statement with the condition about an ended lease.
pub(super) fn with_ended(text: &str) -> String {
    text.replace("{ENDED}", ENDED)
}

/// Ends the leases of dead processes of this machine at once: these cannot renew a lease. Marks the ended leases of living
/// processes as lost.
pub(crate) async fn bury_dead(database: &Database) -> Result<(), Failure> {
    const WORKERS: &str = "SELECT w.id, w.holder, {ENDED} FROM waypost.workers w WHERE w.until > '-infinity'";
    const LOSE: &str =
        "UPDATE waypost.workers w SET until = '-infinity' WHERE w.id = ANY($1) AND {ENDED} RETURNING w.id";
    const BURY: &str =
        "UPDATE waypost.workers SET until = '-infinity', lease_ms = 0 WHERE id = ANY($1) RETURNING id";
    let (mut dead, mut lost) = (Vec::new(), Vec::new());
    for row in database.run(&Statement::new(with_ended(WORKERS))).await?.rows {
        match holder_of(row.get(1)) {
            Ok(holder) if holder.is_gone() => dead.push(Some(row.get(0))),
            Ok(holder) if row.get(2) && holder.lives() => lost.push(Some(row.get(0))),
            Ok(_) | Err(_) => {}
        }
    }
    if !dead.is_empty() {
        database.run(&Statement::new(BURY).ints(dead)).await?;
    }
    if !lost.is_empty() {
        database.run(&Statement::new(with_ended(LOSE)).ints(lost)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use waypost_testing::contract::block_on;
    use waypost_testing::postgres::{USER, cluster};
    use waypost_testing::records::holder;

    use super::*;
    use crate::database::schema;
    use crate::database::settings::{PostgresOptions, Settings};

    /// Returns whether a worker counts as living after its renewal.
    async fn lives_after(name: &str, renewal: &str) -> bool {
        cluster().database(name, "SELECT 1");
        let settings = Settings::parse(&cluster().connection(USER, name)).unwrap();
        let database = Arc::new(Database::new(settings, PostgresOptions::default()));
        schema::init(&database).await.unwrap();
        let worker = Worker::register(&database, &holder("worker")).await.unwrap();
        database.run(&Statement::new(renewal.to_owned()).int(worker.id)).await.unwrap();
        let living = living(&database).await.unwrap();
        assert!(worker.lasts(), "the worker believes in its lease");
        living.contains_key(&worker.id)
    }

    /// The clocks of machines differ: only the server's counts.
    #[test]
    fn a_lease_ends_by_the_clock_of_the_server() {
        block_on(async {
            assert!(lives_after("own_clock", RENEW).await);
            // Planted bug: the end of the lease is computed from a clock one hour late.
            let late = RENEW.replace("clock_timestamp()", "clock_timestamp() - interval '1 hour'");
            assert!(!lives_after("late_clock", &late).await);
        });
    }
}
