//! The states after a power cut, of programs so small that a person can list them.

use std::collections::BTreeSet;
use std::path::Path;

use waypost::disk::{Disk, Kind, write_whole};
use waypost_testing::disk::{DiskFault, EXHAUSTIVE_MAX, Refusal, Sampling, SimDisk};

/// A durable file `store/a` with those bytes.
fn disk_with(bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::with_folder("store");
    put(&disk, "a", bytes);
    disk.settle();
    disk
}

/// Creates a file in `store` and writes it, without any sync.
fn put(disk: &SimDisk, name: &str, bytes: &[u8]) {
    let mut file = disk.create_new(&Path::new("store").join(name)).unwrap();
    write_whole(file.as_mut(), bytes).unwrap();
}

/// Everything in `store`, as `name=bytes`; a zero is shown as `_`.
fn shown(disk: &SimDisk) -> String {
    let mut names = Vec::new();
    for entry in disk.list(Path::new("store")).unwrap() {
        let name = entry.name.to_str().unwrap().to_owned();
        if entry.kind == Kind::Folder {
            names.push(format!("{name}/"));
            continue;
        }
        let bytes = disk.read(&Path::new("store").join(&name), 1 << 20).unwrap();
        let text: String =
            bytes.iter().map(|byte| if *byte == 0 { '_' } else { char::from(*byte) }).collect();
        names.push(format!("{name}={text}"));
    }
    names.join(" ")
}

fn states(disk: &SimDisk) -> BTreeSet<String> {
    let all: Vec<String> = disk.crash_states().map(|state| shown(&state)).collect();
    let different: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(all.len(), different.len(), "a state is given once: {all:?}");
    different
}

fn set(states: &[&str]) -> BTreeSet<String> {
    states.iter().map(ToString::to_string).collect()
}

#[test]
fn a_disk_with_nothing_unsynced_has_one_state() {
    let disk = disk_with(b"old");

    assert_eq!(states(&disk), set(&["a=old"]));
}

#[test]
fn a_new_file_is_missing_empty_zeros_or_whole() {
    let disk = SimDisk::with_folder("store");

    put(&disk, "a", b"xy");

    assert_eq!(states(&disk), set(&["", "a=", "a=__", "a=xy"]));
}

#[test]
fn syncing_a_file_saves_its_bytes_but_not_its_name() {
    let disk = SimDisk::with_folder("store");

    let mut file = disk.create_new(Path::new("store/a")).unwrap();
    write_whole(file.as_mut(), b"xy").unwrap();
    file.sync().unwrap();

    assert_eq!(states(&disk), set(&["", "a=xy"]));
}

#[test]
fn syncing_a_folder_saves_names_but_no_bytes() {
    let disk = SimDisk::with_folder("store");

    put(&disk, "a", b"xy");
    disk.sync_dir(Path::new("store")).unwrap();

    assert_eq!(states(&disk), set(&["a=", "a=__", "a=xy"]));
}

#[test]
fn a_sync_saves_nothing_that_comes_after_it() {
    let disk = disk_with(b"1");

    let mut file = disk.open_append(Path::new("store/a")).unwrap();
    write_whole(file.as_mut(), b"2").unwrap();
    file.sync().unwrap();
    write_whole(file.as_mut(), b"3").unwrap();

    assert_eq!(states(&disk), set(&["a=12", "a=12_", "a=123"]));
}

#[test]
fn of_two_appends_the_second_can_be_there_alone() {
    let disk = disk_with(b"");

    let mut file = disk.open_append(Path::new("store/a")).unwrap();
    write_whole(file.as_mut(), b"12").unwrap();
    write_whole(file.as_mut(), b"34").unwrap();

    assert_eq!(states(&disk), set(&["a=", "a=__", "a=12", "a=____", "a=12__", "a=__34", "a=1234"]));
}

#[test]
fn a_long_write_is_torn_at_512_bytes_and_4_kib_only() {
    let disk = disk_with(b"");
    let mut file = disk.open_append(Path::new("store/a")).unwrap();
    write_whole(file.as_mut(), &[b'x'; 5000]).unwrap();

    let mut shapes = BTreeSet::new();
    for state in disk.crash_states() {
        let bytes = state.read(Path::new("store/a"), 5000).unwrap();
        let kept: Vec<bool> =
            bytes.chunks(512).map(|sector| sector.iter().all(|byte| *byte == b'x')).collect();
        assert!(
            bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])),
            "a sector is torn"
        );
        let changes = kept.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes <= 1, "kept from the start or to the end");
        shapes.insert((bytes.len(), kept.iter().filter(|kept| **kept).count()));
    }

    // Cut at 512, at 2560 = 5 * 512 (the middle), at 4096 (the page) and 4608 = 9 * 512 (the last sector border).
    for cut in [512, 2560, 4096, 4608] {
        let sectors = cut / 512;
        assert!(shapes.contains(&(cut, sectors)), "shorter, cut at {cut}");
        assert!(shapes.contains(&(5000, sectors)), "zeros behind {cut}");
        assert!(shapes.contains(&(5000, 10 - sectors)), "zeros before {cut}");
    }
    assert!(shapes.contains(&(0, 0)) && shapes.contains(&(5000, 0)) && shapes.contains(&(5000, 10)));
}

#[test]
fn a_rename_over_a_file_leaves_the_old_or_the_new_never_neither() {
    let disk = disk_with(b"old");
    put(&disk, "b", b"new");
    disk.settle();

    disk.rename(Path::new("store/b"), Path::new("store/a")).unwrap();

    assert_eq!(states(&disk), set(&["a=old b=new", "a=new"]));
}

#[test]
fn a_rename_can_overtake_the_bytes_of_its_file() {
    let disk = disk_with(b"old");

    put(&disk, "b", b"n");
    disk.rename(Path::new("store/b"), Path::new("store/a")).unwrap();
    disk.sync_dir(Path::new("store")).unwrap();

    assert_eq!(states(&disk), set(&["a=", "a=_", "a=n"]));
}

#[test]
fn a_rename_between_folders_waits_for_both() {
    let disk = disk_with(b"x");
    disk.create_dir(Path::new("store/f")).unwrap();
    disk.settle();

    disk.rename(Path::new("store/a"), Path::new("store/f/a")).unwrap();
    disk.sync_dir(Path::new("store/f")).unwrap();
    let one_synced = states(&disk);
    disk.sync_dir(Path::new("store")).unwrap();

    assert_eq!(one_synced, set(&["a=x f/", "f/"]));
    assert_eq!(states(&disk), set(&["f/"]));
    assert_eq!(disk.read(Path::new("store/f/a"), 1).unwrap(), b"x");
}

#[test]
fn a_removed_name_can_come_back_until_the_folder_is_synced() {
    let disk = disk_with(b"x");

    disk.remove(Path::new("store/a")).unwrap();
    let before = states(&disk);
    disk.sync_dir(Path::new("store")).unwrap();

    assert_eq!(before, set(&["", "a=x"]));
    assert_eq!(states(&disk), set(&[""]));
}

#[test]
fn a_hard_link_is_a_name_apart_for_the_same_bytes() {
    let disk = disk_with(b"");

    let mut file = disk.open_append(Path::new("store/a")).unwrap();
    disk.hard_link(Path::new("store/a"), Path::new("store/b")).unwrap();
    write_whole(file.as_mut(), b"x").unwrap();

    assert_eq!(states(&disk), set(&["a=", "a=_", "a=x", "a= b=", "a=_ b=_", "a=x b=x"]));
}

#[test]
fn what_is_in_an_unsynced_folder_goes_with_it() {
    let disk = SimDisk::with_folder("store");

    disk.create_dir(Path::new("store/f")).unwrap();
    let mut file = disk.create_new(Path::new("store/f/a")).unwrap();
    write_whole(file.as_mut(), b"x").unwrap();
    file.sync().unwrap();
    disk.sync_dir(Path::new("store/f")).unwrap();

    assert_eq!(states(&disk), set(&["", "f/"]));
    let whole = disk.crash_states().filter(|state| state.read(Path::new("store/f/a"), 1).is_ok());
    assert_eq!(whole.count(), 1);
}

#[test]
fn writing_in_place_leaves_old_and_new_mixed() {
    let disk = disk_with(b"old!");

    let mut file = disk.open_append(Path::new("store/a")).unwrap();
    file.truncate(0).unwrap();
    write_whole(file.as_mut(), b"new").unwrap();

    assert_eq!(states(&disk), set(&["a=old!", "a=", "a=new!", "a=new", "a=___"]));
}

#[test]
fn a_truncation_lasts_once_the_file_is_synced() {
    let disk = disk_with(b"whole/torn");

    let mut file = disk.open_append(Path::new("store/a")).unwrap();
    file.truncate(5).unwrap();
    let before = states(&disk);
    file.sync().unwrap();

    assert_eq!(before, set(&["a=whole/torn", "a=whole"]));
    assert_eq!(states(&disk), set(&["a=whole"]));
}

#[test]
fn a_failed_sync_saves_nothing_and_neither_does_the_next_one() {
    let disk = disk_with(b"1");
    let mut file = disk.open_append(Path::new("store/a")).unwrap();
    write_whole(file.as_mut(), b"2").unwrap();
    disk.fail(disk.call_count(), DiskFault::Refuse(Refusal::Broken));

    assert!(file.sync().is_err());
    assert!(file.sync().is_ok(), "the kernel has forgotten what it could not write");
    disk.settle();

    assert_eq!(shown(&disk), "a=12", "until the power goes, the bytes can be read");
    assert_eq!(states(&disk), set(&["a=1", "a=1_", "a=12"]));
}

#[test]
fn eight_unsynced_names_are_tried_in_every_subset() {
    let disk = SimDisk::with_folder("store");
    for name in 0..EXHAUSTIVE_MAX {
        disk.create_new(&Path::new("store").join(name.to_string())).unwrap();
    }

    assert_eq!(disk.unsynced_count(), EXHAUSTIVE_MAX);
    assert_eq!(states(&disk).len(), 1 << EXHAUSTIVE_MAX);
}

#[test]
fn eight_torn_writes_are_tried_one_by_one_and_sampled_together() {
    let disk = SimDisk::with_folder("store");
    let mut files = Vec::new();
    for name in 0..EXHAUSTIVE_MAX {
        files.push(disk.create_new(&Path::new("store").join(name.to_string())).unwrap());
    }
    disk.settle();
    for file in &mut files {
        write_whole(file.as_mut(), &[b'x'; 1024]).unwrap();
    }

    // A write of two sectors can be lost, whole, or in part in 7 ways: no bytes yet, or cut at 512 or at 1024, each
    // shorter, with zeros behind or with zeros before; the cut at 1024 is one of them and no other.
    let counts = disk.crash_states_with(Sampling { seed: 1, draws: 0 }).count();

    assert!(counts > 256 && counts <= 256 + 8 * 7 * 128, "{counts}");
}

#[test]
fn many_unsynced_changes_are_sampled_the_same_way_each_time() {
    let disk = SimDisk::with_folder("store");
    for name in 10..40 {
        put(&disk, &name.to_string(), b"x");
    }
    let sampled = |seed| -> Vec<String> {
        disk.crash_states_with(Sampling { seed, draws: 100 }).map(|state| shown(&state)).collect()
    };

    assert_eq!(sampled(7), sampled(7));
    assert_ne!(sampled(7), sampled(8));
    let found: BTreeSet<String> = sampled(7).into_iter().collect();
    assert!(
        found.contains("") && found.contains(&shown(&disk)),
        "all lost and all kept are always among them"
    );
    let only_last_lost = shown(&disk).replace(" 39=x", "");
    assert!(found.contains(&only_last_lost), "so is the loss of one name alone");
}

#[test]
fn a_state_says_what_was_lost() {
    let disk = disk_with(b"x");
    disk.remove(Path::new("store/a")).unwrap();

    let lost = disk.crash_states().next().unwrap();

    assert_eq!(lost.to_string(), "a disk after a power cut; lost: Remove of `store/a`;");
}

#[test]
fn a_dead_disk_answers_nothing_and_keeps_nothing() {
    let disk = disk_with(b"x");
    disk.die_at(disk.call_count() + 1);

    assert!(!disk.is_dead());
    disk.create_new(Path::new("store/b")).unwrap();

    assert!(disk.create_new(Path::new("store/c")).is_err());
    assert!(disk.sync_dir(Path::new("store")).is_err());
    assert!(disk.read(Path::new("store/a"), 1).is_err());
    assert!(disk.is_dead());
    assert_eq!(states(&disk), set(&["a=x", "a=x b="]));
}
