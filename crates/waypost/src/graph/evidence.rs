//! Evidence of a step of a graph: made from the state that it gives, and checked before the step counts as done.

use std::time::Duration;

use crate::engine::{Attempt, Performed};
use crate::evidence::InvalidPack;
use crate::record::{Ending, Failure, FailureKind, Occasion, Pack, Verdict};

use super::context::Context;
use super::level::{Held, Level};
use super::{STOP_GRACE, unpanicked};

/// Completes a step that gave `output`, if its evidence holds.
///
/// The time that this takes is bounded by the verifier, and is not that of the step. A stop leaves it as long as a step
/// that heeds it; what was not checked by then counts as cut.
pub(super) async fn vouched(
    (level, place): (&dyn Level, usize),
    output: Held,
    attempt: &Attempt,
    context: &Context,
) -> Performed<Held> {
    let ending = Ending { exit_code: context.exit_code(), ..Ending::default() };
    let mut told = context.take_told();
    let pack = match unpanicked(|| Ok(level.evidence(place, &output))) {
        Ok(None) => return Performed::Completed { output, ending, told },
        Ok(Some(pack)) => pack,
        Err(failure) => return Performed::Failed { failure: Failure { ending, ..failure }, told },
    };
    if let Err(why) = sensible(&pack) {
        let mut failure = Failure::new(FailureKind::Evidence, vec![no_evidence(attempt), why]);
        failure.ending = ending;
        return Performed::Failed { failure, told };
    }
    let checked = tokio::select! {
        biased;
        checked = attempt.check_evidence(&pack, ending.exit_code) => checked,
        () = attempt.killed() => return Performed::Stopped { in_progress: true },
        () = stopped_for(attempt, STOP_GRACE) => return Performed::Stopped { in_progress: true },
    };
    let verdict = checked.verdict_at(Occasion::Commit);
    let unmet = checked.unmet();
    told.evidence = Some(checked);
    if matches!(verdict, Verdict::Ok | Verdict::Skipped) {
        return Performed::Completed { output, ending, told };
    }
    let mut failure = Failure::new(FailureKind::Evidence, vec![no_evidence(attempt)]);
    failure.error.extend(unmet);
    failure.ending = ending;
    Performed::Failed { failure, told }
}

fn no_evidence(attempt: &Attempt) -> String {
    format!("the evidence of step `{}` does not hold", attempt.step)
}

/// Refuses a pack that nothing can satisfy.
fn sensible(pack: &Pack) -> Result<(), String> {
    pack.check().map_err(|why: InvalidPack| why.to_string())
}

async fn stopped_for(attempt: &Attempt, grace: Duration) {
    attempt.stop_asked().await;
    tokio::time::sleep(grace).await;
}
