//! Files that this process has open under POSIX locks: nobody else in it may open and close them.
//!
//! Such a lock belongs to the process and the file. It is let go as soon as *any* descriptor of the file is closed, also
//! one that was only read from (`fcntl_locking(2)`). SQLite keeps its connections apart from each other by such locks and knows
//! of its own descriptors only; who reads a database of this process past SQLite takes the locks of its connections
//! away, and another process may then take the log of a living writer for one that was left behind.
//!
//! A store names its files here for as long as it has them open; whoever opens files that others name asks first.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device and inode.
type Identity = (u64, u64);

/// How often each file is named.
static NAMED: Mutex<BTreeMap<Identity, usize>> = Mutex::new(BTreeMap::new());

fn named() -> MutexGuard<'static, BTreeMap<Identity, usize>> {
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that are named for as long as this lives.
#[derive(Debug, Default)]
pub struct InUse {
    files: Mutex<Vec<Identity>>,
}

impl InUse {
    /// Makes it with no file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the file at `path`, if there is one.
    ///
    /// # Errors
    /// When it cannot be looked at; it is not named then.
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

/// Says whether the file with these numbers of device and inode is named.
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
