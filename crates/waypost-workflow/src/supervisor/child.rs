//! Process of a step, as seen by the engine.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout_at};

use super::engine::{ReaperLink, Shared};
use super::wire::Event;
use super::{Exit, SupervisorError};

/// Time after the grace period for a reaper to end its tree; then the reaper is killed and the supervisor
/// takes over.
///
/// Milliseconds are normal. Longer delays come from a very busy machine, a process stuck in the kernel, or a
/// step that stopped the reaper.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Running step. Dropping a child before [`Child::wait`] has returned kills the whole tree, without waiting.
///
/// Dropping a child later leaves background processes of the step running until the run ends.
#[derive(Debug)]
pub struct Child {
    /// Standard output of the main process and of all processes with the same pipe; also standard error if
    /// merged.
    ///
    /// Ends when the last of these processes has closed the pipe, possibly long after the main process ended.
    /// If dropped earlier, later writes fail with SIGPIPE.
    pub stdout: Option<pipe::Receiver>,
    /// Standard error, unless merged.
    pub stderr: Option<pipe::Receiver>,
    shared: Arc<Shared>,
    /// `None` once the reaper is lost or returned.
    reaper: Option<ReaperLink>,
    pid: u32,
    exit: Option<Exit>,
    /// Whether all processes of the step are dead.
    empty: bool,
}

impl Child {
    pub(super) fn new(
        shared: Arc<Shared>,
        reaper: ReaperLink,
        pid: u32,
        (stdout, stderr): (pipe::Receiver, Option<pipe::Receiver>),
    ) -> Self {
        Self { stdout: Some(stdout), stderr, shared, reaper: Some(reaper), pid, exit: None, empty: false }
    }

    /// Returns the process id of the main process, also the id of its process group.
    ///
    /// For display and for the record; the process may already be gone.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the main process ends; background processes may remain.
    ///
    /// Cancel safe. Repeated calls return the same result.
    ///
    /// # Errors
    /// - [`SupervisorError::ReaperKilled`]: the exit status is unknown; all processes of the step are dead.
    /// - [`SupervisorError::Ended`]: the same for the whole run. This step's processes are dead, unless
    ///   supervisor and reaper were killed together.
    pub async fn wait(&mut self) -> Result<Exit, SupervisorError> {
        loop {
            if let Some(exit) = self.exit {
                return Ok(exit);
            }
            self.receive().await?;
        }
    }

    /// Ends the step: TERM to every process of its tree, KILL to those alive after `grace`; returns when all
    /// are dead.
    ///
    /// Also ends background processes after the main process has ended. A second call with a shorter grace
    /// moves the KILL forward. Dropping the future does not stop the cancellation.
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
        // An overflow means no limit.
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

    /// Waits until all processes of the step are dead.
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
            // Events of a start, which was already answered.
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
            // The reaper sees the closed channel, kills the tree and ends.
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
