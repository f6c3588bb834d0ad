//! Labels of recorder checkpoints: one of eight, kept in the header.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::Error;

/// The header key of a [`Label`].
pub const LABEL_KEY: &str = "type";
/// The header key of the content digest of a commit with an external id.
pub(super) const CONTENT_KEY: &str = "content";
/// Most labels of a checkpoint besides its own: labels are for lookups, not for data.
pub const LABELS_MAX: usize = 32;
/// Longest key or value of a label.
pub const LABEL_BYTES_MAX: usize = 256;

/// The meaning of a checkpoint in the loop of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// A pass of the loop begins.
    IterationStart,
    /// A pass of the loop ends.
    IterationEnd,
    /// A tool was run.
    ToolExecuted,
    /// A language model answered.
    LlmResponse,
    /// A person decided, or must decide.
    ApprovalPoint,
    /// The program changed between two states of its own.
    StateTransition,
    /// A person or the program requested a checkpoint here.
    ManualCheckpoint,
    /// An error was caught here.
    ErrorBoundary,
}

impl Label {
    /// All labels.
    pub const ALL: [Self; 8] = [
        Self::IterationStart,
        Self::IterationEnd,
        Self::ToolExecuted,
        Self::LlmResponse,
        Self::ApprovalPoint,
        Self::StateTransition,
        Self::ManualCheckpoint,
        Self::ErrorBoundary,
    ];

    /// Returns the recorded word.
    pub fn name(self) -> &'static str {
        match self {
            Self::IterationStart => "iteration_start",
            Self::IterationEnd => "iteration_end",
            Self::ToolExecuted => "tool_executed",
            Self::LlmResponse => "llm_response",
            Self::ApprovalPoint => "approval_point",
            Self::StateTransition => "state_transition",
            Self::ManualCheckpoint => "manual_checkpoint",
            Self::ErrorBoundary => "error_boundary",
        }
    }

    /// Reads the label from the labels of a header.
    pub(super) fn among(labels: &BTreeMap<String, String>) -> Option<Self> {
        labels.get(LABEL_KEY)?.parse().ok()
    }

    /// Returns the label as a scan filter.
    pub(super) fn wanted(self) -> (String, String) {
        (LABEL_KEY.to_owned(), self.name().to_owned())
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Label {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|label| label.name() == text);
        known.ok_or_else(|| {
            let text: String = text.chars().take(80).collect();
            Error::Invalid(format!("`{text}` is not one of the eight labels of checkpoints"))
        })
    }
}

/// Checks that a program's labels are within limits and do not use reserved keys.
pub(super) fn check(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    if labels.len() > LABELS_MAX {
        let found = labels.len();
        return Err(Error::Invalid(format!("a checkpoint has {found} labels, the maximum is {LABELS_MAX}")));
    }
    for (key, value) in labels {
        if key.is_empty() || key.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
            let key: String = key.chars().take(80).collect();
            let rule = format!("keys have 1 to {LABEL_BYTES_MAX} bytes, and values at most the same");
            return Err(Error::Invalid(format!("label `{key}` is not allowed: {rule}")));
        }
        if matches!(key.as_str(), LABEL_KEY | CONTENT_KEY) {
            return Err(Error::Invalid(format!("label `{key}` is reserved: choose another key")));
        }
    }
    Ok(())
}
