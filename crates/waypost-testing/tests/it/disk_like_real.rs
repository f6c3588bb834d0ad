//! The simulated disk and the real one answer the same calls with the same answers.

use std::io;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use waypost::disk::{Disk, DiskFile, RealDisk, write_whole};
use waypost_testing::disk::SimDisk;
use waypost_testing::seed::Seeded;

/// How many sequences of random calls are made, and how long each is. They take two seconds.
const SEQUENCES: u64 = 200;
const CALLS: u64 = 120;

/// A handful of paths, so that random calls meet each other: folders in folders, and names for files.
const PATHS: [&str; 11] = ["a", "b", "c", "f", "g", "f/a", "f/b", "f/h", "f/h/a", "g/a", "no/a"];

/// A disk, the folder that a test has on it, and the files it has open.
struct Side {
    disk: Box<dyn Disk>,
    root: PathBuf,
    open: Vec<Box<dyn DiskFile>>,
}

impl Side {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Makes one call, decided by four numbers, and says how it went.
    fn call(&mut self, action: u64, first: u64, second: u64, length: u64) -> String {
        let path = |number: u64| PATHS[usize::try_from(number).unwrap() % PATHS.len()];
        let (source, target) = (self.at(path(first)), self.at(path(second)));
        let length = usize::try_from(length % 2000).unwrap();
        let opened =
            (!self.open.is_empty()).then(|| usize::try_from(first).unwrap() % self.open.len().max(1));
        let answer: io::Result<String> = match action % 14 {
            0 | 1 => self.disk.create_new(&source).map(|file| self.open.push(file)).map(text),
            2 => self.disk.open_append(&source).map(|file| self.open.push(file)).map(text),
            3 => self.disk.read(&source, 1000).map(text),
            4 => self.disk.read_at(&source, second % 50, length).map(text),
            5 => self.disk.rename(&source, &target).map(text),
            6 => self.disk.hard_link(&source, &target).map(text),
            7 => self.disk.remove(&source).map(text),
            8 => self.disk.create_dir(&source).map(text),
            9 => self.disk.remove_dir(&source).map(text),
            10 => self.disk.list(&source).map(text),
            11 => self.disk.metadata(&source).map(|found| match found.kind {
                waypost::disk::Kind::File => text(found),
                other => text(other),
            }),
            which => match (which, opened) {
                (12, Some(opened)) => write_whole(self.open[opened].as_mut(), &vec![b'x'; length]).map(text),
                (_, Some(opened)) => self.open[opened].truncate(second * 100).map(text),
                (_, None) => self.disk.sync_dir(&source).map(text),
            },
        };
        answer.unwrap_or_else(|error| format!("{:?}", error.raw_os_error().ok_or(error.kind())))
    }
}

fn text(answer: impl std::fmt::Debug) -> String {
    format!("{answer:?}")
}

#[test]
fn random_calls_get_the_same_answers_from_both() {
    for seed in 0..SEQUENCES {
        let folder = tempfile::tempdir().unwrap();
        let mut real = Side { disk: Box::new(RealDisk), root: folder.path().to_path_buf(), open: Vec::new() };
        let sim = SimDisk::with_folder("store");
        let mut sim = Side { disk: Box::new(sim), root: PathBuf::from("store"), open: Vec::new() };
        let mut seeded = Seeded::new(seed);
        for call in 0..CALLS {
            let [action, first, second, length] = [14, 100, 100, 2000].map(|limit| seeded.below(limit));

            let (actual, expect) =
                (sim.call(action, first, second, length), real.call(action, first, second, length));

            assert_eq!(actual, expect, "seed {seed}, call {call}: {action} {first} {second} {length}");
        }
    }
}

#[test]
fn what_the_real_disk_makes_is_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);

    RealDisk.create_dir(&at("f")).unwrap();
    RealDisk.create_new(&at("f/a")).unwrap();

    assert_eq!(at("f").metadata().unwrap().mode() & 0o7777, 0o700);
    assert_eq!(at("f/a").metadata().unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn the_real_disk_follows_no_symbolic_link_and_waits_for_no_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("secret"), "x").unwrap();
    symlink(at("secret"), at("link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();

    for name in ["link", "pipe"] {
        assert!(RealDisk.read(&at(name), 10).is_err(), "{name}");
        assert!(RealDisk.open_append(&at(name)).is_err(), "{name}");
        assert!(RealDisk.create_new(&at(name)).is_err(), "{name}");
        assert!(RealDisk.create_dir(&at(name)).is_err(), "{name}");
        assert_eq!(RealDisk.metadata(&at(name)).unwrap().kind, waypost::disk::Kind::Other, "{name}");
    }
}

#[test]
fn the_real_disk_syncs_files_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = RealDisk.create_new(&folder.path().join("a")).unwrap();

    write_whole(file.as_mut(), b"x").unwrap();

    file.sync().unwrap();
    RealDisk.sync_dir(folder.path()).unwrap();
    assert!(RealDisk.sync_dir(Path::new("/no/such/folder")).is_err());
}

#[test]
fn a_file_longer_than_allowed_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    write_whole(RealDisk.create_new(&path).unwrap().as_mut(), b"12345").unwrap();

    assert_eq!(RealDisk.read(&path, 5).unwrap(), b"12345");
    assert_eq!(RealDisk.read(&path, 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
}
