//! Looking at a run without going on with it: what its evidence comes to now. Reading and asking only.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::id::{BranchPath, StepId};
use crate::plan::{Action, Cause, Decision, Effective, Plan, Verdicts, due, plan};
use crate::record::{Claim, Occasion, Position, Record, Status};
use crate::shape::{Shape, Step, Unfinished};

use super::doubt::{questions_at, salvageable_in};
use super::recheck::{forget_other_names, in_flux, state_of, verify};
use super::snapshot::{Snapshot, effective_of, position_of};
use super::stand::survey;
use super::{Engine, OnUnknown, Program, RunError};

/// What the evidence of a run comes to now.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// The verdicts that a resume would go by.
    pub verdicts: Verdicts,
    /// The claims that were checked, by the record that has them.
    pub claims: BTreeMap<(BranchPath, u64), Vec<Claim>>,
    /// Steps that were cut and must not be repeated blindly, and are done as their evidence shows.
    pub settled: Vec<(BranchPath, StepId)>,
    /// What a resume would do about steps on branches that have ended.
    pub ended: Vec<Decision>,
    /// Finished steps, on whatever branch, whose evidence does not hold or could not be checked.
    pub doubted: Vec<Decision>,
}

impl Look {
    /// Puts into a plan what was found beside the verdicts: what settles cut steps, and what is done on branches that have
    /// ended, with what that may change for the steps that join them and those after these.
    pub fn tell_in(self, plan: &mut Plan, shape: &Shape) {
        for (branch, step) in self.settled {
            if let Some(decision) = decision_about(plan, &branch, &step) {
                (decision.action, decision.cause) = (Action::Reuse, Cause::EvidenceSettles);
            }
        }
        let runs = |decision: &&Decision| matches!(decision.action, Action::Run | Action::Restart);
        for ended in self.ended.iter().filter(runs) {
            recheck_above(plan, shape, ended);
        }
        plan.decisions.extend(self.ended);
    }
}

fn decision_about<'p>(plan: &'p mut Plan, branch: &BranchPath, step: &StepId) -> Option<&'p mut Decision> {
    plan.decisions.iter_mut().find(|decision| decision.branch == *branch && decision.step == *step)
}

/// Where a step of a branch that has ended is done again, those that join it and come after it are looked at once more.
fn recheck_above(plan: &mut Plan, shape: &Shape, ended: &Decision) {
    let mut below = (ended.branch.clone(), ended.step.clone());
    while let (Some(parent), Some((name, _))) = (below.0.parent(), below.0.opened_by()) {
        let Some(above) = shape.of_branch(&parent) else { return };
        let Some(opener) = above.opener(&name) else { return };
        let after = Unfinished::from_places(above, std::iter::once(opener));
        for (place, step) in above.steps().iter().enumerate().filter(|(place, _)| after.has(*place)) {
            let upstream = if place == opener { &below.1 } else { &above.steps()[opener].id };
            if let Some(decision) = decision_about(plan, &parent, &step.id)
                && decision.action == Action::Reuse
            {
                (decision.action, decision.cause) =
                    (Action::Recheck, Cause::UpstreamChanged(upstream.clone()));
            }
        }
        below = (parent, above.steps()[opener].id.clone());
    }
}

impl Engine {
    /// Checks the evidence of what is finished in a run, as a resume would; with `occasion`
    /// [`Verify`](Occasion::Verify) the claims that are due then.
    ///
    /// Each claim counts for the newest step that makes one about its subject: what a later step legitimately rewrote does
    /// not count against an older one.
    ///
    /// # Errors
    /// Those of reading the run.
    pub async fn look<P: Program>(
        &self,
        program: &P,
        snapshot: &Snapshot,
        occasion: Occasion,
    ) -> Result<Look, RunError> {
        self.look_at(program, snapshot, (snapshot.newest(), occasion)).await
    }

    /// The same of a checkpoint of the main branch with its state, as it would be gone on from: what has been done since does
    /// not count, and neither does what later steps claim.
    ///
    /// # Errors
    /// Those of reading the run.
    pub async fn look_at<P: Program>(
        &self,
        program: &P,
        snapshot: &Snapshot,
        (newest, occasion): (&Record, Occasion),
    ) -> Result<Look, RunError> {
        let (shape, run) = (program.shape(), snapshot.entry.record.record());
        let mut position = position_of(newest)?;
        if snapshot.newest().header().seq != newest.header().seq {
            stand_before(&mut position, shape, &position_of(snapshot.newest())?);
        }
        let branches = survey(self, program, (newest, &position)).await?;
        let mut effective: Vec<Effective> = Vec::new();
        for known in branches.values() {
            let mut found =
                effective_of(self.store.as_ref(), shape, (&known.record, &known.position)).await?;
            found.position = known.position.clone();
            found.in_flux.extend(in_flux(program, &branches, known));
            effective.push(found);
        }
        forget_other_names(self, run, &mut effective).await;
        let checks = due(shape, &effective, occasion).checks;
        let (mut verdicts, found) = verify(self, program, run, &checks, OnUnknown::Stop).await?;
        let is_ended = |branch: &BranchPath| {
            let known = branches.get(&(branch.depth(), branch.clone()));
            !branch.is_main() && known.is_some_and(|known| known.record.header().end.is_some())
        };
        let ended = decided(shape, &effective, &verdicts, is_ended);
        let is_doubted = |decision: &Decision| {
            matches!(decision.cause, Cause::EvidenceFailed(_) | Cause::EvidenceUnknown(_))
        };
        let planned = plan(shape, &effective, &verdicts, self.clock.now());
        let mut doubted: Vec<Decision> = planned.decisions.into_iter().filter(is_doubted).collect();
        doubted.extend(ended.iter().filter(|decision| is_doubted(decision)).cloned());
        let site = self.site(run);
        let mut settled = Vec::new();
        for known in branches.values() {
            let header = known.record.header();
            let (branch, is_main) = (&header.branch, header.branch.is_main());
            let (record, position) =
                if is_main { (newest, &position) } else { (&known.record, &known.position) };
            let Some(shape) = shape.of_branch(branch).filter(|_| is_main || header.end.is_none()) else {
                continue;
            };
            let asked: Vec<Decision> = questions_at(position, shape, branch).collect();
            if asked.iter().any(|question| question.cause.is_of_one_try()) {
                let state = state_of(program, program.shape(), &branches, record)?;
                let about = (shape, &site, record, &state);
                settled.extend(salvageable_in(self, program, about, (asked, false)).await?);
            }
        }
        let settled = settled.into_iter().map(|found| (found.branch, found.step)).collect();
        if occasion == Occasion::Resume {
            stand_as_committed(&effective, &mut verdicts);
        }
        Ok(Look { verdicts, settled, claims: found.into_iter().collect(), ended, doubted })
    }
}

/// Takes a position to where a run stands that goes back there: what had begun then is about to begin, and writes nothing yet.
/// What is in doubt now stays so.
fn stand_before(position: &mut Position, shape: &Shape, now: &Position) {
    for entry in &mut position.frontier {
        let is_asked = |step: &Step| !step.idempotent && now.frontier.iter().any(|now| now.step == step.id);
        if entry.fan.is_none() && !shape.step(entry.step.as_str()).is_some_and(is_asked) {
            (entry.status, entry.at.attempt) = (Status::Ready, 0);
        }
    }
}

/// Adds what claims came to that are not checked, as newer ones count, or steps under way may rewrite what they are about:
/// they stand as they were committed, also for who does not know of the branches on which the others are.
fn stand_as_committed(effective: &[Effective], verdicts: &mut Verdicts) {
    for branch in effective {
        let steps: BTreeSet<&StepId> = branch.evidence.keys().chain(branch.passes.keys()).collect();
        for step in steps {
            let newest =
                branch.evidence.get(step).map(|pack| (pack, branch.position.ledger.contains_key(step)));
            let passes = branch.passes.get(step).into_iter().flatten().map(|(_, pack)| (pack, true));
            let claims = newest.into_iter().chain(passes);
            let claims =
                claims.flat_map(|(pack, is_made)| pack.claims.iter().map(move |claim| (claim, is_made)));
            for (index, (claim, _)) in claims.enumerate().filter(|(_, (_, is_made))| *is_made) {
                let key = (branch.branch.clone(), step.clone(), index);
                verdicts.entry(key).or_insert(claim.verdict);
            }
        }
    }
}

/// Decides about steps on branches that no plan has, as nothing is open there.
fn decided(
    shape: &Shape,
    effective: &[Effective],
    verdicts: &Verdicts,
    is_ended: impl Fn(&BranchPath) -> bool,
) -> Vec<Decision> {
    let planned = plan(shape, effective, verdicts, Timestamp::UNIX_EPOCH).decisions.into_iter();
    let of_evidence =
        |decision: &Decision| matches!(decision.cause, Cause::EvidenceFailed(_) | Cause::EvidenceUnknown(_));
    planned.filter(|decision| is_ended(&decision.branch) && of_evidence(decision)).collect()
}
