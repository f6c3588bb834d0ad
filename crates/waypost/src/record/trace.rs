//! The trace of an end: digests of all that a result was made from, and of the result.
//!
//! A verifying trace in the sense of "Build systems a la carte" (Mokhov, Mitchell, Peyton Jones, 2018): a result is reused
//! if its trace equals the trace that its step would have now.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{Digest, StepId};

/// Digests of what an end was made from. Kept in the header of every end of a graph with evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Of the step: its text and what it inherits.
    pub definition: Digest,
    /// Of the scope: what its opener gave it.
    pub input: Digest,
    /// By step: of each need its output and its pins, of each other step that was read its output.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub needs: BTreeMap<StepId, Digest>,
    /// Of a pass that followed another: that one's output and pins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_pass: Option<Digest>,
}

impl Trace {
    /// Returns the digest of all its parts.
    pub fn digest(&self) -> Digest {
        let needs = self.needs.iter().flat_map(|(step, of)| [step.as_str().as_bytes(), of.as_bytes()]);
        let previous = self.previous_pass.iter().map(|pass| &pass.as_bytes()[..]);
        let own = [&self.definition.as_bytes()[..], self.input.as_bytes()].into_iter();
        Digest::of_parts(own.chain(needs.map(|part: &[u8]| part)).chain(previous))
    }
}

/// Digests of what an end made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndDigests {
    /// Of what the step gave: status, exit code, outputs. No other output digest equals that of a failed end.
    pub output: Digest,
    /// Of the evidence pinned by the step, its children and all its ancestors in the scope.
    pub pins: Digest,
}

impl EndDigests {
    /// Returns the digest of both, for a step that needs this one.
    pub fn both(&self) -> Digest {
        Digest::of_parts([&self.output.as_bytes()[..], self.pins.as_bytes()])
    }
}
