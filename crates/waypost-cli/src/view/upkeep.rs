//! The documents of the commands that look after runs, stores and this program itself.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use waypost::record::RunStatus;
use waypost::store::Progress;

use super::{UndoneView, UnreadableRunView};

/// The answer of `config`.
#[derive(Debug, Serialize)]
pub(crate) struct ConfigView {
    pub(crate) v: u32,
    pub(crate) settings: Vec<SettingView>,
    /// The files that count here, nearest first.
    pub(crate) files: Vec<ConfigFileView>,
}

/// A value of the configuration.
#[derive(Debug, Serialize)]
pub(crate) struct SettingView {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) source: crate::config::Origin,
    /// The file, where it comes from one.
    pub(crate) path: Option<String>,
    pub(crate) line: Option<usize>,
}

/// A configuration file.
#[derive(Debug, Serialize)]
pub(crate) struct ConfigFileView {
    pub(crate) source: crate::config::Origin,
    pub(crate) path: String,
    pub(crate) exists: bool,
}

/// The answer of `cancel`.
#[derive(Debug, Serialize)]
pub(crate) struct CancelledView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) status: RunStatus,
    /// This call cancelled it; otherwise it was before.
    pub(crate) cancelled: bool,
    /// It was running, and this call stopped it.
    pub(crate) stopped: bool,
    /// How many branches beside the main one ended with it.
    pub(crate) branches: usize,
    /// What was undone, newest first, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) undone: Option<Vec<UndoneView>>,
}

/// The answer of `completions`.
#[derive(Debug, Serialize)]
pub(crate) struct ScriptView {
    pub(crate) v: u32,
    pub(crate) shell: &'static str,
    pub(crate) script: String,
}

/// The answer of `man`.
#[derive(Debug, Serialize)]
pub(crate) struct ManPageView {
    pub(crate) v: u32,
    /// In roff.
    pub(crate) page: String,
}

/// The answer of `man --dir`.
#[derive(Debug, Serialize)]
pub(crate) struct ManFilesView {
    pub(crate) v: u32,
    pub(crate) files: Vec<String>,
}

/// The answer of `stats`.
#[derive(Debug, Serialize)]
pub(crate) struct StatsView {
    pub(crate) v: u32,
    pub(crate) store: String,
    pub(crate) runs: u64,
    /// How many runs stand so; statuses that no run has are not there.
    pub(crate) by_status: BTreeMap<&'static str, u64>,
    pub(crate) resumable: u64,
    /// Steps that are done, of all that the runs have.
    pub(crate) steps: Progress,
    pub(crate) checkpoints: u64,
    /// Checkpoints that could not be written, which was tolerated.
    pub(crate) lost_checkpoints: u64,
    /// Of the records, as kept.
    pub(crate) bytes: u64,
    /// Of the files of the database; none for stores of another kind.
    pub(crate) database_bytes: Option<u64>,
    /// From the begin of each run to its last checkpoint, waits included, all together.
    pub(crate) elapsed_ms: u64,
    pub(crate) first_started_at: Option<Timestamp>,
    pub(crate) last_changed_at: Option<Timestamp>,
    pub(crate) workflows: Vec<WorkflowStatsView>,
    /// Runs that could not be counted: damaged, or written by a newer version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<UnreadableRunView>,
}

/// The runs of one workflow, counted.
#[derive(Debug, Default, Serialize)]
pub(crate) struct WorkflowStatsView {
    pub(crate) workflow: String,
    pub(crate) runs: u64,
    pub(crate) by_status: BTreeMap<&'static str, u64>,
    pub(crate) checkpoints: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed_ms: u64,
    /// Of its completed runs, from begin to end; none if there are none.
    pub(crate) mean_completed_ms: Option<u64>,
}

/// The answer of `doctor`.
#[derive(Debug, Serialize)]
pub(crate) struct DoctorView {
    pub(crate) v: u32,
    /// Nothing failed.
    pub(crate) ok: bool,
    pub(crate) checks: Vec<CheckupView>,
}

/// Something that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct CheckupView {
    pub(crate) check: &'static str,
    /// `ok`, `warn` or `fail`.
    pub(crate) result: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

/// The answer of `store init`.
#[derive(Debug, Serialize)]
pub(crate) struct StoreMadeView {
    pub(crate) v: u32,
    pub(crate) store: String,
    /// It was not there before.
    pub(crate) made: bool,
}

/// The answer of `store upgrade`.
#[derive(Debug, Serialize)]
pub(crate) struct StoreUpgradedView {
    pub(crate) v: u32,
    pub(crate) store: String,
    pub(crate) upgraded: bool,
    /// The version of its tables before, where it has tables.
    pub(crate) before: Option<u32>,
    pub(crate) after: Option<u32>,
}

/// The answer of `store check`.
#[derive(Debug, Serialize)]
pub(crate) struct StoreCheckedView {
    pub(crate) v: u32,
    pub(crate) store: String,
    pub(crate) sound: bool,
    /// The version of its tables, where it has tables.
    pub(crate) schema: Option<u32>,
    pub(crate) runs: u64,
    /// How many of them only a newer version can check.
    pub(crate) newer: u64,
    pub(crate) errors: Vec<String>,
}

/// The answer of `export`.
#[derive(Debug, Serialize)]
pub(crate) struct ExportedView {
    pub(crate) v: u32,
    pub(crate) checkpoint: String,
    pub(crate) file: String,
    pub(crate) bytes: u64,
}

/// A log or blob of a run that its archive does not have as a record says.
#[derive(Debug, Serialize)]
pub(crate) struct MissingView {
    pub(crate) name: String,
    pub(crate) why: String,
}

/// The answer of `archive`.
#[derive(Debug, Serialize)]
pub(crate) struct ArchivedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) file: String,
    pub(crate) bytes: u64,
    pub(crate) checkpoints: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<MissingView>,
}

/// The answer of `event`.
#[derive(Debug, Serialize)]
pub(crate) struct EventAddedView {
    pub(crate) v: u32,
    pub(crate) event: String,
    pub(crate) data: BTreeMap<String, String>,
}

/// The answer of `import --show`.
#[derive(Debug, Serialize)]
pub(crate) struct ImportShownView {
    pub(crate) v: u32,
    pub(crate) checkpoint: String,
    pub(crate) workflow: String,
    pub(crate) steps: Vec<String>,
    /// The workflow file.
    pub(crate) text: String,
}
