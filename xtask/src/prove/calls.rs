//! Which system calls count: those that change something that outlives the call, on disk, in another process, or
//! for whoever reads our output.
//!
//! A program that is killed between two calls of this list, or in the middle of work that makes none, leaves the
//! same things behind; so killing before and after each of them leaves out no way to die.

use std::path::{Path, PathBuf};

use super::sys::{self, Pid};

/// A system call that is reported by the kernel, and under which condition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    pub(super) number: libc::c_long,
    pub(super) name: &'static str,
    pub(super) when: Condition,
}

/// What the arguments must say, as far as the kernel's filter can look at them: it sees numbers, no memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Condition {
    /// Nothing.
    Always,
    /// The argument of that index has one of those bits.
    AnyBit(usize, u32),
    /// The argument of that index is one of those numbers.
    OneOf(usize, &'static [u32]),
}

/// A file is made, or emptied, by opening it.
const MAKES_FILE: u32 = (libc::O_CREAT | libc::O_TRUNC).cast_unsigned();

/// The commands of `fcntl` that take or free a lock. The classic ones are what SQLite uses.
const LOCKS: &[u32] = &[
    libc::F_SETLK.cast_unsigned(),
    libc::F_SETLKW.cast_unsigned(),
    libc::F_OFD_SETLK.cast_unsigned(),
    libc::F_OFD_SETLKW.cast_unsigned(),
];

macro_rules! watched {
    ($($name:ident $(if $when:expr)?),* $(,)?) => {
        &[$(Watched { number: libc::$name, name: stringify!($name), when: watched!(@ $($when)?) }),*]
    };
    (@) => { Condition::Always };
    (@ $when:expr) => { $when };
}

/// The calls of all machines that Linux runs on.
const EVERYWHERE: &[Watched] = watched![
    // Bytes of files, pipes and sockets.
    SYS_write,
    SYS_pwrite64,
    SYS_writev,
    SYS_pwritev,
    SYS_pwritev2,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_sendfile,
    SYS_splice,
    SYS_copy_file_range,
    SYS_fallocate,
    SYS_ftruncate,
    SYS_truncate,
    // What becomes durable.
    SYS_fsync,
    SYS_fdatasync,
    SYS_sync_file_range,
    SYS_syncfs,
    SYS_sync,
    SYS_msync,
    // Names.
    SYS_openat if Condition::AnyBit(2, MAKES_FILE),
    SYS_openat2,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_unlinkat,
    SYS_mkdirat,
    SYS_mknodat,
    SYS_fchmod,
    SYS_fchmodat,
    // Locks, processes and signals.
    SYS_fcntl if Condition::OneOf(1, LOCKS),
    SYS_flock,
    SYS_clone,
    SYS_clone3,
    SYS_execve,
    SYS_execveat,
    SYS_kill,
    SYS_tgkill,
    SYS_pidfd_send_signal,
];

/// The older calls that only this machine still has.
#[cfg(target_arch = "x86_64")]
const HERE: &[Watched] = watched![
    SYS_open if Condition::AnyBit(1, MAKES_FILE),
    SYS_creat,
    SYS_rename,
    SYS_renameat,
    SYS_link,
    SYS_symlink,
    SYS_unlink,
    SYS_rmdir,
    SYS_mkdir,
    SYS_mknod,
    SYS_chmod,
    SYS_fork,
    SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const HERE: &[Watched] = watched![SYS_renameat];

/// All calls that the kernel is asked to report.
pub(super) fn watched() -> impl Iterator<Item = &'static Watched> {
    EVERYWHERE.iter().chain(HERE)
}

/// A call that counts, as a person wants to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// `engine`, or the name of the other process.
    pub(crate) process: String,
    /// Its name, such as `fsync`.
    pub(crate) call: &'static str,
    /// The file that it is about, if that can be told; of two names, the first.
    pub(crate) file: Option<PathBuf>,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` of {}", self.call, self.process)?;
        match &self.file {
            Some(file) => write!(f, " on `{}`", file.display()),
            None => Ok(()),
        }
    }
}

/// Says what call a stopped thread is about to make, if it counts.
///
/// Those that the kernel reports but that do not count: starting a thread, and waking one up (writing to a
/// descriptor that has no name and no other end). They change nothing outside, and how many there are is chance.
pub(super) fn counted(thread: Pid, root: Pid, number: u64, arguments: [u64; 6]) -> Option<Seen> {
    let watched = watched().find(|watched| u64::try_from(watched.number) == Ok(number))?;
    if starts_thread(thread, watched.number, arguments) {
        return None;
    }
    let file = match subject(watched.number) {
        Some(Subject::Descriptor) => file_of(thread, arguments[0]),
        Some(Subject::Path(index)) => sys::path(thread, arguments[index]),
        None => None,
    };
    if file.as_deref().is_some_and(is_private) {
        return None;
    }
    let process = match sys::process_of(thread) {
        Some(process) if process == root => "engine".to_owned(),
        _ => {
            std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default().trim_end().to_owned()
        }
    };
    let call = watched.name.strip_prefix("SYS_").unwrap_or(watched.name);
    Some(Seen { process, call, file })
}

fn starts_thread(thread: Pid, number: libc::c_long, arguments: [u64; 6]) -> bool {
    let flags = match number {
        libc::SYS_clone => Some(arguments[0]),
        // The first member of what the first argument points to.
        libc::SYS_clone3 => sys::peek(thread, arguments[0]),
        _ => None,
    };
    flags.is_some_and(|flags| flags & libc::CLONE_THREAD.cast_unsigned() as u64 != 0)
}

/// What tells the file that a call changes.
enum Subject {
    /// The first argument is a descriptor.
    Descriptor,
    /// The argument of that index points to the path.
    Path(usize),
}

fn subject(number: libc::c_long) -> Option<Subject> {
    const DESCRIPTORS: &[libc::c_long] = &[
        libc::SYS_write,
        libc::SYS_pwrite64,
        libc::SYS_writev,
        libc::SYS_pwritev,
        libc::SYS_pwritev2,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_fallocate,
        libc::SYS_ftruncate,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_fcntl,
        libc::SYS_flock,
    ];
    const PATHS: &[libc::c_long] =
        &[libc::SYS_openat, libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_unlinkat, libc::SYS_mkdirat];
    #[cfg(target_arch = "x86_64")]
    const OLD_PATHS: &[libc::c_long] = &[
        libc::SYS_open,
        libc::SYS_creat,
        libc::SYS_rename,
        libc::SYS_link,
        libc::SYS_unlink,
        libc::SYS_mkdir,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const OLD_PATHS: &[libc::c_long] = &[];
    if DESCRIPTORS.contains(&number) {
        return Some(Subject::Descriptor);
    }
    if PATHS.contains(&number) {
        return Some(Subject::Path(1));
    }
    (OLD_PATHS.contains(&number) || number == libc::SYS_execve).then_some(Subject::Path(0))
}

fn file_of(thread: Pid, descriptor: u64) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{thread}/fd/{descriptor}")).ok()
}

/// A descriptor for waking up a thread, or a device that forgets everything.
fn is_private(file: &Path) -> bool {
    file.to_string_lossy().starts_with("anon_inode:") || file == Path::new("/dev/null")
}
