//! `waypost list`: the runs of the store, newest first. Opens the newest record of each, and no other.

use std::collections::{BTreeMap, BTreeSet};

use waypost::record::RunStatus;
use waypost::store::{RunQuery, RunSummary, Store, StoreError, UnreadableRun};

use super::Context;
use crate::cli::{ListArgs, StatusName};
use crate::error::Error;
use crate::exit::Exit;
use crate::place::{self, Access};
use crate::reference::resumable_statuses;
use crate::size;
use crate::standing::{self, Corrected};
use crate::time;
use crate::view::{ListView, RunView, UnreadableRunView, VERSION};

pub(crate) async fn list(context: &Context, args: ListArgs) -> Result<Exit, Error> {
    refuse_two_values(&args)?;
    let store = match context.store(None, Access::Read) {
        Ok(store) => store,
        Err(error @ (Error::NoStore { .. } | Error::NoRuns { .. })) => {
            return nothing(context, &error.to_string());
        }
        Err(error) => return Err(error),
    };
    let query = query(context, store.as_ref(), &args);
    let mut found = store.runs(&query).await?;
    let mut listed = Vec::with_capacity(found.runs.len());
    for mut run in found.runs {
        match standing::correct(store.as_ref(), &mut run).await? {
            Corrected::Right => {}
            Corrected::Fallen => {
                let text = format!(
                    "newer checkpoints of run {0} are damaged: `waypost verify {0}` says more",
                    run.run
                );
                context.output.warn(&context.with_store(&text));
            }
            Corrected::Unreadable(error) => {
                found.damaged.push(UnreadableRun { run: run.run, why: error.to_string() });
                continue;
            }
        }
        listed.push(run);
    }
    // One that is not as was asked for after all.
    listed.retain(|run| query.statuses.is_empty() || query.statuses.contains(&run.status));
    let home = store.home();
    let runs: Vec<RunView> = listed.into_iter().map(|run| view(home, run)).collect();
    // Where others could be listed, those that could not are told beside them.
    let exit = match (&runs[..], &found.damaged[..]) {
        ([], [_, ..]) => exit_of(store.as_ref(), &found.damaged).await,
        _ => Exit::Done,
    };
    let damaged: Vec<UnreadableRunView> = found.damaged.into_iter().map(unreadable).collect();
    for run in &damaged {
        context.output.warn(&format!("run {} cannot be listed: {}", run.run, run.error));
    }
    if context.output.json {
        context.output.document(&ListView { v: VERSION, runs, damaged, next: found.next })?;
        return Ok(exit);
    }
    if exit != Exit::Done {
        return Ok(exit);
    }
    if runs.is_empty() {
        let filtered = query != RunQuery { limit: query.limit, ..RunQuery::default() };
        let why = if filtered { "no run of the store is as asked for" } else { "the store has no runs" };
        return nothing(context, why);
    }
    context.output.answer(&table(context, &runs))?;
    if found.next.is_some() {
        context
            .output
            .note(&format!("There are older runs; these are the newest {}: see --limit.", runs.len()));
    }
    Ok(Exit::Done)
}

/// Says what it means that no run can be listed: they are damaged, or all of a newer version.
async fn exit_of(store: &dyn Store, unreadable: &[UnreadableRun]) -> Exit {
    for found in unreadable {
        match standing::unlisted(store, &found.run).await {
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

/// Refuses to look for runs whose one label has two values: there is none.
fn refuse_two_values(args: &ListArgs) -> Result<(), Error> {
    let mut values = BTreeMap::new();
    for (name, value) in &args.labels {
        if values.insert(name, value).is_some_and(|before| before != value) {
            return Err(Error::usage(
                format!("a run has one value of label `{name}`, and two are asked for"),
                "name each label once; runs must have all of them",
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
        Some(home) => place::relative_to(home, path).unwrap_or_else(|| path.display().to_string()),
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

fn view(home: Option<&std::path::Path>, run: RunSummary) -> RunView {
    RunView {
        run: run.run.to_string(),
        workflow: run.workflow,
        path: run.path.map(|path| place::from_home(home, &path).display().to_string()),
        status: run.status,
        step: run.summary.step,
        progress: run.summary.progress,
        started_at: run.created_at,
        updated_at: run.updated_at,
        resumable: run.status.is_resumable(),
        checkpoints: run.checkpoints,
        bytes: run.bytes,
        labels: run.labels,
    }
}

fn unreadable(found: UnreadableRun) -> UnreadableRunView {
    UnreadableRunView { run: found.run.to_string(), error: found.why }
}

fn table(context: &Context, runs: &[RunView]) -> String {
    let now = context.now();
    let row = |run: &RunView| {
        vec![
            run.run.clone(),
            run.status.name().to_owned(),
            format!("{}/{}", run.progress.done, run.progress.total),
            run.step.clone().unwrap_or_default(),
            time::ago(run.updated_at, now),
            size::shown(run.bytes),
            run.workflow.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    context.output.table(&["RUN", "STATUS", "STEPS", "STEP", "CHANGED", "SIZE", "WORKFLOW"], &rows)
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
