//! Checks before a run starts: params, secrets, and the folders, files and programs of its steps.

use std::path::Path;

use serde_json::{Map, Value};
use waypost_workflow::file::Workflow;
use waypost_workflow::program::{Lack, Machine, lacks};

use crate::error::Error;
use crate::format::text::quoted;
use crate::run::environment;

/// Returns what the steps lack; `runs` says whether a step of the top list runs.
pub(crate) fn lacks_of(
    workflow: &Workflow,
    params: &Map<String, Value>,
    base: &Path,
    runs: impl Fn(&str) -> bool,
) -> Vec<Lack> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let agents = environment::agents();
    let defines = |name: &str| name.starts_with("BASH_FUNC_") || name == "BASH_ENV" || name == "ENV";
    let has_functions = std::env::vars_os().any(|(name, _)| name.to_str().is_some_and(defines));
    lacks(workflow, params, Machine { base, path: &path, agents: &agents, has_functions }, runs)
}

/// Returns a lack with its step, for a message.
pub(crate) fn shown(lack: &Lack) -> String {
    format!("step {} (line {}): {}", lack.step, lack.line, lack.message)
}

/// Returns the problems of a start as one error, if there are any. `found`: errors with their own hints. `file`: the
/// workflow file, if the problems of its steps are still in the file.
pub(crate) fn refused(mut found: Vec<Error>, lacks: &[Lack], file: Option<&Path>) -> Result<(), Error> {
    let certain: Vec<String> = lacks.iter().filter(|lack| lack.is_certain).map(shown).collect();
    if certain.is_empty() && found.len() < 2 {
        return found.pop().map_or(Ok(()), Err);
    }
    let mut hints: Vec<String> = found.iter().filter_map(|error| error.diagnosis().hint).collect();
    let in_file = file.filter(|_| !certain.is_empty());
    hints.extend(in_file.map(|file| {
        let file = quoted(&file.display().to_string());
        format!("`waypost check {file}` shows the places of the steps")
    }));
    let problems: Vec<String> = found.iter().map(ToString::to_string).chain(certain).collect();
    let message = match problems.as_slice() {
        [problem] => format!("cannot start the run: {problem}"),
        problems => format!("cannot start the run:\n{}", problems.join("\n")).replace('\n', "\n  "),
    };
    let hint = (!hints.is_empty()).then(|| hints.join("; "));
    Err(Error::Usage { message, hint })
}
