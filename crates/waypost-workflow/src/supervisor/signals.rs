//! Signals of a supervising process: none is delivered, and the end of a child can be polled for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Number of signals on Linux, except on MIPS (signal(7)).
const SIGNAL_MAX: libc::c_int = 64;

/// Sets every signal to its default action and blocks it.
///
/// Blocked rather than ignored, so that steps start without ignored signals. Ctrl-C, TERM and HUP have no
/// effect on this process: only the engine reacts to these.
pub(super) fn block_all() -> io::Result<()> {
    #[expect(unsafe_code, reason = "rustix has no safe calls for signal dispositions and masks")]
    // SAFETY: plain system calls on local values. This program has one thread and installed no handler. The
    // handlers of the Rust runtime for stack overflow only print before they abort.
    unsafe {
        // The kernel's `struct sigaction`: handler, flags, restorer (or not) and mask, where zeros are the
        // default.
        let default = [0_u64; 4];
        for signal in 1..=SIGNAL_MAX {
            // The C library's wrapper rejects two signals, which `posix_spawn` sets to ignored. Fails for
            // SIGKILL and SIGSTOP, which have no other action.
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

/// Exit signal of a reaper; other children use SIGCHLD.
pub(super) const REAPER_END: libc::c_int = libc::SIGUSR1;

/// Descriptor that is readable when a child of this process has ended.
#[derive(Debug)]
pub(super) struct ChildEnds(OwnedFd);

impl ChildEnds {
    pub(super) fn new() -> io::Result<Self> {
        #[expect(unsafe_code, reason = "rustix has no signalfd")]
        // SAFETY: plain system calls on a local set; the descriptor is new and has no other owner.
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

    /// Clears the pending notifications. Reap after this call, not before: one signal may represent many
    /// children.
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
