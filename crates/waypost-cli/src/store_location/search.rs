//! The search for a store without an address: the nearest `.waypost` upward, else the root of the git repository.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::FOLDER;
use crate::error::Error;

/// Returns the nearest `.waypost`, upward to the home folder or a mount point.
pub(crate) fn nearest(from: &Path) -> Option<PathBuf> {
    searched(from).map(|folder| folder.join(FOLDER)).find(|folder| folder.is_dir())
}

/// Returns the place of a new store: the root of the git repository, else the folder itself. A repository in the home folder
/// holds configuration files, and does not count.
pub(super) fn new_folder(from: &Path) -> PathBuf {
    let home = home();
    let is_root = |folder: &&Path| home.as_deref() != Some(*folder) && folder.join(".git").exists();
    searched(from).find(is_root).unwrap_or(from).join(FOLDER)
}

/// Refuses a file or folder of another user: a store and its configuration name programs to run.
///
/// # Errors
/// [`Error::NotOwned`]: the owner is neither the user nor root.
pub(crate) fn refuse_foreign_owner(path: &Path) -> Result<(), Error> {
    let own = rustix::process::geteuid().as_raw();
    let owners =
        [fs::symlink_metadata(path), fs::metadata(path)].into_iter().flatten().map(|found| found.uid());
    match owners.into_iter().find(|owner| *owner != own && *owner != 0) {
        None => Ok(()),
        Some(owner) => Err(Error::NotOwned { path: path.to_owned(), owner: name_of(owner) }),
    }
}

/// Returns the folders of a search, nearest first.
fn searched(from: &Path) -> impl Iterator<Item = &Path> {
    let home = home();
    let mut is_over = false;
    from.ancestors().take_while(move |folder| {
        let is_last = home.as_deref() == Some(*folder) || is_mount_point(folder);
        let is_next = is_over || is_last;
        !std::mem::replace(&mut is_over, is_next)
    })
}

fn home() -> Option<PathBuf> {
    std::env::home_dir().and_then(|home| home.canonicalize().ok())
}

/// Returns whether another file system, or a bind mount of the same one, begins at the folder.
fn is_mount_point(folder: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
        let found = rustix::fs::statx(rustix::fs::CWD, folder, AtFlags::empty(), StatxFlags::empty());
        if found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)) {
            return true;
        }
    }
    let device = |path: &Path| fs::metadata(path).ok().map(|found| found.dev());
    folder.parent().is_some_and(|parent| device(folder) != device(parent))
}

/// Returns the name of a user, if the system's list of users has one.
fn name_of(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let fields = |line: &'_ str| -> Option<String> {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| format!("{name} (user {uid})"))
    };
    users.lines().find_map(fields).unwrap_or_else(|| format!("user {uid}"))
}
