//! A real pooler before the server: PgBouncer, which gives each transaction another server connection.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use waypost::store::{Queue as _, RunQuery, Store as _};
use waypost_postgres::{PostgresOptions, PostgresStore};
use waypost_testing::contract::block_on;
use waypost_testing::postgres::{Cluster, USER, cluster};

use crate::support::Site;

/// A pooler before the private server; ends with its drop.
struct Pooler {
    process: Child,
    folder: PathBuf,
    url: String,
}

impl Pooler {
    /// Starts a pooler with at most `size` connections to the server.
    fn before(server: &Cluster, site: &Site, size: u32) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::Builder::new().prefix("waypost-pooler-").tempdir_in("/tmp").unwrap().keep();
        let place = folder.display();
        let settings = format!(
            "[databases]\n* = host={} port={} user={USER}\n[pgbouncer]\nlisten_addr =\nlisten_port = {port}\n\
             unix_socket_dir = {place}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {size}\n\
             ignore_startup_parameters = options\nlogfile = {place}/log\npidfile = {place}/pid\n",
            server.folder().display(),
            server.port(),
        );
        std::fs::write(folder.join("pgbouncer.ini"), settings).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&folder, open).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("pgbouncer");
        // Packages install it for the administrator.
        command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        command.arg(folder.join("pgbouncer.ini")).stdout(Stdio::null()).stderr(Stdio::null());
        let missing =
            "this test needs PgBouncer: `cargo xtask test` installs it, or `apt-get install pgbouncer`";
        let process = command.spawn().expect(missing);
        let url = format!("host={place} port={port} user={USER} dbname={}", site.database());
        Self { process, folder, url }
    }

    async fn store(&self) -> PostgresStore {
        for _ in 0..500 {
            let store = PostgresStore::open(&self.url, PostgresOptions::default()).unwrap();
            if store.runs(&RunQuery::default()).await.is_ok() {
                return store;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the pooler does not answer: {}", std::fs::read_to_string(self.folder.join("log")).unwrap());
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// With a single server connection, two transactions have the same session: a worker once took the pooler for a server,
/// and waited for hints that never came.
#[test]
fn a_worker_finds_out_that_a_pooler_loses_hints() {
    block_on(async {
        let server = cluster();
        let site = Site::on(server).await;
        for size in [1, 2, 20] {
            let pooler = Pooler::before(server, &site, size);
            let store = pooler.store().await;

            let why = store.listen().await.unwrap_or_default();

            assert!(why.contains("a pooler between worker and server loses hints"), "{size}: {why}");
        }
        assert_eq!(site.open().listen().await, None);
    });
}
