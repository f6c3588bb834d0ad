//! The search finds what each classic mistake loses, and nothing in the program that makes none.
//!
//! The program saves the numbers 1 to 3, one after the other, each in place of the one before, and acknowledges
//! each. Its promise: after a power cut there is a whole number, not below the last acknowledged one.

use std::io;
use std::path::Path;

use waypost::disk::{Disk, write_whole};
use waypost_testing::disk::{DiskFault, Loss, Refusal, Sampling, SimDisk, Survey, first_loss};

/// Which precaution a program leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    InPlace,
    NoSyncOfFile,
    NoSyncOfFolder,
    AcknowledgedFirst,
    SyncTriedAgain,
}

const VALUE: &str = "store/value";
const TEMPORARY: &str = "store/.tmp-value";

/// Long enough to be torn at a sector.
fn bytes_of(number: u8) -> Vec<u8> {
    vec![b'0' + number; 700]
}

fn save(disk: &SimDisk, number: u8, mistake: Mistake) -> io::Result<()> {
    if mistake == Mistake::InPlace {
        let mut file = disk.open_append(Path::new(VALUE))?;
        file.truncate(0)?;
        write_whole(file.as_mut(), &bytes_of(number))?;
        return file.sync();
    }
    match disk.remove(Path::new(TEMPORARY)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = disk.create_new(Path::new(TEMPORARY))?;
    write_whole(file.as_mut(), &bytes_of(number))?;
    if mistake != Mistake::NoSyncOfFile {
        match file.sync() {
            Err(_) if mistake == Mistake::SyncTriedAgain => file.sync()?,
            answer => answer?,
        }
    }
    disk.rename(Path::new(TEMPORARY), Path::new(VALUE))?;
    if mistake != Mistake::NoSyncOfFolder {
        disk.sync_dir(Path::new("store"))?;
    }
    Ok(())
}

/// Saves 1 to 3 and returns the last one that it acknowledged.
fn program(disk: &SimDisk, mistake: Mistake) -> u8 {
    let mut acknowledged = 0;
    for number in 1..=3 {
        if mistake == Mistake::AcknowledgedFirst && !disk.is_dead() {
            acknowledged = number;
        }
        if save(disk, number, mistake).is_err() {
            break;
        }
        acknowledged = number;
    }
    acknowledged
}

fn check(acknowledged: u8, disk: &SimDisk) -> Result<(), String> {
    let found = disk.read(Path::new(VALUE), 1 << 20).map_err(|error| error.to_string())?;
    match (acknowledged..=3).any(|number| found == bytes_of(number)) {
        true => Ok(()),
        false => Err(format!("{acknowledged} was acknowledged, found {} bytes", found.len())),
    }
}

fn start() -> SimDisk {
    let disk = SimDisk::with_folder("store");
    let mut file = disk.create_new(Path::new(VALUE)).unwrap();
    write_whole(file.as_mut(), &bytes_of(0)).unwrap();
    disk.settle();
    disk
}

fn search(start: &SimDisk, mistake: Mistake) -> Result<Survey, Box<Loss>> {
    first_loss(
        start,
        Sampling::default(),
        |disk| program(disk, mistake),
        |acknowledged, disk| check(*acknowledged, disk),
    )
}

#[test]
fn a_careful_program_loses_nothing() {
    let survey = search(&start(), Mistake::None).unwrap_or_else(|loss| panic!("{loss}"));

    assert_eq!(survey.calls, 3 * 6);
    assert!(survey.states > 40, "{survey:?}");
}

#[test]
fn writing_in_place_is_caught() {
    let loss = search(&start(), Mistake::InPlace).unwrap_err();

    assert!(loss.to_string().contains("found 0 bytes"), "{loss}");
}

#[test]
fn a_rename_before_the_bytes_are_synced_is_caught() {
    let loss = search(&start(), Mistake::NoSyncOfFile).unwrap_err();

    assert!(loss.story.contains("lost: Write of `store/.tmp-value`"), "{loss}");
}

#[test]
fn a_missing_sync_of_the_folder_is_caught() {
    let loss = search(&start(), Mistake::NoSyncOfFolder).unwrap_err();

    assert!(loss.story.contains("lost: Rename of `store/.tmp-value`"), "{loss}");
}

#[test]
fn an_acknowledgement_before_the_sync_is_caught() {
    let loss = search(&start(), Mistake::AcknowledgedFirst).unwrap_err();

    assert!(loss.found.starts_with("1 was acknowledged"), "{loss}");
}

#[test]
fn a_failed_sync_tried_again_is_caught() {
    let start = start();
    let sync_of_the_first = start.call_count() + 3;
    start.fail(sync_of_the_first, DiskFault::Refuse(Refusal::Broken));

    let loss = search(&start, Mistake::SyncTriedAgain).unwrap_err();

    assert!(loss.story.contains("lost: Write of `store/.tmp-value`"), "{loss}");
    assert!(search(&start, Mistake::None).is_ok(), "who gives up after a failed sync acknowledges nothing");
}

#[test]
fn a_loss_says_where_to_look() {
    let loss = search(&start(), Mistake::NoSyncOfFolder).unwrap_err();

    assert_eq!(
        loss.to_string(),
        "call 5, state 0: 1 was acknowledged, found 700 bytes\n\
         the power was cut before Remove of `store/.tmp-value`\n\
         a disk after a power cut; lost: CreateNew of `store/.tmp-value`; lost: Rename of `store/.tmp-value`;"
    );
}
