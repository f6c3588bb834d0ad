//! Disks that break their contract in one way each: planted faults that the rigs must detect.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use waypost::Digest;
use waypost::disk::{Disk, DiskFile, Entry, Metadata, write_whole};

/// A fault that the store would have if the disk were correct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// Does not sync files.
    FileNotSynced,
    /// Does not sync folders.
    FolderNotSynced,
    /// Acknowledges first, and syncs the folder only at the next call.
    FolderSyncedLater,
    /// Names a file before its bytes are written: an in-place write.
    NamedFirst,
    /// Accepts every file as valid.
    DigestUnchecked,
}

/// A disk with one planted fault.
#[derive(Debug, Clone)]
pub(super) struct FaultyDisk {
    disk: Arc<dyn Disk>,
    lie: DiskFault,
    owed: Arc<Mutex<Owed>>,
}

/// Work that the disk acknowledged and has not done yet.
#[derive(Debug, Default)]
struct Owed {
    folder: Option<PathBuf>,
    /// Accepted and unwritten bytes, by file path.
    bytes: Vec<(PathBuf, Vec<u8>)>,
}

impl FaultyDisk {
    pub(super) fn new(disk: Arc<dyn Disk>, lie: DiskFault) -> Self {
        Self { disk, lie, owed: Arc::default() }
    }

    /// Does the delayed work.
    fn pay(&self) {
        let folder = self.owed.lock().unwrap().folder.take();
        if let Some(folder) = folder {
            let _ = self.disk.sync_dir(&folder);
        }
    }

    /// Writes the bytes of a file after its rename.
    fn fill(&self, source: &Path, target: &Path) -> io::Result<()> {
        let mut owed = self.owed.lock().unwrap();
        let Some(index) = owed.bytes.iter().position(|(path, _)| path == source) else { return Ok(()) };
        let (_, bytes) = owed.bytes.remove(index);
        drop(owed);
        let mut file = self.disk.open_append(target)?;
        write_whole(file.as_mut(), &bytes)?;
        file.sync()
    }

    fn wrap(&self, path: &Path, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(LyingFile { file, lie: self.lie, path: path.to_owned(), owed: self.owed.clone() })
    }

    fn seen(&self, bytes: Vec<u8>) -> Vec<u8> {
        if self.lie == DiskFault::DigestUnchecked { resealed(bytes) } else { bytes }
    }
}

/// Replaces the hash in a store file by the correct hash of its bytes.
fn resealed(mut text: Vec<u8>) -> Vec<u8> {
    const PREFIX: &[u8] = b"{\"integrity_hash\":\"";
    let hash = PREFIX.len()..PREFIX.len() + 64;
    if text.starts_with(PREFIX) && text.len() > hash.end {
        text[hash.clone()].fill(b'0');
        let digest = Digest::of(&text).to_string();
        text[hash].copy_from_slice(digest.as_bytes());
    }
    text
}

impl fmt::Display for FaultyDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a disk that lies ({:?})", self.lie)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Disk for FaultyDisk {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.pay();
        Ok(self.wrap(path, self.disk.create_new(path)?))
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.pay();
        Ok(self.wrap(path, self.disk.open_append(path)?))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        self.pay();
        Ok(self.seen(self.disk.read(path, bytes_max)?))
    }

    fn read_at(&self, path: &Path, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.disk.read_at(path, offset, bytes_max)
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        self.pay();
        self.disk.rename(source, target)?;
        self.fill(source, target)
    }

    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()> {
        self.pay();
        self.disk.hard_link(source, target)?;
        self.fill(source, target)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.pay();
        match self.lie {
            DiskFault::FolderNotSynced => Ok(()),
            DiskFault::FolderSyncedLater => {
                self.owed.lock().unwrap().folder = Some(path.to_owned());
                Ok(())
            }
            DiskFault::FileNotSynced | DiskFault::NamedFirst | DiskFault::DigestUnchecked => {
                self.disk.sync_dir(path)
            }
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.disk.list(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.disk.metadata(path)
    }
}

#[derive(Debug)]
struct LyingFile {
    file: Box<dyn DiskFile>,
    lie: DiskFault,
    path: PathBuf,
    owed: Arc<Mutex<Owed>>,
}

impl LyingFile {
    /// Whether the bytes of this file follow its rename or link.
    fn is_filled_later(&self) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        self.lie == DiskFault::NamedFirst && name.starts_with(".tmp-")
    }
}

#[deny(clippy::missing_trait_methods)]
impl DiskFile for LyingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_filled_later() {
            return self.file.write(bytes);
        }
        let mut owed = self.owed.lock().unwrap();
        match owed.bytes.iter_mut().find(|(path, _)| *path == self.path) {
            Some((_, before)) => before.extend_from_slice(bytes),
            None => owed.bytes.push((self.path.clone(), bytes.to_vec())),
        }
        Ok(bytes.len())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.lie == DiskFault::FileNotSynced || self.is_filled_later() { Ok(()) } else { self.file.sync() }
    }
}
