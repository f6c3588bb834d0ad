//! Where a file is that others open by its name, such as a database: what they may open, and that it stayed the same.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::beneath::{LastLink, Lost, Place};
use super::blocking::{blocking, finding_of};
use super::files::Stamp;
use super::{Finding, Site};

/// A regular file that a claim is about, for probes that have others open it by its name.
///
/// Its folder stays open, and what is beside it is looked at there, through no link. Whoever opens the path may be given
/// another file, if somebody swaps one for the other just then: it has to be asked before and after that whether the file
/// [is still there](Self::is_there), and a link in the place of the file must not be followed.
#[derive(Debug)]
pub struct Spot {
    place: Place,
    path: PathBuf,
    inode: (u64, u64),
    site: Site,
    subject: String,
}

/// Returns where a regular file is that a claim is about.
///
/// # Errors
/// As [`read_file`](super::read_file).
pub async fn find_spot(site: &Site, subject: &str) -> Result<Spot, Finding> {
    let (site, subject) = (site.clone(), subject.to_owned());
    let found = blocking(move |_| Spot::find(site, subject));
    found.await.map_err(finding_of)
}

impl Spot {
    fn find(site: Site, subject: String) -> Result<Self, Lost> {
        let place = Place::find(&site, &subject, LastLink::Follow)?;
        let (_, stat) = place.open_regular()?;
        // The way to the base may have links: it was given by who asks, and not by the claim.
        let base = site.base().unwrap_or(Path::new(""));
        let path = match place.path().is_absolute() {
            true => place.path().to_owned(),
            false => {
                let unclear =
                    |error: io::Error| Lost::Unclear(format!("cannot look at {}: {error}", base.display()));
                base.canonicalize().map_err(unclear)?.join(place.path())
            }
        };
        Ok(Self { path, inode: Stamp::inode(&stat), place, site, subject })
    }

    /// Returns the path, in which there is no link.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file itself, and waits for nobody.
    ///
    /// # Errors
    /// It cannot be opened, or another one is there.
    pub fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.place.folder(), self.place.name(), flags, Mode::empty())?;
        let inode = Stamp::inode(&rustix::fs::fstat(&file)?);
        if inode == self.inode { Ok(file.into()) } else { Err(io::Error::other("another file is there now")) }
    }

    /// Returns how long the file beside it is that is called as itself with something behind; none if there is none.
    ///
    /// # Errors
    /// It cannot be looked at, or is no regular file: opening a pipe could take for ever, and a link may lead anywhere.
    pub fn bytes_beside(&self, behind: &str) -> io::Result<Option<u64>> {
        let mut name = OsString::from(self.place.name());
        name.push(behind);
        let stat = match rustix::fs::statat(self.place.folder(), &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Some(u64::try_from(stat.st_size).unwrap_or_default())),
            _ => {
                let why = format!("`{}` beside it is not a regular file", name.to_string_lossy());
                Err(io::Error::other(why))
            }
        }
    }

    /// Walks to the file once more, and says whether it is the same.
    pub fn is_there(&self) -> bool {
        let again = Place::find(&self.site, &self.subject, LastLink::Follow);
        again.and_then(|place| place.stat()).is_ok_and(|stat| Stamp::inode(&stat) == self.inode)
    }
}
