//! The disk as a careful store sees it: few calls, and what each of them promises once the power is gone.
//!
//! A store that keeps files makes every disk call through [`Disk`], so that a test can be the disk: one that dies
//! at any call, loses whatever was not synced, or answers with any error. This file owns the trait, the real disk
//! behind it ([`RealDisk`]), and one loop that writes all of a buffer. It knows no store, no record and no format.
//!
//! Two things are durable apart from each other: what is in a file, and that a folder has an entry of that name.
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

/// What a file of ours may be done with, and by whom: its owner reads and writes it, nobody else anything.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The same for folders, which must also be entered.
const FOLDER_MODE: Mode = Mode::RWXU;

/// What a name in a folder stands for. Symbolic links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// Anything else: a symbolic link, a pipe, a socket, a device. A store leaves these alone.
    Other,
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, without the folder.
    pub name: OsString,
    /// What it stands for.
    pub kind: Kind,
}

/// What is known of a file or folder without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: Kind,
    /// The length in bytes of a file; of no meaning for anything else.
    pub len: u64,
}

/// A disk that files are kept on.
///
/// All calls block. A call that changes something is one attempt: nothing is retried in here, neither an interrupted
/// call nor a failed sync. A path names its last component itself: a symbolic link there is never followed. All calls may be made
/// from several threads at once.
///
/// # Contract
/// - **Nothing is durable until it is synced.** After a power cut, any subset of what was not synced is there, in
///   any order; a write may be there in part. What a killed process wrote stays, for the kernel has it.
/// - **The bytes of a file** are made durable by [`DiskFile::sync`] of it, **an entry of a folder** (a name that came, went
///   or was moved) by [`Disk::sync_dir`] of that folder; each of the two does nothing for the other.
/// - **`rename` is atomic**: after a power cut the target is what it was or what it became, never missing, never
///   mixed. Between two folders it is durable once both were synced.
/// - **A failed sync is final**: the bytes that it was about may be lost although they can still be read, and a
///   later sync that succeeds says nothing about them. Write them again, into another file.
/// - **A call that fails changed nothing**, except a sync.
///
/// # Errors
/// Every method answers with the [`io::Error`] of the system call, not wrapped, so that
/// [`io::Error::raw_os_error`] and [`io::Error::kind`] say what it was: whoever calls knows the path and says it.
///
/// # Source
/// man 2 fsync, rename, open; Pillai and others, "All File Systems Are Not Created Equal" (2014), for what may be
/// reordered; Rebello and others, "Can Applications Recover from fsync Failures?" (2020), for the failed sync.
pub trait Disk: fmt::Debug + fmt::Display + Send + Sync {
    /// Creates a file that must not exist, for its owner only (0600), and opens it for writing.
    ///
    /// Neither its name nor its bytes are durable yet.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AlreadyExists`]: something has that name; it was not touched.
    /// - [`io::ErrorKind::NotFound`]: the folder is not there.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file that must exist; what is written goes to its end.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: there is no such file. Anything but a regular file is refused too.
    fn open_append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Reads a whole file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotFound`]: there is no such file.
    /// - [`io::ErrorKind::FileTooLarge`]: it is longer than `bytes_max`.
    /// - Anything but a regular file is refused.
    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>>;

    /// Reads at most `bytes_max` bytes of a file from `offset` on: fewer only where the file ends, none at or
    /// behind its end.
    ///
    /// # Errors
    /// As [`Disk::read`], except that no file is too large.
    fn read_at(&self, path: &Path, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>>;

    /// Gives a file or folder another name, in place of any file that has it; a folder goes only where there is
    /// nothing or an empty folder.
    ///
    /// Atomic, but durable only once the folders of both names are synced. If both names stand for the very same
    /// file already (hard links), nothing happens and both stay.
    fn rename(&self, source: &Path, target: &Path) -> io::Result<()>;

    /// Gives a file a second name, durable once the folder of that name is synced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`]: something has that name; it was not touched.
    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()>;

    /// Takes away a name of a file. Until its folder is synced, a power cut may bring the name back.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder for its owner only (0700) in a folder that must exist; a folder of that name is left as it is.
    ///
    /// Durable once the folder around it is synced; a folder that was found may not be durable either.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`]: the name stands for something else than a folder.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder. Durable once the folder around it is synced.
    ///
    /// # Errors
    /// [`io::ErrorKind::DirectoryNotEmpty`]: it has entries.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes all changes to the entries of a folder durable that were made until now. It says nothing about the
    /// bytes of the files, nor about the entries of folders in it.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Lists the entries of a folder, sorted by the bytes of their names.
    fn list(&self, path: &Path) -> io::Result<Vec<Entry>>;

    /// Says what a name stands for and how long it is.
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;
}

/// An open file. Everything is written to its end. Dropping it closes it and makes nothing durable.
///
/// The contract and the errors are those of [`Disk`].
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// Writes some of `bytes` to the end of the file and says how many, which may be fewer than all;
    /// [`write_whole`] writes them all.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Cuts the file off after `len` bytes. Durable by the next sync.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`]: the file is shorter than that, and would have to grow.
    fn truncate(&mut self, len: u64) -> io::Result<()>;

    /// Makes the bytes and the length of the file durable (fdatasync, on Apple systems `F_FULLFSYNC`), but not
    /// its name. Times and other metadata may be lost.
    fn sync(&mut self) -> io::Result<()>;
}

/// Writes all of `bytes`, however many calls it takes: short writes are continued, interrupted ones made again.
///
/// # Errors
/// The first other error; then any part may have been written. [`io::ErrorKind::WriteZero`] when the disk takes
/// nothing and gives no reason.
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
        // One byte more than allowed shows a file that has grown since its length was asked for.
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
        // A length is never negative; the C type is signed for the sake of `lseek`.
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
        // Not `File::sync_data`, which tries again by itself when it is interrupted.
        #[cfg(target_vendor = "apple")]
        return Ok(rustix::fs::fcntl_fullfsync(&self.file)?);
        #[cfg(not(target_vendor = "apple"))]
        return Ok(rustix::fs::fdatasync(&self.file)?);
    }
}

/// Opens a regular file that exists, and says how long it is. A pipe or a device in its place is refused without
/// waiting for its other end.
fn open_regular(path: &Path, access: OFlags) -> io::Result<(File, u64)> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    check_regular(&metadata)?;
    Ok((file, metadata.len()))
}

/// Refuses what is no regular file in the place of one. To be asked of something opened with `O_NONBLOCK`, or before it
/// is opened: opening a pipe waits for its other end, reading from a terminal for a person.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`], which says what is there instead.
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
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {found}, and should be a regular file")))
}
