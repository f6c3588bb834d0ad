//! Leases: the kernel lock of a run, the fencing token, and requests to the holder.
//!
//! The lock file `locks/RUN.lock` separates two living processes. The token increases with every lease and is
//! checked by every append, which stops a process after an unnoticed loss of the lease. Column `leased` records an
//! unreleased lease; the lock file then shows whether its holder is alive.

use std::path::PathBuf;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension};
use waypost::id::{Digest, RunId};
use waypost::lock::{Holder, LockError, RunLock};
use waypost::store::{Renewal, Signal, Signalled, StoreError};

use crate::database::error::{Failure, SqliteError};
use crate::database::heads::RunRow;
use crate::database::open::Place;
use crate::database::values::{count, int, time_text};
use crate::tables::counters;
use crate::tables::read::View;
use crate::tables::run_copies;

/// Returns the path of the lock file of a run. Run ids are safe file names.
pub(crate) fn lock_path(place: &Place, run: &RunId) -> PathBuf {
    place.folder.join("locks").join(format!("{run}.lock"))
}

/// Takes the kernel lock of a run.
pub(crate) fn take_lock(
    place: &Place,
    run: &RunId,
    holder: &Holder,
    allow_network: bool,
) -> Result<RunLock, StoreError> {
    let taken = RunLock::take(&lock_path(place, run), holder, allow_network);
    taken.map_err(|error| not_taken(run, error))
}

/// Takes the lock without writing the holder's identity, which a full disk has no space for.
pub(crate) fn take_lock_unnoted(place: &Place, run: &RunId) -> Result<RunLock, StoreError> {
    // An earlier open of the store has decided about network file systems.
    RunLock::take_unnoted(&lock_path(place, run), true).map_err(|error| not_taken(run, error))
}

fn not_taken(run: &RunId, error: LockError) -> StoreError {
    match error {
        LockError::Held { holder, .. } => StoreError::Held {
            run: run.clone(),
            holder: Some(*holder).filter(|holder| holder.pid != 0),
            until: None,
        },
        LockError::NetworkFileSystem { .. } => StoreError::Invalid(error.to_string()),
        LockError::Io { path, source } => StoreError::of_write("lock", path.display().to_string(), source),
    }
}

/// Returns the current holder of the lock of a run.
pub(crate) fn holder(place: &Place, run: &RunId) -> Result<Option<Holder>, StoreError> {
    let path = lock_path(place, run);
    RunLock::probe(&path).map_err(|source| StoreError::Io {
        action: "read",
        place: path.display().to_string(),
        source,
    })
}

/// Removes the lock file and releases the lock, after the run was deleted.
pub(crate) fn remove_lock(lock: RunLock) -> Result<(), StoreError> {
    let path = lock.path().display().to_string();
    lock.remove_file().map_err(|source| StoreError::of_write("remove", path, source))
}

/// Gives the lease to the caller, who holds the kernel lock; returns its token.
pub(crate) fn acquire(
    connection: &Connection,
    place: &Place,
    run: &RunId,
    now: Timestamp,
) -> Result<u64, Failure> {
    let row = RunRow::get(connection, run)?;
    let token: i64 = connection
        .prepare_cached("UPDATE runs SET token = token + 1, leased = 1 WHERE id = ?1 RETURNING token")?
        .query_row([row.id], |row| row.get(0))?;
    let view = View { connection, place };
    let frozen = run_copies::repair(view, row.id, run, now);
    let summary = view.repair_summary(row.id, run);
    for mended in [frozen, summary, counters::repair(connection, row.id)] {
        match mended {
            // Nothing sound to restore from, or damaged pages, which readers report.
            Err(Failure::Refused(StoreError::Damaged { .. } | StoreError::Version { .. })) => {}
            Err(Failure::Sqlite(fault)) if fault.is_corrupt() => {}
            mended => mended?,
        }
    }
    Ok(count(token)?)
}

/// Takes the lease back.
pub(crate) fn release(
    connection: &Connection,
    run: &RunId,
    token: u64,
    wake_at: Option<Timestamp>,
) -> Result<(), Failure> {
    let row = RunRow::leased(connection, run, token)?;
    connection
        .prepare_cached("UPDATE runs SET leased = 0, wake_at = ifnull(?2, wake_at) WHERE id = ?1")?
        .execute((row.id, wake_at.map(time_text)))?;
    Ok(())
}

/// Returns whether a lease is current, with the pending requests to the run.
pub(crate) fn renew(connection: &Connection, run: &RunId, token: u64) -> Result<Renewal, Failure> {
    match RunRow::find(connection, run)? {
        Some(row) if row.fence(run, token).is_ok() => {
            // A damaged signal does not end the run; listing all signals reports it.
            let sound = pending(connection, row.id)?.into_iter().flatten();
            let asks = |signal: &Signal| signal.kind.is_for_the_run();
            Ok(Renewal::Held(sound.filter(asks).collect()))
        }
        _ => Ok(Renewal::Lost),
    }
}

/// Stores a signal unless its id is known; a damaged signal with the id is replaced.
pub(crate) fn signal(connection: &Connection, run: &RunId, signal: &Signal) -> Result<Signalled, Failure> {
    let id = RunRow::get(connection, run)?.id;
    let message = serde_json::to_vec(signal)
        .map_err(|error| StoreError::Invalid(format!("cannot keep signal `{}`: {error}", signal.id)))?;
    let digest = Digest::of(&message);
    let known = connection
        .prepare_cached("SELECT id, digest, message, consumed FROM signals WHERE run = ?1 AND name = ?2")?
        .query_row((id, &signal.id), |row| {
            Ok((
                (row.get::<_, i64>(0)?, row.get::<_, bool>(3)?),
                row.get::<_, Vec<u8>>(1)?,
                row.get::<_, Vec<u8>>(2)?,
            ))
        })
        .optional()?;
    match known {
        Some(((_, consumed), digest, message)) if consumed || open(&digest, &message).is_some() => {
            return Ok(Signalled::Before);
        }
        Some(((row, _), ..)) => connection
            .prepare_cached("UPDATE signals SET digest = ?2, message = ?3 WHERE id = ?1")?
            .execute((row, digest.as_bytes(), &message))?,
        None => connection
            .prepare_cached("INSERT INTO signals VALUES (NULL, ?1, ?2, 0, ?3, ?4)")?
            .execute((id, &signal.id, digest.as_bytes(), &message))?,
    };
    Ok(Signalled::Now)
}

/// Parses a signal, if the digest matches.
fn open(digest: &[u8], message: &[u8]) -> Option<Signal> {
    if digest != Digest::of(message).as_bytes() {
        return None;
    }
    serde_json::from_slice(message).ok()
}

/// Returns the pending signals, oldest first; a damaged signal is an error entry.
pub(crate) fn pending(
    connection: &Connection,
    run: i64,
) -> Result<Vec<Result<Signal, SqliteError>>, Failure> {
    let mut statement = connection.prepare_cached(
        "SELECT name, digest, message FROM signals WHERE run = ?1 AND consumed = 0 ORDER BY id",
    )?;
    let rows = statement.query_map([run], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?, row.get::<_, Vec<u8>>(2)?))
    })?;
    let mut signals = Vec::new();
    for row in rows {
        let (name, digest, message) = row?;
        let damaged = || SqliteError::corrupt(format!("signal `{name}` is damaged; send the signal again"));
        signals.push(open(&digest, &message).ok_or_else(damaged));
    }
    Ok(signals)
}

/// Marks the lease as released, when a store is closed.
pub(crate) fn abandon(connection: &Connection, run: &RunId, token: u64) -> Result<(), Failure> {
    connection
        .prepare_cached("UPDATE runs SET leased = 0 WHERE name = ?1 AND token = ?2")?
        .execute((run.as_str(), int(token)))?;
    Ok(())
}
