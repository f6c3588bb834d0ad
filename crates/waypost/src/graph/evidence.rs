//! Evidence of a step of a graph: made from the state that it gives, and checked before the step counts as done.

use std::time::Duration;

use crate::engine::Attempt;
use crate::evidence::InvalidPack;
use crate::record::{Failure, FailureKind, Occasion, Pack, Verdict};

use super::STOP_GRACE;
use super::level::Held;
use super::perform::{Work, evidence_of, unpanicked};

/// The verdict on a step that returned.
pub(super) enum Evidence {
    /// All of it holds; none where the step has no evidence.
    Holds(Option<Pack>),
    /// Some of it does not hold, or could not be checked.
    Fails(Failure, Option<Pack>),
    /// The function that names the claims panicked.
    Broken(Failure),
    /// A stop came before the verdict.
    Stopped,
}

/// Checks the evidence of a step that returned `state`.
///
/// The time that this takes is bounded by the verifier, and is not that of the step. A stop leaves it as long as a step
/// that heeds it; what was not checked by then counts as cut.
pub(super) async fn check(work: &Work<'_>, state: &Held, exit_code: Option<i32>) -> Evidence {
    let attempt = work.attempt;
    let named = unpanicked(evidence_of(&attempt.step), || Ok(work.level.evidence(work.place, state)));
    let pack = match named {
        Ok(None) => return Evidence::Holds(None),
        Ok(Some(pack)) => pack,
        Err(failure) => return Evidence::Broken(failure),
    };
    if let Err(why) = sensible(&pack) {
        return Evidence::Fails(Failure::new(FailureKind::Evidence, vec![no_evidence(attempt), why]), None);
    }
    let checked = tokio::select! {
        biased;
        checked = attempt.check_evidence(&pack, exit_code) => checked,
        () = attempt.killed() => return Evidence::Stopped,
        () = stopped_for(attempt, STOP_GRACE) => return Evidence::Stopped,
    };
    if matches!(checked.verdict_at(Occasion::Commit), Verdict::Ok | Verdict::Skipped) {
        return Evidence::Holds(Some(checked));
    }
    let mut failure = Failure::new(FailureKind::Evidence, vec![no_evidence(attempt)]);
    failure.error.extend(checked.unmet());
    Evidence::Fails(failure, Some(checked))
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
