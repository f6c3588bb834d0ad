//! Verified checkpoints: checks evidence again, finds the last checkpoint with valid evidence, rolls back to
//! it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use crate::engine::StepReport;
use crate::engine::chain::Draft;
use crate::evidence::{COMMAND_EXIT, VerdictSummary, other_names};
use crate::id::CheckpointRef;
use crate::plan::ClaimKey;
use crate::record::{
    Claim, Header, Note, Occasion, Pack, Phase, Reason, Record, Settled, Status, Try, Verdict,
};
use crate::schema::decode;
use crate::store::StoreError;

use super::checkpoint::{Checkpoint, ending_of, is_judged_commit, state_of, verified_phase};
use super::label::Label;
use super::step::EncodedState;
use super::write::Tip;
use super::{Error, Recorder};

/// Most checkpoints checked in a search for the last verified one. If more are broken, a person must decide.
pub const SEARCH_TRIES_MAX: usize = 32;
/// Time after which a search starts no further checks.
pub const SEARCH_TIME_MAX: Duration = Duration::from_secs(120);

/// The result of a search for the last verified checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct LastVerified {
    /// The newest checkpoint whose evidence holds now, with its state and the result of the check.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints with failed or unknown evidence, newest first.
    pub passed_over: Vec<(CheckpointRef, VerdictSummary)>,
    /// The search reached its limit: older checkpoints were not checked.
    pub given_up: bool,
}

impl Recorder {
    /// Checks the evidence of a checkpoint now, and appends the verdicts. The checkpoint itself does not
    /// change.
    ///
    /// A claim that held at the commit and is superseded by a newer step is checked as the newer step makes
    /// it. A legitimate rewrite of a file therefore does not fail the older checkpoint. A recorded exit code
    /// is always checked against its own step. A link counts as its old target only while it still leads
    /// there. Claims about subjects that a begun and not completed step may rewrite are `skipped`.
    ///
    /// Claims not due on [`Verify`](Occasion::Verify), such as sensitive claims, stay `skipped` and do not
    /// count. If no claim is due, the verdict is `skipped`.
    ///
    /// # Errors
    /// - [`Error::Store`]: the checkpoint does not exist or is damaged, or the verdicts could not be written.
    /// - [`Error::NoEvidence`]: the checkpoint has no evidence. Nothing was written.
    pub async fn verify_checkpoint(&self, at: &CheckpointRef) -> Result<Checkpoint, Error> {
        let record = self.checkpoints.load(at).await?;
        let tip = self.writing().await?.tip.clone();
        let pack = record.header().evidence.clone().ok_or_else(|| Error::NoEvidence(at.clone()))?;
        if record.header().phase == Phase::Started {
            // The claims of a start name files to be written; they claim nothing yet.
            return Err(Error::NoEvidence(at.clone()));
        }
        let bound = self.bind(&tip, at.seq, pack).await?;
        let site = self.site_of(record.header());
        let mut checked = self.options.verifier.verify_on(&bound.judged(), &site, Occasion::Verify).await;
        bound.finish(&mut checked);
        let mut writing = self.writing().await?;
        let next = writing.tip.clone();
        let now_at = Try { epoch: next.epoch, ..Try::default() };
        let mut draft = Draft::new(verified_phase(&checked), Reason::Manual, None, now_at);
        draft.report = StepReport { evidence: Some(checked), notes: bound.notes(), usage: None };
        draft.about = Some(at.seq);
        let state = next.state.clone();
        let verdicts = writing.append(self.store(), draft, next, &state, self.options.clock.now()).await?;
        writing.trim(self.store(), self.retention).await;
        Ok(Checkpoint::of(record, Some(verdicts)))
    }

    /// Finds the newest checkpoint, with a given label or any, whose own evidence holds now.
    ///
    /// Each candidate is checked by its own claims, as for a rollback
    /// ([`rollback_to_checkpoint`](Self::rollback_to_checkpoint)). The search caches and writes nothing.
    /// Checkpoints undone by a rollback, and checkpoints whose state retention dropped, are not candidates.
    /// Retention always keeps the state of the newest checkpoint whose last check held. The search checks at
    /// most [`SEARCH_TRIES_MAX`] candidates, in about [`SEARCH_TIME_MAX`].
    ///
    /// # Errors
    /// [`Error::Store`]: reading failed. A damaged checkpoint is skipped.
    pub async fn last_verified_checkpoint(&self, label: Option<Label>) -> Result<LastVerified, Error> {
        let newest = self.newest().await?;
        let mut walk = self.checkpoints.walk(newest.seq);
        let begun = Instant::now();
        let mut search = LastVerified { checkpoint: None, passed_over: Vec::new(), given_up: false };
        while let Some(candidate) = walk.next().await? {
            let header = candidate.header();
            let wanted = label.is_none_or(|label| Label::among(&header.labels) == Some(label));
            if !wanted || !is_judged_commit(header) {
                continue;
            }
            if search.passed_over.len() == SEARCH_TRIES_MAX || begun.elapsed() > SEARCH_TIME_MAX {
                search.given_up = true;
                break;
            }
            let checked = self.check_now(header).await;
            if checked.verdict_at(Occasion::Resume) == Verdict::Ok
                && let Some(checkpoint) = self.whole(&candidate, &checked).await?
            {
                search.checkpoint = Some(checkpoint);
                break;
            }
            search.passed_over.push((header.reference(), checked.summary_at(Occasion::Resume)));
        }
        Ok(search)
    }

    /// Rolls back to a checkpoint whose evidence holds now, and returns its state.
    ///
    /// Checks the checkpoint's own claims due on [`Resume`](Occasion::Resume); only `ok` counts. Claims not
    /// due then, such as sensitive claims, do not count against the checkpoint. A checkpoint without any due
    /// claim is refused, as nothing proves its validity. The rollback appends a record and removes nothing.
    /// Running steps are undone with all later steps: their ends are refused from now on. Later visits have
    /// new keys ([`Begun::idempotency_key`](super::Begun::idempotency_key)), as their repetition is intended.
    ///
    /// # Errors
    /// - [`Error::NotVerified`]: the evidence is not `ok` now; the pack has the verdicts. Nothing changed.
    /// - [`Error::NoEvidence`], [`Error::NoState`], [`Error::Read`]: the checkpoint cannot be restored.
    ///   Nothing changed.
    /// - [`Error::Store`]: the checkpoint does not exist or is damaged, or the rollback could not be written.
    pub async fn rollback_to_checkpoint<S: DeserializeOwned>(&self, at: &CheckpointRef) -> Result<S, Error> {
        let record = self.checkpoints.load(at).await?;
        if !is_judged_commit(record.header()) {
            return Err(Error::NoEvidence(at.clone()));
        }
        let checked = self.check_now(record.header()).await;
        let verdict = checked.verdict_at(Occasion::Resume);
        if verdict != Verdict::Ok {
            return Err(Error::NotVerified { at: at.clone(), verdict, pack: Box::new(checked) });
        }
        // Decode before any write: a state that this program cannot read must not be restored.
        self.known_schema(&record)?;
        let state = state_of(&record)?;
        let read = self.decoded(at, &state)?;
        let mut writing = self.writing().await?;
        let mut next = writing.tip.clone();
        restore(&mut next, &record)?;
        let mut draft =
            Draft::new(Phase::Restored, Reason::Rollback, None, Try { epoch: next.epoch, ..Try::default() });
        draft.report = StepReport { evidence: Some(checked), ..StepReport::default() };
        draft.about = Some(at.seq);
        next.state = state.clone();
        writing.append(self.store(), draft, next, &state, self.options.clock.now()).await?;
        writing.trim(self.store(), self.retention).await;
        Ok(read)
    }

    /// Decodes a state, migrated to the program's schema.
    fn decoded<S: DeserializeOwned>(&self, at: &CheckpointRef, state: &EncodedState) -> Result<S, Error> {
        let bytes = state.json.get().as_bytes();
        let unreadable = |why: String| Error::Read { at: at.clone(), why };
        match &self.options.migrations {
            Some(migrations) => {
                migrations.read(state.schema, bytes).map_err(|error| unreadable(chain_text(&error)))
            }
            None => decode(bytes).map_err(|error| unreadable(error.to_string())),
        }
    }

    /// Checks the recorded claims of a record, before a rollback trusts them.
    async fn check_now(&self, header: &Header) -> Pack {
        let pack = header.evidence.clone().unwrap_or_else(|| Pack::all([]));
        self.options.verifier.verify_on(&pack, &self.site_of(header), Occasion::Resume).await
    }

    /// Loads a complete checkpoint; `None` for a damaged checkpoint or a dropped state: a rollback is not
    /// possible.
    async fn whole(&self, candidate: &Record, checked: &Pack) -> Result<Option<Checkpoint>, Error> {
        match self.checkpoints.load(&candidate.header().reference()).await {
            Ok(record) if record.state_bytes().is_some() => {
                Ok(Some(Checkpoint::found(record, checked.clone())))
            }
            Ok(_) | Err(Error::Store(StoreError::Damaged { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Resolves for each claim of a checkpoint whether it is checked as is, as a newer claim, or not at all.
    async fn bind(&self, tip: &Tip, seq: u64, pack: Pack) -> Result<SourcedClaims, Error> {
        let mut in_flux: Vec<Claim> = Vec::new();
        for entry in &tip.position.frontier {
            if matches!(entry.status, Status::Started | Status::Failed) && entry.since != seq {
                let since = self.checkpoints.load(&tip.reference(entry.since)).await;
                let pack = since.ok().and_then(|record| record.header().evidence.clone());
                in_flux.extend(pack.into_iter().flat_map(|pack| pack.claims));
            }
        }
        let mut newer: Vec<(u64, Claim)> = Vec::new();
        let mut walk = self.checkpoints.walk(tip.chain.next - 1);
        let mut effective = false;
        while let Some(record) = walk.next().await? {
            let header = record.header();
            if header.seq <= seq {
                effective = header.seq == seq;
                break;
            }
            let pack = header.evidence.as_ref().filter(|_| matches!(header.phase, Phase::Completed(_)));
            newer.extend(
                pack.into_iter().flat_map(|pack| &pack.claims).map(|claim| (header.seq, claim.clone())),
            );
        }
        if !effective {
            // A rollback undid the checkpoint: later steps say nothing about it.
            (newer, in_flux) = (Vec::new(), Vec::new());
        }
        let all = pack.claims.iter().chain(newer.iter().map(|(_, claim)| claim)).chain(&in_flux);
        let mut bounds = self.bounds_now(all.collect()).await.into_iter();
        let own: Vec<ClaimKey> = bounds.by_ref().take(pack.claims.len()).collect();
        let newer: Vec<(ClaimKey, (u64, Claim))> = bounds.by_ref().take(newer.len()).zip(newer).collect();
        let in_flux: BTreeSet<String> = bounds.map(|bound| bound.name().to_owned()).collect();
        let claims = pack.claims.into_iter().zip(own).map(|(claim, bound)| {
            // A later step cannot change the exit code of an earlier step.
            let is_shared = claim.kind != COMMAND_EXIT;
            let by = newer.iter().find(|(newer, _)| is_shared && bound.gives_way_to(newer));
            if in_flux.iter().any(|name| bound.is_touched_by(name)) {
                (claim, ClaimSource::Nobody)
            } else if let (Some((_, (seq, newest))), Verdict::Ok) = (by, claim.verdict) {
                (newest.clone(), ClaimSource::Newer(*seq))
            } else {
                (claim, ClaimSource::Itself)
            }
        });
        Ok(SourcedClaims { at_least: pack.at_least, claims: claims.collect() })
    }

    /// Returns the current bounds of claims, in order. A subject with another file than at the commit is
    /// bound by its own name.
    async fn bounds_now(&self, claims: Vec<&Claim>) -> Vec<ClaimKey> {
        let mut claims: Vec<Claim> = claims.into_iter().cloned().collect();
        let named: Vec<&mut Claim> = claims.iter_mut().filter(|claim| claim.file.is_some()).collect();
        if !named.is_empty() {
            let subjects = named.iter().map(|claim| claim.subject.clone()).collect();
            let names = other_names(subjects, &self.site, self.options.verifier.deadline()).await;
            for (claim, _) in named.into_iter().zip(names).filter(|(claim, name)| claim.file != *name) {
                claim.file = None;
            }
        }
        claims.iter().map(ClaimKey::of).collect()
    }
}

/// The source of the claim that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimSource {
    /// The checkpoint's own claim.
    Itself,
    /// The claim of a newer checkpoint.
    Newer(u64),
    /// Not checked: a step may rewrite the subject.
    Nobody,
}

/// The claims of a checkpoint, with their sources.
struct SourcedClaims {
    at_least: Option<u32>,
    claims: Vec<(Claim, ClaimSource)>,
}

impl SourcedClaims {
    /// Returns the claims to check now.
    fn judged(&self) -> Pack {
        let judged = self.claims.iter().filter(|(_, by)| *by != ClaimSource::Nobody);
        Pack { at_least: None, claims: judged.map(|(claim, _)| claim.clone()).collect() }
    }

    /// Merges the unchecked claims back into the checked pack, in order.
    fn finish(&self, checked: &mut Pack) {
        let mut judged = std::mem::take(&mut checked.claims).into_iter();
        for (claim, by) in &self.claims {
            let claim = match by {
                ClaimSource::Nobody => {
                    let mut claim = claim.clone();
                    claim.verdict = Verdict::Skipped;
                    claim.error = Some("an unfinished step is going to rewrite the file".to_owned());
                    Some(claim)
                }
                ClaimSource::Itself | ClaimSource::Newer(_) => judged.next(),
            };
            checked.claims.extend(claim);
        }
        checked.at_least = self.at_least;
    }

    /// Returns notes about claims checked as a newer checkpoint makes them.
    fn notes(&self) -> Vec<Note> {
        let newer = self.claims.iter().filter_map(|(claim, by)| match by {
            ClaimSource::Newer(seq) => {
                Some(json!({ "kind": claim.kind, "subject": claim.subject, "as_claimed_at": seq }))
            }
            ClaimSource::Itself | ClaimSource::Nobody => None,
        });
        newer.map(|data| Note::Event { name: "evidence_bound".to_owned(), data }).collect()
    }
}

/// Returns an error with its causes, on one line.
fn chain_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Sets `tip` to the position of `target`, in a new epoch.
fn restore(tip: &mut Tip, target: &Record) -> Result<(), Error> {
    let header = target.header();
    let mut position =
        target.position().map_err(|flaw| Error::Read { at: header.reference(), why: flaw.to_string() })?;
    let seq = tip.chain.next;
    for entry in &mut position.frontier {
        if entry.status == Status::Started {
            (entry.status, entry.since) = (Status::Ready, seq);
        }
    }
    // The step count limits the whole run: a rollback does not reset it.
    position.steps_started = tip.position.steps_started;
    tip.position = position;
    tip.epoch += 1;
    tip.open.clear();
    tip.visits.clear();
    tip.chain.basis = Some(header.seq);
    if let (Phase::Failed(_), Some(step)) = (&header.phase, &header.step) {
        // Its evidence failed then and holds now, so the step counts as finished.
        debug_assert!(ending_of(header).is_some(), "a failed step has an ending");
        tip.position.frontier.retain(|entry| entry.step != *step);
        tip.settle(step, Settled::completed(seq));
    }
    Ok(())
}
