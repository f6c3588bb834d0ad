//! The needs of a submitted run, and what a worker has of them: folder, secrets, programs, tags.
//!
//! A need is a text `KIND:NAME`. Submissions and workers agree on the texts; the store only compares them. Names of
//! secrets are recorded, never values.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use serde_json::{Map, Value, json};
use waypost::RunId;
use waypost::lock::Holder;
use waypost::record::{RunRecord, RunStatus};
use waypost::store::{Job, Store, StoreError};
use waypost_workflow::file::{AgentCommand, Shell, Work, Workflow};
use waypost_workflow::program::{Agents, StepOffer, has_program};

use crate::error::Error;
use crate::format::time;
use crate::run::environment;
use crate::run::included_files::FILES;
use crate::store_location;

/// The run setting with the name of the base folder.
pub(crate) const BASE: &str = "base";
/// The run setting with the options of the submission.
pub(crate) const SUBMISSION: &str = "submission";
/// The run setting with the commands of agents, as configured at the submission.
pub(crate) const AGENTS: &str = "agents";

/// Identifies this machine: its name, and its identifier if the system has one.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let id: String = id.trim().chars().take(8).collect();
    if id.is_empty() { name } else { format!("{name}-{id}") }
}

/// Returns the place in the queue of a run for workers; `None` for a run without the settings of a submission.
pub(crate) fn job_of(store: &dyn Store, frozen: &RunRecord, workflow: &Workflow) -> Option<Job> {
    let (settings, submission) = (&frozen.settings, frozen.settings.get(SUBMISSION)?);
    let base = frozen.base.as_deref().map(|base| store_location::from_home(store.home(), base));
    let is_here = !settings.contains_key(FILES) && !settings.contains_key(BASE);
    let mut needs = of_workflow(workflow, settings, base.as_deref().filter(|_| is_here));
    needs.extend(match (settings.contains_key(FILES), settings.get(BASE).and_then(Value::as_str)) {
        // A private copy of the files, on any worker.
        (true, _) => None,
        (false, Some(base)) => Some(format!("base:{base}")),
        (false, None) => Some(format!("folder:{}:{}", host(), base.unwrap_or_default().display())),
    });
    let tags = submission["tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
    needs.extend(tags.map(|tag| format!("tag:{tag}")));
    let priority = submission["priority"].as_i64().and_then(|number| i32::try_from(number).ok());
    Some(Job { priority: priority.unwrap_or_default(), needs, ..Job::default() })
}

/// Returns whether the workers execute a run: a run in the queue, or of a lost process.
pub(crate) async fn is_for_workers(store: &dyn Store, run: &RunId) -> Result<bool, StoreError> {
    let Some(queue) = store.queue() else { return Ok(false) };
    match queue.job(run).await? {
        Some(queued) if queued.is_ready => Ok(true),
        Some(_) => Ok(store.run(run).await?.summary.summary.status == RunStatus::Running),
        None => Ok(false),
    }
}

/// Adds the settings of a submission to those of a run, unless present.
pub(crate) fn prepare(settings: &mut Map<String, Value>, workflow: &Workflow) {
    settings.entry(SUBMISSION).or_insert_with(|| json!({}));
    settings.entry(AGENTS).or_insert_with(|| agents_of(workflow));
}

/// Returns the secrets and programs that a workflow needs; `base`: the folder of the run, if known.
fn of_workflow(workflow: &Workflow, settings: &Map<String, Value>, base: Option<&Path>) -> BTreeSet<String> {
    let has_bash = settings.get(environment::BASH).and_then(Value::as_bool).unwrap_or_default();
    let mut needs = BTreeSet::new();
    let files = workflow.secret_files();
    needs.extend(workflow.missing_secrets(|_| false).into_iter().map(|name| match files.get(name) {
        Some(file) => format!("secret-file:{}", base.unwrap_or(Path::new("")).join(file).display()),
        None => format!("secret:{name}"),
    }));
    let agents = agents_in(settings);
    // A step with `runs_on` brings its program as a need of its own.
    for step in workflow.all_steps().filter(|step| step.runs_on.is_empty()) {
        let program = match (&step.work, &step.shell) {
            (Work::Agent(agent), shell) => match (agents.get(&agent.name), shell) {
                (Some(AgentCommand::Words(words)), _) | (Some(_), Shell::Command(words)) => words.first(),
                _ => None,
            },
            (work, Shell::Command(words)) if work.command().is_some() => words.first(),
            (work, Shell::Default) if work.command().is_some() && has_bash => {
                needs.insert("program:bash".to_owned());
                None
            }
            _ => None,
        };
        // A program of the folder may come from an earlier step.
        needs.extend(program.filter(|word| !word.contains('/')).map(|word| format!("program:{word}")));
    }
    needs
}

/// Returns the need for a certain worker.
pub(crate) fn of_worker(worker: &Holder) -> String {
    format!("worker:{}:{}:{}", worker.host, worker.pid, worker.started)
}

/// Returns the commands of the agents of a workflow, for the settings of the run.
pub(crate) fn agents_of(workflow: &Workflow) -> Value {
    let agents = environment::agents();
    let mut commands = Map::new();
    for step in workflow.all_steps() {
        let Work::Agent(agent) = &step.work else { continue };
        let command = agents.get(&agent.name).map(|command| match command {
            AgentCommand::Shell(text) => json!(text),
            AgentCommand::Words(words) => json!(words),
        });
        commands.extend(command.map(|command| (agent.name.clone(), command)));
    }
    Value::Object(commands)
}

/// Returns the agents of a run, as configured at its submission.
pub(crate) fn agents_in(settings: &Map<String, Value>) -> Agents {
    let command = |command: &Value| match command {
        Value::String(text) => Some(AgentCommand::Shell(text.clone())),
        Value::Array(words) => {
            let words = words.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            Some(AgentCommand::Words(words))
        }
        _ => None,
    };
    let kept = settings.get(AGENTS).and_then(Value::as_object).into_iter().flatten();
    Agents::with(kept.filter_map(|(name, kept)| Some((name.clone(), command(kept)?))))
}

/// Returns the error for a store without a queue.
pub(crate) fn no_queue(purpose: &str, store: &dyn Store) -> Error {
    Error::usage(
        format!("cannot {purpose} {store}: the store has no queue for workers"),
        "name a store in PostgreSQL with `--store postgres://USER@HOST/DATABASE`, or run a file here: `waypost run FILE`",
    )
}

/// What a worker has, besides the environment of its process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Offer {
    pub(crate) tags: BTreeSet<String>,
    /// The folders of named bases.
    pub(crate) bases: BTreeMap<String, PathBuf>,
}

impl StepOffer for Offer {
    fn lacks(&self, needs: &BTreeSet<String>) -> Option<String> {
        Self::lacks(self, needs)
    }
}

impl Offer {
    /// Returns what this process lacks of some needs, for display.
    pub(crate) fn lacks(&self, needs: &BTreeSet<String>) -> Option<String> {
        let lacking: Vec<String> = needs.iter().filter_map(|need| self.lack(need)).collect();
        (!lacking.is_empty()).then(|| lacking.join(", "))
    }

    fn lack(&self, need: &str) -> Option<String> {
        let (kind, name) = need.split_once(':').unwrap_or((need, ""));
        let (has, shown) = match kind {
            "folder" => {
                let (host, folder) = name.split_once(':').unwrap_or((name, ""));
                let is_here = host == self::host() && is_usable(Path::new(folder));
                (is_here, format!("folder `{folder}` of host `{host}`"))
            }
            "base" => (self.bases.get(name).is_some_and(|base| is_usable(base)), format!("base `{name}`")),
            "tag" => (self.tags.contains(name), format!("tag `{name}`")),
            "worker" => {
                let is_own = Holder::here(time::now()).is_ok_and(|own| of_worker(&own) == need);
                (is_own, "the verification of another worker".to_owned())
            }
            "secret" => {
                (std::env::var_os(name).is_some_and(|value| !value.is_empty()), format!("secret `{name}`"))
            }
            "secret-file" => (fs::File::open(name).is_ok(), format!("secret file `{name}`")),
            "program" => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                (has_program(name, Path::new("/"), &path), format!("program `{name}`"))
            }
            // Of the next step.
            "step" => return self.lack(name),
            _ => (false, format!("`{need}`, unknown to this version")),
        };
        (!has).then_some(shown)
    }
}

/// Returns whether steps can run in a folder.
fn is_usable(folder: &Path) -> bool {
    folder.is_dir() && rustix::fs::access(folder, Access::READ_OK | Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_names_everything_that_it_lacks() {
        let needs = |needs: &[&str]| needs.iter().map(|need| (*need).to_owned()).collect::<BTreeSet<_>>();
        let offer = Offer { tags: needs(&["gpu"]), ..Offer::default() };
        let here = format!("folder:{}:/", host());

        assert_eq!(offer.lacks(&needs(&[&here, "tag:gpu", "program:sh", "secret:PATH"])), None);
        assert_eq!(
            offer.lacks(&needs(&["folder:moon:/", "tag:big", "program:no-such", "secret:NO_SUCH"])).unwrap(),
            "folder `/` of host `moon`, program `no-such`, secret `NO_SUCH`, tag `big`"
        );
    }
}
