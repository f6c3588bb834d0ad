//! Begins, commits and fails steps.

use crate::engine::StepReport;
use crate::engine::chain::Draft;
use crate::id::{Digest, ScopePath, StepId};
use crate::record::{
    Claim, Failure, FailureKind, FrontierEntry, Note, Occasion, Pack, Phase, Reason, Settled, Start, Status,
    Try, Verdict,
};
use crate::store::{Scan, ScanOrder};

use super::checkpoint::Checkpoint;
use super::error::unmet;
use super::label::CONTENT_KEY;
use super::step::{Begin, Begun, Commit};
use super::write::{LEDGER_STEPS_MAX, Tip, Writing};
use super::{Error, Recorder};

/// Most records searched for an external id; an id can occur repeatedly after rollbacks.
const SAME_ID_MAX: usize = 1_000;

impl Recorder {
    /// Begins a step; its start is durable when this returns. If the program dies before the step ends, the
    /// next [`open`](Self::open) reports the step as [`cut`](Self::cut).
    ///
    /// A step that completed before gets the next iteration; an interrupted or failed step gets the next
    /// attempt.
    ///
    /// # Errors
    /// - [`Error::UnderWay`]: this recorder has begun the step and not ended it. Nothing was written.
    /// - [`Error::Write`], [`Error::Invalid`], [`Error::Pack`]: state, labels or claims are refused. Nothing
    ///   was written.
    /// - [`Error::Store`]: the start could not be written: do not begin the work.
    pub async fn begin_step(&self, begin: Begin) -> Result<Begun, Error> {
        begin.check()?;
        let encoded = self.encoded(begin.state.clone())?;
        let mut writing = self.writing().await?;
        let tip = &writing.tip;
        if let Some(open) = tip.open.values().find(|open| open.step == begin.step && !open.cut) {
            return Err(Error::UnderWay { step: open.step.clone(), since: open.since.clone() });
        }
        let (at, iteration) = self.next_try(tip, &begin.step).await?;
        let seq = tip.chain.next;
        let begun = Begun {
            since: tip.reference(seq),
            step: begin.step.clone(),
            at: at.clone(),
            labels: begin.all_labels(),
            cut: false,
        };
        let mut next = tip.clone();
        next.open.retain(|_, open| open.step != begin.step);
        next.open.insert(seq, begun.clone());
        next.visits.insert(begin.step.clone(), iteration);
        let failures = tip.entry(&begin.step).map_or(0, |entry| entry.failures);
        next.position.frontier.retain(|entry| entry.step != begin.step);
        next.position.frontier.push(entry(&begin.step, Status::Started, at.clone(), failures, seq));
        next.position.steps_started += 1;
        next.state = encoded.unwrap_or(next.state);
        let reason = if at.attempt > 1 { Reason::Retry } else { Reason::Step };
        let mut draft = Draft::new(Phase::Started, reason, Some(begin.step.clone()), at.clone());
        draft.started.push(Start { step: begin.step, at, joins: false, needs: Vec::new() });
        draft.labels.clone_from(&begun.labels);
        // A verdict set by the caller is dropped: nothing was checked.
        let unchecked = |claim: Claim| Claim { verdict: Verdict::Skipped, ..claim };
        draft.report.evidence = begin.rewrites.map(|pack| Pack::all(pack.claims.into_iter().map(unchecked)));
        let state = next.state.clone();
        writing.append(self.store(), draft, next, &state, self.options.clock.now()).await?;
        writing.trim(self.store(), self.retention).await;
        Ok(begun)
    }

    /// Ends a step with its results, and returns the checkpoint.
    ///
    /// Checks the evidence first. If it holds, or if its check is deferred, the step has completed. If the
    /// evidence fails or cannot be checked, the step has failed, as the returned checkpoint says. A failed
    /// checkpoint keeps the state of the commit, and the next record continues with the state before. An
    /// interrupted step completes only with evidence that is `ok` now and was not pinned just now.
    ///
    /// With an external id, a repeated commit returns the existing checkpoint and writes nothing; a step that
    /// was begun again for it counts as ended. If evidence failed under an id, the next attempt of the step
    /// may use the id again.
    ///
    /// # Errors
    /// - [`Error::NotUnderWay`]: the step has ended, or a rollback undid its start. Nothing was written.
    /// - [`Error::OtherContent`]: the id belongs to another commit. Nothing was written.
    /// - [`Error::Unsettled`]: an interrupted step without evidence of its completion. Nothing was written.
    /// - [`Error::Pack`], [`Error::Invalid`], [`Error::Write`]: the commit is refused. Nothing was written.
    /// - [`Error::Store`]: the write failed; the step is still running, and can be committed again.
    pub async fn commit_step(&self, begun: &Begun, commit: Commit) -> Result<Checkpoint, Error> {
        commit.check()?;
        let encoded = self.encoded(commit.state.clone())?;
        let content =
            commit.content(begun, self.options.auto_verify).map_err(|source| self.unwritable(source))?;
        {
            let mut writing = self.writing().await?;
            if let Some(done) = self.committed_before(&mut writing, begun, &commit, content).await? {
                return Ok(done);
            }
            writing.tip.check_open(begun)?;
        }
        // The lock is not held during the check, so that other steps continue.
        let pack = self.gather(begun, &commit).await?;
        let mut writing = self.writing().await?;
        if let Some(done) = self.committed_before(&mut writing, begun, &commit, content).await? {
            return Ok(done);
        }
        writing.tip.check_open(begun)?;
        let mut next = writing.tip.clone();
        let seq = next.chain.next;
        let verdict = pack.as_ref().map_or(Verdict::Skipped, |pack| pack.verdict_at(Occasion::Commit));
        let completed = matches!(verdict, Verdict::Ok | Verdict::Skipped);
        let state = encoded.unwrap_or_else(|| next.state.clone());
        let phase = if completed {
            next.close(begun);
            next.settle(&begun.step, Settled::completed(seq));
            next.state = state.clone();
            Phase::Completed(commit.ending())
        } else {
            fail(&mut next, begun, seq);
            let unmet = pack.as_ref().map(unmet).unwrap_or_default();
            let error = vec![format!("the evidence of step `{}` is {}: {unmet}", begun.step, verdict.name())];
            let ending = commit.ending();
            Phase::Failed(Failure { ending, error, ..Failure::new(FailureKind::Evidence, Vec::new()) })
        };
        let mut draft = Draft::new(phase, Reason::Step, Some(begun.step.clone()), begun.at.clone());
        draft.labels = commit.all_labels(begun, content);
        draft.external = commit.external;
        draft.about = Some(begun.since.seq);
        draft.report = StepReport { notes: commit.notes, usage: commit.usage, evidence: pack };
        let record = writing.append(self.store(), draft, next, &state, self.options.clock.now()).await?;
        writing.trim(self.store(), self.retention).await;
        Ok(Checkpoint::of(record, None))
    }

    /// Ends a failed step with the error and its causes, outermost first. The state before the step
    /// continues.
    ///
    /// # Errors
    /// - [`Error::NotUnderWay`]: the step has ended, or a rollback undid its start. Nothing was written.
    /// - [`Error::Store`]: the write failed; the step is still running.
    pub async fn fail_step(
        &self,
        begun: &Begun,
        error: impl IntoIterator<Item = String>,
        notes: Vec<Note>,
    ) -> Result<Checkpoint, Error> {
        let error = error.into_iter().collect();
        let failure = Failure { error, ..Failure::new(FailureKind::Error, Vec::new()) };
        self.fail_step_with(begun, failure, notes).await
    }

    /// Ends a failed step with full details: the kind, the exit code, the printed text.
    ///
    /// # Errors
    /// As [`fail_step`](Self::fail_step).
    pub async fn fail_step_with(
        &self,
        begun: &Begun,
        failure: Failure,
        notes: Vec<Note>,
    ) -> Result<Checkpoint, Error> {
        let mut writing = self.writing().await?;
        writing.tip.check_open(begun)?;
        let mut next = writing.tip.clone();
        let seq = next.chain.next;
        fail(&mut next, begun, seq);
        let mut draft =
            Draft::new(Phase::Failed(failure), Reason::Step, Some(begun.step.clone()), begun.at.clone());
        draft.labels.clone_from(&begun.labels);
        draft.about = Some(begun.since.seq);
        draft.report.notes = notes;
        let state = next.state.clone();
        let record = writing.append(self.store(), draft, next, &state, self.options.clock.now()).await?;
        writing.trim(self.store(), self.retention).await;
        Ok(Checkpoint::of(record, None))
    }

    /// Returns the next attempt of a step, and its iteration.
    async fn next_try(&self, tip: &Tip, step: &StepId) -> Result<(Try, u32), Error> {
        let epoch = tip.epoch;
        if let Some(entry) = tip.entry(step) {
            let iteration = entry.at.iteration.first().copied().unwrap_or(1);
            // After a rollback the visit is new, and attempts are counted from 1.
            let attempt = if entry.at.epoch == epoch { entry.at.attempt + 1 } else { 1 };
            return Ok((Try { attempt, iteration: vec![iteration], epoch }, iteration));
        }
        let last = match tip.visits.get(step) {
            Some(visits) => *visits,
            None => self.last_visit(tip, step).await?,
        };
        let iteration = last + 1;
        Ok((Try { attempt: 1, iteration: vec![iteration], epoch }, iteration))
    }

    /// Returns the newest completed iteration of a step; 0 if there is none.
    async fn last_visit(&self, tip: &Tip, step: &StepId) -> Result<u32, Error> {
        let known = tip.position.ledger.get(step.as_str()).map(|settled| settled.seq);
        if known.is_none() && tip.position.ledger.len() < LEDGER_STEPS_MAX {
            return Ok(0);
        }
        let scan = Scan {
            scope: Some(ScopePath::main()),
            step: Some(step.to_string()),
            seq_max: known,
            order: ScanOrder::NewestFirst,
            limit: 1,
            ..Scan::of(&tip.chain.run)
        };
        let found = self.store().scan(&scan).await?;
        let newest = found.records.first().map(|record| &record.header().at.iteration);
        Ok(newest.and_then(|iteration| iteration.first().copied()).unwrap_or(0))
    }

    /// Finds the checkpoint that already has the id of a commit. Returns `None` if the id is new, undone by a
    /// rollback, or used only by another, failed attempt.
    async fn committed_before(
        &self,
        writing: &mut Writing,
        begun: &Begun,
        commit: &Commit,
        content: Option<Digest>,
    ) -> Result<Option<Checkpoint>, Error> {
        let (Some(external), Some(content)) = (&commit.external, content) else { return Ok(None) };
        let scan = Scan {
            scope: Some(ScopePath::main()),
            external: Some(external.clone()),
            order: ScanOrder::NewestFirst,
            limit: SAME_ID_MAX,
            ..Scan::of(&writing.tip.chain.run)
        };
        for record in self.store().scan(&scan).await?.records {
            let header = record.header();
            // A failed attempt does not block its id: another attempt is another commit.
            let failed = matches!(header.phase, Phase::Failed(_)) && header.about != Some(begun.since.seq);
            if failed || !self.is_effective(&writing.tip, header.seq, header.at.epoch).await? {
                continue;
            }
            if header.labels.get(CONTENT_KEY) != Some(&content.to_string()) {
                return Err(Error::OtherContent { external: external.clone(), at: header.reference() });
            }
            if writing.tip.check_open(begun).is_ok() {
                writing.tip.close(begun);
            }
            return self.checkpoints.get(&header.reference()).await;
        }
        Ok(None)
    }

    /// Returns whether a record is effective, not undone by a rollback.
    async fn is_effective(&self, tip: &Tip, seq: u64, epoch: u32) -> Result<bool, Error> {
        if epoch == tip.epoch {
            return Ok(true);
        }
        let mut walk = self.checkpoints.walk(tip.chain.next - 1);
        while let Some(record) = walk.next().await? {
            if record.header().seq <= seq {
                return Ok(record.header().seq == seq);
            }
        }
        Ok(false)
    }

    /// Checks or pins the evidence of a commit, as its settings say.
    async fn gather(&self, begun: &Begun, commit: &Commit) -> Result<Option<Pack>, Error> {
        let site = self.site.clone().with_exit_code(commit.exit_code);
        let verifier = &self.options.verifier;
        let auto_verify = begun.cut || commit.auto_verify.unwrap_or(self.options.auto_verify);
        let pack = match &commit.pack {
            Some(pack) if auto_verify => Some(verifier.commit(pack, &site).await),
            Some(pack) => Some(verifier.pin(pack, &site).await),
            None => None,
        };
        if begun.cut {
            settles(begun, commit, pack.as_ref())?;
        }
        Ok(pack)
    }
}

/// Checks that the evidence of an interrupted step proves completion.
fn settles(begun: &Begun, commit: &Commit, pack: Option<&Pack>) -> Result<(), Error> {
    let unsettled = |why: &str| Err(Error::Unsettled { step: begun.step.clone(), why: why.to_owned() });
    let Some(pack) = pack else { return unsettled("there is no evidence") };
    let pinned = |claims: &Pack| claims.claims.iter().any(|claim| claim.pinned && claim.expect.is_null());
    if commit.pack.as_ref().is_some_and(pinned) {
        return unsettled("a newly pinned claim would hold for any result");
    }
    let verdict = pack.verdict_at(Occasion::Commit);
    if verdict != Verdict::Ok {
        return unsettled(&format!("the evidence is {}: {}", verdict.name(), unmet(pack)));
    }
    Ok(())
}

/// Marks a begun step as failed.
fn fail(next: &mut Tip, begun: &Begun, seq: u64) {
    let failures = next.entry(&begun.step).map_or(0, |entry| entry.failures) + 1;
    next.close(begun);
    next.position.frontier.push(entry(&begun.step, Status::Failed, begun.at.clone(), failures, seq));
}

fn entry(step: &StepId, status: Status, at: Try, failures: u32, since: u64) -> FrontierEntry {
    FrontierEntry { status, at, failures, since, ..FrontierEntry::ready(step.clone()) }
}
