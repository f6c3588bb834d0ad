//! The causes of reruns.

use serde::{Deserialize, Serialize};

use crate::id::StepId;

/// Why a step runs again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum RerunCause {
    /// Its evidence does not hold.
    EvidenceFailed {
        /// The claims, by name.
        #[serde(default)]
        claims: Vec<String>,
    },
    /// A step that it needs or reads gave or left something else.
    UpstreamChanged {
        /// That step; none where the input of the whole branch changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepId>,
    },
    /// Its definition changed.
    DefinitionChanged,
    /// A person asked for it.
    Requested {
        /// The name of the person, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
}
