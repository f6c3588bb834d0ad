//! Usage: the tokens and the money that steps spend.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Tokens and cost of a step, summed over a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Tokens read.
    #[serde(default)]
    pub tokens_in: u64,
    /// Tokens written.
    #[serde(default)]
    pub tokens_out: u64,
    /// Cost, in the currency of the workflow.
    #[serde(default)]
    pub cost: f64,
    /// The model that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl AddAssign<&Self> for Usage {
    /// Adds up tokens and costs; the model stays.
    fn add_assign(&mut self, other: &Self) {
        self.tokens_in = self.tokens_in.saturating_add(other.tokens_in);
        self.tokens_out = self.tokens_out.saturating_add(other.tokens_out);
        self.cost += other.cost;
    }
}
