//! The engine's side of a supervisor: starting it, and getting steps started by it.

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

/// How long a started supervisor, and a reaper told to start a step, may take to answer. They take 2 ms and 1 ms on an
/// idle machine; this is for one that swaps, and for a step that stopped its reaper.
const START_MAX: Duration = Duration::from_secs(30);

/// How long a supervisor whose end of the channel is closed may take to end: nothing is left for it to do.
const END_MAX: Duration = Duration::from_secs(1);

/// What became of a supervisor that closed its end of the channel before it served.
const ENDED_AT_ONCE: &str = "it ended at once";

/// How often a supervisor that was told to end is woken, as somebody may stop it again: seldom enough to cost nothing.
const WAKE_INTERVAL: Duration = Duration::from_secs(1);

/// How many reapers without a step are kept for the next ones: as many as steps of one run usually are in flight.
const IDLE_REAPERS_MAX: usize = 32;

/// The supervisor of one run, as the engine has it. Dropping it ends all processes of the run, without waiting.
#[derive(Debug)]
pub struct Supervisor {
    shared: Arc<Shared>,
}

/// What the supervisor's steps share with it.
#[derive(Debug)]
pub(super) struct Shared {
    control: Link,
    process: Mutex<Option<std::process::Child>>,
    reapers: Mutex<Reapers>,
    next_id: AtomicU32,
}

/// The reapers that no `Child` has.
#[derive(Debug, Default)]
struct Reapers {
    /// Those without a step.
    idle: Vec<Reaper>,
    /// Those whose step ended but left processes in the background.
    background: Vec<Reaper>,
}

/// The engine's connection to one reaper.
#[derive(Debug)]
pub(super) struct Reaper {
    id: u32,
    link: Link,
}

impl Supervisor {
    /// Starts `program` as the supervisor of a run, and waits until it serves.
    ///
    /// `lock` is a duplicate of the run's lock: the supervisor and its reapers keep it until every process of every
    /// step is dead. Must be called within a tokio runtime with I/O and time enabled, and is bound to that.
    ///
    /// # Errors
    /// - [`SupervisorError::Start`]: the program cannot be run.
    /// - [`SupervisorError::NotServing`]: it runs, but is not a supervisor.
    /// - [`SupervisorError::Ended`]: somebody killed it before it served. Start another one.
    /// - [`SupervisorError::Channel`]: the engine has no descriptors left.
    ///
    /// After each of these no process is left, and the duplicate of the lock is closed.
    pub async fn start(program: SupervisorProgram, lock: Option<OwnedFd>) -> Result<Self, SupervisorError> {
        let (ours, theirs) = channel::pair().map_err(SupervisorError::Channel)?;
        let control = Link::new(ours).map_err(SupervisorError::Channel)?;
        let mut command = Command::new(&program.path);
        command.args(&program.args).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        command.env(STEP_DESCRIPTORS, DESCRIPTORS.load(Ordering::Relaxed).to_string());
        // Its own group: a Ctrl-C on the terminal reaches the engine alone.
        command.process_group(0);
        if let Some(arg0) = &program.arg0 {
            command.arg0(arg0);
        }
        let started = command.spawn();
        // It holds a copy of the other end of the channel.
        drop(command);
        let process =
            started.map_err(|source| SupervisorError::Start { program: program.path.clone(), source })?;
        let shared = Shared {
            control,
            process: Mutex::new(Some(process)),
            reapers: Mutex::default(),
            next_id: AtomicU32::new(1),
        };
        if let Err(reason) = shared.greet(lock).await {
            let killed = reason == ENDED_AT_ONCE && shared.was_killed().await;
            shared.kill_process();
            return Err(match killed {
                true => SupervisorError::Ended,
                false => SupervisorError::NotServing { program: program.path, reason },
            });
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Starts a step's process and returns it once its program runs.
    ///
    /// Dropping the future at any time leaves no process behind.
    ///
    /// # Errors
    /// See [`SpawnError`]. After [`SupervisorError::ReaperKilled`] and [`SupervisorError::Ended`] the program may have run
    /// for a moment; after all others it has not.
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
            // It started nothing, so it has nothing else to say.
            Event::Ended { .. } | Event::Empty | Event::Abandoned => Err(SupervisorError::Ended.into()),
        }
    }

    /// Resolves when the supervisor process is gone.
    pub async fn ended(&self) {
        self.shared.heard_out().await;
    }

    /// Returns the process number of the supervisor, or `None` after it was reaped.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.shared.process().as_ref().map(std::process::Child::id)
    }

    /// Ends every process of every step and then the supervisor itself; returns when all are dead.
    ///
    /// The supervisor's and its reapers' duplicates of the run's lock are closed then. A [`Child`] that still exists
    /// reports [`SupervisorError::Ended`].
    ///
    /// # Errors
    /// [`SupervisorError::Ended`]: the supervisor did not end by itself but was killed. Its reapers end their trees, but
    /// perhaps later than this returns.
    pub async fn shutdown(self) -> Result<(), SupervisorError> {
        *self.shared.reapers() = Reapers::default();
        self.shared.give_up().await;
        let process = self.shared.process().take();
        // The channel ended because the process did: there is next to nothing to wait for. If this program has its
        // children reaped by the kernel (SIGCHLD ignored), the status is not to be had.
        match process.map(|mut process| process.wait()) {
            Some(Ok(status)) if !status.success() => Err(SupervisorError::Ended),
            _ => Ok(()),
        }
    }
}

impl Shared {
    async fn greet(&self, lock: Option<OwnedFd>) -> Result<(), &'static str> {
        let lock: Vec<BorrowedFd<'_>> = lock.iter().map(AsFd::as_fd).collect();
        self.control.send(&Control::Hello.encode(), &lock).await.map_err(|_| ENDED_AT_ONCE)?;
        let answer = tokio::time::timeout(START_MAX, self.control.receive()).await;
        match answer.map_err(|_| "it does not answer")? {
            None => Err(ENDED_AT_ONCE),
            Some(answer) if answer.bytes() == [PROTOCOL] => Ok(()),
            Some(_) => Err("it is of another version"),
        }
    }

    /// Sends a start order to a reaper that takes it: an idle one, or a new one.
    async fn send_start(
        &self,
        order: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reaper, SupervisorError> {
        // An idle reaper that was killed does not take it. It was not started then, so another may try.
        while let Some(reaper) = self.take_idle() {
            if reaper.link.send(order, descriptors).await.is_ok() {
                return Ok(reaper);
            }
        }
        let reaper = self.new_reaper().await?;
        match reaper.link.send(order, descriptors).await {
            Ok(()) => Ok(reaper),
            Err(_) => Err(self.lost(&reaper).await),
        }
    }

    fn take_idle(&self) -> Option<Reaper> {
        let mut reapers = self.reapers();
        if let Some(reaper) = reapers.idle.pop() {
            return Some(reaper);
        }
        // A step's background may have ended meanwhile.
        let background = std::mem::take(&mut reapers.background);
        for reaper in background {
            match reaper.link.try_receive() {
                Ok(Some(message))
                    if Event::decode(message.bytes()).is_ok_and(|event| event == Event::Empty) =>
                {
                    reapers.idle.push(reaper);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => reapers.background.push(reaper),
                // Killed: the supervisor ends what it left.
                Ok(_) | Err(_) => {}
            }
        }
        reapers.idle.pop()
    }

    async fn new_reaper(&self) -> Result<Reaper, SupervisorError> {
        let (ours, theirs) = channel::pair().map_err(SupervisorError::Channel)?;
        let link = Link::new(ours).map_err(SupervisorError::Channel)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let message = Control::Reaper { id }.encode();
        self.control.send(&message, &[theirs.as_fd()]).await.map_err(|_| SupervisorError::Ended)?;
        Ok(Reaper { id, link })
    }

    /// Receives what a reaper says of its step.
    ///
    /// Returns only after everything of the step is dead if the reaper is lost. Dropping the future loses nothing.
    pub(super) async fn receive(&self, reaper: &Reaper) -> Result<Event, SupervisorError> {
        match reaper.link.receive().await.map(|message| Event::decode(message.bytes())) {
            Some(Ok(Event::Abandoned)) => Err(SupervisorError::Ended),
            Some(Ok(event)) => Ok(event),
            Some(Err(_)) | None => Err(self.lost(reaper).await),
        }
    }

    /// Receives the answer to a start order; has a reaper killed that gives none.
    async fn receive_answer(&self, reaper: &Reaper) -> Result<Event, SupervisorError> {
        if let Ok(event) = tokio::time::timeout(START_MAX, self.receive(reaper)).await {
            return event;
        }
        self.kill_reaper(reaper).await;
        self.receive(reaper).await
    }

    /// Has a reaper that cannot be talked with killed, if it lives, and waits until all that it left is dead too; says
    /// what was lost.
    async fn lost(&self, reaper: &Reaper) -> SupervisorError {
        let asked = async {
            // A channel can fail between two processes that are well; nobody would end this one then.
            self.control.send(&Control::Kill { id: reaper.id }.encode(), &[]).await?;
            let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            self.control.send(&Control::Await { id: reaper.id }.encode(), &[theirs.as_fd()]).await?;
            drop(theirs);
            self.wake();
            // The answer is the end of the pipe.
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

    /// Has a supervisor end that cannot be told anything else, with all that the run has started; returns when it has,
    /// as far as that can be heard.
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

    /// Lets a supervisor go on that somebody has stopped, by SIGSTOP, so that it does what it is asked; to any other
    /// it is nothing.
    fn wake(&self) {
        if let Some(process) = self.process().as_ref()
            && let Some(pid) = i32::try_from(process.id()).ok().and_then(Pid::from_raw)
        {
            // It was not waited for, so the number is still its own.
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }

    /// Says whether the supervisor is there: it has said all it has to say, so only its end can be read.
    fn serves(&self) -> bool {
        self.control.try_receive().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    pub(super) async fn send_cancel(&self, reaper: &Reaper, grace: Duration) {
        let grace_ms = grace.as_micros().div_ceil(1000).try_into().unwrap_or(u64::MAX);
        // If the reaper is gone, receiving from it says so, and waits for what that means. One that lives and cannot be
        // told is killed: its step would go on as if nobody wanted it to end.
        if reaper.link.send(&Order::Cancel { grace_ms }.encode(), &[]).await.is_err() {
            self.kill_reaper(reaper).await;
        }
    }

    /// Has a reaper killed that does not answer, with everything below it.
    pub(super) async fn kill_reaper(&self, reaper: &Reaper) {
        // If the supervisor is gone, receiving from the reaper says so. One that lives and cannot be told ends the run.
        if self.control.send(&Control::Kill { id: reaper.id }.encode(), &[]).await.is_err() {
            self.control.finish();
        }
        self.wake();
    }

    /// Keeps a reaper whose step has ended and left nothing.
    pub(super) fn put_back(&self, reaper: Reaper) {
        let mut reapers = self.reapers();
        if reapers.idle.len() < IDLE_REAPERS_MAX {
            reapers.idle.push(reaper);
        }
    }

    /// Keeps a reaper whose step has ended but left processes, so that those live on.
    pub(super) fn put_aside(&self, reaper: Reaper) {
        self.reapers().background.push(reaper);
    }

    /// Says whether the process, whose end of the channel is closed, was ended by a signal.
    async fn was_killed(&self) -> bool {
        let waited_until = Instant::now() + END_MAX;
        loop {
            let status = self.process().as_mut().and_then(|process| process.try_wait().ok().flatten());
            match status {
                Some(status) => return status.signal().is_some(),
                // Its descriptors are closed a moment before it can be reaped.
                None if Instant::now() < waited_until => tokio::time::sleep(Duration::from_millis(1)).await,
                None => return false,
            }
        }
    }

    fn kill_process(&self) {
        if let Some(mut process) = self.process().take() {
            // It ended already, or ends now.
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
        // It ends as soon as the processes of the run are dead; somebody must reap it then. Without a thread it stays
        // a zombie until this program ends, which harms nobody.
        let _ = std::thread::Builder::new().name("waypost-reap".into()).spawn(move || process.wait());
    }
}

/// The pipes of a step's output, the engine's end first.
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

    /// Closes the step's ends here and returns readers of the engine's.
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

/// Puts bytes into a file that has no name and lives as long as a descriptor of it, to be read from the start.
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

/// Says what a failed start means. `dir` is the folder as given, `absolute` as it was tried.
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

/// Says whether a command with a slash is there, seen from its folder.
fn is_file(command: &OsStr, dir: &Path) -> bool {
    command.as_bytes().contains(&b'/') && dir.join(PathBuf::from(command)).exists()
}
