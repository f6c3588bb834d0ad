//! `waypost prune`: drops old states and deletes finished runs, and reports the freed space.
//!
//! An unfinished run is deleted only by its status: `--status failed`. A running run always stays.

use std::collections::BTreeSet;
use std::sync::Arc;

use waypost::RunId;
use waypost::engine::{Engine, Pruned, RunError};
use waypost::record::RunStatus;
use waypost::store::{PAGE_ITEMS_MAX, RunQuery, RunSummary, Store, StoreError, StoreExt as _};

use super::Context;
use super::deletion::{Deleting, agreed, refuse_newer};
use super::store::postgres_url;
use crate::cli::PruneArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::size;
use crate::format::text::counted;
use crate::run::disk_use::bytes_of;
use crate::run::reference::find_to_decide;
use crate::store_location::{Access, postgres};
use crate::view::{KeptView, PruneView, PrunedView, VERSION};

pub(crate) async fn prune(context: &Context, args: PruneArgs) -> Result<Exit, Error> {
    let mut deleting = match args.dry_run {
        true => Deleting::for_inspection(context.store(None, Access::Read)?),
        false => Deleting::open(context)?,
    };
    let mut view = PruneView {
        v: VERSION,
        dry_run: args.dry_run,
        deleted: vec![],
        trimmed: vec![],
        kept: vec![],
        bytes: 0,
    };
    let doomed = doomed(context, deleting.store().as_ref(), &args).await?;
    if !doomed.is_empty() && !args.dry_run && !args.yes {
        let names: Vec<String> = doomed.iter().map(|run| run.run.to_string()).collect();
        if !agreed(context, &names)? {
            context.output.note("Nothing was pruned, because the deletion was not confirmed.");
            return Ok(Exit::Usage);
        }
    }
    let bytes = |run: &RunSummary| bytes_of(deleting.store().as_ref(), run);
    let doomed: Vec<(u64, RunSummary)> = doomed.into_iter().map(|run| (bytes(&run), run)).collect();
    if !args.dry_run {
        deleting.make_room(context, doomed.iter().map(|(_, run)| &run.run)).await?;
        rotate_logs(context, &doomed).await;
    }
    let store = Arc::clone(deleting.store());
    let mut gone = BTreeSet::new();
    for (bytes, run) in doomed {
        gone.insert(run.run.clone());
        delete(&deleting, (bytes, run), args.dry_run, &mut view).await?;
    }
    if let Some(keep) = args.keep {
        let runs = match &args.run {
            Some(name) => vec![find_to_decide(store.as_ref(), Some(name), BTreeSet::new(), "run").await?],
            // A run with at most `keep` checkpoints has at most `keep` states.
            None => all(store.as_ref(), &RunQuery::default())
                .await?
                .into_iter()
                .filter(|run| run.checkpoints > u64::from(keep))
                .map(|run| run.run)
                .collect(),
        };
        for run in runs.into_iter().filter(|run| !gone.contains(run)) {
            trim(context, &store, &run, (keep, args.dry_run), &mut view).await?;
        }
    }
    // Closing returns free pages to the file system.
    store.close().await?;
    view.bytes = view.deleted.iter().chain(&view.trimmed).map(|pruned| pruned.bytes).sum();
    tell(context, &args, &view)
}

/// Drops whole months of logs from a store in PostgreSQL, before the rows of their runs. Without the drop, the rows of
/// the logs are deleted with each run.
async fn rotate_logs(context: &Context, doomed: &[(u64, RunSummary)]) {
    let Some(url) = postgres_url(context) else { return };
    let doomed: Vec<RunId> = doomed.iter().map(|(_, run)| run.run.clone()).collect();
    match postgres::rotate_logs(&url, &doomed).await {
        Ok(months) if months.is_empty() => {}
        Ok(months) => context.output.note(&format!("Dropped the log partitions of {}.", months.join(", "))),
        Err(error) => context.output.warn(&format!("cannot drop log partitions: {error}")),
    }
}

/// Returns the runs to delete, newest first: runs that match every given option; without a status, finished runs.
async fn doomed(context: &Context, store: &dyn Store, args: &PruneArgs) -> Result<Vec<RunSummary>, Error> {
    if args.keep_runs.is_none() && args.older_than.is_none() && args.status.is_empty() {
        return Ok(Vec::new());
    }
    let finished =
        BTreeSet::from([RunStatus::Completed, RunStatus::CompletedWithFailures, RunStatus::Cancelled]);
    debug_assert!(finished.iter().all(|status| !status.is_resumable()), "a resumable run is not finished");
    let given: BTreeSet<RunStatus> = args.status.iter().map(|status| RunStatus::from(*status)).collect();
    if given.contains(&RunStatus::Running) {
        return Err(Error::usage("cannot delete running runs", "stop a run first: `waypost stop RUN`"));
    }
    let statuses = if given.is_empty() { finished } else { given };
    let finished = all(store, &RunQuery { statuses, ..RunQuery::default() }).await?;
    let before = args.older_than.map(|age| age.resolve(context.now()));
    let older = finished.into_iter().skip(args.keep_runs.unwrap_or(0));
    Ok(older.filter(|run| before.is_none_or(|before| run.updated_at < before)).collect())
}

/// Returns all matching runs, newest first.
async fn all(store: &dyn Store, query: &RunQuery) -> Result<Vec<RunSummary>, Error> {
    let mut query = RunQuery { limit: PAGE_ITEMS_MAX, ..query.clone() };
    let mut runs = Vec::new();
    loop {
        let page = store.runs(&query).await?;
        runs.extend(page.runs);
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(runs),
        }
    }
}

async fn delete(
    deleting: &Deleting,
    (bytes, run): (u64, RunSummary),
    dry_run: bool,
    view: &mut PruneView,
) -> Result<(), Error> {
    let deleted = match refuse_newer(deleting.store().as_ref(), &run.run).await {
        Ok(()) if !dry_run => deleting.delete(&run.run).await,
        refused => refused.map_err(Error::Store),
    };
    match deleted {
        Ok(()) => {
            let (run, checkpoints) = (run.run.to_string(), run.checkpoints);
            view.deleted.push(PrunedView { run, checkpoints, bytes });
        }
        Err(Error::Store(error)) => keep(view, &run.run, error)?,
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Drops states of a run; in a dry run only counts them.
async fn trim(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    args: (u32, bool),
    view: &mut PruneView,
) -> Result<(), Error> {
    let (kept, dry_run) = args;
    let pruned = if dry_run {
        store.wait_for_release(run).await?;
        would_trim(store.as_ref(), run, kept).await.map_err(RunError::Store)
    } else {
        Engine::new(Arc::clone(store)).prune(run, kept).await
    };
    let Pruned { trimmed, unsaid } = match pruned {
        Ok(pruned) => pruned,
        Err(RunError::Store(error)) => return keep(view, run, error),
        Err(error) => return Err(error.into()),
    };
    if let Some(error) = unsaid {
        context.output.note(&format!("Dropped states of run {run}, but could not record that: {error}."));
    }
    if trimmed.checkpoints > 0 {
        let (run, checkpoints, bytes) = (run.to_string(), trimmed.checkpoints, trimmed.bytes);
        view.trimmed.push(PrunedView { run, checkpoints, bytes });
    }
    Ok(())
}

/// Counts the states to drop, unless the run is held, which would prevent the drop.
async fn would_trim(store: &dyn Store, run: &RunId, kept: u32) -> Result<Pruned, StoreError> {
    if let Some(holder) = store.run(run).await?.summary.holder {
        return Err(StoreError::Held { run: run.clone(), holder: Some(holder), until: None });
    }
    Ok(Pruned { trimmed: store.would_trim(run, kept).await?, unsaid: None })
}

/// Notes a run kept because of its holder or a newer version; other errors are returned.
fn keep(view: &mut PruneView, run: &RunId, error: StoreError) -> Result<(), Error> {
    match error {
        StoreError::Held { .. } | StoreError::Version { .. } => {
            view.kept.push(KeptView { run: run.to_string(), why: error.to_string() });
            Ok(())
        }
        // The run was deleted by another process.
        StoreError::NotFound { .. } => Ok(()),
        error => Err(error.into()),
    }
}

fn tell(context: &Context, args: &PruneArgs, view: &PruneView) -> Result<Exit, Error> {
    if context.output.json {
        context.output.document(view)?;
        return Ok(Exit::Done);
    }
    for kept in &view.kept {
        context.output.note(&format!("Run {} is unchanged: {}.", kept.run, kept.why));
    }
    if view.deleted.is_empty() && view.trimmed.is_empty() {
        context.output.note(&format!("Nothing to prune, because {}.", why_nothing(args, view)));
        return Ok(Exit::Done);
    }
    let (delete, drop, free) = match args.dry_run {
        true => ("Would delete", "Would drop", "Would free"),
        false => ("Deleted", "Dropped", "Freed"),
    };
    let mut text = String::new();
    for PrunedView { run, checkpoints, bytes } in &view.deleted {
        let checkpoints = counted(*checkpoints, "checkpoint");
        text += &format!("{delete} run {run} ({checkpoints}, {})\n", size::shown(*bytes));
    }
    for PrunedView { run, checkpoints, bytes } in &view.trimmed {
        let states = counted(*checkpoints, "state");
        text += &format!("{drop} {states} of run {run} ({})\n", size::shown(*bytes));
    }
    text += &format!("{free} {} ({} bytes).\n", size::shown(view.bytes), view.bytes);
    if args.dry_run {
        context.output.answer(&text)?
    } else {
        context.output.done(&text)?
    }
    Ok(Exit::Done)
}

fn why_nothing(args: &PruneArgs, view: &PruneView) -> String {
    if !view.kept.is_empty() {
        return "every run with something to prune is unchanged".to_owned();
    }
    let mut causes = Vec::new();
    if !args.status.is_empty() {
        causes.push("no run has this status, and matches the other options".to_owned());
    } else if args.keep_runs.is_some() || args.older_than.is_some() {
        causes.push(match args.older_than {
            Some(_) => "no finished run is old enough".to_owned(),
            None => match args.keep_runs {
                None | Some(0) => "no run is finished".to_owned(),
                Some(1) => "no more than 1 run is finished".to_owned(),
                Some(count) => format!("no more than {count} runs are finished"),
            },
        });
    }
    if let Some(keep) = args.keep {
        let keeps = if args.run.is_some() { "the run does not keep" } else { "no run keeps" };
        causes.push(format!("{keeps} more than the newest {keep} states and their delta bases"));
    }
    causes.join(", and ")
}
