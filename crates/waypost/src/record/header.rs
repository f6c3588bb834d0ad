//! The header of a checkpoint: the event at a step boundary, and its place in the chain.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::evidence::{Occasion, Pack};
use super::evidence_copies::EvidenceCopies;
use super::is_default;
use super::run::{Definition, RunStatus};
use super::trace::{EndDigests, Trace};
use super::usage::Usage;
use super::wait::{Taken, Wait, WaitKind};
use crate::id::{CheckpointRef, Digest, RunId, ScopePath, StepId};

/// The name of the label that a person gives a checkpoint; also the key of the progress record.
pub const MARK: &str = "mark";

/// The fixed part of a checkpoint; retention keeps it after the state is dropped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Format version, [`FORMAT`](super::FORMAT).
    pub v: u32,
    /// The run.
    pub run: RunId,
    /// The scope.
    pub scope: ScopePath,
    /// 1-based position in the scope.
    pub seq: u64,
    /// Digest of the previous record in this scope; `None` on the first. After damaged records were
    /// quarantined: the newest sound record before them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<Digest>,
    /// The record whose state and position this record continues, if not the previous one: after a rollback,
    /// or after damage. 0 after a restart, which continues no record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<u64>,
    /// Why this record was written.
    pub reason: Reason,
    /// The step of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// The name of the step for people, at the time of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_name: Option<String>,
    /// The attempt of the step.
    #[serde(default, skip_serializing_if = "Try::is_none")]
    pub at: Try,
    /// The event.
    pub phase: Phase,
    /// The attempts whose start this record commits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub started: Vec<Start>,
    /// The body; absent if a later record of the same batch carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyRef>,
    /// The end of the scope, if this record ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// On the first record of a resume: the time of the last record of the run before the resume. The run was idle
    /// from then until this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Timestamp>,
    /// The number of the resume that wrote the record: 0 before the first resume of the run. The main scope counts;
    /// a child scope has the number of the resume that opened or re-entered the scope last.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resume: u64,
    /// The status of the run, on a record after which the run stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// The failure that stopped the run. Set on a record with status `failed` if its own phase is another:
    /// other steps ended later, or in other scopes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedStep>,
    /// Claims and their verdicts, as committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Pack>,
    /// Copies of the evidence of earlier records of the scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<Box<EvidenceCopies>>,
    /// Tokens and cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Side outputs of the step: events, report text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// Labels for lookups.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// An id from a foreign client; indexed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// The earlier record of this scope that this record is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<u64>,
    /// On the record of an answer or a signal: the wait that took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<Box<Taken>>,
    /// A changed workflow that the run goes on with from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Definition>,
    /// A changed configuration, in force from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Map<String, Value>>,
    /// A copy of the previous record's changed workflow or configuration, as protection against damage to a
    /// single record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<Box<Repeated>>,
    /// On the record that ends a child scope as completed: the number of tolerated failures, of joined
    /// scopes and of steps.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failures: u64,
    /// On an end in a graph with evidence: the digests of the inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// On an end in a graph with evidence: the digests of the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<EndDigests>,
    /// On the last record of a child scope in a graph with evidence: the digests of the outputs of its nested
    /// children, and of all pins of its steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_digests: Option<EndDigests>,
    /// On a first record: digest of the run record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Digest>,
    /// On the record of a join: Merkle root of the children's last digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<Digest>,
    /// The fencing token of the append.
    pub token: u64,
    /// Creation time, for display.
    pub created_at: Timestamp,
}

/// A copy of the lasting changes in the previous record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeated {
    /// The record with the change.
    pub of: u64,
    /// The changed workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Definition>,
    /// The changed configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Map<String, Value>>,
}

impl Repeated {
    /// Copies the changes of record `seq`; `None` if the record has no changes.
    pub(crate) fn of(
        seq: u64,
        definition: Option<&Definition>,
        config: Option<&serde_json::Map<String, Value>>,
    ) -> Option<Box<Self>> {
        let changed = definition.is_some() || config.is_some();
        changed.then(|| Box::new(Self { of: seq, definition: definition.cloned(), config: config.cloned() }))
    }
}

impl Header {
    /// Returns how many failures a scope with this last record adds to its parent's count.
    pub(crate) fn failures_with_it(&self) -> u64 {
        u64::from(self.end == Some(End::Failed)) + self.failures
    }

    /// Returns the changes that the next record must repeat.
    pub(crate) fn to_repeat(&self) -> Option<Box<Repeated>> {
        Repeated::of(self.seq, self.definition.as_ref(), self.config.as_ref())
    }

    /// Returns the record whose state this record continues; `None` for a first record and for a restart.
    pub fn basis(&self) -> Option<u64> {
        self.basis.or_else(|| self.seq.checked_sub(1)).filter(|seq| *seq > 0)
    }

    /// Returns the failure as a later record names it: the record's own final failure, or the failure in
    /// `failed`.
    pub fn failure(&self) -> Option<FailedStep> {
        match (&self.failed, &self.phase, &self.step) {
            (Some(failed), _, _) => Some(failed.clone()),
            (None, Phase::Failed(failure), Some(step)) if !failure.retried && !failure.tolerated => {
                Some(FailedStep { scope: None, step: step.clone(), error: failure.error.clone() })
            }
            _ => None,
        }
    }

    /// Returns whether the record keeps the status of the run, and only adds accepted evidence or a label.
    pub fn keeps_status(&self) -> bool {
        matches!((&self.phase, self.reason), (Phase::Progress { .. }, Reason::Accept | Reason::Manual))
    }

    /// Returns the occasion of the record's evidence; claims due only on other occasions were left out.
    pub fn occasion(&self) -> Occasion {
        match &self.phase {
            // Accepted evidence is claimed by the record itself, as at the end of a step.
            Phase::Progress { .. } if self.reason != Reason::Accept => Occasion::Verify,
            Phase::Restored => Occasion::Resume,
            _ => Occasion::Commit,
        }
    }

    /// Returns the reference to the record, as people write it.
    pub fn reference(&self) -> CheckpointRef {
        CheckpointRef { run: self.run.clone(), scope: self.scope.clone(), seq: self.seq }
    }
}

/// Why a record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The scope begins.
    Start,
    /// A step ended or began.
    Step,
    /// A failed step is retried.
    Retry,
    /// A stop was requested.
    Stopped,
    /// Interval checkpoint of a long step that is still running.
    Interval,
    /// The graph requested a stop here.
    Interrupt,
    /// An answer arrived.
    Answer,
    /// A person requested it.
    Manual,
    /// An older position was restored.
    Rollback,
    /// Children were opened.
    Fork,
    /// Children were joined.
    Join,
    /// Evidence was pinned again.
    Accept,
    /// The previous records were damaged.
    Repair,
    /// A finished step reruns on request.
    Redo,
    /// The run or scope was cancelled.
    Cancel,
}

/// An attempt of a step: attempt within iteration within epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Try {
    /// 1-based count of attempts in this iteration and epoch; 0 without a step.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Passes of the loops around the step, outermost first; empty outside loops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iteration: Vec<u32>,
    /// The number of the rerun: 0 before the first rerun of finished steps in the scope.
    #[serde(default, skip_serializing_if = "is_default")]
    pub epoch: u32,
}

impl Try {
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A step whose start a record commits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The step.
    pub step: StepId,
    /// The attempt.
    #[serde(default, skip_serializing_if = "Try::is_none")]
    pub at: Try,
    /// The step continues as a join: its scopes have ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins: bool,
    /// The steps of the same scope whose ends made this step ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<StepId>,
}

/// The event at a step boundary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Only starts of steps.
    Started,
    /// The step completed.
    Completed(Ending),
    /// The step failed.
    Failed(Failure),
    /// The step was stopped before its end, or, if not `in_progress`, before the start of its process.
    Interrupted {
        /// The process had started.
        in_progress: bool,
        /// The requester: a signal's name or a person.
        by: String,
    },
    /// The step waits.
    Waiting(Vec<Wait>),
    /// The step is skipped; the decision is final.
    Skipped(SkipCause),
    /// A durable result inside a step.
    Progress {
        /// The key of the result.
        key: String,
        /// The value of the result.
        value: Value,
    },
    /// The position of `basis` is restored.
    Restored,
}

/// The key of a step's wait for the scopes opened after its work.
pub const WAIT_HOOKS: &str = "hooks";

impl Phase {
    /// Returns the failure of a failed phase.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns how the step ended, for a completed or failed phase.
    pub fn ending(&self) -> Option<&Ending> {
        match self {
            Self::Completed(ending) => Some(ending),
            phase => phase.failure().map(|failure| &failure.ending),
        }
    }

    /// Returns whether the record opens scopes of a step's work.
    pub fn opens_work(&self) -> bool {
        self.opens(false)
    }

    /// Returns whether the record opens the [hooks](crate::plan::shape::Step::hooks) of a step.
    pub fn opens_hooks(&self) -> bool {
        self.opens(true)
    }

    fn opens(&self, hooks: bool) -> bool {
        let is_it = |wait: &Wait| wait.on == WaitKind::Children && (wait.key == WAIT_HOOKS) == hooks;
        matches!(self, Self::Waiting(waits) if waits.iter().any(is_it))
    }

    /// Returns the word for the phase used in JSON and on screens.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Interrupted { .. } => "interrupted",
            Self::Waiting(_) => "waiting",
            Self::Skipped(_) => "skipped",
            Self::Progress { .. } => "progress",
            Self::Restored => "restored",
        }
    }
}

/// How a step ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ending {
    /// Exit code of the process, if the step had a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The outputs, if small ([`OUTPUTS_INLINE_BYTES_MAX`](super::OUTPUTS_INLINE_BYTES_MAX)). The state has
    /// all outputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Value>,
    /// Size of the outputs in bytes, if too large for the header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_bytes: Option<u64>,
    /// The executed command, secrets masked, if it differs from the text of the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The printed text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Printed>,
    /// Standard output of a failed step, or the outcomes of its children as JSON: input of the settlement by the program.
    /// Goes into the state; not recorded here.
    #[serde(skip)]
    pub stdout: Option<String>,
}

/// Why a step failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The kind of failure, as matched by `retry.when` and `continue_on_error`.
    pub kind: FailureKind,
    /// The error and its causes, outermost first.
    pub error: Vec<String>,
    /// The step is retried automatically.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retried: bool,
    /// The failure is tolerated: the step counts as finished.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tolerated: bool,
    /// Exit code, outputs and log, as far as present.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ending: Ending,
    /// For a step that failed because of a scope: the failed step in this scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<StepBelow>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.error.join(": "))
    }
}

/// The failure of an item or a scope becomes the error of a join with `?`.
impl std::error::Error for Failure {}

/// A step in a child scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepBelow {
    /// The scope.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
}

/// Longest text of one error in a chain of causes. Ample for a person, and small enough for a full chain in a
/// header.
pub const FAILURE_TEXT_BYTES_MAX: usize = 16 << 10;
/// Most errors kept of one chain.
pub const FAILURE_CAUSES_MAX: usize = 32;

/// Truncates a long text, and appends its full size.
fn cut(text: &mut String) {
    if text.len() > FAILURE_TEXT_BYTES_MAX {
        let bytes = text.len();
        let end = (0..=FAILURE_TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(&format!(" … ({bytes} bytes in all)"));
    }
}

impl Failure {
    /// Creates a failure from an error and its causes, outermost first. To fit a header, texts beyond
    /// [`FAILURE_TEXT_BYTES_MAX`] are truncated, and only the outermost [`FAILURE_CAUSES_MAX`] errors are
    /// kept.
    pub fn new(kind: FailureKind, mut error: Vec<String>) -> Self {
        error.truncate(FAILURE_CAUSES_MAX);
        error.iter_mut().for_each(cut);
        Self { kind, error, retried: false, tolerated: false, ending: Ending::default(), below: None }
    }
}

/// The failure that stopped a run, as a later record names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedStep {
    /// The scope of the step, if it differs from the record's scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ScopePath>,
    /// The step.
    pub step: StepId,
    /// The error and its causes, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub error: Vec<String>,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The process exited with a code other than 0.
    Exit,
    /// The process was killed by a signal from outside Waypost.
    Signal,
    /// The step exceeded its time limit.
    Timeout,
    /// The process could not be started.
    Spawn,
    /// An expression could not be evaluated.
    Expression,
    /// Declared outputs could not be read.
    Outputs,
    /// Evidence failed or could not be checked.
    Evidence,
    /// The step's own error.
    Error,
    /// The step's own error, marked as not worth a retry.
    Fatal,
    /// A limit of the run was reached.
    Limit,
    /// Under `fail_fast`, the failure of another step stopped the begun step.
    Cancelled,
}

/// The printed text of a step. The log itself is a blob of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Bytes printed, masked; the log may hold fewer.
    pub bytes: u64,
    /// SHA-256 of all bytes printed, masked.
    pub digest: Digest,
    /// The end of the printed text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
}

/// Why a step was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipCause {
    /// The step's `if` was false.
    Condition(String),
    /// The step needs this step, which was skipped.
    Need(StepId),
    /// This upstream step failed.
    UpstreamFailed(StepId),
    /// This person skipped it.
    ByHand(String),
}

/// How a scope ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// All steps are done.
    Completed,
    /// The scope failed finally: a dead letter.
    Failed,
    /// The scope was skipped.
    Skipped,
    /// The scope was cancelled.
    Cancelled,
}

/// A side output of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// A custom event of the step.
    Event {
        /// The event's name.
        name: String,
        /// The event's data.
        data: Value,
    },
    /// Markdown for the report.
    Report(String),
    /// A warning to a person, such as a lost checkpoint that was tolerated.
    Warning(String),
}

/// The header's description of the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyRef {
    /// SHA-256 of the body's bytes.
    pub digest: Digest,
    /// Size of the body in bytes.
    pub bytes: u64,
    /// Size of the position at the body's start; a newline follows, then the state.
    pub position_bytes: u64,
    /// Encoding of the state: `json`, or a name from a foreign client.
    pub codec: String,
    /// Version of the state's schema; 0 without a schema.
    #[serde(default, skip_serializing_if = "is_default")]
    pub schema: u32,
}
