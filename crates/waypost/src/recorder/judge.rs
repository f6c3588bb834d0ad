//! Verified checkpoints: checking evidence again, finding the last that holds, going back to it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use crate::engine::Told;
use crate::engine::chain::Draft;
use crate::evidence::{COMMAND_EXIT, Summary, other_names};
use crate::id::CheckpointRef;
use crate::plan::Bound as BoundBy;
use crate::record::{
    Claim, Header, Note, Occasion, Pack, Phase, Reason, Record, Settled, Status, Try, Verdict,
};
use crate::schema::decode;
use crate::store::StoreError;

use super::checkpoint::{Checkpoint, ending_of, is_judged_commit, state_of, verified_phase};
use super::label::Label;
use super::step::State;
use super::write::Tip;
use super::{Error, Recorder};

/// Most checkpoints that a search for the last verified one checks: what is broken that far back is for a person.
pub const SEARCH_TRIES_MAX: usize = 32;
/// How long such a search may begin further checks.
pub const SEARCH_TIME_MAX: Duration = Duration::from_secs(120);

/// What a search for the last verified checkpoint came to.
#[derive(Debug, Clone, PartialEq)]
pub struct LastVerified {
    /// The newest checkpoint whose evidence holds now, with its state and what was found.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones whose evidence does not hold, or could not be checked, newest first.
    pub passed_over: Vec<(CheckpointRef, Summary)>,
    /// The search was given up at its limit: older checkpoints were not looked at.
    pub given_up: bool,
}

impl Recorder {
    /// Checks the evidence of a checkpoint now, and appends the verdicts. The checkpoint itself stays as it is.
    ///
    /// A claim that held when it was committed, and that a newer step makes too, is checked as that step makes it: a
    /// file that was rightly rewritten is no fault of the checkpoint before. A recorded exit code stays that of its own
    /// step, and a link counts for the file that it led to only as long as it leads there. A claim about what a step is
    /// about to rewrite, which was begun and has not completed, is `skipped`.
    ///
    /// Claims that are not due when somebody [wants to know](Occasion::Verify), as those that are sensitive, stay `skipped`
    /// and do not count; where none is due, the verdict is `skipped`.
    ///
    /// # Errors
    /// - [`Error::Store`]: there is no such checkpoint, it is damaged, or the verdicts could not be written.
    /// - [`Error::NoEvidence`]: it has none. Nothing was written.
    pub async fn verify_checkpoint(&self, at: &CheckpointRef) -> Result<Checkpoint, Error> {
        let record = self.checkpoints.load(at).await?;
        let tip = self.writing().await?.tip.clone();
        let pack = record.header().evidence.clone().ok_or_else(|| Error::NoEvidence(at.clone()))?;
        if record.header().phase == Phase::Started {
            // What a start names is what its step is about to write: nothing was claimed yet.
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
        draft.told = Told { evidence: Some(checked), notes: bound.notes(), usage: None };
        draft.about = Some(at.seq);
        let state = next.state.clone();
        let verdicts = writing.append(self.store(), draft, next, &state, self.options.clock.now()).await?;
        writing.trim(self.store(), self.retention).await;
        Ok(Checkpoint::of(record, Some(verdicts)))
    }

    /// Finds the newest checkpoint, of one label or of all, whose own evidence holds now.
    ///
    /// Every candidate is checked by its own claims, as they must hold to go back there
    /// ([`rollback_to_checkpoint`](Self::rollback_to_checkpoint)): nothing is remembered, and nothing is written. What a rollback undid is no candidate, nor is what retention has dropped the state of; that of
    /// the newest whose evidence held when it was last looked at is always kept. At most [`SEARCH_TRIES_MAX`] are checked,
    /// in about [`SEARCH_TIME_MAX`].
    ///
    /// # Errors
    /// [`Error::Store`]: reading failed. A damaged checkpoint is passed by.
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

    /// Goes back to a checkpoint whose evidence holds now, and returns its state.
    ///
    /// Its own claims are checked, all that are due before something is [trusted](Occasion::Resume), and only `ok` counts.
    /// Those that are not due then, as those that are sensitive, do not count against it; but a checkpoint of which no claim
    /// is due is never gone back to: nothing shows that it holds. A record is appended; nothing is removed. Steps
    /// under way are undone with all else since then: their ends are refused from now on. Keys of later visits are
    /// new ([`Begun::idempotency_key`](super::Begun::idempotency_key)): doing them again is wanted.
    ///
    /// # Errors
    /// - [`Error::NotVerified`]: its evidence is not `ok` now; the pack says what was found. Nothing changed.
    /// - [`Error::NoEvidence`], [`Error::NoState`], [`Error::Read`]: it cannot be gone back to. Nothing changed.
    /// - [`Error::Store`]: there is no such checkpoint, it is damaged, or the rollback could not be written.
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
        // Read before anything is written: a state that this program cannot read is not gone back to.
        self.known_schema(&record)?;
        let state = state_of(&record)?;
        let read = self.decoded(at, &state)?;
        let mut writing = self.writing().await?;
        let mut next = writing.tip.clone();
        restore(&mut next, &record)?;
        let mut draft =
            Draft::new(Phase::Restored, Reason::Rollback, None, Try { epoch: next.epoch, ..Try::default() });
        draft.told = Told { evidence: Some(checked), ..Told::default() };
        draft.about = Some(at.seq);
        next.state = state.clone();
        writing.append(self.store(), draft, next, &state, self.options.clock.now()).await?;
        writing.trim(self.store(), self.retention).await;
        Ok(read)
    }

    /// Reads a state, migrated to what the program knows.
    fn decoded<S: DeserializeOwned>(&self, at: &CheckpointRef, state: &State) -> Result<S, Error> {
        let bytes = state.json.get().as_bytes();
        let unreadable = |why: String| Error::Read { at: at.clone(), why };
        match &self.options.migrations {
            Some(migrations) => {
                migrations.read(state.schema, bytes).map_err(|error| unreadable(chain_text(&error)))
            }
            None => decode(bytes).map_err(|error| unreadable(error.to_string())),
        }
    }

    /// Checks the claims of a record as they stand, before it is trusted.
    async fn check_now(&self, header: &Header) -> Pack {
        let pack = header.evidence.clone().unwrap_or_else(|| Pack::all([]));
        self.options.verifier.verify_on(&pack, &self.site_of(header), Occasion::Resume).await
    }

    /// Loads a checkpoint whole; none if it is damaged or its state was dropped, so that it is no place to go back to.
    async fn whole(&self, candidate: &Record, checked: &Pack) -> Result<Option<Checkpoint>, Error> {
        match self.checkpoints.load(&candidate.header().reference()).await {
            Ok(record) if record.state_bytes().is_some() => {
                Ok(Some(Checkpoint::found(record, checked.clone())))
            }
            Ok(_) | Err(Error::Store(StoreError::Damaged { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Says for each claim of a checkpoint by whose words it is to be checked.
    async fn bind(&self, tip: &Tip, seq: u64, pack: Pack) -> Result<Bound, Error> {
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
            // A rollback undid it: what was done since says nothing about it.
            (newer, in_flux) = (Vec::new(), Vec::new());
        }
        let all = pack.claims.iter().chain(newer.iter().map(|(_, claim)| claim)).chain(&in_flux);
        let mut bounds = self.bounds_now(all.collect()).await.into_iter();
        let own: Vec<BoundBy> = bounds.by_ref().take(pack.claims.len()).collect();
        let newer: Vec<(BoundBy, (u64, Claim))> = bounds.by_ref().take(newer.len()).zip(newer).collect();
        let in_flux: BTreeSet<String> = bounds.map(|bound| bound.name().to_owned()).collect();
        let claims = pack.claims.into_iter().zip(own).map(|(claim, bound)| {
            // Which code a step ended with, no later step can change.
            let is_shared = claim.kind != COMMAND_EXIT;
            let by = newer.iter().find(|(newer, _)| is_shared && bound.gives_way_to(newer));
            if in_flux.iter().any(|name| bound.is_touched_by(name)) {
                (claim, By::Nobody)
            } else if let (Some((_, (seq, newest))), Verdict::Ok) = (by, claim.verdict) {
                (newest.clone(), By::Newer(*seq))
            } else {
                (claim, By::Itself)
            }
        });
        Ok(Bound { at_least: pack.at_least, claims: claims.collect() })
    }

    /// Says by what claims are bound now, in their order: a name that does not lead to the file any more that it led to when
    /// its claim was made stands for itself.
    async fn bounds_now(&self, claims: Vec<&Claim>) -> Vec<BoundBy> {
        let mut claims: Vec<Claim> = claims.into_iter().cloned().collect();
        let named: Vec<&mut Claim> = claims.iter_mut().filter(|claim| claim.file.is_some()).collect();
        if !named.is_empty() {
            let subjects = named.iter().map(|claim| claim.subject.clone()).collect();
            let names = other_names(subjects, &self.site, self.options.verifier.deadline()).await;
            for (claim, _) in named.into_iter().zip(names).filter(|(claim, name)| claim.file != *name) {
                claim.file = None;
            }
        }
        claims.iter().map(BoundBy::of).collect()
    }
}

/// By whose words a claim is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Its own.
    Itself,
    /// Those of a newer checkpoint.
    Newer(u64),
    /// Nobody's: its subject is about to be rewritten.
    Nobody,
}

/// The claims of a checkpoint, bound.
struct Bound {
    at_least: Option<u32>,
    claims: Vec<(Claim, By)>,
}

impl Bound {
    /// Returns the claims that can be checked now.
    fn judged(&self) -> Pack {
        let judged = self.claims.iter().filter(|(_, by)| *by != By::Nobody);
        Pack { at_least: None, claims: judged.map(|(claim, _)| claim.clone()).collect() }
    }

    /// Puts the claims that could not be checked back among those that were.
    fn finish(&self, checked: &mut Pack) {
        let mut judged = std::mem::take(&mut checked.claims).into_iter();
        for (claim, by) in &self.claims {
            let claim = match by {
                By::Nobody => {
                    let mut claim = claim.clone();
                    claim.verdict = Verdict::Skipped;
                    claim.error = Some("a step that has not completed is about to rewrite it".to_owned());
                    Some(claim)
                }
                By::Itself | By::Newer(_) => judged.next(),
            };
            checked.claims.extend(claim);
        }
        checked.at_least = self.at_least;
    }

    /// Says which claims were checked as a newer checkpoint makes them.
    fn notes(&self) -> Vec<Note> {
        let newer = self.claims.iter().filter_map(|(claim, by)| match by {
            By::Newer(seq) => {
                Some(json!({ "kind": claim.kind, "subject": claim.subject, "as_claimed_at": seq }))
            }
            By::Itself | By::Nobody => None,
        });
        newer.map(|data| Note::Event { name: "evidence_bound".to_owned(), data }).collect()
    }
}

/// Returns an error with its causes, in one line.
fn chain_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Makes `tip` stand where `target` stood, in a new epoch.
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
    // The step count is a limit on the whole run: going back does not reset it.
    position.steps_started = tip.position.steps_started;
    tip.position = position;
    tip.epoch += 1;
    tip.open.clear();
    tip.visits.clear();
    tip.chain.basis = Some(header.seq);
    if let (Phase::Failed(_), Some(step)) = (&header.phase, &header.step) {
        // Its evidence did not hold then and does now: it is finished after all.
        debug_assert!(ending_of(header).is_some(), "a failed step has an ending");
        tip.position.frontier.retain(|entry| entry.step != *step);
        tip.settle(step, Settled::completed(seq));
    }
    Ok(())
}
