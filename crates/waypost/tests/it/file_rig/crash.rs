//! The file store after a power cut before any of its disk calls, in every state that the media can then have.
//!
//! The same search over faulty disks must detect the planted faults.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use waypost::disk::Disk;
use waypost_testing::disk::{Loss, Sampling, SimDisk, Survey, first_loss};

use super::planted_faults::{DiskFault, FaultyDisk};
use super::{Program, Told, commit_files, creates, disk_after, goes_on, has, promises, rotates, share};

/// One in `SHARE` states is checked. The number is prime, so that it is independent of the listing order.
const SHARE: usize = 127;
/// Random draws if there are too many states to list, in addition to the states near to losing nothing or
/// everything.
const DRAWS: usize = 200;

/// Cuts the power before each call of a program on `start`, with an optional planted fault, and counts the
/// checks.
fn search(
    start: &SimDisk,
    told: &Told,
    program: Program,
    lie: Option<DiskFault>,
    share: usize,
) -> Result<(Survey, u64), Box<Loss>> {
    let run = |disk: &SimDisk| {
        let mut told = told.clone();
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let disk = lie.map_or(disk.clone(), |lie| Arc::new(FaultyDisk::new(disk, lie)));
        // The disk may have lost power: only earlier acknowledgements count.
        let _ = program(disk, &mut told);
        told
    };
    let (seen, checked) = (Cell::new(0_usize), Cell::new(0_u64));
    let sampling = Sampling { seed: 1, draws: DRAWS };
    let survey = first_loss(start, sampling, run, |told, disk| {
        seen.set(seen.get() + 1);
        if !seen.get().is_multiple_of(share) {
            return Ok(());
        }
        checked.set(checked.get() + 1);
        promises(told, disk)
    })?;
    Ok((survey, checked.get()))
}

/// Checks that no acknowledged data is lost, and that the search was large enough.
fn nothing_is_lost(start: &SimDisk, told: &Told, program: Program) {
    match search(start, told, program, None, share(SHARE)) {
        Ok((survey, checked)) => {
            assert!(survey.calls > 10 && survey.states > 100 && checked > 4, "{survey:?}, {checked}");
        }
        Err(loss) => panic!("{loss}"),
    }
}

#[test]
fn a_power_cut_while_a_run_is_made_loses_nothing() {
    let (start, told) = disk_after(&[]);

    nothing_is_lost(&start, &told, creates);
}

#[test]
fn a_power_cut_while_a_run_goes_on_loses_nothing() {
    let (start, told) = disk_after(&[creates]);

    nothing_is_lost(&start, &told, goes_on);
}

#[test]
fn a_power_cut_while_a_run_rotates_loses_nothing() {
    let (start, told) = disk_after(&[creates, goes_on]);
    let (rotated, _) = disk_after(&[creates, goes_on, rotates]);
    assert!(has(&rotated, "disk/store/runs/r-1/journal.jsonl"), "nothing was rotated");

    nothing_is_lost(&start, &told, rotates);
}

/// Returns a run of three records, the last one acknowledged and then damaged.
fn damaged() -> (SimDisk, Told) {
    let (start, mut told) = disk_after(&[creates, goes_on]);
    let newest = commit_files(&start).pop().unwrap();
    start.spoil(&newest, |bytes| bytes[300] ^= 1).unwrap();
    told.acknowledged.pop();
    (start, told)
}

#[test]
fn a_power_cut_while_damage_is_moved_aside_loses_nothing() {
    let (start, told) = damaged();
    let newest = commit_files(&start).pop().unwrap();
    let bytes = start.files().into_iter().find(|(path, _)| *path == newest).unwrap().1;

    nothing_is_lost(&start, &told, goes_on);

    // The damaged file is also kept at all times.
    let kept = |_: &Told, disk: &SimDisk| {
        let found = disk.files().into_iter().any(|(_, found)| found == bytes);
        if found { Ok(()) } else { Err("the damaged file is gone".to_owned()) }
    };
    let program = |disk: &SimDisk| {
        let mut told = told.clone();
        let _ = goes_on(Arc::new(disk.clone()), &mut told);
        told
    };
    first_loss(&start, Sampling { seed: 1, draws: DRAWS }, program, kept)
        .unwrap_or_else(|loss| panic!("{loss}"));
}

#[test]
fn every_planted_mistake_is_seen() {
    for lie in [
        DiskFault::FileNotSynced,
        DiskFault::FolderNotSynced,
        DiskFault::FolderSyncedLater,
        DiskFault::NamedFirst,
    ] {
        let (start, told) = disk_after(&[creates]);
        // A file system without links: otherwise the second name of the newest commit heals any fault of the
        // first.
        start.remove(Path::new("disk/store/runs/r-1/checkpoint.json")).unwrap();
        start.settle();

        let found = search(&start, &told, goes_on, Some(lie), 1);

        assert!(found.is_err(), "{lie:?} was not seen");
    }
}
