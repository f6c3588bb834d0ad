//! Starts a step's program from a request.
//!
//! The method is `posix_spawn`'s: a child shares the parent's memory until it runs the program (`CLONE_VM |
//! CLONE_VFORK`, clone(2)). No page tables are copied, and the child can report the exact failure.
//!
//! `posix_spawn` cannot report whether the folder or the program was missing, and cannot set the parent death
//! signal. std's `Command` searches the parent's `PATH`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::Ordering;

use rustix::process::Pid;

use super::wire::{Request, Stage};

/// Stack of the child, for a dozen shallow system calls; glibc uses 32 KiB for the same purpose.
const STACK_BYTES: usize = 64 * 1024;

/// Search path if the step's environment has no `PATH`, as in execvp(3).
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// Failed start: no process is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExecFailure {
    pub(super) stage: Stage,
    pub(super) errno: i32,
}

/// Starts programs one after the other, from a process with one thread.
#[derive(Debug)]
pub(super) struct Launcher {
    stack: Vec<u8>,
}

/// Input of the child, and the place for its failure.
struct ExecPlan {
    candidates: *const *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    dir: *const c_char,
    stdio: [RawFd; 3],
    parent: libc::pid_t,
    descriptors: libc::rlim_t,
    failure: Option<ExecFailure>,
}

impl Launcher {
    pub(super) fn new() -> Self {
        Self { stack: vec![0; STACK_BYTES] }
    }

    /// Runs the program in a new process group, with exactly the given arguments, environment, folder and
    /// streams.
    ///
    /// All signals have their default action and are unblocked; no other descriptor is open.
    ///
    /// `stdio` are descriptors of this process. Descriptors 0, 1 and 2 must be open, so that received
    /// descriptors never have these numbers. Returns once the program runs or has failed to start.
    pub(super) fn launch(&mut self, request: &Request<'_>, stdio: [RawFd; 3]) -> Result<Pid, ExecFailure> {
        let candidates = candidates(request);
        let candidates = pointers(candidates.iter().map(CString::as_c_str));
        let argv = pointers(request.argv.iter().copied());
        let env = pointers(request.env.iter().copied());
        let mut plan = ExecPlan {
            candidates: candidates.as_ptr(),
            argv: argv.as_ptr(),
            env: env.as_ptr(),
            dir: request.dir.as_ptr(),
            stdio,
            parent: rustix::process::getpid().as_raw_nonzero().get(),
            descriptors: super::DESCRIPTORS.load(Ordering::Relaxed),
            failure: None,
        };
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        #[expect(
            unsafe_code,
            reason = "no safe call makes a child that shares the memory until it runs a program"
        )]
        // SAFETY: the top of the stack is within `self.stack`, aligned to 16 bytes, and has no other user.
        // With CLONE_VFORK this thread, the only one, sleeps until the child has run the program or ended.
        // Therefore `plan` and all referenced data outlive their use in the child. The child makes system
        // calls only: it allocates nothing, takes no lock, does not unwind and never returns. All signals are
        // blocked here, so no handler runs in the child.
        let pid = unsafe {
            let top = self.stack.as_mut_ptr().add(STACK_BYTES);
            let top = top.sub(top.addr() % 16);
            libc::clone(run, top.cast(), flags, (&raw mut plan).cast())
        };
        if pid < 0 {
            return Err(ExecFailure { stage: Stage::Prepare, errno: errno() });
        }
        let pid = Pid::from_raw(pid).expect("clone returns a positive number or an error");
        // Written by the child through its pointer.
        #[expect(unsafe_code, reason = "the compiler cannot know that another process wrote it")]
        // SAFETY: `plan` is alive and no longer shared: the child has its own memory now, or has ended.
        let failure = unsafe { ptr::read_volatile(&raw const plan.failure) };
        match failure {
            None => Ok(pid),
            Some(failure) => {
                // The child is already a zombie. Left to the caller, a zombie would look like the end of a
                // step.
                let options = rustix::process::WaitOptions::empty();
                let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), options));
                Err(failure)
            }
        }
    }
}

/// Returns the candidate files of the command, best first. A command with a slash is the only candidate; else
/// the name is joined with each folder in the step's `PATH`.
fn candidates(request: &Request<'_>) -> Vec<CString> {
    let command = request.argv[0];
    if command.to_bytes().contains(&b'/') {
        return vec![command.to_owned()];
    }
    let path = request.env.iter().find_map(|entry| entry.to_bytes().strip_prefix(b"PATH="));
    let folders = path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':');
    let joined = folders.map(|folder| {
        let folder = if folder.is_empty() { b"." } else { folder };
        CString::new([folder, b"/", command.to_bytes()].concat())
            .expect("both parts come from strings without zero")
    });
    joined.collect()
}

fn pointers<'a>(strings: impl Iterator<Item = &'a CStr>) -> Vec<*const c_char> {
    strings.map(CStr::as_ptr).chain([ptr::null()]).collect()
}

/// Main function of the child: runs the program or exits.
extern "C" fn run(plan: *mut c_void) -> c_int {
    #[expect(unsafe_code, reason = "the argument of clone's function is a plain pointer")]
    // SAFETY: `launch` passes a `ExecPlan`, valid until this process has run the program or ended, without access
    // in the meantime.
    let plan = unsafe { &mut *plan.cast::<ExecPlan>() };
    plan.failure = Some(become_program(plan));
    #[expect(unsafe_code, reason = "returning would run the exit handlers of the parent's memory")]
    // SAFETY: ends this process at once, whatever its state.
    unsafe {
        libc::_exit(127)
    }
}

/// Sets up this process according to `plan` and runs the program; returns only on failure.
#[expect(unsafe_code, reason = "between clone and exec only plain system calls are allowed")]
fn become_program(plan: &ExecPlan) -> ExecFailure {
    let prepare = |errno| ExecFailure { stage: Stage::Prepare, errno };
    // SAFETY: plain system calls. All pointers come from `launch`, valid and terminated by null or zero. None
    // of the calls allocates or takes a lock.
    unsafe {
        if libc::setpgid(0, 0) != 0 {
            return prepare(errno());
        }
        // Backstop for a kill of the reaper and the supervisor at once. The signal is bound to the parent's
        // only thread, and so to the life of the reaper.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != plan.parent {
            return prepare(libc::ESRCH);
        }
        for (target, source) in plan.stdio.iter().enumerate() {
            let target = target as c_int;
            if *source != target && libc::dup2(*source, target) < 0 {
                return prepare(errno());
            }
        }
        if libc::chdir(plan.dir) != 0 {
            return ExecFailure { stage: Stage::Folder, errno: errno() };
        }
        // All descriptors are close-on-exec; this covers a forgotten one. Not available before Linux 5.9.
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32);
        let mut limit: libc::rlimit = std::mem::zeroed();
        if plan.descriptors != 0 && libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = plan.descriptors;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        ExecFailure { stage: Stage::Program, errno: run_first(plan) }
    }
}

/// Runs the first executable candidate; returns the error, chosen as in execvp(3), if none is executable.
#[expect(unsafe_code, reason = "between clone and exec only plain system calls are allowed")]
fn run_first(plan: &ExecPlan) -> i32 {
    let mut denied = false;
    let mut candidate = plan.candidates;
    // SAFETY: the lists come from `launch` and are terminated by null.
    unsafe {
        while !(*candidate).is_null() {
            libc::execve(*candidate, plan.argv, plan.env);
            match errno() {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                other => return other,
            }
            candidate = candidate.add(1);
        }
    }
    if denied { libc::EACCES } else { libc::ENOENT }
}

fn errno() -> i32 {
    // Reads a thread-local number; no allocation.
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
