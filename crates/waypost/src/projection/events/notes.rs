//! Notes of decisions in records, and their events.

use serde_json::Value;

use super::{EventKind, RecordEvents, RerunCause, step_in};

/// The note about reused results: `steps`, each with its `step` and `of`, the record of the end.
pub(crate) const STEP_REUSED: &str = "step_reused";
/// The note about the cause of a rerun: its `step` and the `cause`, a [`RerunCause`](super::RerunCause).
pub(crate) const STEP_INVALIDATED: &str = "step_invalidated";
/// The note about a step settled by a person: its `step`, `how`, and the `cause` with person and time.
pub(crate) const STEP_SETTLED: &str = "step_settled";
/// The note about a step invalidated by its evidence: its `step` and the failed `claims`.
pub(crate) const EVIDENCE_FAILED: &str = "evidence_failed";

impl RecordEvents<'_> {
    pub(super) fn reused(&mut self, data: &Value) {
        for reused in data["steps"].as_array().into_iter().flatten() {
            let of = reused["of"].as_str().unwrap_or_default().to_owned();
            self.push_of(step_in(reused), EventKind::StepReused { of });
        }
    }

    pub(super) fn invalidated(&mut self, name: &str, data: &Value) {
        if let Some(cause) = RerunCause::of_note(name, data) {
            self.push_of(step_in(data), EventKind::StepInvalidated { cause });
        }
    }

    pub(super) fn settled(&mut self, data: &Value) {
        let how = data["how"].as_str().unwrap_or_default().to_owned();
        self.push_of(step_in(data), EventKind::StepSettled { how, cause: data["cause"].clone() });
    }
}
