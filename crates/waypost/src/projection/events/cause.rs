//! The causes of reruns.

use serde::{Deserialize, Serialize};

use crate::id::StepId;
use crate::record::RequestCause;

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
        /// The upstream step; `None` if the input of the whole branch changed.
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
    },
}

impl From<RequestCause> for RerunCause {
    fn from(cause: RequestCause) -> Self {
        match cause {
            RequestCause::DefinitionChanged => Self::DefinitionChanged,
            RequestCause::Requested { by } => Self::Requested { by },
        }
    }
}
