//! Evidence as `verify` finds it, in the place of what was found when the steps ended.

use waypost::record::{Claim, Pack, Verdict};

use super::{ClaimView, EvidenceSummary, VerifiedView};

impl VerifiedView {
    /// Takes what was found just now: of claims that are not among it, it was left to a newer step, or to another occasion.
    pub(crate) fn take(&mut self, checked: Vec<Claim>) {
        let mut left = checked.clone();
        for view in &mut self.evidence {
            let is_it = |claim: &Claim| {
                (&claim.kind, &claim.subject, &claim.name) == (&view.kind, &view.subject, &view.name)
            };
            match left.iter().position(is_it) {
                Some(place) => *view = ClaimView::of(&left.remove(place)),
                None => view.verdict = Verdict::Skipped,
            }
        }
        let counting = checked.iter().filter(|claim| claim.counts()).count();
        let pack =
            Pack { at_least: self.at_least.filter(|least| *least as usize <= counting), claims: checked };
        self.verdict = Some(if counting == 0 { Verdict::Skipped } else { pack.verdict() });
        self.summary = EvidenceSummary::of(
            self.evidence.iter().map(|claim| claim.verdict),
            self.verdict == Some(Verdict::Ok),
        );
        self.checked = pack.claims;
    }
}

impl EvidenceSummary {
    /// Counts verdicts. Without any, nothing is satisfied nor not.
    pub(crate) fn of(verdicts: impl Iterator<Item = Verdict> + Clone, satisfied: bool) -> Self {
        let count = |verdict: Verdict| verdicts.clone().filter(|one| *one == verdict).count();
        let (total, ok) = (verdicts.clone().count(), count(Verdict::Ok));
        Self {
            total,
            ok,
            failed: count(Verdict::Failed),
            unknown: count(Verdict::Unknown),
            skipped: count(Verdict::Skipped),
            rate: if total == 0 { 0.0 } else { ok as f64 / total as f64 },
            satisfied: (total > 0).then_some(satisfied),
        }
    }
}
