//! `waypost list`: the runs of the store, newest first. Reads only the newest record of each, and checks the evidence of
//! cut steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use waypost::engine::Snapshot;
use waypost::record::RunStatus;
use waypost::store::{RunQuery, RunSummary, Store, StoreError, UnreadableRun};

use super::Context;
use crate::cli::{ListArgs, StatusName};
use crate::error::Error;
use crate::exit::Exit;
use crate::format::size;
use crate::format::time;
use crate::output::shown;
use crate::run::current_evidence;
use crate::run::definition::names;
use crate::run::disk_use::bytes_of;
use crate::run::reference::resumable_statuses;
use crate::run::run_status::{self, Correction};
use crate::store_location::registry;
use crate::store_location::{self, Access};
use crate::view::{ListView, RunView, UnreadableRunView, VERSION};

pub(crate) async fn list(context: &Context, args: ListArgs) -> Result<Exit, Error> {
    refuse_two_values(&args)?;
    if args.everywhere {
        return list_everywhere(context, &args).await;
    }
    let store = match context.store(None, Access::Read) {
        Ok(store) => store,
        Err(error @ (Error::NoStore { .. } | Error::NoRuns { .. })) => {
            return nothing(context, &error.to_string());
        }
        Err(error) => return Err(error),
    };
    let query = query(context, store.as_ref(), &args);
    let Found { runs, unreadable, next } = found(context, &store, &query, None).await?;
    // If other runs can be listed, unreadable ones only cause warnings.
    let exit = match (&runs[..], &unreadable[..]) {
        ([], [_, ..]) => exit_of(store.as_ref(), &unreadable).await,
        _ => Exit::Done,
    };
    let damaged = tell_of(context, unreadable, None);
    if context.output.json {
        context.output.document(&ListView { v: VERSION, runs, damaged, next })?;
        return Ok(exit);
    }
    if exit != Exit::Done {
        return Ok(exit);
    }
    if runs.is_empty() {
        let filtered = query != RunQuery { limit: query.limit, ..RunQuery::default() };
        let why = if filtered { "no run of the store matches" } else { "the store has no runs" };
        return nothing(context, why);
    }
    context.output.answer(&table(context, &runs))?;
    if next.is_some() {
        report_more(context, runs.len());
    }
    Ok(Exit::Done)
}

/// Returns the addresses of the stores that this user has written to, and of the store here.
pub(super) fn known_stores(context: &Context) -> Vec<String> {
    let mut addresses = registry::remembered();
    // This user may never have written to the local store.
    let here = context.store(None, Access::Read).ok().and_then(|store| registry::address(store.as_ref()));
    addresses.extend(here.filter(|here| !addresses.contains(here)));
    addresses
}

/// Lists the runs of all known stores; an unreadable store causes a warning.
async fn list_everywhere(context: &Context, args: &ListArgs) -> Result<Exit, Error> {
    let addresses = known_stores(context);
    let (mut runs, mut damaged, mut more, mut asked) = (Vec::new(), Vec::new(), false, false);
    for address in &addresses {
        let listed = async {
            let store = store_location::open(Some(address), None, Access::Read)?;
            let query = query(context, store.as_ref(), args);
            found(context, &store, &query, Some(address)).await
        };
        match listed.await {
            Ok(found) => {
                more |= found.next.is_some();
                asked = true;
                runs.extend(found.runs);
                damaged.extend(tell_of(context, found.unreadable, Some(address)));
            }
            Err(Error::NoRuns { .. }) => asked = true,
            Err(error) => context.output.warn(&format!("store {} cannot be listed: {error}", shown(address))),
        }
    }
    runs.sort_by_key(|run: &RunView| std::cmp::Reverse(run.started_at));
    more |= runs.len() as u64 > args.limit;
    runs.truncate(args.limit as usize);
    let exit = if runs.is_empty() && !damaged.is_empty() { Exit::Damaged } else { Exit::Done };
    if context.output.json {
        context.output.document(&ListView { v: VERSION, runs, damaged, next: None })?;
        return Ok(exit);
    }
    if runs.is_empty() {
        let why = if asked { "no run of any store matches" } else { "no known store is readable" };
        return nothing(context, why).map(|_| exit);
    }
    context.output.answer(&table(context, &runs))?;
    if more {
        report_more(context, runs.len());
    }
    Ok(exit)
}

fn report_more(context: &Context, count: usize) {
    context.output.note(&format!("There are older runs; these are the newest {count}: use --limit."));
}

/// Warns of runs that cannot be listed.
fn tell_of(context: &Context, unreadable: Vec<UnreadableRun>, of: Option<&str>) -> Vec<UnreadableRunView> {
    let view = |found: UnreadableRun| {
        let place = of.map(|store| format!(" of store {}", shown(store))).unwrap_or_default();
        context.output.warn(&format!("run {}{place} cannot be listed: {}", found.run, found.why));
        UnreadableRunView { run: found.run.to_string(), store: of.map(str::to_owned), error: found.why }
    };
    unreadable.into_iter().map(view).collect()
}

/// The answer of a store.
struct Found {
    runs: Vec<RunView>,
    unreadable: Vec<UnreadableRun>,
    next: Option<String>,
}

/// Queries a store; `of` is its name if there are several.
async fn found(
    context: &Context,
    shared: &Arc<dyn Store>,
    query: &RunQuery,
    of: Option<&str>,
) -> Result<Found, Error> {
    let store = shared.as_ref();
    let mut asked = query.clone();
    if asked.statuses.contains(&RunStatus::Interrupted) {
        // Evidence may settle the cut steps.
        asked.statuses.insert(RunStatus::InDoubt);
    }
    let mut found = store.runs(&asked).await?;
    let mut listed = Vec::with_capacity(found.runs.len());
    for mut run in found.runs {
        match run_status::correct(store, &mut run).await? {
            Correction::Unneeded => {}
            Correction::Applied => {
                let text = format!(
                    "newer checkpoints of run {0} are damaged or missing: `waypost verify {0}` shows details",
                    run.run
                );
                context.output.warn(&match of {
                    Some(of) => store_location::with_words(
                        &text,
                        &format!(" --store {}", crate::format::text::quoted(of)),
                    ),
                    None => context.with_store(&text),
                });
            }
            Correction::Unreadable(error) => {
                found.damaged.push(UnreadableRun { run: run.run, why: error.to_string() });
                continue;
            }
        }
        if run.status == RunStatus::InDoubt {
            let settles = match Snapshot::read(store, &run.run).await {
                Ok(snapshot) => current_evidence::settles(shared, &snapshot).await,
                Err(error) => Err(error.into()),
            };
            // A run that cannot be read stays as recorded.
            if matches!(settles, Ok(true)) {
                run.status = RunStatus::Interrupted;
            }
        }
        if let Some(step) = run.summary.step.as_mut().filter(|step| step.contains('/')) {
            *step = names(store, &run.run).await.plain(step);
        }
        listed.push(run);
    }
    // After the correction, some runs may not match the query any more.
    listed.retain(|run| query.statuses.is_empty() || query.statuses.contains(&run.status));
    let runs = listed.into_iter().map(|run| view(store, run, of)).collect();
    Ok(Found { runs, unreadable: found.damaged, next: found.next })
}

/// Returns the exit code if no run can be listed: damaged, or all of a newer version.
async fn exit_of(store: &dyn Store, unreadable: &[UnreadableRun]) -> Exit {
    for found in unreadable {
        match run_status::unlisted(store, &found.run).await {
            Err(Error::Store(StoreError::Version { .. })) => {}
            _ => return Exit::Damaged,
        }
    }
    Exit::Newer
}

fn nothing(context: &Context, why: &str) -> Result<Exit, Error> {
    if context.output.json {
        context.output.document(&ListView {
            v: VERSION,
            runs: Vec::new(),
            damaged: Vec::new(),
            next: None,
        })?;
    } else {
        context.output.note(&format!("Nothing to list, because {why}."));
    }
    Ok(Exit::Done)
}

/// Refuses a query for two values of the same label: no run matches.
fn refuse_two_values(args: &ListArgs) -> Result<(), Error> {
    let mut values = BTreeMap::new();
    for (name, value) in &args.labels {
        if values.insert(name, value).is_some_and(|before| before != value) {
            return Err(Error::usage(
                format!("label `{name}` is given with two values, but has one per run"),
                "give each label once; all given labels must match",
            ));
        }
    }
    Ok(())
}

fn query(context: &Context, store: &dyn Store, args: &ListArgs) -> RunQuery {
    let statuses = if args.resumable {
        resumable_statuses()
    } else {
        args.status.iter().map(|status| RunStatus::from(*status)).collect::<BTreeSet<_>>()
    };
    let as_recorded = |path: &std::path::PathBuf| match store.home() {
        Some(home) => store_location::relative_to(home, path).unwrap_or_else(|| path.display().to_string()),
        None => path.display().to_string(),
    };
    RunQuery {
        prefix: None,
        statuses,
        workflow: args.workflow.clone(),
        path: args.path.as_ref().map(as_recorded),
        labels: args.labels.iter().cloned().collect(),
        since: args.since.map(|since| since.resolve(context.now())),
        cursor: args.after.clone(),
        limit: args.limit as usize,
    }
}

fn view(store: &dyn Store, run: RunSummary, of: Option<&str>) -> RunView {
    let (home, bytes) = (store.home(), bytes_of(store, &run));
    let until = run_status::waits_until(&run);
    RunView {
        run: run.run.to_string(),
        store: of.map(str::to_owned),
        workflow: run.workflow,
        path: run.path.map(|path| store_location::from_home(home, &path).display().to_string()),
        status: run.status,
        until,
        step: run.summary.step,
        progress: run.summary.progress,
        started_at: run.created_at,
        updated_at: run.updated_at,
        resumable: run.status.is_resumable(),
        checkpoints: run.checkpoints,
        bytes,
        labels: run.labels,
    }
}

fn table(context: &Context, runs: &[RunView]) -> String {
    let now = context.now();
    let row = |run: &RunView| {
        vec![
            run.run.clone(),
            run.status.name().to_owned(),
            format!("{}/{}", run.progress.done, run.progress.total),
            run.step.clone().unwrap_or_default(),
            // The wait of any step, not only of STEP.
            run.until.map(time::utc).unwrap_or_default(),
            time::ago(run.updated_at, now),
            size::shown(run.bytes),
            run.workflow.clone(),
        ]
        .into_iter()
        .chain(run.store.clone())
        .collect()
    };
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    let mut heads = vec!["RUN", "STATUS", "STEPS", "STEP", "WAITS UNTIL", "CHANGED", "SIZE", "WORKFLOW"];
    heads.extend(runs.iter().any(|run| run.store.is_some()).then_some("STORE"));
    context.output.table(&heads, &rows)
}

impl From<StatusName> for RunStatus {
    fn from(name: StatusName) -> Self {
        match name {
            StatusName::Queued => Self::Queued,
            StatusName::Running => Self::Running,
            StatusName::Waiting => Self::Waiting,
            StatusName::Interrupted => Self::Interrupted,
            StatusName::Failed => Self::Failed,
            StatusName::InDoubt => Self::InDoubt,
            StatusName::Completed => Self::Completed,
            StatusName::CompletedWithFailures => Self::CompletedWithFailures,
            StatusName::Cancelled => Self::Cancelled,
        }
    }
}
