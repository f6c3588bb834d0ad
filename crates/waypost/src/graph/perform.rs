//! One attempt of a step of a graph: its function, its evidence, its route.
//!
//! ```text
//!   function --> evidence --> route --> completed
//!      |            |           |
//!      +------------+-----------+--> failed; of a step that must not be repeated: cut, so in doubt
//! ```
//!
//! An error that the function returns is always a failure.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::Map;

use super::STOP_GRACE;
use super::context::Context;
use super::decode_check::Reading;
use super::error::StepError;
use super::evidence::{self, Evidence};
use super::level::{Held, Level};
use super::pending::{Turn, Turns};
use crate::engine::{Attempt, CancelCause, Follow, Joined, Performed, panic_message};
use crate::id::StepId;
use crate::record::{Ending, Failure, FailureKind};

/// The input of an attempt.
pub(crate) struct GraphJob {
    pub(super) level: usize,
    pub(super) place: usize,
    pub(super) state: Held,
    pub(super) joined: Option<Joined>,
    /// True if the step may be repeated.
    pub(super) idempotent: bool,
}

/// The output of an attempt.
pub(crate) struct AttemptOutput {
    pub(super) state: Held,
    pub(super) follow: Follow,
}

/// The end of the function of a step.
enum FunctionEnd {
    Returned(Result<Held, StepError>),
    Panicked(String),
    TimedOut(Duration),
    Stopped,
    /// The function waits under this key, and the step is not idempotent.
    Waits(String),
}

/// An attempt under way.
pub(super) struct Work<'a> {
    pub(super) level: &'a dyn Level,
    pub(super) attempt: &'a Attempt,
    pub(super) context: Context,
    pub(super) place: usize,
    pub(super) idempotent: bool,
    pub(super) reading: Reading,
}

impl Work<'_> {
    /// Performs the step on `state`.
    pub(super) async fn perform(&self, state: Held, joined: Option<Joined>) -> Performed<AttemptOutput> {
        let step = &self.attempt.step;
        let state = match self.call(state, joined).await {
            FunctionEnd::Returned(Ok(state)) => self.reading.back(self.level, state),
            FunctionEnd::Returned(Err(error)) => return self.failed(self.failure_of(&error)),
            FunctionEnd::Panicked(panic) => {
                let error = StepError::retryable(format!("step `{step}` panicked: {panic}"));
                return self.broken(self.failure_of(&error));
            }
            FunctionEnd::TimedOut(limit) => {
                let text = format!("timed out after {limit:?}");
                let failure = Failure::new(FailureKind::Timeout, vec![text]);
                return self.unsettled(failure, || format!("the timeout of step {step}"));
            }
            FunctionEnd::Waits(key) => {
                return self.cut(format!("the wait `{key}` of step {step}, which is not idempotent"));
            }
            FunctionEnd::Stopped => return Performed::Stopped { in_progress: true },
        };
        if let Some(why) = self.context.refused() {
            return self.broken(Failure::new(FailureKind::Fatal, vec![why]));
        }
        let ending = Ending { exit_code: self.context.exit_code(), ..Ending::default() };
        let checked = match evidence::check(self, &state, ending.exit_code).await {
            Evidence::Holds(checked) => checked,
            Evidence::Fails(failure, checked) => {
                let mut report = self.context.take_report();
                report.evidence = checked;
                return Performed::Failed { failure: Failure { ending, ..failure }, report };
            }
            Evidence::Broken(failure) => return self.broken(Failure { ending, ..failure }),
            Evidence::Stopped => return Performed::Stopped { in_progress: true },
        };
        let follow = match route(self.level, self.place, step, &state) {
            Ok(follow) => follow,
            Err(failure) => return self.broken(Failure { ending, ..failure }),
        };
        let mut report = self.context.take_report();
        report.evidence = checked;
        Performed::Completed { output: AttemptOutput { state, follow }, ending, report }
    }

    /// Calls the function of the step, within its timeout and until a stop.
    async fn call(&self, state: Held, joined: Option<Joined>) -> FunctionEnd {
        let (attempt, context) = (self.attempt, &self.context);
        // The function may panic before it returns a future.
        let work = async { self.level.perform(self.place, state, joined, context.clone()).await };
        let work = async {
            match AssertUnwindSafe(work).catch_unwind().await {
                Ok(end) => FunctionEnd::Returned(end),
                Err(panic) => FunctionEnd::Panicked(panic_message(panic.as_ref())),
            }
        };
        let work = self.drive(work);
        tokio::pin!(work);
        let ended = tokio::select! {
            biased;
            end = &mut work => return end,
            ended = attempt.stopped() => ended,
            () = attempt.lease.over() => return FunctionEnd::Stopped,
            never = attempt.report_progress(|| (Map::new(), context.take_report_now())) => match never {},
        };
        match ended {
            CancelCause::Timeout(limit) => FunctionEnd::TimedOut(limit),
            CancelCause::Stop(_) if context.handles_stop() => {
                context.waits().stop();
                tokio::select! {
                    biased;
                    end = &mut work => end,
                    () = attempt.killed() => FunctionEnd::Stopped,
                    () = tokio::time::sleep(STOP_GRACE) => FunctionEnd::Stopped,
                }
            }
            CancelCause::Stop(_) => FunctionEnd::Stopped,
        }
    }

    /// Polls the function of the step, and suspends the step when only waits are open.
    async fn drive(&self, work: impl Future<Output = FunctionEnd>) -> FunctionEnd {
        let waits = self.context.waits();
        let work = std::pin::pin!(work);
        let mut turns = Turns::new(work, waits);
        loop {
            let turn = tokio::select! {
                biased;
                turn = turns.next() => turn,
                () = waits.opened() => continue,
                () = waits.ends_due() => continue,
            };
            match turn {
                Turn::Ended(end) => return end,
                Turn::Opened(opened) => {
                    for wait in opened {
                        self.attempt.listen(wait).await;
                    }
                }
                Turn::Waits(waits) if self.idempotent => match self.attempt.suspend(waits).await {},
                // A restart from the top would repeat a step that is not idempotent.
                Turn::Waits(mut waits) => return FunctionEnd::Waits(waits.swap_remove(0).key),
            }
        }
    }

    /// Returns the failure for an error of the function: fatal unless `retry_when` wants a retry.
    fn failure_of(&self, error: &StepError) -> Failure {
        let mut chain = error.chain();
        let asked = format_args!("the `retry_when` of step `{}`", self.attempt.step);
        let kind = match unpanicked(asked, || Ok(self.level.is_retryable(self.place, error))) {
            Ok(true) => FailureKind::Error,
            Ok(false) => FailureKind::Fatal,
            Err(panic) => {
                chain.extend(panic.error);
                FailureKind::Fatal
            }
        };
        Failure::new(kind, chain)
    }

    fn failed(&self, failure: Failure) -> Performed<AttemptOutput> {
        Performed::Failed { failure, report: self.context.take_report() }
    }

    /// Ends an attempt with a failure that the function did not return: interrupted if the step is not
    /// idempotent.
    fn broken(&self, failure: Failure) -> Performed<AttemptOutput> {
        let text = failure.error.join(": ");
        self.unsettled(failure, || format!("the failure of step {}: {text}", self.attempt.step))
    }

    fn unsettled(&self, failure: Failure, why: impl FnOnce() -> String) -> Performed<AttemptOutput> {
        if self.idempotent { self.failed(failure) } else { self.cut(why()) }
    }

    fn cut(&self, why: String) -> Performed<AttemptOutput> {
        Performed::Cut { why, was_killed: false, report: self.context.take_report() }
    }
}

/// Calls a function of the user, and returns a panic as a failure of the step. `called` names the function for
/// the message.
pub(super) fn unpanicked<T>(
    called: impl Display,
    ask: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let failure = |panic| Failure::new(FailureKind::Error, vec![format!("{called} panicked: {panic}")]);
    crate::engine::unpanicked(ask).unwrap_or_else(|panic| Err(failure(panic)))
}

/// Returns the next step, chosen from the state after the step.
pub(super) fn route(level: &dyn Level, place: usize, step: &StepId, state: &Held) -> Result<Follow, Failure> {
    unpanicked(format_args!("the route after step `{step}`"), || level.follow(place, state))
}

/// Returns the name of the evidence function, for messages.
pub(super) fn evidence_of(step: &StepId) -> String {
    format!("the evidence of step `{step}`")
}
