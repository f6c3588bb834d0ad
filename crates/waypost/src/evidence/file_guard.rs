//! Guards a file that another library opens by name, such as a database: detects swaps during the use.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::blocking::{blocking, finding_of};
use super::files::Stamp;
use super::safe_open::{LastLink, OpenError, OpenedPath};
use super::{Finding, Site};

/// The regular file of a claim, for probes with a library that opens files by name.
///
/// Keeps the folder open; neighbouring files are inspected there, never through a link. A library that opens
/// the path can get another file if the file is swapped at this moment. Callers must check
/// [`is_there`](Self::is_there) before and after the use, and must not follow a link in the place of the
/// file.
#[derive(Debug)]
pub struct FileGuard {
    place: OpenedPath,
    path: PathBuf,
    inode: (u64, u64),
    site: Site,
    subject: String,
}

/// Returns the guard of a claim's regular file.
///
/// # Errors
/// As [`read_file`](super::read_file).
pub async fn find_file_guard(site: &Site, subject: &str) -> Result<FileGuard, Finding> {
    let (site, subject) = (site.clone(), subject.to_owned());
    let found = blocking(move |_| FileGuard::find(site, subject));
    found.await.map_err(finding_of)
}

impl FileGuard {
    fn find(site: Site, subject: String) -> Result<Self, OpenError> {
        let place = OpenedPath::find(&site, &subject, LastLink::Follow)?;
        let (_, stat) = place.open_regular()?;
        // The base path may contain links: the caller supplied it, not the claim.
        let base = site.base().unwrap_or(Path::new(""));
        let path = match place.path().is_absolute() {
            true => place.path().to_owned(),
            false => {
                let unclear =
                    |error: io::Error| OpenError::Unclear(format!("cannot read {}: {error}", base.display()));
                base.canonicalize().map_err(unclear)?.join(place.path())
            }
        };
        Ok(Self { path, inode: Stamp::inode(&stat), place, site, subject })
    }

    /// Returns the path without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file itself, without blocking.
    ///
    /// # Errors
    /// The file cannot be opened, or was replaced.
    pub fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.place.folder(), self.place.name(), flags, Mode::empty())?;
        let inode = Stamp::inode(&rustix::fs::fstat(&file)?);
        if inode == self.inode {
            Ok(file.into())
        } else {
            Err(io::Error::other("another file has replaced it"))
        }
    }

    /// Returns the size of the neighbouring file whose name has `suffix` appended; `None` if it does not exist.
    ///
    /// # Errors
    /// The neighbour cannot be inspected, or is not a regular file: opening a pipe may block, and a link may
    /// lead anywhere.
    pub fn bytes_beside(&self, suffix: &str) -> io::Result<Option<u64>> {
        let mut name = OsString::from(self.place.name());
        name.push(suffix);
        let stat = match rustix::fs::statat(self.place.folder(), &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(u64::try_from(stat.st_size).unwrap_or_default())),
            _ => {
                let why = format!("`{}` in the same folder is not a regular file", name.to_string_lossy());
                Err(io::Error::other(why))
            }
        }
    }

    /// Resolves the path again, and returns whether the file is the same.
    pub fn is_there(&self) -> bool {
        let again = OpenedPath::find(&self.site, &self.subject, LastLink::Follow);
        again.and_then(|place| place.stat()).is_ok_and(|stat| Stamp::inode(&stat) == self.inode)
    }
}
