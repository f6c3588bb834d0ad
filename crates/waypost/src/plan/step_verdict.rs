//! Combines the verdicts on the claims of a step.

use crate::id::StepId;
use crate::record::{Claim, Verdict};

use super::{PassEvidence, ScopeView};

/// The combined verdict on the evidence of a step.
pub(super) enum StepVerdict {
    Holds,
    Failed { claims: Vec<String>, only_live: bool },
    Unknown(Vec<String>),
}

impl ScopeView<'_> {
    /// Combines the verdicts of a step over all passes; `None` if the step has no claim to check.
    pub(super) fn step_verdict(&self, step: &StepId) -> Option<StepVerdict> {
        self.weigh_all(self.scope.made_by(step))
    }

    /// Combines the verdicts of a step over its finished passes.
    pub(super) fn verdict_of_finished(&self, step: &StepId) -> Option<StepVerdict> {
        self.weigh_all(self.scope.made_by(step).filter(|made| made.seq.is_some()))
    }

    fn weigh_all<'m>(&self, made: impl Iterator<Item = PassEvidence<'m>>) -> Option<StepVerdict> {
        let mut all = None;
        for made in made {
            all = match (all, self.weigh(&made)) {
                (
                    Some(StepVerdict::Failed { mut claims, only_live }),
                    Some(StepVerdict::Failed { claims: more, only_live: both }),
                ) => {
                    claims.extend(more);
                    Some(StepVerdict::Failed { claims, only_live: only_live && both })
                }
                (Some(StepVerdict::Unknown(mut claims)), Some(StepVerdict::Unknown(more))) => {
                    claims.extend(more);
                    Some(StepVerdict::Unknown(claims))
                }
                // A claim that could not be checked stops the resume, with any other verdicts.
                (Some(unknown @ StepVerdict::Unknown(_)), _)
                | (_, Some(unknown @ StepVerdict::Unknown(_))) => Some(unknown),
                (Some(failed @ StepVerdict::Failed { .. }), _)
                | (_, Some(failed @ StepVerdict::Failed { .. })) => Some(failed),
                (one, other) => one.or(other),
            };
        }
        all
    }

    /// Combines the verdicts of one pack; `None` if the pack has no claim to check.
    ///
    /// A finished step's superseded claim keeps the recorded verdict, without a check. For an interrupted
    /// step, only claims checked now count.
    pub(super) fn weigh(&self, made: &PassEvidence<'_>) -> Option<StepVerdict> {
        let PassEvidence { step, seq, pack, first } = made;
        let wanted = self.wanted.get(&(&self.scope.scope, *step))?;
        let places = *first..*first + pack.claims.len();
        wanted.range(places).next()?;
        let verdict = |(index, claim): (usize, &Claim)| {
            if wanted.contains(&(first + index)) {
                let key = (self.scope.scope.clone(), (*step).clone(), first + index);
                self.verdicts.get(&key).copied().unwrap_or(Verdict::Unknown)
            } else if seq.is_some() {
                claim.verdict
            } else {
                Verdict::Skipped
            }
        };
        // Left out: claims skipped both at the commit and now, and mere warnings.
        let counts = |(index, claim): &(usize, &Claim)| {
            let is_left =
                seq.is_some() && !wanted.contains(&(first + index)) && claim.verdict == Verdict::Skipped;
            claim.counts() && !is_left
        };
        let weighed: Vec<(&Claim, Verdict)> = pack
            .claims
            .iter()
            .enumerate()
            .filter(counts)
            .map(|(index, claim)| (claim, verdict((index, claim))))
            .collect();
        let count = |wanted: Verdict| weighed.iter().filter(|(_, verdict)| *verdict == wanted).count();
        if weighed.is_empty() {
            return None;
        }
        let needed = pack.at_least.map_or(weighed.len(), |least| weighed.len().min(least as usize)).max(1);
        if count(Verdict::Ok) >= needed {
            return Some(StepVerdict::Holds);
        }
        let with = |wanted: Verdict| weighed.iter().filter(move |(_, verdict)| *verdict == wanted);
        let names = |wanted: Verdict| with(wanted).map(|(claim, _)| claim.title()).collect::<Vec<_>>();
        if count(Verdict::Ok) + count(Verdict::Unknown) >= needed {
            return Some(StepVerdict::Unknown(names(Verdict::Unknown)));
        }
        let only_live = with(Verdict::Failed).all(|(claim, _)| claim.live);
        Some(StepVerdict::Failed { claims: names(Verdict::Failed), only_live })
    }
}
