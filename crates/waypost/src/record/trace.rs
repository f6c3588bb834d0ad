//! The trace of an end: digests of all inputs of a result, and of the result.
//!
//! A verifying trace in the sense of "Build systems a la carte" (Mokhov, Mitchell, Peyton Jones, 2018): a
//! result is reused if its trace equals the step's current trace.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{Digest, StepId};

/// Digests of the inputs of an end. Kept in the header of every end of a graph with evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Of the step: its text and inherited settings.
    pub definition: Digest,
    /// Of the scope: the input from its opener.
    pub input: Digest,
    /// By step: output and pins of each need, and the output of each other step read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub needs: BTreeMap<StepId, Digest>,
    /// For a pass after the first: output and pins of the previous pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_pass: Option<Digest>,
}

impl Trace {
    /// Returns the digest of all parts.
    pub fn digest(&self) -> Digest {
        let needs = self.needs.iter().flat_map(|(step, of)| [step.as_str().as_bytes(), of.as_bytes()]);
        let previous = self.previous_pass.iter().map(|pass| &pass.as_bytes()[..]);
        let own = [&self.definition.as_bytes()[..], self.input.as_bytes()].into_iter();
        Digest::of_parts(own.chain(needs.map(|part: &[u8]| part)).chain(previous))
    }
}

/// Digests of the results of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndDigests {
    /// Of the step's result: status, exit code, outputs. No other output digest equals the digest of a failed
    /// end.
    pub output: Digest,
    /// Of the evidence pinned by the step, its children and all its ancestors in the scope.
    pub pins: Digest,
}

impl EndDigests {
    /// Returns the digest of both, for a downstream step.
    pub fn both(&self) -> Digest {
        Digest::of_parts([&self.output.as_bytes()[..], self.pins.as_bytes()])
    }

    /// Returns the digests of several ends: the Merkle root of the outputs, and the set of the pins.
    pub(crate) fn together(ends: &[Self]) -> Self {
        let outputs: Vec<Digest> = ends.iter().map(|end| end.output).collect();
        let pins = pin_set(&[], ends.iter().map(|end| end.pins));
        Self { output: Digest::merkle(&outputs), pins }
    }
}

/// Returns the digest of claims and of pins as a set: steps without pins, and the order of steps, change no digest.
pub(crate) fn pin_set(claims: &[String], pins: impl Iterator<Item = Digest>) -> Digest {
    let none = Digest::of(&[]);
    let above: BTreeSet<Digest> = pins.filter(|pins| *pins != none).collect();
    match above.first() {
        None if claims.is_empty() => none,
        Some(only) if claims.is_empty() && above.len() == 1 => *only,
        _ => {
            let claims = claims.iter().map(|claim| claim.as_bytes());
            let above = above.iter().map(|pins| &pins.as_bytes()[..]);
            Digest::of_parts(claims.chain([&b"above"[..]]).chain(above))
        }
    }
}
