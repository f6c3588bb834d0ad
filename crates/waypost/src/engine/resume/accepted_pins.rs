//! Pins of accepted evidence: the digests of ends whose evidence a person accepted, and of ends downstream.
//!
//! ```text
//!   p pins p.txt = 1 --> d reads 1        accept p: p pins p.txt = 2, and a later run of d reads 2
//! ```
//!
//! Input: recorded ends, and the accepted packs of the run. Output: the digests by the evidence in force.

use std::collections::BTreeMap;

use crate::id::{Digest, RunId, ScopePath};
use crate::plan::shape::Step;
use crate::record::{ACCEPTED_LABEL, EndDigests, Header, Pack, Phase};
use crate::store::{Scan, Store, StoreError};

use crate::engine::scope::Scope;
use crate::engine::walk::trace::{EndResult, claims_of, pins_of, skipped_digests};

/// An accepted pack, and the fencing token of its record: the token orders the records of all scopes.
#[derive(Debug)]
struct AcceptedPack {
    pack: Pack,
    token: u64,
}

/// The accepted packs of a run, by scope and by the record of the end.
#[derive(Debug, Default)]
pub(crate) struct AcceptedPacks(BTreeMap<ScopePath, BTreeMap<u64, AcceptedPack>>);

impl AcceptedPacks {
    /// Reads the accepted packs of a run. The newest pack of each end counts.
    pub(crate) async fn read(store: &dyn Store, run: &RunId) -> Result<Self, StoreError> {
        let (key, value) = ACCEPTED_LABEL;
        let label = Some((key.to_owned(), value.to_owned()));
        let mut scan = Scan { label, ..Scan::of(run) };
        let mut found = Self::default();
        loop {
            let page = store.scan(&scan).await?;
            for header in page.records.iter().map(crate::record::Record::header) {
                let (Some(about), Some(pack)) = (header.about, header.evidence.clone()) else { continue };
                let accepted = AcceptedPack { pack, token: header.token };
                found.0.entry(header.scope.clone()).or_default().insert(about, accepted);
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return Ok(found),
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the digests of an end by the evidence in force. The digests of all needs must be known.
    ///
    /// The digests of an opener with another pin, in its scopes or upstream, equal those of no other end.
    pub(crate) fn digests_of<S>(
        &self,
        scope: &Scope<'_, S>,
        place: usize,
        end: &Header,
    ) -> Option<EndDigests> {
        let recorded = end.digests?;
        if self.is_empty() {
            return Some(recorded);
        }
        let step = &scope.shape.steps()[place];
        match &end.phase {
            Phase::Completed(_) => {}
            Phase::Skipped(_) if scope.shape.needs(place).iter().all(|need| is_known(scope, *need)) => {
                return Some(skipped_digests(scope, place)).filter(|now| now.output == recorded.output);
            }
            _ => return Some(recorded),
        }
        let accepted = self.0.get(&end.scope).and_then(|packs| packs.get(&end.seq));
        let evidence = accepted.map(|accepted| &accepted.pack);
        let claims = claims_of(&EndResult { evidence, ..EndResult::default() });
        let then = claims_of(&EndResult { evidence: end.evidence.as_ref(), ..EndResult::default() });
        let below = self.claims_below(step, end);
        let has_other_needs = has_other_needs(scope, place, end);
        if evidence.is_none() && below.is_empty() && !has_other_needs {
            return Some(recorded);
        }
        let has_scopes = step.children.is_some() || step.hooks.is_some();
        // A person may accept an end as done without another pin.
        let has_same_pins = evidence.is_some() && claims == then;
        let pins = match has_scopes || has_same_pins {
            false => {
                let evidence = evidence.or(end.evidence.as_ref());
                pins_of(scope, place, &EndResult { evidence, ..EndResult::default() })
            }
            true => {
                let above = pins_of(scope, place, &EndResult { evidence, ..EndResult::default() });
                let below = below.iter().map(|claim| claim.as_bytes());
                let parts = [&b"accepted"[..], recorded.pins.as_bytes(), above.as_bytes()];
                Digest::of_parts(parts.into_iter().chain(below))
            }
        };
        Some(EndDigests { pins, ..recorded })
    }

    /// Returns the claims that a person accepted in the scopes of an opener after its end.
    fn claims_below(&self, step: &Step, end: &Header) -> Vec<String> {
        let is_below = |scope: &ScopePath| {
            let child = std::iter::successors(Some(scope.clone()), ScopePath::parent)
                .find(|scope| scope.parent().as_ref() == Some(&end.scope));
            let opener = child.and_then(|child| child.opened_by());
            opener.is_some_and(|(name, _)| step.all_children().any(|children| children.name == name))
        };
        let packs = self.0.iter().filter(|(scope, _)| is_below(scope)).flat_map(|(_, packs)| packs.values());
        let later = packs.filter(|accepted| accepted.token > end.token);
        later
            .flat_map(|accepted| {
                claims_of(&EndResult { evidence: Some(&accepted.pack), ..EndResult::default() })
            })
            .collect()
    }
}

/// Returns whether a need has other digests than in the trace of an end.
fn has_other_needs<S>(scope: &Scope<'_, S>, place: usize, end: &Header) -> bool {
    let Some(trace) = &end.trace else { return false };
    scope.shape.needs(place).iter().any(|need| {
        let need = &scope.shape.steps()[*need].id;
        let now = scope.digests.get(need).map(EndDigests::both);
        now.is_some_and(|now| trace.needs.get(need) != Some(&now))
    })
}

fn is_known<S>(scope: &Scope<'_, S>, place: usize) -> bool {
    scope.digests.contains_key(&scope.shape.steps()[place].id)
}
