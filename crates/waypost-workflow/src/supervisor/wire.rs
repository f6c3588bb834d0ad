//! The messages between engine, supervisor and step reapers.
//!
//! This owns their bytes. All ends are the same program on the same machine, so numbers are in native order and
//! there is one version number, checked once. A start request beyond [`INLINE_BYTES_MAX`] travels in a memory file.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Raised with every change of these messages; the supervisor names it in its first answer.
pub(super) const PROTOCOL: u8 = 1;

/// The longest request that is sent as one message: well below the usual socket buffer (208 KiB), so that one
/// always fits, and above what arguments and environment of an ordinary step take.
pub(super) const INLINE_BYTES_MAX: usize = 48 * 1024;

/// The longest request at all. The kernel takes 6 MiB of arguments and environment at the very most (execve(2)),
/// so whatever is larger would fail later and less clearly.
pub(super) const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A receive buffer of this size holds every message whole.
pub(super) const MESSAGE_BYTES_MAX: usize = INLINE_BYTES_MAX + 64;

/// At most this many descriptors travel with one message: stdin, stdout, stderr and the memory file.
pub(super) const DESCRIPTORS_MAX: usize = 4;

/// What the engine tells the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// The first message, with the run's lock as descriptor if there is one.
    Hello,
    /// Fork a reaper that serves the descriptor sent along.
    Reaper { id: u32 },
    /// Close the descriptor sent along once that reaper is dead and everything it left behind too.
    Await { id: u32 },
    /// Kill that reaper, which does not answer, and what it leaves.
    Kill { id: u32 },
}

impl Control {
    pub(super) fn encode(self) -> [u8; 5] {
        let (tag, id) = match self {
            Self::Hello => (1, 0),
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
            1 => Ok(Self::Hello),
            2 => Ok(Self::Reaper { id }),
            3 => Ok(Self::Await { id }),
            4 => Ok(Self::Kill { id }),
            _ => Err(unreadable()),
        }
    }
}

/// What the engine tells a reaper.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order<'a> {
    /// Start the step whose request is `body`, or in the memory file that is the last descriptor if that is empty.
    Start { flags: StartFlags, body: &'a [u8] },
    /// End the step's tree: TERM now, KILL after `grace_ms`.
    Cancel { grace_ms: u64 },
}

/// Which descriptors come with a start: stdout, then as said here stderr, stdin and the memory file.
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

/// At which point a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Reading the request, making the process, or its descriptors and signals.
    Prepare,
    /// Entering the folder.
    Folder,
    /// Running the program.
    Program,
}

/// What a reaper tells the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The step's main process runs the program.
    Started { pid: i32 },
    /// It does not; nothing is left of it.
    Refused { stage: Stage, errno: i32 },
    /// The main process ended with this wait status; `empty` if nothing else of the step is alive.
    Ended { status: i32, empty: bool },
    /// The last process of the step is dead, after the main process had ended before it.
    Empty,
    /// The supervisor is gone; everything of the step is dead; this reaper ends.
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

/// A request to start a step, as the reaper sees it: every string ends with a zero byte, ready for the kernel.
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

/// Writes a request as [`Request::decode`] reads it, or says which string holds a zero byte or cannot be a name.
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
    io::Error::new(io::ErrorKind::InvalidData, "a message between engine and supervisor is not readable")
}
