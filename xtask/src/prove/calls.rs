//! Selects the system calls to count: calls with effects on disk, on another process, or on the reader of our
//! output.
//!
//! Kills between two counted calls, or during work without such calls, leave the same state. So kills before
//! and after each counted call cover every way to die.

use std::path::{Path, PathBuf};

use super::sys::{self, Pid};

/// A system call that the kernel reports, with its condition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    pub(super) number: libc::c_long,
    pub(super) name: &'static str,
    pub(super) when: Condition,
}

/// A condition on the arguments. The kernel's filter sees only numbers, not memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Condition {
    /// Always true.
    Always,
    /// The argument with this index has any of these bits.
    AnyBit(usize, u32),
    /// The argument with this index is any of these numbers.
    OneOf(usize, &'static [u32]),
}

/// Flags of `open` that create or truncate a file.
const MAKES_FILE: u32 = (libc::O_CREAT | libc::O_TRUNC).cast_unsigned();

/// `fcntl` commands that take or release a lock. SQLite uses the classic commands.
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

/// Calls of every Linux architecture.
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
    // Durability.
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

/// Older calls that only this architecture has.
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

/// Returns all calls that the kernel must report.
pub(super) fn watched() -> impl Iterator<Item = &'static Watched> {
    EVERYWHERE.iter().chain(HERE)
}

/// A counted call, in readable form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// `engine`, or the name of the other process.
    pub(crate) process: String,
    /// The name of the call, such as `fsync`.
    pub(crate) call: &'static str,
    /// The affected file, if known; for a call with two names, the first.
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

/// Returns the call that a stopped thread is about to make, if counted.
///
/// Not counted are starting a thread and waking a thread (a write to an anonymous descriptor). These calls
/// have no outside effect, and their number varies.
pub(super) fn counted(thread: Pid, root: Pid, number: u64, arguments: [u64; 6]) -> Option<Seen> {
    let watched = watched().find(|watched| u64::try_from(watched.number) == Ok(number))?;
    if starts_thread(thread, watched.number, arguments) {
        return None;
    }
    let file = match subject(watched.number) {
        Some(CallSubject::Descriptor) => file_of(thread, arguments[0]),
        Some(CallSubject::Path(index)) => sys::path(thread, arguments[index]),
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
        // The first member of the struct that the first argument points to.
        libc::SYS_clone3 => sys::peek(thread, arguments[0]),
        _ => None,
    };
    flags.is_some_and(|flags| flags & libc::CLONE_THREAD.cast_unsigned() as u64 != 0)
}

/// The argument that identifies the changed file.
enum CallSubject {
    /// The first argument is a descriptor.
    Descriptor,
    /// The argument with this index points to the path.
    Path(usize),
}

fn subject(number: libc::c_long) -> Option<CallSubject> {
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
        return Some(CallSubject::Descriptor);
    }
    if PATHS.contains(&number) {
        return Some(CallSubject::Path(1));
    }
    (OLD_PATHS.contains(&number) || number == libc::SYS_execve).then_some(CallSubject::Path(0))
}

fn file_of(thread: Pid, descriptor: u64) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{thread}/fd/{descriptor}")).ok()
}

/// Returns whether the file is a wake-up descriptor or the null device.
fn is_private(file: &Path) -> bool {
    file.to_string_lossy().starts_with("anon_inode:") || file == Path::new("/dev/null")
}
