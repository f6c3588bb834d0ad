//! Choices of a person about unfinished steps.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A choice of a person about an unfinished step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// The settlement at the step's turn.
    pub settle: SettleBy,
    /// The person.
    pub by: String,
    /// The time of the choice.
    pub at: Timestamp,
}

/// How a person settles a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettleBy {
    /// The step is skipped: the outputs are null.
    Skip,
    /// The step counts as completed with these outputs.
    Done(Map<String, Value>),
}
