//! Code words, exit codes and hints for errors of a store.

use std::io;

use waypost::record::Flaw;
use waypost::store::StoreError;

use crate::exit::Exit;
use crate::format::text::quoted;
use waypost::store::Damage;

/// What a PostgreSQL database lacks before `waypost store init`.
const NO_TABLES: &str = "tables of Waypost";
/// The place of an acknowledged record lost by a server, for example by a failover to a lagging standby.
const ACKNOWLEDGED: &str = "which acknowledged the record before";

/// The store's part of the one `match`.
pub(super) fn of_store(error: &StoreError) -> (&'static str, Exit, Option<String>) {
    let hint = |text: &str| Some(text.to_owned());
    match error {
        StoreError::NotFound { what, .. } if what == NO_TABLES => {
            ("no_tables", Exit::NotFound, hint("`waypost store init` makes the tables"))
        }
        StoreError::NotFound { .. } => (
            "not_found",
            Exit::NotFound,
            hint("`waypost list` lists runs, `waypost checkpoints RUN` lists checkpoints"),
        ),
        StoreError::Exists { run } => (
            "exists",
            Exit::Usage,
            Some(format!("`--or-resume` resumes the run; `waypost show {run}` shows the run")),
        ),
        StoreError::Held { holder: Some(holder), .. } if holder.is_gone() => (
            "locked",
            Exit::Locked,
            hint(
                "the process is dead, and its supervisor still ends the remaining processes: wait a \
                 moment; if the supervisor is suspended, find it with `pgrep -fl 'waypost supervise'` and \
                 continue it with `kill -CONT`",
            ),
        ),
        StoreError::Held { run, .. } => {
            ("locked", Exit::Locked, Some(format!("wait, or stop the run: `waypost stop {run}`")))
        }
        StoreError::Fenced { .. } => ("fenced", Exit::Locked, hint("another process has resumed this run")),
        StoreError::Conflict { .. } => ("conflict", Exit::Internal, None),
        StoreError::Damaged { older: Some(older), damage } if log_with_record(damage).is_some() => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "restore the newer files of the store; to continue from {0}@{older} without them, move {1} \
                 away; `waypost resume {0} --restart` starts over",
                damage.run,
                log_with_record(damage).unwrap_or_default()
            )),
        ),
        StoreError::Damaged { damage, .. } if log_with_record(damage).is_some() => (
            "lost",
            Exit::Damaged,
            hint("restore the files of the store, or move that folder away to start over"),
        ),
        StoreError::Damaged { damage, .. } if damage.seq == 0 => (
            "damaged",
            Exit::Damaged,
            hint("both copies are unreadable: `waypost run FILE` starts another run, with another id"),
        ),
        StoreError::Damaged { older: Some(older), damage } if damage.place.ends_with(ACKNOWLEDGED) => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "restore the newest records of the server; `waypost resume {0}` continues from {0}@{older} without them",
                damage.run
            )),
        ),
        StoreError::Damaged { older: Some(_), damage } if damage.flaw == Flaw::Missing => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "`waypost verify {0}` shows the missing checkpoints: restore them; `waypost resume {0} \
                 --from STEP` reruns a step and all steps downstream; `waypost resume {0} --restart` \
                 starts over",
                damage.run
            )),
        ),
        StoreError::Damaged { older: Some(_), damage } => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "`waypost verify {0}` lists the sound checkpoints; `waypost resume {0} --from STEP` reruns \
                 the step of this checkpoint",
                damage.run
            )),
        ),
        StoreError::Damaged { damage, .. } => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "no sound checkpoint is left in the scope; `waypost resume {} --restart` starts over",
                damage.run
            )),
        ),
        StoreError::Version { what, found, supported }
            if found < supported && what.starts_with("postgres:") =>
        {
            ("older", Exit::Newer, hint("`waypost store upgrade` upgrades the tables"))
        }
        StoreError::Version { found, supported, .. } if found < supported => (
            "older",
            Exit::Newer,
            hint(
                "no release wrote this version: move the store away, for example to `.waypost.old`, and \
                 start its runs again",
            ),
        ),
        StoreError::Version { .. } => {
            ("newer", Exit::Newer, hint("use the version of waypost that wrote the store"))
        }
        // Invalid input from a user: a cursor, a label, or a file that is not a store.
        StoreError::Invalid(_) => ("invalid", Exit::Usage, None),
        StoreError::Full { .. } => (
            "disk_full",
            Exit::CannotWrite,
            hint("free disk space and resume; acknowledged records are safe"),
        ),
        StoreError::Create { .. } => (
            "cannot_create",
            Exit::CannotCreate,
            hint(
                "the store must be on a writable path: check permissions and mount, or name another store \
                 with `--store`",
            ),
        ),
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            let help = "check owner and mode of the store, or name another store with `--store`";
            ("not_permitted", Exit::NotTrusted, hint(help))
        }
        StoreError::Io { action: "use", source, .. } if source.kind() == io::ErrorKind::InvalidData => (
            "damaged",
            Exit::Damaged,
            hint(
                "restore the file; `waypost resume RUN --from STEP` with the `foreach` step rebuilds the \
                 list",
            ),
        ),
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidData => (
            "damaged",
            Exit::Damaged,
            hint("the file of the store is damaged: copy the file, then restore a sound one"),
        ),
        StoreError::Io { source, .. }
            if matches!(
                source.kind(),
                io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput
            ) =>
        {
            ("damaged", Exit::Damaged, hint("the path has another type: restore the original file or folder"))
        }
        StoreError::Io { action: "read" | "open", .. } => ("unreadable", Exit::Unreachable, None),
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => (
            "store_removed",
            Exit::CannotWrite,
            hint(
                "the store was removed while in use, perhaps by a step: restore the store and resume, or name a \
                 copy with `--store`",
            ),
        ),
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            let help = "remount the file system for writing, or name another store with `--store`";
            ("read_only", Exit::CannotWrite, hint(help))
        }
        StoreError::Io { .. } => ("io", Exit::CannotWrite, None),
        StoreError::Database { source, .. } => {
            let help = "the server is a standby, or set to read-only: with `?target_session_attrs=read-write` and \
                        several hosts, the address finds the primary";
            let is_read_only = says(source.as_ref(), "read-only transaction");
            ("database", Exit::CannotWrite, is_read_only.then(|| help.to_owned()))
        }
        StoreError::Poisoned { .. } => {
            ("poisoned", Exit::CannotWrite, hint("resume; acknowledged records are safe"))
        }
        StoreError::Denied { source, .. } if says(source.as_ref(), "denied for database") => (
            "not_permitted",
            Exit::NotTrusted,
            hint("`GRANT CREATE ON DATABASE … TO …` permits this user to make the tables"),
        ),
        StoreError::Denied { .. } => (
            "not_permitted",
            Exit::NotTrusted,
            hint("check user and password; a worker reads and writes all tables of the schema `waypost`"),
        ),
        StoreError::Unsupported { .. } => ("unsupported", Exit::Newer, None),
        StoreError::Unreachable { store, source } => {
            ("unreachable", Exit::Unreachable, reach(store, source.as_ref()))
        }
        StoreError::Unknown { .. } => {
            ("unknown", Exit::Unreachable, hint("resume; the store has the final outcome"))
        }
        StoreError::Closed(_) => ("internal", Exit::Internal, None),
    }
}

/// Returns whether a cause contains a text.
fn says(cause: &(dyn std::error::Error + 'static), text: &str) -> bool {
    std::iter::successors(Some(cause), |cause| cause.source()).any(|cause| cause.to_string().contains(text))
}

/// Returns the next command for a server without a connection.
fn reach(store: &str, cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    let address = store.strip_prefix("postgres://")?;
    if says(cause, "does not support TLS") {
        let hint =
            "turn on TLS in the server (`ssl = on`), or add `?sslmode=disable` in a network that you trust";
        return Some(hint.to_owned());
    }
    match address.rsplit_once('/') {
        Some((_, database)) if says(cause, "does not exist") => {
            Some(format!("`createdb {database}` makes the database"))
        }
        _ => Some(format!(
            "check that the server runs and accepts connections: `pg_isready -d {}`",
            quoted(store)
        )),
    }
}

/// Returns the log that proves a missing record, if this is how the loss is known.
pub(crate) fn log_with_record(damage: &Damage) -> Option<&str> {
    damage.place.strip_suffix(" has the record").filter(|_| damage.flaw == Flaw::Missing)
}

#[cfg(test)]
mod tests {
    use super::{StoreError, io, of_store};

    #[test]
    fn a_store_that_cannot_be_written_has_a_hint_to_another() {
        for kind in
            [io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::PermissionDenied, io::ErrorKind::NotFound]
        {
            let error = StoreError::of_write("write to", "x.db", kind.into());
            let (_, _, hint) = of_store(&error);
            assert!(hint.is_some_and(|hint| hint.contains("`--store`")), "{error}");
        }
    }
}
