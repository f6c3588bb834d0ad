//! An open file of a [`SimDisk`].

use std::io;
use std::path::{Path, PathBuf};

use waypost::disk::DiskFile;

use super::SimDisk;
use super::fault::{Action, DiskFault};
use super::tree::{Change, Node};

/// An open file. It survives the removal of its name, but not a power cut.
#[derive(Debug)]
pub(super) struct SimFile {
    disk: SimDisk,
    path: PathBuf,
    node: Node,
}

impl SimFile {
    pub(super) fn new(disk: SimDisk, path: &Path, node: Node) -> Self {
        Self { disk, path: path.to_path_buf(), node }
    }
}

#[deny(clippy::missing_trait_methods)]
impl DiskFile for SimFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (mut state, fault) = self.disk.enter(Action::Write, &self.path)?;
        let count = match fault {
            Some(DiskFault::ShortWrite(count)) => bytes.len().min(count.max(1)),
            Some(DiskFault::Refuse(_)) | None => bytes.len(),
        };
        if count > 0 {
            let offset = state.cache.file(self.node)?.len();
            let bytes = bytes[..count].into();
            state.change(Change::Write { node: self.node, offset, bytes }, vec![self.node]);
        }
        Ok(count)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let (mut state, _) = self.disk.enter(Action::Truncate, &self.path)?;
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let old_len = state.cache.file(self.node)?.len();
        if len > old_len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if len < old_len {
            state.change(Change::Cut { node: self.node, len }, vec![self.node]);
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let (mut state, fault) = self.disk.enter(Action::Sync, &self.path)?;
        state.sync(self.node, fault)
    }
}
