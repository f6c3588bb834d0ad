//! Tree digests: a single digest of a folder, or of the files that match a pattern, without following links.
//!
//! ```text
//!   survey: paths, types, sizes, times --> hash the files, several at once --> survey again: the same, or it changed
//!        each entry --> leaf: tag, type, path, digest of what it holds --> Merkle tree over the leaves, sorted by path
//! ```
//!
//! docs/concepts/format.md specifies the digest.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};

use super::Site;
use super::files::{Stamp, hash_file};
use super::pattern::resolved;
use super::pattern::{check_pattern, fits, is_pattern, literal_path, named_by, split};
use super::safe_open::{LastLink, OpenError, OpenedPath, open_error, regular};
use crate::id::Digest;

/// Most entries in a survey: some hundred bytes each.
const ENTRIES_MAX: usize = 500_000;
/// Deepest nesting of folders: each folder on the way is an open descriptor.
const DEPTH_MAX: usize = 128;
/// The folder of a project's runs. Excluded from every tree, as each step changes the folder.
const OURS: &str = ".waypost";
/// Most files hashed in parallel: more do not make a disk faster.
const WORKERS_MAX: usize = 8;
/// Domain separator: the beginning of every leaf, so that leaves differ from all other digests of this
/// project.
const TAG: &[u8] = b"waypost tree 1";
/// Granularity of timestamps: a kernel's tick, and file systems with whole seconds (FAT: two seconds).
const TICK: Duration = Duration::from_millis(50);
const SECONDS: Duration = Duration::from_secs(3);

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The entries beneath a folder, or the matches of a pattern, at one moment.
#[derive(Debug)]
pub(super) struct TreeListing {
    top: OwnedFd,
    entries: Vec<TreeEntry>,
}

/// A name in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TreeEntry {
    /// Relative to the folder, or to the part of the pattern before its first wildcard.
    path: PathBuf,
    kind: EntryKind,
    stamp: Stamp,
    inode: (u64, u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EntryKind {
    File,
    Folder,
    /// A link with its target; not followed.
    Link(Vec<u8>),
}

impl TreeListing {
    /// Surveys a folder or a pattern; returns `None` for other subjects.
    pub(super) fn of(site: &Site, subject: &str, dropped: &AtomicBool) -> Result<Option<Self>, OpenError> {
        let mut walk = TreeWalk { entries: Vec::new(), dropped };
        if is_pattern(subject) {
            let (top, paths) = matching(site, subject, dropped)?;
            for path in &paths {
                walk.add(top.as_fd(), path)?;
            }
            if walk.entries.is_empty() {
                return Err(OpenError::Missing);
            }
            return Ok(Some(Self::sorted(top, walk.entries)));
        }
        let place = OpenedPath::find(site, subject, LastLink::Follow)?;
        if FileType::from_raw_mode(place.stat()?.st_mode) != FileType::Directory {
            return Ok(None);
        }
        let top = place.open_folder()?;
        walk.list(top.as_fd(), Path::new(""), 0)?;
        Ok(Some(Self::sorted(top, walk.entries)))
    }

    fn sorted(top: OwnedFd, mut entries: Vec<TreeEntry>) -> Self {
        entries.sort_by(|one, other| one.path.as_os_str().as_bytes().cmp(other.path.as_os_str().as_bytes()));
        // Two ways to a path give a single entry.
        entries.dedup_by(|one, other| one.path == other.path);
        Self { top, entries }
    }

    /// Returns a digest that changes with every write, creation, removal or rename.
    pub(super) fn stamp(&self) -> String {
        let text = |entry: &TreeEntry| format!("{:?} {:?} {:?}", entry.kind, entry.stamp, entry.inode);
        let leaf =
            |entry: &TreeEntry| Digest::of_parts([entry.path.as_os_str().as_bytes(), text(entry).as_bytes()]);
        Digest::merkle(&self.entries.iter().map(leaf).collect::<Vec<_>>()).to_string()
    }

    /// Returns the time from which any further change would show in the timestamps; `None` if unknown.
    pub(super) fn settled(&self) -> Option<Timestamp> {
        let times: Option<Vec<_>> = self.entries.iter().map(|entry| entry.stamp.settled()).collect();
        times?.into_iter().max()
    }

    /// Hashes all entries, and fails if entries change meanwhile; counts the files read.
    pub(super) fn hash(
        &self,
        again: impl FnOnce() -> Result<Option<Self>, OpenError>,
        files_read: impl Fn() + Sync,
        dropped: &AtomicBool,
    ) -> Result<Digest, OpenError> {
        let leaves: Mutex<Vec<Option<Digest>>> = Mutex::new(vec![None; self.entries.len()]);
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || loop {
            let Some((place, entry)) = take(&next, &self.entries) else { return };
            if entry.kind == EntryKind::File {
                files_read();
            }
            match self.leaf(entry, dropped) {
                Ok(leaf) => leaves.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(leaf),
                Err(open_error) => {
                    next.store(self.entries.len(), Ordering::Relaxed);
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(open_error);
                }
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let files = self.entries.iter().filter(|entry| entry.kind == EntryKind::File).count();
        let others = cores.min(WORKERS_MAX).min(files).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..others {
                scope.spawn(work);
            }
            work();
        });
        if let Some(open_error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(open_error);
        }
        if again()?.is_none_or(|again| again.entries != self.entries) {
            return Err(OpenError::Changing("the file changed while it was hashed".to_owned()));
        }
        let leaves = leaves.into_inner().unwrap_or_else(PoisonError::into_inner);
        let leaves: Vec<Digest> = leaves.into_iter().flatten().collect();
        assert_eq!(leaves.len(), self.entries.len(), "every entry has a leaf");
        Ok(Digest::merkle(&leaves))
    }

    fn leaf(&self, entry: &TreeEntry, dropped: &AtomicBool) -> Result<Digest, OpenError> {
        let path = entry.path.as_os_str().as_bytes();
        let (kind, holds): (&[u8], Vec<u8>) = match &entry.kind {
            EntryKind::Folder => (b"d", Vec::new()),
            EntryKind::Link(target) => (b"l", Digest::of(target).as_bytes().to_vec()),
            EntryKind::File => {
                let file = open(self.top.as_fd(), &entry.path)?;
                let stat = rustix::fs::fstat(&file).map_err(open_error)?;
                if Stamp::of(&stat) != entry.stamp {
                    return Err(OpenError::Changing("the file changed while it was hashed".to_owned()));
                }
                (b"f", hash_file(file, &stat, dropped)?.as_bytes().to_vec())
            }
        };
        Ok(Digest::of_parts([TAG, kind, path, &holds]))
    }
}

fn take<'e>(next: &AtomicUsize, entries: &'e [TreeEntry]) -> Option<(usize, &'e TreeEntry)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, entries.get(place)?))
}

/// Opens a file beneath a folder, without following links.
fn open(top: BorrowedFd<'_>, path: &Path) -> Result<File, OpenError> {
    let mut folder: Option<OwnedFd> = None;
    let mut names = path.iter().peekable();
    while let Some(name) = names.next() {
        let at = folder.as_ref().map_or(top, AsFd::as_fd);
        if names.peek().is_none() {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::openat(at, name, flags, Mode::empty()).map_err(open_error)?;
            return Ok(File::from(file));
        }
        folder = Some(rustix::fs::openat(at, name, FOLDER, Mode::empty()).map_err(open_error)?);
    }
    Err(OpenError::Missing)
}

struct TreeWalk<'d> {
    entries: Vec<TreeEntry>,
    dropped: &'d AtomicBool,
}

impl TreeWalk<'_> {
    /// Adds the entry of a path beneath a folder, with all its descendants.
    fn add(&mut self, top: BorrowedFd<'_>, path: &Path) -> Result<(), OpenError> {
        let mut folder: Option<OwnedFd> = None;
        let name = path.file_name().ok_or(OpenError::Missing)?;
        for part in path.parent().into_iter().flat_map(Path::iter) {
            let at = folder.as_ref().map_or(top, AsFd::as_fd);
            folder = Some(rustix::fs::openat(at, part, FOLDER, Mode::empty()).map_err(open_error)?);
        }
        let depth = path.iter().count();
        self.visit(folder.as_ref().map_or(top, AsFd::as_fd), name, path.to_owned(), depth)
    }

    fn list(&mut self, folder: BorrowedFd<'_>, prefix: &Path, depth: usize) -> Result<(), OpenError> {
        if depth > DEPTH_MAX {
            return Err(OpenError::Unclear(format!("the folder is nested deeper than {DEPTH_MAX} levels")));
        }
        for name in names(folder)? {
            self.visit(folder, &name, prefix.join(&name), depth + 1)?;
        }
        Ok(())
    }

    fn visit(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &OsStr,
        path: PathBuf,
        depth: usize,
    ) -> Result<(), OpenError> {
        if self.dropped.load(Ordering::Relaxed) {
            return Err(OpenError::Changing("the check was cancelled".to_owned()));
        }
        if self.entries.len() >= ENTRIES_MAX {
            return Err(OpenError::Unclear(format!("the folder has more than {ENTRIES_MAX} entries")));
        }
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(missing)?;
        let (stamp, inode) = (Stamp::of(&stat), Stamp::inode(&stat));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                regular(&stat).map_err(|_| {
                    let path = path.display();
                    OpenError::Unclear(format!("`{path}` in the folder is the database of this run"))
                })?;
                self.entries.push(TreeEntry { path, kind: EntryKind::File, stamp, inode });
            }
            FileType::Directory if name == OURS => {}
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(folder, name, Vec::new()).map_err(missing)?;
                let kind = EntryKind::Link(target.into_bytes());
                self.entries.push(TreeEntry { path, kind, stamp, inode });
            }
            FileType::Directory => {
                self.entries.push(TreeEntry { path: path.clone(), kind: EntryKind::Folder, stamp, inode });
                let inner = rustix::fs::openat(folder, name, FOLDER, Mode::empty()).map_err(missing)?;
                self.list(inner.as_fd(), &path, depth)?;
            }
            _ => {
                let path = path.display();
                return Err(OpenError::Unclear(format!(
                    "`{path}` in the folder is not a file, folder or link"
                )));
            }
        }
        Ok(())
    }
}

/// Maps a missing entry, seen a moment ago, to a change.
fn missing(errno: rustix::io::Errno) -> OpenError {
    match open_error(errno) {
        OpenError::Missing => OpenError::Changing("the folder changed during the check".to_owned()),
        other => other,
    }
}

fn names(folder: BorrowedFd<'_>) -> Result<Vec<std::ffi::OsString>, OpenError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder).map_err(open_error)? {
        let entry = entry.map_err(open_error)?;
        let name: &CStr = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
        }
    }
    Ok(names)
}

/// Finds the matches of a pattern: returns the folder before its first wildcard, and the paths from there. A
/// name with a leading dot needs a pattern with a leading dot.
fn matching(site: &Site, pattern: &str, dropped: &AtomicBool) -> Result<(OwnedFd, Vec<PathBuf>), OpenError> {
    check_pattern(pattern).map_err(OpenError::Refused)?;
    let (literal, parts) = split(pattern);
    let top = OpenedPath::find(site, literal, LastLink::Follow)?.open_folder()?;
    let mut found = Vec::new();
    let mut search = Search { found: &mut found, looked_at: 0, dropped };
    search.go(top.as_fd(), Path::new(""), &parts, 0)?;
    found.sort();
    found.dedup();
    Ok((top, found))
}

/// Returns the matches of a pattern as subjects; empty if its folder does not exist.
pub(super) fn all(site: &Site, pattern: &str, dropped: &AtomicBool) -> Result<Vec<String>, OpenError> {
    let paths = match matching(site, pattern, dropped) {
        Ok((_, paths)) => paths,
        Err(OpenError::Missing) => return Ok(Vec::new()),
        Err(open_error) => return Err(open_error),
    };
    let (literal, _) = split(pattern);
    let literal = PathBuf::from(resolved(&named_by(literal)));
    let text = |path: PathBuf| {
        let unclear = || OpenError::Unclear(format!("the name of `{}` is not UTF-8", path.display()));
        let path = literal.join(&path);
        path.to_str().map(|path| literal_path(path).into_owned()).ok_or_else(unclear)
    };
    paths.into_iter().map(text).collect()
}

/// Returns the matches that are files or folders, as for a plain path: through links that stay beneath the
/// folder.
pub(super) fn all_existing(
    site: &Site,
    pattern: &str,
    dropped: &AtomicBool,
) -> Result<Vec<String>, OpenError> {
    let mut there = Vec::new();
    for path in all(site, pattern, dropped)? {
        match OpenedPath::find(site, &path, LastLink::Follow).and_then(|place| place.stat()) {
            Ok(stat) if is_file_or_folder(&stat) => there.push(path),
            Ok(_) | Err(OpenError::Missing | OpenError::Refused(_)) => {}
            Err(open_error) => return Err(open_error),
        }
    }
    Ok(there)
}

fn is_file_or_folder(stat: &Stat) -> bool {
    matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Directory)
}

struct Search<'s> {
    found: &'s mut Vec<PathBuf>,
    looked_at: usize,
    dropped: &'s AtomicBool,
}

impl Search<'_> {
    fn go(
        &mut self,
        folder: BorrowedFd<'_>,
        prefix: &Path,
        parts: &[&str],
        depth: usize,
    ) -> Result<(), OpenError> {
        if depth > DEPTH_MAX {
            return Err(OpenError::Unclear(format!("the folder is nested deeper than {DEPTH_MAX} levels")));
        }
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        if *first == ".." {
            return Err(OpenError::Refused("a path must not contain `..`".to_owned()));
        }
        let is_deep = *first == "**";
        let rest: &[&str] = if is_deep && rest.is_empty() { &["*"] } else { rest };
        if is_deep {
            self.go(folder, prefix, rest, depth)?;
        }
        for name in names(folder)? {
            if self.dropped.load(Ordering::Relaxed) {
                return Err(OpenError::Changing("the check was cancelled".to_owned()));
            }
            self.looked_at += 1;
            if self.looked_at > ENTRIES_MAX {
                return Err(OpenError::Unclear(format!("the pattern visits more than {ENTRIES_MAX} names")));
            }
            let pattern = if is_deep { "*" } else { first };
            if !fits(pattern, name.as_bytes()) {
                continue;
            }
            let path = prefix.join(&name);
            if rest.is_empty() {
                self.found.push(path);
                continue;
            }
            let stat = rustix::fs::statat(folder, &*name, AtFlags::SYMLINK_NOFOLLOW).map_err(missing)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let inner = rustix::fs::openat(folder, &*name, FOLDER, Mode::empty()).map_err(missing)?;
                self.go(inner.as_fd(), &path, if is_deep { parts } else { rest }, depth + 1)?;
            }
        }
        Ok(())
    }
}

impl Stamp {
    /// Returns the time from which a further change would show in these times; `None` if they are invalid.
    pub(super) fn settled(&self) -> Option<Timestamp> {
        let (seconds, nanoseconds) = self.modified.max(self.changed);
        let coarse = if nanoseconds == 0 { SECONDS } else { TICK };
        let time = Timestamp::new(seconds, i32::try_from(nanoseconds).ok()?).ok()?;
        time.checked_add(coarse).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_written_while_it_is_hashed_has_no_digest() {
        let folder = tempfile::tempdir().expect("a folder");
        let (site, path) = (Site::beneath(folder.path()), folder.path().join("out/a"));
        fs::create_dir(folder.path().join("out")).expect("a folder");
        fs::write(&path, "a").expect("a file");
        let dropped = AtomicBool::new(false);
        let look = || TreeListing::of(&site, "out", &dropped);
        let survey = || look().expect("it is there").expect("a folder");
        let hash = |survey: TreeListing, meanwhile: &dyn Fn()| {
            let again = || {
                meanwhile();
                look()
            };
            survey.hash(again, || {}, &dropped)
        };

        assert!(hash(survey(), &|| {}).is_ok());
        let changed = |open_error| matches!(open_error, Err(OpenError::Changing(_)));
        assert!(changed(hash(survey(), &|| fs::write(&path, "bb").expect("a file"))));
        assert!(changed(hash(survey(), &|| fs::write(folder.path().join("out/b"), "").expect("a file"))));
        let before = survey();
        fs::write(&path, "ccc").expect("a file");
        assert!(changed(hash(before, &|| {})));
    }
}
