//! The disk interface of file stores: few calls, each with a precise durability guarantee.
//!
//! A file store makes every disk call through [`Disk`], so that a test can implement the disk: it can fail at
//! any call, lose all unsynced data, or return any error. This file has the trait, the real disk
//! ([`RealDisk`]), and a loop that writes a whole buffer. It knows no store, record or format.
//!
//! The bytes of a file and its entry in a folder become durable separately.
//!
//! ```text
//! create_new  write  sync  rename  sync_dir      after a power cut right after that call:
//!     x                                          the file may be there, and then it is empty
//!     x         x                                any part of the bytes may be there, zeros in place of the rest
//!     x         x      x                         a file that has a name has its bytes; maybe it has no name
//!     x         x      x      x                  whole under the old name, whole under the new one, or gone
//!     x         x      x      x       x          whole under the new name
//! ```

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};

/// Permissions of our files: read and write for the owner only.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Permissions of our folders: the same, with the right to enter.
const FOLDER_MODE: Mode = Mode::RWXU;

/// The type of a folder entry. Symbolic links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// Another type: a symbolic link, a pipe, a socket, a device. Stores ignore these.
    Other,
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, without the folder.
    pub name: OsString,
    /// The type.
    pub kind: Kind,
}

/// Type and length of a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// The type.
    pub kind: Kind,
    /// The length of a file in bytes; meaningless for other types.
    pub len: u64,
}

/// A disk for files.
///
/// All calls block. A modifying call is a single attempt: neither an interrupted call nor a failed sync is
/// retried. The last component of a path is never followed as a symbolic link. All calls are thread-safe.
///
/// # Contract
/// - **Data is durable only after a sync.** After a power failure, any subset of the unsynced data exists, in
///   any order; a write may exist in part. Data written by a killed process stays, as the kernel has it.
/// - **The bytes of a file** become durable by its [`DiskFile::sync`], **an entry of a folder** (a created,
///   removed or moved name) by [`Disk::sync_dir`] of the folder; each has no effect on the other.
/// - **`rename` is atomic**: after a power failure the target is the old or the new file, never missing,
///   never mixed. A rename between two folders is durable once both are synced.
/// - **A failed sync is final**: the affected bytes may be lost although they are still readable, and a later
///   successful sync proves nothing about them. Write them again, into another file.
/// - **A failed call changed nothing**, except a sync.
///
/// # Errors
/// Every method returns the [`io::Error`] of the system call, unwrapped, so that [`io::Error::raw_os_error`]
/// and [`io::Error::kind`] identify the cause; the caller adds the path.
///
/// # Source
/// man 2 fsync, rename, open; Pillai and others, "All File Systems Are Not Created Equal" (2014), about
/// reordering; Rebello and others, "Can Applications Recover from fsync Failures?" (2020), about the failed
/// sync.
pub trait Disk: fmt::Debug + fmt::Display + Send + Sync {
    /// Creates a new file for the owner only (0600), and opens it for writing.
    ///
    /// Name and bytes are not durable yet.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AlreadyExists`]: the name exists; the existing object did not change.
    /// - [`io::ErrorKind::NotFound`]: the folder does not exist.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens an existing file for appending.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: the file does not exist. Other types than regular files are refused, too.
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Reads a whole file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotFound`]: the file does not exist.
    /// - [`io::ErrorKind::FileTooLarge`]: the file is longer than `bytes_max`.
    /// - Other types than regular files are refused.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>>;

    /// Reads at most `bytes_max` bytes of a file from `offset`: fewer only at the end of the file, none at or
    /// beyond its end.
    ///
    /// # Errors
    /// As [`Disk::read`], without a limit on the file's size.
    fn read_at(&self, path: &Path, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>>;

    /// Renames a file or folder, replacing an existing file; a folder may only replace an empty folder.
    ///
    /// Atomic; durable once the folders of both names are synced. If both names are hard links to the same
    /// file, nothing happens and both stay.
    fn rename(&self, source: &Path, target: &Path) -> io::Result<()>;

    /// Adds a second name to a file; durable once the folder of this name is synced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`]: the name exists; the existing object did not change.
    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()>;

    /// Removes a name of a file. Until its folder is synced, a power failure may restore the name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder for its owner only (0700) in an existing folder; an existing folder stays unchanged.
    ///
    /// Durable once the parent folder is synced; an existing folder may not be durable either.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`]: the name exists with another type.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder. Durable once the parent folder is synced.
    ///
    /// # Errors
    /// [`io::ErrorKind::DirectoryNotEmpty`]: the folder has entries.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes all changes to the entries of a folder durable. Does not affect the bytes of the files, nor the
    /// entries of subfolders.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Lists the entries of a folder, sorted by the bytes of their names.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>>;

    /// Returns the type and length of a path.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;
}

/// An open file. Writes append to its end. A drop closes the file and makes nothing durable.
///
/// Contract and errors as for [`Disk`].
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Appends some of `bytes` to the file and returns the count, possibly fewer than all; [`write_whole`]
    /// writes all bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Truncates the file to `len` bytes. Durable after the next sync.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`]: the file is shorter than `len`, and would have to grow.
    fn truncate(&mut self, len: u64) -> io::Result<()>;

    /// Makes the bytes and the length of the file durable (fdatasync, on Apple systems `F_FULLFSYNC`), but
    /// not its name. Times and other metadata may be lost.
    fn sync(&mut self) -> io::Result<()>;
}

/// Writes all of `bytes`: continues short writes, and repeats interrupted ones.
///
/// # Errors
/// The first other error; any part may then have been written. [`io::ErrorKind::WriteZero`]: the disk accepts
/// no bytes, without an error.
pub fn write_whole(file: &mut dyn DiskFile, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The disk of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl fmt::Display for RealDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the disk of this machine")
    }
}

#[deny(clippy::missing_trait_methods)]
impl Disk for RealDisk {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, FILE_MODE)?);
        Ok(Box::new(RealFile { file }))
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let (file, _len) = open_regular(path, OFlags::WRONLY | OFlags::APPEND)?;
        Ok(Box::new(RealFile { file }))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let (file, len) = open_regular(path, OFlags::RDONLY)?;
        if len > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?);
        // An extra byte detects a file that grew since its length was read.
        file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    }

    fn read_at(&self, path: &Path, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let (mut file, len) = open_regular(path, OFlags::RDONLY)?;
        if offset >= len {
            return Ok(Vec::new());
        }
        file.seek(SeekFrom::Start(offset))?;
        let there = usize::try_from(len - offset).unwrap_or(usize::MAX);
        let mut bytes = Vec::with_capacity(there.min(bytes_max));
        file.take(bytes_max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::rename(source, target)?)
    }

    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()> {
        Ok(rustix::fs::linkat(CWD, source, CWD, target, AtFlags::empty())?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::unlink(path)?)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        match rustix::fs::mkdir(path, FOLDER_MODE) {
            Err(rustix::io::Errno::EXIST) if self.metadata(path)?.kind == Kind::Folder => Ok(()),
            answer => Ok(answer?),
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::rmdir(path)?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(rustix::fs::fsync(folder)?)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let kind = match entry.file_type()? {
                kind if kind.is_file() => Kind::File,
                kind if kind.is_dir() => Kind::Folder,
                _ => Kind::Other,
            };
            entries.push(Entry { name: entry.file_name(), kind });
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let stat = rustix::fs::lstat(path)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            _ => Kind::Other,
        };
        // A length is never negative; the C type is signed because of `lseek`.
        Ok(Metadata { kind, len: u64::try_from(stat.st_size).unwrap_or(0) })
    }
}

/// A file of [`RealDisk`], opened with `O_APPEND`.
#[derive(Debug)]
struct RealFile {
    file: File,
}

#[deny(clippy::missing_trait_methods)]
impl DiskFile for RealFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        if len > self.file.metadata()?.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(rustix::fs::ftruncate(&self.file, len)?)
    }

    fn sync(&mut self) -> io::Result<()> {
        // Not `File::sync_data`, which retries interrupted calls.
        #[cfg(target_vendor = "apple")]
        return Ok(rustix::fs::fcntl_fullfsync(&self.file)?);
        #[cfg(not(target_vendor = "apple"))]
        return Ok(rustix::fs::fdatasync(&self.file)?);
    }
}

/// Opens an existing regular file, and returns its length. Refuses a pipe or device in its place without
/// blocking.
fn open_regular(path: &Path, access: OFlags) -> io::Result<(File, u64)> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    check_regular(&metadata)?;
    Ok((file, metadata.len()))
}

/// Refuses other types than regular files. Call it on an object opened with `O_NONBLOCK`, or before the open:
/// opening a pipe blocks, and so does reading from a terminal.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`], with the type found.
pub fn check_regular(metadata: &std::fs::Metadata) -> io::Result<()> {
    let kind = metadata.file_type();
    let found = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a folder",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "something else",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("found {found}, expected a regular file")))
}
