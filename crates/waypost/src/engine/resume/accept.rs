//! Accepts the current evidence of a finished step, by decision of a person.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::evidence::Site;
use crate::id::{RunId, ScopePath, StepId};
use crate::plan::Broken;
use crate::record::{ACCEPTED_LABEL, Claim, Ending, Occasion, Pack, Phase, Reason, Record, Verdict};
use crate::store::{Batch, BatchId, Lease, StoreError, StoreExt as _};

use super::begin::find_base;
use super::resume_point::scopes_in_force;
use super::trust::{Trust, judge};
use crate::engine::chain::{Chain, Draft, unchanged_body};
use crate::engine::inspect::{Snapshot, accepted_on, position_of};
use crate::engine::walk::choice::settled_by_person;
use crate::engine::{Engine, OnUnknown, Program, RunError};

/// The key of the progress record with accepted evidence.
const ACCEPTED_KEY: &str = "evidence accepted";

/// The decision of a person about evidence that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptAs {
    /// The current files are right: pin the current values.
    Pinned,
    /// The step counts as done in spite of its evidence. Resumes no longer check the claims that are not `ok` now.
    Done,
}

/// A finished step to accept, by decision of a person.
#[derive(Debug, Clone, Copy)]
pub struct Acceptance<'a> {
    /// A single scope; `None` for all scopes in force.
    pub scope: Option<&'a ScopePath>,
    /// The step.
    pub step: &'a StepId,
    /// The decision.
    pub accept_as: AcceptAs,
    /// The person.
    pub by: Option<&'a str>,
}

impl Engine {
    /// Accepts the current evidence of a finished step by decision of a person: takes the pins again, so that the
    /// step does not rerun. Applies to all scopes in force and all passes of loops; packs that hold are
    /// unchanged. Returns the number of accepted packs.
    ///
    /// # Errors
    /// - [`RunError::NotAccepted`]: a claim without a pin does not hold, or a claim could not be checked. Nothing
    ///   changed. Not with [`AcceptAs::Done`].
    /// - [`RunError::InvalidStep`]: the program has no such step.
    /// - [`RunError::Store`] with [`StoreError::Held`]: another worker holds the lease. With
    ///   [`StoreError::Damaged`]: resume the run first.
    pub async fn accept_program<P: Program>(
        &self,
        program: &P,
        run: &RunId,
        acceptance: Acceptance<'_>,
    ) -> Result<usize, RunError> {
        if !program.shape().has_anywhere(acceptance.step) {
            return Err(RunError::InvalidStep(acceptance.step.clone()));
        }
        self.store.wait_for_release(run).await?;
        let lease = self.store.acquire(run, &ScopePath::main(), &self.holder()?).await?;
        let accepted = self.accept_under(program, &lease, acceptance).await;
        match accepted {
            // The batch has released the lease.
            Ok(count) if count > 0 => Ok(count),
            other => {
                let _ = self.store.release(lease, None).await;
                other
            }
        }
    }

    async fn accept_under<P: Program>(
        &self,
        program: &P,
        lease: &Lease,
        acceptance: Acceptance<'_>,
    ) -> Result<usize, RunError> {
        let Acceptance { scope, step, accept_as, .. } = acceptance;
        let snapshot = Snapshot::main(self.store.as_ref(), lease.run()).await?;
        if let Some(damage) = snapshot.damaged().next() {
            let older = Some(snapshot.newest().header().seq);
            return Err(StoreError::of_damage(damage.clone(), older).into());
        }
        let base = find_base(snapshot)?.with_failures_open();
        let run = base.snapshot.entry.record.record();
        let scopes = scopes_in_force(self, program, (&base.record, &base.position)).await?;
        // An unchecked claim may become checkable when pinned again; if not, pinning returns the reason.
        let trust = Trust::Checked(OnUnknown::RunAgain);
        let judgement = judge(self, program, program.shape(), (run, &scopes), trust.into()).await?;
        let is_meant =
            |broken: &Broken| broken.step == *step && scope.is_none_or(|scope| broken.scope == *scope);
        let meant: Vec<Broken> =
            judgement.broken.into_iter().chain(judgement.broken_careful).filter(is_meant).collect();
        let site = self.site(run);
        let mut packs: BTreeMap<ScopePath, Vec<(u64, Pack)>> = BTreeMap::new();
        for broken in &meant {
            let pack = self.repinned(lease.run(), (broken, accept_as), &site).await?;
            packs.entry(broken.scope.clone()).or_default().push((broken.seq, pack));
        }
        if meant.is_empty() {
            return Ok(0);
        }
        let mut records = Vec::new();
        for (scope, packs) in &packs {
            self.accepted_on(lease, (scope, acceptance), packs, &mut records).await?;
        }
        let id = BatchId { token: lease.token(), count: 1 };
        // The time of the last session stays.
        let updated_at = Some(base.snapshot.entry.summary.updated_at);
        let batch = Batch { id, records, consumed: Vec::new(), summary: None, updated_at, release: true };
        let at = batch.records.last().map(|record| record.header().reference().to_string());
        let lost = |source| RunError::Checkpoint { at: at.unwrap_or_default(), source };
        self.store.append(&[lease], batch).await.map_err(lost)?;
        Ok(meant.len())
    }

    /// Takes the pins of a record again, or limits failed claims to the commit, by the decision.
    async fn repinned(
        &self,
        run: &RunId,
        (broken, accept_as): (&Broken, AcceptAs),
        site: &Site,
    ) -> Result<Pack, RunError> {
        let made = self.store.load(run, &broken.scope, broken.seq).await?;
        let accepted = accepted_on(self.store.as_ref(), made.header()).await?.remove(&broken.seq);
        let code = match &made.header().phase {
            Phase::Completed(Ending { exit_code, .. }) => *exit_code,
            _ => None,
        };
        let claimed = accepted.or_else(|| made.header().evidence.clone());
        let mut pack = claimed.unwrap_or_else(|| Pack::all([]));
        if accept_as == AcceptAs::Done {
            let checked = self.verifier.verify(&pack, &site.clone().with_exit_code(code)).await;
            for (claim, found) in pack.claims.iter_mut().zip(checked.claims) {
                if found.verdict != Verdict::Ok {
                    // Not checked again: only at the commit, where the claim held.
                    claim.terms.at = BTreeSet::from([Occasion::Commit]);
                }
            }
            return Ok(pack);
        }
        let open = |claim: Claim| if claim.pinned { claim.pinning() } else { claim };
        pack.claims = pack.claims.into_iter().map(open).collect();
        let pinned = self.verifier.commit(&pack, &site.clone().with_exit_code(code)).await;
        if pinned.verdict() == Verdict::Ok {
            return Ok(pinned);
        }
        let (run, step, why) = (run.clone(), broken.step.clone(), pinned.unmet().join("; "));
        Err(RunError::NotAccepted { run, step, why })
    }

    /// Makes the records of a scope with the accepted evidence.
    async fn accepted_on(
        &self,
        lease: &Lease,
        (scope, Acceptance { step, accept_as, by, .. }): (&ScopePath, Acceptance<'_>),
        packs: &[(u64, Pack)],
        records: &mut Vec<Record>,
    ) -> Result<(), RunError> {
        let store = self.store.as_ref();
        let newest = store.newest(lease.run(), scope).await?;
        let header = newest.header();
        let position = position_of(&newest)?;
        let chain = Chain { token: lease.token(), ..Chain::after(&newest) };
        let mut drafts = Vec::new();
        for (seq, pack) in packs {
            let made = store.load(&header.run, scope, *seq).await?;
            let value = json!(pack.summary());
            let phase = Phase::Progress { key: ACCEPTED_KEY.to_owned(), value };
            let at = made.header().at.clone();
            let mut draft = Draft::new(phase, Reason::Accept, Some(step.clone()), at);
            draft.step_name.clone_from(&made.header().step_name);
            draft.about = Some(made.header().seq);
            draft.report.evidence = Some(pack.clone());
            let how = if accept_as == AcceptAs::Pinned { "accepted" } else { "done" };
            draft.report.notes.push(settled_by_person(step, how, by));
            let (key, value) = ACCEPTED_LABEL;
            draft.labels.insert(key.to_owned(), value.to_owned());
            drafts.push(draft);
        }
        if let Some(last) = drafts.last_mut() {
            last.keep_status(&newest);
        }
        let unwritable =
            |source| RunError::Serialize { run: lease.run().clone(), step: Some(step.clone()), source };
        let body = unchanged_body(&newest, &position)?;
        chain.seal(&drafts, body, self.clock.now(), records).map_err(unwritable)
    }
}
