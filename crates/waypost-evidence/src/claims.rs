//! Claims in Rust: one function a kind, and what is expected of it after that.
//!
//! Nothing is checked while a claim is written: what makes no sense does not hold, and its finding says why.
//!
//! What every claim may have follows what it says: `named`, `not`, `warns`, `within`, `timeout`, `at`, `sensitive`.
//!
//! ```
//! use std::time::Duration;
//! use waypost::Digest;
//! use waypost_evidence::claims;
//!
//! let pack = claims::pack()
//!     .and(claims::command("sqlite3 shop.db 'PRAGMA quick_check'").stdout("ok").timeout(Duration::from_secs(60)))
//!     .and(claims::exec("./check-load").with("min", 3))
//!     .and(claims::sha256("data.json"))
//!     .and(claims::sha256("schema.json").is(Digest::of(b"{}")))
//!     .and(claims::git("source").head("main").clean())
//!     .and(claims::process("nginx").user("www-data").count(">= 1"))
//!     .and(claims::http("https://example.org/health").within(Duration::from_secs(30)).named("it is up"))
//!     .and(claims::file("build.log").contains("ERROR").not())
//!     .and(claims::file("notes.md").size("> 0").warns())
//!     .all();
//!
//! assert!(pack.check().is_ok());
//! ```

use std::time::Duration;

use serde_json::{Map, Value, json};
use waypost::Digest;
use waypost::evidence::{ARTIFACT_EXISTS, FILE_SHA256, InvalidPack};
use waypost::record::{Claim, Occasion, Pack};

use crate::{API_RESPONSE, COMMAND, CONTAINER_RUNNING, DB_ROW, EXEC, GIT, JSON_VALUE, NETWORK_REACHABLE};
use crate::{PROCESS_EXISTS, recorded_connection};

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

/// Claims that a file, a folder or what a pattern names stays as it is when the step ends: its digest is pinned then, unless
/// it is said.
pub fn sha256(path: impl Into<String>) -> Sha256 {
    Sha256(Draft::pinned(FILE_SHA256, path.into()))
}

/// Claims that a command, run by `sh -eu`, ends with exit code 0; another code, and what it prints, may follow.
pub fn command(code: impl Into<String>) -> Command {
    Command(Draft::of(COMMAND, code.into()))
}

/// Claims that a program says so, by exit code 0; what it is told may follow.
pub fn exec(program: impl Into<String>) -> Exec {
    Exec(Draft::of(EXEC, program.into()))
}

/// Claims that a repository has the commit checked out that it has when the step ends: that is pinned then, unless something
/// else is said.
pub fn git(folder: impl Into<String>) -> Git {
    Git(Draft::pinned(GIT, folder.into()))
}

/// Claims that a program of a name runs on this machine, or the process of a number.
pub fn process(name: impl Into<String>) -> Process {
    Process(Draft::of(PROCESS_EXISTS, name.into()))
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

    fn pinned(kind: &str, subject: String) -> Self {
        Self { claim: Claim::new(kind, subject).pinning(), expect: Map::new() }
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

/// What is claimed of bytes.
#[derive(Debug, Clone)]
#[must_use]
pub struct Sha256(Draft);

/// What is claimed of a command.
#[derive(Debug, Clone)]
#[must_use]
pub struct Command(Draft);

/// What a program is told.
#[derive(Debug, Clone)]
#[must_use]
pub struct Exec(Draft);

/// What is claimed of a repository.
#[derive(Debug, Clone)]
#[must_use]
pub struct Git(Draft);

/// What is claimed of processes.
#[derive(Debug, Clone)]
#[must_use]
pub struct Process(Draft);

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

impl Sha256 {
    /// It has this digest.
    pub fn is(mut self, digest: Digest) -> Self {
        self.0.claim = self.0.claim.expecting(digest.to_string());
        self
    }
}

impl Command {
    /// It ends with this code, instead of 0.
    pub fn exit(self, code: impl Into<Value>) -> Self {
        Self(self.0.with("exit", code))
    }

    /// What it prints, white space around that aside.
    pub fn stdout(self, text: impl Into<Value>) -> Self {
        Self(self.0.with("stdout", text))
    }

    /// What it prints to standard error.
    pub fn stderr(self, text: impl Into<Value>) -> Self {
        Self(self.0.with("stderr", text))
    }
}

impl Exec {
    /// It is told this value.
    pub fn with(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("with", name, value))
    }
}

impl Git {
    /// It has this branch checked out, or a commit of which these are at least the first 7 digits.
    pub fn head(self, head: impl Into<String>) -> Self {
        Self(self.0.with("head", head.into()))
    }

    /// Nothing in it is changed, staged or untracked.
    pub fn clean(self) -> Self {
        Self(self.0.with("clean", true))
    }
}

impl Process {
    /// Its number stands in this file.
    pub fn pid_file(self, path: impl Into<String>) -> Self {
        Self(self.0.with("pid_file", path.into()))
    }

    /// Its arguments, with blanks between them.
    pub fn args(self, args: impl Into<Value>) -> Self {
        Self(self.0.with("args", args))
    }

    /// Whose it is.
    pub fn user(self, user: impl Into<String>) -> Self {
        Self(self.0.with("user", user.into()))
    }

    /// How many such processes there are.
    pub fn count(self, count: impl Into<Value>) -> Self {
        Self(self.0.with("count", count))
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

/// Ends what is said of a claim: what every claim may have makes one of it.
macro_rules! ends_in_a_claim {
    ($($draft:ident),+) => {
        $(impl From<$draft> for Claim {
            fn from(draft: $draft) -> Self {
                draft.0.into()
            }
        }

        impl $draft {
            /// As [`Claim::named`].
            #[must_use]
            pub fn named(self, name: impl Into<String>) -> Claim {
                Claim::from(self).named(name)
            }

            /// As [`Claim::not`].
            #[must_use]
            #[expect(clippy::should_implement_trait, reason = "it is the word of workflow files")]
            pub fn not(self) -> Claim {
                Claim::from(self).not()
            }

            /// As [`Claim::warns`].
            #[must_use]
            pub fn warns(self) -> Claim {
                Claim::from(self).warns()
            }

            /// As [`Claim::within`].
            #[must_use]
            pub fn within(self, time: Duration) -> Claim {
                Claim::from(self).within(time)
            }

            /// As [`Claim::timeout`].
            #[must_use]
            pub fn timeout(self, time: Duration) -> Claim {
                Claim::from(self).timeout(time)
            }

            /// As [`Claim::at`].
            #[must_use]
            pub fn at(self, occasions: impl IntoIterator<Item = Occasion>) -> Claim {
                Claim::from(self).at(occasions)
            }

            /// As [`Claim::sensitive`].
            #[must_use]
            pub fn sensitive(self) -> Claim {
                Claim::from(self).sensitive()
            }
        })+
    };
}

ends_in_a_claim!(File, Sha256, Command, Exec, Git, Process, Http, Container, Rows);
