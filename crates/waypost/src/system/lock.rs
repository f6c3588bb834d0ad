//! The kernel lock that makes a single process the writer of a run.
//!
//! Owns the lock file of a run, `locks/RUN.lock`: taking the lock, probing its holder, and the holder's note.
//! The lock is an *open-file-description* lock: it belongs to the opened file, not to the process. It can be
//! handed to the supervisor of the run's processes, and survives the close of another descriptor of the same
//! file. The kernel releases it when the last duplicate is closed, by an exit or by `kill -9`. An unlock
//! command is not needed: without a living process, a run is not locked.
//!
//! The note in the file is for people and for status; only the kernel's answer decides. This module knows
//! neither runs nor the layout of stores.
//!
//! ```text
//! engine     take -- note ----------------- killed
//! supervisor          \-- duplicate -------------- kills the steps -- forgets the note -- ends
//! lock            |   held                                                              |  free
//! note            |   |  names the engine                          |  empty
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::system::disk::check_regular;

/// The largest note read: ten times a note with the longest host name (64 bytes), and small enough that a
/// foreign file in its place costs nothing.
const NOTE_BYTES_MAX: usize = 4096;

/// Open flags of a lock file: never follow a link, and never block on a pipe in its place.
const LOCK_FLAGS: libc::c_int = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Most attempts to open a lock file that is deleted between open and lock. Each attempt means another
/// `delete` of the run at this moment.
const REOPEN_ATTEMPTS_MAX: u32 = 16;
/// The length of a cleared note.
const FORGOTTEN_BYTES: u64 = 1;
/// The program name of a holder with a cleared note.
const LETTING_GO: &str = "letting go";

/// The holder of a run's lock: a process, distinguishable from a later process with the same number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process number; 0 if the note is not written yet.
    pub pid: u32,
    /// The name of the machine.
    pub host: String,
    /// The kernel's identifier of this boot: processes do not outlive it. Empty if the system has none.
    pub boot_id: String,
    /// Start of the process, in clock ticks after boot; identifies a process together with `pid` and
    /// `boot_id`. 0 if unknown.
    pub started: u64,
    /// The PID namespace, as in `/proc/self/ns/pid`: one per container; and the time namespace, other than the first.
    /// Empty on systems without namespaces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pid_namespace: String,
    /// The time of the lock.
    pub since: jiff::Timestamp,
    /// The name of the program.
    pub what: String,
}

/// The time namespace of a machine: `PROC_TIME_INIT_INO` in `include/linux/proc_ns.h` of Linux.
const FIRST_TIME_NAMESPACE: &str = "time:[4026531834]";

impl Holder {
    /// Describes this process as the holder of a lock since `since`.
    ///
    /// # Errors
    /// The error of reading `/proc`.
    pub fn here(since: jiff::Timestamp) -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self {
            pid,
            host: host_name(),
            boot_id: boot_id()?,
            started: process_started(pid)?,
            pid_namespace: pid_namespace(),
            since,
            what: program_name(),
        })
    }

    /// Returns a holder with the lock, and without a note yet.
    fn unknown() -> Self {
        Self {
            pid: 0,
            host: String::new(),
            boot_id: String::new(),
            started: 0,
            pid_namespace: String::new(),
            since: jiff::Timestamp::UNIX_EPOCH,
            what: String::new(),
        }
    }

    /// Returns a holder that has ended, with all processes of the run, and is about to release the lock.
    fn releasing() -> Self {
        Self { what: LETTING_GO.to_owned(), ..Self::unknown() }
    }

    /// Returns whether this process is alive on this machine now.
    ///
    /// A lock can be held although the result is false: by the supervisor of a killed engine until the last
    /// process of the run is dead, or by a process of another machine or container.
    #[must_use]
    pub fn lives(&self) -> bool {
        self.is_of_here() && process_started(self.pid).is_ok_and(|started| started == self.started)
    }

    /// Returns whether the process is certainly dead. In another container or on another machine, a held lock
    /// means a live process.
    ///
    /// The supervisor of a dead process may still hold the lock while it ends the process's children; it
    /// releases the lock within moments.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.is_releasing() || (self.is_of_here() && !self.lives())
    }

    fn is_releasing(&self) -> bool {
        self.pid == 0 && self.what == LETTING_GO
    }

    /// Returns whether the holder ran during this boot of the machine, so that its processes may still exist.
    #[must_use]
    pub fn same_boot(&self) -> bool {
        self.pid != 0 && boot_id().is_ok_and(|boot_id| boot_id == self.boot_id)
    }

    /// Returns whether the process number is valid here: same boot, same namespace.
    #[must_use]
    pub fn is_of_here(&self) -> bool {
        self.same_boot() && self.pid_namespace == pid_namespace()
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_releasing() {
            return f.write_str("a process that has just ended");
        }
        if self.pid == 0 {
            return f.write_str("a process without a name so far");
        }
        write!(f, "process {} ({}) on `{}` since {:.0}", self.pid, self.what, self.host, self.since)
    }
}

/// Why a lock could not be taken. The lock is not held after any of these errors.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// A living process has the lock. Wait for its end, or stop it.
    #[error("cannot lock `{}`: held by {holder}", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The holder, by its note.
        holder: Box<Holder>,
    },
    /// The folder is on a network file system, where two machines may both get the lock. Move the store to a
    /// local disk, or allow the file system if only one machine ever uses it.
    #[error("cannot lock `{}`: {kind} is a network file system with unreliable locks", path.display())]
    NetworkFileSystem {
        /// The lock file.
        path: PathBuf,
        /// The name of the file system.
        kind: String,
    },
    /// The file could not be created, locked or written.
    #[error("cannot lock `{}`", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A run's lock, held until the last duplicate of its descriptor is closed.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    path: PathBuf,
    previous: Option<Holder>,
}

impl RunLock {
    /// Takes the lock at `path` and writes the note of `holder`, unless a living process has the lock.
    ///
    /// Creates a missing folder (0700) and a missing file (0600). Does not wait. A drop releases the lock,
    /// unless a duplicate of its descriptor is still open; the file stays.
    ///
    /// # Errors
    /// - [`LockError::Held`]: another process has the lock; nothing changed.
    /// - [`LockError::NetworkFileSystem`]: refused unless `allow_network`; no file was created.
    /// - [`LockError::Io`]: the folder or file cannot be created, locked or written; the lock is not held.
    pub fn take(path: &Path, holder: &Holder, allow_network: bool) -> Result<Self, LockError> {
        let lock = Self::take_unnoted(path, allow_network)?;
        match write_note(&lock.file, holder) {
            Ok(()) => Ok(lock),
            Err(source) => Err(LockError::Io { path: path.to_owned(), source }),
        }
    }

    /// Takes the lock as [`take`](Self::take), without a note: for a full disk, which has no room for the
    /// note.
    ///
    /// # Errors
    /// Those of [`take`](Self::take).
    pub fn take_unnoted(path: &Path, allow_network: bool) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.to_owned(), source };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        if !allow_network && let Some(kind) = network_file_system(folder).map_err(failed)? {
            return Err(LockError::NetworkFileSystem { path: path.to_owned(), kind });
        }
        for _ in 0..REOPEN_ATTEMPTS_MAX {
            let file = open_to_lock(path).map_err(failed)?;
            if !try_lock(&file).map_err(failed)? {
                let holder = holder_by(&file).map_err(failed)?;
                return Err(LockError::Held { path: path.to_owned(), holder: Box::new(holder) });
            }
            // A `delete` may have unlinked the file after the open: the next taker would then lock another
            // file.
            if is_still_at(&file, path).map_err(failed)? {
                let previous = read_note(&file).map_err(failed)?;
                return Ok(Self { file, path: path.to_owned(), previous });
            }
        }
        Err(failed(io::Error::other(format!(
            "the file was deleted {REOPEN_ATTEMPTS_MAX} times before the lock was taken"
        ))))
    }

    /// Returns the holder of the lock at `path`, or `None` if the lock is free.
    ///
    /// Takes no lock, changes nothing, and works on a read-only file system. A missing file means a free
    /// lock.
    ///
    /// # Errors
    /// The system's error, if the file exists and cannot be opened or probed.
    pub fn probe(path: &Path) -> io::Result<Option<Holder>> {
        let file = match OpenOptions::new().read(true).custom_flags(LOCK_FLAGS).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(why_not_opened(path, error)),
        };
        check_regular(&file.metadata()?)?;
        if !is_locked(&file)? {
            return Ok(None);
        }
        holder_by(&file).map(Some)
    }

    /// Returns the previous holder, if it ended without clearing its note.
    ///
    /// The last holder clears the note after the death of all processes of the run, by [`RunLock::release`]
    /// or [`forget_note`]. `None` therefore means that the run has no processes left. `Some` means that
    /// engine and supervisor may have been killed together; with [`Holder::same_boot`], orphans are possible.
    #[must_use]
    pub fn previous(&self) -> Option<&Holder> {
        self.previous.as_ref()
    }

    /// Returns the path of the lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Duplicates the descriptor: the lock is then held until the duplicate is closed, too.
    ///
    /// # Errors
    /// The process or system has no descriptor left.
    pub fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    /// Clears the note and releases the lock: the orderly end of a holder that knows of no remaining
    /// processes of the run.
    ///
    /// # Errors
    /// The note could not be cleared, so the next holder searches for orphans without need; the lock is
    /// released anyway.
    pub fn release(self) -> io::Result<()> {
        forget_note(&self)
    }

    /// Removes the lock file, then releases the lock. For the deletion of a run, never at its end.
    ///
    /// # Errors
    /// The file could not be removed; the lock is released anyway.
    pub fn remove_file(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

impl AsFd for RunLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Clears the holder's note in a lock file: the last act of the process that holds the lock for a dead
/// engine. The cleared note attests the death of every process of the run, see [`RunLock::previous`].
///
/// # Errors
/// The note could not be cleared; the next holder then searches for orphans without need.
pub fn forget_note(lock: impl AsFd) -> io::Result<()> {
    // A byte stays, to distinguish this holder from one without a note yet.
    Ok(rustix::fs::ftruncate(lock, FORGOTTEN_BYTES)?)
}

/// Returns the name of the network file system of `folder`, or `None` if it seems local.
///
/// # Errors
/// The system's error, if the file system cannot be determined.
#[cfg(target_os = "linux")]
pub fn network_file_system(folder: &Path) -> io::Result<Option<String>> {
    /// Statfs magic numbers, from `linux/magic.h` and the file systems' own headers.
    const NETWORK: [(u32, &str); 8] = [
        (0x0000_6969, "NFS"),
        (0xFF53_4D42, "CIFS"),
        (0xFE53_4D42, "SMB2"),
        (0x0000_517B, "SMB"),
        (0x00C3_6400, "Ceph"),
        (0x5346_414F, "AFS"),
        (0x7375_7245, "Coda"),
        (0x0BD0_0BD0, "Lustre"),
    ];
    const FUSE: u32 = 0x6573_5546;

    let magic = rustix::fs::statfs(folder)?.f_type as u32;
    if let Some((_, name)) = NETWORK.iter().find(|(network, _)| *network == magic) {
        return Ok(Some((*name).to_owned()));
    }
    if magic == FUSE {
        let device = std::fs::metadata(folder)?.dev();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        return Ok(mount_kind(&mounts, device).filter(|kind| is_network_fuse(kind)).map(str::to_owned));
    }
    Ok(None)
}

/// Returns `None`: this system cannot be asked.
///
/// # Errors
/// None here.
#[cfg(not(target_os = "linux"))]
pub fn network_file_system(_folder: &Path) -> io::Result<Option<String>> {
    Ok(None)
}

/// Finds the file system type of a device in the text of `/proc/self/mountinfo` (proc(5)): `36 35 98:0 /root
/// /mount/point options - type source options`.
#[cfg(target_os = "linux")]
fn mount_kind(mounts: &str, device: u64) -> Option<&str> {
    let wanted = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&*wanted))?;
    line.split_once(" - ")?.1.split(' ').next()
}

/// Returns whether a FUSE type keeps its files on other machines. Unknown types count as local, as most are.
#[cfg(target_os = "linux")]
fn is_network_fuse(kind: &str) -> bool {
    const KINDS: [&str; 12] = [
        "sshfs",
        "s3fs",
        "rclone",
        "glusterfs",
        "gcsfuse",
        "goofys",
        "davfs",
        "curlftpfs",
        "moosefs",
        "mfs",
        "juicefs",
        "seaweedfs",
    ];
    kind.strip_prefix("fuse.").is_some_and(|name| KINDS.contains(&name))
}

fn open_to_lock(path: &Path) -> io::Result<File> {
    // Not truncated: before the lock is taken, the note belongs to another holder.
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(LOCK_FLAGS);
    let file = options.open(path).map_err(|error| why_not_opened(path, error))?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Replaces an open error by the type of the object in place of the lock file, such as a socket or a link.
fn why_not_opened(path: &Path, error: io::Error) -> io::Error {
    let found = std::fs::symlink_metadata(path).and_then(|metadata| check_regular(&metadata));
    found.err().filter(|found| found.kind() == io::ErrorKind::InvalidInput).unwrap_or(error)
}

fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok(there.dev() == ours.dev() && there.ino() == ours.ino()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes the note over the old one, then truncates the rest: a reader takes the first line, and sees the old
/// or the new note.
fn write_note(file: &File, holder: &Holder) -> io::Result<()> {
    let mut line = serde_json::to_vec(holder).expect("a holder is plain JSON");
    line.push(b'\n');
    assert!(line.len() <= NOTE_BYTES_MAX, "a host name has at most 64 bytes");
    file.write_all_at(&line, 0)?;
    file.set_len(line.len() as u64)
}

/// Reads the note; `None` if it is missing or invalid.
fn read_note(file: &File) -> io::Result<Option<Holder>> {
    let mut bytes = vec![0; NOTE_BYTES_MAX];
    let count = file.read_at(&mut bytes, 0)?;
    let line = bytes[..count].split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(serde_json::from_slice(line).ok())
}

/// Returns the holder of a lock, by the note in its file.
fn holder_by(file: &File) -> io::Result<Holder> {
    let nameless = || match file.metadata()?.len() {
        FORGOTTEN_BYTES => Ok(Holder::releasing()),
        _ => Ok(Holder::unknown()),
    };
    read_note(file)?.map_or_else(nameless, Ok)
}

fn whole_file() -> libc::flock {
    #[expect(
        unsafe_code,
        reason = "`flock` has private padding on some systems, so it cannot be written as a literal"
    )]
    // SAFETY: `flock` is plain integers, for which all zeros is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    // Start and length 0 mean the whole file; the process number must be 0 for an open-file-description lock.
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock
}

/// Tries to lock the open file description; returns `false` if another one has the lock.
fn try_lock(file: &File) -> io::Result<bool> {
    let lock = whole_file();
    #[expect(unsafe_code, reason = "rustix has no open-file-description locks")]
    // SAFETY: the descriptor is open for the time of the call, and `lock` is a valid `flock` that is only read.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if answer == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Returns whether a lock on the file would conflict. Works on a read-only descriptor.
fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file();
    #[expect(unsafe_code, reason = "rustix has no open-file-description locks")]
    // SAFETY: the descriptor is open for the time of the call, and `lock` is a valid `flock` for it to fill.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

#[cfg(target_os = "linux")]
fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(not(target_os = "linux"))]
fn boot_id() -> io::Result<String> {
    Ok(String::new())
}

/// Returns the name of the PID namespace; empty if the system has none.
///
/// Start times of processes differ between time namespaces: the name of one other than the first is added.
fn pid_namespace() -> String {
    let name_of = |kind: &str| {
        let name = std::fs::read_link(format!("/proc/self/ns/{kind}"));
        name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    match name_of("time") {
        time if time.is_empty() || time == FIRST_TIME_NAMESPACE => name_of("pid"),
        time => format!("{} {time}", name_of("pid")),
    }
}

/// Returns the name of this machine.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the start of a process, in clock ticks after boot; fails for a missing process or a zombie.
#[cfg(target_os = "linux")]
fn process_started(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    let unreadable = || io::Error::other(format!("/proc/{pid}/stat is not as proc(5) says"));
    // The second field, the name, is arbitrary: the next fields begin after its last parenthesis.
    let name_end = stat.iter().rposition(|byte| *byte == b')').ok_or_else(unreadable)?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).map_err(|_| unreadable())?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next(), Some("Z" | "X")) {
        return Err(io::ErrorKind::NotFound.into());
    }
    // Field 3, the state, is consumed; field 22 is the start time.
    fields.nth(18).and_then(|field| field.parse().ok()).ok_or_else(unreadable)
}

#[cfg(not(target_os = "linux"))]
fn process_started(pid: u32) -> io::Result<u64> {
    let pid =
        i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    rustix::process::test_kill_process(pid)?;
    Ok(0)
}

fn program_name() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&name).file_name().unwrap_or_default();
    name.to_string_lossy().chars().take(64).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{is_network_fuse, mount_kind};

    const MOUNTS: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /home/me/far rw,nosuid - fuse.sshfs host:/srv rw
41 22 0:36 / /mnt/pool rw - fuse.mergerfs a:b rw
";

    #[test]
    fn a_fuse_mount_is_told_by_the_type_of_its_device() {
        let device = |minor| rustix::fs::makedev(0, minor);

        assert_eq!(mount_kind(MOUNTS, device(35)), Some("fuse.sshfs"));
        assert_eq!(mount_kind(MOUNTS, device(36)), Some("fuse.mergerfs"));
        assert_eq!(mount_kind(MOUNTS, device(37)), None);
        assert!(is_network_fuse("fuse.sshfs"));
        assert!(!is_network_fuse("fuse.mergerfs"));
        assert!(!is_network_fuse("fuseblk"));
    }
}
