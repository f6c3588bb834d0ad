//! Reuse: whether a reusable end is valid again, and the digests of a join.

use std::sync::Arc;

use super::super::definition::{Kind, Name, Step, children};
use super::super::position::{Activity, Digest, End, How, Pin};
use super::super::rule::Rule;
use super::Engine;

/// Output and pin digest of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Joined {
    pub output: Digest,
    pub pins: Digest,
}

/// Whether to verify the evidence of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    Verify,
    Trust,
}

impl Engine {
    /// Returns the end of a step and pass that is kept for reuse or confirmation.
    pub(super) fn set_aside_end(&self, scope: &str, step: &Step, activity: &Activity) -> Option<Arc<End>> {
        let key = (step.id.clone(), activity.pass);
        self.position(scope).reusable.get(&key).and_then(|reusable| reusable.end()).cloned()
    }

    /// Returns the reusable end of a step: its trace equals the current input, and its evidence holds.
    pub(super) fn reusable_end(&self, scope: &str, step: &Step, activity: &Activity) -> Option<Arc<End>> {
        use super::super::position::Reusable;
        let key = (step.id.clone(), activity.pass);
        let Some(Reusable::Ended(end)) = self.position(scope).reusable.get(&key) else { return None };
        let same =
            end.trace == self.trace(scope, step, activity) && self.definition.accepts(step, end.version);
        (same && self.holds(scope, step, end)).then(|| end.clone())
    }

    /// Returns whether the evidence of the reusable end cannot be verified.
    pub(super) fn has_unknown_evidence(&self, scope: &str, step: &Step, activity: &Activity) -> bool {
        use super::super::position::Reusable;
        let key = (step.id.clone(), activity.pass);
        let Some(Reusable::Ended(end)) = self.position(scope).reusable.get(&key) else { return false };
        self.on(Rule::UnknownStops)
            && self.world.is_unknown(&self.pins_beneath(scope, step, end))
            && self.definition.accepts(step, end.version)
            && end.trace == self.trace(scope, step, activity)
    }

    /// Returns the pins of an end and of all ends below.
    fn pins_beneath(&self, scope: &str, step: &Step, end: &End) -> Vec<Pin> {
        let mut found = end.pins.clone();
        if step.is_leaf() {
            return found;
        }
        for child in children(scope, step, end.pass, &end.items) {
            let Some(position) = self.positions.get(&child) else { continue };
            for inner in self.steps_of(&child).iter() {
                for pass in position.passes(&inner.id) {
                    found.extend(self.pins_beneath(&child, inner, &pass));
                }
            }
        }
        found
    }

    /// Returns whether the evidence of an end holds. For an opener, the children must be the joined children,
    /// with current definitions and valid evidence.
    pub(super) fn holds(&self, scope: &str, step: &Step, end: &End) -> bool {
        self.holds_with(scope, step, end, Evidence::Verify)
    }

    fn holds_with(&self, scope: &str, step: &Step, end: &End, evidence: Evidence) -> bool {
        if step.is_leaf() {
            if evidence == Evidence::Trust || end.pins.is_empty() {
                return true;
            }
            let later = self.claimed_later(scope, &step.id);
            let judged = || end.pins.iter().filter(|pin| !later.contains(&pin.file));
            return self.world.holds(judged()) && (!self.world.is_unknown(judged()) || self.is_plan);
        }
        if step.kind == Kind::ForEach && end.items != step.items {
            return false;
        }
        let scopes = children(scope, step, end.pass, &end.items);
        let closed = |child: &Name| self.positions.contains_key(child) && self.is_closed(child);
        if !scopes.iter().all(closed) {
            return false;
        }
        let joined = self.joined(scope, step, &scopes);
        if (joined.output, joined.pins) != (end.output_digest, end.pin_digest) {
            return false;
        }
        scopes.iter().all(|child| self.child_holds(child, evidence))
    }

    fn child_holds(&self, child: &str, evidence: Evidence) -> bool {
        self.steps_of(child).iter().all(|inner| {
            let position = self.position(child);
            let Some(end) = position.ledger.get(&inner.id) else { return false };
            let evidence = if inner.when.is_hook() { Evidence::Trust } else { evidence };
            let accepted = !end.ran() || self.definition.accepts(inner, end.version);
            let passes = position.passes(&inner.id);
            accepted && passes.iter().all(|pass| !pass.ran() || self.holds_with(child, inner, pass, evidence))
        })
    }

    /// Returns the digests of a join over all ends of the children.
    pub(super) fn joined(&self, scope: &str, step: &Step, scopes: &[Name]) -> Joined {
        let mut outputs: Vec<(Name, Name, How, Digest)> = Vec::new();
        let mut pins: Vec<(Name, Name, Digest)> = Vec::new();
        for child in scopes {
            let part: Name = child.rsplit('/').next().unwrap_or(child).into();
            for inner in self.steps_of(child).iter() {
                let end = self.position(child).ledger.get(&inner.id).expect("the child is closed");
                outputs.push((part.clone(), inner.id.clone(), end.how, end.output_digest));
                pins.push((part.clone(), inner.id.clone(), end.pin_digest));
            }
        }
        let is_unknown = outputs.iter().any(|(_, _, _, digest)| *digest == Digest::UNKNOWN);
        let output = if is_unknown { Digest::UNKNOWN } else { Digest::of(outputs) };
        Joined { output, pins: self.pin_digest(scope, step, Digest::of(pins)) }
    }

    /// Returns whether all steps of a scope have ended.
    pub(super) fn is_closed(&self, scope: &str) -> bool {
        let position = self.position(scope);
        let ended = |step: &Arc<Step>| position.ledger.contains_key(&step.id);
        position.frontier.is_empty() && self.steps_of(scope).iter().all(ended)
    }

    /// Returns the opening number for a reused opener, which may be older than the last opening of its
    /// children.
    pub(super) fn with_opening_of_children(&self, scope: &str, step: &Step, end: &End) -> u64 {
        if step.is_leaf() || !self.on(Rule::ReuseTakesOpening) {
            return end.opening;
        }
        let scopes = children(scope, step, end.pass, &end.items);
        scopes.iter().map(|child| self.position(child).opening).max().unwrap_or(end.opening)
    }
}
