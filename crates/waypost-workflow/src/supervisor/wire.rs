//! Messages between engine, supervisor and reapers.
//!
//! Owns the encoding. All ends are the same program on the same machine, so numbers are in native byte order.
//! A single version number is checked once. A start request beyond [`INLINE_BYTES_MAX`] is passed in a memory
//! file.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Protocol version, raised with every change of these messages; the supervisor's first answer.
pub(super) const PROTOCOL: u8 = 2;

/// Longest request in one message. Well below the usual socket buffer (208 KiB): a message always fits. Above
/// the size of arguments and environment of an ordinary step.
pub(super) const INLINE_BYTES_MAX: usize = 48 * 1024;

/// Longest request. The kernel accepts at most 6 MiB of arguments and environment (execve(2)), so a larger
/// request would fail later and less clearly.
pub(super) const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Size of a receive buffer for any message.
pub(super) const MESSAGE_BYTES_MAX: usize = INLINE_BYTES_MAX + 64;

/// Most descriptors in one message: stdin, stdout, stderr and the memory file.
pub(super) const DESCRIPTORS_MAX: usize = 4;

/// Message of the engine to the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// First message, with the given descriptors: of the run's lock, and of the deadline of its lease.
    Hello { has_lock: bool, has_deadline: bool },
    /// Fork a reaper that serves the passed descriptor.
    Reaper { id: u32 },
    /// Close the passed descriptor once the reaper and all its remaining processes are dead.
    Await { id: u32 },
    /// Kill the reaper, which does not answer, and its remaining processes.
    Kill { id: u32 },
}

impl Control {
    pub(super) fn encode(self) -> [u8; 5] {
        let (tag, id) = match self {
            Self::Hello { has_lock, has_deadline } => (1, u32::from(has_lock) | u32::from(has_deadline) << 1),
            Self::Reaper { id } => (2, id),
            Self::Await { id } => (3, id),
            Self::Kill { id } => (4, id),
        };
        let [a, b, c, d] = id.to_ne_bytes();
        [tag, a, b, c, d]
    }

    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let [tag, id @ ..] = <[u8; 5]>::try_from(bytes).map_err(|_| unreadable())?;
        let id = u32::from_ne_bytes(id);
        match tag {
            1 => Ok(Self::Hello { has_lock: id & 1 != 0, has_deadline: id & 2 != 0 }),
            2 => Ok(Self::Reaper { id }),
            3 => Ok(Self::Await { id }),
            4 => Ok(Self::Kill { id }),
            _ => Err(unreadable()),
        }
    }
}

/// Message of the engine to a reaper.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order<'a> {
    /// Start the step with request `body`; if empty, the request is in the memory file, the last descriptor.
    Start { flags: StartFlags, body: &'a [u8] },
    /// End the step's tree: TERM now, KILL after `grace_ms`.
    Cancel { grace_ms: u64 },
}

/// Descriptors of a start: stdout, then optionally stderr, stdin and the memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StartFlags {
    pub(super) stderr: bool,
    pub(super) stdin: bool,
    pub(super) memory: bool,
}

impl Order<'_> {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Start { flags, body } => {
                let bits = u8::from(flags.stderr) | u8::from(flags.stdin) << 1 | u8::from(flags.memory) << 2;
                [&[1, bits], *body].concat()
            }
            Self::Cancel { grace_ms } => [&[2][..], &grace_ms.to_ne_bytes()].concat(),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> io::Result<Order<'_>> {
        match bytes {
            [1, bits, body @ ..] => {
                let flags = StartFlags { stderr: bits & 1 != 0, stdin: bits & 2 != 0, memory: bits & 4 != 0 };
                Ok(Order::Start { flags, body })
            }
            [2, grace_ms @ ..] => {
                let grace_ms = u64::from_ne_bytes(grace_ms.try_into().map_err(|_| unreadable())?);
                Ok(Order::Cancel { grace_ms })
            }
            _ => Err(unreadable()),
        }
    }
}

/// Stage at which a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Reading the request, making the process, or setting its descriptors and signals.
    Prepare,
    /// Entering the folder.
    Folder,
    /// Running the program.
    Program,
}

/// Message of a reaper to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The step's main process runs the program.
    Started { pid: i32 },
    /// The start failed; no process is left.
    Refused { stage: Stage, errno: i32 },
    /// The main process ended with this wait status; `empty` if nothing else of the step is alive.
    Ended { status: i32, empty: bool },
    /// The last process of the step is dead; the main process ended earlier.
    Empty,
    /// The supervisor is gone, all processes of the step are dead, and this reaper ends.
    Abandoned,
}

impl Event {
    pub(super) fn encode(self) -> [u8; 6] {
        let (tag, detail, number) = match self {
            Self::Started { pid } => (1, 0, pid),
            Self::Refused { stage, errno } => (2, stage as u8, errno),
            Self::Ended { status, empty } => (3, u8::from(empty), status),
            Self::Empty => (4, 0, 0),
            Self::Abandoned => (5, 0, 0),
        };
        let [a, b, c, d] = number.to_ne_bytes();
        [tag, detail, a, b, c, d]
    }

    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let [tag, detail, number @ ..] = <[u8; 6]>::try_from(bytes).map_err(|_| unreadable())?;
        let number = i32::from_ne_bytes(number);
        Ok(match (tag, detail) {
            (1, _) => Self::Started { pid: number },
            (2, 0) => Self::Refused { stage: Stage::Prepare, errno: number },
            (2, 1) => Self::Refused { stage: Stage::Folder, errno: number },
            (2, 2) => Self::Refused { stage: Stage::Program, errno: number },
            (3, empty) => Self::Ended { status: number, empty: empty != 0 },
            (4, _) => Self::Empty,
            (5, _) => Self::Abandoned,
            _ => return Err(unreadable()),
        })
    }
}

/// Request to start a step, as the reaper reads it: every string ends with a zero byte, ready for the kernel.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) argv: Vec<&'a CStr>,
    pub(super) env: Vec<&'a CStr>,
    pub(super) dir: &'a CStr,
}

impl<'a> Request<'a> {
    pub(super) fn decode(bytes: &'a [u8]) -> io::Result<Self> {
        let (counts, strings) = bytes.split_first_chunk::<8>().ok_or_else(unreadable)?;
        let (argc, envc) = counts.split_at(4);
        let argc = u32::from_ne_bytes(argc.try_into().expect("half of 8 bytes")) as usize;
        let envc = u32::from_ne_bytes(envc.try_into().expect("half of 8 bytes")) as usize;
        let mut rest = strings;
        let mut next = || -> io::Result<&'a CStr> {
            let string = CStr::from_bytes_until_nul(rest).map_err(|_| unreadable())?;
            rest = &rest[string.count_bytes() + 1..];
            Ok(string)
        };
        let argv = (0..argc).map(|_| next()).collect::<io::Result<Vec<_>>>()?;
        let env = (0..envc).map(|_| next()).collect::<io::Result<Vec<_>>>()?;
        let dir = next()?;
        if argv.is_empty() || !rest.is_empty() {
            return Err(unreadable());
        }
        Ok(Self { argv, env, dir })
    }
}

/// Encodes a request for [`Request::decode`]; the error is the string with a zero byte, or the invalid name.
pub(super) fn encode_request<'a>(
    argv: &'a [impl AsRef<OsStr>],
    env: &'a [(impl AsRef<OsStr>, impl AsRef<OsStr>)],
    dir: &'a Path,
) -> Result<Vec<u8>, &'a OsStr> {
    let mut out = Vec::with_capacity(4096);
    out.extend_from_slice(&(argv.len() as u32).to_ne_bytes());
    out.extend_from_slice(&(env.len() as u32).to_ne_bytes());
    for argument in argv {
        out.extend_from_slice(without_zero(argument.as_ref())?);
        out.push(0);
    }
    for (name, value) in env {
        let bytes = without_zero(name.as_ref())?;
        if bytes.is_empty() || bytes.contains(&b'=') {
            return Err(name.as_ref());
        }
        out.extend_from_slice(bytes);
        out.push(b'=');
        out.extend_from_slice(without_zero(value.as_ref()).map_err(|_| name.as_ref())?);
        out.push(0);
    }
    out.extend_from_slice(without_zero(dir.as_os_str())?);
    out.push(0);
    Ok(out)
}

fn without_zero(string: &OsStr) -> Result<&[u8], &OsStr> {
    if string.as_bytes().contains(&0) { Err(string) } else { Ok(string.as_bytes()) }
}

fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "cannot decode a message between engine and supervisor")
}
