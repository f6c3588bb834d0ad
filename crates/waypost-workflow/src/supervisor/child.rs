//! A step's process, as the engine has it.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout_at};

use super::engine::{Reaper, Shared};
use super::wire::Event;
use super::{Exit, SupervisorError};

/// How long after the grace a reaper may take to end its tree. It takes milliseconds, unless the machine is very busy, a
/// process is stuck in the kernel or the step stopped its reaper; then that is killed, and the supervisor takes over.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A running step. Dropping it before [`Child::wait`] has told its end kills its whole tree, without waiting.
///
/// After that, dropping it leaves what the step started in the background alone: that lives until the run ends.
#[derive(Debug)]
pub struct Child {
    /// What the main process and all that inherited it write to standard output; also standard error if merged.
    ///
    /// It ends only when the last of those has closed it, which may be long after the main process's end. Who drops it
    /// before lets those that still write die of SIGPIPE.
    pub stdout: Option<pipe::Receiver>,
    /// The same for standard error, unless merged.
    pub stderr: Option<pipe::Receiver>,
    shared: Arc<Shared>,
    /// Gone once the reaper is lost, or given back.
    reaper: Option<Reaper>,
    pid: u32,
    exit: Option<Exit>,
    /// Nothing of the step is alive.
    empty: bool,
}

impl Child {
    pub(super) fn new(
        shared: Arc<Shared>,
        reaper: Reaper,
        pid: u32,
        (stdout, stderr): (pipe::Receiver, Option<pipe::Receiver>),
    ) -> Self {
        Self { stdout: Some(stdout), stderr, shared, reaper: Some(reaper), pid, exit: None, empty: false }
    }

    /// Returns the number of the main process, which is also that of its process group. For people and for the
    /// record; the process may be gone already.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the main process ends, whatever it left in the background.
    ///
    /// Dropping the future loses nothing; calling it again answers the same.
    ///
    /// # Errors
    /// - [`SupervisorError::ReaperKilled`]: how it ended is not known; all processes of the step are dead.
    /// - [`SupervisorError::Ended`]: the same for the whole run. This step's processes are dead, unless supervisor and
    ///   reaper were killed together.
    pub async fn wait(&mut self) -> Result<Exit, SupervisorError> {
        loop {
            if let Some(exit) = self.exit {
                return Ok(exit);
            }
            self.receive().await?;
        }
    }

    /// Ends the step: TERM to every process of its tree, KILL to those alive after `grace`; returns when all are dead.
    ///
    /// Works also after the main process has ended, for what that left. Calling it again while it is under way, with a
    /// shorter grace or none, brings the end nearer. Dropping the future does not stop what has begun.
    ///
    /// # Units
    /// `grace`: whole milliseconds, rounded up; zero kills at once.
    ///
    /// # Errors
    /// As [`Child::wait`].
    pub async fn cancel(&mut self, grace: Duration) -> Result<Exit, SupervisorError> {
        if let Some(reaper) = self.reaper.as_ref().filter(|_| !self.empty) {
            self.shared.send_cancel(reaper, grace).await;
        }
        // Beyond the clock's end is never.
        let given_up = Instant::now().checked_add(grace).and_then(|end| end.checked_add(ANSWER_MAX));
        if let Some(given_up) = given_up {
            if let Ok(answer) = timeout_at(given_up, self.dead()).await {
                return answer;
            }
            if let Some(reaper) = &self.reaper {
                self.shared.kill_reaper(reaper).await;
            }
        }
        self.dead().await
    }

    /// Waits until everything of the step is dead.
    async fn dead(&mut self) -> Result<Exit, SupervisorError> {
        loop {
            match self.exit {
                Some(exit) if self.empty => return Ok(exit),
                _ => self.receive().await?,
            }
        }
    }

    /// Kills every process of the step; returns when all are dead.
    ///
    /// # Errors
    /// As [`Child::wait`].
    pub async fn kill(&mut self) -> Result<Exit, SupervisorError> {
        self.cancel(Duration::ZERO).await
    }

    async fn receive(&mut self) -> Result<(), SupervisorError> {
        let Some(reaper) = &self.reaper else { return Err(SupervisorError::Ended) };
        match self.shared.receive(reaper).await {
            Ok(Event::Ended { status, empty }) => {
                self.exit = Some(exit_of(status));
                self.empty = empty;
            }
            Ok(Event::Empty) => self.empty = true,
            // A reaper says these only of a start, and that it had answered.
            Ok(Event::Started { .. } | Event::Refused { .. } | Event::Abandoned) => {}
            Err(lost) => {
                self.reaper = None;
                return Err(lost);
            }
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let Some(reaper) = self.reaper.take() else { return };
        match self.exit {
            Some(_) if self.empty => self.shared.put_back(reaper),
            Some(_) => self.shared.put_aside(reaper),
            // The reaper sees its channel closed, kills the tree and ends.
            None => drop(reaper),
        }
    }
}

fn exit_of(status: i32) -> Exit {
    let status = ExitStatus::from_raw(status);
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => unreachable!("reapers wait for ends only"),
    }
}
