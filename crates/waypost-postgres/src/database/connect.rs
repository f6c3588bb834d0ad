//! Connections and statements, with repetitions after a lost answer.
//!
//! A connection without an answer is closed and never used again. A lost statement is sent again unchanged. A question
//! about the effect proves nothing, since the statement may still arrive.

use std::future::{Future, poll_fn};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolConfig, PoolError, QueueMode, RecyclingMethod, Timeouts,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OnceCell};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use waypost::store::StoreError;
use waypost_codec::delta_cache::DeltaCache;

use crate::database::error::{Cause, Failure, is_full};
use crate::database::schema;
use crate::database::settings::{LOCK_TIMEOUT, PostgresOptions, STATEMENT_TIMEOUT, Settings};
use crate::database::statement::{Statement, Uses};

/// The oldest supported server, as in `server_version_num`.
const SERVER_MIN: i64 = 130_000;
/// The encodings of a database that take every text.
const ENCODINGS: [&str; 2] = ["UTF8", "SQL_ASCII"];
/// Longest wait for an answer: the server gives up before, unless a pooler or the network holds the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(STATEMENT_TIMEOUT.as_secs() + 5);
/// Longest wait for the request to cancel a statement.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(3);
/// An unused connection is closed after this time: the next load opens it again in milliseconds.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Longest wait of the first statement for a free connection of the server: others end within seconds.
const FULL_MAX: Duration = Duration::from_secs(10);
/// Most repetitions of a statement after a collision with another transaction.
const COLLISIONS_MAX: u32 = 10;
/// Shortest and longest pause before a repetition.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// A database with connections, shared by all tasks of a store.
#[derive(Debug)]
pub(crate) struct Database {
    /// The name of the store, without a password.
    pub(crate) name: String,
    pub(crate) options: PostgresOptions,
    pub(crate) delta_cache: DeltaCache,
    pub(crate) settings: Settings,
    uses: Uses,
    opened: OnceCell<Opened>,
    checked: OnceCell<()>,
    closed: AtomicBool,
}

/// The connections, and the settings of the server.
#[derive(Debug)]
struct Opened {
    pool: Pool,
    /// The settings of a connection, with those of a session if the server accepts them.
    config: Config,
    /// Statements of a connection share a session, as without a pooler.
    has_session: bool,
    /// A setting by which acknowledged data may be lost, if any.
    lossy: Option<String>,
}

/// The answer to a statement.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    /// An earlier answer to the same statement was lost: the effect may be an earlier effect.
    pub(crate) repeated: bool,
}

impl Answer {
    /// Returns the first row; for statements with a single row.
    pub(crate) fn row(&self) -> Result<&Row, Failure> {
        let lacking = || Failure::Store(StoreError::Invalid("the server returned no row".to_owned()));
        self.rows.first().ok_or_else(lacking)
    }
}

impl Database {
    pub(crate) fn new(settings: Settings, options: PostgresOptions) -> Self {
        let options = PostgresOptions { lease: settings.lease.unwrap_or(options.lease), ..options };
        Self {
            name: settings.name.clone(),
            options,
            delta_cache: DeltaCache::default(),
            settings,
            uses: Uses::default(),
            opened: OnceCell::new(),
            checked: OnceCell::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// Checks that the store is open, and once that the schema has this version.
    pub(crate) async fn check(&self) -> Result<(), Failure> {
        self.refuse_closed()?;
        self.checked.get_or_try_init(|| schema::check(self)).await.map(drop)
    }

    pub(crate) fn refuse_closed(&self) -> Result<(), StoreError> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(StoreError::Closed(self.name.clone())),
            false => Ok(()),
        }
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(opened) = self.opened.get() {
            opened.pool.close();
        }
    }

    /// Returns a setting of the server by which acknowledged data may be lost, if any.
    pub(crate) async fn lossy(&self) -> Result<Option<&str>, Failure> {
        Ok(self.opened().await?.lossy.as_deref())
    }

    async fn opened(&self) -> Result<&Opened, Failure> {
        self.opened.get_or_try_init(|| self.open()).await
    }

    async fn open(&self) -> Result<Opened, Failure> {
        let with_session = self.settings.with_session();
        let (config, client) = match self.connect(&with_session).await {
            Err(Failure::Refused(error)) if refuses_parameters(&error) => {
                let config = self.settings.config.clone();
                let client = self.connect(&config).await?;
                (config, client)
            }
            client => (with_session, client?),
        };
        let (has_session, lossy) = self.judge(&client).await?;
        let manager_config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = match self.settings.is_plain {
            true => Manager::from_config(config.clone(), NoTls, manager_config),
            false => Manager::from_config(config.clone(), self.tls()?, manager_config),
        };
        // The connection used last is used next, so that the others are idle.
        let config_of_pool = PoolConfig {
            timeouts: Timeouts { wait: Some(ANSWER_TIMEOUT), ..Timeouts::new() },
            queue_mode: QueueMode::Lifo,
            ..PoolConfig::new(self.options.connections_max.max(1))
        };
        let pool =
            Pool::builder(manager).config(config_of_pool).runtime(deadpool_postgres::Runtime::Tokio1).build();
        let pool = pool.map_err(|error| Failure::Away(error.into()))?;
        let unclosed = pool.weak();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_MAX / 2).await;
                let Some(pool) = unclosed.upgrade().filter(|pool| !pool.is_closed()) else { return };
                pool.retain(|_, metrics| metrics.last_used() < IDLE_MAX);
            }
        });
        Ok(Opened { pool, config, has_session, lossy })
    }

    /// Connects outside the pool.
    async fn connect(&self, config: &Config) -> Result<Client, Failure> {
        // The client reports the end of the connection.
        self.connect_with((config, self.settings.is_plain), &Arc::default()).await.map(|(client, _)| client)
    }

    /// Connects outside the pool, for another runtime.
    pub(crate) async fn connect_apart(&self) -> Result<Client, Failure> {
        self.connect(&self.opened().await?.config).await
    }

    /// Connects to listen for hints; returns the task of the connection too.
    pub(crate) async fn connect_to_listen(
        &self,
        arrived: &Arc<Notify>,
    ) -> Result<(Client, JoinHandle<()>), Failure> {
        let settings = self.settings.listen.as_deref().unwrap_or(&self.settings);
        self.connect_with((&settings.config, settings.is_plain), arrived).await
    }

    async fn connect_with(
        &self,
        (config, is_plain): (&Config, bool),
        arrived: &Arc<Notify>,
    ) -> Result<(Client, JoinHandle<()>), Failure> {
        let arrived = Arc::clone(arrived);
        Ok(if is_plain {
            let (client, connection) = config.connect(NoTls).await.map_err(Failure::of_connecting)?;
            (client, tokio::spawn(drive(connection, arrived)))
        } else {
            let (client, connection) = config.connect(self.tls()?).await.map_err(Failure::of_connecting)?;
            (client, tokio::spawn(drive(connection, arrived)))
        })
    }

    fn tls(&self) -> Result<MakeRustlsConnect, Failure> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            let why = "this machine has no trusted certificate authority (install `ca-certificates`, or set \
                       SSL_CERT_FILE)";
            return Err(Failure::Away(why.into()));
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| Failure::Away(error.into()))?;
        Ok(MakeRustlsConnect::new(builder.with_root_certificates(roots).with_no_client_auth()))
    }

    /// Refuses a server without the needs of a store. Returns a setting by which acknowledged data may be lost, if any.
    async fn judge(&self, client: &Client) -> Result<(bool, Option<String>), Failure> {
        const SETTINGS: &str = "SELECT current_setting('server_version_num')::bigint,
            current_setting('transaction_isolation'), current_setting('fsync'),
            current_setting('full_page_writes'), current_setting('synchronous_commit'),
            current_setting('lock_timeout'), current_setting('server_encoding')";
        let rows = client.query_typed(SETTINGS, &[]).await.map_err(Failure::of_statement)?;
        let row = &rows[0];
        let unsupported = |why: String| StoreError::Unsupported { store: self.name.clone(), why };
        let (version, isolation): (i64, String) = (row.get(0), row.get(1));
        if version < SERVER_MIN {
            let (found, least) = (version / 10_000, SERVER_MIN / 10_000);
            return Err(unsupported(format!("the server has version {found}, {least} is needed")).into());
        }
        let encoding: &str = row.get(6);
        if !ENCODINGS.contains(&encoding) {
            return Err(unsupported(format!(
                "the database has the encoding {encoding}, UTF8 is needed: `createdb -E UTF8 -T template0 NAME`"
            ))
            .into());
        }
        if isolation != "read committed" {
            return Err(unsupported(format!(
                "transactions are {isolation}, and a pooler refuses the setting of the session: `ALTER ROLE ... \
                 SET default_transaction_isolation = 'read committed'`"
            ))
            .into());
        }
        let names = ["fsync", "full_page_writes", "synchronous_commit"];
        let off = names.into_iter().enumerate().find(|(at, _)| row.get::<_, String>(at + 2) == "off");
        // A pooler may drop the start-up parameters without an error.
        let has_session = row.get::<_, &str>(5) == format!("{}s", LOCK_TIMEOUT.as_secs());
        Ok((has_session, off.map(|(_, name)| format!("{name} = off"))))
    }

    /// Returns a connection of the pool.
    pub(crate) async fn client(&self) -> Result<Object, Failure> {
        let client = self.opened().await?.pool.get().await;
        client.map_err(|error| match error {
            PoolError::Backend(error) => Failure::of_connecting(error),
            PoolError::Closed => StoreError::Closed(self.name.clone()).into(),
            other => Failure::Away(other.into()),
        })
    }

    /// Sends a statement once.
    async fn send(&self, statement: &Statement) -> Result<Vec<Row>, Failure> {
        let client = self.client().await?;
        let answer = self.query(&client, statement);
        let failure = match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(rows)) => return Ok(rows),
            Ok(Err(error)) => Failure::of_statement(error),
            Err(_) => {
                self.cancel(&client).await;
                let seconds = ANSWER_TIMEOUT.as_secs();
                Failure::Lost(format!("the server did not answer in {seconds} s").into())
            }
        };
        if matches!(failure, Failure::Lost(_)) {
            // Closed, and not given to another call.
            drop(Object::take(client));
        }
        Err(failure)
    }

    /// Sends a statement. A statement used often is prepared once for each connection.
    async fn query(&self, client: &Object, statement: &Statement) -> Result<Vec<Row>, Error> {
        let parameters = statement.parameters();
        let has_session = self.opened.get().is_some_and(|opened| opened.has_session);
        if !has_session || !self.uses.is_often(statement) {
            return client.query_typed(&statement.sql, &parameters).await;
        }
        let (values, types): (Vec<_>, Vec<_>) = parameters.into_iter().unzip();
        let prepared = client.prepare_typed_cached(&statement.sql, &types).await?;
        client.query(&prepared, &values).await
    }

    /// Requests the end of a statement; the statement may have ended before.
    async fn cancel(&self, client: &Client) {
        let token = client.cancel_token();
        let cancel = async {
            match (self.settings.is_plain, self.tls()) {
                (false, Ok(tls)) => drop(token.cancel_query(tls).await),
                _ => drop(token.cancel_query(NoTls).await),
            }
        };
        let _ = tokio::time::timeout(CANCEL_TIMEOUT, cancel).await;
    }

    /// Sends a statement. Repeats the same statement as [`with_patience`](Self::with_patience) does.
    ///
    /// Repetitions of the statement must have the same effect as a single execution.
    pub(crate) async fn run(&self, statement: &Statement) -> Result<Answer, Failure> {
        let (rows, repeated) = self.with_patience(|| self.send(statement)).await?;
        Ok(Answer { rows, repeated })
    }

    /// Repeats an attempt for [`PostgresOptions::patience`] while answers are lost or the server is away. Before the first
    /// connection, only a full server is asked again, for [`FULL_MAX`].
    ///
    /// Returns the answer, and whether an earlier answer was lost.
    pub(crate) async fn with_patience<T, A>(&self, attempt: impl Fn() -> A) -> Result<(T, bool), Failure>
    where
        A: Future<Output = Result<T, Failure>>,
    {
        let was_opened = self.opened.initialized();
        let begun = Instant::now();
        let (mut repeated, mut attempts, mut collisions) = (false, 0_u32, 0);
        loop {
            let failure = match attempt().await {
                Ok(answer) => return Ok((answer, repeated)),
                Err(failure) => failure,
            };
            let (limit, cause): (Duration, Cause) = match failure {
                Failure::Lost(cause) => {
                    repeated = true;
                    (self.options.patience, cause)
                }
                Failure::Away(cause) if was_opened || repeated => (self.options.patience, cause),
                Failure::Away(cause) if is_full(&cause) => (FULL_MAX, cause),
                Failure::Away(cause) => (Duration::ZERO, cause),
                Failure::Collided(cause) => {
                    collisions += 1;
                    if collisions > COLLISIONS_MAX {
                        return Err(if repeated { Failure::Lost(cause) } else { Failure::Collided(cause) });
                    }
                    (self.options.patience, cause)
                }
                decided => return Err(decided),
            };
            if begun.elapsed() >= limit {
                return Err(if repeated { Failure::Lost(cause) } else { Failure::Away(cause) });
            }
            tokio::time::sleep(pause(attempts)).await;
            attempts += 1;
        }
    }
}

/// Drives a connection; each received hint is passed on.
async fn drive<S, T>(mut connection: Connection<S, T>, arrived: Arc<Notify>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if matches!(message, AsyncMessage::Notification(_)) {
            // All sessions and the worker wait; a hint without a waiter counts for the next wait.
            arrived.notify_waiters();
            arrived.notify_one();
        }
    }
}

/// Returns a random pause; the upper limit doubles with each attempt.
fn pause(attempts: u32) -> Duration {
    let whole = PAUSE.0.saturating_mul(1 << attempts.min(10)).min(PAUSE.1);
    let random = RandomState::new().hash_one(attempts) % 1_000;
    whole / 2 + whole.mul_f64(random as f64 / 2_000.0)
}

/// Returns whether a pooler refused the start-up parameters.
fn refuses_parameters(error: &Error) -> bool {
    error.code() == Some(&SqlState::PROTOCOL_VIOLATION)
        && error.as_db_error().is_some_and(|error| error.message().contains("startup parameter"))
}
