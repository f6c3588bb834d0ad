//! The signals of a supervising process: none is delivered, and the end of a child is something to poll for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// The number of signals that Linux has, save on MIPS (signal(7)).
const SIGNAL_MAX: libc::c_int = 64;

/// Sets every signal to its default and blocks it.
///
/// Blocked rather than ignored: the steps then start with nothing ignored, and a Ctrl-C, TERM or HUP that reaches
/// this process stays without effect, for only the engine decides what those mean.
pub(super) fn block_all() -> io::Result<()> {
    #[expect(unsafe_code, reason = "rustix has no safe calls for signal dispositions and masks")]
    // SAFETY: plain system calls on values of our own. The dispositions of this program are not in use: it has one
    // thread and installed no handler (those of the Rust runtime for stack overflow only print before they abort).
    unsafe {
        // The kernel's `struct sigaction`: handler, flags, restorer (or not) and mask, where zeros are the default.
        let default = [0_u64; 4];
        for signal in 1..=SIGNAL_MAX {
            // The C library's own call refuses two signals that its `posix_spawn` sets to be ignored. Fails for
            // SIGKILL and SIGSTOP, which have no other disposition.
            let nothing = ptr::null_mut::<libc::c_void>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), nothing, size_of::<u64>());
        }
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The signal by which the supervisor learns that a reaper has ended, while that of other children is SIGCHLD.
pub(super) const REAPER_END: libc::c_int = libc::SIGUSR1;

/// A descriptor that is readable when a child of this process has ended.
#[derive(Debug)]
pub(super) struct ChildEnds(OwnedFd);

impl ChildEnds {
    pub(super) fn new() -> io::Result<Self> {
        #[expect(unsafe_code, reason = "rustix has no signalfd")]
        // SAFETY: plain system calls on a set of our own; the descriptor is new and owned by nobody else.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::sigaddset(&raw mut set, REAPER_END);
            let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(OwnedFd::from_raw_fd(descriptor)))
        }
    }

    /// Forgets the ends announced so far. Reap after this, not before: one signal may stand for many children.
    pub(super) fn clear(&self) {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        while rustix::io::read(&self.0, &mut record).is_ok() {}
    }
}

impl AsFd for ChildEnds {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
