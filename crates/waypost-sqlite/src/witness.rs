//! What was acknowledged and is not there, as files of a run tell, which stand outside the database.
//!
//! SQLite cuts its own log off, without a word, at the first frame whose checksum does not fit: one changed bit in it, or
//! the log taken away, and commits that were acknowledged are gone, while all that is left is sound. The same goes for
//! an older copy of the database in the place of the newer one. Nothing within the database can tell; `events.jsonl`
//! can ([`Told`] argues why it is never ahead of what was on the disk), and of the last moments before a kill, when its lines
//! were not written yet, [`recent`](crate::recent) can.
//!
//! A record that is missed so is damage like any other, [`Flaw::Missing`]: it is listed by whoever reads heads or
//! scans, nothing goes on past it unasked, and it is noted in quarantine once somebody has decided, so that its number
//! is not given again. Where a run has durability `async`, a power cut may do the same, and that is foreseen: then it
//! is told as damage that a resume gets over by itself, saying so.
//!
//! Of the log only the end is looked at, back to the first record that is there: what is lost is always an end. One that
//! is in quarantine is not there: it was lost, and noted since, and others behind it may not be noted yet.
//! Branches that the database does not know are left out: what opened them is lost too, on a branch that it knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use waypost::disk::RealDisk;
use waypost::folder::{self, Told};
use waypost::id::{BranchPath, RunId};
use waypost::record::{Durability, Flaw};
use waypost::store::{Damage, StoreError};

use crate::branch::Branch;
use crate::fault::{Failure, Fault};
use crate::open::Place;
use crate::read::View;
use crate::recent;
use crate::rows::key;

/// What an `async` run says of a record that is not there.
const NOT_YET_SYNCED: &str =
    "it is not there; a run with durability `async` may lose its last moments when the power fails";

/// Returns the folder of a run, beside the database.
pub(crate) fn folder_of(place: &Place, run: &RunId) -> PathBuf {
    place.folder.join("runs").join(run.as_str())
}

/// What the files of a run tell of, each newest first.
pub(crate) struct Testimony {
    recent: Vec<(BranchPath, u64)>,
    recent_path: PathBuf,
    log: Told<'static>,
}

/// Reads what was acknowledged last. To be called before the transaction that is compared with it begins.
pub(crate) fn told(place: &Place, run: &RunId) -> Testimony {
    let folder = folder_of(place, run);
    let recent_path = recent::path_in(&folder);
    // In this order: what is taken out of the first is in the second by then.
    let recent = recent::told(&recent_path, run);
    Testimony { recent, recent_path, log: Told::newest_first(&RealDisk, &folder, run) }
}

/// Says whether a run has left its log beside the database.
pub(crate) fn has_told(place: &Place, run: &RunId) -> bool {
    folder::has_told(&RealDisk, &folder_of(place, run))
}

/// Says that the database does not know a run; that it has lost it, if the run has left its log.
pub(crate) fn no_run(place: &Place, run: &RunId) -> StoreError {
    if !has_told(place, run) {
        return StoreError::no_run(&place.name, run);
    }
    let folder = folder_of(place, run);
    let Testimony { recent, log, .. } = told(place, run);
    let newest = recent.into_iter().chain(log).find(|(branch, _)| branch.is_main());
    let damage = Damage {
        run: run.clone(),
        branch: BranchPath::main(),
        seq: newest.map_or(0, |(_, seq)| seq),
        place: format!("{} tells of it", shown(&folder)),
        flaw: Flaw::Missing,
    };
    StoreError::of_damage(damage, None)
}

fn shown(folder: &Path) -> String {
    folder.join("events.jsonl").display().to_string()
}

/// How records of a branch come to be missed.
#[derive(Debug)]
pub(crate) struct Gone {
    flaw: Flaw,
    place: String,
}

/// The newest record of each branch that is missed, if any is.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    newest: BTreeMap<BranchPath, u64>,
    gone: Option<Arc<Gone>>,
}

impl Lost {
    /// Compares what was told with what is there; `id` is the row of the run.
    pub(crate) fn of(view: View<'_>, run: &RunId, id: i64, told: Testimony) -> Result<Self, Failure> {
        let Testimony { recent, recent_path, mut log } = told;
        let mut lost = Self::default();
        let mut kept = BTreeMap::new();
        for told in recent {
            lost.miss(view, id, &mut kept, told)?;
        }
        let is_recent = !lost.is_empty();
        for told in log.by_ref() {
            if lost.miss(view, id, &mut kept, told)? {
                break;
            }
        }
        if !lost.is_empty() {
            let durability = view.frozen(id, run).map_or(Durability::Sync, |run| run.record().durability);
            let flaw = match durability {
                Durability::Sync => Flaw::Missing,
                Durability::Async => Flaw::Malformed(NOT_YET_SYNCED.to_owned()),
            };
            let path = if is_recent { recent_path.as_path() } else { log.path() };
            let place = format!("{} tells of it", path.display());
            lost.gone = Some(Arc::new(Gone { flaw, place }));
        }
        Ok(lost)
    }

    /// Takes in a record that was told of, if it is missed; says whether it is there.
    fn miss(
        &mut self,
        view: View<'_>,
        id: i64,
        kept: &mut BTreeMap<BranchPath, Option<(i64, u64)>>,
        (branch, seq): (BranchPath, u64),
    ) -> Result<bool, Failure> {
        let known = match kept.get(&branch) {
            Some(known) => *known,
            None => *kept.entry(branch.clone()).or_insert(newest_of(view.connection, id, &branch)?),
        };
        match known {
            Some((id, newest)) if seq <= newest => is_there(view.connection, key(id, seq)),
            Some(_) => {
                let told = self.newest.entry(branch).or_default();
                *told = seq.max(*told);
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Says whether nothing is missed.
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// Makes a branch as long as it was told to be.
    pub(crate) fn extend(&self, mut branch: Branch) -> Branch {
        if let Some((told, gone)) = self.newest.get(&branch.path).zip(self.gone.as_ref())
            && *told > branch.newest
        {
            branch.gone = Some((branch.newest, Arc::clone(gone)));
            branch.newest = *told;
        }
        branch
    }
}

/// Returns the id of a branch, and the highest seq that it ever had.
fn newest_of(connection: &Connection, run: i64, path: &BranchPath) -> Result<Option<(i64, u64)>, Failure> {
    let Some(branch) = Branch::find(connection, run, path)? else { return Ok(None) };
    let branch = branch.settled(connection, run)?;
    Ok(Some((branch.id, branch.newest)))
}

/// Says whether a record has a row; one that is on a damaged page has.
fn is_there(connection: &Connection, key: i64) -> Result<bool, Failure> {
    let found = connection.prepare_cached("SELECT 1 FROM records WHERE key = ?1")?.exists([key]);
    match found.map_err(Fault::from) {
        Err(fault) if fault.is_corrupt() => Ok(true),
        found => Ok(found?),
    }
}

impl Branch {
    /// Says what is wrong with a record that has no row, and where one sees it, if the log tells of it.
    pub(crate) fn gone(&self, seq: u64) -> Option<(Flaw, String)> {
        let (above, gone) = self.gone.as_ref()?;
        (seq > *above).then(|| (gone.flaw.clone(), gone.place.clone()))
    }
}
