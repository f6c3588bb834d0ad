//! The system calls of a tracer, wrapped in safe functions. This module contains all unsafe code of the rig.
//!
//! A tracer belongs to the attaching thread: all functions must be called from the same thread.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use super::calls::{Condition, watched};

/// The id of a process or thread.
pub(super) type Pid = libc::pid_t;

/// `PTRACE_GET_SYSCALL_INFO` of <linux/ptrace.h>, missing in some C libraries.
const GET_SYSCALL_INFO: u32 = 0x420e;

/// `PTRACE_EVENT_STOP` of <linux/ptrace.h>.
const EVENT_STOP: i32 = 128;

/// `AUDIT_ARCH_*` of <linux/audit.h>: the calling convention of the call numbers.
#[cfg(target_arch = "x86_64")]
const CONVENTION: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const CONVENTION: u32 = 0xc000_00b7;

/// The reason for a stop, or the end of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Exited with this code. For a process, reported last for its main thread.
    Exited(i32),
    /// Killed by this signal.
    Killed(i32),
    /// About to make a watched call.
    Call,
    /// A followed call has ended.
    CallEnded,
    /// Started a process or thread, executed another program, or was just attached: nothing to do.
    Event,
    /// Stopped with its whole process, by SIGSTOP and similar signals.
    Group,
    /// A signal is pending.
    Signal(i32),
}

/// Attaches to a child and all its future descendants. All are killed if the tracer dies.
pub(super) fn attach(child: Pid) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESECCOMP
        | libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    request(u32::from_request(libc::PTRACE_SEIZE), child, options as usize).map(drop)
}

/// Continues a stopped thread, with a signal or 0.
pub(super) fn go_on(thread: Pid, signal: i32) {
    gone_is_fine(request(u32::from_request(libc::PTRACE_CONT), thread, signal as usize));
}

/// Continues a thread until the end of its pending call.
pub(super) fn go_on_to_end_of_call(thread: Pid) {
    gone_is_fine(request(u32::from_request(libc::PTRACE_SYSCALL), thread, 0));
}

/// Keeps a thread stopped with its process, until SIGCONT.
pub(super) fn stay_stopped(thread: Pid) {
    gone_is_fine(request(u32::from_request(libc::PTRACE_LISTEN), thread, 0));
}

/// A thread may be killed between two of our calls; its end is still reported.
fn gone_is_fine(answer: io::Result<libc::c_long>) {
    match answer {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
        Err(error) => unreachable!("the thread is ours and stopped: {error}"),
    }
}

/// The type of a request differs between C libraries; the numbers do not.
trait FromRequest<T> {
    fn from_request(request: T) -> Self;
}
impl FromRequest<u32> for u32 {
    fn from_request(request: u32) -> Self {
        request
    }
}
impl FromRequest<i32> for u32 {
    fn from_request(request: i32) -> Self {
        request.cast_unsigned()
    }
}

#[expect(unsafe_code, reason = "ptrace has no safe wrapper")]
fn request(request: u32, thread: Pid, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: these requests do not access our memory: `data` is a number in all of them.
    let answer = unsafe { libc::ptrace(request as _, thread, std::ptr::null_mut::<libc::c_void>(), data) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Returns the number and arguments of the pending call of a thread stopped with [`Stop::Call`].
#[expect(unsafe_code, reason = "ptrace has no safe wrapper")]
pub(super) fn call(thread: Pid) -> io::Result<(u64, [u64; 6])> {
    /// `struct ptrace_syscall_info`, in the form for the stop before a call.
    #[repr(C)]
    #[derive(Default)]
    struct Call {
        head: [u64; 3],
        number: u64,
        arguments: [u64; 6],
        more: u64,
    }
    let mut call = Call::default();
    // SAFETY: the kernel writes at most the given size, into a struct of exactly that size.
    let answer = unsafe { libc::ptrace(GET_SYSCALL_INFO as _, thread, size_of::<Call>(), &raw mut call) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((call.number, call.arguments))
}

/// Reads a word from the memory of a stopped thread.
#[expect(unsafe_code, reason = "no safe wrapper reads another process")]
pub(super) fn peek(thread: Pid, address: u64) -> Option<u64> {
    let mut word = 0_u64;
    let ours = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let theirs = libc::iovec { iov_base: usize::try_from(address).ok()? as *mut libc::c_void, iov_len: 8 };
    // SAFETY: the kernel checks the other process's address, and writes at most eight bytes into our word.
    let read = unsafe { libc::process_vm_readv(thread, &raw const ours, 1, &raw const theirs, 1, 0) };
    (read == 8).then_some(word)
}

/// Reads a path from the memory of a stopped thread, truncated at the limit.
pub(super) fn path(thread: Pid, address: u64) -> Option<PathBuf> {
    /// Enough to identify a file; system calls accept up to 4096.
    const WORDS_MAX: u64 = 64;
    let mut bytes = Vec::new();
    for word in 0..WORDS_MAX {
        let word = peek(thread, address.checked_add(8 * word)?)?.to_ne_bytes();
        match word.iter().position(|byte| *byte == 0) {
            None => bytes.extend(word),
            Some(end) => {
                bytes.extend(&word[..end]);
                break;
            }
        }
    }
    Some(OsString::from_vec(bytes).into())
}

/// Waits up to `longest` until a traced thread stops or ends. On idle, returns the reason.
pub(super) fn wait(longest: Duration) -> io::Result<Result<(Pid, Stop), Idle>> {
    let mut waited = false;
    loop {
        match poll()? {
            Ok(stop) => return Ok(Ok(stop)),
            Err(Idle::NoneLeft) => return Ok(Err(Idle::NoneLeft)),
            Err(Idle::TimeIsUp) if waited => return Ok(Err(Idle::TimeIsUp)),
            Err(Idle::TimeIsUp) => {
                sleep_until_child(longest);
                waited = true;
            }
        }
    }
}

/// The reason why nothing was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Idle {
    /// The time is up: all threads are running or waiting.
    TimeIsUp,
    /// No traced process is left.
    NoneLeft,
}

#[expect(unsafe_code, reason = "rustix cannot wait for the threads of a traced process")]
fn poll() -> io::Result<Result<(Pid, Stop), Idle>> {
    let mut status = 0;
    let options = libc::WNOHANG | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: `status` is ours and an `int`.
    match unsafe { libc::waitpid(-1, &raw mut status, options) } {
        0 => Ok(Err(Idle::TimeIsUp)),
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ECHILD) => Ok(Err(Idle::NoneLeft)),
            error => Err(error),
        },
        thread => Ok(Ok((thread, meaning(status)))),
    }
}

fn meaning(status: i32) -> Stop {
    if libc::WIFEXITED(status) {
        return Stop::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Stop::Killed(libc::WTERMSIG(status));
    }
    let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
    match event {
        libc::PTRACE_EVENT_SECCOMP => Stop::Call,
        EVENT_STOP if signal != libc::SIGTRAP => Stop::Group,
        0 if signal == libc::SIGTRAP | 0x80 => Stop::CallEnded,
        0 => Stop::Signal(signal),
        _ => Stop::Event,
    }
}

/// Blocks SIGCHLD in this thread, so that [`wait`] can sleep until the signal.
#[expect(unsafe_code, reason = "signal sets have no safe wrapper")]
pub(super) fn hold_child_signals() {
    // SAFETY: the set is ours and initialised before use.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

#[expect(unsafe_code, reason = "signal sets have no safe wrapper")]
fn sleep_until_child(longest: Duration) {
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(longest.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: longest.subsec_nanos().into(),
    };
    // SAFETY: the set is ours and initialised before use; the kernel only reads set and time.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const time);
    }
}

/// Kills a process, if it still exists. It must be traced and not yet reported as ended.
#[expect(unsafe_code, reason = "the number of a traced process cannot have gone to another one")]
pub(super) fn kill(process: Pid) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

/// Returns the process of a live thread.
pub(super) fn process_of(thread: Pid) -> Option<Pid> {
    status_line(&std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?, "Tgid:")
}

/// Returns whether this process is traced.
pub(super) fn is_traced() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status_line(&status, "TracerPid:").is_some_and(|tracer| tracer != 0)
}

fn status_line(status: &str, key: &str) -> Option<Pid> {
    status.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
}

/// Installs a filter that stops this process and all its descendants at every watched call, for the tracer.
#[expect(unsafe_code, reason = "seccomp has no safe wrapper")]
pub(super) fn report_calls() -> io::Result<()> {
    let mut filter = filter();
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("a few instructions for each of a few calls"),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the filter, which lives until after the call.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the filter: a block of instructions per watched call, which ends the program or falls through.
fn filter() -> Vec<libc::sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    let instruction = |code: u32, jump_if: u8, jump_else: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("codes have 16 bits"),
        jt: jump_if,
        jf: jump_else,
        k,
    };
    let report = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_TRACE);
    let allow = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW);
    // `struct seccomp_data`: the number at 0, the convention at 4, the low half of each argument from 16 on.
    let argument = |index: usize| instruction(LOAD, 0, 0, 16 + 8 * u32::try_from(index).expect("one of six"));
    let mut filter = vec![
        instruction(LOAD, 0, 0, 4),
        instruction(IF_EQUAL, 1, 0, CONVENTION),
        allow,
        instruction(LOAD, 0, 0, 0),
    ];
    for watched in watched() {
        let block = match watched.when {
            Condition::Always => vec![report],
            Condition::AnyBit(index, bits) => {
                vec![argument(index), instruction(IF_ANY_BIT, 0, 1, bits), report, allow]
            }
            Condition::OneOf(index, numbers) => {
                let each = numbers.iter().flat_map(|number| [instruction(IF_EQUAL, 0, 1, *number), report]);
                [argument(index)].into_iter().chain(each).chain([allow]).collect()
            }
        };
        let number = u32::try_from(watched.number).expect("call numbers are small");
        let length = u8::try_from(block.len()).expect("a block is short");
        filter.push(instruction(IF_EQUAL, 0, length, number));
        filter.extend(block);
    }
    filter.push(allow);
    filter
}
