//! `waypost stats`: counts over the store, from the stored summaries of runs and the sizes of their files. Reads no
//! records.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use jiff::Timestamp;
use waypost::record::RunStatus;
use waypost::store::{PAGE_ITEMS_MAX, Progress, RunQuery, RunSummary, Store};

use super::Context;
use crate::cli::StatsArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::size;
use crate::format::time;
use crate::run::disk_use::bytes_of;
use crate::store_location::{Access, StoreUrl};
use crate::view::{StatsView, UnreadableRunView, VERSION, WorkflowStatsView};

pub(crate) async fn stats(context: &Context, args: StatsArgs) -> Result<Exit, Error> {
    let store = match context.store(None, Access::Read) {
        Ok(store) => store,
        Err(error @ (Error::NoStore { .. } | Error::NoRuns { .. })) => {
            return nothing(context, &empty(String::new()), &error.to_string());
        }
        Err(error) => return Err(error),
    };
    let query = RunQuery {
        workflow: args.workflow.clone(),
        since: args.since.map(|since| since.resolve(context.now())),
        ..RunQuery::default()
    };
    let view = counted(context, store.as_ref(), query).await?;
    if view.runs == 0 && view.damaged.is_empty() {
        let filtered = args.workflow.is_some() || args.since.is_some();
        let why = if filtered { "no run of the store matches" } else { "the store has no runs" };
        return nothing(context, &view, why);
    }
    if context.output.json {
        context.output.document(&view)?;
    } else {
        context.output.answer(&told(context, &view))?;
    }
    Ok(Exit::Done)
}

/// Returns the counts over the runs of a query, and warns of runs that cannot be counted.
pub(super) async fn counted(
    context: &Context,
    store: &dyn Store,
    query: RunQuery,
) -> Result<StatsView, Error> {
    let mut query = RunQuery { limit: PAGE_ITEMS_MAX, ..query };
    let mut view = empty(store.to_string());
    let mut workflows: BTreeMap<String, Counted> = BTreeMap::new();
    loop {
        let page = store.runs(&query).await?;
        for run in page.runs {
            let run = RunSummary { bytes: bytes_of(store, &run), ..run };
            count(&mut view, &run);
            workflows.entry(run.workflow.clone()).or_default().count(&run);
        }
        let unreadable = |run: waypost::store::UnreadableRun| UnreadableRunView {
            store: None,
            run: run.run.to_string(),
            error: run.why,
        };
        view.damaged.extend(page.damaged.into_iter().map(unreadable));
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    view.workflows = workflows.into_iter().map(|(name, counted)| counted.view(name)).collect();
    view.database_bytes = database_bytes(store);
    for run in &view.damaged {
        context.output.warn(&format!("not counted: run {}: {}", run.run, run.error));
    }
    Ok(view)
}

fn empty(store: String) -> StatsView {
    StatsView {
        v: VERSION,
        store,
        runs: 0,
        by_status: BTreeMap::new(),
        resumable: 0,
        steps: Progress { done: 0, total: 0 },
        checkpoints: 0,
        lost_checkpoints: 0,
        bytes: 0,
        database_bytes: None,
        elapsed_ms: 0,
        first_started_at: None,
        last_changed_at: None,
        workflows: Vec::new(),
        damaged: Vec::new(),
    }
}

fn nothing(context: &Context, view: &StatsView, why: &str) -> Result<Exit, Error> {
    if context.output.json {
        context.output.document(view)?;
    } else {
        context.output.note(&format!("Nothing to count, because {why}."));
    }
    Ok(Exit::Done)
}

fn count(view: &mut StatsView, run: &RunSummary) {
    let earlier = |seen: Option<Timestamp>, at| Some(seen.map_or(at, |seen: Timestamp| seen.min(at)));
    view.runs += 1;
    *view.by_status.entry(run.status.name()).or_default() += 1;
    view.resumable += u64::from(run.status.is_resumable());
    view.steps.done += run.summary.progress.done;
    view.steps.total += run.summary.progress.total;
    view.checkpoints += run.checkpoints;
    view.lost_checkpoints += run.summary.lost;
    view.bytes += run.bytes;
    view.elapsed_ms = view.elapsed_ms.saturating_add(elapsed_ms(run));
    view.first_started_at = earlier(view.first_started_at, run.created_at);
    view.last_changed_at = view.last_changed_at.max(Some(run.updated_at));
}

/// Returns the time from the begin of a run to its last checkpoint; negative time, after a clock change,
/// counts as zero.
fn elapsed_ms(run: &RunSummary) -> u64 {
    u64::try_from(run.updated_at.duration_since(run.created_at).as_millis()).unwrap_or(0)
}

/// The runs of one workflow.
#[derive(Debug, Default)]
struct Counted {
    view: WorkflowStatsView,
    completed: u64,
    completed_ms: u64,
}

impl Counted {
    fn count(&mut self, run: &RunSummary) {
        self.view.runs += 1;
        *self.view.by_status.entry(run.status.name()).or_default() += 1;
        self.view.checkpoints += run.checkpoints;
        self.view.bytes += run.bytes;
        self.view.elapsed_ms = self.view.elapsed_ms.saturating_add(elapsed_ms(run));
        if matches!(run.status, RunStatus::Completed | RunStatus::CompletedWithFailures) {
            self.completed += 1;
            self.completed_ms = self.completed_ms.saturating_add(elapsed_ms(run));
        }
    }

    fn view(self, workflow: String) -> WorkflowStatsView {
        let mean_completed_ms = self.completed_ms.checked_div(self.completed);
        WorkflowStatsView { workflow, mean_completed_ms, ..self.view }
    }
}

/// Returns the bytes of an SQLite database's files, including its log.
fn database_bytes(store: &dyn Store) -> Option<u64> {
    let StoreUrl::Sqlite(path) = StoreUrl::parse(&store.to_string()).ok()? else { return None };
    let bytes = ["", "-wal"].map(|suffix| {
        let mut name = path.clone().into_os_string();
        name.push(suffix);
        fs::metadata(name).map_or(0, |file| file.len())
    });
    Some(bytes.iter().sum())
}

/// Formats numbers of runs by status.
pub(super) fn statuses(counts: &BTreeMap<&str, u64>) -> String {
    counts.iter().map(|(status, count)| format!("{count} {status}")).collect::<Vec<_>>().join(", ")
}

fn told(context: &Context, view: &StatsView) -> String {
    let lasted = |ms: u64| time::lasted(Duration::from_millis(ms));
    let now = context.now();
    let rows = [
        ("store", crate::output::shown(&view.store).into_owned()),
        ("runs", format!("{} ({})", view.runs, statuses(&view.by_status))),
        ("resumable", view.resumable.to_string()),
        ("steps", format!("{} of {} finished", view.steps.done, view.steps.total)),
        ("checkpoints", view.checkpoints.to_string()),
        (
            "not written",
            Some(view.lost_checkpoints)
                .filter(|lost| *lost > 0)
                .map_or(String::new(), |lost| lost.to_string()),
        ),
        ("size", size::shown(view.bytes)),
        ("database", view.database_bytes.map(size::shown).unwrap_or_default()),
        ("time", format!("{} from start to last checkpoint, total of all runs", lasted(view.elapsed_ms))),
        ("first begun", view.first_started_at.map(time::utc).unwrap_or_default()),
        ("last change", view.last_changed_at.map(|at| time::ago(at, now)).unwrap_or_default()),
    ];
    let mut text = String::new();
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&format!("{name:<12} {}\n", context.output.wrapped(value, 13, 13)));
    }
    let row = |found: &WorkflowStatsView| {
        let mean = found.mean_completed_ms.map(lasted).unwrap_or_default();
        let (checkpoints, bytes) = (found.checkpoints.to_string(), size::shown(found.bytes));
        vec![
            found.workflow.clone(),
            found.runs.to_string(),
            statuses(&found.by_status),
            checkpoints,
            bytes,
            mean,
        ]
    };
    let rows: Vec<_> = view.workflows.iter().map(row).collect();
    let heading = ["WORKFLOW", "RUNS", "STATUS", "CHECKPOINTS", "SIZE", "TOOK ON AVERAGE"];
    format!("{text}\n{}", context.output.table(&heading, &rows))
}
