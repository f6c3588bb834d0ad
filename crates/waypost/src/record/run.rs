//! The run record: what a run is, frozen when it begins.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{BranchPath, Digest, RunId, StepId};

/// What a run is, frozen when it begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// Format version, [`FORMAT`](super::FORMAT).
    pub v: u32,
    /// The run.
    pub run: RunId,
    /// Name of the workflow or graph.
    pub workflow: String,
    /// What it does.
    pub definition: Definition,
    /// Workflow file, relative to the folder that holds the store, where there is a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Base folder of the steps, relative to the folder that holds the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Parameters, resolved.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub params: serde_json::Map<String, Value>,
    /// Names of declared environment variables, each with a digest of its value unless it is a secret.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Option<Digest>>,
    /// Labels of the run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Settings of the front end that a resume needs, such as the shell that was chosen.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub settings: serde_json::Map<String, Value>,
    /// What the program was configured with, for its steps to read.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub config: serde_json::Map<String, Value>,
    /// How soon an acknowledged checkpoint is on disk.
    #[serde(default)]
    pub durability: Durability,
    /// Checkpoints kept with their states, at least [`RETENTION_MIN`]; none keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<u32>,
    /// The checkpoint of another run that this one was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Version of the tool that made the run.
    pub tool: String,
    /// Host and user that made it, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub actor: String,
    /// When it was made, for people.
    pub created_at: Timestamp,
}

/// Fewest checkpoints that keep their states: the newest, and one to fall back to.
pub const RETENTION_MIN: u32 = 2;

/// What a run does: its own copy of the workflow, and what each step of it means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The text of the workflow file, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The file that it is from, where that is not the one of the run record: relative to the folder that holds the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Fingerprint of each step's meaning, in order.
    pub steps: Vec<StepPrint>,
    /// Older fingerprints with kept results, by step path without keys (`each/load`). The results count as made by this
    /// definition.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub accepted: BTreeMap<String, BTreeSet<Digest>>,
}

/// A step as it was when the definition was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepPrint {
    /// The step.
    pub id: StepId,
    /// SHA-256 over what it does, not over its name, place, timeouts or retries.
    pub fingerprint: Digest,
    /// Where it leads by choice, sorted; `end` is the end. The fingerprint covers it: this says it to people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leads_to: Vec<StepId>,
}

/// Where a fork in time began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// The run.
    pub run: RunId,
    /// Its branch.
    pub branch: BranchPath,
    /// The checkpoint.
    pub seq: u64,
    /// Its digest.
    pub digest: Digest,
}

/// How soon an acknowledged checkpoint is on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Before it is acknowledged.
    #[default]
    Sync,
    /// Soon after: a power cut may lose the last moments, a crash of the process nothing.
    Async,
}

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// No worker has taken it yet.
    Queued,
    /// A process works on it.
    Running,
    /// It waits for an answer, a signal or a time.
    Waiting,
    /// It was stopped, or its process died; it can be resumed.
    Interrupted,
    /// A step failed; it can be resumed.
    Failed,
    /// A step that must not be repeated blindly was cut, or comes after what was done again.
    InDoubt,
    /// Everything is done.
    Completed,
    /// Everything is done, with dead letters or tolerated failures.
    CompletedWithFailures,
    /// It was cancelled for good.
    Cancelled,
}

impl RunStatus {
    /// Says whether `resume` has something to go on with.
    pub fn is_resumable(self) -> bool {
        matches!(self, Self::Queued | Self::Waiting | Self::Interrupted | Self::Failed | Self::InDoubt)
    }

    /// Returns the word used in JSON and on screens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
            Self::InDoubt => "in_doubt",
            Self::Completed => "completed",
            Self::CompletedWithFailures => "completed_with_failures",
            Self::Cancelled => "cancelled",
        }
    }
}
