//! The environment of a run: facts about this machine, and settings of its workflow.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use waypost::engine::{OnLostCheckpoint, SessionOptions};
use waypost::record::Durability;
use waypost::store::Store;
use waypost::{RunId, StepId};
use waypost_workflow::file::{self, AgentCommand, OnCheckpointFailure, Parallel, Workflow, read_secret};
use waypost_workflow::program::{Agents, Surroundings};
use waypost_workflow::supervisor::SupervisorProgram;

use crate::error::Error;

/// The only argument of a process that supervises the processes of a run.
pub(crate) const SUPERVISE: &str = "supervise";

/// The run setting that records whether bash existed when the run was created.
pub(crate) const BASH: &str = "bash";

/// Facts about this machine.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    /// The caller's environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// bash exists.
    pub(crate) has_bash: bool,
    /// The limit of concurrent steps.
    pub(crate) parallel: Parallel,
    supervisor: SupervisorProgram,
}

impl Local {
    /// Inspects the machine.
    pub(crate) fn detect() -> Result<Self, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let has_bash = std::env::split_paths(&path).any(|folder| folder.join("bash").is_file());
        Ok(Self {
            environment: std::env::vars_os().collect(),
            has_bash,
            parallel: parallel(),
            supervisor: SupervisorProgram::this_program([SUPERVISE]).map_err(Error::Runtime)?,
        })
    }

    /// Returns the environment for the workflow of a run.
    pub(crate) fn of_run(&self, run: RunId, base: PathBuf, store: Arc<dyn Store>) -> Surroundings {
        Surroundings {
            run,
            base,
            store,
            supervisor: self.supervisor.clone(),
            environment: self.environment.clone(),
            has_bash: self.has_bash,
            agents: agents(),
            parallel: self.parallel,
            dispatch: None,
            echo: None,
        }
    }

    /// Returns the supervisor program.
    pub(crate) fn supervisor(&self) -> SupervisorProgram {
        self.supervisor.clone()
    }

    /// Returns user and host, for display.
    #[expect(clippy::unused_self, reason = "an error about this machine")]
    pub(crate) fn actor(&self) -> String {
        let user = user().unwrap_or_default();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        if user.is_empty() { host } else { format!("{user}@{host}") }
    }
}

/// Returns the name of the user, from the environment.
pub(crate) fn user() -> Option<String> {
    ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok())
}

/// Returns the name of the user, for the causes on record.
pub(crate) fn person() -> String {
    let uid = rustix::process::getuid().as_raw();
    user().or_else(|| name_of(uid)).unwrap_or_else(|| format!("uid {uid}"))
}

/// Returns the name of a user in the list of this machine.
fn name_of(uid: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let name = |user: &str| {
        let mut fields = user.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    users.lines().find_map(name)
}

/// The configured commands of agents, set once before any command runs.
static AGENTS: OnceLock<Arc<Agents>> = OnceLock::new();

/// Sets the configured commands of agents.
pub(crate) fn use_agents(configured: Vec<(String, AgentCommand)>) {
    AGENTS.get_or_init(|| Arc::new(Agents::with(configured)));
}

/// Returns the known agents.
pub(crate) fn agents() -> Arc<Agents> {
    AGENTS.get().cloned().unwrap_or_default()
}

/// The limit of concurrent steps, set once before any command runs.
static PARALLEL: OnceLock<Parallel> = OnceLock::new();

/// Sets the limit of concurrent steps: of the command, or else the configured one.
pub(crate) fn limit_parallel(command: Option<NonZeroUsize>, configured: Option<NonZeroUsize>) {
    if let Some(limit) = command.map(Parallel::Run).or(configured.map(Parallel::Configured)) {
        PARALLEL.get_or_init(|| limit);
    }
}

/// Returns the limit of concurrent steps.
pub(crate) fn parallel() -> Parallel {
    PARALLEL.get().copied().unwrap_or_else(|| Parallel::Processors(processors()))
}

/// Returns the number of processors; 1 if unknown.
pub(crate) fn processors() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Refuses a workflow with missing secrets, before anything is created.
pub(crate) fn refuse_missing_secrets(workflow: &Workflow) -> Result<(), Error> {
    let missing =
        workflow.missing_secrets(|name| secret(workflow, name).is_some_and(|value| !value.is_empty()));
    if missing.is_empty() {
        return Ok(());
    }
    let named = |name: &&str| match workflow.secret_files().get(*name) {
        Some(file) => format!("`{name}` (file {})", file.display()),
        None => format!("`{name}`"),
    };
    let names = missing.iter().map(named).collect::<Vec<_>>().join(", ");
    Err(Error::usage(
        format!("missing secrets: {names}"),
        "set the secrets in the environment, or write their files",
    ))
}

/// Returns the value of a secret, from its file or the environment.
pub(crate) fn secret(workflow: &Workflow, name: &str) -> Option<OsString> {
    match workflow.secret_files().get(name) {
        Some(file) => read_secret(file),
        None => std::env::var_os(name),
    }
}

/// Refuses a step that the main scope does not have, before anything is created.
pub(crate) fn refuse_unknown_step(workflow: &Workflow, step: Option<&str>) -> Result<(), Error> {
    match step {
        Some(step) if workflow.steps().iter().all(|top| top.id != step) => {
            let around = step.split(['/', ':', '~']).next().filter(|around| workflow.step(around).is_some());
            let hint = match (around, workflow.step_near(step)) {
                (Some(inner), _) if inner == step => "name the step of the main scope around it".to_owned(),
                (Some(around), _) => format!("name `{around}`, the step of the main scope around it"),
                (None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None) => match workflow.steps().get(number(step)) {
                    Some(own) => format!("name a step by its id; step {step} of the file is `{}`", own.id),
                    None => "`waypost check FILE` lists the steps".to_owned(),
                },
            };
            Err(Error::not_found(format!("step `{step}` in the workflow"), hint))
        }
        _ => Ok(()),
    }
}

/// Returns the index of the step with this number, from 1, if the text is a number.
fn number(step: &str) -> usize {
    step.parse::<usize>().ok().and_then(|number| number.checked_sub(1)).unwrap_or(usize::MAX)
}

/// Parses the step of `--until`.
pub(crate) fn until(step: Option<&str>) -> Result<Option<StepId>, Error> {
    step.map(StepId::new).transpose().map_err(Error::from_name)
}

/// Returns the session settings from the workflow file.
pub(crate) fn session_options(workflow: &Workflow) -> SessionOptions {
    SessionOptions {
        on_lost_checkpoint: match workflow.checkpoints().on_failure {
            OnCheckpointFailure::Fail => OnLostCheckpoint::Fail,
            OnCheckpointFailure::Tolerate => OnLostCheckpoint::Tolerate,
        },
        retention: workflow.checkpoints().retention,
        interval: workflow.checkpoints().interval,
        parallel_max: crate::run::limits::parallel_max(parallel().of_run().or(workflow.parallel_max())),
        ..SessionOptions::default()
    }
}

/// Returns the durability from the workflow file.
pub(crate) fn durability(workflow: &Workflow) -> Durability {
    match workflow.checkpoints().durability {
        file::Durability::Sync => Durability::Sync,
        file::Durability::Async => Durability::Async,
    }
}

/// Returns the members of an object.
pub(crate) fn settings(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(settings) => settings,
        _ => Map::new(),
    }
}
