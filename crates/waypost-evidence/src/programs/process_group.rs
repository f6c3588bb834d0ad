//! Runs the program of a claim in its own process group, which is killed when the caller stops waiting.
//!
//! ```text
//!   waypost --- pipe, open while a caller waits ---> watcher: at its end, kill -9 the group
//!           \-- the group's first process, becomes the program; killed with the rest of the group
//!               at its end, on a timeout, and when the check is dropped
//! ```
//!
//! The watcher covers the death of waypost, by Ctrl-C or `kill -9`, where a drop handler cannot run. A daemon
//! that leaves the group is not reached. The first process is reaped only after the kill of its group: until
//! then its process id cannot be reused.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::{Receiver, Sender};
use waypost::evidence::Finding;

/// Most output kept per stream. A claim about more output should write a file.
pub(crate) const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Bytes per read.
const CHUNK_BYTES: usize = 64 << 10;

/// Starts the watcher and becomes the program. The watcher's pipe arrives as standard input and moves to
/// descriptor 3. If the watcher cannot start, the exit code is 127, as for a program that cannot run.
const WITHOUT_INPUT: &str = r#"trap 'exit 127' 0
exec 3<&0
( ( read -r _ <&3; kill -9 0 ) >/dev/null 2>&1 & ) || exit 127
trap - 0
exec 3<&- </dev/null "$@""#;
/// As [`WITHOUT_INPUT`], but the first line from the pipe becomes the input of the program.
const WITH_INPUT: &str = r#"trap 'exit 127' 0
IFS= read -r input
exec 3<&0
( ( read -r _ <&3; kill -9 0 ) >/dev/null 2>&1 & ) || exit 127
trap - 0
exec 3<&- "$@" <<END
$input
END"#;

/// A program to run.
#[derive(Debug)]
pub(crate) struct Program {
    /// Program name or path, then the arguments.
    pub(crate) words: Vec<OsString>,
    /// Working folder.
    pub(crate) folder: PathBuf,
    /// The complete environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// A line for standard input; `None` for empty input.
    pub(crate) input: Option<String>,
}

/// The result of a program.
#[derive(Debug)]
pub(crate) struct ProgramResult {
    pub(crate) end: Exit,
    pub(crate) stdout: CapturedOutput,
    pub(crate) stderr: CapturedOutput,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// An exit with this code.
    Code(i32),
    /// A kill by this signal.
    Signal(i32),
}

/// Output of a program on a stream.
#[derive(Debug, Default)]
pub(crate) struct CapturedOutput {
    bytes: Vec<u8>,
    /// Whether output beyond the limit was dropped.
    is_truncated: bool,
}

impl CapturedOutput {
    /// Returns the output as text, or `None` if the limit was exceeded.
    pub(crate) fn whole(&self) -> Option<String> {
        (!self.is_truncated).then(|| self.text().into_owned())
    }

    /// Returns the kept output as text.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    fn add(&mut self, bytes: &[u8]) {
        let space = OUTPUT_BYTES_MAX - self.bytes.len();
        self.is_truncated |= bytes.len() > space;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(space)]);
    }

    /// Reads until every writer has closed the pipe.
    async fn read(&mut self, pipe: &Receiver) {
        let mut chunk = vec![0; CHUNK_BYTES];
        while pipe.readable().await.is_ok() {
            match pipe.try_read(&mut chunk) {
                Ok(0) => return,
                Ok(count) => self.add(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    /// Reads the buffered output without waiting for remaining writers.
    fn drain(&mut self, pipe: &Receiver) {
        let mut chunk = vec![0; CHUNK_BYTES];
        while !self.is_truncated {
            match rustix::io::read(pipe.as_fd(), &mut chunk[..]) {
                Ok(0) => return,
                Ok(count) => self.add(&chunk[..count]),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The process group of a program, until its first process is reaped.
#[derive(Debug)]
struct Group(Mutex<Option<Pid>>);

impl Group {
    fn kill(&self) {
        if let Some(pid) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // The group may have ended already.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }

    /// Waits for the first process, kills the rest of the group, and reaps the first process.
    fn end(&self, mut child: Child, pid: Pid) -> io::Result<ExitStatus> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), options));
        let mut alive = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        let status = child.wait();
        *alive = None;
        ended.map_err(io::Error::from).and(status)
    }
}

/// Kills the process group when the caller stops waiting.
struct Waited(Arc<Group>);

impl Drop for Waited {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Program {
    /// Runs the program to its end. Dropping the future kills the process group.
    ///
    /// # Errors
    /// The finding for a program that could not be run.
    pub(crate) async fn run(self) -> Result<ProgramResult, Finding> {
        let unknown = |error: io::Error| {
            let why = format!("cannot run the program: {error}");
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => Finding::unknown_yet(why),
                _ => Finding::unknown(why),
            }
        };
        let mut child = self.spawn().map_err(unknown)?;
        let number = i32::try_from(child.id()).unwrap_or_default();
        let pid = Pid::from_raw(number).expect("a started process has an id");
        let group = Arc::new(Group(Mutex::new(Some(pid))));
        let _waited = Waited(Arc::clone(&group));
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut end = tokio::task::spawn_blocking(move || group.end(child, pid));
        let (Some(guard), Some(stdout), Some(stderr)) = pipes else {
            return Err(Finding::unknown("cannot read its output"));
        };
        let mut guard = Sender::from_owned_fd(OwnedFd::from(guard)).map_err(unknown)?;
        let stdout = Receiver::from_owned_fd(OwnedFd::from(stdout)).map_err(unknown)?;
        let stderr = Receiver::from_owned_fd(OwnedFd::from(stderr)).map_err(unknown)?;
        let (mut out, mut err) = (CapturedOutput::default(), CapturedOutput::default());
        let input = self.input.map(|line| format!("{line}\n")).unwrap_or_default();
        let talk = async {
            let tell = async {
                // The program may end without reading its input.
                let _ = guard.write_all(input.as_bytes()).await;
            };
            tokio::join!(tell, out.read(&stdout), err.read(&stderr));
            // A program may close its output and continue to run.
            std::future::pending::<()>().await;
        };
        let status = tokio::select! {
            biased;
            status = &mut end => status,
            () = talk => unreachable!("the listener runs until it is dropped"),
        };
        out.drain(&stdout);
        err.drain(&stderr);
        let status = status.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(unknown)?;
        let end = match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or_default()),
        };
        Ok(ProgramResult { end, stdout: out, stderr: err })
    }

    fn spawn(&self) -> io::Result<Child> {
        let script = if self.input.is_some() { WITH_INPUT } else { WITHOUT_INPUT };
        Command::new("/bin/sh")
            .args(["-c", script, "sh"])
            .args(&self.words)
            .current_dir(&self.folder)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
    }
}
