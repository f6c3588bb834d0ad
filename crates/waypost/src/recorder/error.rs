//! Errors of a recorder, by the next action of its program.

use crate::evidence::InvalidPack;
use crate::id::{CheckpointRef, RunId, StepId};
use crate::record::{Flaw, Pack, Verdict};
use crate::store::StoreError;

/// Why a call of a recorder failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed. Records acknowledged before stay valid.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A state or a record cannot be encoded. Nothing was written.
    #[error("cannot write a checkpoint of run {run}")]
    Write {
        /// The run.
        run: RunId,
        /// The flaw.
        source: Flaw,
    },
    /// This program cannot read a state. Nothing changed.
    #[error("cannot read the state of {at}: {why}")]
    Read {
        /// The checkpoint.
        at: CheckpointRef,
        /// The reason.
        why: String,
    },
    /// The pack is refused. Nothing was checked or written; the step is still running.
    #[error(transparent)]
    Pack(#[from] InvalidPack),
    /// The call is invalid: a bug of the caller. Nothing changed.
    #[error("{0}")]
    Invalid(String),
    /// The run has ended and takes no more steps. Nothing changed; read the run, or create another one.
    #[error("run {0} has ended")]
    Ended(RunId),
    /// The run belongs to a workflow or graph, whose steps only the engine records. Nothing changed; resume
    /// the run.
    #[error("run {0} is driven by its graph, not by a recorder")]
    Driven(RunId),
    /// The step is already running. Nothing changed; end this attempt first.
    #[error("step `{step}` is already running since {since}")]
    UnderWay {
        /// The step.
        step: StepId,
        /// The record of the start.
        since: CheckpointRef,
    },
    /// The step was never begun here, has ended, or a rollback undid its start. Nothing was written.
    #[error("step `{step}` is not running: the attempt of {since} has ended or was undone")]
    NotUnderWay {
        /// The step.
        step: StepId,
        /// The record of the start.
        since: CheckpointRef,
    },
    /// Another commit has this id. Nothing was written; an id identifies a single content.
    #[error("id `{external}` was already committed with other content, at {at}")]
    OtherContent {
        /// The external id given by the caller.
        external: String,
        /// The checkpoint with this id.
        at: CheckpointRef,
    },
    /// The step was interrupted, and its evidence does not prove completion. Nothing was written; begin the
    /// step again.
    #[error("step `{step}` was cut and is not settled: {why}")]
    Unsettled {
        /// The step.
        step: StepId,
        /// The missing proof.
        why: String,
    },
    /// The evidence of a checkpoint does not hold now. Nothing changed; choose another checkpoint.
    #[error("the evidence of {at} is {}: {}", verdict.name(), unmet(.pack))]
    NotVerified {
        /// The checkpoint.
        at: CheckpointRef,
        /// `failed`, `unknown` or `skipped`.
        verdict: Verdict,
        /// The result of the check.
        pack: Box<Pack>,
    },
    /// The checkpoint was written without evidence and cannot be verified. Nothing changed.
    #[error("checkpoint {0} has no evidence")]
    NoEvidence(CheckpointRef),
    /// Retention dropped the state of the checkpoint. Nothing changed; choose a newer one.
    #[error("retention dropped the state of checkpoint {0}")]
    NoState(CheckpointRef),
    /// The run has unfinished steps. Nothing changed; end the steps first.
    #[error("run {run} has unfinished steps: {}", .steps.iter().map(|step| format!("`{step}`")).collect::<Vec<_>>().join(", "))]
    Unfinished {
        /// The run.
        run: RunId,
        /// The steps.
        steps: Vec<StepId>,
    },
}

/// Returns the names of a pack's claims that are not `ok`, with the known reasons.
pub(super) fn unmet(pack: &Pack) -> String {
    /// Most claims in a message; the pack has the rest.
    const NAMED_MAX: usize = 5;
    if pack.claims.is_empty() {
        return "the evidence has no claims".to_owned();
    }
    let mut unmet: Vec<_> =
        pack.claims.iter().filter(|claim| claim.counts() && claim.verdict != Verdict::Ok).collect();
    if unmet.iter().any(|claim| claim.verdict != Verdict::Skipped) {
        // Claims that were not due are not the cause.
        unmet.retain(|claim| claim.verdict != Verdict::Skipped);
    }
    let described = |claim: &&crate::record::Claim| {
        let skipped = (claim.verdict == Verdict::Skipped).then_some("the claim is not checked at this point");
        let why = claim.error.as_deref().or(skipped).map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{}{why}", claim.title())
    };
    let mut text = unmet.iter().take(NAMED_MAX).map(described).collect::<Vec<_>>().join(", ");
    if unmet.len() > NAMED_MAX {
        text += &format!(" and {} more", unmet.len() - NAMED_MAX);
    }
    text
}
