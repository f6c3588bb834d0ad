//! Traces: the current inputs of a step. All needs of the step are in the ledger.

use std::collections::BTreeMap;

use super::super::definition::{Name, Step};
use super::super::position::{Activity, Digest, End, Trace, Truth};
use super::Engine;

impl Engine {
    /// Returns the trace of a step: the digests of its current inputs.
    pub(super) fn trace(&self, scope: &str, step: &Step, activity: &Activity) -> Trace {
        let position = self.position(scope);
        let end = |id: &Name| position.ledger.get(id).expect("all needs have ended");
        let needs: BTreeMap<_, _> = step.needs.iter().map(|id| (id.clone(), end(id).digest())).collect();
        let reads: BTreeMap<_, _> = step.reads.iter().map(|id| (id.clone(), end(id).output_digest)).collect();
        Trace {
            input: position.input.digest.unwrap_or(Digest::UNKNOWN),
            pass: activity.pass,
            needs,
            reads,
            previous_pass: activity.before.as_ref().map(|end| end.digest()),
        }
    }

    /// Returns the current inputs of a step as plain values.
    pub(in super::super) fn truth_given(&self, scope: &str, step: &Step, activity: &Activity) -> Truth {
        let position = self.position(scope);
        let of = |id: &Name| &position.ledger.get(id).expect("all needs have ended").truth;
        let needs = step.needs.iter().map(|id| Truth::list([Truth::Name(id.clone()), of(id).whole()]));
        let reads = step.reads.iter().map(|id| Truth::list([Truth::Name(id.clone()), of(id).output.clone()]));
        Truth::list([
            position.input.truth.clone(),
            Truth::list(needs),
            Truth::list(reads),
            activity.before.as_ref().map(|end| end.truth.whole()).unwrap_or_default(),
        ])
    }

    /// Returns the plain pins of all needs of a step.
    pub(super) fn pins_upstream(&self, scope: &str, step: &Step) -> Truth {
        let position = self.position(scope);
        let pins = |id: &Name| position.ledger.get(id).expect("all needs have ended").truth.pins.clone();
        Truth::list(step.needs.iter().map(pins))
    }

    /// Returns the pin digest of a step, given the digest of its own pins.
    pub(super) fn pin_digest(&self, scope: &str, step: &Step, own: Digest) -> Digest {
        let position = self.position(scope);
        let of = |id: &Name| position.ledger.get(id).expect("all needs have ended").pin_digest;
        let needs: Vec<_> = step.needs.iter().map(of).collect();
        Digest::of((own, needs))
    }

    /// Returns the value that a step computes from the outputs of other steps.
    pub(super) fn value_read(&self, scope: &str, step: &Step) -> i64 {
        let position = self.position(scope);
        let is_read =
            |id: &Name| self.reads_openers || self.step(scope, id).is_some_and(|step| step.is_leaf());
        let output = |id: &Name| position.ledger.get(id).and_then(|end| end.output).unwrap_or(0);
        let output = |id: &Name| if is_read(id) { output(id) } else { 0 };
        let given = if self.reads_openers { position.input.value } else { 0 };
        given + step.upstream().map(output).sum::<i64>()
    }

    /// Returns whether an upstream step in this scope failed or was passed over.
    pub(super) fn failed_upstream(&self, scope: &str, step: &Step) -> bool {
        let position = self.position(scope);
        let failed = |end: &End| end.failed_upstream || end.is_dead();
        step.needs.iter().filter_map(|id| position.ledger.get(id)).any(|end| failed(end))
    }
}
