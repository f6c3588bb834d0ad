//! The JSON documents: the only types passed to other programs, with stable keys.
//!
//! Every document is an object with `v`. Members are added, and not renamed or removed while `v` stays the
//! same.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use waypost::record::{Claim, Pack, Printed, RunStatus, SkipCause, Try, Usage, Verdict};
use waypost::store::Progress;

mod checked;
mod decisions;
pub(crate) mod doubt;
mod logs;
mod scripts;
pub(crate) mod step_names;
mod upkeep;
mod verified;
mod waits;

pub(crate) use checked::{CheckView, CheckedStepView, OnWorkersView, ProblemView};
pub(crate) use decisions::{CauseView, DecisionView, ExecutedView, ExecutionView, WhyView};
pub(crate) use logs::{LogPieceView, LogView, LogsView};
pub(crate) use scripts::{
    DemoCommandView, DemoStepView, DemoView, FinishedView, GraphView, ImportedView, NewView, NoteView,
    OnceView, ReportView,
};
pub(crate) use upkeep::{
    ArchivedView, CancelledView, CheckupView, ConfigFileView, ConfigView, ConnectionsView, DoctorView,
    EventAddedView, ExportedView, ImportShownView, LeaseStatsView, ManFilesView, ManPageView, MissingView,
    Origin, QueueStatsView, ScriptView, ServerStatsView, SettingView, StatsView, StoreCheckedView,
    StoreMadeView, StoreStatsView, StoreUpgradedView, TableStatsView, WorkflowStatsView,
};

pub(crate) use waits::{AnsweredView, SignalledView, WaitView, file_of, gives, step_of};

/// Version of the documents.
pub(crate) const VERSION: u32 = 1;

/// The answer of `list`.
#[derive(Debug, Serialize)]
pub(crate) struct ListView {
    pub(crate) v: u32,
    pub(crate) runs: Vec<RunView>,
    /// Runs that cannot be listed: damaged, or written by a newer version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<UnreadableRunView>,
    pub(crate) next: Option<String>,
}

/// A run with a known name only.
#[derive(Debug, Serialize)]
pub(crate) struct UnreadableRunView {
    pub(crate) run: String,
    /// The store, in lists over several stores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
    pub(crate) error: String,
}

/// A run in a list.
#[derive(Debug, Serialize)]
pub(crate) struct RunView {
    pub(crate) run: String,
    /// The store, in lists over several stores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
    pub(crate) workflow: String,
    pub(crate) path: Option<String>,
    pub(crate) status: RunStatus,
    pub(crate) step: Option<String>,
    /// The end of the next delay or sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Timestamp>,
    pub(crate) progress: Progress,
    pub(crate) started_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) resumable: bool,
    pub(crate) checkpoints: u64,
    pub(crate) bytes: u64,
    pub(crate) labels: BTreeMap<String, String>,
}

/// The answer of `show`.
#[derive(Debug, Serialize)]
pub(crate) struct ShowView {
    /// The names of the steps; for screens.
    #[serde(skip)]
    pub(crate) names: step_names::StepNames,
    /// The decisions of a person about steps that are not listed, by the path of the step; for screens.
    #[serde(skip)]
    pub(crate) settled_within: Vec<(String, String)>,
    pub(crate) v: u32,
    pub(crate) run: String,
    /// The requested checkpoint, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<CheckpointView>,
    pub(crate) workflow: String,
    pub(crate) path: Option<String>,
    pub(crate) status: RunStatus,
    pub(crate) params: Map<String, Value>,
    pub(crate) steps: Vec<StepView>,
    pub(crate) usage: Option<Usage>,
    pub(crate) failed_step: Option<String>,
    pub(crate) error: Option<FailureView>,
    pub(crate) parent: Option<String>,
    pub(crate) waiting: Vec<WaitView>,
    /// The place of a submitted run in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<QueueView>,
    /// The items of the requested step, in the order of their starts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) items: Vec<ItemView>,
    /// The cursor of the next page of items, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
    /// Damaged or missing checkpoints, newest first: skipped newer ones, and ones missing from the history.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<String>,
}

/// The place of a submitted run in the queue.
#[derive(Debug, Serialize)]
pub(crate) struct QueueView {
    /// The run waits for a worker.
    pub(crate) ready: bool,
    pub(crate) priority: i32,
    pub(crate) not_before: Option<Timestamp>,
    /// What a worker lacked for the run, and since when.
    pub(crate) missing: Option<String>,
    pub(crate) since: Option<Timestamp>,
    /// The steps for other workers than that of the run, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tasks: Vec<TaskView>,
}

/// A step for another worker than that of its run.
#[derive(Debug, Serialize)]
pub(crate) struct TaskView {
    /// The step path.
    pub(crate) step: String,
    /// The process that executes the step.
    pub(crate) worker: Option<String>,
    /// The missing needs of the last worker.
    pub(crate) missing: Option<String>,
}

/// An item of a step.
#[derive(Debug, Serialize)]
pub(crate) struct ItemView {
    pub(crate) key: String,
    pub(crate) scope: String,
    pub(crate) status: StepStatus,
    /// The highest attempt of its steps.
    pub(crate) attempts: u32,
    pub(crate) started_at: Timestamp,
    pub(crate) ended_at: Option<Timestamp>,
    /// The time of work, without pauses between sessions.
    pub(crate) duration_ms: Option<u64>,
    /// The error of a failed item, with its causes.
    pub(crate) error: Vec<String>,
}

/// The status of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StepStatus {
    Pending,
    Running,
    Waiting,
    Completed,
    Failed,
    Skipped,
    Cut,
    InDoubt,
}

impl StepStatus {
    /// Returns the word used in JSON and on screens.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cut => "cut",
            Self::InDoubt => "in_doubt",
        }
    }
}

/// A step of a run.
#[derive(Debug, Serialize)]
pub(crate) struct StepView {
    pub(crate) id: String,
    /// The `name` in the workflow file.
    pub(crate) name: Option<String>,
    /// The path of the step for a person.
    #[serde(skip)]
    pub(crate) called: String,
    /// The step has passes.
    #[serde(skip)]
    pub(crate) repeats: bool,
    pub(crate) scope: String,
    pub(crate) status: StepStatus,
    pub(crate) attempts: u32,
    pub(crate) exit_code: Option<i32>,
    pub(crate) outputs: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) items: Option<ItemsView>,
    pub(crate) evidence: Vec<ClaimView>,
    /// How a person settled the step since its last start, and the person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) settled: Option<String>,
    pub(crate) usage: Option<Usage>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    /// Milliseconds from the last start to the end, or until now for a running step, without the idle times of the
    /// run.
    pub(crate) duration_ms: Option<u64>,
    /// The error of a failed step; for screens.
    #[serde(skip)]
    pub(crate) error: Option<FailureView>,
    /// The first failed item, if the step failed by its limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed_item: Option<FailedItem>,
    /// The failure stops the run; for screens.
    #[serde(skip)]
    pub(crate) holds_up: bool,
    /// The cause of a skip; for screens.
    #[serde(skip)]
    pub(crate) skipped: Option<SkipCause>,
    /// The printed text, if any; for screens.
    #[serde(skip)]
    pub(crate) log: Option<Printed>,
    /// The size of the printed text, also of a running step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_bytes: Option<u64>,
    /// The time of the next try after a failed one; for screens.
    #[serde(skip)]
    pub(crate) next_try: Option<Timestamp>,
    /// The last attempt with a recorded start.
    #[serde(skip)]
    pub(crate) running: Option<Try>,
    /// The executed command, if it differs from the text of the workflow; for screens.
    #[serde(skip)]
    pub(crate) command: Option<String>,
}

impl ShowView {
    /// Returns the number of skipped steps of the main scope, without hooks and without steps downstream of a failure.
    pub(crate) fn skipped(&self) -> u64 {
        let is_on_main = |step: &StepView| step.scope == waypost::ScopePath::main().as_str();
        let is_counted =
            |step: &&StepView| is_on_main(step) && step.is_skipped() && !self.names.is_for_hooks(&step.id);
        self.steps.iter().filter(is_counted).count() as u64
    }
}

impl StepView {
    /// Returns the status, with `tolerated` for a failure that the workflow tolerates.
    pub(crate) fn outcome(&self) -> &'static str {
        let is_tolerated = self.status == StepStatus::Failed && !self.holds_up;
        if is_tolerated { "tolerated" } else { self.status.name() }
    }

    /// Returns whether the run continues after the step.
    pub(crate) fn is_finished(&self) -> bool {
        match self.status {
            StepStatus::Completed => true,
            StepStatus::Skipped => self.is_skipped(),
            StepStatus::Failed => !self.holds_up,
            _ => false,
        }
    }

    /// Returns whether the step is skipped for good: not because an upstream step failed.
    pub(crate) fn is_skipped(&self) -> bool {
        let is_passed_over = matches!(self.skipped, Some(SkipCause::UpstreamFailed(_)));
        self.status == StepStatus::Skipped && !is_passed_over
    }
}

/// The counted results of a step's items, as far as known.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ItemsView {
    pub(crate) total: u64,
    pub(crate) succeeded: Option<u64>,
    pub(crate) failed: Option<u64>,
    /// The dropped ones of the failed items; for screens.
    #[serde(skip)]
    pub(crate) dropped: u64,
}

impl ItemsView {
    /// Returns a short text.
    pub(crate) fn told(self) -> String {
        match (self.succeeded, self.failed) {
            (Some(succeeded), Some(failed)) => {
                let failed = failed.saturating_sub(self.dropped);
                let dropped = match self.dropped {
                    0 => String::new(),
                    dropped => format!(", {dropped} dropped"),
                };
                format!("{} items: {succeeded} done, {failed} failed{dropped}", self.total)
            }
            _ => format!("{} items", self.total),
        }
    }
}

/// Why a step failed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailureView {
    pub(crate) kind: waypost::record::FailureKind,
    pub(crate) message: String,
    pub(crate) causes: Vec<String>,
    pub(crate) exit_code: Option<i32>,
}

/// A claim and its verdict.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ClaimView {
    pub(crate) name: Option<String>,
    pub(crate) kind: String,
    pub(crate) subject: String,
    pub(crate) verdict: Verdict,
    pub(crate) expected: Value,
    pub(crate) found: Value,
    pub(crate) error: Option<String>,
    pub(crate) checked_at: Option<Timestamp>,
    /// Metadata of the user.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, Value>,
}

/// The answer of `checkpoints`.
#[derive(Debug, Serialize)]
pub(crate) struct CheckpointsView {
    pub(crate) v: u32,
    pub(crate) checkpoints: Vec<CheckpointView>,
    pub(crate) next: Option<String>,
}

/// A checkpoint. For a damaged one, only the place is known.
#[derive(Debug, Serialize)]
pub(crate) struct CheckpointView {
    #[serde(rename = "ref")]
    pub(crate) reference: String,
    pub(crate) scope: String,
    pub(crate) seq: u64,
    pub(crate) phase: Option<&'static str>,
    pub(crate) reason: Option<waypost::record::Reason>,
    pub(crate) step: Option<String>,
    pub(crate) attempt: Option<u32>,
    #[serde(serialize_with = "place_in_loops")]
    pub(crate) iteration: Vec<u32>,
    pub(crate) epoch: Option<u32>,
    pub(crate) started: Vec<String>,
    pub(crate) created_at: Option<Timestamp>,
    /// Stored bytes.
    pub(crate) bytes: Option<u64>,
    pub(crate) digest: Option<String>,
    pub(crate) prev: Option<String>,
    pub(crate) basis: Option<u64>,
    pub(crate) sound: bool,
    /// `false` if the state was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<bool>,
    /// The label from a person, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// The damage, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The answer of `plan`.
#[derive(Debug, Serialize)]
pub(crate) struct PlanView {
    pub(crate) v: u32,
    /// `None` for a run that was not created.
    pub(crate) run: Option<String>,
    pub(crate) decisions: Vec<DecisionView>,
    /// Obstacles to a resume: with exit code 7, or 2 for a cancelled run.
    pub(crate) stops: Vec<String>,
}

/// The answer of `verify` for one run.
#[derive(Debug, Serialize)]
pub(crate) struct VerifyView {
    pub(crate) v: u32,
    #[serde(flatten)]
    pub(crate) run: VerifiedRunView,
    /// The checkpoint with the recorded verdicts, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recorded: Option<String>,
}

/// The answer of `verify --all`.
#[derive(Debug, Serialize)]
pub(crate) struct VerifyAllView {
    pub(crate) v: u32,
    pub(crate) sound: bool,
    /// Defects of the store as a whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
    /// Runs that cannot be fully verified, as a newer version wrote a part of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) newer: Vec<UnreadableRunView>,
    pub(crate) runs: Vec<VerifiedRunView>,
}

/// The results of `verify` for a run.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedRunView {
    pub(crate) run: String,
    pub(crate) sound: bool,
    /// Defects of the run as a whole: of its run record, or a gap in a chain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
    pub(crate) checkpoints: Vec<VerifiedView>,
    #[serde(skip)]
    pub(crate) names: step_names::StepNames,
}

/// The results of `verify` for a checkpoint.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedView {
    #[serde(rename = "ref")]
    pub(crate) reference: String,
    pub(crate) sound: bool,
    /// The damage, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) summary: EvidenceSummary,
    pub(crate) evidence: Vec<ClaimView>,
    /// The votes of several processes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) quorum: Vec<QuorumView>,
    /// How many claims must hold, if not all.
    #[serde(skip)]
    pub(crate) at_least: Option<u32>,
    /// The claims checked just now; for screens.
    #[serde(skip)]
    pub(crate) checked: Vec<Claim>,
}

/// A claim checked by several processes.
#[derive(Debug, Serialize)]
pub(crate) struct QuorumView {
    pub(crate) claim: String,
    /// That of the quorum; unknown without a quorum.
    pub(crate) verdict: Verdict,
    pub(crate) votes: Vec<VoteView>,
}

/// The verdict of a process.
#[derive(Debug, Serialize)]
pub(crate) struct VoteView {
    /// Host and process.
    pub(crate) by: String,
    pub(crate) verdict: Verdict,
    pub(crate) found: Value,
    pub(crate) error: Option<String>,
    pub(crate) checked_at: Option<Timestamp>,
}

/// Counted verdicts.
#[derive(Debug, Default, Serialize)]
pub(crate) struct EvidenceSummary {
    pub(crate) total: usize,
    pub(crate) ok: usize,
    pub(crate) failed: usize,
    pub(crate) unknown: usize,
    pub(crate) skipped: usize,
    /// The fraction of claims that are ok, from 0 to 1; 0 without claims.
    pub(crate) rate: f64,
    /// Whether enough claims hold; `None` without claims.
    pub(crate) satisfied: Option<bool>,
}

/// The answer of `delete`.
#[derive(Debug, Serialize)]
pub(crate) struct DeletedView {
    pub(crate) v: u32,
    pub(crate) deleted: Vec<String>,
}

/// The answer of `prune`.
#[derive(Debug, Serialize)]
pub(crate) struct PruneView {
    pub(crate) v: u32,
    /// A dry run: nothing was changed.
    pub(crate) dry_run: bool,
    pub(crate) deleted: Vec<PrunedView>,
    /// Runs with dropped states.
    pub(crate) trimmed: Vec<PrunedView>,
    /// Runs skipped because a process is working on them.
    pub(crate) kept: Vec<KeptView>,
    /// All freed bytes.
    pub(crate) bytes: u64,
}

/// A pruned run.
#[derive(Debug, Serialize)]
pub(crate) struct PrunedView {
    pub(crate) run: String,
    pub(crate) checkpoints: u64,
    pub(crate) bytes: u64,
}

/// A skipped run.
#[derive(Debug, Serialize)]
pub(crate) struct KeptView {
    pub(crate) run: String,
    pub(crate) why: String,
}

/// The answer of `rollback`.
#[derive(Debug, Serialize)]
pub(crate) struct RolledBackView {
    pub(crate) v: u32,
    pub(crate) run: String,
    /// The target checkpoint.
    pub(crate) to: String,
    /// The record of the rollback.
    pub(crate) at: String,
    pub(crate) status: RunStatus,
    /// The undone steps, newest first, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) undone: Option<Vec<UndoneView>>,
    /// The decisions of a resume from there; empty if the run was there already.
    pub(crate) decisions: Vec<DecisionView>,
}

/// A finished step; undone if the step has an undo command.
#[derive(Debug, Serialize)]
pub(crate) struct UndoneView {
    pub(crate) step: String,
    pub(crate) scope: String,
    pub(crate) undone: bool,
}

/// The answer of `diff`.
#[derive(Debug, Serialize)]
pub(crate) struct DiffView<'a> {
    pub(crate) v: u32,
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) differences: Vec<waypost::diff::Difference<'a>>,
}

/// The answer of `dead-letters list` and `show`.
#[derive(Debug, Serialize)]
pub(crate) struct DeadLettersView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) items: Vec<DeadLetterView>,
}

/// An item that failed for good.
#[derive(Debug, Serialize)]
pub(crate) struct DeadLetterView {
    pub(crate) key: String,
    pub(crate) scope: String,
    pub(crate) foreach: String,
    pub(crate) step: Option<String>,
    pub(crate) index: u64,
    pub(crate) item: Value,
    pub(crate) error: Vec<String>,
    pub(crate) attempts: u32,
    pub(crate) log: Option<String>,
}

/// The answer of `dead-letters drop`.
#[derive(Debug, Serialize)]
pub(crate) struct DroppedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) dropped: Vec<String>,
}

/// The answer of `run --detach`.
#[derive(Debug, Serialize)]
pub(crate) struct DetachedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) pid: u32,
}

/// The answer of `stop`.
#[derive(Debug, Serialize)]
pub(crate) struct StoppedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) status: RunStatus,
    /// The run was running, and this call stopped it.
    pub(crate) stopped: bool,
}

/// The answer of `submit`.
#[derive(Debug, Serialize)]
pub(crate) struct SubmittedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) status: RunStatus,
    /// This call created the run.
    pub(crate) created: bool,
}

/// The answer of `checkpoint`.
#[derive(Debug, Serialize)]
pub(crate) struct MarkedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) checkpoint: String,
    pub(crate) label: Option<String>,
}

/// The answer of `evidence accept`.
#[derive(Debug, Serialize)]
pub(crate) struct AcceptedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) step: String,
    /// The number of newly pinned packs, over scopes and passes.
    pub(crate) accepted: usize,
}

/// The answer of `evidence suggest`.
#[derive(Debug, Serialize)]
pub(crate) struct SuggestedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) step: String,
    /// In the syntax of the workflow file.
    pub(crate) evidence: Vec<Value>,
    /// The list is not complete.
    pub(crate) more: bool,
    /// The number of files omitted because their paths contain a secret.
    pub(crate) secret: usize,
}

impl ClaimView {
    /// Converts the claims of a pack.
    pub(crate) fn of_pack(pack: Option<&Pack>) -> Vec<Self> {
        pack.map(|pack| pack.claims.iter().map(Self::of).collect()).unwrap_or_default()
    }

    /// Converts a claim.
    pub(crate) fn of(claim: &Claim) -> Self {
        Self {
            name: claim.name.clone(),
            kind: claim.kind.clone(),
            subject: claim.subject.clone(),
            verdict: claim.verdict,
            expected: claim.expect.clone(),
            found: claim.found.clone(),
            error: claim.error.clone(),
            checked_at: claim.checked_at,
            metadata: claim.terms.metadata.clone(),
        }
    }
}

/// Serialises the passes of the loops around a step: 0 outside loops, a number in one loop, a list in nested
/// ones.
fn place_in_loops<S: serde::Serializer>(iteration: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    match iteration {
        [] => serializer.serialize_u32(0),
        [count] => serializer.serialize_u32(*count),
        nested => nested.serialize(serializer),
    }
}

/// A failed item.
#[derive(Debug, Serialize)]
pub(crate) struct FailedItem {
    /// The failed step and the item, for a person.
    #[serde(skip)]
    pub(crate) place: String,
    /// The key and scope of the item.
    pub(crate) key: String,
    pub(crate) scope: String,
    /// The failed step, with the error and its causes.
    pub(crate) step: Option<String>,
    pub(crate) error: Vec<String>,
    #[serde(skip)]
    pub(crate) exit_code: Option<i32>,
    /// The last lines of the log.
    #[serde(skip)]
    pub(crate) tail: String,
    /// The item is a dead letter.
    #[serde(skip)]
    pub(crate) is_letter: bool,
}
