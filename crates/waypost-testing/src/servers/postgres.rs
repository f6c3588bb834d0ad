//! A private PostgreSQL server for tests, in a temporary folder. The server ends with the test program.
//!
//! ```text
//!   test program --- pipe ---> shell ---> postgres
//! ```
//! The shell waits for the end of the pipe, however the test program ends. Then the shell stops the server
//! and removes the folder.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::servers::certificates::{KEY, SERVER};

/// Install locations of packages besides `PATH`: a folder and the prefix of its version folders.
const VERSIONS: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", ""),
    ("/usr", "pgsql"),
    ("/opt/homebrew/opt", "postgresql"),
    ("/usr/local/opt", "postgresql"),
];
/// Message about a missing installation.
const MISSING: &str = "PostgreSQL (`initdb`, `postgres`, `psql`) is neither on the PATH nor in a \
    folder where packages put it. `cargo xtask test` installs it; by hand: `apt-get install postgresql`, \
    `dnf install postgresql-server`, or `brew install postgresql`";
/// Start timeout; a start takes seconds on an idle machine.
const START: Duration = Duration::from_secs(120);
/// The superuser, who needs no password at the socket.
pub const USER: &str = "waypost";
/// A role that needs [`PASSWORD`] at the socket. Over TCP every role needs a password.
pub const LOCKED: &str = "locked";
/// The password of every role.
pub const PASSWORD: &str = "hunter22-of-the-tests";
/// Starts the server, again while a file `restart` exists and no file `away`, and stops it at the end of the pipe.
const WATCH: &str = r#"trap '' INT TERM HUP
serve() {
    "$1/postgres" -D "$2/data" >>"$2/log" 2>&1
    while rm "$2/restart" 2>/dev/null; do
        while [ -e "$2/away" ]; do sleep 0.05; done
        "$1/postgres" -D "$2/data" >>"$2/log" 2>&1
    done
}
serve "$1" "$2" &
read -r _
kill -QUIT "$(head -n 1 "$2/data/postmaster.pid")"
wait
rm -rf "$2""#;

/// A private server.
#[derive(Debug)]
pub struct Cluster {
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
    /// Closing the pipe stops the server.
    _pipe: ChildStdin,
}

/// Returns the server of this program; the first call starts it.
///
/// # Panics
/// If PostgreSQL is not installed or does not start: a test without a server must not pass.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| {
        let programs = programs().unwrap_or_else(|| panic!("{MISSING}"));
        Cluster::start(programs).unwrap_or_else(|error| panic!("PostgreSQL does not start: {error}"))
    })
}

/// Returns whether [`cluster`] finds a server; else the error for people.
///
/// # Errors
/// PostgreSQL is not installed.
pub fn require() -> Result<(), &'static str> {
    programs().map(drop).ok_or(MISSING)
}

/// Returns the folder with the server programs; among several versions, the greatest name.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_packages = VERSIONS.into_iter().flat_map(|(above, begins)| {
        let entries = fs::read_dir(above).into_iter().flatten().flatten();
        let of_versions = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(begins));
        let mut folders: Vec<PathBuf> = of_versions.map(|entry| entry.path().join("bin")).collect();
        folders.sort();
        folders.into_iter().rev()
    });
    let has_all =
        |folder: &PathBuf| ["initdb", "postgres", "psql"].iter().all(|name| folder.join(name).is_file());
    std::env::split_paths(&path).chain(of_packages).find(has_all)
}

impl Cluster {
    /// Starts another server, for a test that kills it.
    ///
    /// # Panics
    /// As [`cluster`].
    pub fn private() -> Self {
        let programs = programs().unwrap_or_else(|| panic!("{MISSING}"));
        Self::start(programs).unwrap_or_else(|error| panic!("PostgreSQL does not start: {error}"))
    }

    fn start(programs: PathBuf) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("waypost-pg-").tempdir_in("/tmp")?.keep();
        let owner = owner()?;
        let own = |path: &Path| owner.map_or(Ok(()), |(user, group)| chown(path, Some(user), Some(group)));
        own(&folder)?;
        let data = folder.join("data");
        let mut init = as_owner(programs.join("initdb"), owner);
        init.args(["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"]).arg(&data);
        checked(init.current_dir(&folder).output()?)?;

        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{}'\n\
             ssl = on\nssl_cert_file = 'test.pem'\nssl_key_file = 'test.key'\nmax_connections = 100\n",
            folder.display()
        );
        let access =
            "local all locked scram-sha-256\nlocal all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
        for (name, text) in
            [("waypost.conf", &*settings), ("pg_hba.conf", access), ("test.pem", SERVER), ("test.key", KEY)]
        {
            let path = data.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            own(&path)?;
        }
        let main = data.join("postgresql.conf");
        let text = fs::read_to_string(&main)?;
        fs::write(&main, format!("{text}\ninclude 'waypost.conf'\n"))?;

        let mut watch = as_owner(PathBuf::from("/bin/sh"), owner);
        watch.args(["-c", WATCH, "sh"]).arg(&programs).arg(&folder).current_dir(&folder);
        watch.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let pipe = watch.spawn()?.stdin.take().expect("it was asked for");
        let cluster = Self { programs, folder, port, _pipe: pipe };
        cluster.wait()?;
        cluster.run(
            "postgres",
            &format!(
                "CREATE ROLE locked LOGIN PASSWORD '{PASSWORD}'; ALTER ROLE waypost PASSWORD '{PASSWORD}'"
            ),
        )?;
        Ok(cluster)
    }

    fn wait(&self) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            let Err(error) = self.run("postgres", "SELECT 1") else { return Ok(()) };
            if begun.elapsed() > START {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                return Err(io::Error::other(format!("{error}\n{log}")));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn run(&self, database: &str, text: &str) -> io::Result<()> {
        let mut psql = Command::new(self.psql());
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", database, "-c", text, "-p"]);
        psql.arg(self.port.to_string()).arg("-h").arg(&self.folder).stdin(Stdio::null());
        checked(psql.output()?)
    }

    /// Creates a database, replacing an existing one, and runs SQL in it.
    ///
    /// # Panics
    /// If the server reports an error.
    pub fn database(&self, name: &str, text: &str) {
        for text in [format!("DROP DATABASE IF EXISTS {name}"), format!("CREATE DATABASE {name}")] {
            self.run("postgres", &text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        self.sql(name, text);
    }

    /// Runs SQL in a database.
    ///
    /// # Panics
    /// If the server reports an error.
    pub fn sql(&self, database: &str, text: &str) {
        self.run(database, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    /// Kills the server as a crash does, and starts it again; returns when it answers.
    ///
    /// # Panics
    /// If the server has no process, or does not start.
    pub fn restart(&self) {
        self.restart_after(|| ());
    }

    /// As [`restart`](Self::restart); without a server while `work` runs.
    ///
    /// # Panics
    /// If the server has no process, or does not start.
    pub fn restart_after(&self, work: impl FnOnce()) {
        let away = self.folder.join("away");
        fs::write(&away, "").unwrap_or_else(|error| panic!("{error}"));
        fs::write(self.folder.join("restart"), "").unwrap_or_else(|error| panic!("{error}"));
        let note = fs::read_to_string(self.folder.join("data/postmaster.pid"));
        let note = note.unwrap_or_else(|error| panic!("no server: {error}"));
        let pid = note.lines().next().unwrap_or_default();
        let killed = Command::new("kill").args(["-QUIT", pid]).status();
        assert!(killed.is_ok_and(|status| status.success()), "cannot kill server {pid}");
        while fs::exists(self.folder.join("restart")).unwrap_or(true) {
            thread::sleep(Duration::from_millis(10));
        }
        work();
        fs::remove_file(&away).unwrap_or_else(|error| panic!("{error}"));
        self.wait().unwrap_or_else(|error| panic!("the server does not start again: {error}"));
    }

    /// Returns the connection of a role to a database through the socket.
    pub fn connection(&self, user: &str, database: &str) -> String {
        format!("host={} port={} user={user} dbname={database}", self.folder.display(), self.port)
    }

    /// Returns the folder of the socket.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the port, which is part of the socket name too.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path of `psql`.
    pub fn psql(&self) -> PathBuf {
        self.programs.join("psql")
    }
}

/// Returns the user of the server process, which must not be root. Packages create a user for this purpose.
fn owner() -> io::Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let ids = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let found = ids("postgres").or_else(|| ids("nobody"));
    found
        .map(Some)
        .ok_or_else(|| io::Error::other("there is neither a user `postgres` nor `nobody` to run it as"))
}

fn as_owner(program: PathBuf, owner: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = owner {
        command.uid(user).gid(group);
    }
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

fn checked(output: Output) -> io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}
