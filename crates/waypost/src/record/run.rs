//! The run record: the definition and settings of a run, fixed when the run begins.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{Digest, RunId, ScopePath, StepId};

/// The definition and settings of a run, fixed when the run begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// Format version, [`FORMAT`](super::FORMAT).
    pub v: u32,
    /// The run.
    pub run: RunId,
    /// Name of the workflow or graph.
    pub workflow: String,
    /// The definition of the steps.
    pub definition: Definition,
    /// Workflow file, relative to the folder that holds the store; `None` without a file.
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
    /// Settings of the front end for a resume, such as the chosen shell.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub settings: serde_json::Map<String, Value>,
    /// The configuration of the program, readable by its steps.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub config: serde_json::Map<String, Value>,
    /// How soon an acknowledged checkpoint is on disk.
    #[serde(default)]
    pub durability: Durability,
    /// Checkpoints kept with their states, at least [`RETENTION_MIN`]; `None` keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<u32>,
    /// The checkpoint of another run that this run was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Version of the tool that created the run.
    pub tool: String,
    /// Host and user of the creation, for display.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub actor: String,
    /// Creation time, for display.
    pub created_at: Timestamp,
}

/// The key of the program's name in the settings.
const PROGRAM: &str = "program";

impl RunRecord {
    /// Returns the name of the program that created the run, if the run has no workflow file.
    pub fn program(&self) -> Option<&str> {
        self.settings.get(PROGRAM)?.as_str()
    }

    /// Names this process's program in the settings: only the program can resume the run.
    pub(crate) fn name_program(&mut self) {
        let file = std::env::current_exe().ok();
        if let Some(name) = file.as_deref().and_then(std::path::Path::file_name) {
            self.settings.insert(PROGRAM.to_owned(), Value::from(name.to_string_lossy()));
        }
    }

    /// Creates the record of a run without steps, labels and settings.
    pub fn new(run: RunId, workflow: &str, created_at: Timestamp) -> Self {
        Self {
            v: super::FORMAT,
            run,
            workflow: workflow.to_owned(),
            definition: Definition { text: None, path: None, steps: Vec::new(), accepted: BTreeMap::new() },
            path: None,
            base: None,
            params: serde_json::Map::new(),
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            settings: serde_json::Map::new(),
            config: serde_json::Map::new(),
            durability: Durability::default(),
            retention: None,
            parent: None,
            tool: concat!("waypost ", env!("CARGO_PKG_VERSION")).to_owned(),
            actor: String::new(),
            created_at,
        }
    }
}

/// Fewest checkpoints with states: the newest, and a fallback in case of damage.
pub const RETENTION_MIN: u32 = 2;

/// The definition of a run: its own copy of the workflow, and a fingerprint of each step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The text of the workflow file, if there is a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The workflow file of this text, if it differs from the run record's file: relative to the folder that
    /// holds the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Fingerprint of each step's definition, in order.
    pub steps: Vec<StepPrint>,
    /// Older fingerprints with kept results, by step path without keys (`each/load`). The results count as
    /// made by this definition.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub accepted: BTreeMap<String, BTreeSet<Digest>>,
}

/// A step at the time of the definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepPrint {
    /// The step.
    pub id: StepId,
    /// SHA-256 over the definition of the step, without its name, place, timeouts or retries.
    pub fingerprint: Digest,
    /// The route targets, sorted; `end` is the end. Covered by the fingerprint; kept for display.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leads_to: Vec<StepId>,
}

/// The origin of a fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// The run.
    pub run: RunId,
    /// The parent's scope.
    pub scope: ScopePath,
    /// The checkpoint.
    pub seq: u64,
    /// The checkpoint's digest.
    pub digest: Digest,
}

/// How soon an acknowledged checkpoint is on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Before the acknowledgement.
    #[default]
    Sync,
    /// Soon after: a power failure may lose the last moments, a crash of the process nothing.
    Async,
}

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// No worker has taken the run yet.
    Queued,
    /// A process is running it.
    Running,
    /// The run waits for an answer, a signal or a time.
    Waiting,
    /// The run was stopped, or its process died; it can be resumed.
    Interrupted,
    /// A step failed; the run can be resumed.
    Failed,
    /// A non-idempotent step was interrupted, or is downstream of a rerun step.
    InDoubt,
    /// All steps are done.
    Completed,
    /// All steps are done, with dead letters or tolerated failures.
    CompletedWithFailures,
    /// The run was cancelled for good.
    Cancelled,
}

impl RunStatus {
    /// Returns whether `resume` can continue the run.
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
