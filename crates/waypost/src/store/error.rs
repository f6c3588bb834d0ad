//! What can go wrong with a store, by what a caller can do next.

use std::io;
use std::path::PathBuf;

use crate::id::{BranchPath, RunId};
use crate::lock::Holder;
use crate::record::{Flaw, other_format};

/// A record that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The run.
    pub run: RunId,
    /// The branch, if it can be told.
    pub branch: BranchPath,
    /// The seq, as far as it can be told: in a file store the file's number where the file is unreadable. 0 for the run
    /// record.
    pub seq: u64,
    /// Where it lies: a file's name, or a table and row.
    pub place: String,
    /// What is wrong with it.
    pub flaw: Flaw,
}

/// What a store cannot do, and why.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such thing. Nothing changed.
    #[error("{store} has no {what}")]
    NotFound {
        /// The store.
        store: String,
        /// What was looked for, such as "run `x`".
        what: String,
    },
    /// There is already such a run. Nothing changed.
    #[error("run {run} exists already")]
    Exists {
        /// The run.
        run: RunId,
    },
    /// Another process has the lease. Nothing changed; wait or stop that process.
    #[error("run {run} is held by {}", holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string))]
    Held {
        /// The run.
        run: RunId,
        /// Who holds it, if that can be told.
        holder: Option<Holder>,
    },
    /// The lease was lost: another has taken it. Nothing was written; stop all work of this run.
    #[error("the lease on run {run} was lost: its token is {newest}, ours was {token}")]
    Fenced {
        /// The run.
        run: RunId,
        /// The token that was shown.
        token: u64,
        /// The newest token.
        newest: u64,
    },
    /// The batch does not continue the chain. Nothing was written.
    #[error("cannot append to run {run} branch {branch} at {seq}: {why}")]
    Conflict {
        /// The run.
        run: RunId,
        /// The branch.
        branch: BranchPath,
        /// The seq of the record refused.
        seq: u64,
        /// Both sides of the mismatch.
        why: String,
    },
    /// A record is not what was written, and is not used.
    #[error("{} is damaged ({}): {}", what_of(.damage), .damage.place, .damage.flaw)]
    Damaged {
        /// Which, where and how.
        damage: Box<Damage>,
        /// The next older sound record of the branch; none means that nothing sound is left.
        older: Option<u64>,
    },
    /// Another version wrote the store or a record: a newer one, or one from before the first release. Nothing changed; use
    /// the same version.
    #[error("{what} {}", other_format(*found, *supported))]
    Version {
        /// The store or record.
        what: String,
        /// The format found.
        found: u32,
        /// The format read by this version.
        supported: u32,
    },
    /// The call makes no sense. Nothing changed; a bug of the caller.
    #[error("{0}")]
    Invalid(String),
    /// No space or quota is left. Nothing of this call is acknowledged; what was acknowledged before is untouched.
    #[error("no space left to write {place}")]
    Full {
        /// The file or database.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// The place cannot be made or may not be written. Nothing changed.
    #[error("cannot create {}", .path.display())]
    Create {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Reading or writing failed. Nothing of this call is acknowledged.
    #[error("cannot {action} {place}")]
    Io {
        /// `read`, `write`, `sync`, …
        action: &'static str,
        /// The file or database.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// The database answered with an error that is none of the others.
    #[error("{store} refused")]
    Database {
        /// The store.
        store: String,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A sync failed before: what the disk holds is not known. Open the store again.
    #[error("{place} is not written any more since a sync of it failed; open the store again")]
    Poisoned {
        /// The file or database.
        place: String,
    },
    /// The store does not answer. Nothing is known to have changed.
    #[error("{store} cannot be reached")]
    Unreachable {
        /// The store.
        store: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer was lost: the call may have been carried out. Repeat it with the same id.
    #[error("{store} did not answer; the last write may or may not have happened")]
    Unknown {
        /// The store.
        store: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store was closed.
    #[error("{0} is closed")]
    Closed(String),
}

fn what_of(damage: &Damage) -> String {
    let Damage { run, branch, seq, .. } = damage;
    match seq {
        0 => format!("the run record of {run}"),
        _ if branch.is_main() => format!("checkpoint {run}@{seq}"),
        _ => format!("checkpoint {run}/{branch}@{seq}"),
    }
}

impl StoreError {
    /// Says that a run is not there.
    pub fn no_run(store: &impl ToString, run: &RunId) -> Self {
        Self::NotFound { store: store.to_string(), what: format!("run {run}") }
    }

    /// Says that a branch has no records.
    pub fn no_branch(run: &RunId, branch: &BranchPath) -> Self {
        Self::NotFound { store: format!("run {run}"), what: format!("branch {branch}") }
    }

    /// Says that a branch has no record at this seq.
    pub fn no_record(run: &RunId, branch: &BranchPath, seq: u64) -> Self {
        Self::NotFound { store: format!("run {run} branch {branch}"), what: format!("checkpoint @{seq}") }
    }

    /// Tells damage from a newer format; `older` as in [`StoreError::Damaged`].
    pub fn of_damage(damage: Damage, older: Option<u64>) -> Self {
        match damage.flaw {
            Flaw::Format { found, supported } => Self::Version { what: what_of(&damage), found, supported },
            _ => Self::Damaged { damage: Box::new(damage), older },
        }
    }

    /// Sorts a failed write by what can be done next.
    pub fn of_write(action: &'static str, place: impl Into<String>, source: io::Error) -> Self {
        let place = place.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { place, source },
            _ => Self::Io { action, place, source },
        }
    }

    /// Says whether the same call may succeed later without anybody's doing.
    pub fn retry(&self) -> bool {
        matches!(self, Self::Held { .. } | Self::Unreachable { .. } | Self::Unknown { .. })
    }
}
