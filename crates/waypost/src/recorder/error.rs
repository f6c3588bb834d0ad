//! What a recorder cannot do, by what its program can do next.

use crate::evidence::InvalidPack;
use crate::id::{CheckpointRef, RunId, StepId};
use crate::record::{Flaw, Pack, Verdict};
use crate::store::StoreError;

/// Why a call of a recorder did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store. What was acknowledged before stands.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A state or a record cannot be written as it is. Nothing was written.
    #[error("cannot write a checkpoint of run {run}")]
    Write {
        /// The run.
        run: RunId,
        /// Why.
        source: Flaw,
    },
    /// A state cannot be read by this program. Nothing changed.
    #[error("cannot read the state of {at}: {why}")]
    Read {
        /// The checkpoint.
        at: CheckpointRef,
        /// Why.
        why: String,
    },
    /// The pack is refused. Nothing was checked or written; the step is under way.
    #[error(transparent)]
    Pack(#[from] InvalidPack),
    /// The call makes no sense. Nothing changed; a bug of the caller.
    #[error("{0}")]
    Invalid(String),
    /// The run has ended and takes no more steps. Nothing changed; read it, or make another run.
    #[error("run {0} has ended")]
    Ended(RunId),
    /// The run belongs to a workflow or graph, whose steps only its engine records. Nothing changed; resume it.
    #[error("run {0} is driven by its graph, not by a recorder")]
    Driven(RunId),
    /// The step was begun before and has not ended. Nothing changed; end that try first.
    #[error("step `{step}` is under way since {since}")]
    UnderWay {
        /// The step.
        step: StepId,
        /// The record of its start.
        since: CheckpointRef,
    },
    /// The step was never begun here, has ended, or a rollback undid its start. Nothing was written.
    #[error("step `{step}` is not under way: what began at {since} has ended or was undone")]
    NotUnderWay {
        /// The step.
        step: StepId,
        /// The record of its start.
        since: CheckpointRef,
    },
    /// Another commit has this id. Nothing was written; an id stands for one content.
    #[error("id `{external}` was committed before with other content, at {at}")]
    OtherContent {
        /// The id given by the caller.
        external: String,
        /// The checkpoint that has it.
        at: CheckpointRef,
    },
    /// The step was cut, and nothing shows that it is done. Nothing was written; begin it again.
    #[error("step `{step}` was cut and is not settled: {why}")]
    Unsettled {
        /// The step.
        step: StepId,
        /// What is missing.
        why: String,
    },
    /// The evidence of a checkpoint does not hold now. Nothing changed; choose another.
    #[error("the evidence of {at} is {}: {}", verdict_word(*verdict), unmet(.pack))]
    NotVerified {
        /// The checkpoint.
        at: CheckpointRef,
        /// `failed`, `unknown` or `skipped`.
        verdict: Verdict,
        /// What was found just now.
        pack: Box<Pack>,
    },
    /// The checkpoint was written without evidence: there is nothing to verify. Nothing changed.
    #[error("checkpoint {0} has no evidence")]
    NoEvidence(CheckpointRef),
    /// Retention dropped the state of the checkpoint. Nothing changed; choose a newer one.
    #[error("checkpoint {0} has no state any more")]
    NoState(CheckpointRef),
    /// Steps are unfinished, and none is passed over without a word. Nothing changed; end them first.
    #[error("run {run} has unfinished steps: {}", .steps.iter().map(|step| format!("`{step}`")).collect::<Vec<_>>().join(", "))]
    Unfinished {
        /// The run.
        run: RunId,
        /// The steps.
        steps: Vec<StepId>,
    },
}

/// Returns the word for a verdict.
pub(super) fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Failed => "failed",
        Verdict::Unknown => "unknown",
        Verdict::Skipped => "skipped",
    }
}

/// Names the claims of a pack that are not `ok`, with what is wrong as far as it was told.
pub(super) fn unmet(pack: &Pack) -> String {
    /// Claims named: a person reads these, and finds the rest in the pack.
    const NAMED_MAX: usize = 5;
    if pack.claims.is_empty() {
        return "it has no claims".to_owned();
    }
    let mut unmet: Vec<_> =
        pack.claims.iter().filter(|claim| claim.counts() && claim.verdict != Verdict::Ok).collect();
    if unmet.iter().any(|claim| claim.verdict != Verdict::Skipped) {
        // Those that were not due have nothing to do with it.
        unmet.retain(|claim| claim.verdict != Verdict::Skipped);
    }
    let told = |claim: &&crate::record::Claim| {
        let skipped = (claim.verdict == Verdict::Skipped).then_some("it is not checked on this occasion");
        let why = claim.error.as_deref().or(skipped).map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{}{why}", claim.title())
    };
    let mut text = unmet.iter().take(NAMED_MAX).map(told).collect::<Vec<_>>().join(", ");
    if unmet.len() > NAMED_MAX {
        text += &format!(" and {} more", unmet.len() - NAMED_MAX);
    }
    text
}
