//! Documents of commands that maintain runs, stores and this program.

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
    /// The files in effect here, nearest first.
    pub(crate) files: Vec<ConfigFileView>,
}

/// A value of the configuration.
#[derive(Debug, Serialize)]
pub(crate) struct SettingView {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) source: Origin,
    /// The file, if the value comes from a file.
    pub(crate) path: Option<String>,
    pub(crate) line: Option<usize>,
}

/// A configuration file.
#[derive(Debug, Serialize)]
pub(crate) struct ConfigFileView {
    pub(crate) source: Origin,
    pub(crate) path: String,
    pub(crate) exists: bool,
}

/// The answer of `cancel`.
#[derive(Debug, Serialize)]
pub(crate) struct CancelledView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) status: RunStatus,
    /// This call cancelled the run; `false` if it was cancelled before.
    pub(crate) cancelled: bool,
    /// The run was running, and this call stopped it.
    pub(crate) stopped: bool,
    /// How many scopes besides the main one ended with the run.
    #[serde(rename = "branches")]
    pub(crate) scopes: usize,
    /// The undone steps, newest first, if requested.
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
    /// The number of runs by status; statuses without runs are omitted.
    pub(crate) by_status: BTreeMap<&'static str, u64>,
    pub(crate) resumable: u64,
    /// Done steps, of all steps of the runs.
    pub(crate) steps: Progress,
    pub(crate) checkpoints: u64,
    /// Checkpoints that could not be written, a failure that was tolerated.
    pub(crate) lost_checkpoints: u64,
    /// Bytes of the runs: records and files, logs included.
    pub(crate) bytes: u64,
    /// Bytes of the database files; `None` for other stores.
    pub(crate) database_bytes: Option<u64>,
    /// The sum over all runs from begin to last checkpoint, waits included.
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
    /// The mean time of completed runs, from begin to end; `None` without any.
    pub(crate) mean_completed_ms: Option<u64>,
}

/// The answer of `doctor`.
#[derive(Debug, Serialize)]
pub(crate) struct DoctorView {
    pub(crate) v: u32,
    /// No check failed.
    pub(crate) ok: bool,
    pub(crate) checks: Vec<CheckupView>,
}

/// A check of `doctor`.
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
    /// The store did not exist before.
    pub(crate) made: bool,
}

/// The answer of `store upgrade`.
#[derive(Debug, Serialize)]
pub(crate) struct StoreUpgradedView {
    pub(crate) v: u32,
    pub(crate) store: String,
    pub(crate) upgraded: bool,
    /// The table version before, if the store has tables.
    pub(crate) before: Option<u32>,
    pub(crate) after: Option<u32>,
}

/// The answer of `store check`.
#[derive(Debug, Serialize)]
pub(crate) struct StoreCheckedView {
    pub(crate) v: u32,
    pub(crate) store: String,
    pub(crate) sound: bool,
    /// The table version, if the store has tables.
    pub(crate) schema: Option<u32>,
    pub(crate) runs: u64,
    /// The number of runs that only a newer version can check.
    pub(crate) newer: u64,
    pub(crate) errors: Vec<String>,
}

/// The answer of `store stats`.
#[derive(Debug, Serialize)]
pub(crate) struct StoreStatsView {
    pub(crate) v: u32,
    pub(crate) store: String,
    /// The table version, if the store has tables.
    pub(crate) schema: Option<u32>,
    pub(crate) runs: u64,
    pub(crate) by_status: BTreeMap<&'static str, u64>,
    /// Bytes of the runs: records and files, logs included.
    pub(crate) bytes: u64,
    /// Bytes of the database: of its files, or of its tables with indexes.
    pub(crate) database_bytes: Option<u64>,
    /// The server; `None` for local stores.
    pub(crate) server: Option<ServerStatsView>,
}

/// The load of a database server.
#[derive(Debug, Serialize)]
pub(crate) struct ServerStatsView {
    pub(crate) queue: QueueStatsView,
    pub(crate) leases: Vec<LeaseStatsView>,
    /// Largest first.
    pub(crate) tables: Vec<TableStatsView>,
    pub(crate) connections: ConnectionsView,
}

/// The queue, counted.
#[derive(Debug, Serialize)]
pub(crate) struct QueueStatsView {
    /// Claimable runs, and the longest wait.
    pub(crate) ready: u64,
    pub(crate) oldest_ms: u64,
    /// Runs that wait for a time.
    pub(crate) later: u64,
    /// Runs for which a worker lacked something.
    pub(crate) lacking: u64,
    /// Steps that wait for another worker than that of their run.
    pub(crate) steps: u64,
}

/// The leases of a process.
#[derive(Debug, Serialize)]
pub(crate) struct LeaseStatsView {
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) since: Option<Timestamp>,
    /// `None` for an ended lease.
    pub(crate) until: Option<Timestamp>,
    pub(crate) expired: bool,
    pub(crate) runs: u64,
    /// Steps of runs of other workers.
    pub(crate) steps: u64,
}

/// A table, or the partition of a month.
#[derive(Debug, Serialize)]
pub(crate) struct TableStatsView {
    pub(crate) table: String,
    pub(crate) bytes: u64,
    pub(crate) rows: u64,
    pub(crate) dead_rows: u64,
    pub(crate) vacuumed_at: Option<Timestamp>,
}

/// The connections of a server.
#[derive(Debug, Serialize)]
pub(crate) struct ConnectionsView {
    pub(crate) used: u64,
    pub(crate) database: u64,
    pub(crate) max: u64,
}

/// The answer of `export`.
#[derive(Debug, Serialize)]
pub(crate) struct ExportedView {
    pub(crate) v: u32,
    pub(crate) checkpoint: String,
    pub(crate) file: String,
    pub(crate) bytes: u64,
}

/// A log or blob of a run that differs from its record in the archive.
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

/// The source of a value, by descending precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Origin {
    /// The command line.
    Flag,
    /// The caller's environment.
    Environment,
    /// The workflow file.
    Workflow,
    /// The nearest `.waypost/config.yaml`.
    Project,
    /// The configuration file of the user.
    User,
    /// Built-in default.
    Default,
}
