//! `waypost worker`: claims submitted runs of a shared store and executes them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use serde_json::Value;
use waypost::engine::{
    Engine, Outcome, ResumeOptions, RunError, SessionOptions, Snapshot, StopHandle, StopLevel,
};
use waypost::record::RunStatus;
use waypost::store::{Lease, Store};
use waypost::worker::{Executor, Left, Worker};
use waypost_workflow::program::{LOSS, WorkflowProgram, WorkflowState};

use super::Context;
use super::resume::passed_budget;
use crate::cli::WorkerArgs;
use crate::error::Error;
use crate::exit::{Exit, TIMEOUT};
use crate::run::definition::Chosen;
use crate::run::environment::{self, Local};
use crate::run::needs::{self, Offer};
use crate::run::progress::steps_are_done;
use crate::session::interrupt;
use crate::store_location::{self, Access};

use metrics::Counters;

mod metrics;

pub(crate) async fn worker(context: &Context, args: WorkerArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let mut offer = Offer { tags: args.tags.into_iter().collect(), ..Offer::default() };
    for (name, folder) in args.bases {
        let folder = PathBuf::from(folder);
        let found = folder.canonicalize();
        offer.bases.insert(name, found.map_err(|source| Error::Unreadable { path: folder, source })?);
    }
    let stop = StopHandle::default();
    let output = context.output.clone();
    let report = move |level, by: &str| {
        match level {
        StopLevel::Graceful => output.note(&format!(
            "{by}: the worker claims no more, and ends with its present runs; a second signal gives these back"
        )),
        StopLevel::Kill => output.note(&format!("{by}: the present runs go back to the queue")),
    }
    };
    interrupt::listen(stop.clone(), report).map_err(Error::Runtime)?;
    let counters = Arc::<Counters>::default();
    if let Some(address) = args.metrics {
        let served = metrics::serve(address, Arc::clone(&counters), Arc::clone(&store)).await;
        served.map_err(|error| {
            Error::usage(format!("cannot serve metrics at {address}: {error}"), "choose another address")
        })?;
    }
    let executor = RunExecutor {
        counters,
        context: context.clone(),
        store: Arc::clone(&store),
        local: Local::look()?,
        offer,
    };
    context.output.note(&format!("Worker for {store} (-j {})", args.runs));
    let worker = Worker::with_executor(Arc::clone(&store), executor).with_slots(args.runs).with_stop(stop);
    worker.run().await?;
    store.close().await?;
    context.output.note("The worker has ended.");
    Ok(Exit::Done)
}

/// Executes runs of workflow files.
#[derive(Debug)]
struct RunExecutor {
    context: Context,
    store: Arc<dyn Store>,
    local: Local,
    offer: Offer,
    counters: Arc<Counters>,
}

#[async_trait]
impl Executor for RunExecutor {
    fn lacks(&self, needs: &BTreeSet<String>) -> Option<String> {
        self.offer.lacks(needs)
    }

    async fn execute(&self, lease: Lease, stop: StopHandle) -> Left {
        let run = lease.run().clone();
        self.context.output.note(&format!("Run {run} is claimed."));
        Counters::add(&self.counters.claimed);
        Counters::add(&self.counters.running);
        let left = match self.executed(lease, stop).await {
            Ok(outcome) => {
                let done = steps_are_done(self.store.as_ref(), &run, outcome.progress).await;
                let by = outcome.stopped_by.as_deref().map(|by| format!(" ({by})")).unwrap_or_default();
                self.context.output.note(&format!("Run {run} is {}{by}: {done}.", outcome.status.name()));
                left(&outcome)
            }
            Err(error) => {
                self.context.tell(&error);
                left_after(&error)
            }
        };
        self.counters.running.fetch_sub(1, Ordering::Relaxed);
        Counters::add(match left {
            Left::AtRest => &self.counters.at_rest,
            Left::Unfinished => &self.counters.returned,
        });
        left
    }

    fn warn(&self, warning: &str) {
        Counters::add(&self.counters.errors);
        self.context.output.warn(warning);
    }
}

impl RunExecutor {
    async fn executed(&self, lease: Lease, stop: StopHandle) -> Result<Outcome<WorkflowState>, Error> {
        let (store, run) = (&self.store, lease.run().clone());
        let snapshot = Snapshot::read(store.as_ref(), &run).await?;
        let frozen = snapshot.entry.record.record().clone();
        let workflow = Chosen::in_force(store.as_ref(), &snapshot)?.workflow;
        if let Some(passed) = passed_budget(store.as_ref(), &snapshot, &workflow).await? {
            return Err(Error::Budget { run, passed });
        }
        let base = match frozen.settings.get(needs::BASE).and_then(Value::as_str) {
            Some(name) => self.offer.bases.get(name).cloned(),
            None => frozen.base.as_deref().map(|base| store_location::from_home(store.home(), base)),
        };
        let mut local = self.local.clone();
        let has_bash = frozen.settings.get(environment::BASH).and_then(Value::as_bool);
        local.has_bash = has_bash.unwrap_or(local.has_bash);
        let mut surroundings = local.of_run(run.clone(), base.unwrap_or_default(), Arc::clone(store));
        surroundings.agents = Arc::new(needs::agents_in(&frozen.settings));
        let timeout = workflow.timeout();
        let session = SessionOptions {
            stop: stop.clone(),
            retention: frozen.retention,
            ..environment::session_options(&workflow)
        };
        let program = WorkflowProgram::new(workflow, surroundings)?;
        let engine = program.equip(Engine::new(Arc::clone(store)));
        let options = ResumeOptions { session, claimed: Some(lease), ..ResumeOptions::default() };
        let executed = engine.resume_program(&program, &run, options);
        let timed_out = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
            stop.stop(StopLevel::Graceful, TIMEOUT);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            outcome = executed => Ok(outcome?),
            () = timed_out => unreachable!("the limit only stops the run"),
        }
    }
}

/// Returns how a run left this worker: only a person's stop, and the run's own timeout, keep the run at rest.
fn left(outcome: &Outcome<WorkflowState>) -> Left {
    let by = outcome.stopped_by.as_deref().unwrap_or_default();
    match outcome.status == RunStatus::Interrupted && (by.starts_with("SIG") || by.starts_with(LOSS)) {
        true => Left::Unfinished,
        false => Left::AtRest,
    }
}

/// Returns how a run left this worker after an error: without the lease or the store, another worker continues.
fn left_after(error: &Error) -> Left {
    match error {
        Error::Run(RunError::Store(source) | RunError::Checkpoint { source, .. }) | Error::Store(source) => {
            Left::after(source)
        }
        Error::Run(RunError::NotBegun { .. }) => Left::Unfinished,
        _ => Left::AtRest,
    }
}
