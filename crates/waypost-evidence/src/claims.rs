//! Builders for claims: one function per kind, followed by the expectations.
//!
//! A builder does not validate. A malformed claim fails when it is checked, and its finding says why.
//!
//! The terms that every kind supports come last and return a [`Claim`]: `named`, `not`, `warns`, `within`,
//! `timeout`, `at`, `sensitive`.
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

use crate::API_RESPONSE;
use crate::COMMAND;
use crate::CONTAINER_RUNNING;
use crate::DB_ROW;
use crate::EXEC;
use crate::GIT;
use crate::JSON_VALUE;
use crate::NETWORK_REACHABLE;
use crate::PROCESS_EXISTS;
use crate::recorded_connection;

/// Starts an empty pack; add claims with [`and`](PackBuilder::and).
pub fn pack() -> PackBuilder {
    PackBuilder::default()
}

/// Claims that a file exists; expectations of its content may follow. `path` is relative to the base folder.
pub fn file(path: impl Into<String>) -> File {
    File(Draft::of(ARTIFACT_EXISTS, path.into()))
}

/// Claims that a JSON file has `value` at `path`, such as `$.items[0].name`.
#[must_use]
pub fn json(file: impl Into<String>, path: &str, value: impl Into<Value>) -> Claim {
    Claim::new(JSON_VALUE, file).expecting(json!({ "path": path, "value": value.into() }))
}

/// Claims that a file, a folder or the files of a pattern do not change after the step. The digest is pinned
/// when the step commits, unless [`is`](Sha256::is) sets it.
pub fn sha256(path: impl Into<String>) -> Sha256 {
    Sha256(Draft::pinned(FILE_SHA256, path.into()))
}

/// Claims that a command, run by `sh -eu`, exits with 0; another code and expectations of the output may
/// follow.
pub fn command(code: impl Into<String>) -> Command {
    Command(Draft::of(COMMAND, code.into()))
}

/// Claims that a program confirms the claim with exit code 0; its arguments may follow.
pub fn exec(program: impl Into<String>) -> Exec {
    Exec(Draft::of(EXEC, program.into()))
}

/// Claims that a repository keeps its checked-out commit. The commit is pinned when the step commits, unless
/// [`head`](Git::head) or [`clean`](Git::clean) follows.
pub fn git(folder: impl Into<String>) -> Git {
    Git(Draft::pinned(GIT, folder.into()))
}

/// Claims that a process with this program name or process id runs on this machine.
pub fn process(name: impl Into<String>) -> Process {
    Process(Draft::of(PROCESS_EXISTS, name.into()))
}

/// Claims that a process listens on a port of this machine.
#[must_use]
pub fn port(port: u16) -> Claim {
    Claim::new(NETWORK_REACHABLE, port.to_string())
}

/// Claims that a URL answers with 2xx; expectations of the answer may follow.
pub fn http(url: impl Into<String>) -> Http {
    Http(Draft::of(API_RESPONSE, url.into()))
}

/// Claims that a container, given by name or id, is running.
pub fn container(name: impl Into<String>) -> Container {
    Container(Draft::of(CONTAINER_RUNNING, name.into()))
}

/// Claims that a table of an SQLite file has rows; conditions and expected values may follow.
pub fn sqlite(path: impl Into<String>, table: impl Into<String>) -> Rows {
    Rows(Draft::of(DB_ROW, path.into()).with("table", table.into()))
}

/// Claims that a table of a PostgreSQL database has rows. `connection` is a URL, `key=value` pairs without a
/// password, or `env:NAME`.
pub fn postgres(connection: &str, table: impl Into<String>) -> Rows {
    Rows(Draft::of(DB_ROW, recorded_connection(connection)).with("table", table.into()))
}

/// A builder for a pack: claims, then the number that must hold.
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

    /// Returns a pack in which every claim must hold.
    #[must_use]
    pub fn all(self) -> Pack {
        Pack::all(self.claims)
    }

    /// Returns a pack in which at least one claim must hold.
    #[must_use]
    pub fn any(self) -> Pack {
        Pack::any(self.claims)
    }

    /// Returns a pack in which at least `count` claims must hold.
    ///
    /// # Errors
    /// [`InvalidPack`] if `count` is 0 or exceeds the number of distinct claims.
    pub fn at_least(self, count: u32) -> Result<Pack, InvalidPack> {
        Pack::at_least(count, self.claims)
    }
}

/// A claim under construction, with the expectations so far.
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

    /// Adds an entry to the map `name`.
    fn with_entry(mut self, name: &str, key: impl Into<String>, value: impl Into<Value>) -> Self {
        let map = self.expect.entry(name).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(map) = map {
            map.insert(key.into(), value.into());
        }
        self
    }

    /// Appends a text to the list `name`.
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

/// A claim about a file.
#[derive(Debug, Clone)]
#[must_use]
pub struct File(Draft);

/// A claim about the digest of files.
#[derive(Debug, Clone)]
#[must_use]
pub struct Sha256(Draft);

/// A claim about a command.
#[derive(Debug, Clone)]
#[must_use]
pub struct Command(Draft);

/// A claim that a program checks.
#[derive(Debug, Clone)]
#[must_use]
pub struct Exec(Draft);

/// A claim about a git repository.
#[derive(Debug, Clone)]
#[must_use]
pub struct Git(Draft);

/// A claim about processes.
#[derive(Debug, Clone)]
#[must_use]
pub struct Process(Draft);

/// A claim about an HTTP answer.
#[derive(Debug, Clone)]
#[must_use]
pub struct Http(Draft);

/// A claim about a container.
#[derive(Debug, Clone)]
#[must_use]
pub struct Container(Draft);

/// A claim about database rows.
#[derive(Debug, Clone)]
#[must_use]
pub struct Rows(Draft);

impl File {
    /// Expects the file to contain `text`. After several calls, every text must occur.
    pub fn contains(self, text: impl Into<String>) -> Self {
        Self(self.0.with_item("contains", text))
    }

    /// Expects a regular expression to match somewhere in the file.
    pub fn matches(self, pattern: impl Into<String>) -> Self {
        Self(self.0.with("matches", pattern.into()))
    }

    /// Expects this number of lines.
    pub fn lines(self, count: impl Into<Value>) -> Self {
        Self(self.0.with("lines", count))
    }

    /// Expects this size in bytes: `12`, `"> 0"`, `">= 2 KiB"`.
    pub fn size(self, size: impl Into<Value>) -> Self {
        Self(self.0.with("size", size))
    }
}

impl Sha256 {
    /// Expects this digest instead of pinning the current digest.
    pub fn is(mut self, digest: Digest) -> Self {
        self.0.claim = self.0.claim.expecting(digest.to_string());
        self
    }
}

impl Command {
    /// Expects this exit code instead of 0.
    pub fn exit(self, code: impl Into<Value>) -> Self {
        Self(self.0.with("exit", code))
    }

    /// Expects this standard output; leading and trailing white space is ignored.
    pub fn stdout(self, text: impl Into<Value>) -> Self {
        Self(self.0.with("stdout", text))
    }

    /// Expects this standard error; leading and trailing white space is ignored.
    pub fn stderr(self, text: impl Into<Value>) -> Self {
        Self(self.0.with("stderr", text))
    }
}

impl Exec {
    /// Passes a named value to the program.
    pub fn with(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("with", name, value))
    }
}

impl Git {
    /// Expects this branch to be checked out, or the commit with this prefix of at least 7 digits.
    pub fn head(self, head: impl Into<String>) -> Self {
        Self(self.0.with("head", head.into()))
    }

    /// Expects a clean work tree: no changed, staged or untracked file.
    pub fn clean(self) -> Self {
        Self(self.0.with("clean", true))
    }
}

impl Process {
    /// Expects the process id in this file.
    pub fn pid_file(self, path: impl Into<String>) -> Self {
        Self(self.0.with("pid_file", path.into()))
    }

    /// Expects these arguments, joined by blanks.
    pub fn args(self, args: impl Into<Value>) -> Self {
        Self(self.0.with("args", args))
    }

    /// Expects this user as the owner.
    pub fn user(self, user: impl Into<String>) -> Self {
        Self(self.0.with("user", user.into()))
    }

    /// Expects this number of matching processes.
    pub fn count(self, count: impl Into<Value>) -> Self {
        Self(self.0.with("count", count))
    }
}

impl Http {
    /// Expects this status instead of 2xx.
    pub fn status(self, status: impl Into<Value>) -> Self {
        Self(self.0.with("status", status))
    }

    /// Sends the request with another [method](crate::METHODS) than GET.
    pub fn method(self, method: impl Into<String>) -> Self {
        Self(self.0.with("method", method.into()))
    }

    /// Expects this value of a header; null expects the header to be absent.
    pub fn header(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("headers", name, value))
    }

    /// Expects this value in the JSON body, at a path such as `$.items[0].name`.
    pub fn json(self, path: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("json", path, value))
    }

    /// Expects this body, without its last line end.
    pub fn body(self, body: impl Into<Value>) -> Self {
        Self(self.0.with("body", body))
    }

    /// Expects the body to contain `text`. After several calls, every text must occur.
    pub fn contains(self, text: impl Into<String>) -> Self {
        Self(self.0.with_item("contains", text))
    }

    /// Allows the host name to resolve to a private address.
    pub fn private(self) -> Self {
        Self(self.0.with("private", true))
    }
}

impl Container {
    /// Expects the container to exist and not to run.
    pub fn stopped(self) -> Self {
        Self(self.0.with("running", false))
    }

    /// Expects the health check to report healthy.
    pub fn healthy(self) -> Self {
        Self(self.0.with("healthy", true))
    }

    /// Expects this image, by name or digest.
    pub fn image(self, image: impl Into<Value>) -> Self {
        Self(self.0.with("image", image))
    }

    /// Restricts the claim to one [engine](crate::ENGINES).
    pub fn engine(self, engine: impl Into<String>) -> Self {
        Self(self.0.with("engine", engine.into()))
    }
}

impl Rows {
    /// Selects the rows with this value in a column.
    pub fn whose(self, column: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("where", column, value))
    }

    /// Expects this value in another column of a selected row.
    pub fn value(self, column: impl Into<String>, value: impl Into<Value>) -> Self {
        Self(self.0.with_entry("values", column, value))
    }

    /// Expects this number of selected rows.
    pub fn count(self, count: impl Into<Value>) -> Self {
        Self(self.0.with("count", count))
    }
}

/// Implements `From` into [`Claim`] for the builders, and the terms of every kind, which finish a builder.
macro_rules! ends_in_a_claim {
    ($($draft:ident),+) => {
        $(impl From<$draft> for Claim {
            fn from(draft: $draft) -> Self {
                draft.0.into()
            }
        }

        impl $draft {
            /// See [`Claim::named`].
            #[must_use]
            pub fn named(self, name: impl Into<String>) -> Claim {
                Claim::from(self).named(name)
            }

            /// See [`Claim::not`].
            #[must_use]
            #[expect(clippy::should_implement_trait, reason = "it is the word of workflow files")]
            pub fn not(self) -> Claim {
                Claim::from(self).not()
            }

            /// See [`Claim::warns`].
            #[must_use]
            pub fn warns(self) -> Claim {
                Claim::from(self).warns()
            }

            /// See [`Claim::within`].
            #[must_use]
            pub fn within(self, time: Duration) -> Claim {
                Claim::from(self).within(time)
            }

            /// See [`Claim::timeout`].
            #[must_use]
            pub fn timeout(self, time: Duration) -> Claim {
                Claim::from(self).timeout(time)
            }

            /// See [`Claim::at`].
            #[must_use]
            pub fn at(self, occasions: impl IntoIterator<Item = Occasion>) -> Claim {
                Claim::from(self).at(occasions)
            }

            /// See [`Claim::sensitive`].
            #[must_use]
            pub fn sensitive(self) -> Claim {
                Claim::from(self).sensitive()
            }
        })+
    };
}

ends_in_a_claim!(File, Sha256, Command, Exec, Git, Process, Http, Container, Rows);
