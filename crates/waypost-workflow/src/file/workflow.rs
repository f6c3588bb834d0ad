//! The checked form of a workflow file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::budget::Budget;
use super::child::Child;
use super::evidence::Evidence;
use super::hooks::Hook;
use super::params::Param;
use super::problem::{Problem, Problems, Source, Warning};
use super::repeat::Repeat;
use super::settings::Checkpoints;
use super::work::{Agent, Work};
use crate::expr::{Condition, ExprError, Scope, Template};
use crate::output::{Capture, JsonPath, PathError};
use crate::suggest::{listed, nearest};

/// A workflow whose file holds together: ids are unique, needs exist and make no circle, expressions read
/// only what can be there.
#[derive(Debug, Clone)]
pub struct Workflow {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) path: PathBuf,
    pub(super) text: Arc<str>,
    pub(super) max_parallel: Option<NonZeroUsize>,
    pub(super) timeout: Option<Duration>,
    pub(super) budget: Option<Budget>,
    pub(super) fail_fast: bool,
    pub(super) cuts_max: Option<u32>,
    pub(super) params: Vec<Param>,
    pub(super) secrets: Vec<String>,
    pub(super) secret_files: BTreeMap<String, PathBuf>,
    pub(super) allow_paths: Vec<PathBuf>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) checkpoints: Checkpoints,
    pub(super) store: Option<String>,
    pub(super) body: Body,
    pub(super) on_failure: Option<Body>,
    pub(super) warnings: Vec<Problem>,
}

/// A list of steps: that of the workflow, or what a step does with each item.
#[derive(Debug, Clone)]
pub struct Body {
    pub(super) mode: Mode,
    pub(super) steps: Vec<Step>,
    pub(super) index: HashMap<String, usize>,
}

impl Default for Body {
    fn default() -> Self {
        Self { mode: Mode::Sequence, steps: Vec::new(), index: HashMap::new() }
    }
}

impl Body {
    /// Whether the steps run in order or as their needs allow.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The steps in the order of the file.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// All of them, and those within them, in the order of the file.
    pub(crate) fn all(&self) -> Box<dyn Iterator<Item = &Step> + '_> {
        Box::new(self.steps.iter().flat_map(|step| {
            let after = step.work.child().and_then(|child| child.workflow().on_failure());
            let below = step.work.body().into_iter().chain(after);
            let below = below.chain(step.hooks.iter().map(|hook| &hook.body));
            std::iter::once(step).chain(below.flat_map(Self::all))
        }))
    }

    /// All of them that stand in the same file, in its order.
    pub(super) fn of_file(&self) -> Box<dyn Iterator<Item = &Step> + '_> {
        Box::new(self.steps.iter().flat_map(|step| {
            let below = step.work.body().filter(|_| step.work.child().is_none());
            let below = below.into_iter().chain(step.hooks.iter().map(|hook| &hook.body));
            std::iter::once(step).chain(below.flat_map(Self::of_file))
        }))
    }
}

impl Workflow {
    /// Its name; the file's name without its ending if the file gives none.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is for.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// The file that it was read from, as it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's text as it was read; a run keeps a copy of it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the steps run in order or as their needs allow.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.body.mode
    }

    /// How many steps may run at once on a machine with `cores`: one in a sequence; in a graph
    /// `max_parallel`, or else as many as there are cores.
    #[must_use]
    pub fn max_parallel(&self, cores: NonZeroUsize) -> NonZeroUsize {
        match self.body.mode {
            Mode::Sequence => NonZeroUsize::MIN,
            Mode::Graph => self.max_parallel.unwrap_or(cores),
        }
    }

    /// How many steps may be at work at once in the whole run, if the file says so.
    #[must_use]
    pub fn parallel_max(&self) -> Option<NonZeroUsize> {
        self.max_parallel
    }

    /// How long the run may take.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Says whether no further step starts once one has failed, but those that ask for failures in their `if`.
    pub fn fails_fast(&self) -> bool {
        self.fail_fast
    }

    /// Returns the default of `max_cuts` of a step.
    pub fn cuts_max(&self) -> u32 {
        self.cuts_max.unwrap_or(waypost::shape::CUTS_MAX)
    }

    /// What all its steps may use together.
    #[must_use]
    pub fn budget(&self) -> Option<Budget> {
        self.budget
    }

    /// The declared params, in the order of the file.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Names of environment variables whose values must not be stored or shown.
    #[must_use]
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    /// The folders beneath which evidence may lie by an absolute path, those of the files that it names included.
    pub fn allow_paths(&self) -> &[PathBuf] {
        &self.allow_paths
    }

    /// The files of secrets, by name.
    pub fn secret_files(&self) -> &BTreeMap<String, PathBuf> {
        &self.secret_files
    }

    /// The declared secrets for which `is_set` says no: a run must not begin without them.
    pub fn missing_secrets(&self, is_set: impl Fn(&str) -> bool) -> Vec<&str> {
        self.secrets.iter().map(String::as_str).filter(|name| !is_set(name)).collect()
    }

    /// Labels of every run of it.
    #[must_use]
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// How runs are checkpointed.
    #[must_use]
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// The steps in the order of the file; there is at least one.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.body.steps
    }

    /// The steps that are done when one has failed for good, before the run fails.
    #[must_use]
    pub fn on_failure(&self) -> Option<&Body> {
        self.on_failure.as_ref()
    }

    /// All steps, and those within and after them, in the order of the file.
    pub(crate) fn all_steps(&self) -> impl Iterator<Item = &Step> {
        self.body.all().chain(self.on_failure.iter().flat_map(Body::all))
    }

    /// The steps with their order.
    #[must_use]
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The step with this id, which may stand within another.
    #[must_use]
    pub fn step(&self, id: &str) -> Option<&Step> {
        let top = self.body.index.get(id).map(|index| &self.body.steps[*index]);
        top.or_else(|| self.all_steps().find(|step| step.id == id))
    }

    /// The steps that must have ended before `step` of the workflow's own list begins: in a sequence the one before it, in a graph its needs.
    pub fn upstream<'w>(&'w self, step: &'w Step) -> impl Iterator<Item = &'w Step> {
        let Body { mode, steps, index } = &self.body;
        let before = match mode {
            Mode::Sequence => step.index.checked_sub(1).map(|before| &steps[before]),
            Mode::Graph => None,
        };
        before.into_iter().chain(step.needs.iter().map(|id| &steps[index[id]]))
    }

    /// The names of environment variables that some step declares and another finds in the caller's environment.
    #[must_use]
    pub fn env_names(&self) -> BTreeSet<&str> {
        let mut setters: BTreeMap<&str, usize> = BTreeMap::new();
        let working: Vec<&Step> = self.all_steps().filter(|step| step.work.body().is_none()).collect();
        for step in &working {
            let names: BTreeSet<&str> =
                step.env.iter().flat_map(|layer| layer.iter()).map(|(name, _)| name.as_str()).collect();
            names.into_iter().for_each(|name| *setters.entry(name).or_default() += 1);
        }
        setters.into_iter().filter(|(_, steps)| *steps < working.len()).map(|(name, _)| name).collect()
    }

    /// The id of a step that is spelled nearly like `id`, which is that of none.
    #[must_use]
    pub fn step_near(&self, id: &str) -> Option<String> {
        nearest(id, self.all_steps().map(|step| step.id.as_str()))
    }

    /// What `check` says although the file can run, in the order of the file.
    #[must_use]
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// What `check` says of the file and of those that its steps name.
    #[must_use]
    pub fn all_warnings(&self) -> Vec<Warning<'_>> {
        let own = self.warnings.iter().map(|warning| self.warning(Cow::Borrowed(warning)));
        own.chain(self.children().flat_map(Self::all_warnings)).collect()
    }

    /// Warns of agents that are none of the `known` ones, in the file and in those that its steps name.
    #[must_use]
    pub fn unknown_agents(&self, known: &[&str]) -> Vec<Warning<'_>> {
        let unknown = |agent: &&Agent| !known.contains(&agent.name.as_str());
        let agents = self.of_file().filter_map(|step| match &step.work {
            Work::Agent(agent) => Some(agent),
            _ => None,
        });
        let agents: Vec<&Agent> = agents.filter(unknown).collect();
        let below = self.children().flat_map(|child| child.unknown_agents(known));
        if agents.is_empty() {
            return below.collect();
        }
        let source = Source::new(self.path.clone(), Arc::clone(&self.text));
        let mut problems = Problems::default();
        for Agent { name, place, .. } in agents {
            let help = format!(
                "say in `.waypost/config.yaml` how it is called: `agents: {{ {name}: [program, -p, \"${{{{ prompt }}}}\"] }}`; known are {}",
                listed(known.iter().copied())
            );
            let hint = nearest(name, known.iter().copied());
            let problem = source.problem(place, format!("agent `{name}` is not configured here"));
            problems.push(problem.help(help).hint(hint));
        }
        let (found, _) = problems.finish(&source);
        found.into_iter().map(|problem| self.warning(Cow::Owned(problem))).chain(below).collect()
    }

    /// The files that its steps name.
    fn children(&self) -> impl Iterator<Item = &Self> {
        self.of_file().filter_map(|step| step.work.child()).map(Child::workflow)
    }

    /// All steps of the file itself.
    fn of_file(&self) -> impl Iterator<Item = &Step> {
        self.body.of_file().chain(self.on_failure.iter().flat_map(Body::of_file))
    }

    fn warning<'w>(&'w self, problem: Cow<'w, Problem>) -> Warning<'w> {
        Warning { file: &self.path, text: &self.text, problem }
    }

    /// The steps that read what a step gave: its outputs, or what it printed.
    pub fn readers_of(&self, id: &str) -> impl Iterator<Item = &Step> {
        self.all_steps().filter(move |step| step.references().any(|reference| {
            matches!(reference.path.as_slice(), [root, of, what, ..] if root == "steps" && of == id && matches!(what.as_str(), "outputs" | "stdout" | "items" | "items_file" | "total" | "succeeded" | "failed"))
        }))
    }

    /// The steps that read the outputs at a path that begins with the id of a step, or anything in them.
    pub(crate) fn readers_at(&self, path: &[String]) -> impl Iterator<Item = &Step> {
        self.all_steps().filter(move |step| {
            step.references().any(|reference| match &*reference.reach {
                [root, read @ ..] if root == "steps" => {
                    // All outputs of another file are those of its steps.
                    let is_around = |read: &[String]| {
                        read.get(1..).is_some_and(|read| read.iter().any(|part| part == "outputs"))
                    };
                    read.starts_with(path) || (path.starts_with(read) && is_around(read))
                }
                _ => false,
            })
        })
    }

    /// Says whether a step reads something of another one that this does not declare to come from a file.
    #[must_use]
    pub fn reads_undeclared(&self, step: &Step) -> bool {
        let declared = |name: &str| step.outputs.iter().any(|(known, _)| known == name);
        let mut references = self.readers_of(&step.id).flat_map(Step::references);
        references.any(|reference| match reference.path.as_slice() {
            [root, of, what, rest @ ..] if root == "steps" && *of == step.id => match what.as_str() {
                "outputs" => !rest.first().is_some_and(|name| declared(name)),
                "stdout" => true,
                _ => false,
            },
            _ => false,
        })
    }
}

/// In which order steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One after another, as they stand: no step has `needs`.
    Sequence,
    /// As soon as their needs are met.
    Graph,
}

/// One step with everything that holds for it, defaults included.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Step {
    /// Its id; `step-N` by position if the file gives none.
    pub id: String,
    /// Its position in the file, from 0.
    pub index: usize,
    /// What people see instead of the id.
    pub name: Option<String>,
    /// The id of the step in an earlier version of the file.
    pub renamed_from: Option<String>,
    /// The line in the file where it begins, from 1.
    pub line: usize,
    /// What it does.
    pub work: Work,
    /// Ids of the steps that it names in `needs`, each once.
    pub needs: Vec<String>,
    /// What is done after it, depending on what became of it.
    pub hooks: Vec<Hook>,
    /// Until when it is done again, if it is.
    pub repeat: Option<Repeat>,
    /// Whether it runs; without one it runs if no step that it needs was skipped.
    pub condition: Option<Condition>,
    /// Its folder, below the base folder.
    pub dir: Option<Template>,
    /// What runs the command.
    pub shell: Shell,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// How often it is tried again.
    pub retry: Retry,
    /// Outputs read from files, by name.
    pub outputs: Vec<(String, OutputSource)>,
    /// How standard output becomes `outputs.result`.
    pub capture: Option<Capture>,
    /// What it reads from standard input; empty if absent.
    pub stdin: Option<Template>,
    /// Which failures the run goes on after.
    pub continue_on_error: Tolerance,
    /// Whether it may simply run again after it was cut.
    pub idempotent: bool,
    /// After so many cuts in a row, the step starts only alone.
    pub cuts_max: Option<u32>,
    /// How long it has between being told to stop and being killed.
    pub grace: Duration,
    /// What undoes it.
    pub undo: Option<Template>,
    /// Markdown that it adds to the report.
    pub report: Option<Template>,
    /// By what it is believed.
    pub evidence: Option<Arc<Evidence>>,
    /// Whether an expression reads its standard output, so that it must be kept.
    pub keeps_stdout: bool,
    /// SHA-256 over what the step means, in hex; the same after changes that touch nothing.
    pub fingerprint: String,
    /// Of a step with steps within it, the same but for what those do.
    pub frame: Option<String>,
    /// SHA-256 over the list of items, of a `foreach` without keys of its own.
    pub list: Option<String>,
    /// `env` of the workflow, of `defaults` and of the step.
    pub(super) env: Arc<[Vec<(String, Template)>; 3]>,
}

impl Step {
    /// Its `env`: that of the workflow, over it that of `defaults`, over that its own.
    ///
    /// Each may read what the ones before it set.
    ///
    /// # Errors
    /// The expression that could not be worked out.
    pub fn resolve_env(&self, scope: &Scope) -> Result<BTreeMap<String, String>, ExprError> {
        self.resolve(scope, &self.env[..])
    }

    /// The `env` that its `if` may read: that of the workflow and of `defaults`.
    ///
    /// Its own may read outputs of steps that were skipped, which is for `if` to find out first.
    ///
    /// # Errors
    /// The expression that could not be worked out.
    pub fn resolve_shared_env(&self, scope: &Scope) -> Result<BTreeMap<String, String>, ExprError> {
        self.resolve(scope, &self.env[..2])
    }

    fn resolve(
        &self,
        scope: &Scope,
        layers: &[Vec<(String, Template)>],
    ) -> Result<BTreeMap<String, String>, ExprError> {
        let mut env = BTreeMap::new();
        for layer in layers {
            let scope = scope.for_step(&self.id, &env);
            for (name, template) in layer {
                env.insert(name.clone(), template.render_word(&scope)?);
            }
        }
        Ok(env)
    }
}

/// What runs a command: the command is its last argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shell {
    /// `bash -euo pipefail -c` where there is a bash, else `sh -eu -c`; what it was is recorded in the run.
    Default,
    /// This program with these arguments; never empty.
    Command(Vec<String>),
}

impl Shell {
    /// [`Shell::Default`] where there is a bash.
    pub const BASH: [&'static str; 4] = ["bash", "-euo", "pipefail", "-c"];
    /// [`Shell::Default`] elsewhere.
    pub const SH: [&'static str; 3] = ["sh", "-eu", "-c"];

    /// Program and arguments, where `has_bash` says whether there is a bash.
    #[must_use]
    pub fn command(&self, has_bash: bool) -> Vec<String> {
        let words: &[&str] = if has_bash { &Self::BASH } else { &Self::SH };
        match self {
            Self::Default => words.iter().map(|word| (*word).to_owned()).collect(),
            Self::Command(command) => command.clone(),
        }
    }
}

/// How often and when a failed step is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Tries after the first.
    pub max: u32,
    /// Wait before the second try.
    pub delay: Duration,
    /// How the wait grows.
    pub backoff: Backoff,
    /// The longest wait.
    pub max_delay: Duration,
    /// Whether waits are varied at random, so that many steps do not try at the same moment.
    pub jitter: bool,
    /// Which failures are tried again; empty means any.
    pub when: Vec<RetryCause>,
}

impl Retry {
    /// No second try.
    pub const NONE: Self = Self {
        max: 0,
        delay: Duration::from_secs(1),
        backoff: Backoff::Exponential,
        max_delay: Duration::from_secs(60),
        jitter: true,
        when: Vec::new(),
    };

    /// Whether a failure of this kind is tried again, if tries are left.
    #[must_use]
    pub fn covers(&self, cause: RetryCause) -> bool {
        self.when.is_empty() || self.when.contains(&cause)
    }
}

/// How the wait between tries grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backoff {
    /// Always `delay`.
    Fixed,
    /// `delay` longer each time.
    Linear,
    /// Twice as long each time.
    Exponential,
}

/// A kind of failure that may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryCause {
    /// It took longer than its `timeout`.
    Timeout,
    /// It ended with this exit code; by signal N, with 128 + N.
    Exit(u8),
    /// A signal ended it.
    Signal,
    /// Its evidence did not hold, or could not be checked.
    Evidence,
}

/// Which failures of a step the run goes on after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tolerance {
    /// None.
    Nothing,
    /// Every one.
    Everything,
    /// Those with one of these exit codes.
    ExitCodes(Vec<u8>),
}

impl Tolerance {
    /// Whether the run goes on after this failure; `None` if it had no exit code.
    #[must_use]
    pub fn covers(&self, exit_code: Option<u8>) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::ExitCodes(codes) => exit_code.is_some_and(|code| codes.contains(&code)),
        }
    }
}

/// Where an output comes from.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OutputSource {
    /// The file, below the base folder.
    pub from: Template,
    /// The place in it, if it is JSON; otherwise its text.
    pub json: Option<JsonPath>,
}

impl OutputSource {
    /// The output in the bytes of the file.
    ///
    /// # Errors
    /// The file is not text or not JSON, or has no such place.
    pub fn read(&self, bytes: &[u8]) -> Result<Value, PathError> {
        match &self.json {
            Some(path) => path.find_in(bytes),
            None => crate::output::file_text(bytes),
        }
    }
}
