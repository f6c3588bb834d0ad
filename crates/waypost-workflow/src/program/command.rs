//! A command of a step with everything filled in.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::expr::{ExprError, Scope, Template};
use crate::file::{OutputSource, Step, Tolerance, Work};
use crate::log::CAPTURE_BYTES_MAX;
use crate::output::Capture;

use super::{Surroundings, agent};

/// A command with everything filled in, ready to run without the state.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) argv: Vec<OsString>,
    pub(super) command: String,
    /// The command was made from a template: the record keeps it.
    pub(super) rendered: bool,
    pub(super) env: BTreeMap<String, String>,
    pub(super) dir: PathBuf,
    pub(super) stdin: Option<String>,
    pub(super) outputs: Vec<(String, PathBuf, OutputSource)>,
    pub(super) capture: Option<Capture>,
    /// What it prints is what an agent says.
    pub(super) is_agent: bool,
    /// How much of what it prints is taken.
    pub(super) capture_max: usize,
    pub(super) keeps_stdout: bool,
    /// Items are made of what it prints, which must be text for that.
    pub(super) makes_items: bool,
    pub(super) grace: Duration,
    /// Whether a failure without an exit code, or with this one, lets the run go on.
    pub(super) tolerance: Tolerance,
    /// The codes with which it has ended well, beside 0.
    pub(super) codes: Vec<u8>,
    /// Whether the run may go on after a try that was cut midway, although nobody knows how far it came.
    pub(super) may_be_cut: bool,
    pub(super) report: Option<(Template, Scope)>,
    /// The size of the state before it.
    pub(super) state_bytes: usize,
    /// It undoes the step.
    pub(super) undoes: bool,
}

impl Command {
    /// Makes it of a step that runs `command`.
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
            Ok((name.clone(), base.join(source.from.render(&scope)?), source.clone()))
        };
        let shell = step.shell.command(around.has_bash);
        let (argv, prompt) = match agent {
            Some(agent) => agent::filled(agent, command.clone(), shell),
            None => (shell.into_iter().chain([command.clone()]).collect(), None),
        };
        let argv: Vec<OsString> = argv.into_iter().map(Into::into).collect();
        Ok(Self {
            argv,
            // Of an agent it is the prompt, which is nowhere else.
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
            tolerance: step.continue_on_error.clone(),
            codes: step.evidence.as_ref().map(|evidence| evidence.codes()).unwrap_or_default(),
            may_be_cut: step.idempotent || (step.retry.max == 0 && step.continue_on_error.covers(None)),
            report: step.report.clone().map(|report| (report, scope)),
            env,
            state_bytes: 0,
            undoes: false,
        })
    }

    /// Makes it of what undoes a step: where and with what variables the step ran, handing nothing over.
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

    /// How long it has to end by itself.
    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// Takes what it prints, up to so much, to make items of.
    pub(super) fn for_items(self, capture_max: usize) -> Self {
        Self { keeps_stdout: true, makes_items: true, capture_max, ..self }
    }

    /// Tells it the size of the state that it adds to.
    pub(super) fn after(self, state_bytes: usize) -> Self {
        Self { state_bytes, ..self }
    }
}
