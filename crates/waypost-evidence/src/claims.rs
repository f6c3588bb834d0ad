//! Claims in Rust: one function a kind, and what is expected of it after that.
//!
//! Nothing is checked while a claim is written: what makes no sense does not hold, and its finding says why.

use serde_json::{Map, Value, json};
use waypost::evidence::{ARTIFACT_EXISTS, InvalidPack};
use waypost::record::{Claim, Pack};

use crate::{API_RESPONSE, CONTAINER_RUNNING, DB_ROW, JSON_VALUE, NETWORK_REACHABLE, recorded_connection};

/// Begins a pack; its claims follow by [`and`](PackBuilder::and).
pub fn pack() -> PackBuilder {
    PackBuilder::default()
}

/// Claims that a file is there; what is in it may follow. Its path begins at the base folder.
pub fn file(path: impl Into<String>) -> File {
    File(Draft::of(ARTIFACT_EXISTS, path.into()))
}

/// Claims that a JSON file has a `value` at a `path` such as `$.items[0].name`.
#[must_use]
pub fn json(file: impl Into<String>, path: &str, value: impl Into<Value>) -> Claim {
    Claim::new(JSON_VALUE, file).expecting(json!({ "path": path, "value": value.into() }))
}

/// Claims that something listens at a port of this machine.
#[must_use]
pub fn port(port: u16) -> Claim {
    Claim::new(NETWORK_REACHABLE, port.to_string())
}

/// Claims that a URL answers with 2xx; what else it answers may follow.
pub fn http(url: impl Into<String>) -> Http {
    Http(Draft::of(API_RESPONSE, url.into()))
}

/// Claims that a container runs, by its name or id.
pub fn container(name: impl Into<String>) -> Container {
    Container(Draft::of(CONTAINER_RUNNING, name.into()))
}

/// Claims that the table of an SQLite file has rows; which, and what stands in them, may follow.
pub fn sqlite(path: impl Into<String>, table: impl Into<String>) -> Rows {
    Rows(Draft::of(DB_ROW, path.into()).with("table", table.into()))
}

/// The same of a PostgreSQL database: a URL or `key=value` pairs without a password, or `env:NAME`.
pub fn postgres(connection: &str, table: impl Into<String>) -> Rows {
    Rows(Draft::of(DB_ROW, recorded_connection(connection)).with("table", table.into()))
}

/// Claims, and how many of them must hold.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct PackBuilder {
    claims: Vec<Claim>,
}

impl PackBuilder {
    /// Adds a claim.
    pub fn and(mut self, claim: impl Into<Claim>) -> Self {
        self.claims.push(claim.into());
        self
    }

    /// Makes the pack of which every claim must hold.
    #[must_use]
    pub fn all(self) -> Pack {
        Pack::all(self.claims)
    }

    /// Makes the pack of which one claim must hold.
    #[must_use]
    pub fn any(self) -> Pack {
        Pack::any(self.claims)
    }

    /// Makes the pack of which so many claims must hold.
    ///
    /// # Errors
    /// [`InvalidPack`] if that is none of them, or more than there are that say something different.
    pub fn at_least(self, count: u32) -> Result<Pack, InvalidPack> {
        Pack::at_least(count, self.claims)
    }
}

/// A claim with what is expected so far.
#[derive(Debug, Clone)]
struct Draft {
    claim: Claim,
    expect: Map<String, Value>,
}

impl Draft {
    fn of(kind: &str, subject: String) -> Self {
        Self { claim: Claim::new(kind, subject), expect: Map::new() }
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.expect.insert(name.to_owned(), value.into());
        self
    }

    /// Adds an entry to a map.
    fn with_entry(mut self, name: &str, key: impl Into<String>, value: impl Into<Value>) -> Self {
        let map = self.expect.entry(name).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(map) = map {
            map.insert(key.into(), value.into());
        }
        self
    }

    /// Adds a text to a list.
    fn with_item(mut self, name: &str, item: impl Into<String>) -> Self {
        let list = self.expect.entry(name).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(item.into().into());
        }
        self
    }
}

impl From<Draft> for Claim {
    fn from(draft: Draft) -> Self {
        if draft.expect.is_empty() { draft.claim } else { draft.claim.expecting(draft.expect) }
    }
}

/// What is claimed of a file.
#[derive(Debug, Clone)]
#[must_use]
pub struct File(Draft);

/// What is claimed of an answer.
#[derive(Debug, Clone)]
#[must_use]
pub struct Http(Draft);

/// What is claimed of a container.
#[derive(Debug, Clone)]
#[must_use]
pub struct Container(Draft);

/// What is claimed of rows.
#[derive(Debug, Clone)]
#[must_use]
pub struct Rows(Draft);

impl File {
    /// It contains a text; all of them, if several are named.
    pub fn contains(self, text: impl Into<String>) -> Self {
        Self(self.0.with_item("contains", text))
    }

    /// A regular expression matches something in it.
    pub fn matches(self, pattern: impl Into<String>) -> Self {
        Self(self.0.with("matches", pattern.into()))
    }

    /// It has so many lines.
    pub fn lines(self, count: impl Into<Value>) -> Self {
        Self(self.0.with("lines", count))
    }

    /// It has this size in bytes: `12`, `"> 0"`, `">= 2 KiB"`.
    pub fn size(self, size: impl Into<Value>) -> Self {
        Self(self.0.with("size", size))
    }
}

impl Http {
    /// The status of the answer, instead of 2xx.
    pub fn status(self, status: impl Into<Value>) -> Self {
        Self(self.0.with("status", status))
    }

    /// It is asked by another [method](crate::METHODS) than GET.
    pub fn method(self, method: impl Into<String>) -> Self {
        Self(self.0.with("method", method.into()))
    }

    /// What a header says; null if it must not be there.
    pub fn header(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("headers", name, value))
    }

    /// What stands in the body at a path such as `$.items[0].name`.
    pub fn json(self, path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("json", path, value))
    }

    /// All of the body, without the end of its last line.
    pub fn body(self, body: impl Into<Value>) -> Self {
        Self(self.0.with("body", body))
    }

    /// The body contains a text; all of them, if several are named.
    pub fn contains(self, text: impl Into<String>) -> Self {
        Self(self.0.with_item("contains", text))
    }

    /// Its name may lead to an address that is not of the internet.
    pub fn private(self) -> Self {
        Self(self.0.with("private", true))
    }
}

impl Container {
    /// It is there, and does not run.
    pub fn stopped(self) -> Self {
        Self(self.0.with("running", false))
    }

    /// Its health check says that it is healthy.
    pub fn healthy(self) -> Self {
        Self(self.0.with("healthy", true))
    }

    /// What it was started from.
    pub fn image(self, image: impl Into<Value>) -> Self {
        Self(self.0.with("image", image))
    }

    /// Which [engine](crate::ENGINES) has it.
    pub fn engine(self, engine: impl Into<String>) -> Self {
        Self(self.0.with("engine", engine.into()))
    }
}

impl Rows {
    /// Rows are meant that have this value in a column.
    pub fn whose(self, column: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("where", column, value))
    }

    /// What stands in another column of such a row.
    pub fn value(self, column: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("values", column, value))
    }

    /// How many such rows there are.
    pub fn count(self, count: impl Into<Value>) -> Self {
        Self(self.0.with("count", count))
    }
}

/// Ends what is said of a claim.
macro_rules! ends_in_a_claim {
    ($($draft:ident),+) => {
        $(impl From<$draft> for Claim {
            fn from(draft: $draft) -> Self {
                draft.0.into()
            }
        })+
    };
}

ends_in_a_claim!(File, Http, Container, Rows);
