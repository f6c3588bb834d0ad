//! Edits in place: several steps of a scope claim one subject, and each edits the result of the step before.
//!
//! ```text
//!   a: echo 1 > d     b: echo 2 >> d        d is gone: b fails its claim, and so does its base a; a reruns, then b
//! ```

use crate::plan::shape::Shape;
use crate::plan::{Broken, Check, ClaimKey, Effective};
use crate::record::{Claim, RunRecord, Verdict};

use super::trust::{FoundClaims, verify};
use super::{Engine, OnUnknown, Program, RunError};

/// Files edited in place by several steps of a scope, in order.
pub(super) struct InPlace<'a> {
    pub(super) effective: &'a [Effective],
    pub(super) shape: &'a Shape,
    pub(super) on_unknown: OnUnknown,
}

impl InPlace<'_> {
    /// Returns the bases of broken edits: the nearest upstream step with a failed claim about the same subject.
    /// An edit needs the result of its base, so the base reruns first.
    pub(super) async fn bases_of<P: Program>(
        &self,
        engine: &Engine,
        program: &P,
        run: &RunRecord,
        (broken, found): (&[Broken], &mut FoundClaims),
    ) -> Result<Vec<Broken>, RunError> {
        let is_known = |list: &[Broken], base: &Broken| {
            list.iter().any(|known| known.branch == base.branch && known.step == base.step)
        };
        let (mut bases, mut open) = (Vec::new(), broken.to_vec());
        while let Some(edit) = open.pop() {
            let Some((mut base, checks)) = self.base_of(&edit) else { continue };
            if is_known(broken, &base) || is_known(&bases, &base) {
                continue;
            }
            let (verdicts, claims) = verify(engine, program, run, &checks, self.on_unknown).await?;
            let fails = |check: &&Check| {
                let key = (check.branch.clone(), check.step.clone(), check.index);
                verdicts.get(&key) == Some(&Verdict::Failed)
            };
            base.claims = checks.iter().filter(fails).map(|check| check.claim.title().to_owned()).collect();
            if !base.claims.is_empty() {
                found.extend(claims);
                open.push(base.clone());
                bases.push(base);
            }
        }
        Ok(bases)
    }

    /// Returns the nearest upstream step with a claim about a subject of a broken claim, and these claims.
    fn base_of(&self, edit: &Broken) -> Option<(Broken, Vec<Check>)> {
        let branch = self.effective.iter().find(|branch| branch.branch == edit.branch)?;
        let shape = self.shape.of_branch(&edit.branch)?;
        let place = shape.place(edit.step.as_str())?;
        let claims = branch.evidence.get(&edit.step)?.claims.iter();
        let is_broken = |claim: &&Claim| edit.claims.iter().any(|name| *name == claim.title());
        let subjects: Vec<ClaimKey> = claims.filter(is_broken).map(ClaimKey::of).collect();
        let shares = |claim: &Claim| {
            let claimed = ClaimKey::of(claim);
            subjects.iter().any(|subject| claimed.gives_way_to(subject))
        };
        let upstream = shape.with_needs(place);
        let nearest = shape.order().into_iter().rev().filter(|at| *at != place && upstream[*at]);
        let mut nearest = nearest.map(|at| &shape.steps()[at].id);
        let (step, pack, settled) = nearest.find_map(|step| {
            let pack = branch.evidence.get(step)?;
            let settled = branch.position.ledger.get(step)?;
            pack.claims.iter().any(shares).then_some((step, pack, settled))
        })?;
        let claims = pack.claims.iter().enumerate().filter(|(_, claim)| shares(claim));
        let check = |(index, claim): (usize, &Claim)| Check {
            branch: edit.branch.clone(),
            step: step.clone(),
            seq: Some(settled.seq),
            index,
            claim: claim.clone(),
        };
        let checks = claims.map(check).collect();
        let (branch, step, seq) = (edit.branch.clone(), step.clone(), settled.seq);
        Some((Broken { branch, step, seq, claims: Vec::new() }, checks))
    }
}
