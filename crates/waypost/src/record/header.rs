//! The header of a checkpoint: what happened, and where in the chain.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::evidence::{Occasion, Pack};
use super::is_default;
use super::run::{Definition, RunStatus};
use super::trace::{EndDigests, Trace};
use super::usage::Usage;
use super::wait::{Taken, Wait, WaitKind};
use crate::id::{BranchPath, CheckpointRef, Digest, RunId, StepId};

/// The name of the label that a person gives a checkpoint, to come back to it. It is the key of its progress, too.
pub const MARK: &str = "mark";

/// The fixed part of a checkpoint: it outlives its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Format version, [`FORMAT`](super::FORMAT).
    pub v: u32,
    /// The run.
    pub run: RunId,
    /// The branch.
    pub branch: BranchPath,
    /// 1-based position on the branch.
    pub seq: u64,
    /// Digest of the record before on this branch; on the first, none. After damage was moved to quarantine, the
    /// newest sound one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<Digest>,
    /// The record whose state and position this one continues, where that is not the one before: after a rollback, or
    /// after damage. 0 where it continues none: after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<u64>,
    /// Why this record was written.
    pub reason: Reason,
    /// The step the phase speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// Which try of the step.
    #[serde(default, skip_serializing_if = "Try::is_none")]
    pub at: Try,
    /// What happened.
    pub phase: Phase,
    /// The tries whose start this record commits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub started: Vec<Start>,
    /// The body, absent where a later record of the same batch carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<BodyRef>,
    /// The branch ends with this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// The first record of a resume.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resumed: bool,
    /// How the run stands, on a record after which nothing goes on by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<RunStatus>,
    /// Which failure it was that the run stopped at, on a record with status `failed` that does not say so itself:
    /// others ended after that step, or on other branches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedStep>,
    /// Claims and their verdicts, as committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Pack>,
    /// Tokens and cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What the step said: events, report text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// Names for looking the record up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// An id given by a foreign client; looked up by index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// The record of this branch that this one belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<u64>,
    /// On the record of an answer or a signal: the wait that took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<Box<Taken>>,
    /// A changed workflow that the run goes on with from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Definition>,
    /// A changed configuration that the run goes on with from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Map<String, Value>>,
    /// On the record behind one that changed either: the same once more, so that no damage of one record costs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<Box<Repeated>>,
    /// On the record that ends a child branch as completed: how many failures it has come past, of branches that it joined
    /// and steps that were tolerated.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dead: u64,
    /// On an end of a graph with evidence: what it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// On an end of a graph with evidence: the digests of what it made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<EndDigests>,
    /// On the record that ends a child branch of such a graph: the digest of all that its steps pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch_pins: Option<Digest>,
    /// On a first record: digest of the frozen run record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<Digest>,
    /// On the record of a join: Merkle root of the children's last digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<Digest>,
    /// The fencing token it was appended under.
    pub token: u64,
    /// When it was made, for people.
    pub created_at: Timestamp,
}

/// What the record before changed for all that comes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeated {
    /// The record that changed it.
    pub of: u64,
    /// The changed workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Definition>,
    /// The changed configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Map<String, Value>>,
}

impl Repeated {
    /// Makes it of what record `seq` changed, if it did.
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
    /// Returns how many failures a branch that ended with this record adds to those of the one that opened it.
    pub(crate) fn dead_with_it(&self) -> u64 {
        u64::from(self.end == Some(End::Failed)) + self.dead
    }

    /// Returns what the next record repeats of this one.
    pub(crate) fn to_repeat(&self) -> Option<Box<Repeated>> {
        Repeated::of(self.seq, self.definition.as_ref(), self.config.as_ref())
    }

    /// Returns the record whose state this one continues; a first record continues none, nor does a restart.
    pub fn basis(&self) -> Option<u64> {
        self.basis.or_else(|| self.seq.checked_sub(1)).filter(|seq| *seq > 0)
    }

    /// Returns the failure that this record tells, as a later one names it: its own, if that is final, or the one that
    /// it names itself.
    pub fn failure(&self) -> Option<FailedStep> {
        match (&self.failed, &self.phase, &self.step) {
            (Some(failed), _, _) => Some(failed.clone()),
            (None, Phase::Failed(failure), Some(step)) if !failure.retried && !failure.tolerated => {
                Some(FailedStep { branch: None, step: step.clone(), error: failure.error.clone() })
            }
            _ => None,
        }
    }

    /// Says whether it only adds something to what the one before it says of the run: evidence that a person accepted, or
    /// the label of a checkpoint.
    pub fn stands_as_before(&self) -> bool {
        matches!((&self.phase, self.reason), (Phase::Progress { .. }, Reason::Accept | Reason::Manual))
    }

    /// Says on what occasion its evidence was checked: claims that are due on others were left out then.
    pub fn occasion(&self) -> Occasion {
        match &self.phase {
            // What a person accepts is claimed then, as at the end of a step.
            Phase::Progress { .. } if self.reason != Reason::Accept => Occasion::Verify,
            Phase::Restored => Occasion::Resume,
            _ => Occasion::Commit,
        }
    }

    /// Names the record as people write it.
    pub fn reference(&self) -> CheckpointRef {
        CheckpointRef { run: self.run.clone(), branch: self.branch.clone(), seq: self.seq }
    }
}

/// Why a record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The branch begins.
    Start,
    /// A step ended or began.
    Step,
    /// A failed step is tried again.
    Retry,
    /// A stop was asked for.
    Stopped,
    /// A long step was still running.
    Interval,
    /// The graph asked to stop here.
    Interrupt,
    /// An answer arrived.
    Answer,
    /// A person asked for it.
    Manual,
    /// An older position was restored.
    Rollback,
    /// Children were opened.
    Fork,
    /// Children were joined.
    Join,
    /// Evidence was pinned anew.
    Accept,
    /// The records before were damaged.
    Repair,
    /// A finished step is deliberately done again.
    Redo,
    /// The run or branch was cancelled.
    Cancel,
}

/// Which try of a step: attempt within iteration within epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Try {
    /// 1-based count of tries of this step in this iteration and epoch; 0 where no step is meant.
    #[serde(default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// Place in the loops around the step, outermost first; empty outside loops.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iteration: Vec<u32>,
    /// How often it was deliberately redone.
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
    /// Which try of it.
    #[serde(default, skip_serializing_if = "Try::is_none")]
    pub at: Try,
    /// It was started before, and goes on: its branches are at rest, and it joins them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joins: bool,
}

/// What happened at a step boundary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Steps were started, and nothing else happened.
    Started,
    /// The step is done.
    Completed(Ending),
    /// The step failed.
    Failed(Failure),
    /// The step was stopped before its end, or, if not `in_progress`, before its process existed.
    Interrupted {
        /// Something had run.
        in_progress: bool,
        /// Who asked: a signal's name or a person.
        by: String,
    },
    /// The step waits.
    Waiting(Vec<Wait>),
    /// The step is passed over, decided now and never again.
    Skipped(SkipCause),
    /// A durable result inside a step.
    Progress {
        /// Its key.
        key: String,
        /// Its value.
        value: Value,
    },
    /// The position of `basis` holds again.
    Restored,
}

/// The key of the wait of a step for the branches that come after its work.
pub const WAIT_AFTER: &str = "after";

impl Phase {
    /// Returns the failure, if it is one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns how the step ended, if it did by itself.
    pub fn ending(&self) -> Option<&Ending> {
        match self {
            Self::Completed(ending) => Some(ending),
            phase => phase.failure().map(|failure| &failure.ending),
        }
    }

    /// Says whether it is that of a record with which a step opens branches by its work.
    pub fn opens_work(&self) -> bool {
        self.opens(false)
    }

    /// Says whether it is that of a record with which a step opens the branches that come
    /// [after](crate::shape::Step::after) such work.
    pub fn opens_after(&self) -> bool {
        self.opens(true)
    }

    fn opens(&self, after: bool) -> bool {
        let is_it = |wait: &Wait| wait.on == WaitKind::Children && (wait.key == WAIT_AFTER) == after;
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
    /// Exit code of its process, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its outputs, where small; [`OUTPUTS_INLINE_BYTES_MAX`](super::OUTPUTS_INLINE_BYTES_MAX). All of them are in the state.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Value>,
    /// Size of the outputs in bytes where they are too large to stand here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_bytes: Option<u64>,
    /// The command as it was run, secrets masked, where it is not the text of the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What it printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Printed>,
    /// Standard output of one that failed, for the program that settles it: it goes into the state, and no record holds it.
    #[serde(skip)]
    pub stdout: Option<String>,
}

/// Why a step failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The kind of failure, by which `retry.when` and `continue_on_error` choose.
    pub kind: FailureKind,
    /// The error and its causes, outermost first.
    pub error: Vec<String>,
    /// The step runs again by itself.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retried: bool,
    /// The workflow goes on all the same: the step counts as finished.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tolerated: bool,
    /// Exit code, outputs and log, as far as there are any.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ending: Ending,
    /// Of a step that failed as one of its branches did: the step that failed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<StepBelow>,
}

/// A step on a branch below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepBelow {
    /// The branch.
    pub branch: BranchPath,
    /// The step.
    pub step: StepId,
}

/// Longest text of one error in a chain of causes: more than a person reads, and little enough for all of them to fit a
/// header.
pub const FAILURE_TEXT_BYTES_MAX: usize = 16 << 10;
/// Most errors of one chain that are kept.
pub const FAILURE_CAUSES_MAX: usize = 32;

/// Cuts a text that is too long, and says so.
fn cut(text: &mut String) {
    if text.len() > FAILURE_TEXT_BYTES_MAX {
        let bytes = text.len();
        let end = (0..=FAILURE_TEXT_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(&format!(" … ({bytes} bytes in all)"));
    }
}

impl Failure {
    /// Makes a failure of an error and its causes, outermost first. They stand in a header: a text beyond
    /// [`FAILURE_TEXT_BYTES_MAX`] is cut, and of more than [`FAILURE_CAUSES_MAX`] the outermost are kept.
    pub fn new(kind: FailureKind, mut error: Vec<String>) -> Self {
        error.truncate(FAILURE_CAUSES_MAX);
        error.iter_mut().for_each(cut);
        Self { kind, error, retried: false, tolerated: false, ending: Ending::default(), below: None }
    }
}

/// The failure that a run stopped at, as a later record names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedStep {
    /// The branch of the step, where it is not that of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<BranchPath>,
    /// The step.
    pub step: StepId,
    /// The error and its causes, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub error: Vec<String>,
}

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The process ended with a code other than 0.
    Exit,
    /// The process was ended by a signal that we did not send.
    Signal,
    /// The step took longer than it may.
    Timeout,
    /// The process could not be started.
    Spawn,
    /// An expression could not be evaluated.
    Expression,
    /// Declared outputs could not be read.
    Outputs,
    /// Evidence did not hold or could not be checked.
    Evidence,
    /// The step's own error.
    Error,
    /// The step's own error, of a kind that no further try can mend.
    Fatal,
    /// A limit of the run was reached.
    Limit,
}

/// What a step printed: the log is in the store's blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Bytes printed, masked; the log may hold fewer.
    pub bytes: u64,
    /// SHA-256 of all bytes printed, masked.
    pub digest: Digest,
    /// The end of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
}

/// Why a step was passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipCause {
    /// Its `if` was false.
    Condition(String),
    /// A step that it needs was skipped.
    Need(StepId),
    /// This step, upstream of it, failed.
    UpstreamFailed(StepId),
    /// This person chose it.
    ByHand(String),
}

/// How a branch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Everything on it is done.
    Completed,
    /// It failed for good: a dead letter.
    Failed,
    /// It was passed over.
    Skipped,
    /// It was cancelled.
    Cancelled,
}

/// What a step said beside its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// An event of the step's own.
    Event {
        /// Its name.
        name: String,
        /// Its data.
        data: Value,
    },
    /// Markdown for the report.
    Report(String),
    /// Something a person should know, such as a checkpoint that was lost and tolerated.
    Warning(String),
}

/// What the header says of its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BodyRef {
    /// SHA-256 of the body's bytes.
    pub digest: Digest,
    /// Size of the body in bytes.
    pub bytes: u64,
    /// Size of the position at its start; one newline follows, then the state.
    pub position_bytes: u64,
    /// How the state is encoded: `json`, or a name that a foreign client chose.
    pub codec: String,
    /// Version of the state's schema; a state without one is version 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub schema: u32,
}
