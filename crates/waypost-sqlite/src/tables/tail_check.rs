//! Detects acknowledged records missing from the database, using the files of a run outside the database.
//!
//! SQLite silently truncates its log at the first frame with a wrong checksum. After a flipped bit, or the
//! removal of the log, acknowledged commits are lost while the rest is sound. An older copy of the database
//! has the same effect. The database itself cannot show this, but `events.jsonl` can ([`LoggedRecords`] argues why it
//! is never ahead of the disk). For the last moments before a kill, [`ack_journal`](crate::tables::ack_journal) serves instead.
//!
//! A lost record is damage, [`Flaw::Missing`]: heads and scans list it, and a run does not continue past it
//! without a decision. The decision is noted in quarantine, so that its seq is never reused. For a run with
//! durability `async`, a power cut can lose records as expected; a resume then continues and reports the
//! loss.
//!
//! The log is read backwards from its end to the first existing record, because only an end can be lost. A
//! quarantined record does not count as existing: later lost records may not be noted yet. Scopes unknown
//! to the database are left out, because their opening record is lost too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use waypost::disk::RealDisk;
use waypost::folder::{self, LoggedRecords};
use waypost::id::{RunId, ScopePath};
use waypost::record::{Durability, Flaw};
use waypost::store::{Damage, StoreError};

use crate::database::error::{Failure, SqliteError};
use crate::database::open::Place;
use crate::tables::ack_journal;
use crate::tables::read::View;
use crate::tables::rows::key;
use crate::tables::scope::Scope;

/// The flaw of a lost record of an `async` run.
const NOT_YET_SYNCED: &str =
    "the record is missing; with durability `async`, a power cut may lose the last records of a run";

/// Returns the folder of a run, next to the database.
pub(crate) fn folder_of(place: &Place, run: &RunId) -> PathBuf {
    place.folder.join("runs").join(run.as_str())
}

/// Acknowledged records by the files of a run, newest first.
pub(crate) struct Acknowledged {
    journal: Vec<(ScopePath, u64)>,
    journal_path: PathBuf,
    log: LoggedRecords<'static>,
}

/// Reads the last acknowledged records. Call this before the transaction for the comparison.
pub(crate) fn acknowledged(place: &Place, run: &RunId) -> Acknowledged {
    let folder = folder_of(place, run);
    let journal_path = ack_journal::path_in(&folder);
    // In this order: entries leave the tail journal only after their log lines are written.
    let journal = ack_journal::acknowledged(&journal_path, run);
    Acknowledged { journal, journal_path, log: LoggedRecords::newest_first(&RealDisk, &folder, run) }
}

/// Says whether a run has left its log beside the database.
pub(crate) fn has_log(place: &Place, run: &RunId) -> bool {
    folder::has_log(&RealDisk, &folder_of(place, run))
}

/// Returns the error for a run without a row: lost if its log exists, else unknown.
pub(crate) fn missing_run(place: &Place, run: &RunId) -> StoreError {
    if !has_log(place, run) {
        return StoreError::no_run(&place.name, run);
    }
    let folder = folder_of(place, run);
    let Acknowledged { journal, log, .. } = acknowledged(place, run);
    let newest = journal.into_iter().chain(log).find(|(scope, _)| scope.is_main());
    let damage = Damage {
        run: run.clone(),
        scope: ScopePath::main(),
        seq: newest.map_or(0, |(_, seq)| seq),
        place: format!("{} has the record", shown(&folder)),
        flaw: Flaw::Missing,
    };
    StoreError::of_damage(damage, None)
}

impl Failure {
    /// Returns the store error; the log of a missing run decides between lost and unknown.
    pub(crate) fn into_store_error(self, place: &Place) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::NoRun(run) => missing_run(place, &run),
            Self::Sqlite(fault) => fault.to_store_error(place),
        }
    }
}

fn shown(folder: &Path) -> String {
    folder.join("events.jsonl").display().to_string()
}

/// Why records of a scope are lost.
#[derive(Debug)]
pub(crate) struct Loss {
    flaw: Flaw,
    place: String,
}

/// The newest lost record of each scope.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    newest: BTreeMap<ScopePath, u64>,
    loss: Option<Arc<Loss>>,
}

impl Lost {
    /// Compares acknowledged records with existing records; `id` is the row of the run.
    pub(crate) fn of(
        view: View<'_>,
        run: &RunId,
        id: i64,
        acknowledged: Acknowledged,
    ) -> Result<Self, Failure> {
        let Acknowledged { journal, journal_path, mut log } = acknowledged;
        let mut lost = Self::default();
        let mut kept = BTreeMap::new();
        for acknowledged in journal {
            lost.add_if_lost(view, id, &mut kept, acknowledged)?;
        }
        let is_recent = !lost.is_empty();
        for acknowledged in log.by_ref() {
            if lost.add_if_lost(view, id, &mut kept, acknowledged)? {
                break;
            }
        }
        if !lost.is_empty() {
            let durability = view.frozen(id, run).map_or(Durability::Sync, |run| run.record().durability);
            let flaw = match durability {
                Durability::Sync => Flaw::Missing,
                Durability::Async => Flaw::Malformed(NOT_YET_SYNCED.to_owned()),
            };
            let path = if is_recent { journal_path.as_path() } else { log.path() };
            let place = format!("{} has the record", path.display());
            lost.loss = Some(Arc::new(Loss { flaw, place }));
        }
        Ok(lost)
    }

    /// Adds an acknowledged record if it is lost; returns whether it exists.
    fn add_if_lost(
        &mut self,
        view: View<'_>,
        id: i64,
        kept: &mut BTreeMap<ScopePath, Option<(i64, u64)>>,
        (scope, seq): (ScopePath, u64),
    ) -> Result<bool, Failure> {
        let newest = match kept.get(&scope) {
            Some(newest) => *newest,
            None => *kept.entry(scope.clone()).or_insert(newest_of(view.connection, id, &scope)?),
        };
        match newest {
            Some((id, newest)) if seq <= newest => exists(view.connection, key(id, seq)),
            Some(_) => {
                let acknowledged = self.newest.entry(scope).or_default();
                *acknowledged = seq.max(*acknowledged);
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Returns whether every acknowledged record exists.
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// Extends a scope to its acknowledged end.
    pub(crate) fn extend(&self, mut scope: Scope) -> Scope {
        if let Some((acknowledged, loss)) = self.newest.get(&scope.path).zip(self.loss.as_ref())
            && *acknowledged > scope.newest
        {
            scope.loss = Some((scope.newest, Arc::clone(loss)));
            scope.newest = *acknowledged;
        }
        scope
    }
}

/// Returns the id of a scope and its highest seq ever.
fn newest_of(connection: &Connection, run: i64, path: &ScopePath) -> Result<Option<(i64, u64)>, Failure> {
    let Some(scope) = Scope::find(connection, run, path)? else { return Ok(None) };
    let scope = scope.settled(connection, run)?;
    Ok(Some((scope.id, scope.newest)))
}

/// Returns whether a record has a row, possibly on a damaged page.
fn exists(connection: &Connection, key: i64) -> Result<bool, Failure> {
    let found = connection.prepare_cached("SELECT 1 FROM records WHERE key = ?1")?.exists([key]);
    match found.map_err(SqliteError::from) {
        Err(fault) if fault.is_corrupt() => Ok(true),
        found => Ok(found?),
    }
}

impl Scope {
    /// Returns the flaw and evidence of a lost record, if the log contains it.
    pub(crate) fn loss(&self, seq: u64) -> Option<(Flaw, String)> {
        let (above, loss) = self.loss.as_ref()?;
        (seq > *above).then(|| (loss.flaw.clone(), loss.place.clone()))
    }
}
