//! Checks the evidence of a step of a graph, made from the output state, before the step completes.

use std::time::Duration;

use crate::engine::Attempt;
use crate::evidence::InvalidPack;
use crate::record::{Failure, FailureKind, Occasion, Pack, Verdict};

use super::STOP_GRACE;
use super::level::Held;
use super::perform::{Work, evidence_of, unpanicked};

/// The verdict on a step that returned.
pub(super) enum Evidence {
    /// All claims hold; `None` for a step without evidence.
    Holds(Option<Pack>),
    /// A claim does not hold, or could not be checked.
    Fails(Failure, Option<Pack>),
    /// The evidence function panicked.
    Broken(Failure),
    /// The session stopped before the verdict.
    Stopped,
}

/// Checks the evidence of a step that returned `state`.
///
/// The verifier bounds the time of the check; the timeout of the step does not include this time. After a stop
/// the check has [`STOP_GRACE`]; an unfinished check leaves the step interrupted.
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
    format!("evidence of step `{}` failed", attempt.step)
}

/// Rejects a pack that can never hold.
fn sensible(pack: &Pack) -> Result<(), String> {
    pack.check().map_err(|why: InvalidPack| why.to_string())
}

async fn stopped_for(attempt: &Attempt, grace: Duration) {
    attempt.stop_asked().await;
    tokio::time::sleep(grace).await;
}
