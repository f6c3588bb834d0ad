//! Steps as process groups, for systems without a child sub-reaper.
//!
//! There is no supervisor process: the engine starts the steps, and ends a step with a signal to its group.
//! Processes outside the group are not found, and survive a `kill -9` of the engine; see the parent module
//! for the guarantees. The run's lock is kept as long as the engine's `Supervisor`.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::{
    Exit, LeftoversError, Output, SpawnError, Stdin, StepProcess, SupervisorError, SupervisorProgram,
};

/// Serves as the supervisor of one run: does nothing here.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}

/// Owner of the steps of one run. Dropping it kills all groups.
#[derive(Debug)]
pub struct GroupSupervisor {
    groups: Arc<Groups>,
}

/// Groups of the steps not yet seen dead.
#[derive(Debug)]
struct Groups {
    alive: Mutex<HashSet<Pid>>,
    /// Closed with the last of the steps.
    _lock: Option<OwnedFd>,
}

impl GroupSupervisor {
    /// Keeps `lock` and returns; the program is not run.
    ///
    /// # Errors
    /// None here.
    pub async fn start(_program: SupervisorProgram, lock: Option<OwnedFd>) -> Result<Self, SupervisorError> {
        Ok(Self { groups: Arc::new(Groups { alive: Mutex::default(), _lock: lock }) })
    }

    /// As [`start`](Self::start): without a separate supervisor, no process ends the steps at the deadline.
    ///
    /// # Errors
    /// None.
    pub async fn start_until(
        program: SupervisorProgram,
        lock: Option<OwnedFd>,
        _deadline: Option<OwnedFd>,
    ) -> Result<Self, SupervisorError> {
        Self::start(program, lock).await
    }

    /// Starts a step's process in a new process group.
    ///
    /// # Errors
    /// See [`SpawnError`]; no process of the step is left.
    pub async fn spawn(&self, process: StepProcess) -> Result<GroupChild, SpawnError> {
        let StepProcess { argv, env, dir, stdin, output } = process;
        let [name, args @ ..] = argv.as_slice() else { return Err(SpawnError::NoCommand) };
        if !dir.is_dir() {
            return Err(SpawnError::DirNotFound { dir });
        }
        let system = |source| SpawnError::System { command: name.clone(), source };
        let mut command = Command::new(name);
        command.args(args).env_clear().envs(env).current_dir(&dir).process_group(0);
        let (stdout, theirs) = io::pipe().map_err(system)?;
        let stderr = match output {
            Output::Separate => {
                let (stderr, theirs) = io::pipe().map_err(system)?;
                command.stderr(theirs);
                Some(stderr)
            }
            Output::Merged => {
                command.stderr(theirs.try_clone().map_err(system)?);
                None
            }
        };
        command.stdout(theirs).stdin(stdin_of(stdin).map_err(system)?);
        let spawned = command.spawn();
        // The command holds the step's ends of the pipes.
        drop(command);
        let mut process = spawned.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => SpawnError::CommandNotFound { command: name.clone() },
            io::ErrorKind::PermissionDenied => {
                SpawnError::CommandNotExecutable { command: name.clone(), source }
            }
            _ => SpawnError::System { command: name.clone(), source },
        })?;
        let pid = process.id();
        let group = Pid::from_raw(pid.cast_signed()).expect("a process has a positive number");
        self.groups.alive().insert(group);
        let (told, exit) = watch::channel(None);
        let waiter = std::thread::Builder::new().name(format!("waypost-wait-{pid}"));
        waiter.spawn(move || told.send_replace(process.wait().ok())).map_err(system)?;
        let stdout = pipe::Receiver::from_owned_fd(stdout.into()).map_err(system)?;
        let stderr =
            stderr.map(|stderr| pipe::Receiver::from_owned_fd(stderr.into())).transpose().map_err(system)?;
        Ok(GroupChild { stdout: Some(stdout), stderr, groups: Arc::clone(&self.groups), group, exit })
    }

    /// Never resolves: there is no supervisor process.
    pub async fn ended(&self) {
        std::future::pending().await
    }

    /// Returns `None`: there is no supervisor process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        None
    }

    /// Kills the groups of all steps.
    ///
    /// # Errors
    /// None here.
    pub async fn shutdown(self) -> Result<(), SupervisorError> {
        self.groups.kill_all();
        Ok(())
    }
}

impl Groups {
    fn alive(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kill_all(&self) {
        for group in self.alive().drain() {
            signal(group, Signal::KILL);
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Running step. Dropping a child before [`GroupChild::wait`] has returned kills the group.
#[derive(Debug)]
pub struct GroupChild {
    /// Standard output of the step; also standard error if merged.
    pub stdout: Option<pipe::Receiver>,
    /// Standard error, unless merged.
    pub stderr: Option<pipe::Receiver>,
    groups: Arc<Groups>,
    group: Pid,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl GroupChild {
    /// Returns the process id of the main process, also the id of the group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.group.as_raw_nonzero().get().cast_unsigned()
    }

    /// Waits until the main process ends; background processes may remain.
    ///
    /// # Errors
    /// [`SupervisorError::ReaperKilled`]: the process was reaped elsewhere, so the exit status is unknown.
    pub async fn wait(&mut self) -> Result<Exit, SupervisorError> {
        let status = self.exit.wait_for(Option::is_some).await.map_err(|_| SupervisorError::ReaperKilled)?;
        let status = status.ok_or(SupervisorError::ReaperKilled)?;
        match (status.code(), status.signal()) {
            (Some(code), _) => Ok(Exit::Code(code)),
            (None, Some(signal)) => Ok(Exit::Signal(signal)),
            (None, None) => Err(SupervisorError::ReaperKilled),
        }
    }

    /// Ends the step: TERM to its group, KILL after `grace` or once the main process has ended.
    ///
    /// # Errors
    /// As [`GroupChild::wait`].
    pub async fn cancel(&mut self, grace: Duration) -> Result<Exit, SupervisorError> {
        signal(self.group, Signal::TERM);
        signal(self.group, Signal::CONT);
        // In both cases the rest of the group is killed.
        let _ = tokio::time::timeout(grace, self.wait()).await;
        self.kill().await
    }

    /// Kills the step's group.
    ///
    /// # Errors
    /// As [`GroupChild::wait`].
    pub async fn kill(&mut self) -> Result<Exit, SupervisorError> {
        signal(self.group, Signal::KILL);
        let exit = self.wait().await;
        self.groups.alive().remove(&self.group);
        exit
    }
}

impl Drop for GroupChild {
    fn drop(&mut self) {
        if self.exit.borrow().is_none() {
            signal(self.group, Signal::KILL);
            self.groups.alive().remove(&self.group);
        }
    }
}

/// Sends a signal to a group; a group that is gone is not an error.
fn signal(group: Pid, signal: Signal) {
    let _ = rustix::process::kill_process_group(group, signal);
}

fn stdin_of(stdin: Stdin) -> io::Result<Stdio> {
    match stdin {
        Stdin::Empty => Ok(Stdio::null()),
        Stdin::File(file) => Ok(file.into()),
        Stdin::Bytes(bytes) => {
            let (theirs, mut ours) = io::pipe()?;
            // If the step does not read everything, its end stops the writer.
            std::thread::Builder::new().name("waypost-stdin".into()).spawn(move || ours.write_all(&bytes))?;
            Ok(theirs.into())
        }
    }
}

/// Returns nothing: this system does not show the environment of processes.
///
/// # Errors
/// None here.
pub fn leftovers(_markers: &[(&str, &str)]) -> io::Result<Vec<u32>> {
    Ok(Vec::new())
}

/// Kills nothing, and returns 0.
///
/// # Errors
/// None here.
pub fn kill_leftovers(_markers: &[(&str, &str)]) -> Result<usize, LeftoversError> {
    Ok(0)
}
