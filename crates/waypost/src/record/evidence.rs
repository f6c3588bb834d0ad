//! Evidence as committed: claims, the rule over them, and the values found.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::is_default;

/// The label of records with accepted evidence.
pub(crate) const ACCEPTED_LABEL: (&str, &str) = ("evidence", "accepted");

/// Claims, and the rule over them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// How many claims must hold; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u32>,
    /// The claims; an empty list proves nothing.
    pub claims: Vec<Claim>,
}

/// A checkable statement about a subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Kind of evidence, such as `file_sha256`.
    pub kind: String,
    /// The subject: a path beneath the base folder, a table, an address.
    pub subject: String,
    /// A name given by the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The expected value, secrets masked.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub expect: Value,
    /// The expectation was pinned: measured when the step committed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pinned: bool,
    /// The subject ends with the machine: a process, a port, a container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub live: bool,
    /// The machine of the commit, if the claim is about this machine: its files, its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The file at the time of the commit, if the subject is another name for it: a path through links, or
    /// one of several hard links. Claims about one file supersede each other, whatever the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The stamp of the pinned subject: size, times and inodes of files. If the terms allow, a subject with
    /// an equal stamp is not read again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<String>,
    /// How and when the claim is checked, and its severity.
    #[serde(default, skip_serializing_if = "is_default")]
    pub terms: Terms,
    /// The verdict when the step committed.
    pub verdict: Verdict,
    /// The value found, secrets masked.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub found: Value,
    /// The reason why the claim could not be checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The time of the check, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
}

/// How and when a claim is checked, and its severity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// The claim holds if the expected value is not found.
    #[serde(default, skip_serializing_if = "is_default")]
    pub not: bool,
    /// Limit of one check, if it differs from the verifier's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long the check is repeated until the claim holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
    /// When the claim is checked; empty means on every occasion.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub at: BTreeSet<Occasion>,
    /// The effect of the claim on its pack.
    #[serde(default, skip_serializing_if = "is_default")]
    pub severity: Severity,
    /// Neither the expected nor the found value is recorded, so the claim is checked only when its step ends.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sensitive: bool,
    /// A pinned subject with an equal stamp is trusted without a read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fast: bool,
    /// Metadata of the user.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
}

/// The occasion of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// The step of the claim has ended.
    Commit,
    /// A resume is about to trust the step.
    Resume,
    /// A person requested the check.
    Verify,
}

/// The effect of a claim on its pack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The pack holds only if the claim holds.
    #[default]
    Fail,
    /// The claim is checked and reported, and does not affect the pack.
    Warn,
}

/// The result of a check. Only `Ok` is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The claim holds.
    Ok,
    /// The claim does not hold.
    Failed,
    /// The claim could not be checked.
    Unknown,
    /// The claim was deliberately not checked.
    Skipped,
}

impl Verdict {
    /// Returns the word used in JSON, messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
        }
    }
}
