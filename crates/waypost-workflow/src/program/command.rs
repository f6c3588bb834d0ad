//! Command of a step, with all expressions evaluated.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::expr::{ExprError, Scope, Template};
use crate::file::{OutputSource, Step, Work};
use crate::log::CAPTURE_BYTES_MAX;
use crate::output::Capture;

use super::outputs::DeclaredFile;
use super::{Surroundings, agent};

/// Command with all expressions evaluated; runs without the state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Command {
    pub(super) argv: Vec<String>,
    pub(super) command: String,
    /// Whether the command comes from a template; then the record keeps the text.
    pub(super) rendered: bool,
    pub(super) env: BTreeMap<String, String>,
    pub(super) dir: PathBuf,
    pub(super) stdin: Option<String>,
    pub(super) outputs: Vec<DeclaredFile>,
    pub(super) capture: Option<Capture>,
    /// Whether standard output is parsed as the output of an agent.
    pub(super) is_agent: bool,
    /// Most bytes of standard output to capture.
    pub(super) capture_max: usize,
    pub(super) keeps_stdout: bool,
    /// Whether items are made from standard output, which must then be UTF-8.
    pub(super) makes_items: bool,
    pub(super) grace: Duration,
    /// Exit codes of success in addition to 0.
    pub(super) codes: Vec<u8>,
    /// Whether an interrupted attempt counts as an ordinary failure, although its effects are unknown.
    pub(super) may_be_cut: bool,
    pub(super) idempotent: bool,
    /// Rendered by the session of the run, after the end of the step.
    #[serde(skip)]
    pub(super) report: Option<(Template, Scope)>,
    /// Size of the state before the step.
    pub(super) state_bytes: usize,
    /// Whether this is the `undo` command of the step.
    pub(super) undoes: bool,
    /// Earlier executions of the attempt, each with a lost worker.
    #[serde(skip)]
    pub(super) losses: u32,
    /// The workers that may execute the command; `None` for the session of the run alone.
    #[serde(skip)]
    pub(super) runs_on: Option<RunsOn>,
}

/// The workers that may execute a command in place of the session of the run.
#[derive(Debug, Clone)]
pub(super) struct RunsOn {
    /// The tags of each worker.
    pub(super) tags: Vec<String>,
    /// The lost workers after which no other may execute the command.
    pub(super) losses_max: u32,
}

impl Command {
    /// Evaluates the expressions of `step`, which runs `command`.
    pub(super) fn render(
        step: &Step,
        command: &Template,
        scope: &Scope,
        (around, base): (&Surroundings, &Path),
    ) -> Result<Self, ExprError> {
        let env = step.resolve_env(scope)?;
        let scope = scope.for_step(&step.id, &env);
        let is_plain = command.is_plain();
        let command = command.render_word(&scope)?;
        let agent = match &step.work {
            Work::Agent(agent) => around.agents.get(&agent.name),
            _ => None,
        };
        let dir = step.dir.as_ref().map(|dir| dir.render_word(&scope)).transpose()?;
        let output = |(name, source): &(String, OutputSource)| {
            let path = base.join(source.from.render(&scope)?);
            Ok(DeclaredFile { name: name.clone(), path, json: source.json.clone() })
        };
        let shell = step.shell.command(around.has_bash);
        let (argv, prompt) = match agent {
            Some(agent) => agent::filled(agent, command.clone(), shell),
            None => (shell.into_iter().chain([command.clone()]).collect(), None),
        };
        Ok(Self {
            argv,
            // The prompt of an agent is recorded nowhere else.
            rendered: !is_plain || agent.is_some(),
            command,
            dir: dir.map_or_else(|| base.to_owned(), |dir| base.join(dir)),
            stdin: prompt.map_or_else(
                || step.stdin.as_ref().map(|stdin| stdin.render(&scope)).transpose(),
                |prompt| Ok(Some(prompt)),
            )?,
            outputs: step.outputs.iter().map(output).collect::<Result<_, ExprError>>()?,
            capture: step.capture.or(agent.map(|_| Capture::Text)),
            is_agent: agent.is_some(),
            capture_max: CAPTURE_BYTES_MAX,
            keeps_stdout: step.keeps_stdout,
            makes_items: false,
            grace: step.grace,
            codes: step.evidence.as_ref().map(|evidence| evidence.codes()).unwrap_or_default(),
            idempotent: step.idempotent,
            may_be_cut: step.idempotent || (step.retry.max == 0 && step.continue_on_error.covers(None)),
            report: step.report.clone().map(|report| (report, scope)),
            env,
            state_bytes: 0,
            undoes: false,
            losses: 0,
            runs_on: None,
        })
    }

    /// Makes the `undo` command of a step, with the folder and variables of the step and without outputs.
    pub(super) fn undoing(
        step: &Step,
        undo: &Template,
        scope: &Scope,
        around: (&Surroundings, &Path),
    ) -> Result<Self, ExprError> {
        let mut bare = step.clone();
        (bare.work, bare.outputs, bare.keeps_stdout) = (Work::Run(undo.clone()), Vec::new(), false);
        (bare.stdin, bare.report, bare.capture) = (None, None, None);
        bare.evidence = None;
        Ok(Self { undoes: true, rendered: true, ..Self::render(&bare, undo, scope, around)? })
    }

    /// Returns the grace period: how long the process may take to end after a request.
    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// Captures up to `capture_max` bytes of standard output for items.
    pub(super) fn for_items(self, capture_max: usize) -> Self {
        Self { keeps_stdout: true, makes_items: true, capture_max, ..self }
    }

    /// Sets the size of the state that the outputs are added to.
    pub(super) fn after(self, state_bytes: usize) -> Self {
        Self { state_bytes, ..self }
    }
}
