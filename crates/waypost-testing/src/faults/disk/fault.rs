//! Disk actions and the errors that a disk can return.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// The action of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Creates a file.
    CreateNew,
    /// Opens a file for appending.
    OpenAppend,
    /// Reads a file or a part of a file.
    Read,
    /// Writes to a file.
    Write,
    /// Truncates a file.
    Truncate,
    /// Syncs a file.
    Sync,
    /// Renames a file or folder.
    Rename,
    /// Adds a hard link.
    HardLink,
    /// Removes a file name.
    Remove,
    /// Creates a folder.
    CreateDir,
    /// Removes a folder.
    RemoveDir,
    /// Syncs a folder.
    SyncDir,
    /// Lists a folder.
    List,
    /// Reads kind and length.
    Metadata,
}

impl Action {
    /// Returns whether the action can change later reads, now or after a power cut.
    #[must_use]
    pub const fn changes(self) -> bool {
        !matches!(self, Self::OpenAppend | Self::Read | Self::List | Self::Metadata)
    }

    const fn needs_space(self) -> bool {
        matches!(
            self,
            Self::CreateNew
                | Self::Write
                | Self::Sync
                | Self::Rename
                | Self::HardLink
                | Self::CreateDir
                | Self::SyncDir
        )
    }
}

/// An error of a real disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `EIO`: media failure. Every call can return it.
    Broken,
    /// `ENOSPC`: the disk is full. A sync can return it with delayed allocation.
    Full,
    /// `EDQUOT`: the quota of the user is used up.
    OverQuota,
    /// `EROFS`: the file system became read-only, for example after an internal error.
    ReadOnly,
    /// `EINTR`: a signal interrupted the call.
    Interrupted,
}

impl Refusal {
    /// All errors.
    pub const ALL: [Self; 5] = [Self::Broken, Self::Full, Self::OverQuota, Self::ReadOnly, Self::Interrupted];

    /// Returns whether an action can return this error on a real system. A fault planned for another action
    /// is ignored.
    #[must_use]
    pub const fn applies_to(self, action: Action) -> bool {
        match self {
            Self::Broken => true,
            Self::Full | Self::OverQuota => action.needs_space(),
            Self::ReadOnly => action.changes() || matches!(action, Action::OpenAppend),
            Self::Interrupted => {
                matches!(action, Action::CreateNew | Action::OpenAppend | Action::Read | Action::Write)
            }
        }
    }

    pub(super) fn error(self) -> io::Error {
        io::Error::from(match self {
            Self::Broken => Errno::IO,
            Self::Full => Errno::NOSPC,
            Self::OverQuota => Errno::DQUOT,
            Self::ReadOnly => Errno::ROFS,
            Self::Interrupted => Errno::INTR,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

/// A planned fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// The call fails. A failed sync drops its pending changes; any other failed call changes nothing.
    Refuse(Refusal),
    /// A write accepts only this number of bytes, at least 1. Other calls ignore the fault.
    ShortWrite(usize),
}
