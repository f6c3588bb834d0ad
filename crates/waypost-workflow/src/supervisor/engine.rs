//! Engine's side of a supervisor: starts the supervisor process, and starts steps through it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::channel::{self, Link};
use super::wire::{
    Control, Event, INLINE_BYTES_MAX, Order, PROTOCOL, REQUEST_BYTES_MAX, Stage, StartFlags, encode_request,
};
use super::{
    Child, DESCRIPTORS, Output, STEP_DESCRIPTORS, SpawnError, Stdin, StepProcess, SupervisorError,
    SupervisorProgram,
};

/// Limit for the answer of a started supervisor, and of a reaper that starts a step. An idle machine takes 2
/// ms and 1 ms; the limit covers a swapping machine, and a step that stopped the reaper.
const START_MAX: Duration = Duration::from_secs(30);

/// Limit for the exit of a supervisor with a closed channel, which has no work left.
const END_MAX: Duration = Duration::from_secs(1);

/// Reason for a supervisor that closed the channel before it served.
const ENDED_AT_ONCE: &str = "the process exited at its start";

/// Interval of the SIGCONT for a supervisor that must end, in case of another SIGSTOP; rare enough to cost
/// nothing.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// Most idle reapers kept for later steps: the usual number of concurrent steps of one run.
const IDLE_REAPERS_MAX: usize = 32;

/// Supervisor of one run, as seen by the engine. Dropping it ends all processes of the run, without waiting.
#[derive(Debug)]
pub struct Supervisor {
    shared: Arc<Shared>,
}

/// State shared by the supervisor and its steps.
#[derive(Debug)]
pub(super) struct Shared {
    control: Link,
    process: Mutex<Option<std::process::Child>>,
    reapers: Mutex<Reapers>,
    next_id: AtomicU32,
}

/// Reapers without a `Child`.
#[derive(Debug, Default)]
struct Reapers {
    /// Reapers without a step.
    idle: Vec<ReaperLink>,
    /// Reapers of steps that ended but left background processes.
    background: Vec<ReaperLink>,
}

/// Connection of the engine to one reaper.
#[derive(Debug)]
pub(super) struct ReaperLink {
    id: u32,
    link: Link,
}

impl Supervisor {
    /// Starts `program` as the supervisor of a run, and waits until it serves.
    ///
    /// `lock` is a duplicate of the run's lock. The supervisor and the reapers keep the lock until every
    /// process of every step is dead. Must be called within a tokio runtime with I/O and time enabled, and is
    /// bound to that runtime.
    ///
    /// # Errors
    /// - [`SupervisorError::Start`]: the program cannot be run.
    /// - [`SupervisorError::NotServing`]: the program runs, but is not a supervisor.
    /// - [`SupervisorError::Ended`]: the supervisor was killed before it served. Start another.
    /// - [`SupervisorError::Channel`]: the engine has no descriptors left.
    ///
    /// After each of these errors no process is left, and the duplicate of the lock is closed.
    pub async fn start(program: SupervisorProgram, lock: Option<OwnedFd>) -> Result<Self, SupervisorError> {
        Self::start_until(program, lock, None).await
    }

    /// As [`start`](Self::start), under a lease that runs out: at the deadline all processes end, and the supervisor.
    ///
    /// `deadline` is a descriptor of a [`Deadline`](waypost::deadline::Deadline), which the engine may move.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn start_until(
        program: SupervisorProgram,
        lock: Option<OwnedFd>,
        deadline: Option<OwnedFd>,
    ) -> Result<Self, SupervisorError> {
        let (ours, theirs) = channel::pair().map_err(SupervisorError::Channel)?;
        let control = Link::new(ours).map_err(SupervisorError::Channel)?;
        let mut command = Command::new(&program.path);
        command.args(&program.args).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        command.env(STEP_DESCRIPTORS, DESCRIPTORS.load(Ordering::Relaxed).to_string());
        // Separate group: a Ctrl-C on the terminal reaches the engine only.
        command.process_group(0);
        if let Some(arg0) = &program.arg0 {
            command.arg0(arg0);
        }
        let started = command.spawn();
        // The command holds a copy of the other end of the channel.
        drop(command);
        let process =
            started.map_err(|source| SupervisorError::Start { program: program.path.clone(), source })?;
        let shared = Shared {
            control,
            process: Mutex::new(Some(process)),
            reapers: Mutex::default(),
            next_id: AtomicU32::new(1),
        };
        if let Err(reason) = shared.greet(lock, deadline).await {
            let killed = reason == ENDED_AT_ONCE && shared.was_killed().await;
            shared.kill_process();
            return Err(match killed {
                true => SupervisorError::Ended,
                false => SupervisorError::NotServing { program: program.path, reason },
            });
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Starts a step's process and returns it once the program runs.
    ///
    /// Dropping the future at any time leaves no process running.
    ///
    /// # Errors
    /// See [`SpawnError`]. After [`SupervisorError::ReaperKilled`] and [`SupervisorError::Ended`] the program
    /// may have run for a moment; after all others it has not.
    pub async fn spawn(&self, process: StepProcess) -> Result<Child, SpawnError> {
        let dir = std::path::absolute(&process.dir)
            .map_err(|source| SpawnError::DirNotUsable { dir: process.dir.clone(), source })?;
        let Some(command) = process.argv.first() else { return Err(SpawnError::NoCommand) };
        let body = encode_request(&process.argv, &process.env, &dir)
            .map_err(|what| SpawnError::InvalidString { what: up_to_zero(what).to_owned() })?;
        if body.len() > REQUEST_BYTES_MAX {
            return Err(SpawnError::TooLong { command: command.clone(), bytes: body.len() });
        }
        let system = |source| SpawnError::System { command: command.clone(), source };
        let pipes = Pipes::new(process.output).map_err(system)?;
        let stdin = stdin_descriptor(process.stdin).map_err(system)?;
        let memory =
            if body.len() > INLINE_BYTES_MAX { Some(memory_file(&body).map_err(system)?) } else { None };
        let flags =
            StartFlags { stderr: pipes.stderr.is_some(), stdin: stdin.is_some(), memory: memory.is_some() };
        let order = Order::Start { flags, body: if memory.is_some() { &[] } else { &body } }.encode();
        let theirs = [
            Some(&pipes.stdout.1),
            pipes.stderr.as_ref().map(|pipe| &pipe.1),
            stdin.as_ref(),
            memory.as_ref(),
        ];
        let theirs: Vec<BorrowedFd<'_>> = theirs.into_iter().flatten().map(AsFd::as_fd).collect();

        let reaper = self.shared.send_start(&order, &theirs).await?;
        match self.shared.receive_answer(&reaper).await? {
            Event::Started { pid } => {
                let readers = pipes.readers().map_err(system)?;
                Ok(Child::new(Arc::clone(&self.shared), reaper, pid.cast_unsigned(), readers))
            }
            Event::Refused { stage, errno } => {
                self.shared.put_back(reaper);
                Err(refusal(stage, errno, command, &process.dir, &dir, body.len()))
            }
            // Without a start a reaper sends none of these events.
            Event::Ended { .. } | Event::Empty | Event::Abandoned => Err(SupervisorError::Ended.into()),
        }
    }

    /// Resolves when the supervisor process is gone.
    pub async fn ended(&self) {
        self.shared.heard_out().await;
    }

    /// Returns the process id of the supervisor; `None` after it was reaped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.shared.process().as_ref().map(std::process::Child::id)
    }

    /// Ends every process of every step and then the supervisor; returns when all are dead.
    ///
    /// All duplicates of the run's lock, of supervisor and reapers, are then closed. A [`Child`] that still
    /// exists reports [`SupervisorError::Ended`].
    ///
    /// # Errors
    /// [`SupervisorError::Ended`]: the supervisor was killed. The reapers end their trees, perhaps after this
    /// returns.
    pub async fn shutdown(self) -> Result<(), SupervisorError> {
        *self.shared.reapers() = Reapers::default();
        self.shared.give_up().await;
        let process = self.shared.process().take();
        // The channel closed because the process ended, so the wait is short. The status is unknown if the
        // kernel reaps the children of this program (SIGCHLD ignored).
        match process.map(|mut process| process.wait()) {
            Some(Ok(status)) if !status.success() => Err(SupervisorError::Ended),
            _ => Ok(()),
        }
    }
}

impl Shared {
    async fn greet(&self, lock: Option<OwnedFd>, deadline: Option<OwnedFd>) -> Result<(), &'static str> {
        let hello = Control::Hello { has_lock: lock.is_some(), has_deadline: deadline.is_some() };
        let descriptors: Vec<BorrowedFd<'_>> = lock.iter().chain(&deadline).map(AsFd::as_fd).collect();
        self.control.send(&hello.encode(), &descriptors).await.map_err(|_| ENDED_AT_ONCE)?;
        let answer = tokio::time::timeout(START_MAX, self.control.receive()).await;
        match answer.map_err(|_| "no response")? {
            None => Err(ENDED_AT_ONCE),
            Some(answer) if answer.bytes() == [PROTOCOL] => Ok(()),
            Some(_) => Err("another version"),
        }
    }

    /// Sends a start order to an idle reaper, or to a new reaper.
    async fn send_start(
        &self,
        order: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<ReaperLink, SupervisorError> {
        // After a failed send the idle reaper was killed. The step was not started, so another reaper may
        // start it.
        while let Some(reaper) = self.take_idle() {
            if reaper.link.send(order, descriptors).await.is_ok() {
                return Ok(reaper);
            }
        }
        let reaper = self.new_reaper().await?;
        match reaper.link.send(order, descriptors).await {
            // A supervisor that could not fork has closed the channel; the refusal can still be received.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(self.lost(&reaper).await),
            _ => Ok(reaper),
        }
    }

    fn take_idle(&self) -> Option<ReaperLink> {
        let mut reapers = self.reapers();
        if let Some(reaper) = reapers.idle.pop() {
            return Some(reaper);
        }
        // The background processes may have ended since.
        let background = std::mem::take(&mut reapers.background);
        for reaper in background {
            match reaper.link.try_receive() {
                Ok(Some(message))
                    if Event::decode(message.bytes()).is_ok_and(|event| event == Event::Empty) =>
                {
                    reapers.idle.push(reaper);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => reapers.background.push(reaper),
                // Reaper killed: the supervisor kills the remaining processes.
                Ok(_) | Err(_) => {}
            }
        }
        reapers.idle.pop()
    }

    async fn new_reaper(&self) -> Result<ReaperLink, SupervisorError> {
        let (ours, theirs) = channel::pair().map_err(SupervisorError::Channel)?;
        let link = Link::new(ours).map_err(SupervisorError::Channel)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let message = Control::Reaper { id }.encode();
        self.control.send(&message, &[theirs.as_fd()]).await.map_err(|_| SupervisorError::Ended)?;
        Ok(ReaperLink { id, link })
    }

    /// Receives the next event of a step.
    ///
    /// If the reaper is lost, returns only after all processes of the step are dead. Cancel safe.
    pub(super) async fn receive(&self, reaper: &ReaperLink) -> Result<Event, SupervisorError> {
        match reaper.link.receive().await.map(|message| Event::decode(message.bytes())) {
            Some(Ok(Event::Abandoned)) => Err(SupervisorError::Ended),
            Some(Ok(event)) => Ok(event),
            Some(Err(_)) | None => Err(self.lost(reaper).await),
        }
    }

    /// Receives the answer to a start order; kills a reaper that does not answer in time.
    async fn receive_answer(&self, reaper: &ReaperLink) -> Result<Event, SupervisorError> {
        if let Ok(event) = tokio::time::timeout(START_MAX, self.receive(reaper)).await {
            return event;
        }
        self.kill_reaper(reaper).await;
        self.receive(reaper).await
    }

    /// Kills an unreachable reaper, if alive, and waits until its processes are dead. Returns the error for
    /// the caller.
    async fn lost(&self, reaper: &ReaperLink) -> SupervisorError {
        let asked = async {
            // A channel can fail while both processes are alive; the reaper would then never end.
            self.control.send(&Control::Kill { id: reaper.id }.encode(), &[]).await?;
            let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            self.control.send(&Control::Await { id: reaper.id }.encode(), &[theirs.as_fd()]).await?;
            drop(theirs);
            self.wake();
            // The answer is the close of the pipe.
            let ours = pipe::Receiver::from_owned_fd(ours)?;
            ours.readable().await?;
            io::Result::Ok(())
        };
        match asked.await {
            Ok(()) if self.serves() => SupervisorError::ReaperKilled,
            Ok(()) => SupervisorError::Ended,
            Err(_) => {
                self.give_up().await;
                SupervisorError::Ended
            }
        }
    }

    /// Ends an unreachable supervisor and all processes of the run; returns when the channel has closed.
    async fn give_up(&self) {
        self.control.finish();
        loop {
            self.wake();
            if tokio::time::timeout(WAKE_INTERVAL, self.heard_out()).await.is_ok() {
                return;
            }
        }
    }

    /// Returns when the supervisor has ended.
    async fn heard_out(&self) {
        while self.control.receive().await.is_some() {}
    }

    /// Resumes a supervisor after a SIGSTOP, to handle requests. No effect on a running supervisor.
    fn wake(&self) {
        if let Some(process) = self.process().as_ref()
            && let Some(pid) = i32::try_from(process.id()).ok().and_then(Pid::from_raw)
        {
            // Not yet reaped, so the process id is not reused.
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }

    /// Returns whether the supervisor is alive. After the handshake only the close of the channel can be
    /// read.
    fn serves(&self) -> bool {
        self.control.try_receive().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    pub(super) async fn send_cancel(&self, reaper: &ReaperLink, grace: Duration) {
        let grace_ms = grace.as_micros().div_ceil(1000).try_into().unwrap_or(u64::MAX);
        // If the reaper is gone, the next receive reports the loss and waits for the cleanup. A living but
        // unreachable reaper is killed, because the step would continue.
        if reaper.link.send(&Order::Cancel { grace_ms }.encode(), &[]).await.is_err() {
            self.kill_reaper(reaper).await;
        }
    }

    /// Kills an unresponsive reaper, with all processes below.
    pub(super) async fn kill_reaper(&self, reaper: &ReaperLink) {
        // If the supervisor is gone, a receive from the reaper reports the loss. A living but unreachable
        // supervisor ends the run.
        if self.control.send(&Control::Kill { id: reaper.id }.encode(), &[]).await.is_err() {
            self.control.finish();
        }
        self.wake();
    }

    /// Keeps a reaper whose step has ended without background processes.
    pub(super) fn put_back(&self, reaper: ReaperLink) {
        let mut reapers = self.reapers();
        if reapers.idle.len() < IDLE_REAPERS_MAX {
            reapers.idle.push(reaper);
        }
    }

    /// Keeps a reaper with the background processes of an ended step alive.
    pub(super) fn put_aside(&self, reaper: ReaperLink) {
        self.reapers().background.push(reaper);
    }

    /// Returns whether a signal ended the supervisor process, whose end of the channel is closed.
    async fn was_killed(&self) -> bool {
        let waited_until = Instant::now() + END_MAX;
        loop {
            let status = self.process().as_mut().and_then(|process| process.try_wait().ok().flatten());
            match status {
                Some(status) => return status.signal().is_some(),
                // The descriptors close shortly before the process can be reaped.
                None if Instant::now() < waited_until => tokio::time::sleep(Duration::from_millis(1)).await,
                None => return false,
            }
        }
    }

    fn kill_process(&self) {
        if let Some(mut process) = self.process().take() {
            // The process has ended, or ends now.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<std::process::Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reapers(&self) -> MutexGuard<'_, Reapers> {
        self.reapers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(mut process) = self.process().take() else { return };
        self.control.finish();
        self.wake();
        // The supervisor ends as soon as the processes of the run are dead; a thread must then reap it.
        // Without a thread it stays a harmless zombie until this program ends.
        let _ = std::thread::Builder::new().name("waypost-reap".into()).spawn(move || process.wait());
    }
}

/// Pipes of a step's output, each with the engine's end first.
struct Pipes {
    stdout: (OwnedFd, OwnedFd),
    stderr: Option<(OwnedFd, OwnedFd)>,
}

impl Pipes {
    fn new(output: Output) -> io::Result<Self> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let stderr = match output {
            Output::Separate => Some(pipe()?),
            Output::Merged => None,
        };
        Ok(Self { stdout: pipe()?, stderr })
    }

    /// Closes the step's ends and returns readers of the engine's ends.
    fn readers(self) -> io::Result<(pipe::Receiver, Option<pipe::Receiver>)> {
        let reader = |(ours, _): (OwnedFd, OwnedFd)| pipe::Receiver::from_owned_fd(ours);
        Ok((reader(self.stdout)?, self.stderr.map(reader).transpose()?))
    }
}

fn stdin_descriptor(stdin: Stdin) -> io::Result<Option<OwnedFd>> {
    match stdin {
        Stdin::Empty => Ok(None),
        Stdin::Bytes(bytes) => memory_file(&bytes).map(Some),
        Stdin::File(file) => Ok(Some(file)),
    }
}

/// Writes bytes to an anonymous memory file, positioned at its start.
fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("waypost", MemfdFlags::CLOEXEC)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    Ok(file)
}

fn up_to_zero(string: &OsStr) -> &OsStr {
    OsStr::from_bytes(string.as_bytes().split(|byte| *byte == 0).next().unwrap_or_default())
}

/// Maps a failed start to an error. `dir` is the folder as given, `absolute` as tried.
fn refusal(
    stage: Stage,
    errno: i32,
    command: &OsStr,
    dir: &Path,
    absolute: &Path,
    bytes: usize,
) -> SpawnError {
    let source = io::Error::from_raw_os_error(errno);
    let command = command.to_owned();
    match (stage, errno) {
        (Stage::Folder, libc::ENOENT) => SpawnError::DirNotFound { dir: dir.to_owned() },
        (Stage::Folder, _) => SpawnError::DirNotUsable { dir: dir.to_owned(), source },
        (Stage::Program, libc::ENOENT) if is_file(&command, absolute) => {
            SpawnError::InterpreterNotFound { command }
        }
        (Stage::Program, libc::ENOENT) => SpawnError::CommandNotFound { command },
        (Stage::Program, libc::E2BIG) => SpawnError::TooLong { command, bytes },
        (Stage::Program, libc::EACCES | libc::EPERM | libc::ENOEXEC | libc::ELIBBAD) => {
            SpawnError::CommandNotExecutable { command, source }
        }
        _ => SpawnError::System { command, source },
    }
}

/// Returns whether a command with a slash exists, relative to `dir`.
fn is_file(command: &OsStr, dir: &Path) -> bool {
    command.as_bytes().contains(&b'/') && dir.join(PathBuf::from(command)).exists()
}
