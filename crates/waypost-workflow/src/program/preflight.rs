//! Preflight: checks that the folders, files and programs named by the steps exist before the run starts.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Map, Value};

use crate::expr::{Reference, Scope, Template};
use crate::file::{AgentCommand, Body, ItemSource, Shell, Step, Tolerance, Work, Workflow};

use super::Agents;

/// Missing folder, file or program of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// Id of the step.
    pub step: String,
    /// First line of the step in the file.
    pub line: usize,
    /// What is missing: lower case, no full stop.
    pub message: String,
    /// The step starts in any case, and has no upstream step that could create the missing file or program.
    pub is_certain: bool,
}

/// The machine, as steps use it.
#[derive(Debug, Clone, Copy)]
pub struct Machine<'a> {
    /// Base folder.
    pub base: &'a Path,
    /// Value of `PATH`.
    pub path: &'a OsString,
    /// Commands of agents.
    pub agents: &'a Agents,
}

/// Returns what the steps of a workflow lack; `runs` says whether a step of the top list runs.
///
/// Included files and hooks are left out: their folders and values depend on the run.
pub fn lacks(
    workflow: &Workflow,
    params: &Map<String, Value>,
    machine: Machine<'_>,
    runs: impl Fn(&str) -> bool,
) -> Vec<Lack> {
    let mut look = Look { scope: Scope::new("", params), machine, found: Vec::new() };
    for step in workflow.steps().iter().filter(|step| runs(&step.id)) {
        look.step(workflow.body(), step, true);
    }
    look.found
}

struct Look<'a> {
    scope: Scope,
    machine: Machine<'a>,
    found: Vec<Lack>,
}

impl Look<'_> {
    /// Looks at a step of a list; `is_first` says whether the list certainly starts, with nothing upstream.
    fn step(&mut self, list: &Body, step: &Step, is_first: bool) {
        let is_sure = step.condition.is_none() && step.continue_on_error == Tolerance::Nothing;
        let is_first = is_first && is_sure && list.upstream(step).next().is_none();
        let mut lack = |message: Option<String>| {
            let (id, line) = (step.id.clone(), step.line);
            let lack = |message| Lack { step: id, line, message, is_certain: is_first };
            self.found.extend(message.map(lack));
        };
        let env = step.resolve_shared_env(&self.scope).unwrap_or_default();
        let scope = self.scope.for_step(&step.id, &env);
        // A value of an earlier step is not known yet.
        let known = |text: &Template| {
            let is_known = |read: &Reference| matches!(read.path[0].as_str(), "params" | "env");
            text.references().all(is_known).then(|| text.render(&scope).ok()).flatten()
        };
        let Machine { base, path, agents } = self.machine;
        if step.work.command().is_some()
            && let Some(dir) = step.dir.as_ref().and_then(known)
        {
            let found = base.join(&dir);
            lack(match found.is_dir() {
                true => None,
                false if found.exists() => Some(format!("`{dir}` is not a folder")),
                false => Some(format!("folder `{dir}` does not exist")),
            });
        }
        let sets_path = step.sets_env("PATH");
        let program = match (&step.work, &step.shell) {
            (Work::Agent(agent), shell) => match (agents.get(&agent.name), shell) {
                (Some(AgentCommand::Words(words)), _) | (Some(_), Shell::Command(words)) => words.first(),
                _ => None,
            },
            (work, Shell::Command(words)) if work.command().is_some() => words.first(),
            _ => None,
        };
        if let Some(program) = program.filter(|program| !sets_path && !has_program(program, base, path)) {
            lack(Some(format!("program `{program}` does not exist")));
        }
        if let Some(ItemSource::File(file, _)) = step.work.foreach().map(|foreach| &foreach.items)
            && let Some(file) = known(file)
            && !base.join(&file).exists()
        {
            lack(Some(format!("item file `{file}` does not exist")));
        }
        if let Some(body) = step.work.body().filter(|_| step.work.child().is_none()) {
            // A list of items may be empty.
            let is_first = is_first && step.work.foreach().is_none();
            body.steps().iter().for_each(|inner| self.step(body, inner, is_first));
        }
    }
}

/// Returns whether a program exists and may be executed: at a path, or in a folder of `PATH`.
#[must_use]
pub fn has_program(program: &str, base: &Path, path: &OsString) -> bool {
    let is_executable = |file: &Path| {
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    match program.contains('/') {
        // Relative to the folder of the step, which may not exist yet.
        true if Path::new(program).is_relative() => true,
        true => is_executable(&base.join(program)),
        false => std::env::split_paths(path).any(|folder| is_executable(&folder.join(program))),
    }
}
