//! The rig that damages files does all that it says, and sees a store that does not look.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use waypost::Digest;
use waypost::disk::{Disk, write_whole};
use waypost_testing::damage::{ALL, Damage, OneIn, Outcome, Tally, damage_disk, damage_folder, every_damage};
use waypost_testing::disk::SimDisk;

const VALUES: [&str; 2] = ["first", "second"];

/// A toy store: a file for each value, `DIGEST VALUE`. The newest sound one counts.
fn files() -> Vec<(PathBuf, Vec<u8>)> {
    (1..)
        .zip(VALUES)
        .map(|(number, value)| (PathBuf::from(format!("store/{number}")), sealed(value)))
        .collect()
}

fn sealed(value: &str) -> Vec<u8> {
    format!("{} {value}", Digest::of(value.as_bytes())).into_bytes()
}

/// Reads the toy store; with `trusting`, without looking at the digests.
fn read(files: &[Vec<u8>], trusting: bool) -> Outcome {
    for (age, bytes) in files.iter().rev().enumerate() {
        let Some((digest, value)) = bytes.split_at_checked(65) else { continue };
        if trusting || digest == format!("{} ", Digest::of(value)).as_bytes() {
            let value = String::from_utf8_lossy(value);
            return match VALUES.iter().rev().position(|right| value == **right) {
                Some(0) => Outcome::Right,
                Some(found) if found == age => Outcome::Older,
                _ => Outcome::Wrong(format!("read `{value}`")),
            };
        }
    }
    Outcome::Refused
}

fn disk() -> SimDisk {
    let disk = SimDisk::with_folder("store");
    for (path, bytes) in files() {
        write_whole(disk.create_new(&path).unwrap().as_mut(), &bytes).unwrap();
    }
    disk.settle();
    disk
}

fn read_disk(disk: &SimDisk, trusting: bool) -> Outcome {
    let files: Vec<_> =
        ["store/1", "store/2"].map(|path| disk.read(Path::new(path), 1 << 10).unwrap()).to_vec();
    read(&files, trusting)
}

#[test]
fn every_bit_and_every_length_is_tried_once() {
    let all: BTreeSet<String> = every_damage(vec![("a".into(), 2), ("b".into(), 0), ("c".into(), 1)])
        .map(|damage| damage.to_string())
        .collect();

    assert_eq!(all.len(), 2 * 8 + 2 + 8 + 1);
    assert!(all.contains("`a`: bit 7 of byte 1 flipped"));
    assert!(all.contains("`a`: cut after 0 bytes") && all.contains("`a`: cut after 1 bytes"));
    assert!(!all.contains("`a`: cut after 2 bytes"));
}

#[test]
fn a_store_that_checks_its_digests_stands_all_of_it() {
    let newest = sealed("second").len() as u64;
    let other = sealed("first").len() as u64;

    let tally = damage_disk(&disk(), ALL, |_| true, |disk| read_disk(disk, false)).unwrap();

    assert_eq!(tally, Tally { right: other * 9, older: newest * 9, refused: 0 });
}

#[test]
fn a_store_without_another_copy_refuses() {
    let disk = disk();
    disk.remove(Path::new("store/1")).unwrap();
    disk.settle();
    let read = |disk: &SimDisk| read(&[disk.read(Path::new("store/2"), 1 << 10).unwrap()], false);

    let tally = damage_disk(&disk, ALL, |_| true, read).unwrap();

    assert_eq!(tally, Tally { right: 0, older: 0, refused: sealed("second").len() as u64 * 9 });
}

#[test]
fn a_store_that_trusts_its_bytes_is_caught_at_the_first_one() {
    let wrong =
        damage_disk(&disk(), ALL, |path| path.ends_with("2"), |disk| read_disk(disk, true)).unwrap_err();

    assert_eq!(wrong.to_string(), "`store/2`: bit 0 of byte 65 flipped: read `recond`");
    assert_eq!(wrong.damage, Damage::Flip { file: "store/2".into(), byte: 65, bit: 0 });
    assert_eq!(wrong.before.right, 65 * 8, "the digest itself was hit, and nobody looks at it");
}

#[test]
fn a_store_that_panics_is_caught() {
    let wrong = damage_disk(&disk(), ALL, |_| true, |_| panic!("on purpose")).unwrap_err();

    assert!(wrong.to_string().ends_with("it panicked"), "{wrong}");
}

#[test]
fn a_folder_is_damaged_in_copies_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("store")).unwrap();
    for (path, bytes) in files() {
        fs::write(folder.path().join(path), bytes).unwrap();
    }
    let read_folder = |trusting| {
        move |folder: &Path| {
            let files = ["store/1", "store/2"].map(|path| fs::read(folder.join(path)).unwrap());
            read(&files, trusting)
        }
    };

    let tally = damage_folder(folder.path(), ALL, |_| true, read_folder(false)).unwrap().unwrap();
    let wrong = damage_folder(folder.path(), ALL, |path| path.ends_with("2"), read_folder(true))
        .unwrap()
        .unwrap_err();

    assert_eq!(tally, damage_disk(&disk(), ALL, |_| true, |disk| read_disk(disk, false)).unwrap());
    assert_eq!(wrong.to_string(), "`store/2`: bit 0 of byte 65 flipped: read `recond`");
    assert_eq!(fs::read(folder.path().join("store/2")).unwrap(), sealed("second"));
}

#[test]
fn a_short_form_does_one_damage_in_so_many() {
    let all = damage_disk(&disk(), ALL, |_| true, |disk| read_disk(disk, false)).unwrap();
    let some = damage_disk(&disk(), OneIn(10), |_| true, |disk| read_disk(disk, false)).unwrap();

    assert_eq!(some.right + some.older, (all.right + all.older).div_ceil(10));
}

#[test]
#[should_panic(expected = "no file was chosen")]
fn choosing_no_file_shows_nothing_and_says_so() {
    let _ = damage_disk(&disk(), ALL, |path| path.ends_with("3"), |_| Outcome::Right);
}
