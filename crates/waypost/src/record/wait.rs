//! Waits of steps, and the messages that fulfilled them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A condition that a step waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Identifies the wait: hash of scope, step, iteration, epoch, key and question.
    pub id: String,
    /// The key given in the step.
    pub key: String,
    /// What is awaited.
    pub on: WaitKind,
    /// What a person is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Value>,
    /// The deadline of an answer or a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Wait {
    /// Returns the time at which the wait ends without an answer or a signal.
    pub fn due(&self) -> Option<Timestamp> {
        match self.on {
            WaitKind::Until(due) => Some(due),
            _ => self.until,
        }
    }
}

/// The kinds of waiting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// A person's answer.
    Answer,
    /// A signal of this name.
    Signal(String),
    /// A time.
    Until(Timestamp),
    /// All child scopes.
    Children,
    /// A resume: it was held before or after a step, as asked when the run was started.
    Resume,
}

/// The wait that took an answer or a signal. The value is in the phase of the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// The id of the wait: an answer counts for this wait only. Empty in a copy for a forked run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wait: String,
    /// The signal; absent for an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<TakenSignal>,
}

/// A signal that a wait took, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakenSignal {
    /// The id of the message.
    pub id: String,
    /// The name of the signal.
    pub name: String,
    /// When it was sent.
    pub sent_at: Timestamp,
}
