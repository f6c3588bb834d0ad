//! Errors that are set for a call are met by it, and only by calls that can meet them.

use std::io::ErrorKind;
use std::path::Path;

use waypost::disk::{Disk, write_whole};
use waypost_testing::disk::{Action, DiskFault, Refusal, SimDisk};

#[test]
fn short_writes_and_interruptions_are_written_through() {
    let disk = SimDisk::with_folder("store");
    let mut file = disk.create_new(Path::new("store/a")).unwrap();
    let next = disk.call_count();
    disk.fail(next, DiskFault::ShortWrite(3));
    disk.fail(next + 1, DiskFault::Refuse(Refusal::Interrupted));
    disk.fail(next + 2, DiskFault::ShortWrite(0));

    write_whole(file.as_mut(), b"0123456789").unwrap();

    assert_eq!(disk.read(Path::new("store/a"), 10).unwrap(), b"0123456789");
    assert_eq!(disk.calls().iter().filter(|call| call.action == Action::Write).count(), 4);
}

#[test]
fn a_full_disk_takes_nothing_but_still_reads_and_removes() {
    let disk = SimDisk::with_folder("store");
    let mut file = disk.create_new(Path::new("store/a")).unwrap();
    write_whole(file.as_mut(), b"x").unwrap();
    disk.fail_from(disk.call_count(), DiskFault::Refuse(Refusal::Full));

    assert_eq!(write_whole(file.as_mut(), b"y").unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.sync().unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.create_new(Path::new("store/b")).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.read(Path::new("store/a"), 1).unwrap(), b"x");
    disk.remove(Path::new("store/a")).unwrap();

    disk.heal();
    assert!(disk.create_new(Path::new("store/b")).is_ok());
}

#[test]
fn a_read_only_disk_changes_nothing() {
    let disk = SimDisk::with_folder("store");
    disk.create_new(Path::new("store/a")).unwrap();
    disk.settle();
    let (before, calls) = (disk.files(), disk.call_count());
    disk.fail_from(calls, DiskFault::Refuse(Refusal::ReadOnly));

    let (a, b) = (Path::new("store/a"), Path::new("store/b"));
    let refused = [
        disk.create_new(b).map(drop),
        disk.open_append(a).map(drop),
        disk.rename(a, b),
        disk.hard_link(a, b),
        disk.remove(a),
        disk.create_dir(b),
        disk.remove_dir(Path::new("store")),
        disk.sync_dir(Path::new("store")),
    ];

    for answer in refused {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
    assert_eq!(disk.files(), before);
    assert_eq!(disk.list(Path::new("store")).unwrap().len(), 1);
}

#[test]
fn every_error_has_the_number_that_a_kernel_gives() {
    let numbers = Refusal::ALL.map(|refusal| {
        let disk = SimDisk::new();
        disk.fail_from(0, DiskFault::Refuse(refusal));
        disk.create_new(Path::new("a")).unwrap_err().raw_os_error().unwrap()
    });

    let expect = [
        rustix::io::Errno::IO,
        rustix::io::Errno::NOSPC,
        rustix::io::Errno::DQUOT,
        rustix::io::Errno::ROFS,
        rustix::io::Errno::INTR,
    ];
    assert_eq!(numbers, expect.map(|errno| errno.raw_os_error()));
}

#[test]
fn a_fork_is_a_disk_of_its_own_and_a_clone_is_not() {
    let disk = SimDisk::with_folder("store");
    let (same, other) = (disk.clone(), disk.fork());

    disk.create_new(Path::new("store/a")).unwrap();

    assert!(same.metadata(Path::new("store/a")).is_ok());
    assert_eq!(other.metadata(Path::new("store/a")).unwrap_err().kind(), ErrorKind::NotFound);
}
