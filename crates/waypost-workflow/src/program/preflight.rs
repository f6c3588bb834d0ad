//! Preflight: checks that the folders, files and programs named by the steps exist before the run starts.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Map, Value};

use crate::expr::{Reference, Scope, Template};
use crate::file::{AgentCommand, Body, ChildWorkflow, ItemSource, Shell, Step, Tolerance, Work, Workflow};

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
    /// The environment may define functions of the shell.
    pub has_functions: bool,
}

/// Returns what the steps of a workflow lack. `runs`: whether a step of the top list runs.
///
/// Values that are known only during the run, such as outputs and items, are left out.
pub fn lacks(
    workflow: &Workflow,
    params: &Map<String, Value>,
    machine: Machine<'_>,
    runs: impl Fn(&str) -> bool,
) -> Vec<Lack> {
    let mut checker =
        Preflight { scope: Scope::new("", params), machine, top: machine.base, found: Vec::new() };
    for step in workflow.steps().iter().filter(|step| runs(&step.id)) {
        checker.step(workflow.body(), step, true);
    }
    checker.found
}

struct Preflight<'a> {
    scope: Scope,
    machine: Machine<'a>,
    /// Base folder of the main file.
    top: &'a Path,
    found: Vec<Lack>,
}

impl Preflight<'_> {
    fn list(&mut self, list: &Body, is_first: bool) {
        list.steps().iter().for_each(|step| self.step(list, step, is_first));
    }

    /// Checks the steps of an included file, with its params if these are known.
    fn child(&mut self, step: &Step, child: &ChildWorkflow, scope: &Scope, is_first: bool) {
        let (workflow, base) = (child.workflow(), self.top.join(child.folder()));
        let params = child.given(scope).ok().and_then(|given| workflow.resolve_params(&given).ok());
        let scope = Scope::new("", &params.unwrap_or_default());
        let (machine, top) = (Machine { base: &base, ..self.machine }, self.top);
        let mut checker = Preflight { scope, machine, top, found: Vec::new() };
        checker.list(workflow.body(), is_first);
        let of_file = |Lack { step: inner, line, message, is_certain }| {
            let message = format!("step {inner} of `{}` (line {line}): {message}", child.file());
            Lack { step: step.id.clone(), line: step.line, message, is_certain }
        };
        self.found.extend(checker.found.into_iter().map(of_file));
    }

    /// Checks a step of a list. `is_first`: the list certainly starts, before any other step.
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
        let Machine { base, path, agents, has_functions } = self.machine;
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
        let too_long = |named: String, bytes: usize| {
            (bytes > PROCESS_STRING_BYTES_MAX).then(|| {
                format!(
                    "{named} has {bytes} bytes, over the limit of the system: pass long values by `stdin:`"
                )
            })
        };
        if let Work::Run(text) | Work::Service(text) = &step.work
            && let Some(command) = known(text)
        {
            lack(too_long("the command".to_owned(), command.len()));
        }
        for (name, value) in step.variables() {
            let bytes = known(value).map_or(0, |value| name.len() + "=".len() + value.len());
            lack(too_long(format!("variable `{name}`"), bytes));
        }
        let sets_path = step.sets_env("PATH");
        let first_word = match &step.work {
            Work::Run(text) | Work::Service(text) if is_plain_shell(&step.shell) => known(text),
            _ => None,
        };
        let first_word = first_word.as_deref().and_then(first_program).filter(|_| !has_functions);
        let program = match (&step.work, &step.shell) {
            (Work::Agent(agent), shell) => match (agents.get(&agent.name), shell) {
                (Some(AgentCommand::Words(words)), _) | (Some(_), Shell::Command(words)) => words.first(),
                _ => None,
            },
            (work, Shell::Command(words)) if work.command().is_some() => words.first(),
            _ => None,
        };
        let named = program.map(String::as_str).into_iter().chain(first_word);
        for program in named.filter(|program| !sets_path && !has_program(program, base, path)) {
            lack(Some(format!("program `{program}` does not exist")));
        }
        if let Some(ItemSource::File(file, _)) = step.work.foreach().map(|foreach| &foreach.items)
            && let Some(file) = known(file)
            && !base.join(&file).exists()
        {
            lack(Some(format!("item file `{file}` does not exist")));
        }
        if let Some(child) = step.work.child() {
            self.child(step, child, &scope, is_first);
        } else if let Some(body) = step.work.body() {
            // A list of items may be empty.
            self.list(body, is_first && step.work.foreach().is_none());
        }
        step.hooks.iter().for_each(|hook| self.list(&hook.body, false));
    }
}

/// Longest argument, or variable with its name, of a process on Linux: `MAX_ARG_STRLEN` without the final zero byte.
const PROCESS_STRING_BYTES_MAX: usize = 128 * 1024 - 1;

/// Words at the start of a command that name no program.
const SHELL_WORDS: &str = ". : [ [[ alias bg bind break builtin caller case cd command compgen complete compopt continue \
    coproc declare dirs disown do done echo elif else enable esac eval exec exit export false fc fg fi for function \
    getopts hash help history if in jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly \
    return select set shift shopt source suspend test then time times trap true type typeset ulimit umask unalias \
    unset until wait while";

/// Returns whether a shell reads POSIX commands, and stops at a missing program.
fn is_plain_shell(shell: &Shell) -> bool {
    match shell {
        Shell::Default => true,
        Shell::Command(words) => *words == Shell::BASH || *words == Shell::SH,
    }
}

/// Returns the program at the start of a command, if that is certain without a shell: a plain word without a path, that
/// is no word of the shell, in a line of a single simple command.
fn first_program(command: &str) -> Option<&str> {
    let line = command.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let word = line.split_whitespace().next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.');
    let is_simple = !line.contains(['|', '&', ';', '`', '(', ')', '<', '>', '\\', '{', '}']);
    let is_program = word.chars().all(is_plain) && !SHELL_WORDS.split_whitespace().any(|known| known == word);
    (is_simple && is_program).then_some(word)
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
