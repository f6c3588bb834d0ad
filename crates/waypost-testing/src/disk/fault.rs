//! What a call asks of the disk, and the ways in which the disk can refuse it.

use std::fmt;
use std::io;

use rustix::io::Errno;

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Creates a file.
    CreateNew,
    /// Opens a file to write to its end.
    OpenAppend,
    /// Reads a file, whole or in part.
    Read,
    /// Writes to a file.
    Write,
    /// Cuts a file off.
    Truncate,
    /// Syncs a file.
    Sync,
    /// Gives another name.
    Rename,
    /// Gives a second name.
    HardLink,
    /// Takes a name away.
    Remove,
    /// Makes a folder.
    CreateDir,
    /// Removes a folder.
    RemoveDir,
    /// Syncs a folder.
    SyncDir,
    /// Lists a folder.
    List,
    /// Asks for kind and length.
    Metadata,
}

impl Action {
    /// Says whether it changes what others read from the disk, now or after a power cut.
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

/// An error that a real disk gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `EIO`: the medium failed. Any call can meet it.
    Broken,
    /// `ENOSPC`: no space is left. A sync meets it too, where space is allotted late.
    Full,
    /// `EDQUOT`: this user's share is used up.
    OverQuota,
    /// `EROFS`: the file system became read-only, as it does when it has found an error in itself.
    ReadOnly,
    /// `EINTR`: a signal came first.
    Interrupted,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Broken, Self::Full, Self::OverQuota, Self::ReadOnly, Self::Interrupted];

    /// Says whether a call of that kind can meet it on a real system; a fault set on another kind of call does
    /// nothing.
    #[must_use]
    pub const fn can_meet(self, action: Action) -> bool {
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

/// What a call meets instead of doing its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails. A sync that fails drops what it was to make durable; any other call changes nothing.
    Refuse(Refusal),
    /// A write takes only so many bytes, at least one. Other calls are not touched.
    ShortWrite(usize),
}
