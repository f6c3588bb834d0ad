//! Evidence as found by `verify`, in place of the recorded evidence.

use waypost::evidence::VerdictSummary;
use waypost::record::{Claim, Pack, Verdict};

use super::{ClaimView, EvidenceSummary, VerifiedView};

impl VerifiedView {
    /// Replaces the evidence by the claims checked just now. Claims missing from `checked` were superseded by
    /// a newer step, or are due on another occasion.
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
    /// Counts verdicts. Without any, `satisfied` is `None`.
    pub(crate) fn of(verdicts: impl Iterator<Item = Verdict> + Clone, satisfied: bool) -> Self {
        let VerdictSummary { total, ok, failed, unknown, skipped, rate, satisfied } =
            VerdictSummary::of(verdicts, satisfied);
        Self { total, ok, failed, unknown, skipped, rate, satisfied: (total > 0).then_some(satisfied) }
    }
}
