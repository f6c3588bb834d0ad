//! The causes of reruns.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::StepId;
use crate::record::{Note, RequestCause};

use super::notes::{EVIDENCE_FAILED, STEP_INVALIDATED};

/// Why a step reruns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum RerunCause {
    /// The step's evidence failed.
    EvidenceFailed {
        /// The names of the failed claims.
        #[serde(default)]
        claims: Vec<String>,
    },
    /// The outputs or files of an upstream step changed.
    UpstreamChanged {
        /// The upstream step; `None` if the input of the whole scope changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepId>,
    },
    /// The step's definition changed.
    DefinitionChanged,
    /// A person requested the rerun.
    Requested {
        /// The name of the person, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// True if the person rolled the run back.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_rollback: bool,
    },
}

impl RerunCause {
    /// Returns the newest cause of a rerun of a step in the notes of a record.
    pub(crate) fn noted(notes: &[Note], step: &StepId) -> Option<Self> {
        notes.iter().rev().find_map(|note| match note {
            Note::Event { name, data } if data["step"] == step.as_str() => Self::of_note(name, data),
            _ => None,
        })
    }

    /// Returns the cause in a note about an invalid step; `None` for other notes.
    pub(super) fn of_note(name: &str, data: &Value) -> Option<Self> {
        match name {
            EVIDENCE_FAILED => {
                let claims = serde_json::from_value(data["claims"].clone()).unwrap_or_default();
                Some(Self::EvidenceFailed { claims })
            }
            STEP_INVALIDATED => serde_json::from_value(data["cause"].clone()).ok(),
            _ => None,
        }
    }
}

impl From<RequestCause> for RerunCause {
    fn from(cause: RequestCause) -> Self {
        match cause {
            RequestCause::DefinitionChanged => Self::DefinitionChanged,
            RequestCause::Requested { by } => Self::Requested { by, by_rollback: false },
        }
    }
}
