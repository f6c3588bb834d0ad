//! Subjects of claims about databases, known to every build.
//!
//! A build without the feature `postgres` refuses each connection to PostgreSQL.

use std::collections::BTreeMap;

use crate::databases::postgres;

/// URL schemes of PostgreSQL connections.
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
/// Prefix of recorded connections in other notations; distinguishes a connection from a path.
const PREFIX: &str = "postgres:";
/// Prefix of a variable name.
#[cfg(feature = "postgres")]
const VARIABLE: &str = "env:";
/// First words of read-only queries.
const READING: [&str; 4] = ["SELECT", "WITH", "VALUES", "TABLE"];

/// Returns whether a subject is a PostgreSQL connection.
pub(crate) fn is_postgres(subject: &str) -> bool {
    subject.starts_with(PREFIX) || SCHEMES.iter().any(|scheme| subject.starts_with(scheme))
}

/// Returns the recorded form of a connection. `env:NAME` and `key=value` pairs get the prefix `postgres:`,
/// which distinguishes them from paths.
pub fn recorded_connection(text: &str) -> String {
    if is_postgres(text) { text.to_owned() } else { format!("{PREFIX}{text}") }
}

/// Checks that a recorded subject is a PostgreSQL connection without a password.
///
/// # Errors
/// The reason as text, without a quotation of the subject. Every connection is an error without the feature
/// `postgres`.
pub fn check_connection(subject: &str) -> Result<(), String> {
    postgres::check_subject(subject)
}

/// Checks that a query starts like a read-only query.
///
/// # Errors
/// The reason as text.
pub fn check_query(text: &str) -> Result<(), String> {
    let mut rest = text.trim_start();
    loop {
        rest = match rest {
            line if line.starts_with("--") => line.split_once('\n').map_or("", |(_, rest)| rest),
            block if block.starts_with("/*") => block.split_once("*/").map_or("", |(_, rest)| rest),
            open if open.starts_with('(') => &open[1..],
            _ => break,
        }
        .trim_start();
    }
    let word = rest.split(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or_default();
    match READING.iter().any(|known| known.eq_ignore_ascii_case(word)) {
        true => Ok(()),
        false => Err(format!("a read-only query begins with {}", READING.join(", "))),
    }
}

/// Notation of a connection.
#[cfg(feature = "postgres")]
pub(crate) enum ConnectionText<'a> {
    /// The name of a variable, read at the time of the check.
    Variable(&'a str),
    Plain(&'a str),
}

#[cfg(feature = "postgres")]
impl<'a> ConnectionText<'a> {
    pub(crate) fn of(subject: &'a str) -> Self {
        let is_url = SCHEMES.iter().any(|scheme| subject.starts_with(scheme));
        let bare = if is_url { subject } else { subject.strip_prefix(PREFIX).unwrap_or(subject) };
        bare.strip_prefix(VARIABLE).map_or(Self::Plain(bare), Self::Variable)
    }
}

/// The variables for a check.
#[derive(Debug, Clone, Default)]
pub(crate) enum PgVariables {
    /// The environment of this process, read at the time of use.
    #[default]
    Own,
    /// A fixed set.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only PostgreSQL reads it"))]
    Given(BTreeMap<String, String>),
}

#[cfg(feature = "postgres")]
impl PgVariables {
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        let value = match self {
            Self::Own => std::env::var(name).ok(),
            Self::Given(variables) => variables.get(name).cloned(),
        };
        value.filter(|value| !value.is_empty())
    }
}
