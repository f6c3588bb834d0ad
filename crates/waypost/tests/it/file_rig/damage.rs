//! Every bit of a small file store flipped, and every file truncated at every length. A read returns the right
//! value, an older valid value with a report, or an error; never a wrong value.

use std::path::Path;
use std::sync::Arc;

use waypost::ScopePath;
use waypost::disk::Disk;
use waypost::file::FileStore;
use waypost::record::Record;
use waypost::store::{Page, Scan, Store, StoreError};
use waypost_testing::damage::{ALL, FirstWrong, OneIn, Outcome, Tally, damage_disk};
use waypost_testing::disk::SimDisk;
use waypost_testing::picture::{of_summary, scan_all};

use super::planted_faults::{DiskFault, FaultyDisk};
use super::{DIR, Told, commit_files, creates, disk_after, goes_on, now, rotates, run, share};

/// One in `SHARE` damages is tried. The number is odd, so that each bit is tried.
const SHARE: usize = 401;

/// The content of an undamaged run.
struct Whole {
    record: String,
    summary: String,
    records: Vec<Record>,
}

fn look(store: &FileStore) -> Result<Whole, StoreError> {
    let entry = now(store.run(&run()))?;
    let scanned = now(scan_all(store, Scan::of(&run())))?;
    let mut records = Vec::new();
    for record in &scanned.records {
        records.push(now(store.load(&run(), &ScopePath::main(), record.header().seq))?);
    }
    // Sizes and values derived from sizes may differ.
    let summary = of_summary(&entry.summary);
    Ok(Whole { record: entry.record.digest().to_string(), summary, records })
}

/// Reads a damaged store in every way and compares each value with the written one.
fn read(whole: &Whole, disk: Arc<dyn Disk>) -> Outcome {
    let store = FileStore::on(disk, DIR);
    let mut outcome = Outcome::Right;
    let heads = match now(store.heads(&run(), &Page::default())) {
        Ok(heads) => heads.heads,
        Err(error) if is_absence(&error) => return Outcome::Wrong(format!("it is gone: {error:?}")),
        Err(_) => return Outcome::Refused,
    };
    let Some(head) = heads.first() else { return Outcome::Wrong("there is no head".to_owned()) };
    let newest = whole.records.last().map_or(0, |record| record.header().seq);
    if !whole.records.contains(&head.record) {
        return Outcome::Wrong(format!("head {:?}", head.record));
    }
    if head.record.header().seq < newest {
        if head.damaged.is_empty() {
            return Outcome::Wrong(format!("@{} without a word", head.record.header().seq));
        }
        outcome = Outcome::Older;
    }
    for record in &whole.records {
        match now(store.load(&run(), &ScopePath::main(), record.header().seq)) {
            Ok(found) if found == *record => {}
            Ok(found) => return Outcome::Wrong(format!("loaded {found:?} for {record:?}")),
            Err(error) if is_absence(&error) => {
                return Outcome::Wrong(format!("a record is gone: {error:?}"));
            }
            Err(_) => outcome = Outcome::Older,
        }
    }
    match now(store.run(&run())) {
        Ok(entry) if entry.record.digest().to_string() != whole.record => {
            Outcome::Wrong("another run record".to_owned())
        }
        // An older commit has an older summary.
        Ok(entry) if outcome == Outcome::Right && of_summary(&entry.summary) != whole.summary => {
            Outcome::Wrong(format!("summary {}", of_summary(&entry.summary)))
        }
        Err(error) if is_absence(&error) => Outcome::Wrong(format!("the run is gone: {error:?}")),
        Ok(_) => outcome,
        Err(_) => Outcome::Refused,
    }
}

fn is_absence(error: &StoreError) -> bool {
    matches!(error, StoreError::NotFound { .. })
}

fn small() -> (SimDisk, Told, Whole) {
    let (disk, told) = disk_after(&[creates, goes_on, rotates]);
    let whole = look(&FileStore::on(Arc::new(disk.clone()), DIR)).unwrap();
    assert!(whole.records.len() == told.acknowledged.len(), "all records are there, rotated ones too");
    (disk, told, whole)
}

/// Whether a file is never read. (`checkpoint.json` is for people too, but is a second name of the newest commit
/// file, so damage affects both.)
fn for_people(path: &Path) -> bool {
    !decides(path) && !path.ends_with("checkpoint.json")
}

/// Whether a file decides the content of a run.
fn decides(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    !matches!(name, "events.jsonl" | "report.md" | "checkpoint.json") && !name.ends_with(".sha256")
}

fn damaged(
    lie: Option<DiskFault>,
    share: OneIn,
    chosen: impl Fn(&Path) -> bool,
) -> Result<Tally, Box<FirstWrong>> {
    let (disk, _, whole) = small();
    damage_disk(&disk, share, chosen, |disk| {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        read(&whole, lie.map_or(disk.clone(), |lie| Arc::new(FaultyDisk::new(disk, lie))))
    })
}

#[test]
fn damage_is_seen() {
    let tally = damaged(None, OneIn(share(SHARE)), decides).unwrap_or_else(|wrong| panic!("{wrong}"));

    assert!(tally.right > 0 && tally.older > 10, "{tally:?}");
}

#[test]
fn damage_of_what_is_for_people_changes_nothing() {
    let (disk, _, whole) = small();

    let tally =
        damage_disk(&disk, OneIn(share(SHARE)), for_people, |disk| read(&whole, Arc::new(disk.clone())));

    let tally = tally.unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(tally.right > 5 && tally.older == 0 && tally.refused == 0, "{tally:?}");
}

#[test]
fn a_store_that_checks_no_digest_is_seen() {
    let newest = commit_files(&small().0).pop().unwrap();

    // Most flips make a file unreadable, so a thin sample may miss the others.
    let shares = [OneIn(7), OneIn(5), OneIn(3), ALL];
    let seen = |share| damaged(Some(DiskFault::DigestUnchecked), share, |path| path == newest).is_err();

    assert!(shares.into_iter().any(seen), "damage was believed, and nobody saw it");
}
