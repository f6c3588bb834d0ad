//! `waypost worker`: claims submitted runs of a shared store and executes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::Value;
use waypost::RunId;
use waypost::engine::{
    Answers, Engine, OnDoubt, Outcome, ResumeOptions, RunError, SessionOptions, Snapshot, StopHandle,
    StopLevel,
};
use waypost::record::{Claim, Occasion, RunRecord, RunStatus};
use waypost::store::{ClaimedTask, Lease, Store, StoreError, TaskState};
use waypost::worker::{Executor, Left, TaskEnd, Worker};
use waypost_workflow::file::{Parallel, Workflow};
use waypost_workflow::program::{
    DispatchOptions, ELSEWHERE, EndedStep, LOSS, LOSS_OF_QUEUE, LocalExecutor, NO_RESOURCES, NO_ROOM,
    StepEnd, StepExecutor as _, StepRequest, Surroundings, TemporaryFolder, WorkflowProgram, WorkflowState,
};

use super::Context;
use super::verify::quorum;
use crate::cli::WorkerArgs;
use crate::error::{Diagnosis, Error};
use crate::exit::{Exit, TIMEOUT};
use crate::run::bases;
use crate::run::definition::Chosen;
use crate::run::doubt::started_tasks;
use crate::run::environment::{self, Local};
use crate::run::included_files;
use crate::run::needs::{self, Offer};
use crate::run::progress::steps_are_done;
use crate::run::refusals::passed_budget;
use crate::session::interrupt;
use crate::store_location::Access;

use metrics::Counters;

mod metrics;

pub(crate) async fn worker(context: &Context, args: WorkerArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    if store.queue().is_none() {
        return Err(needs::no_queue("start a worker on", store.as_ref()));
    }
    let offer = Offer { tags: args.tags.into_iter().collect(), bases: bases::folders() };
    let stop = StopHandle::default();
    let output = context.output.clone();
    let report = move |level, by: &str| {
        match level {
        StopLevel::Graceful => output.note(&format!(
            "{by}: the worker claims no more runs, and ends after its current runs; a second signal returns them to the queue"
        )),
        StopLevel::Kill => output.note(&format!("{by}: the current runs return to the queue")),
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
        local: Local::detect()?,
        offer: Arc::new(offer),
        definitions: Mutex::default(),
    };
    context.output.note(&format!("Worker for {store} (-j {})", args.runs));
    let worker = Worker::with_executor(Arc::clone(&store), executor).with_slots(args.runs).with_stop(stop);
    worker.run().await?;
    store.close().await?;
    context.output.note("The worker has ended.");
    Ok(Exit::Done)
}

/// Concurrent steps of a distributed run without a limit in the file: more than the slots of its workers, so that these
/// always find the next step. Each waiting step is a row in the database.
const DISTRIBUTED_PARALLEL: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Executes runs of workflow files.
#[derive(Debug)]
struct RunExecutor {
    context: Context,
    store: Arc<dyn Store>,
    local: Local,
    offer: Arc<Offer>,
    counters: Arc<Counters>,
    definitions: Mutex<VecDeque<Defined>>,
}

/// Most definitions in memory: a worker executes the steps of few runs at a time.
const DEFINITIONS_MAX: usize = 16;

/// The definition of a run under a lease, which no other process can change.
#[derive(Debug, Clone)]
struct Defined {
    run: RunId,
    token: u64,
    frozen: Arc<RunRecord>,
    workflow: Arc<Workflow>,
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
            Ok(None) => {
                self.context.output.note(&format!("Run {run} returns to the queue."));
                Left::Unfinished
            }
            Ok(Some(outcome)) => {
                let done = steps_are_done(self.store.as_ref(), &run, outcome.progress).await;
                let by = outcome.stopped_by.as_deref().map(|by| format!(" ({by})")).unwrap_or_default();
                self.context.output.note(&format!("Run {run} is {}{by}: {done}.", outcome.status.name()));
                left(&outcome)
            }
            Err(error) => {
                if let Error::Run(RunError::Store(StoreError::Fenced { .. })) = &error {
                    Counters::add(&self.counters.leases_lost);
                }
                self.context.tell(&error);
                left_after(&error)
            }
        };
        self.counters.running.fetch_sub(1, Ordering::Relaxed);
        Counters::add(match left {
            Left::AtRest => &self.counters.at_rest,
            Left::Unfinished | Left::Lacking(_) => &self.counters.returned,
        });
        left
    }

    async fn perform(&self, task: &ClaimedTask, stop: StopHandle) -> TaskEnd {
        Counters::add(&self.counters.tasks);
        if task.request == quorum::REQUEST {
            let checked = tokio::select! {
                checked = self.verified(task.lease.run()) => checked.map_err(|error| error.to_string()),
                _ = stop.stopped() => Err("the worker was stopped".to_owned()),
            };
            let votes = quorum::Votes::of(checked);
            let result = serde_json::to_string(&votes).expect("claims are JSON");
            return TaskEnd { result, is_lacking: false };
        }
        let end = self.performed(task, stop).await.unwrap_or_else(|error| {
            self.context.tell(&error);
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let lack = Some(format!("the worker on {host} ({error})"));
            EndedStep::unbegun(StepEnd::Stopped { in_progress: false, lack })
        });
        let is_lacking = matches!(end.end, StepEnd::Stopped { lack: Some(_), .. });
        let result = serde_json::to_string(&end).expect("an end of a step is JSON");
        TaskEnd { result, is_lacking }
    }

    fn warn(&self, warning: &str) {
        Counters::add(&self.counters.errors);
        self.context.output.warn(warning);
    }
}

impl RunExecutor {
    /// Returns the environment of a submitted run on this worker.
    ///
    /// # Errors
    /// Those of [`included_files::unpack`].
    async fn surroundings_of(
        &self,
        run: &RunId,
        frozen: &RunRecord,
    ) -> Result<(Surroundings, Option<TemporaryFolder>), Error> {
        let store = &self.store;
        let files = included_files::unpack(store.as_ref(), run, frozen).await?;
        let base = match &files {
            Some(folder) => folder.path().to_owned(),
            None => bases::folder_of(store.as_ref(), frozen),
        };
        let mut local = self.local.clone();
        let has_bash = frozen.settings.get(environment::BASH).and_then(Value::as_bool);
        local.has_bash = has_bash.unwrap_or(local.has_bash);
        let mut surroundings = local.of_run(run.clone(), base, Arc::clone(store));
        surroundings.agents = Arc::new(needs::agents_in(&frozen.settings));
        Ok((surroundings, files))
    }

    /// Checks the evidence of a run in the folder of this worker.
    async fn verified(&self, run: &RunId) -> Result<BTreeMap<String, Vec<Claim>>, Error> {
        let snapshot = Snapshot::read(self.store.as_ref(), run).await?;
        let workflow = Chosen::in_force(self.store.as_ref(), &snapshot)?.workflow;
        let (surroundings, _files) = self.surroundings_of(run, snapshot.entry.record.record()).await?;
        let program = WorkflowProgram::for_inspection(workflow, surroundings)?;
        let engine = program.equip(Engine::new(Arc::clone(&self.store)));
        Ok(quorum::by_reference(run, engine.look(&program, &snapshot, Occasion::Verify).await?))
    }

    /// Returns the definition of a run under a lease. The cost for a step is the same whatever the size of the run: most
    /// steps read nothing, and the first one reads the main scope.
    async fn definition_under(&self, lease: &Lease) -> Result<Defined, Error> {
        let known = |defined: &&Defined| defined.run == *lease.run() && defined.token == lease.token();
        let found =
            self.definitions.lock().expect("no code panics with the lock").iter().find(known).cloned();
        if let Some(defined) = found {
            return Ok(defined);
        }
        let snapshot = Snapshot::main(self.store.as_ref(), lease.run()).await?;
        let workflow = Arc::new(Chosen::in_force(self.store.as_ref(), &snapshot)?.workflow);
        let frozen = Arc::new(snapshot.entry.record.record().clone());
        let defined = Defined { run: lease.run().clone(), token: lease.token(), frozen, workflow };
        let mut definitions = self.definitions.lock().expect("no code panics with the lock");
        definitions.push_front(defined.clone());
        definitions.truncate(DEFINITIONS_MAX);
        Ok(defined)
    }

    /// Executes a step of a run that another worker holds.
    async fn performed(&self, task: &ClaimedTask, stop: StopHandle) -> Result<EndedStep, Error> {
        let (store, run) = (&self.store, task.lease.run());
        let request =
            StepRequest::parse(&task.request).map_err(|error| Error::Runtime(io::Error::other(error)))?;
        let Defined { frozen, workflow, .. } = self.definition_under(&task.lease).await?;
        let (surroundings, _files) = self.surroundings_of(run, &frozen).await?;
        let program = WorkflowProgram::new(Workflow::clone(&workflow), surroundings)?;
        let engine = program.equip(Engine::new(Arc::clone(store)));
        let started = LocalExecutor::start(program, engine, task).await;
        let executor = started.map_err(|error| Error::Runtime(io::Error::other(error)))?;
        let submitted = executor.submit(&task.key, request).await;
        submitted.map_err(|error| Error::Runtime(io::Error::other(error)))?;
        let cancel = async {
            stop.stopped().await;
            let _ = executor.cancel(&task.key, StopLevel::Graceful).await;
            stop.killed().await;
            let _ = executor.cancel(&task.key, StopLevel::Kill).await;
            std::future::pending().await
        };
        let end = tokio::select! {
            end = executor.observe(&task.key) => end,
            end = cancel => end,
        };
        executor.shutdown().await;
        Ok(end)
    }

    /// Executes a claimed run; `None` if the run is left to the next holder, since the worker ends at once.
    async fn executed(
        &self,
        lease: Lease,
        stop: StopHandle,
    ) -> Result<Option<Outcome<WorkflowState>>, Error> {
        let (store, run) = (&self.store, lease.run().clone());
        let snapshot = Snapshot::read(store.as_ref(), &run).await?;
        let frozen = snapshot.entry.record.record().clone();
        let workflow = Chosen::in_force(store.as_ref(), &snapshot)?.workflow;
        if let Some(passed) = passed_budget(store.as_ref(), &snapshot, &workflow).await? {
            return Err(Error::Budget { run, passed });
        }
        let (mut surroundings, _files) = self.surroundings_of(&run, &frozen).await?;
        let needs = match store.queue() {
            Some(queue) => queue.job(&run).await?.map(|queued| queued.job.needs),
            None => None,
        };
        let offer = Arc::clone(&self.offer) as _;
        surroundings.dispatch = Some(DispatchOptions::new(needs.unwrap_or_default(), offer));
        let is_elsewhere =
            workflow.is_distributed() || workflow.all_steps().any(|step| !step.runs_on.is_empty());
        if workflow.is_distributed() {
            surroundings.parallel = Parallel::Configured(DISTRIBUTED_PARALLEL);
        }
        let timeout = workflow.timeout();
        let session = SessionOptions {
            stop: stop.clone(),
            retention: frozen.retention,
            ..environment::session_options(&workflow)
        };
        let program = WorkflowProgram::new(workflow, surroundings)?;
        let engine = Engine::new(Arc::clone(store)).with_observer(Arc::clone(&self.counters) as _);
        let engine = program.equip(engine);
        let on_doubt = OnDoubt::Each(continuing(store.as_ref(), &snapshot).await?);
        let options = ResumeOptions { session, on_doubt, claimed: Some(lease), ..ResumeOptions::default() };
        let executed = engine.resume_program(&program, &run, options);
        let timed_out = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
            stop.stop(StopLevel::Graceful, TIMEOUT);
            std::future::pending::<()>().await;
        };
        // Steps on other workers continue, and the next holder adopts these, as after the loss of this worker.
        let handed_over = async {
            let asked = stop.stopped().await;
            match is_elsewhere && asked.by.starts_with("SIG") {
                true => (),
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = handed_over => Ok(None),
            outcome = executed => Ok(Some(outcome?)),
            () = timed_out => unreachable!("the limit only stops the run"),
        }
    }
}

/// Returns the started steps of a run that are tasks of its earlier session: these wait for a worker, run on a living one,
/// or have a result. The loss of the session cut none of them.
async fn continuing(store: &dyn Store, snapshot: &Snapshot) -> Result<Answers, Error> {
    let mut answers = Answers::default();
    answers.continuing = started_tasks(store, snapshot, |state| *state != TaskState::Lost).await?;
    Ok(answers)
}

/// Returns how a run left this worker: only a person's stop, and the run's own timeout, keep the run at rest.
fn left(outcome: &Outcome<WorkflowState>) -> Left {
    let by = outcome.stopped_by.as_deref().unwrap_or_default();
    match outcome.status {
        RunStatus::Interrupted if by.starts_with(LOSS_OF_QUEUE) => {
            Left::Lacking(format!("a queue that takes its steps ({by})"))
        }
        RunStatus::Interrupted
            if by.starts_with("SIG") || by.starts_with(LOSS) || by.starts_with(ELSEWHERE) =>
        {
            Left::Unfinished
        }
        RunStatus::Interrupted if by.starts_with(NO_RESOURCES) || by.starts_with(NO_ROOM) => {
            Left::Lacking(format!("the resources for its steps ({by})"))
        }
        _ => Left::AtRest,
    }
}

/// Returns how a run left this worker after an error: without the lease or the store, another worker continues.
fn left_after(error: &Error) -> Left {
    match error {
        Error::Run(RunError::Store(source) | RunError::Checkpoint { source, .. }) | Error::Store(source) => {
            Left::after(source)
        }
        Error::Run(RunError::NotBegun { .. }) => Left::Unfinished,
        Error::NotUnpacked { source, .. } => {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            Left::Lacking(format!("the included files ({host} cannot unpack them: {source})"))
        }
        // A run with a state too large would fail again, and anywhere.
        Error::Run(RunError::Serialize { .. } | RunError::Record { .. }) => Left::AtRest,
        _ => {
            let Diagnosis { exit, message, causes, .. } = error.diagnosis();
            let text = std::iter::once(message).chain(causes).collect::<Vec<_>>().join(": ");
            match exit {
                Exit::NoResources | Exit::CannotCreate | Exit::CannotWrite => {
                    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                    Left::Lacking(format!("the resources for its steps ({host}: {text})"))
                }
                _ => Left::AtRest,
            }
        }
    }
}
