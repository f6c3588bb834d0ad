//! Errors of a store, by the next action of the caller.

use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

use crate::id::{RunId, ScopePath};
use crate::record::{Flaw, other_format};
use crate::system::lock::Holder;

/// A damaged or missing record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The run.
    pub run: RunId,
    /// The scope, if known.
    pub scope: ScopePath,
    /// The seq, if known: for an unreadable file of a file store, its number. 0 for the run record.
    pub seq: u64,
    /// The place: a file's name, or a table and row.
    pub place: String,
    /// The flaw.
    pub flaw: Flaw,
}

/// Why a store call failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The object does not exist. Nothing changed.
    #[error("{store} has no {what}")]
    NotFound {
        /// The store.
        store: String,
        /// The object, such as "run `x`".
        what: String,
    },
    /// The run exists already. Nothing changed.
    #[error("run {run} already exists")]
    Exists {
        /// The run.
        run: RunId,
    },
    /// Another process has the lease. Nothing changed; wait or stop the other process.
    #[error(
        "run {run} is held by {}{}",
        holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string),
        until.map_or_else(String::new, |until| format!(", until {until:.0} unless renewed"))
    )]
    Held {
        /// The run.
        run: RunId,
        /// The holder, if known.
        holder: Option<Holder>,
        /// The end of a lease that expires, by the clock of the store. A kernel lock ends with its process.
        until: Option<Timestamp>,
    },
    /// The lease was lost to another process. Nothing was written; stop all work of this run.
    #[error("lost the lease on run {run}: the newest token is {newest}, ours was {token}")]
    Fenced {
        /// The run.
        run: RunId,
        /// The token of the call.
        token: u64,
        /// The newest token.
        newest: u64,
    },
    /// The batch does not continue the chain. Nothing was written.
    #[error("cannot append to run {run} scope {scope} at {seq}: {why}")]
    Conflict {
        /// The run.
        run: RunId,
        /// The scope.
        scope: ScopePath,
        /// The seq of the refused record.
        seq: u64,
        /// Both sides of the mismatch.
        why: String,
    },
    /// A record is damaged, and must not be used.
    #[error("{} is damaged ({}): {}", what_of(.damage), .damage.place, .damage.flaw)]
    Damaged {
        /// The record, its place and its flaw.
        damage: Box<Damage>,
        /// The next older sound record of the scope; `None` if all are damaged.
        older: Option<u64>,
    },
    /// Another version wrote the store or a record: a newer version, or a version from before the first
    /// release. Nothing changed; use this version.
    #[error("{what} {}", other_format(*found, *supported))]
    Version {
        /// The store or record.
        what: String,
        /// The format found.
        found: u32,
        /// The format read by this version.
        supported: u32,
    },
    /// The call is invalid: a bug of the caller. Nothing changed.
    #[error("{0}")]
    Invalid(String),
    /// Space or quota is exhausted. The call is not acknowledged; earlier acknowledged data is intact.
    #[error("no space left to write {place}")]
    Full {
        /// The file or database.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// The place cannot be created or is not writable. Nothing changed.
    #[error("cannot create {}", .path.display())]
    Create {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A read or write failed. The call is not acknowledged.
    #[error("cannot {action} {place}")]
    Io {
        /// `read`, `write`, `sync`, ...
        action: &'static str,
        /// The file or database.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// The database returned an error without a variant of its own.
    #[error("{store} refused the operation")]
    Database {
        /// The store.
        store: String,
        /// The database's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An earlier sync failed: the content of the disk is unknown. Open the store again.
    #[error("cannot write {place} after a failed sync; open the store again")]
    Poisoned {
        /// The file or database.
        place: String,
    },
    /// The database does not permit the call to this user. Nothing changed.
    #[error("{store} does not permit the operation")]
    Denied {
        /// The store.
        store: String,
        /// The database's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server cannot hold a store: too old, or with settings that lose acknowledged data. Nothing changed.
    #[error("cannot use {store}: {why}")]
    Unsupported {
        /// The store.
        store: String,
        /// What is found, and what is needed.
        why: String,
    },
    /// The store does not answer. As far as known, nothing changed.
    #[error("{store} cannot be reached")]
    Unreachable {
        /// The store.
        store: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer was lost: the call may have taken effect. Repeat the call with the same id.
    #[error("{store} did not respond; the last write may or may not have happened")]
    Unknown {
        /// The store.
        store: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store was closed.
    #[error("{0} is closed")]
    Closed(String),
}

fn what_of(damage: &Damage) -> String {
    let Damage { run, scope, seq, .. } = damage;
    match seq {
        0 => format!("the run record of {run}"),
        _ if scope.is_main() => format!("checkpoint {run}@{seq}"),
        _ => format!("checkpoint {run}/{scope}@{seq}"),
    }
}

impl StoreError {
    /// Creates the error for a missing run.
    pub fn no_run(store: &impl ToString, run: &RunId) -> Self {
        Self::NotFound { store: store.to_string(), what: format!("run {run}") }
    }

    /// Creates the error for a scope without records.
    pub fn no_scope(run: &RunId, scope: &ScopePath) -> Self {
        Self::NotFound { store: format!("run {run}"), what: format!("scope {}", scope.readable()) }
    }

    /// Creates the error for a missing seq of a scope.
    pub fn no_record(run: &RunId, path: &ScopePath, seq: u64) -> Self {
        let scope = if path.is_main() { "".into() } else { path.readable() };
        Self::NotFound { store: format!("run {run}"), what: format!("checkpoint {scope}@{seq}") }
    }

    /// Creates the error for damage, or for a newer format; `older` as in [`StoreError::Damaged`].
    pub fn of_damage(damage: Damage, older: Option<u64>) -> Self {
        match damage.flaw {
            Flaw::Format { found, supported } => Self::Version { what: what_of(&damage), found, supported },
            _ => Self::Damaged { damage: Box::new(damage), older },
        }
    }

    /// Creates the error for a failed write, by the next action of the caller.
    pub fn of_write(action: &'static str, place: impl Into<String>, source: io::Error) -> Self {
        let place = place.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { place, source },
            _ => Self::Io { action, place, source },
        }
    }

    /// Returns whether the same call may succeed later without intervention.
    pub fn retry(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Unreachable { .. } | Self::Unknown { .. })
    }
}
