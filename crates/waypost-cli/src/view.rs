//! The JSON documents: the only types that go to other programs, with stable keys.
//!
//! Every document is an object with `v`. Members are added, never renamed or removed, as long as `v` stays.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use waypost::record::{Claim, Pack, Printed, RunStatus, Start, Try, Usage, Verdict};
use waypost::store::Progress;

use crate::among::FailedItem;

mod checked;
mod decisions;
mod logs;
mod scripts;
mod upkeep;
mod verified;
mod waits;

pub(crate) use checked::{CheckView, CheckedStepView, ProblemView};
pub(crate) use decisions::{CauseView, DecisionView, ExecutionView, WhyView};
pub(crate) use logs::{LogPieceView, LogView, LogsView};
pub(crate) use scripts::{
    DemoCommandView, DemoStepView, DemoView, FinishedView, ImportedView, NewView, NoteView, OnceView,
    ReportView,
};
pub(crate) use upkeep::{
    ArchivedView, CancelledView, CheckupView, ConfigFileView, ConfigView, DoctorView, EventAddedView,
    ExportedView, ImportShownView, ManFilesView, ManPageView, MissingView, ScriptView, SettingView,
    StatsView, StoreCheckedView, StoreMadeView, StoreUpgradedView, WorkflowStatsView,
};

pub(crate) use waits::{AnsweredView, SignalledView, WaitView};

/// Version of the documents.
pub(crate) const VERSION: u32 = 1;

/// The answer of `list`.
#[derive(Debug, Serialize)]
pub(crate) struct ListView {
    pub(crate) v: u32,
    pub(crate) runs: Vec<RunView>,
    /// Runs of which nothing can be listed: damaged, or written by a newer version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<UnreadableRunView>,
    pub(crate) next: Option<String>,
}

/// A run of which only its name can be told.
#[derive(Debug, Serialize)]
pub(crate) struct UnreadableRunView {
    pub(crate) run: String,
    /// Its store, where those of several are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
    pub(crate) error: String,
}

/// A run in a list.
#[derive(Debug, Serialize)]
pub(crate) struct RunView {
    pub(crate) run: String,
    /// Its store, where those of several are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<String>,
    pub(crate) workflow: String,
    pub(crate) path: Option<String>,
    pub(crate) status: RunStatus,
    pub(crate) step: Option<String>,
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
    pub(crate) v: u32,
    pub(crate) run: String,
    /// The checkpoint shown, where one was asked for.
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
    /// Checkpoints that are damaged or missing, where there are any, newest first: newer ones, which were passed over, and
    /// those of the history, which is told without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<String>,
}

/// How a step stands.
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
    #[serde(rename = "scope")]
    pub(crate) branch: String,
    pub(crate) status: StepStatus,
    pub(crate) attempts: u32,
    pub(crate) exit_code: Option<i32>,
    pub(crate) outputs: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) items: Option<ItemsView>,
    pub(crate) evidence: Vec<ClaimView>,
    pub(crate) usage: Option<Usage>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) ended_at: Option<Timestamp>,
    /// Why it failed, where it did; for screens.
    #[serde(skip)]
    pub(crate) error: Option<FailureView>,
    /// The first of its items to fail, if it failed as too many did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed_item: Option<FailedItem>,
    /// It failed, and the run does not go on without it; for screens.
    #[serde(skip)]
    pub(crate) holds_up: bool,
    /// It did not run, as a step upstream of it failed; for the count of what is done.
    #[serde(skip)]
    pub(crate) passed_over: bool,
    /// What it printed, where it printed something; for screens.
    #[serde(skip)]
    pub(crate) log: Option<Printed>,
    /// The command as it was run, where it is not the text of the workflow; for screens.
    #[serde(skip)]
    pub(crate) command: Option<String>,
}

impl StepView {
    /// Says whether the run goes on behind it.
    pub(crate) fn is_finished(&self) -> bool {
        match self.status {
            StepStatus::Completed | StepStatus::Skipped => !self.passed_over,
            StepStatus::Failed => !self.holds_up,
            _ => false,
        }
    }
}

/// What became of the items of a step, as far as they were counted.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ItemsView {
    pub(crate) total: u64,
    pub(crate) succeeded: Option<u64>,
    pub(crate) failed: Option<u64>,
}

impl ItemsView {
    /// Says it in a few words.
    pub(crate) fn told(self) -> String {
        match (self.succeeded, self.failed) {
            (Some(succeeded), Some(failed)) => {
                format!("{} items: {succeeded} done, {failed} failed", self.total)
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

/// A claim and what came out of it.
#[derive(Debug, Serialize)]
pub(crate) struct ClaimView {
    pub(crate) name: Option<String>,
    pub(crate) kind: String,
    pub(crate) subject: String,
    pub(crate) verdict: Verdict,
    pub(crate) expected: Value,
    pub(crate) found: Value,
    pub(crate) error: Option<String>,
    pub(crate) checked_at: Option<Timestamp>,
    /// What the user keeps beside it.
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

/// A checkpoint. Of a damaged one, only its place is known.
#[derive(Debug, Serialize)]
pub(crate) struct CheckpointView {
    #[serde(rename = "ref")]
    pub(crate) reference: String,
    #[serde(rename = "scope")]
    pub(crate) branch: String,
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
    /// What is kept of it.
    pub(crate) bytes: Option<u64>,
    pub(crate) digest: Option<String>,
    pub(crate) prev: Option<String>,
    pub(crate) basis: Option<u64>,
    pub(crate) sound: bool,
    /// `false` where it had a state that was let go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<bool>,
    /// By which it can be named, where a person gave it one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// What is wrong with it, where something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The answer of `plan`.
#[derive(Debug, Serialize)]
pub(crate) struct PlanView {
    pub(crate) v: u32,
    /// None for a run that was not made.
    pub(crate) run: Option<String>,
    pub(crate) decisions: Vec<DecisionView>,
    /// What stops a resume, before it does any of that: with exit code 7, or 2 where the run was cancelled.
    pub(crate) stops: Vec<String>,
}

/// The answer of `verify` for one run.
#[derive(Debug, Serialize)]
pub(crate) struct VerifyView {
    pub(crate) v: u32,
    #[serde(flatten)]
    pub(crate) run: VerifiedRunView,
    /// The checkpoint that says what was found, if it was to be recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recorded: Option<String>,
}

/// The answer of `verify --all`.
#[derive(Debug, Serialize)]
pub(crate) struct VerifyAllView {
    pub(crate) v: u32,
    pub(crate) sound: bool,
    /// What is wrong with the store as a whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
    /// Runs that cannot be verified since a newer version wrote something of them; then not all is known to be sound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) newer: Vec<UnreadableRunView>,
    pub(crate) runs: Vec<VerifiedRunView>,
}

/// What `verify` found of a run.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedRunView {
    pub(crate) run: String,
    pub(crate) sound: bool,
    /// What is wrong with the run as a whole: its frozen record, or a chain with a hole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<String>,
    pub(crate) checkpoints: Vec<VerifiedView>,
}

/// What `verify` found of a checkpoint.
#[derive(Debug, Serialize)]
pub(crate) struct VerifiedView {
    #[serde(rename = "ref")]
    pub(crate) reference: String,
    pub(crate) sound: bool,
    /// What is wrong with it, where something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) summary: EvidenceSummary,
    pub(crate) evidence: Vec<ClaimView>,
    /// How many of its claims must hold, if not all.
    #[serde(skip)]
    pub(crate) at_least: Option<u32>,
    /// The claims that were checked just now; for screens.
    #[serde(skip)]
    pub(crate) checked: Vec<Claim>,
}

/// Verdicts, counted.
#[derive(Debug, Default, Serialize)]
pub(crate) struct EvidenceSummary {
    pub(crate) total: usize,
    pub(crate) ok: usize,
    pub(crate) failed: usize,
    pub(crate) unknown: usize,
    pub(crate) skipped: usize,
    /// How many of all are ok, from 0 to 1; 0 if there are none.
    pub(crate) rate: f64,
    /// Whether as many hold as must; none where there is nothing to hold.
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
    /// Nothing was done; this is what would be.
    pub(crate) dry_run: bool,
    pub(crate) deleted: Vec<PrunedView>,
    /// Runs that lost states.
    pub(crate) trimmed: Vec<PrunedView>,
    /// Runs that could not be looked at, since somebody is working on them.
    pub(crate) kept: Vec<KeptView>,
    /// All that is freed.
    pub(crate) bytes: u64,
}

/// A run of which something goes.
#[derive(Debug, Serialize)]
pub(crate) struct PrunedView {
    pub(crate) run: String,
    pub(crate) checkpoints: u64,
    pub(crate) bytes: u64,
}

/// A run that stays as it is.
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
    /// The checkpoint that it went back to.
    pub(crate) to: String,
    /// The checkpoint that says so.
    pub(crate) at: String,
    pub(crate) status: RunStatus,
    /// What was undone, newest first, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) undone: Option<Vec<UndoneView>>,
    /// What a resume does from there; nothing where the run stood there already.
    pub(crate) decisions: Vec<DecisionView>,
}

/// A step that finished, and was undone if it says how.
#[derive(Debug, Serialize)]
pub(crate) struct UndoneView {
    pub(crate) step: String,
    #[serde(rename = "scope")]
    pub(crate) branch: String,
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
    #[serde(rename = "scope")]
    pub(crate) branch: String,
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
    /// It was running, and this call stopped it.
    pub(crate) stopped: bool,
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
    /// On how many branches, and in how many passes, evidence was pinned anew.
    pub(crate) accepted: usize,
}

/// The answer of `evidence suggest`.
#[derive(Debug, Serialize)]
pub(crate) struct SuggestedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) step: String,
    /// As it would stand in the workflow file.
    pub(crate) evidence: Vec<Value>,
    /// There was more than is listed.
    pub(crate) more: bool,
    /// How many files are left out, as their paths hold a secret.
    pub(crate) secret: usize,
}

impl ClaimView {
    /// Shows the claims of a pack.
    pub(crate) fn of_pack(pack: Option<&Pack>) -> Vec<Self> {
        pack.map(|pack| pack.claims.iter().map(Self::of).collect()).unwrap_or_default()
    }

    /// Shows a claim.
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

/// Names an attempt as people do: `fetch (attempt 2)`.
pub(crate) fn attempt_name(start: &Start) -> String {
    let Try { attempt, iteration, epoch } = &start.at;
    let mut parts = vec![format!("attempt {attempt}")];
    if !iteration.is_empty() {
        parts.push(format!(
            "iteration {}",
            iteration.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
        ));
    }
    if *epoch > 0 {
        parts.push(format!("redo {epoch}"));
    }
    format!("{} ({})", start.step, parts.join(", "))
}

/// Gives the place in the loops around a step: 0 outside of loops, a number in one, a list in nested ones.
fn place_in_loops<S: serde::Serializer>(iteration: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    match iteration {
        [] => serializer.serialize_u32(0),
        [count] => serializer.serialize_u32(*count),
        nested => nested.serialize(serializer),
    }
}
