//! `waypost watch`: the screen of a run that another process works on, read from the store.

use std::path::Path;
use std::sync::Arc;

use waypost::engine::{Engine, Outcome, Snapshot};
use waypost::events::{self, EventKind};
use waypost::record::{Failure, Phase, Record, RunStatus};
use waypost::store::Store;
use waypost::{RunId, StepId};
use waypost_workflow::file::Workflow;

use super::Context;
use super::events::{FOLLOW_INTERVAL, Reader};
use super::show;
use crate::cli::WatchArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::progress::Progress;
use crate::output::screen::ProgressOf;
use crate::output::shown;
use crate::run::definition::workflow_in_force;
use crate::run::keepalive::keepalive_holder;
use crate::run::reference::{Default as Meant, find};
use crate::session::{Nothing, SessionReport, conclusion};
use crate::store_location::Access;

/// Most failed steps with their errors.
const FAILURES_SHOWN_MAX: usize = 10;

pub(crate) async fn watch(context: &Context, args: WatchArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let run = meant(store.as_ref(), args.run.as_deref()).await?;
    let progress = Progress::new(&context.output, ProgressOf::WatchedRun);
    progress.read_logs_of(&store);
    if let Some(workflow) = workflow_in_force(&Snapshot::read(store.as_ref(), &run).await?) {
        progress.name_steps(&workflow);
    }
    let mut watcher = Watcher { context, store: &store, run: &run, progress, stopped_by: None };
    if is_under_way(store.as_ref(), &run).await? {
        watcher.progress.open().map_err(Error::Runtime)?;
        if watcher.progress.is_live() {
            let workflow = store.run(&run).await?.summary.workflow;
            watcher.progress.note(format!("Run {run} of workflow {}", shown(&workflow)));
        }
        let ended = tokio::select! {
            ended = watcher.follow() => Some(ended),
            _ = tokio::signal::ctrl_c() => None,
        };
        watcher.progress.close();
        let Some(ended) = ended else {
            let words = context.store_words();
            context
                .output
                .note(&format!("Run {run} continues. Watch again with: waypost watch {run}{words}"));
            return Ok(Exit::Interrupt);
        };
        ended?;
        if let Some(error) = watcher.progress.take_unheard() {
            return Err(error.into());
        }
    } else if context.output.json {
        let status = store.run(&run).await?.summary.status;
        context.output.line(&Nothing::of(Some((run.as_str(), status)), "no process works on the run"))?;
    } else {
        context.output.note(&format!("Nothing to watch, because no process works on run {run}."));
    }
    watcher.conclude().await
}

/// Selects the run: by name, else the newest run under way; without any, the newest of all, for its conclusion.
async fn meant(store: &dyn Store, name: Option<&str>) -> Result<RunId, Error> {
    if name.is_some() {
        return find(store, name, Meant::Newest).await;
    }
    match find(store, None, Meant::NewestLive).await {
        Err(Error::NotFound { .. }) => find(store, None, Meant::Newest).await,
        found => found,
    }
}

/// Returns whether a process works on the run, or stays for its timers and signals, or the run waits for a worker.
async fn is_under_way(store: &dyn Store, run: &RunId) -> Result<bool, Error> {
    if store.run(run).await?.summary.status == RunStatus::Running || keepalive_holder(store, run).is_some() {
        return Ok(true);
    }
    let Some(queue) = store.queue() else { return Ok(false) };
    if queue.job(run).await?.is_some_and(|queued| queued.is_ready) {
        return Ok(true);
    }
    // A worker may have claimed the run in between.
    Ok(store.run(run).await?.summary.status == RunStatus::Running)
}

struct Watcher<'a> {
    context: &'a Context,
    store: &'a Arc<dyn Store>,
    run: &'a RunId,
    progress: Progress,
    /// The requester of the last stop.
    stopped_by: Option<String>,
}

impl Watcher<'_> {
    /// Shows the run until its process ends.
    async fn follow(&mut self) -> Result<(), Error> {
        let Self { context, store, run, progress, stopped_by } = self;
        let mut reader = Reader::new(store.as_ref(), run);
        let began = context.now();
        loop {
            // Query the status first: records written in between then belong to a running run.
            let works = is_under_way(store.as_ref(), run).await?;
            let done = store.run(run).await?.summary.summary.progress;
            let each = async |record: &Record, _: usize| {
                for event in events::of(record) {
                    match event.what {
                        EventKind::Interrupted { by: Some(ref by), .. } => *stopped_by = Some(by.clone()),
                        EventKind::RunResumed { .. } => *stopped_by = None,
                        _ => {}
                    }
                    if context.output.json {
                        context.output.line(&event)?;
                    }
                }
                let record = if progress.is_live() {
                    with_delay(store.as_ref(), record).await
                } else {
                    record.clone()
                };
                let is_past = record.header().created_at < began;
                progress.watched(record, done, is_past);
                Ok(())
            };
            reader.read(context, works, each).await?;
            if !works {
                return Ok(());
            }
            if let Some(error) = progress.take_unheard() {
                return Err(error.into());
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
    }

    /// Prints the conclusion of the run; returns the exit code of its session.
    async fn conclude(self) -> Result<Exit, Error> {
        let Self { context, store, run, stopped_by, .. } = self;
        let snapshot = Snapshot::read(store.as_ref(), run).await?;
        // Of a run at rest, no event was read.
        let recorded = match &snapshot.newest().header().phase {
            Phase::Interrupted { by, .. } => Some(by.clone()),
            _ => None,
        };
        let stopped_by = stopped_by.or(recorded);
        let summary = &snapshot.entry.summary;
        let view = show::view_of(store.as_ref(), run).await?;
        let mut failed = None;
        for step in view.steps.iter().filter(|step| step.holds_up).take(FAILURES_SHOWN_MAX) {
            let Some(error) = &step.error else { continue };
            let chain: Vec<String> = std::iter::once(&error.message).chain(&error.causes).cloned().collect();
            if !context.output.json && view.status == RunStatus::Failed {
                context.output.aside(&show::failure(context, &view, step));
            }
            let id = StepId::new(&step.id).map_err(Error::from_name)?;
            failed.get_or_insert((id, Failure::new(error.kind, chain)));
        }
        let step = match view.status {
            RunStatus::Failed => view.failed_step.clone(),
            RunStatus::InDoubt => summary.summary.step.clone(),
            _ => None,
        };
        let outcome = Outcome {
            run: run.clone(),
            status: view.status,
            state: (),
            at: snapshot.newest().header().seq,
            waiting: Engine::new(Arc::clone(store)).waiting(run).await?,
            failed,
            failed_on: None,
            failures: Vec::new(),
            stopped_by: stopped_by.filter(|_| view.status != RunStatus::Waiting),
            idle: false,
            progress: summary.summary.progress,
            repaired: Vec::new(),
            lost: 0,
        };
        let store_words = context.lasting_store_words();
        let report = SessionReport { run: run.clone(), file: None, store_words, until: None, report: None };
        let text = snapshot.definition.text.as_deref();
        let workflow = text.and_then(|text| Workflow::parse(text, Path::new("the run's copy")).ok());
        let Some(workflow) = workflow else {
            // A run of a program has no workflow.
            context.output.answer(&format!("Run {run} is {}.", view.status.name()))?;
            return Ok(Exit::Done);
        };
        let (text, exit) = conclusion(store.as_ref(), &workflow, &outcome, step, &report).await?;
        if context.output.json {
            return Ok(exit);
        }
        match context.output.answer(&text) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => Ok(exit),
        }
    }
}

/// Returns the record with its body, if the body has the time of the next attempt.
async fn with_delay(store: &dyn Store, record: &Record) -> Record {
    let header = record.header();
    if !matches!(&header.phase, Phase::Failed(failure) if failure.retried) {
        return record.clone();
    }
    // Retention may have dropped the body.
    store.load(&header.run, &header.scope, header.seq).await.unwrap_or_else(|_| record.clone())
}
