//! Files that this process has open under POSIX locks: other code of the process must not open and close
//! them.
//!
//! Such a lock belongs to process and file. Closing *any* descriptor of the file releases it, even a
//! descriptor used only for reading (`fcntl_locking(2)`). SQLite separates connections by these locks, and
//! knows only SQLite's own descriptors. A read of an open database past SQLite therefore releases the locks
//! of SQLite's connections. Another process may then mistake the log of a living writer for an abandoned log.
//!
//! A store registers its open files here. Before opening files named by others, check here.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device and inode.
type Identity = (u64, u64);

/// The number of registrations of each file.
static NAMED: Mutex<BTreeMap<Identity, usize>> = Mutex::new(BTreeMap::new());

fn named() -> MutexGuard<'static, BTreeMap<Identity, usize>> {
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registration of files, for the lifetime of this value.
#[derive(Debug, Default)]
pub struct InUse {
    files: Mutex<Vec<Identity>>,
}

impl InUse {
    /// Creates an empty registration.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the file at `path`, if it exists.
    ///
    /// # Errors
    /// The file cannot be inspected, and is not registered.
    pub fn add(&self, path: &Path) -> io::Result<()> {
        let file = match fs::metadata(path) {
            Ok(file) => (file.dev(), file.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        *named().entry(file).or_default() += 1;
        self.files.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        Ok(())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut named = named();
        for file in self.files.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(count) = named.get_mut(&file) {
                *count -= 1;
                if *count == 0 {
                    named.remove(&file);
                }
            }
        }
    }
}

/// Returns whether the file with this device and inode is registered.
pub fn is_in_use(device: u64, inode: u64) -> bool {
    named().contains_key(&(device, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_until_the_last_who_named_it_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.db");
        fs::write(&path, "").expect("a file");
        let found = fs::metadata(&path).expect("it is there");
        let is_named = || is_in_use(found.dev(), found.ino());
        assert!(!is_named());

        let (one, other) = (InUse::new(), InUse::new());
        one.add(&path).expect("it can be looked at");
        other.add(&path).expect("it can be looked at");
        other.add(&folder.path().join("gone")).expect("what is not there is not named");
        assert!(is_named());

        drop(one);
        assert!(is_named());
        drop(other);
        assert!(!is_named());
    }
}
