//! The settings of a connection, from the URL and the environment.

use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use waypost::store::StoreError;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The server ends a longer statement. A batch takes milliseconds; only a vast deletion takes seconds.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(45);
/// The server ends a longer wait for a lock: half of a statement.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// Shortest and longest lease: a renewal takes part of a second, and a lost worker delays its runs this long.
const LEASES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);
/// Default port of PostgreSQL.
const PORT: u16 = 5432;
/// Largest password file; each line is for a database.
const PASSFILE_BYTES_MAX: u64 = 1 << 20;

/// The use of the server by a store.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Most connections for the statements of this process; a lease and hints have one more each.
    pub connections_max: usize,
    /// How long a lease is valid without a renewal.
    pub lease: Duration,
    /// How long a call repeats a statement while the server is away, after the first answer of the server.
    pub patience: Duration,
    /// How long the holder of a run repeats a batch while the server is away: the results of ended steps count unless
    /// another process has claimed the run.
    pub patience_of_holder: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            connections_max: 4,
            lease: Duration::from_secs(60),
            patience: Duration::from_secs(30),
            patience_of_holder: Duration::from_secs(600),
        }
    }
}

/// Parsed settings.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) config: Config,
    /// The name of the store, without a password.
    pub(crate) name: String,
    /// Whether the connection may be unencrypted.
    pub(crate) is_plain: bool,
    /// The server to listen at, past a pooler.
    pub(crate) listen: Option<Box<Settings>>,
    /// How long a lease is valid without a renewal, if the URL says so.
    pub(crate) lease: Option<Duration>,
    /// The folder for logs, outside the database.
    pub(crate) logs: Option<PathBuf>,
}

impl Settings {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`StoreError::Invalid`]: the URL is wrong. The message does not quote the URL: there may be a password.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let invalid = |why: &str| {
            StoreError::Invalid(format!(
                "cannot use the URL of the PostgreSQL store: {why}, such as \
                 `postgres://USER@HOST/DATABASE`"
            ))
        };
        let (url, listen) = split_option(url, "listen=");
        let (url, lease) = split_option(&url, "lease=");
        let (url, logs) = split_option(&url, "logs=");
        let logs = logs.map(PathBuf::from);
        if logs.as_ref().is_some_and(|folder| !folder.is_absolute()) {
            return Err(invalid("`logs` is not an absolute path"));
        }
        let lease = lease.map(|text| lease_of(&text).ok_or_else(|| invalid("`lease` is not 1 to 3600 s")));
        let lease = lease.transpose()?;
        let listen = listen.map(|url| Self::parse(&url).map(Box::new)).transpose()?;
        let mut config = Config::from_str(&url).map_err(|error| {
            let cause = std::error::Error::source(&error).map(|cause| format!(" ({cause})"));
            invalid(&format!("not a connection string{}", cause.unwrap_or_default()))
        })?;
        if config.get_hosts().is_empty() {
            return Err(invalid("no host"));
        }
        if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains('@'))) {
            return Err(invalid("the password has an `@`, which is written as `%40`"));
        }
        if config.get_dbname().is_none() {
            return Err(invalid("no database"));
        }
        if config.get_user().is_none() {
            let user = std::env::var("PGUSER").or_else(|_| std::env::var("USER"));
            config.user(user.map_err(|_| invalid("no user"))?);
        }
        if config.get_password().is_none() {
            match std::env::var("PGPASSWORD").ok().filter(|password| !password.is_empty()) {
                Some(password) => drop(config.password(password)),
                None => add_password(&mut config),
            }
        }
        let name = name_of(&config);
        let is_local = config.get_hosts().iter().all(is_local);
        let is_plain = match config.get_ssl_mode() {
            SslMode::Disable => true,
            SslMode::Require => false,
            _ => is_local,
        };
        // A server elsewhere must encrypt: a fall-back to plain text would send the password in clear.
        config.ssl_mode(if is_plain { SslMode::Disable } else { SslMode::Require });
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.application_name("waypost");
        Ok(Self { config, name, is_plain, listen, lease, logs })
    }

    /// Adds the settings of the session as start-up parameters. A pooler refuses start-up parameters.
    ///
    /// A compiled or specific plan would cost more than the execution: every statement reads few rows by an index.
    pub(crate) fn with_session(&self) -> Config {
        let mut config = self.config.clone();
        config.options(format!(
            "-c default_transaction_isolation=read\\ committed -c jit=off -c plan_cache_mode=force_generic_plan \
             -c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={}",
            STATEMENT_TIMEOUT.as_millis(),
            LOCK_TIMEOUT.as_millis(),
            STATEMENT_TIMEOUT.as_millis(),
        ));
        config
    }
}

/// Parses the option `lease`, in seconds.
fn lease_of(text: &str) -> Option<Duration> {
    text.parse().ok().map(Duration::from_secs).filter(|lease| LEASES.contains(lease))
}

/// Splits off an option of this program; its value is percent-encoded.
fn split_option(url: &str, name: &str) -> (String, Option<String>) {
    let Some((base, options)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (own, others): (Vec<&str>, Vec<&str>) =
        options.split('&').partition(|option| option.starts_with(name));
    let value = own.first().map(|option| decoded(&option[name.len()..]));
    match others.is_empty() {
        true => (base.to_owned(), value),
        false => (format!("{base}?{}", others.join("&")), value),
    }
}

/// Decodes percent-encoded bytes.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => bytes.extend([&[byte], &part.as_bytes()[2..]].concat()),
            None => bytes.extend([b"%", part.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

/// Names the store as a URL without a password.
fn name_of(config: &Config) -> String {
    let database = config.get_dbname().unwrap_or_default();
    let user = config.get_user().unwrap_or_default();
    let ports = config.get_ports();
    let place = |(index, host): (usize, &Host)| {
        let port = ports.get(index).or(ports.first()).filter(|port| **port != PORT);
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        match host {
            Host::Tcp(name) => format!("{name}{port}"),
            Host::Unix(folder) => format!("{}{port}", folder.display().to_string().replace('/', "%2F")),
        }
    };
    let places: Vec<String> = config.get_hosts().iter().enumerate().map(place).collect();
    format!("postgres://{user}@{}/{database}", places.join(","))
}

/// Takes the password from the password file, if present and not readable by others.
fn add_password(config: &mut Config) {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let usual = || Some(PathBuf::from(variable("HOME")?).join(".pgpass"));
    let Some(path) = variable("PGPASSFILE").map(PathBuf::from).or_else(usual) else { return };
    let Ok(metadata) = std::fs::metadata(&path) else { return };
    let is_private = metadata.permissions().mode() & 0o077 == 0;
    if !metadata.is_file() || metadata.len() > PASSFILE_BYTES_MAX || !is_private {
        return;
    }
    let Ok(text) = std::fs::read_to_string(&path) else { return };
    if let Some(password) = password_in(&text, config) {
        config.password(password);
    }
}

/// Finds the password for a connection in the text of a password file.
fn password_in(text: &str, config: &Config) -> Option<String> {
    let port = config.get_ports().first().copied().unwrap_or(PORT).to_string();
    let (database, user) = (config.get_dbname()?, config.get_user()?);
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .flat_map(|host| match host {
            Host::Tcp(name) => vec![name.clone()],
            Host::Unix(folder) => vec![folder.to_string_lossy().into_owned(), "localhost".to_owned()],
        })
        .collect();
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).map(fields);
    let is_for = |fields: &Vec<String>| {
        let takes = |at: usize, value: &str| fields[at] == "*" || fields[at] == value;
        fields.len() == 5
            && hosts.iter().any(|host| takes(0, host))
            && takes(1, &port)
            && takes(2, database)
            && takes(3, user)
    };
    lines.find(is_for)?.pop()
}

/// Splits a line of the password file at colons; a backslash escapes the next character.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut characters) = (vec![String::new()], line.chars());
    while let Some(character) = characters.next() {
        let taken = match character {
            // The last field, the password, may contain colons.
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                continue;
            }
            '\\' => characters.next(),
            other => Some(other),
        };
        fields.last_mut().expect("the list begins with a field").extend(taken);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_part_of_the_name() {
        let settings = Settings::parse("postgres://me:hunter22@db.example:5433/jobs").unwrap();

        assert_eq!(settings.name, "postgres://me@db.example:5433/jobs");
        assert_eq!(
            Settings::parse("postgres://me@%2Ftmp%2Fx/jobs").unwrap().name,
            "postgres://me@%2Ftmp%2Fx/jobs"
        );
    }

    #[test]
    fn the_server_to_listen_at_is_an_address_of_its_own() {
        let url = "postgres://me@pool:6432/jobs?lease=5&sslmode=require&listen=postgres%3A%2F%2Fme@db%2Fjobs&logs=/a%20b";
        let settings = Settings::parse(url).unwrap();

        assert_eq!(settings.name, "postgres://me@pool:6432/jobs");
        assert_eq!(settings.lease, Some(Duration::from_secs(5)));
        assert_eq!(settings.logs.unwrap().to_str(), Some("/a b"));
        assert_eq!(settings.listen.unwrap().name, "postgres://me@db/jobs");
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "postgres://me:hunter22@db/jobs?colour=red",
            "postgres://me:hunter22@db/jobs?logs=here",
            "postgres://me:hunter22@db",
            "postgres://me:x@hunter22@db/jobs",
            "postgres://",
        ] {
            let error = Settings::parse(url).unwrap_err();

            assert!(matches!(error, StoreError::Invalid(_)), "{error}");
            assert!(!error.to_string().contains("hunter22"), "{error}");
        }
    }

    #[test]
    fn only_a_server_of_this_machine_may_be_plain() {
        for (url, is_plain) in [
            ("postgres://me@localhost/a", true),
            ("postgres://me@127.0.0.1/a", true),
            ("postgres://me@%2Ftmp/a", true),
            ("postgres://me@db.example/a", false),
            ("postgres://me@localhost/a?sslmode=require", false),
            ("postgres://me@db.example/a?sslmode=disable", true),
        ] {
            assert_eq!(Settings::parse(url).unwrap().is_plain, is_plain, "{url}");
        }
    }

    #[test]
    fn the_password_file_is_read_as_libpq_does() {
        let config = Settings::parse("postgres://me:x@db/jobs").unwrap().config;
        let text = "# comment\nother:*:*:*:no\ndb:5432:jobs:me:p:w\\\\:d\n";

        assert_eq!(password_in(text, &config).as_deref(), Some(r"p:w\:d"));
    }
}
