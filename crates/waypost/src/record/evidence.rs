//! Evidence as it is committed: claims that can be checked, the rule over them, and what was found.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::is_default;

/// Claims and the rule over them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// How many of the claims must hold; none means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<u32>,
    /// The claims; an empty list holds for nothing.
    pub claims: Vec<Claim>,
}

/// One thing that can be checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Kind of evidence, such as `file_sha256`.
    pub kind: String,
    /// What it is about: a path beneath the base folder, a table, an address.
    pub subject: String,
    /// A name given by the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What must be found, secrets masked.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub expect: Value,
    /// The expectation was taken from the world when the step committed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pinned: bool,
    /// It dies with the machine: a process, a port, a container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub live: bool,
    /// The machine on which it was made, where it is about that machine: its files, its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Which file it was about when it was made, where its subject is another name of that: one that leads there through
    /// links, or one of several hard links. Claims about one file are about one thing, whatever they call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How what was pinned looked from outside: size, times and inodes of files. While it looks so it is not read again, where
    /// the terms say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<String>,
    /// How and when it is checked, and what it counts for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub terms: Terms,
    /// What came out when the step committed.
    pub verdict: Verdict,
    /// What was found, secrets masked.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub found: Value,
    /// Why it could not be checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
}

/// How and when a claim is checked, and what it counts for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// It holds where what is expected is not found.
    #[serde(default, skip_serializing_if = "is_default")]
    pub not: bool,
    /// How long one check may take, where the verifier's own limit does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long it is looked at again and again until it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
    /// When it is checked; empty means at every occasion.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub at: BTreeSet<Occasion>,
    /// What it counts for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub severity: Severity,
    /// What is expected and what is found are written down nowhere, so that it is checked only when its step ends.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sensitive: bool,
    /// What was pinned is trusted without being read as long as it looks as it did then.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fast: bool,
    /// What the user keeps beside it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Value>,
}

/// When claims are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Occasion {
    /// Its step has ended.
    Commit,
    /// Its step is about to be trusted.
    Resume,
    /// Somebody wants to know.
    Verify,
}

/// What a claim counts for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Its pack holds only if it does.
    #[default]
    Fail,
    /// It is checked and told, and its pack does not depend on it.
    Warn,
}

/// What came out of a check. Only `Ok` is trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Ok,
    /// It does not.
    Failed,
    /// It could not be checked.
    Unknown,
    /// It was not checked, on purpose.
    Skipped,
}
