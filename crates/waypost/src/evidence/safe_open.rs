//! Path resolution beneath a folder, component by component, so that a path never leaves the folder.
//!
//! Each folder is opened by its name in the previous one, without following links. The components of a link's
//! target are walked in place of the link. `..` in a link returns to the previously opened folder, never
//! above the base. The opened object is the checked object: a folder swapped for a link during the walk
//! causes an error, not an escape.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

#[cfg(target_os = "linux")]
use rustix::fs::ResolveFlags;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Site;
use super::pattern::named_by;
use super::pattern::resolved;
use crate::system::in_use::is_in_use;

/// Most links in one walk, as in the kernel (`path_resolution(7)`).
const LINKS_MAX: usize = 40;
/// Most components in a walk, including links: each folder on the way is an open descriptor.
const COMPONENTS_MAX: usize = 256;

/// A folder on the way needs no permission to list, if the system knows the difference.
#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Why a path cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OpenError {
    /// The path does not exist.
    Missing,
    /// The path is not allowed.
    Refused(String),
    /// The lookup failed.
    Unclear(String),
    /// The lookup failed for a reason that may pass.
    Changing(String),
}

/// Whether a link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastLink {
    Follow,
    Keep,
}

/// The end of a path: a name in an open folder. It is a link only with [`LastLink::Keep`].
#[derive(Debug)]
pub(super) struct OpenedPath {
    folder: OwnedFd,
    name: OsString,
    /// The path without links: relative to the base, or absolute as the subject.
    path: PathBuf,
    /// The stat from the walk, unless the end is a folder that the walk had already entered.
    seen: Option<Stat>,
}

impl OpenedPath {
    /// Resolves `subject` beneath the base of `site`, or beneath an allowed folder.
    pub(super) fn find(site: &Site, subject: &str, last: LastLink) -> Result<Self, OpenError> {
        let subject = &*named_by(subject);
        let (base, rest) = begin(site, subject)?;
        let path = if Path::new(subject).is_absolute() { base.to_owned() } else { PathBuf::new() };
        let folder = rustix::fs::open(base, FOLDER, Mode::empty()).map_err(|errno| {
            OpenError::Unclear(format!("cannot open the folder {}: {errno}", base.display()))
        })?;
        let walk = Resolver { folders: vec![folder], path, ahead: components(rest)?, links: 0, steps: 0 };
        // As in the kernel: a trailing `/` requires a folder, or a link to a folder.
        if !subject.ends_with('/') {
            return walk.go(last);
        }
        let place = walk.go(LastLink::Follow)?;
        match FileType::from_raw_mode(place.stat()?.st_mode) {
            FileType::Directory => Ok(place),
            _ => Err(OpenError::Refused("the path ends in `/`, but is not a folder".to_owned())),
        }
    }

    /// Resolves `subject` and returns the stat of the result, following links.
    pub(super) fn look(site: &Site, subject: &str) -> Result<Stat, OpenError> {
        if let Some(stat) = stat_beneath(site, subject) {
            return Ok(stat);
        }
        let place = Self::find(site, subject, LastLink::Follow)?;
        place.seen.map_or_else(|| place.stat(), Ok)
    }

    /// Returns the path without links: relative to the base, or absolute as the subject.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name in its folder.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the containing folder.
    pub(super) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// Returns the stat of the name, without following a link.
    pub(super) fn stat(&self) -> Result<Stat, OpenError> {
        rustix::fs::statat(&self.folder, &*self.name, AtFlags::SYMLINK_NOFOLLOW).map_err(open_error)
    }

    /// Opens a folder for listing.
    pub(super) fn open_folder(&self) -> Result<OwnedFd, OpenError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.folder, &*self.name, flags, Mode::empty()).map_err(open_error)
    }

    /// Opens a regular file for reading; refuses other types, and does not block on a pipe.
    pub(super) fn open_regular(&self) -> Result<(File, Stat), OpenError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Stat before open: opening a device can have effects.
        regular(&self.stat()?)?;
        let file = rustix::fs::openat(&self.folder, &*self.name, flags, Mode::empty()).map_err(open_error)?;
        let stat = rustix::fs::fstat(&file).map_err(open_error)?;
        regular(&stat)?;
        Ok((File::from(file), stat))
    }
}

/// Resolves `subject` by the kernel alone (`openat2(2)`, Linux 5.6), under the rules of [`Resolver`]: a fifth of the cost
/// for a file in a folder. Returns `None` if the kernel cannot, or refuses the path: the walk then says why.
#[cfg(target_os = "linux")]
fn stat_beneath(site: &Site, subject: &str) -> Option<Stat> {
    let subject = &*named_by(subject);
    let (base, rest) = begin(site, subject).ok().filter(|_| !subject.ends_with('/'))?;
    let base = rustix::fs::open(base, FOLDER, Mode::empty()).ok()?;
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(&base, rest, flags, Mode::empty(), rules).ok()?;
    rustix::fs::fstat(&file).ok()
}

/// Other systems have only the walk.
#[cfg(not(target_os = "linux"))]
fn stat_beneath(_: &Site, _: &str) -> Option<Stat> {
    None
}

/// The last folder of a series of looks, kept open: paths in one folder need one system call each.
pub(super) struct LastFolder<'a> {
    site: &'a Site,
    /// The base and the path of the folder beneath the base.
    path: (&'a Path, PathBuf),
    folder: Option<OwnedFd>,
}

impl<'a> LastFolder<'a> {
    pub(super) fn new(site: &'a Site) -> Self {
        Self { site, path: (Path::new(""), PathBuf::new()), folder: None }
    }

    /// As [`OpenedPath::look`].
    pub(super) fn look(&mut self, subject: &str) -> Result<Stat, OpenError> {
        self.stat(subject).map_or_else(|| OpenedPath::look(self.site, subject), Ok)
    }

    /// Returns the stat of a subject in a folder beneath the base; `None` for a link, or if the kernel cannot.
    fn stat(&mut self, subject: &str) -> Option<Stat> {
        let subject = &*named_by(subject);
        let site = self.site;
        let (base, rest) = begin(site, subject).ok()?;
        let (folder, name) = (rest.parent()?, rest.file_name()?);
        // `name/` and `name/.` are folders.
        if !subject.as_bytes().ends_with(name.as_bytes()) {
            return None;
        }
        if self.folder.is_none() || self.path.0 != base || self.path.1 != folder {
            self.folder = open_beneath(base, folder);
            self.path = (base, folder.to_owned());
        }
        let stat = rustix::fs::statat(self.folder.as_ref()?, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (FileType::from_raw_mode(stat.st_mode) != FileType::Symlink).then_some(stat)
    }
}

/// Opens a folder by the kernel alone, under the rules of [`Resolver`]; `None` if the kernel cannot, or refuses the path.
#[cfg(target_os = "linux")]
fn open_beneath(base: &Path, folder: &Path) -> Option<OwnedFd> {
    let base = rustix::fs::open(base, FOLDER, Mode::empty()).ok()?;
    if folder.as_os_str().is_empty() {
        return Some(base);
    }
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(&base, folder, FOLDER, Mode::empty(), rules).ok()
}

/// Other systems have only the walk.
#[cfg(not(target_os = "linux"))]
fn open_beneath(_: &Path, _: &Path) -> Option<OwnedFd> {
    None
}

/// Returns the canonical name of a subject's file, if it differs from the subject: the path without links, or
/// the inode of a file with several hard links. Two subjects with equal names are one file. Returns `None` if
/// the file does not exist or cannot be inspected.
pub(super) fn other_name(site: &Site, subject: &str) -> Option<String> {
    let place = OpenedPath::find(site, subject, LastLink::Follow).ok()?;
    let stat = place.stat().ok()?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 1 {
        return Some(format!("inode {}:{}", stat.st_dev, stat.st_ino));
    }
    let path = beneath_base(site, &place.path).to_string_lossy().into_owned();
    (path != resolved(subject)).then_some(path)
}

/// Returns an absolute path beneath the base folder as a relative path: both spellings are one file.
fn beneath_base(site: &Site, path: &Path) -> PathBuf {
    let Some(base) = site.base().filter(|_| path.is_absolute()) else { return path.to_owned() };
    if let Ok(rest) = path.strip_prefix(base) {
        return rest.to_owned();
    }
    // Either path may contain links.
    let [real, base] = [path, base].map(std::fs::canonicalize);
    let rest =
        real.ok().zip(base.ok()).and_then(|(real, base)| Some(real.strip_prefix(base).ok()?.to_owned()));
    rest.unwrap_or_else(|| path.to_owned())
}

/// Checks that a file is safe to open, read and close.
#[expect(clippy::unnecessary_cast, reason = "the types of these members differ between systems")]
pub(super) fn regular(stat: &Stat) -> Result<(), OpenError> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if is_in_use(stat.st_dev as u64, stat.st_ino as u64) => {
            Err(OpenError::Refused("the path is the database of this run".to_owned()))
        }
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(OpenError::Refused("the path is a folder, not a file".to_owned())),
        _ => Err(OpenError::Refused("the path is not a regular file".to_owned())),
    }
}

/// Returns the root folder of a subject, and the remaining path.
fn begin<'s, 'p>(site: &'s Site, subject: &'p str) -> Result<(&'s Path, &'p Path), OpenError> {
    let path = Path::new(subject);
    if subject.is_empty() || subject.contains('\0') {
        return Err(OpenError::Refused("the path has no file name".to_owned()));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(OpenError::Refused("the path must not contain `..`".to_owned()));
    }
    if path.is_absolute() {
        let inside = |folder: &'s PathBuf| Some((folder.as_path(), path.strip_prefix(folder).ok()?));
        let refused =
            || OpenError::Refused("the path is absolute: use a path relative to the base folder".to_owned());
        return site.allowed().iter().find_map(inside).ok_or_else(refused);
    }
    let base = site.base().ok_or_else(|| OpenError::Unclear("the claim has no base folder".to_owned()))?;
    Ok((base, path))
}

fn components(path: &Path) -> Result<VecDeque<OsString>, OpenError> {
    let mut names = VecDeque::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => names.push_back(name.to_owned()),
            Component::ParentDir => names.push_back(OsString::from("..")),
            Component::RootDir | Component::Prefix(_) => {
                return Err(OpenError::Refused("a symbolic link leads out of the base folder".to_owned()));
            }
        }
    }
    Ok(names)
}

struct Resolver {
    /// The base, and each folder entered since.
    folders: Vec<OwnedFd>,
    /// The path to the last folder.
    path: PathBuf,
    ahead: VecDeque<OsString>,
    links: usize,
    steps: usize,
}

impl Resolver {
    fn go(mut self, last: LastLink) -> Result<OpenedPath, OpenError> {
        while let Some(name) = self.ahead.pop_front() {
            self.steps += 1;
            if self.steps > COMPONENTS_MAX {
                return Err(OpenError::Refused(format!("the path has more than {COMPONENTS_MAX} parts")));
            }
            if name == ".." {
                self.back()?;
                continue;
            }
            let folder = self.folders.last().expect("the base is never left");
            let stat = rustix::fs::statat(folder, &*name, AtFlags::SYMLINK_NOFOLLOW).map_err(open_error)?;
            let at_end = self.ahead.is_empty();
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink if at_end && last == LastLink::Keep => {
                    return Ok(self.end(name, Some(stat)));
                }
                FileType::Symlink => self.follow(&name)?,
                _ if at_end => return Ok(self.end(name, Some(stat))),
                FileType::Directory => {
                    let entered =
                        rustix::fs::openat(folder, &*name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
                    self.folders.push(entered.map_err(swapped_error)?);
                    self.path.push(name);
                }
                _ => return Err(OpenError::Missing),
            }
        }
        // The path ends at the base itself, or at a folder that a link leads back to.
        Ok(self.end(OsString::from("."), None))
    }

    fn end(mut self, name: OsString, seen: Option<Stat>) -> OpenedPath {
        let path = if name == "." { self.path } else { self.path.join(&name) };
        OpenedPath { folder: self.folders.pop().expect("the base is never left"), name, path, seen }
    }

    fn back(&mut self) -> Result<(), OpenError> {
        if self.folders.len() == 1 {
            return Err(OpenError::Refused("a symbolic link leads out of the base folder".to_owned()));
        }
        self.folders.pop();
        self.path.pop();
        Ok(())
    }

    fn follow(&mut self, name: &OsStr) -> Result<(), OpenError> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(OpenError::Refused(format!("the path has more than {LINKS_MAX} symbolic links")));
        }
        let folder = self.folders.last().expect("the base is never left");
        let target: CString = rustix::fs::readlinkat(folder, name, Vec::new()).map_err(swapped_error)?;
        for part in components(Path::new(OsStr::from_bytes(target.as_bytes())))?.into_iter().rev() {
            self.ahead.push_front(part);
        }
        Ok(())
    }
}

/// Maps a system error about a name.
pub(super) fn open_error(errno: Errno) -> OpenError {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => OpenError::Missing,
        Errno::LOOP => OpenError::Changing("the file became a symbolic link during the check".to_owned()),
        Errno::INTR | Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::STALE => {
            OpenError::Changing(format!("cannot read the path: {errno}"))
        }
        errno => OpenError::Unclear(format!("cannot read the path: {errno}")),
    }
}

/// Maps a system error about a name that existed a moment ago.
fn swapped_error(errno: Errno) -> OpenError {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL => {
            OpenError::Changing("the file changed during the check".to_owned())
        }
        errno => open_error(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn looks_in_a_row_agree_with_single_looks() {
        let outer = tempfile::tempdir().expect("a folder");
        let base = outer.path().join("base");
        fs::create_dir_all(base.join("d/sub")).expect("a folder");
        for file in ["f", "base/f", "base/d/f", "base/d/sub/f"] {
            fs::write(outer.path().join(file), file).expect("a file");
        }
        for (target, link) in [("d", "inside"), ("..", "outside"), ("f", "d/link"), ("none", "d/dangling")] {
            symlink(target, base.join(link)).expect("a link");
        }
        let site = Site::beneath(&base);
        let mut folder = LastFolder::new(&site);
        let subjects = [
            "f",
            "./f",
            "d/f",
            "d/./f",
            "d/sub/f",
            "d/f",
            "inside/f",
            "inside/link",
            "d/link",
            "d/dangling",
            "d",
            "d/",
            "d/.",
            "d/f/",
            "d/f/.",
            "outside/f",
            "outside/base/f",
            "none/f",
            "d/none",
            "d/f/none",
            ".",
            "",
            "d/../f",
            "/f",
        ];
        for subject in subjects {
            let [row, single] = [folder.look(subject), OpenedPath::look(&site, subject)];
            assert_eq!(row.map(|stat| stat.st_ino), single.map(|stat| stat.st_ino), "{subject}");
        }
    }
}
