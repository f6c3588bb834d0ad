//! `waypost resume --all`: continues every interrupted or due run of a store, or of all stores of the user.

use std::sync::Arc;

use waypost::RunId;
use waypost::engine::{DueRuns, Snapshot, due_runs};
use waypost::record::RunStatus;
use waypost::store::{RunQuery, Store, StoreError};

use super::super::{Context, list};
use super::{Prepared, dry_run};
use crate::cli::ResumeArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::run::doubt::doubts_of;
use crate::run::needs::is_for_workers;
use crate::run::run_status;
use crate::session::{Nothing, Session};
use crate::store_location::{self, Access};
use crate::view::doubt::answer_lines;

/// Resumes every interrupted or due run of a store, oldest first.
pub(super) async fn resume_all(
    context: &Context,
    store: Arc<dyn Store>,
    args: &ResumeArgs,
) -> Result<Exit, Error> {
    let session = Session::begin_many(context)?;
    resume_store(context, store, args, &session).await?.map_or_else(|| nothing(context), Ok)
}

/// Resumes every interrupted or due run of all known stores. Other stores follow after an error of a store.
pub(super) async fn resume_everywhere(
    context: &Context,
    access: Access,
    args: &ResumeArgs,
) -> Result<Exit, Error> {
    let session = Session::begin_many(context)?;
    let mut first = None;
    for address in list::known_stores(context) {
        if session.stop.asked().is_some() {
            break;
        }
        let there = context.at(&address);
        let resumed = match store_location::open(Some(&address), None, access) {
            Ok(store) => resume_store(&there, store, args, &session).await,
            Err(Error::NoRuns { .. }) => continue,
            Err(error) => Err(error),
        };
        let exit = resumed.unwrap_or_else(|error| Some(there.tell(&error)));
        first = first.filter(|first| *first != Exit::Done).or(exit).or(first);
    }
    first.map_or_else(|| nothing(context), Ok)
}

fn nothing(context: &Context) -> Result<Exit, Error> {
    context.output.note("Nothing to resume, because no run is interrupted or due.");
    if context.output.json {
        context.output.line(&Nothing::of(None, "no run is interrupted or due"))?;
    }
    Ok(Exit::Done)
}

/// Resumes the runs of a store; returns the first exit code of an error, or `None` without such runs.
async fn resume_store(
    context: &Context,
    store: Arc<dyn Store>,
    args: &ResumeArgs,
    session: &Session<'_>,
) -> Result<Option<Exit>, Error> {
    let Due { runs: found, unreadable } = due(context, store.as_ref()).await?;
    let mut runs = Vec::with_capacity(found.len());
    for run in found {
        if is_of_script(store.as_ref(), &run).await {
            context.output.detail(&format!("Skipped run {run}: it belongs to a script."));
        } else if is_for_workers(store.as_ref(), &run).await? {
            context.output.detail(&format!("Skipped run {run}: the workers execute it."));
        } else {
            runs.push(run);
        }
    }
    let doubtful = in_doubt(store.as_ref()).await?;
    if runs.is_empty() && doubtful.is_empty() && unreadable.is_empty() {
        return Ok(None);
    }
    let mut worst = Exit::Done;
    for run in runs {
        if session.stop.asked().is_some() {
            break;
        }
        // Heading for the messages besides its events, too.
        let of =
            if args.everywhere { format!(" of store {}", shown(&store.to_string())) } else { String::new() };
        context.output.note(&format!("Run {run}{of}:"));
        let ended = if args.dry_run {
            dry_run(context, &store, &run, (args, &[])).await
        } else {
            match Prepared::of(context, &store, &run, args).await {
                Ok(prepared) => {
                    let session = session.of_one(context, prepared.timeout);
                    prepared.go_on(context, Arc::clone(&store), &session, args).await
                }
                Err(error) => Err(error),
            }
        };
        let exit = ended.unwrap_or_else(|error| context.tell(&error));
        if worst == Exit::Done {
            worst = exit;
        }
    }
    for error in &unreadable {
        let exit = context.tell(error);
        if worst == Exit::Done {
            worst = exit;
        }
    }
    for run in &doubtful {
        report_doubt(context, store.as_ref(), run, args).await?;
    }
    Ok(Some(if worst == Exit::Done && !doubtful.is_empty() { Exit::InDoubt } else { worst }))
}

/// Returns whether a run was created by `once`: only the script continues the run.
async fn is_of_script(store: &dyn Store, run: &RunId) -> bool {
    let entry = store.run(run).await;
    entry.is_ok_and(|entry| entry.record.record().settings.contains_key(crate::run::definition::SCRIPT))
}

/// Prints the commands that decide a run in doubt.
async fn report_doubt(
    context: &Context,
    store: &dyn Store,
    run: &RunId,
    args: &ResumeArgs,
) -> Result<(), Error> {
    if context.output.json && !args.dry_run {
        let run = Some((run.as_str(), RunStatus::InDoubt));
        return Ok(context.output.line(&Nothing::of(run, "a step is in doubt, and needs a decision"))?);
    }
    let snapshot = Snapshot::read(store, run).await?;
    let doubts = doubts_of(store, &snapshot, context.now()).await?;
    let text = format!(
        "Run {run} is unchanged, because a step is in doubt: see `waypost why {run}`, then decide:{}",
        answer_lines(&format!("waypost resume {run}"), &doubts)
    );
    context.output.warn(&context.with_store(&text));
    Ok(())
}

/// Returns the runs in doubt, oldest first.
async fn in_doubt(store: &dyn Store) -> Result<Vec<RunId>, Error> {
    let mut query = RunQuery { statuses: [RunStatus::InDoubt].into(), ..RunQuery::default() };
    let mut runs = Vec::new();
    loop {
        let page = store.runs(&query).await?;
        runs.extend(page.runs.into_iter().map(|run| run.run));
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    runs.reverse();
    Ok(runs)
}

/// The runs to resume.
struct Due {
    /// Oldest first, then the damaged runs.
    runs: Vec<RunId>,
    /// Errors of unreadable runs with an unknown status.
    unreadable: Vec<Error>,
}

async fn due(context: &Context, store: &dyn Store) -> Result<Due, Error> {
    let DueRuns { mut runs, damaged } = due_runs(store, context.now()).await?;
    let mut unreadable = Vec::new();
    for run in damaged {
        match run_status::unlisted(store, &run).await {
            Ok(RunStatus::Interrupted | RunStatus::Queued) => runs.push(run),
            Ok(_) => {}
            // Deleted meanwhile.
            Err(Error::Store(StoreError::NotFound { .. })) => {}
            Err(error) => unreadable.push(error),
        }
    }
    Ok(Due { runs, unreadable })
}
