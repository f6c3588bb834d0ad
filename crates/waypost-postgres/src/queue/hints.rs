//! Hints about ready runs: `NOTIFY` after a change, at most one in [`INTERVAL`], and `LISTEN` on a separate connection.
//!
//! A hint is never part of another statement: the lock of the server's list of hints would order all commits.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::database::connect::Database;
use crate::database::statement::Statement;
use crate::lock;

/// Shortest time between two hints of a process.
const INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for the last hint at the close of the store: a statement takes milliseconds.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// Pause before the next attempt to listen.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for the begin of listening.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the first hint, which takes milliseconds.
const HINT_MAX: Duration = Duration::from_secs(3);
/// The statement of a hint.
const HINT: &str = "SELECT pg_notify('waypost', '')";

/// The hints of a process.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Notified by each received hint.
    pub(crate) arrived: Arc<Notify>,
    sent: Mutex<Option<Sent>>,
}

impl Hints {
    /// Sends a hint in a separate task: at once, or at the end of the interval after the last one. Errors are ignored:
    /// polling finds the run.
    pub(crate) fn send(&self, database: &Arc<Database>) {
        let (now, database) = (Instant::now(), Arc::clone(database));
        let mut sent = lock(&self.sent);
        let at = match &*sent {
            // A hint to be sent covers this change too.
            Some(last) if last.at > now => return,
            Some(last) => now.max(last.at + INTERVAL),
            None => now,
        };
        let task = tokio::spawn(async move {
            tokio::time::sleep_until(at.into()).await;
            let _ = database.run(&Statement::new(HINT)).await;
        });
        *sent = Some(Sent { at, task });
    }

    /// Waits until the last hint is sent, at most [`FLUSH_MAX`].
    pub(crate) async fn flush(&self) {
        let last = lock(&self.sent).take();
        if let Some(last) = last {
            let _ = tokio::time::timeout(FLUSH_MAX, last.task).await;
        }
    }
}

/// The newest hint: sent, or to be sent at the end of the interval.
#[derive(Debug)]
struct Sent {
    at: Instant,
    task: JoinHandle<()>,
}

/// Listens until the store is dropped. Returns why hints cannot arrive, if so.
pub(crate) async fn listen(database: &Arc<Database>, arrived: &Arc<Notify>) -> Option<String> {
    let first = connect(database).await;
    let why = match &first {
        Ok(_) => None,
        Err(Some(pooler)) => return Some(pooler.clone()),
        Err(None) => Some("the connection for hints failed; polling until it returns".to_owned()),
    };
    let (database, arrived) = (Arc::downgrade(database), Arc::clone(arrived));
    tokio::spawn(stay(database, arrived, first.ok()));
    why
}

/// Passes hints on. Listens again after each loss of the connection, and wakes the waiting worker at once: hints were
/// lost.
async fn stay(database: Weak<Database>, arrived: Arc<Notify>, mut listening: Option<Listening>) {
    loop {
        if let Some(Listening { _client, heard, mut ended }) = listening.take() {
            arrived.notify_one();
            loop {
                tokio::select! {
                    () = heard.notified() => arrived.notify_one(),
                    _ = &mut ended => break,
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
        let Some(database) = database.upgrade().filter(|database| database.refuse_closed().is_ok()) else {
            return;
        };
        listening = connect(&database).await.ok();
    }
}

/// A connection that listens.
struct Listening {
    _client: tokio_postgres::Client,
    /// Notified by each hint.
    heard: Arc<Notify>,
    ended: JoinHandle<()>,
}

/// Connects and listens, and sends a hint as other processes do. Only its arrival proves that hints arrive: a pooler with
/// a single server connection answers every question about the session as the server does.
async fn connect(database: &Database) -> Result<Listening, Option<String>> {
    let heard = Arc::<Notify>::default();
    let (client, ended) = database.connect_to_listen(&heard).await.map_err(|_| None)?;
    let listens = tokio::time::timeout(PROBE_MAX, client.batch_execute("LISTEN waypost")).await;
    if !matches!(listens, Ok(Ok(()))) {
        return Err(None);
    }
    database.run(&Statement::new(HINT)).await.map_err(|_| None)?;
    match tokio::time::timeout(HINT_MAX, heard.notified()).await {
        Ok(()) => Ok(Listening { _client: client, heard, ended }),
        Err(_) if ended.is_finished() => Err(None),
        Err(_) => Err(Some(
            "a pooler between worker and server loses hints (LISTEN); name the server itself in `?listen=URL`"
                .to_owned(),
        )),
    }
}
