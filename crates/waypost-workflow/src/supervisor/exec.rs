//! The step of a step: from a request to a running program.
//!
//! A program is started as `posix_spawn` does it, by a child that shares the parent's memory until it runs the
//! program (`CLONE_VM | CLONE_VFORK`, clone(2)): no page tables are copied, and the child can say exactly what
//! failed. `posix_spawn` itself cannot say whether the folder or the program was missing, and cannot ask the kernel
//! to kill the program with its parent; std's `Command` looks for the program in the parent's `PATH`.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::Ordering;

use rustix::process::Pid;

use super::wire::{Request, Stage};

/// The child calls a dozen system calls on this stack, none of them deep; glibc itself takes 32 KiB for it.
const STACK_BYTES: usize = 64 * 1024;

/// Where a program is looked for if the step's environment has no `PATH`: as execvp(3) does it.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// A start that failed: nothing of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) stage: Stage,
    pub(super) errno: i32,
}

/// Starts programs, one after the other, from a process with one thread.
#[derive(Debug)]
pub(super) struct Launcher {
    stack: Vec<u8>,
}

/// What the child reads, and where it says what failed.
struct Plan {
    candidates: *const *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    dir: *const c_char,
    stdio: [RawFd; 3],
    parent: libc::pid_t,
    descriptors: libc::rlim_t,
    failure: Option<Failure>,
}

impl Launcher {
    pub(super) fn new() -> Self {
        Self { stack: vec![0; STACK_BYTES] }
    }

    /// Runs the program in a new process group, with exactly the given arguments, environment, folder and streams,
    /// all signals at their default and unblocked, and no other descriptor.
    ///
    /// `stdio` are descriptors of this process; its own 0, 1 and 2 must be open, so that none of those received is
    /// one of them by chance. Returns once the program runs or has failed to.
    pub(super) fn launch(&mut self, request: &Request<'_>, stdio: [RawFd; 3]) -> Result<Pid, Failure> {
        let candidates = candidates(request);
        let candidates = pointers(candidates.iter().map(CString::as_c_str));
        let argv = pointers(request.argv.iter().copied());
        let env = pointers(request.env.iter().copied());
        let mut plan = Plan {
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
        // SAFETY: the top of the stack is within `self.stack`, aligned to 16 bytes, and used by nobody else. With
        // CLONE_VFORK this thread, the only one, sleeps until the child has run the program or ended, so `plan` and
        // all it points to outlive the child's use of them. The child makes system calls only: it allocates
        // nothing, takes no lock, does not unwind and never returns. All signals are blocked here, so that no
        // handler runs in it.
        let pid = unsafe {
            let top = self.stack.as_mut_ptr().add(STACK_BYTES);
            let top = top.sub(top.addr() % 16);
            libc::clone(run, top.cast(), flags, (&raw mut plan).cast())
        };
        if pid < 0 {
            return Err(Failure { stage: Stage::Prepare, errno: errno() });
        }
        let pid = Pid::from_raw(pid).expect("clone returns a positive number or an error");
        // Written through the pointer that the child had.
        #[expect(unsafe_code, reason = "the compiler cannot know that another process wrote it")]
        // SAFETY: `plan` is alive and no longer shared: the child has its own memory now, or ended.
        let failure = unsafe { ptr::read_volatile(&raw const plan.failure) };
        match failure {
            None => Ok(pid),
            Some(failure) => {
                // It is a zombie at once; leaving it to the caller would look like the end of a step.
                let options = rustix::process::WaitOptions::empty();
                let _ = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(pid), options));
                Err(failure)
            }
        }
    }
}

/// Lists the files that the command may mean, best first: itself if it has a slash, else that name in each folder
/// of the step's own `PATH`.
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

/// The child: becomes the program or ends.
extern "C" fn run(plan: *mut c_void) -> c_int {
    #[expect(unsafe_code, reason = "the argument of clone's function is a plain pointer")]
    // SAFETY: `launch` passes its `Plan`, which lives until this process has run the program or ended, and does not
    // touch it meanwhile.
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    plan.failure = Some(become_program(plan));
    #[expect(unsafe_code, reason = "returning would run the exit handlers of the parent's memory")]
    // SAFETY: ends this process at once, whatever its state.
    unsafe {
        libc::_exit(127)
    }
}

/// Makes this process what the plan says; returns only if that failed.
#[expect(unsafe_code, reason = "between clone and exec only plain system calls are allowed")]
fn become_program(plan: &Plan) -> Failure {
    let prepare = |errno| Failure { stage: Stage::Prepare, errno };
    // SAFETY: plain system calls. All pointers are those of `launch`, valid and ended by null or zero. None of the
    // calls allocates or takes a lock.
    unsafe {
        if libc::setpgid(0, 0) != 0 {
            return prepare(errno());
        }
        // A backstop for the case that the reaper is killed together with all that would kill its orphans. The
        // signal belongs to the parent's thread, which is the only one and lives as long as the reaper.
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
            return Failure { stage: Stage::Folder, errno: errno() };
        }
        // Everything is close-on-exec already; this is for a descriptor that somebody forgot. Kernels before 5.9
        // do not know the call.
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32);
        let mut limit: libc::rlimit = std::mem::zeroed();
        if plan.descriptors != 0 && libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = plan.descriptors;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        Failure { stage: Stage::Program, errno: run_first(plan) }
    }
}

/// Runs the first candidate that can be run; returns why none could, as execvp(3) decides it.
#[expect(unsafe_code, reason = "between clone and exec only plain system calls are allowed")]
fn run_first(plan: &Plan) -> i32 {
    let mut denied = false;
    let mut candidate = plan.candidates;
    // SAFETY: the lists are those of `launch`, ended by null.
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
