//! Hints about ready runs: `NOTIFY` after a change, at most one in [`INTERVAL`], and `LISTEN` on a separate connection.
//!
//! A hint is never part of another statement: the lock of the server's list of hints would order all commits.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::database::connect::Database;
use crate::database::statement::Statement;
use crate::lock;

/// Shortest time between two hints of a process.
const INTERVAL: Duration = Duration::from_millis(50);
/// Pause before the next attempt to listen.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for the answers of the probe.
const PROBE_MAX: Duration = Duration::from_secs(10);

/// The hints of a process.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Notified by each received hint.
    pub(crate) arrived: Arc<Notify>,
    /// The newest hint sent, or to be sent at the end of the interval.
    sent: Mutex<Option<Instant>>,
}

impl Hints {
    /// Sends a hint: at once, or at the end of the interval after the last one. Errors are ignored: polling finds
    /// the run.
    pub(crate) async fn send(&self, database: &Database) {
        let now = Instant::now();
        let pause = {
            let mut sent = lock(&self.sent);
            match *sent {
                // A hint to be sent covers this change too.
                Some(at) if at > now => return,
                Some(at) => {
                    let next = now.max(at + INTERVAL);
                    *sent = Some(next);
                    next - now
                }
                None => {
                    *sent = Some(now);
                    Duration::ZERO
                }
            }
        };
        tokio::time::sleep(pause).await;
        let _ = database.run(&Statement::new("SELECT pg_notify('waypost', '')")).await;
    }
}

/// Listens until the store is dropped. Returns why hints cannot arrive, if so.
pub(crate) async fn listen(database: &Arc<Database>, arrived: &Arc<Notify>) -> Option<String> {
    let first = connect(database, arrived).await;
    let why = match &first {
        Ok(_) => None,
        Err(Some(pooler)) => return Some(pooler.clone()),
        Err(None) => Some("the connection for hints failed; polling until it returns".to_owned()),
    };
    let (database, arrived) = (Arc::downgrade(database), Arc::clone(arrived));
    tokio::spawn(stay(database, arrived, first.ok()));
    why
}

/// Listens again after each loss of the connection, and wakes the waiting worker at once: hints were lost.
async fn stay(database: Weak<Database>, arrived: Arc<Notify>, mut listening: Option<Listening>) {
    loop {
        if let Some(Listening { _client, ended }) = listening.take() {
            arrived.notify_one();
            let _ = ended.await;
        }
        tokio::time::sleep(PAUSE).await;
        let Some(database) = database.upgrade().filter(|database| database.refuse_closed().is_ok()) else {
            return;
        };
        listening = connect(&database, &arrived).await.ok();
    }
}

/// A connection that listens.
struct Listening {
    _client: tokio_postgres::Client,
    ended: tokio::task::JoinHandle<()>,
}

/// Connects and listens. A pooler that gives each transaction another connection would lose all hints: the channels of
/// a second transaction must be those of the first.
async fn connect(database: &Database, arrived: &Arc<Notify>) -> Result<Listening, Option<String>> {
    const CHANNELS: &str = "SELECT coalesce(string_agg(name, ' '), '') FROM pg_listening_channels() AS name";
    let (client, ended) = database.connect_to_listen(arrived).await.map_err(|_| None)?;
    let probe = format!("waypost_{:x}", RandomState::new().hash_one(0));
    let probed = async {
        client.batch_execute(&format!("LISTEN {probe}")).await?;
        let row = client.query_one(CHANNELS, &[]).await?;
        client.batch_execute(&format!("UNLISTEN {probe}; LISTEN waypost")).await?;
        Ok::<String, tokio_postgres::Error>(row.get(0))
    };
    match tokio::time::timeout(PROBE_MAX, probed).await {
        Ok(Ok(found)) if found == probe => Ok(Listening { _client: client, ended }),
        Ok(Ok(_)) => Err(Some(
            "a pooler between worker and server loses hints (LISTEN); name the server itself in `?listen=URL`"
                .to_owned(),
        )),
        Ok(Err(_)) | Err(_) => Err(None),
    }
}
