//! Code words, exit codes and hints for errors of a store.

use std::io;

use waypost::record::Flaw;
use waypost::store::StoreError;

use crate::exit::Exit;
use waypost::store::Damage;

/// The store's part of the one `match`.
pub(super) fn of_store(error: &StoreError) -> (&'static str, Exit, Option<String>) {
    let hint = |text: &str| Some(text.to_owned());
    match error {
        StoreError::NotFound { .. } => (
            "not_found",
            Exit::NotFound,
            hint("see what there is: `waypost list`, `waypost checkpoints RUN`"),
        ),
        StoreError::Exists { run } => (
            "exists",
            Exit::Usage,
            Some(format!("`--or-resume` goes on with it; or look at it: `waypost show {run}`")),
        ),
        StoreError::Held { holder: Some(holder), .. } if holder.is_gone() => (
            "locked",
            Exit::Locked,
            hint(
                "that process is dead, and its supervisor still holds the run while it ends what is left: wait a moment; if it was itself stopped, `pgrep -fl 'waypost supervise'` shows it and `kill -CONT` with its number lets it go on",
            ),
        ),
        StoreError::Held { run, .. } => {
            ("locked", Exit::Locked, Some(format!("wait for it, or stop it: `waypost stop {run}`")))
        }
        StoreError::Fenced { .. } => ("fenced", Exit::Locked, hint("another process goes on with this run")),
        StoreError::Conflict { .. } => ("conflict", Exit::Internal, None),
        StoreError::Damaged { older: Some(older), damage } if log_with_record(damage).is_some() => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "put the store's newer files back; to go on from {0}@{older} all the same, move {1} away; `waypost resume {0} --restart` starts over",
                damage.run,
                log_with_record(damage).unwrap_or_default()
            )),
        ),
        StoreError::Damaged { damage, .. } if log_with_record(damage).is_some() => (
            "lost",
            Exit::Damaged,
            hint("put the store's files back, or move that folder away to begin anew"),
        ),
        StoreError::Damaged { damage, .. } if damage.seq == 0 => (
            "damaged",
            Exit::Damaged,
            hint(
                "neither of its two copies can be read: `waypost run FILE` begins another run, with another id",
            ),
        ),
        StoreError::Damaged { older: Some(_), damage } if damage.flaw == Flaw::Missing => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "`waypost verify {0}` shows what is missing: put it back; `waypost resume {0} --from STEP` runs a step and what needs it again; `waypost resume {0} --restart` starts over",
                damage.run
            )),
        ),
        StoreError::Damaged { older: Some(_), damage } => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "`waypost verify {0}` shows what is sound; `waypost resume {0} --from STEP` runs the step of that checkpoint again",
                damage.run
            )),
        ),
        StoreError::Damaged { damage, .. } => (
            "damaged",
            Exit::Damaged,
            Some(format!(
                "nothing sound is left there; `waypost resume {} --restart` starts over",
                damage.run
            )),
        ),
        StoreError::Version { found, supported, .. } if found < supported => (
            "older",
            Exit::Newer,
            hint("move the store away, say to `.waypost.old`, and start its runs again: no release wrote it"),
        ),
        StoreError::Version { .. } => {
            ("newer", Exit::Newer, hint("use the version of waypost that wrote it"))
        }
        // Invalid input from a user: a cursor, a label, or a file that is not a store.
        StoreError::Invalid(_) => ("invalid", Exit::Usage, None),
        StoreError::Full { .. } => {
            ("disk_full", Exit::CannotWrite, hint("make room and resume; what was acknowledged is safe"))
        }
        StoreError::Create { .. } => (
            "cannot_create",
            Exit::CannotCreate,
            hint(
                "the place of the store must be writable for this: look at its permissions and its mount, or name another with `--store`",
            ),
        ),
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            ("not_permitted", Exit::NotTrusted, None)
        }
        StoreError::Io { action: "use", source, .. } if source.kind() == io::ErrorKind::InvalidData => (
            "damaged",
            Exit::Damaged,
            hint(
                "put the file back; `waypost resume RUN --from STEP` of the step over items makes the list anew",
            ),
        ),
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidData => (
            "damaged",
            Exit::Damaged,
            hint("the store's file itself is damaged: keep a copy of it, and put back a sound one"),
        ),
        StoreError::Io { source, .. }
            if matches!(
                source.kind(),
                io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidInput
            ) =>
        {
            ("damaged", Exit::Damaged, hint("something else stands in its place: put back what was there"))
        }
        StoreError::Io { action: "read" | "open", .. } => ("unreadable", Exit::Unreachable, None),
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => (
            "store_removed",
            Exit::CannotWrite,
            hint("something took the store away while it was in use, perhaps a step: put it back and resume"),
        ),
        StoreError::Io { .. } => ("io", Exit::CannotWrite, None),
        StoreError::Database { .. } => ("database", Exit::CannotWrite, None),
        StoreError::Poisoned { .. } => {
            ("poisoned", Exit::CannotWrite, hint("resume; what was acknowledged is safe"))
        }
        StoreError::Unreachable { .. } => ("unreachable", Exit::Unreachable, None),
        StoreError::Unknown { .. } => {
            ("unknown", Exit::Unreachable, hint("resume; the store knows what it has"))
        }
        StoreError::Closed(_) => ("internal", Exit::Internal, None),
    }
}

/// Returns the log that proves a missing record, if this is how the loss is known.
pub(crate) fn log_with_record(damage: &Damage) -> Option<&str> {
    damage.place.strip_suffix(" tells of it").filter(|_| damage.flaw == Flaw::Missing)
}
