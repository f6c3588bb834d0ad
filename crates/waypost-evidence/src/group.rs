//! A program that evidence names, in a process group of its own, which ends when nobody waits for it any more.
//!
//! ```text
//!   waypost --- a pipe that is never closed while somebody waits ---> watcher: at its end, kill -9 the group
//!           \-- the group's first process, which becomes the program; killed with all that is left in the group
//!               when it has ended, when its time is over, and when the check is dropped
//! ```
//!
//! The watcher is for the end of waypost itself, by Ctrl-C or `kill -9`: then nobody is left who could drop anything. What
//! leaves the group, as a daemon does, is not reached. The first process is reaped only after its group was killed: until
//! then its number is nobody else's.

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

/// Most that is kept of what a program prints on one stream: whoever compares more has it write a file.
pub(crate) const PRINTED_BYTES_MAX: usize = 1 << 20;
/// How much is read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Starts the watcher and becomes the program. The pipe of the watcher is its standard input, out of the way as 3. Where
/// there can be no watcher, the code is that of what could not be run.
const WITHOUT_INPUT: &str = r#"trap 'exit 127' 0
exec 3<&0
( ( read -r _ <&3; kill -9 0 ) >/dev/null 2>&1 & ) || exit 127
trap - 0
exec 3<&- </dev/null "$@""#;
/// The same with a line that comes first through the pipe, and is what the program reads.
const WITH_INPUT: &str = r#"trap 'exit 127' 0
IFS= read -r input
exec 3<&0
( ( read -r _ <&3; kill -9 0 ) >/dev/null 2>&1 & ) || exit 127
trap - 0
exec 3<&- "$@" <<END
$input
END"#;

/// A program to be run.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its name or path, and its arguments.
    pub(crate) words: Vec<OsString>,
    /// Where it runs.
    pub(crate) folder: PathBuf,
    /// All of its variables.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// A line that it reads from standard input; nothing otherwise.
    pub(crate) input: Option<String>,
}

/// What a program came to.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) stdout: Printed,
    pub(crate) stderr: Printed,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// What a program has printed on one stream.
#[derive(Debug, Default)]
pub(crate) struct Printed {
    bytes: Vec<u8>,
    /// It was more than is kept.
    is_cut: bool,
}

impl Printed {
    /// Returns all of it as text; nothing if it was more than is kept.
    pub(crate) fn whole(&self) -> Option<String> {
        (!self.is_cut).then(|| self.kept().into_owned())
    }

    /// Returns what is kept of it as text.
    pub(crate) fn kept(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    fn add(&mut self, bytes: &[u8]) {
        let room = PRINTED_BYTES_MAX - self.bytes.len();
        self.is_cut |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Reads until nobody writes any more.
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

    /// Reads what is in the pipe, and does not wait for who may still hold it.
    fn drain(&mut self, pipe: &Receiver) {
        let mut chunk = vec![0; CHUNK_BYTES];
        while !self.is_cut {
            match rustix::io::read(pipe.as_fd(), &mut chunk[..]) {
                Ok(0) => return,
                Ok(count) => self.add(&chunk[..count]),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// The process group of a program, as long as its first process was not reaped.
#[derive(Debug)]
struct Group(Mutex<Option<Pid>>);

impl Group {
    fn kill(&self) {
        if let Some(pid) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // What has ended already is not there to be killed.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }

    /// Waits until the first process has ended, kills the others, and reaps it.
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

/// Kills the group of a program for which nobody waits any more.
struct Waited(Arc<Group>);

impl Drop for Waited {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Program {
    /// Runs it to its end; dropped before that, it is killed.
    ///
    /// # Errors
    /// What is to be found where it could not be run.
    pub(crate) async fn run(self) -> Result<Ended, Finding> {
        let unknown = |error: io::Error| {
            let why = format!("it cannot be run: {error}");
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => Finding::unknown_yet(why),
                _ => Finding::unknown(why),
            }
        };
        let mut child = self.spawn().map_err(unknown)?;
        let number = i32::try_from(child.id()).unwrap_or_default();
        let pid = Pid::from_raw(number).expect("a process that was started has a number");
        let group = Arc::new(Group(Mutex::new(Some(pid))));
        let _waited = Waited(Arc::clone(&group));
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut end = tokio::task::spawn_blocking(move || group.end(child, pid));
        let (Some(guard), Some(stdout), Some(stderr)) = pipes else {
            return Err(Finding::unknown("it cannot be listened to"));
        };
        let mut guard = Sender::from_owned_fd(OwnedFd::from(guard)).map_err(unknown)?;
        let stdout = Receiver::from_owned_fd(OwnedFd::from(stdout)).map_err(unknown)?;
        let stderr = Receiver::from_owned_fd(OwnedFd::from(stderr)).map_err(unknown)?;
        let (mut out, mut err) = (Printed::default(), Printed::default());
        let input = self.input.map(|line| format!("{line}\n")).unwrap_or_default();
        let talk = async {
            let tell = async {
                // Who has ended does not read.
                let _ = guard.write_all(input.as_bytes()).await;
            };
            tokio::join!(tell, out.read(&stdout), err.read(&stderr));
            // What prints nothing any more may live on.
            std::future::pending::<()>().await;
        };
        let status = tokio::select! {
            biased;
            status = &mut end => status,
            () = talk => unreachable!("who listens never stops by itself"),
        };
        out.drain(&stdout);
        err.drain(&stderr);
        let status = status.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(unknown)?;
        let end = match (status.code(), status.signal()) {
            (Some(code), _) => End::Code(code),
            (None, signal) => End::Signal(signal.unwrap_or_default()),
        };
        Ok(Ended { end, stdout: out, stderr: err })
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
