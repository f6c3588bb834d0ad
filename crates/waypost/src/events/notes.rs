//! The notes in records from which events about decisions are made.

use serde_json::Value;

use super::{EventKind, RerunCause, Told, step_in};

/// The note of a record that names the steps whose results are reused: `steps`, each with its `step` and `of`, the record of
/// the end.
pub(crate) const STEP_REUSED: &str = "step_reused";
/// The note of a record that says why a step runs again: its `step` and the `cause`, a [`RerunCause`](super::RerunCause).
pub(crate) const STEP_INVALIDATED: &str = "step_invalidated";
/// The note of a record that settles a step as a person chose: its `step`, `how`, and the `cause` with who and when.
pub(crate) const STEP_SETTLED: &str = "step_settled";
/// The note of a record that opens a step again for its evidence: its `step` and the `claims` that do not hold.
pub(crate) const EVIDENCE_FAILED: &str = "evidence_failed";

impl Told<'_> {
    pub(super) fn reused(&mut self, data: &Value) {
        for reused in data["steps"].as_array().into_iter().flatten() {
            let of = reused["of"].as_str().unwrap_or_default().to_owned();
            self.say_of(step_in(reused), EventKind::StepReused { of });
        }
    }

    pub(super) fn invalidated(&mut self, name: &str, data: &Value) {
        let claims = || serde_json::from_value(data["claims"].clone()).unwrap_or_default();
        let cause = match name {
            EVIDENCE_FAILED => Some(RerunCause::EvidenceFailed { claims: claims() }),
            _ => serde_json::from_value(data["cause"].clone()).ok(),
        };
        if let Some(cause) = cause {
            self.say_of(step_in(data), EventKind::StepInvalidated { cause });
        }
    }

    pub(super) fn settled(&mut self, data: &Value) {
        let how = data["how"].as_str().unwrap_or_default().to_owned();
        self.say_of(step_in(data), EventKind::StepSettled { how, cause: data["cause"].clone() });
    }
}
