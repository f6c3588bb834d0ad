//! Connection settings for PostgreSQL, from the claim (without a password) and the environment.

use std::error::Error as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::str::FromStr as _;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use waypost::evidence::Finding;

use crate::databases::subject::{ConnectionText, PgVariables};

/// Default port of PostgreSQL.
const PORT: u16 = 5432;
/// Largest password file; each line is for a database.
const PASSFILE_BYTES_MAX: u64 = 1 << 20;

/// Checks that a recorded subject is a PostgreSQL connection without a password.
///
/// # Errors
/// The reason as text, without a quotation of the subject.
pub(crate) fn check_subject(subject: &str) -> Result<(), String> {
    match ConnectionText::of(subject) {
        ConnectionText::Variable(name) => check_variable(name),
        ConnectionText::Plain(text) => plain(text).map(drop),
    }
}

/// Returns whether the database is certainly on this machine.
pub(crate) fn is_here(subject: &str) -> bool {
    match ConnectionText::of(subject) {
        ConnectionText::Plain(text) => {
            plain(text).is_ok_and(|config| config.get_hosts().iter().all(is_local))
        }
        ConnectionText::Variable(_) => false,
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => crate::network::host::Host::read(name).is_here(),
        Host::Unix(_) => true,
    }
}

fn check_variable(name: &str) -> Result<(), String> {
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    match begins && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        true => Ok(()),
        false => Err("`env:` needs the name of a variable".to_owned()),
    }
}

/// Parses a connection in a claim.
fn plain(text: &str) -> Result<Config, String> {
    let config = Config::from_str(text).map_err(|error| {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("not a PostgreSQL connection string{cause}")
    })?;
    if config.get_password().is_some() {
        return Err("the connection string contains a password, which would be recorded".to_owned());
    }
    one_host(config)
}

fn one_host(config: Config) -> Result<Config, String> {
    match config.get_hosts().len() {
        1 => Ok(config),
        0 => {
            Err("the connection string has no host: a name, an address, or the folder of a socket".to_owned())
        }
        _ => Err("the connection string has several hosts, and a claim is about one database".to_owned()),
    }
}

/// Settings for a connection.
#[derive(Debug)]
pub(crate) struct PgConfig {
    pub(crate) config: Config,
    /// The reason why the password file was not used.
    pub(crate) note: Option<String>,
}

impl PgConfig {
    /// Returns the settings for the subject of a claim. Variables and password files are read.
    pub(crate) fn of(subject: &str, variables: &PgVariables) -> Result<Self, Finding> {
        let config = match ConnectionText::of(subject) {
            ConnectionText::Plain(text) => plain(text).map_err(Finding::failed)?,
            ConnectionText::Variable(name) => {
                check_variable(name).map_err(Finding::failed)?;
                let text =
                    variables.get(name).ok_or_else(|| Finding::unknown(format!("`{name}` is not set")))?;
                // The parser's error could quote a password.
                let wrong = || {
                    Finding::unknown(format!(
                        "the value of `{name}` is not a connection string for one PostgreSQL database"
                    ))
                };
                Config::from_str(&text).ok().and_then(|config| one_host(config).ok()).ok_or_else(wrong)?
            }
        };
        let mut login = Self { config, note: None };
        if login.config.get_password().is_none() {
            match variables.get("PGPASSWORD") {
                Some(password) => drop(login.config.password(password)),
                None => login.look_up(variables),
            }
        }
        Ok(login)
    }

    /// Returns whether the connection may be unencrypted: `sslmode` disables encryption, or the host is this
    /// machine.
    pub(crate) fn is_plain(&self) -> bool {
        let may_be_plain = !matches!(self.config.get_ssl_mode(), SslMode::Require);
        let is_disabled = matches!(self.config.get_ssl_mode(), SslMode::Disable);
        is_disabled || may_be_plain && self.config.get_hosts().iter().all(is_local)
    }

    /// Takes the password from the password file, if present.
    fn look_up(&mut self, variables: &PgVariables) {
        let usual = || Some(PathBuf::from(variables.get("HOME")?).join(".pgpass"));
        let Some(path) = variables.get("PGPASSFILE").map(PathBuf::from).or_else(usual) else { return };
        let Ok(metadata) = std::fs::metadata(&path) else { return };
        if !metadata.is_file() || metadata.len() > PASSFILE_BYTES_MAX {
            return;
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            self.note = Some(format!("ignored {}, readable by other users (chmod 600)", path.display()));
            return;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { return };
        let user =
            self.config.get_user().map(str::to_owned).or_else(|| variables.get("USER")).unwrap_or_default();
        let database = self.config.get_dbname().unwrap_or(&user).to_owned();
        let port = self.config.get_ports().first().copied().unwrap_or(PORT).to_string();
        let hosts: Vec<String> = self.config.get_hosts().iter().flat_map(names_of).collect();
        let is_for = |fields: &[String]| {
            let takes = |at: usize, value: &str| fields[at] == "*" || fields[at] == value;
            hosts.iter().any(|host| takes(0, host))
                && takes(1, &port)
                && takes(2, &database)
                && takes(3, &user)
        };
        let mut lines = text.lines().filter(|line| !line.starts_with('#')).map(fields);
        if let Some(line) = lines.find(|fields| fields.len() == 5 && is_for(fields)) {
            self.config.password(&line[4]);
        }
    }
}

/// Returns the names of a host in the password file. A socket is also known as `localhost`.
fn names_of(host: &Host) -> Vec<String> {
    match host {
        Host::Tcp(name) => vec![name.clone()],
        Host::Unix(folder) => vec![folder.to_string_lossy().into_owned(), "localhost".to_owned()],
    }
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
        fields.last_mut().expect("the text begins with a letter").extend(taken);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::{fields, is_here};
    use crate::{check_connection, recorded_connection};

    #[test]
    fn a_connection_names_one_host_and_holds_no_password() {
        for good in [
            "postgres://me@db.example:5433/jobs?sslmode=require",
            "postgresql://db.example",
            "env:DATABASE_URL",
            "host=/run/postgresql dbname=jobs",
            "host=localhost user=me",
            "postgresql:///jobs?host=/tmp",
        ] {
            assert_eq!(check_connection(&recorded_connection(good)), Ok(()), "{good}");
        }
        for bad in [
            "postgres://me:hunter22@db.example/jobs",
            "host=a password=hunter22",
            "postgres://a/b?password=hunter22",
            "dbname=jobs",
            "host=a,b",
            "postgres://a,b/c",
            "host=a colour=red",
            "host=a sslmode=verify",
            "env:",
            "env:A B",
            "env:A-B",
            "",
            "jobs",
            "mysql://a/b",
        ] {
            let why = check_connection(&recorded_connection(bad)).expect_err(bad);
            assert!(!why.contains("hunter22"), "{bad}: {why}");
        }
    }

    #[test]
    fn a_database_of_this_machine_is_known() {
        for (subject, here) in [
            ("postgres:host=/tmp", true),
            ("postgres://localhost/a", true),
            ("postgres://127.0.0.1/a", true),
            ("postgres://db.example/a", false),
            ("postgres:env:DB", false),
        ] {
            assert_eq!(is_here(subject), here, "{subject}");
        }
    }

    #[test]
    fn a_line_of_passwords_is_split_at_its_colons() {
        assert_eq!(fields(r"a\:b:5432:*:me:p:w\\:d"), ["a:b", "5432", "*", "me", r"p:w\:d"]);
    }
}
