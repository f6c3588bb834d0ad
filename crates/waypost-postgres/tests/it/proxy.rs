//! A proxy before a server; loses chosen statements or answers.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use waypost_postgres::{PostgresOptions, PostgresStore};

/// When the connection of the next chosen statement ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// The server never gets the statement.
    BeforeTheStatement,
    /// The server has carried out the statement, and the answer is lost.
    AfterTheAnswer,
    /// The client loses the connection, and the server gets the statement later.
    Late(Duration),
    /// As `AfterTheAnswer`, every time.
    Always,
    /// Start-up parameters are refused, as by a pooler between transactions.
    Pooler,
}

/// A proxy on a Unix socket.
#[derive(Debug)]
pub(crate) struct Proxy {
    url: String,
    folder: PathBuf,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    chosen: &'static [u8],
    plan: Mutex<Option<When>>,
    cuts: AtomicU32,
}

impl State {
    fn next(&self) -> Option<When> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let when = *plan;
        if !matches!(when, Some(When::Always | When::Pooler)) {
            *plan = None;
        }
        self.cuts.fetch_add(u32::from(when.is_some()), Ordering::Relaxed);
        when
    }
}

impl Proxy {
    /// Starts a proxy before the server of a connection; statements with the bytes `chosen` can be lost.
    pub(crate) async fn before(connection: &str, chosen: &'static [u8]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let config: Config = connection.parse().unwrap();
        let port = config.get_ports()[0];
        let Host::Unix(server) = &config.get_hosts()[0] else { panic!("the server has a socket") };
        let server = server.join(format!(".s.PGSQL.{port}"));
        let (pid, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("waypost-proxy-{pid}-{number}"));
        std::fs::create_dir(&folder).unwrap();
        let listener = UnixListener::bind(folder.join(format!(".s.PGSQL.{port}"))).unwrap();
        let state = Arc::new(State { chosen, plan: Mutex::new(None), cuts: AtomicU32::new(0) });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.unwrap();
                tokio::spawn(serve(client, server, Arc::clone(&shared)));
            }
        });
        let (user, database) = (config.get_user().unwrap(), config.get_dbname().unwrap());
        let url = format!("host={} port={port} user={user} dbname={database}", folder.display());
        Self { url, folder, state }
    }

    pub(crate) fn store(&self, options: PostgresOptions) -> PostgresStore {
        PostgresStore::open(&self.url, options).unwrap()
    }

    /// Plans the loss of the next chosen statement.
    pub(crate) fn cut(&self, when: When) {
        *self.state.plan.lock().unwrap() = Some(when);
    }

    /// Loses nothing from now on.
    pub(crate) fn mend(&self) {
        *self.state.plan.lock().unwrap() = None;
    }

    /// Returns the number of lost statements.
    pub(crate) fn cuts(&self) -> u32 {
        self.state.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns the error message of a pooler about a start-up parameter.
fn refusal() -> Vec<u8> {
    let fields = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0";
    let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
    [b"E".as_slice(), &length, fields].concat()
}

/// Carries bytes both ways until either side ends or a planned loss.
async fn serve(mut client: UnixStream, mut server: UnixStream, state: Arc<State>) {
    let (mut from_client, mut from_server) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(bytes @ 1..) = read else { return };
                let sent = &from_client[..bytes];
                let is_chosen = sent.windows(state.chosen.len()).any(|part| part == state.chosen);
                match is_chosen.then(|| state.next()).flatten() {
                    None => {
                        if server.write_all(sent).await.is_err() { return }
                    }
                    Some(When::BeforeTheStatement) => return,
                    Some(When::AfterTheAnswer | When::Always) => {
                        let _ = server.write_all(sent).await;
                        let _ = server.read(&mut from_server).await;
                        return;
                    }
                    Some(When::Pooler) => {
                        let _ = client.write_all(&refusal()).await;
                        return;
                    }
                    Some(When::Late(delay)) => {
                        drop(client);
                        tokio::time::sleep(delay).await;
                        let _ = server.write_all(sent).await;
                        let _ = server.read(&mut from_server).await;
                        return;
                    }
                }
            }
            read = server.read(&mut from_server) => {
                let Ok(bytes @ 1..) = read else { return };
                if client.write_all(&from_server[..bytes]).await.is_err() { return }
            }
        }
    }
}
