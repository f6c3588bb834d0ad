//! Runs a workflow file as a program of the engine: each step is a process below the supervisor of the run.
//!
//! `prepare` evaluates all expressions of a step while the state is available; `perform` (`attempt.rs`) only
//! runs the result. The state (`state.rs`) keeps values of finished steps for expressions.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Map, Value};
use waypost::engine::{
    Admission, Attempt, BeginError, Exited, Follow, Item, Joined, KnownOutputs, OnFailure, Performed,
    Program, Recovered, Settlement, StateError, StepRef, Unjoined, Upstream,
};
use waypost::record::{Claim, Failure, FailureKind, Flaw, Phase, SkipCause, Try};
use waypost::shape::Shape;
use waypost::store::{FIRST_TOKEN, Lease, Store, StoreError};
use waypost::{Digest, RunId, ScopePath, StepId};

use crate::expr::{Condition, FAILED_STEP, Scope, WAITING_STEP};
use crate::file::{Foreach, Parallel, RetryCause, Step, Work, Workflow, read_secret};
use crate::log::LogLimits;
use crate::mask::Mask;
use crate::supervisor::{Exit, Supervisor, SupervisorProgram, kill_leftovers};

mod agent;
mod attempt;
mod budget;
mod child;
mod command;
mod error;
mod evidence;
mod executor;
mod faults;
mod hooks;
mod item_check;
mod items;
mod job;
mod leftovers;
mod logs;
mod outputs;
mod preflight;
mod readers;
mod repeat;
mod scratch;
mod service;
mod state;
mod step_events;
mod subgraphs;
mod temporary_folder;
mod waiting;

use executor::end_earlier;
use scratch::ScratchFolder;

use budget::BudgetUse;
use faults::{expression, failure, no_known_children};
use job::Doing;
use leftovers::ProcessMark;
use service::Services;
use state::Outer;
use subgraphs::Subgraph;

pub use self::logs::{log_name, undo_log_name};
pub use job::Job;
pub use subgraphs::{FILE_KEY, shape_of};

pub use agent::Agents;
pub use attempt::{LOSS, LOSS_OF_QUEUE, NO_RESOURCES, NO_ROOM, WORKER_LOST, lacking};
pub use budget::{BUDGET, spent};
pub use error::ProgramError;
pub use executor::{
    DispatchOptions, ELSEWHERE, EndedStep, ExecutorError, LocalExecutor, StepEnd, StepExecutor, StepOffer,
    StepRequest, TaskExecutor,
};
pub use leftovers::{kill_processes_of, processes_of, run_mark};
pub use preflight::{Lack, Machine, has_program, lacks};
pub use scratch::ScratchError;
pub use state::{StepItems, StepOutput, StepState, WorkflowState};
pub use step_events::{EVENTS, EVENTS_BYTES_MAX, EVENTS_MAX, EventError, add_event};
pub use temporary_folder::{Purpose, TemporaryFolder};

/// The schema version of [`WorkflowState`].
pub const STATE_SCHEMA: u32 = 1;

/// The condition of the hooks of a wait, in the record of a skip.
pub const WAITS: &str = "the step waits";
/// Environment variable that marks the processes of a run. A resume finds the processes of a killed
/// supervisor by this mark.
const MARK: &str = "WAYPOST_RUN_MARK";
/// Environment variable that distinguishes the processes of a session from those of other sessions of the run.
const SESSION: &str = "WAYPOST_SESSION";

/// Receives the masked output of steps as it arrives, for a screen.
pub trait Echo: fmt::Debug + Send + Sync {
    /// Receives some bytes, not necessarily whole lines.
    fn printed(&self, step: &StepId, bytes: &[u8]);
}

/// Host environment of a workflow.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Run.
    pub run: RunId,
    /// Base folder.
    pub base: PathBuf,
    /// Store of the run, which keeps the logs.
    pub store: Arc<dyn Store>,
    /// Program that runs as the supervisor.
    pub supervisor: SupervisorProgram,
    /// Environment of the caller, secrets included.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether `bash` exists; decided when the run was made.
    pub has_bash: bool,
    /// Commands of agents.
    pub agents: Arc<Agents>,
    /// Limit of concurrent steps.
    pub parallel: Parallel,
    /// Lets the workers of the store execute steps with `distribute` or `runs_on`; `None` runs all steps here.
    pub dispatch: Option<DispatchOptions>,
    /// Receiver of the output of steps.
    pub echo: Option<Arc<dyn Echo>>,
}

/// Workflow as a program of the engine.
#[derive(Debug)]
pub struct WorkflowProgram {
    workflow: Workflow,
    shape: Shape,
    /// Steps of the graph and of the graphs below, by the number of the graph.
    levels: Vec<Subgraph>,
    surroundings: Surroundings,
    mask: Mask,
    session: Mutex<Option<Session>>,
}

/// Resources that exist from `begin` to `end`.
#[derive(Debug)]
struct Session {
    supervisor: Arc<Supervisor>,
    /// Folder of the files for outputs and report text.
    scratch: Arc<ScratchFolder>,
    mark: ProcessMark,
    services: Services,
    /// Executor of steps for other workers.
    executor: Option<Arc<dyn StepExecutor>>,
    /// The lease whose steps the executor runs.
    lease: Lease,
    /// Set after the end of the steps of earlier sessions.
    earlier: Arc<tokio::sync::OnceCell<()>>,
    /// Budget of the run, if limited.
    budget_use: Option<Arc<BudgetUse>>,
}

impl Surroundings {
    /// Sets the secrets that are read from files.
    fn with_secret_files(mut self, workflow: &Workflow) -> Self {
        for (name, path) in workflow.secret_files() {
            self.environment.retain(|(key, _)| key != name.as_str());
            self.environment.extend(read_secret(path).map(|value| (name.into(), value)));
        }
        self
    }
}

impl WorkflowProgram {
    /// Makes a program of a checked workflow.
    ///
    /// # Errors
    /// [`ProgramError`]: nothing was started.
    pub fn new(workflow: Workflow, surroundings: Surroundings) -> Result<Self, ProgramError> {
        let surroundings = surroundings.with_secret_files(&workflow);
        let value =
            |name: &str| surroundings.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let missing = workflow.missing_secrets(|name| value(name).is_some_and(|value| !value.is_empty()));
        if !missing.is_empty() {
            return Err(ProgramError::MissingSecrets(missing.into_iter().map(str::to_owned).collect()));
        }
        for step in workflow.all_steps() {
            if let Work::Agent(agent) = &step.work
                && surroundings.agents.get(&agent.name).is_none()
            {
                let known = crate::suggest::listed(surroundings.agents.names());
                let (step, agent) = (step.id.clone(), agent.name.clone());
                return Err(ProgramError::UnknownAgent { step, agent, known });
            }
        }
        Self::for_inspection(workflow, surroundings)
    }

    /// Makes a program for inspection only. Secrets may be unset and agents unknown, as no step runs.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn for_inspection(workflow: Workflow, surroundings: Surroundings) -> Result<Self, ProgramError> {
        let surroundings = surroundings.with_secret_files(&workflow);
        let value =
            |name: &str| surroundings.environment.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let secret = |name: &String| {
            let value = value(name).filter(|value| !value.is_empty())?;
            Some((name.clone(), value.as_encoded_bytes().to_vec()))
        };
        let secrets: Vec<_> = workflow.secrets().iter().filter_map(secret).collect();
        let mask = Mask::new(secrets.iter().map(|(name, value)| (name.as_str(), value.as_slice())))?;
        let (shape, levels) = subgraphs::of(&workflow, surroundings.parallel, &surroundings.base)?;
        Ok(Self { workflow, shape, levels, surroundings, mask, session: Mutex::new(None) })
    }

    /// Returns the workflow.
    pub fn workflow(&self) -> &Workflow {
        &self.workflow
    }

    /// Returns the mask of the secrets of this run.
    pub fn mask(&self) -> &Mask {
        &self.mask
    }

    /// Returns the name of the first secret in `text`, and the line where it begins, from 1.
    #[must_use]
    pub fn secret_in(&self, text: &str) -> Option<(&str, usize)> {
        let value = |name: &str| self.surroundings.environment.iter().find(|(key, _)| key == name);
        self.workflow.secrets().iter().find_map(|name| {
            let (_, value) = value(name)?;
            let mask = Mask::new([(name.as_str(), value.as_encoded_bytes())]).ok()?;
            let start = mask.find(text.as_bytes())?;
            let before = &text.as_bytes()[..start];
            Some((name.as_str(), 1 + before.iter().filter(|byte| **byte == b'\n').count()))
        })
    }

    /// Returns the initial state of a run with `params`.
    ///
    /// # Errors
    /// [`ProgramError::SecretParam`].
    pub fn initial_state(&self, params: Map<String, Value>) -> Result<WorkflowState, ProgramError> {
        for (name, value) in &params {
            if self.mask.contains(value.to_string().as_bytes()) || self.mask.is_within(value) {
                return Err(ProgramError::SecretParam { param: name.clone() });
            }
        }
        Ok(WorkflowState::new(params))
    }

    /// Returns the file that has the steps of a scope.
    fn file_of(&self, scope: &ScopePath) -> &Workflow {
        let Some((step, _)) = scope.opened_by() else { return &self.workflow };
        let around = scope.parent().map_or(&self.workflow, |parent| self.file_of(&parent));
        let child = around.step(step.as_str()).and_then(|step| step.work.child());
        child.map_or(around, |child| child.workflow())
    }

    fn step(&self, step_ref: StepRef<'_>) -> &Step {
        &self.levels[step_ref.level].steps[step_ref.place]
    }

    /// Returns the host environment and the base folder of a step.
    fn around(&self, step_ref: StepRef<'_>) -> (&Surroundings, &Path) {
        (&self.surroundings, &self.levels[step_ref.level].bases[step_ref.place])
    }

    /// Returns the `foreach` of a step.
    fn foreach(&self, step_ref: StepRef<'_>) -> Option<&Arc<Foreach>> {
        self.levels[step_ref.level].foreach[step_ref.place].as_ref()
    }

    fn scope(&self, state: &WorkflowState) -> Scope {
        state.scope(&self.surroundings.run, self.folder().as_deref())
    }

    /// Returns the folder of the run, if the store has folders.
    fn folder(&self) -> Option<PathBuf> {
        self.surroundings.store.folder(&self.surroundings.run)
    }

    fn base(&self) -> &Path {
        &self.surroundings.base
    }

    /// Ends the steps of earlier sessions that this session has not adopted: a rerun invalidates what these have read.
    async fn end_earlier_steps(&self) -> Result<(), StoreError> {
        let (lease, earlier) = {
            let session = self.session.lock().expect("no code panics while the session is locked");
            match session.as_ref().filter(|session| session.executor.is_some()) {
                Some(session) => (session.lease.clone(), Arc::clone(&session.earlier)),
                None => return Ok(()),
            }
        };
        earlier.get_or_try_init(|| end_earlier(self.surroundings.store.as_ref(), &lease)).await.map(drop)
    }

    /// Prepares for steps of a run whose session is elsewhere.
    async fn begin_apart(&self, lease: &Lease) -> Result<(), BeginError> {
        let begin_error = |error: Box<dyn std::error::Error + Send + Sync>| BeginError(error);
        let deadline = lease.deadline().map(waypost::deadline::Deadline::try_clone_descriptor).transpose();
        let deadline = deadline.map_err(|error| begin_error(error.into()))?;
        let supervisor = Supervisor::start_until(self.surroundings.supervisor.clone(), None, deadline).await;
        let supervisor = supervisor.map_err(|error| begin_error(error.into()))?;
        let scratch = ScratchFolder::make(None).map_err(|error| begin_error(error.into()))?;
        let session = Session {
            supervisor: Arc::new(supervisor),
            scratch: Arc::new(scratch),
            mark: ProcessMark::new(leftovers::task_mark_of(self.surroundings.store.as_ref(), lease.run())),
            services: Services::default(),
            executor: None,
            lease: lease.clone(),
            earlier: Arc::default(),
            budget_use: None,
        };
        *self.session.lock().expect("no code panics while the session is locked") = Some(session);
        Ok(())
    }

    /// Returns the limits of a log: smaller in the rows of a database.
    fn log_limits(&self) -> LogLimits {
        let Surroundings { store, run, .. } = &self.surroundings;
        match leftovers::outlives_process(store.as_ref()) && store.blobs().log_folder(run).is_none() {
            true => LogLimits::of_database(),
            false => LogLimits::default(),
        }
    }

    /// Returns the path of the file for many outcomes of a step.
    fn outcomes_file(&self, step_ref: StepRef<'_>) -> Option<PathBuf> {
        let name = format!("{}.{}.jsonl", step_ref.scope.file_name(), step_ref.step.id);
        Some(self.folder()?.join(state::OUTCOMES_FOLDER).join(name))
    }
}

/// Returns the digests of the declared environment variables, so that a resume detects changes. Secrets have
/// no digest.
pub fn declared_env(
    workflow: &Workflow,
    environment: &[(OsString, OsString)],
) -> BTreeMap<String, Option<Digest>> {
    let value = |name: &str| environment.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let is_secret = |name: &str| workflow.secrets().iter().any(|secret| secret == name);
    let digest = |name: &str| {
        let value = value(name).filter(|_| !is_secret(name))?;
        Some(Digest::of(value.as_encoded_bytes()))
    };
    let names = workflow.env_names();
    names
        .into_iter()
        .chain(workflow.secrets().iter().map(String::as_str))
        .map(|n| (n.to_owned(), digest(n)))
        .collect()
}

#[async_trait]
impl Program for WorkflowProgram {
    type State = WorkflowState;
    type Job = Job;
    type Output = StepOutput;

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn schema(&self, _: usize) -> u32 {
        STATE_SCHEMA
    }

    fn encode(&self, _: usize, state: &WorkflowState, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        serde_json::to_writer(bytes, state).map_err(|error| Flaw::Malformed(error.to_string()))
    }

    /// Decodes a state, without the results of steps that the definition lacks.
    fn decode(&self, level: usize, bytes: &[u8], schema: u32) -> Result<WorkflowState, StateError> {
        if schema > STATE_SCHEMA {
            return Err(StateError::Newer { found: schema, supported: STATE_SCHEMA });
        }
        let mut state: WorkflowState =
            serde_json::from_slice(bytes).map_err(|error| StateError::Malformed(error.to_string()))?;
        // The state of a hook has the result of the step around the hook.
        if state.hook().is_none() {
            state.keep_steps(&repeat::steps_of_state(&self.levels[level].steps));
        }
        Ok(state)
    }

    fn open(&self, step_ref: StepRef<'_>, state: &WorkflowState) -> Result<Vec<Item>, Failure> {
        let (step, unknown) = (self.step(step_ref), || no_known_children(step_ref));
        let foreach = self.foreach(step_ref).ok_or_else(unknown)?;
        let scope = self.scope_of(step, state);
        let listing = items::Listing::render(step, foreach, &scope, self.around(step_ref))?;
        listing.known(&self.mask).ok_or_else(unknown)
    }

    fn child(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
        item: &Item,
    ) -> Result<WorkflowState, Failure> {
        let mut child = match (self.foreach(step_ref), self.step(step_ref).work.child()) {
            // Only items of hooks name a start step.
            _ if item.start.is_some() => hooks::state_of(self.step(step_ref), item, self.folder().as_deref()),
            (Some(_), _) => WorkflowState::of_item(item.value.clone(), item.index),
            (None, Some(file)) => self.state_of_file(step_ref, state, file)?,
            (None, None) => WorkflowState::of_group(),
        };
        self.attach(step_ref, state, &mut child);
        Ok(child)
    }

    fn forget(&self, step_ref: StepRef<'_>, state: &mut WorkflowState) {
        repeat::forget(self.step(step_ref), state);
    }

    fn forget_join(&self, step_ref: StepRef<'_>, state: &mut WorkflowState) {
        match self.step(step_ref) {
            step if step.repeat.is_some() => state.unpass(&step.id),
            step => repeat::forget(step, state),
        }
    }

    fn restore(&self, step_ref: StepRef<'_>, state: &mut WorkflowState, then: &WorkflowState) {
        repeat::restore(self.step(step_ref), state, then);
    }

    fn redact(&self, claim: &mut Claim) {
        evidence::redact(claim, &self.mask);
    }

    fn redact_answer(&self, value: &mut Value) {
        self.mask.mask_value(value);
    }

    fn keeps_apart(&self) -> bool {
        true
    }

    fn output_of(&self, step_ref: StepRef<'_>, state: &WorkflowState) -> Option<Value> {
        repeat::output_of(self.step(step_ref), state)
    }

    fn reads(&self, step_ref: StepRef<'_>) -> Vec<StepId> {
        let mut read = BTreeSet::new();
        readers::steps_read_by(self.step(step_ref), &mut read);
        read.iter().filter_map(|id| StepId::new(id).ok()).collect()
    }

    fn reads_index(&self, step_ref: StepRef<'_>) -> bool {
        readers::reads_index(self.step(step_ref))
    }

    fn is_of_item(&self, state: &WorkflowState, item: &Item) -> bool {
        state.item().is_none_or(|value| *value == item.value)
    }

    fn set_index(&self, state: &mut WorkflowState, index: u64) -> bool {
        state.set_item_index(index)
    }

    fn attach(&self, step_ref: StepRef<'_>, state: &WorkflowState, child: &mut WorkflowState) {
        let step = self.step(step_ref);
        // An error is reported by the next step that needs the service.
        let services = self.services_of(step_ref, state).unwrap_or_default();
        let around = |scope, name| Outer { scope, name, services };
        let outer = match (child.hook(), self.foreach(step_ref)) {
            (Some(failed), _) => {
                let scope = self.scope_of_group(step, state);
                let local = match &step.announces {
                    Some(waiting) => Some((WAITING_STEP, waiting.as_str())),
                    None => failed.or_else(|| state.first_failed()).map(|failed| (FAILED_STEP, failed)),
                };
                let with = |(name, id): (&str, &str)| scope.with_local(name, &Value::from(id));
                around(local.map(with).unwrap_or(scope), None)
            }
            (None, Some(foreach)) => around(self.scope_of(step, state), Some(foreach.name.clone())),
            (None, None) if step.work.child().is_some() => {
                around(Scope::new(self.surroundings.run.as_str(), child.params()), None)
            }
            (None, None) => around(self.scope_of_group(step, state), None),
        };
        child.attach(outer);
    }

    fn apply_unjoined(
        &self,
        step_ref: StepRef<'_>,
        state: &mut WorkflowState,
        children: Unjoined<'_, WorkflowState>,
    ) {
        let Unjoined { total, succeeded, failed, states } = children;
        let step = self.step(step_ref);
        if self.foreach(step_ref).is_some() {
            let counts = StepItems { total, succeeded, failed, ..StepItems::default() };
            state.fail(&step.id, StepState::failed_items(counts), None);
        }
        let results = states.into_iter().flat_map(WorkflowState::results).collect();
        repeat::fail(step, state, &results);
    }

    fn forget_failure(&self, step_ref: StepRef<'_>, state: &mut WorkflowState) {
        repeat::forget_failure(self.step(step_ref), state);
    }

    fn admit(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
        upstream: Upstream<'_>,
    ) -> Result<Admission, Failure> {
        let step = self.step(step_ref);
        if step.announces.as_ref().is_some_and(|waiting| state.has_ended(waiting)) {
            return Ok(Admission::Skip(SkipCause::Condition(WAITS.to_owned())));
        }
        let has_failure = upstream.failed().is_some();
        let unknown = match upstream {
            Upstream::Unknown { steps, around, .. } => Some((steps, around)),
            Upstream::Succeeded | Upstream::Failed(_) => None,
        };
        let condition = step.condition.as_ref();
        if has_failure && !condition.is_some_and(Condition::asks_for_failures) {
            return Ok(upstream.admission());
        }
        let considers = |need: &str| {
            condition.is_some_and(|condition| {
                condition.considers_skipped(need) || has_failure && condition.calls_failure()
            })
        };
        let is_known = |need: &str| unknown.is_none_or(|(steps, _)| !steps.contains(need));
        let skipped =
            step.needs.iter().find(|need| state.is_skipped(need) && !considers(need) && is_known(need));
        if let Some(need) = skipped {
            let need = StepId::new(need).expect("the reader checked the id");
            return Ok(Admission::Skip(SkipCause::Need(need)));
        }
        let decides = |condition: &&Condition| match unknown {
            Some((_, true)) => condition.references().next().is_none(),
            Some((_, false)) => condition.reads_no_result(),
            None => true,
        };
        let Some(condition) = condition.filter(decides) else { return Ok(Admission::Run) };
        let mut scope = self.scope_of(step, state).with_failure(has_failure);
        unknown.iter().flat_map(|(steps, _)| *steps).for_each(|step| scope.expect_success(step.as_str()));
        let env = step.resolve_shared_env(&scope).map_err(expression)?;
        if condition.holds(&scope.for_step(&step.id, &env)).map_err(expression)? {
            return Ok(Admission::Run);
        }
        Ok(Admission::Skip(SkipCause::Condition(self.mask.mask_str(condition.as_str()).into_owned())))
    }

    fn prepare(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
        joined: Option<Joined>,
    ) -> Result<Job, Failure> {
        let vouching = self.vouching(step_ref, state).map_err(expression)?;
        let job = self.job(step_ref, state, joined)?;
        let vouching = vouching.map(|vouching| Box::new(vouching.beside(&job.services)));
        Ok(Job { vouching, ..job })
    }

    async fn perform(&self, job: Job, attempt: Attempt) -> Performed<StepOutput> {
        if attempt.at.epoch > 0
            && let Err(error) = self.end_earlier_steps().await
        {
            let why = format!("{LOSS_OF_QUEUE}: {error}");
            return Performed::Cut { why, was_killed: false, report: waypost::engine::StepReport::default() };
        }
        let notes = match self.ensure(&job.services, &attempt).await {
            Ok(notes) => notes,
            Err(performed) => return *performed,
        };
        let serves = matches!(job.doing, Doing::Service(_));
        let performed = match job.doing {
            Doing::Command(command) => self.run(*command, attempt.clone()).await,
            Doing::Waiting(waiting) => waiting.run(&attempt, &self.mask).await,
            Doing::Listing(listing) => self.list(*listing, attempt.clone()).await,
            Doing::Joining(joining) => joining.run(&attempt).await,
            Doing::Gathering(joined) => repeat::gather(joined).await,
            Doing::Returning(joined) => child::gather(joined).await,
            Doing::Hooked(joined) => hooks::join(joined).await,
            Doing::Service(service) => self.serve(*service, &attempt).await,
        };
        let performed = match job.vouching {
            Some(vouching) => vouching.vouched(performed, &attempt, &self.mask).await,
            None => performed,
        };
        if serves && !matches!(performed, Performed::Completed { .. }) {
            self.end_service(&attempt.step).await;
        }
        let performed = job::with_notes(performed, notes);
        match &job.passing {
            Some(passing) if !self.is_last_pass(passing, &performed) => performed,
            _ => hooks::after(&job.hooks, performed),
        }
    }

    fn undo(&self, step_ref: StepRef<'_>, at: &Try, state: &WorkflowState) -> Result<Option<Job>, Failure> {
        self.undo_job(step_ref, at, state)
    }

    fn subjects(&self, step_ref: StepRef<'_>, state: &WorkflowState) -> Vec<String> {
        self.subjects_of(step_ref, state)
    }

    fn settle_as_done(
        &self,
        step_ref: StepRef<'_>,
        state: &mut WorkflowState,
        outputs: KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String> {
        self.taken_as_done(step_ref, state, outputs)
    }

    async fn recover(
        &self,
        step_ref: StepRef<'_>,
        state: &WorkflowState,
        exited: Option<&Exited>,
    ) -> Option<Recovered<StepOutput>> {
        self.recover_of(step_ref, state, exited)
    }

    fn follow(&self, step_ref: StepRef<'_>, _: &WorkflowState) -> Result<Follow, String> {
        Err(format!("a settlement of step `{}` does not decide its next pass", step_ref.step.id))
    }

    fn on_failure(&self, step_ref: StepRef<'_>, failure: &Failure) -> OnFailure {
        let step = self.step(step_ref);
        let code = failure.ending.exit_code.and_then(|code| u8::try_from(code).ok());
        let retry = match (failure.kind, code) {
            // The same expression over the same state fails again, and a rejected question is not repeated at
            // once.
            (FailureKind::Expression | FailureKind::Limit, _) => false,
            _ if step.work.command().is_none() => false,
            // With exit code 0 the step may have taken effect. Only an explicit `evidence` cause repeats a
            // step that is not idempotent.
            (kind, Some(0)) if !step.idempotent => {
                kind == FailureKind::Evidence && step.retry.when.contains(&RetryCause::Evidence)
            }
            (FailureKind::Timeout, _) => step.retry.covers(RetryCause::Timeout),
            (FailureKind::Evidence, _) => step.retry.covers(RetryCause::Evidence),
            (FailureKind::Exit | FailureKind::Signal, Some(code)) => {
                let by_signal = Exit::Code(code.into()).signal().is_some();
                step.retry.covers(RetryCause::Exit(code))
                    || (by_signal && step.retry.covers(RetryCause::Signal))
            }
            _ => step.retry.when.is_empty(),
        };
        let tolerate = step.continue_on_error.covers(code);
        let plans = &self.levels[step_ref.level].hooks[step_ref.place];
        OnFailure { retry, tolerate, opens: hooks::after_failure(plans, failure) }
    }

    fn apply(
        &self,
        state: &mut WorkflowState,
        step_ref: StepRef<'_>,
        settled: Settlement<'_, StepOutput>,
    ) -> Result<Follow, Failure> {
        let id = self.step(step_ref).id.as_str();
        if let Settlement::Failed(Failure { ending, below, .. }) = settled {
            let failed = state.failed_by(self.step(step_ref), ending.clone());
            state.refuse_growth(id, &failed)?;
            state.fail(id, failed, self.folder().as_deref());
            state.add_failure(id, below.as_ref().map_or(id, |below| below.step.as_str()));
            return Ok(Follow::Needs);
        }
        let is_done = !matches!(settled, Settlement::Skipped);
        let tolerated = matches!(settled, Settlement::Tolerated(_));
        let mut steps = BTreeMap::new();
        let settled = match settled {
            Settlement::Completed(mut output, ending) => {
                steps = std::mem::take(&mut output.steps);
                StepState::completed(output, ending.exit_code)
            }
            Settlement::Tolerated(Failure { ending, .. }) | Settlement::Failed(Failure { ending, .. }) => {
                state.failed_by(self.step(step_ref), ending.clone())
            }
            Settlement::Skipped => StepState::skipped(),
        };
        state.refuse_growth(id, &settled)?;
        for (id, step) in &steps {
            state.refuse_growth(id, step)?;
        }
        let repeats = self.step(step_ref).repeat.is_some() && is_done;
        let follow = if repeats {
            self.passes_on(step_ref, state, (&settled, tolerated), &steps)?
        } else {
            Follow::Needs
        };
        let passes = if repeats { state.passes(id) + 1 } else { 0 };
        let folder = self.folder();
        for (id, step) in steps {
            state.settle(&id, step, folder.as_deref());
        }
        state.settle(id, settled.after(passes), folder.as_deref());
        if !is_done {
            repeat::skip(self.step(step_ref), state);
        }
        Ok(follow)
    }

    async fn begin(&self, lease: &Lease) -> Result<(), BeginError> {
        let begin_error = |error: Box<dyn std::error::Error + Send + Sync>| BeginError(error);
        let store = &self.surroundings.store;
        let dispatch = self.surroundings.dispatch.clone();
        let executor = dispatch.and_then(|options| TaskExecutor::start(store, lease, options));
        // A worker that takes over a run starts the same steps, and adopts these. A person may have changed anything.
        if executor.is_none() {
            let ended = end_earlier(store.as_ref(), lease).await;
            ended.map_err(|error| begin_error(error.into()))?;
        }
        let mark = leftovers::mark_of(self.surroundings.store.as_ref(), lease.run());
        // A kill of both supervisor and engine leaves processes of steps running.
        if leftovers::outlives_process(self.surroundings.store.as_ref()) && lease.token() != FIRST_TOKEN {
            kill_leftovers(&[(MARK, &mark)]).map_err(|error| begin_error(error.into()))?;
            if executor.is_none() {
                let mark = leftovers::task_mark_of(self.surroundings.store.as_ref(), lease.run());
                kill_leftovers(&[(MARK, &mark)]).map_err(|error| begin_error(error.into()))?;
            }
        }
        let lock = lease.lock().map(waypost::lock::RunLock::try_clone_fd).transpose();
        let lock = lock.map_err(|error| begin_error(error.into()))?;
        let deadline = lease.deadline().map(waypost::deadline::Deadline::try_clone_descriptor).transpose();
        let deadline = deadline.map_err(|error| begin_error(error.into()))?;
        let supervisor = Supervisor::start_until(self.surroundings.supervisor.clone(), lock, deadline).await;
        let supervisor = supervisor.map_err(|error| begin_error(error.into()))?;
        let folder = self.surroundings.store.folder(lease.run());
        let scratch = ScratchFolder::make(folder).map_err(|error| begin_error(error.into()))?;
        let budget_use = match self.workflow.budget() {
            Some(budget) => {
                let spent = spent(self.surroundings.store.as_ref(), lease.run()).await;
                let spent = spent.map_err(|error| begin_error(error.into()))?;
                Some(Arc::new(BudgetUse::new(budget, spent)))
            }
            None => None,
        };
        let session = Session {
            supervisor: Arc::new(supervisor),
            scratch: Arc::new(scratch),
            mark: ProcessMark::new(mark),
            services: Services::default(),
            lease: lease.clone(),
            earlier: Arc::default(),
            executor: executor.map(|executor| Arc::new(executor) as Arc<dyn StepExecutor>),
            budget_use,
        };
        *self.session.lock().expect("no code panics while the session is locked") = Some(session);
        Ok(())
    }

    async fn end(&self) {
        let session = self.session.lock().expect("no code panics while the session is locked").take();
        // Steps of earlier sessions that this session has not adopted go on: a later session may use their results.
        let Some(Session { supervisor, services, .. }) = session else { return };
        service::end_all(&services).await;
        if let Ok(supervisor) = Arc::try_unwrap(supervisor) {
            // On an error the supervisor and all processes have already ended.
            let _ = supervisor.shutdown().await;
        }
    }
}
