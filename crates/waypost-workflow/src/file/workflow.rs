//! Checked form of a workflow file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::budget::Budget;
use super::child::ChildWorkflow;
use super::evidence::Evidence;
use super::hooks::{Hook, HookOn};
use super::parallel::Parallel;
use super::params::Param;
use super::problem::{Problem, Problems, SourceText, Warning};
use super::repeat::Repeat;
use super::settings::Checkpoints;
use super::work::{Agent, Work};
use crate::expr::{Condition, ExprError, Scope, Template};
use crate::output::{Capture, JsonPath};
use crate::suggest::{listed, nearest};

/// Valid workflow: ids are unique, needs exist without a cycle, and expressions read existing names only.
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
    pub(super) distribute: bool,
    pub(super) cuts_max: Option<u32>,
    pub(super) params: Vec<Param>,
    pub(super) secrets: Vec<String>,
    pub(super) secret_files: BTreeMap<String, PathBuf>,
    pub(super) allow_paths: Vec<PathBuf>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) checkpoints: Checkpoints,
    pub(super) store: Option<String>,
    pub(super) body: Body,
    pub(super) warnings: Vec<Problem>,
}

/// List of steps: of the workflow, or of a step's body.
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
    /// Returns whether the steps run in order or by their needs.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the steps in the order of the file.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns the direct upstream steps of a step of this list. In a sequence, the previous step; in a graph,
    /// the needs.
    pub fn upstream<'b>(&'b self, step: &'b Step) -> impl Iterator<Item = &'b Step> {
        let Self { mode, steps, index } = self;
        let before = match mode {
            Mode::Sequence => Self::before(steps, step.index).map(|before| &steps[before]),
            Mode::Graph => None,
        };
        before.into_iter().chain(step.needs.iter().map(|id| &steps[index[id]]))
    }

    /// Returns the place of the step before the step at `place` of a sequence. Steps with the hooks of a wait run
    /// beside the sequence.
    pub(crate) fn before(steps: &[Step], place: usize) -> Option<usize> {
        let is_in_line = |place: &usize| steps[*place].announces.is_none();
        let skips_wait = steps[place].announces.is_some();
        (0..place).rev().filter(is_in_line).nth(usize::from(skips_wait))
    }

    /// Returns all steps, with nested steps, hooks and included files, in the order of the file.
    pub fn all(&self) -> Box<dyn Iterator<Item = &Step> + '_> {
        Box::new(self.steps.iter().flat_map(|step| {
            let below = step.work.body().into_iter();
            let below = below.chain(step.hooks.iter().map(|hook| &hook.body));
            std::iter::once(step).chain(below.flat_map(Self::all))
        }))
    }

    /// Returns all steps of the same file, in order.
    pub(super) fn of_file(&self) -> Box<dyn Iterator<Item = &Step> + '_> {
        Box::new(self.steps.iter().flat_map(|step| {
            let below = step.work.body().filter(|_| step.work.child().is_none());
            let below = below.into_iter().chain(step.hooks.iter().map(|hook| &hook.body));
            std::iter::once(step).chain(below.flat_map(Self::of_file))
        }))
    }
}

impl Workflow {
    /// Returns the name; by default the file name without its extension.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description.
    #[must_use]
    pub fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    /// Returns the path of the file, as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text of the file as read; a run keeps a copy.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether the steps run in order or by their needs.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.body.mode
    }

    /// Returns the limit of concurrent steps: one in a sequence; in a graph `max_parallel`, or else `default`.
    #[must_use]
    pub fn max_parallel(&self, default: Parallel) -> NonZeroUsize {
        match self.body.mode {
            Mode::Sequence => NonZeroUsize::MIN,
            Mode::Graph => self.max_parallel.unwrap_or_else(|| default.of(&self.body)),
        }
    }

    /// Returns the limit of concurrent steps of the whole run, if the file has a limit.
    #[must_use]
    pub fn parallel_max(&self) -> Option<NonZeroUsize> {
        self.max_parallel
    }

    /// Returns the time limit of the run.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns whether a failure keeps further steps from starting, except those with failures in their `if`.
    pub fn fails_fast(&self) -> bool {
        self.fail_fast
    }

    /// Returns the tags of the workers that may execute a step in place of the worker of the run; `None` for a step that
    /// only the worker of the run executes.
    #[must_use]
    pub fn runs_on<'s>(&self, step: &'s Step) -> Option<&'s [String]> {
        let is_leaf = matches!(step.work, Work::Run(_) | Work::Agent(_));
        (is_leaf && (self.distribute || !step.runs_on.is_empty())).then_some(&step.runs_on)
    }

    /// Returns whether any worker may execute the steps.
    pub fn is_distributed(&self) -> bool {
        self.distribute
    }

    /// Returns the default of `max_cuts` of a step.
    pub fn cuts_max(&self) -> u32 {
        self.cuts_max.unwrap_or(waypost::shape::CUTS_MAX)
    }

    /// Returns the limits for all steps together.
    #[must_use]
    pub fn budget(&self) -> Option<Budget> {
        self.budget
    }

    /// Returns the declared params, in the order of the file.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Returns the names of environment variables whose values must not be stored or shown.
    #[must_use]
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    /// Returns the folders for absolute paths of evidence, including those of included files.
    pub fn allow_paths(&self) -> &[PathBuf] {
        &self.allow_paths
    }

    /// Returns the files of secrets, by name.
    pub fn secret_files(&self) -> &BTreeMap<String, PathBuf> {
        &self.secret_files
    }

    /// Returns the declared secrets that `is_set` rejects: a run must not begin without these.
    pub fn missing_secrets(&self, is_set: impl Fn(&str) -> bool) -> Vec<&str> {
        self.secrets.iter().map(String::as_str).filter(|name| !is_set(name)).collect()
    }

    /// Returns the labels of every run.
    #[must_use]
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// Returns the checkpoint settings.
    #[must_use]
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Returns the steps in the order of the file; there is at least one.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.body.steps
    }

    /// Returns all steps, with nested steps and hooks, in the order of the file.
    pub fn all_steps(&self) -> impl Iterator<Item = &Step> {
        self.body.all()
    }

    /// Returns the steps with their order.
    #[must_use]
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Returns the step with this id, also a nested step.
    #[must_use]
    pub fn step(&self, id: &str) -> Option<&Step> {
        let top = self.body.index.get(id).map(|index| &self.body.steps[*index]);
        top.or_else(|| self.all_steps().find(|step| step.id == id))
    }

    /// Returns the direct upstream steps of `step` in the workflow's own list. In a sequence, the previous
    /// step; in a graph, the needs.
    pub fn upstream<'w>(&'w self, step: &'w Step) -> impl Iterator<Item = &'w Step> {
        self.body.upstream(step)
    }

    /// Returns the environment variables that some step declares and another step reads from the caller's
    /// environment.
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

    /// Returns the id of a step spelled similarly to the unknown `id`.
    #[must_use]
    pub fn step_near(&self, id: &str) -> Option<String> {
        nearest(id, self.all_steps().map(|step| step.id.as_str()))
    }

    /// Returns the warnings of `check`, in the order of the file.
    #[must_use]
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Returns the warnings of `check` about the file and its included files.
    #[must_use]
    pub fn all_warnings(&self) -> Vec<Warning<'_>> {
        let own = self.warnings.iter().map(|warning| self.warning(Cow::Borrowed(warning)));
        own.chain(self.children().flat_map(Self::all_warnings)).collect()
    }

    /// Returns warnings about agents not in `known`, in the file and its included files.
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
        let source = SourceText::new(self.path.clone(), Arc::clone(&self.text));
        let mut problems = Problems::default();
        for Agent { name, place, .. } in agents {
            let help = format!(
                "configure the agent in `.waypost/config.yaml`: `agents: {{ {name}: [program, -p, \"${{{{ \
                 prompt }}}}\"] }}`; known: {}",
                listed(known.iter().copied())
            );
            let hint = nearest(name, known.iter().copied());
            let problem = source.problem(place, format!("agent `{name}` is not configured here"));
            problems.push(problem.help(help).hint(hint));
        }
        let (found, _) = problems.finish(&source);
        found.into_iter().map(|problem| self.warning(Cow::Owned(problem))).chain(below).collect()
    }

    /// Returns warnings at lines of the file.
    pub fn warn_at(&self, found: impl Iterator<Item = (usize, String)>, help: &str) -> Vec<Warning<'_>> {
        let source = SourceText::new(self.path.clone(), Arc::clone(&self.text));
        let mut problems = Problems::default();
        for (line, message) in found {
            let before =
                self.text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum::<usize>();
            let text = self.text[before..].lines().next().unwrap_or_default();
            let start = before + text.len() - text.trim_start().len();
            problems.push(source.problem(&(start..before + text.trim_end().len()), message).help(help));
        }
        let (found, _) = problems.finish(&source);
        found.into_iter().map(|problem| self.warning(Cow::Owned(problem))).collect()
    }

    /// Returns whether `step` of the top list is `until`, or a direct or indirect need of it.
    #[must_use]
    pub fn leads_to(&self, step: &str, until: &str) -> bool {
        let Some(until) = self.body.index.get(until) else { return false };
        let (mut open, mut seen) = (vec![*until], BTreeSet::new());
        while let Some(place) = open.pop() {
            if seen.insert(place) {
                open.extend(self.body.upstream(&self.body.steps[place]).map(|need| need.index));
            }
        }
        self.body.index.get(step).is_some_and(|place| seen.contains(place))
    }

    /// Returns the included files of the steps.
    fn children(&self) -> impl Iterator<Item = &Self> {
        self.of_file().filter_map(|step| step.work.child()).map(ChildWorkflow::workflow)
    }

    /// Returns all steps of this file, without included files.
    pub(super) fn of_file(&self) -> impl Iterator<Item = &Step> {
        self.body.of_file()
    }

    fn warning<'w>(&'w self, problem: Cow<'w, Problem>) -> Warning<'w> {
        Warning { file: &self.path, text: &self.text, problem }
    }

    /// Returns the readers of a step's outputs or standard output.
    pub fn readers_of(&self, id: &str) -> impl Iterator<Item = &Step> {
        self.all_steps().filter(move |step| step.references().any(|reference| {
            matches!(reference.path.as_slice(), [root, of, what, ..] if root == "steps" && of == id && matches!(what.as_str(), "outputs" | "stdout" | "items" | "items_file" | "total" | "succeeded" | "failed"))
        }))
    }

    /// Returns the readers of results of a step other than the given outputs, each with the name of a missing output; `None`
    /// for another result, such as the standard output.
    pub fn readers_of_missing<'s>(
        &'s self,
        id: &'s str,
        is_given: impl Fn(&str) -> bool + 's,
    ) -> impl Iterator<Item = (&'s Step, Option<String>)> {
        self.readers_of(id).filter_map(move |step| {
            let mut missing = step.references().filter_map(|reference| match reference.path.as_slice() {
                [root, of, what, rest @ ..] if root == "steps" && of == id => match (what.as_str(), rest) {
                    ("outputs", [name, ..]) if is_given(name) => None,
                    ("outputs", [name, ..]) => Some(Some(name.clone())),
                    ("outputs" | "stdout" | "items" | "items_file" | "total" | "succeeded" | "failed", _) => {
                        Some(None)
                    }
                    _ => None,
                },
                _ => None,
            });
            missing.next().map(|missing| (step, missing))
        })
    }

    /// Returns the readers of the outputs at `path`, which begins with a step id, or of anything below.
    pub(crate) fn readers_at(&self, path: &[String]) -> impl Iterator<Item = &Step> {
        self.all_steps().filter(move |step| {
            step.references().any(|reference| match &*reference.reach {
                [root, read @ ..] if root == "steps" => {
                    // All outputs of an included file are the outputs of its steps.
                    let is_around = |read: &[String]| {
                        read.get(1..).is_some_and(|read| read.iter().any(|part| part == "outputs"))
                    };
                    read.starts_with(path) || (path.starts_with(read) && is_around(read))
                }
                _ => false,
            })
        })
    }

    /// Returns whether a step reads something of `step` that `step` does not declare as an output from a
    /// file.
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

/// EdgeOrder in which steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In sequence, in the order of the file: no step has `needs`.
    Sequence,
    /// As soon as their needs are met.
    Graph,
}

/// One step with all settings, defaults included.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Step {
    /// Id; `step-N` by position if the file has none.
    pub id: String,
    /// Position in the file, from 0.
    pub index: usize,
    /// Display name.
    pub name: Option<String>,
    /// The id of the step in an earlier version of the file.
    pub renamed_from: Option<String>,
    /// First line in the file, from 1.
    pub line: usize,
    /// Work.
    pub work: Work,
    /// Ids in `needs`, each once.
    pub needs: Vec<String>,
    /// Hooks.
    pub hooks: Vec<Hook>,
    /// Loop.
    pub repeat: Option<Repeat>,
    /// Condition; without a condition the step runs if none of its needs was skipped.
    pub condition: Option<Condition>,
    /// Working folder, below the base folder.
    pub dir: Option<Template>,
    /// Shell for the command.
    pub shell: Shell,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
    /// Retry policy.
    pub retry: Retry,
    /// Outputs read from files, by name.
    pub outputs: Vec<(String, OutputSource)>,
    /// How standard output becomes `outputs.result`.
    pub capture: Option<Capture>,
    /// Standard input; empty if absent.
    pub stdin: Option<Template>,
    /// Failures that let the run continue.
    pub continue_on_error: Tolerance,
    /// Whether the step may run again after an interruption.
    pub idempotent: bool,
    /// Tags of the workers that may execute the step; empty for no demand.
    pub runs_on: Vec<String>,
    /// Cuts in a row before the step starts only alone.
    pub cuts_max: Option<u32>,
    /// Time from stop request to kill.
    pub grace: Duration,
    /// Command that undoes the step.
    pub undo: Option<Template>,
    /// Markdown for the report.
    pub report: Option<Template>,
    /// Evidence.
    pub evidence: Option<Arc<Evidence>>,
    /// Whether an expression reads the standard output; then the run keeps the text.
    pub keeps_stdout: bool,
    /// SHA-256 of the step's definition, in hex; unchanged by irrelevant edits.
    pub fingerprint: String,
    /// Digest of all that decides whether the step is skipped.
    pub admission: String,
    /// Digest without the inner steps, for a step with inner steps.
    pub frame: Option<String>,
    /// Digest of the part of the frame that counts for the children.
    pub inherited: Option<String>,
    /// SHA-256 of the list of items, for a `foreach` without a `key`.
    pub list: Option<String>,
    /// The id of a waiting step in the same list: the step runs the hooks of the wait, beside it.
    pub(crate) announces: Option<String>,
    /// `env` of the workflow, of `defaults` and of the step.
    pub(super) env: Arc<[Vec<(String, Template)>; 3]>,
}

impl Step {
    /// Returns whether the step was made for hooks of the run, and is not written in `steps`.
    #[must_use]
    pub fn is_for_hooks(&self) -> bool {
        matches!(self.hooks.as_slice(), [Hook { on: HookOn::Run, .. }])
    }

    /// Evaluates the `env` of the step: the workflow's, then that of `defaults`, then the step's own.
    ///
    /// Each layer may read the layers before.
    ///
    /// # Errors
    /// The expression that cannot be evaluated.
    pub fn resolve_env(&self, scope: &Scope) -> Result<BTreeMap<String, String>, ExprError> {
        self.resolve(scope, &self.env[..])
    }

    /// Evaluates the `env` for the step's `if`: the workflow's and that of `defaults`.
    ///
    /// The step's own `env` may read outputs of skipped steps, which `if` must check first.
    ///
    /// # Errors
    /// The expression that cannot be evaluated.
    pub fn resolve_shared_env(&self, scope: &Scope) -> Result<BTreeMap<String, String>, ExprError> {
        self.resolve(scope, &self.env[..2])
    }

    /// Returns the variables that the file sets for the step; later values replace earlier ones.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &Template)> {
        self.env.iter().flatten().map(|(name, value)| (name.as_str(), value))
    }

    /// Returns whether the file sets the variable for the step.
    pub(crate) fn sets_env(&self, name: &str) -> bool {
        self.variables().any(|(known, _)| known == name)
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

/// Program that runs a command, which is the last argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shell {
    /// `bash -euo pipefail -c` if there is a bash, else `sh -eu -c`; the run records the choice.
    Default,
    /// Program with arguments; never empty.
    Command(Vec<String>),
}

impl Shell {
    /// [`Shell::Default`] with a bash.
    pub const BASH: [&'static str; 4] = ["bash", "-euo", "pipefail", "-c"];
    /// [`Shell::Default`] without a bash.
    pub const SH: [&'static str; 3] = ["sh", "-eu", "-c"];

    /// Returns program and arguments; `has_bash` says whether there is a bash.
    #[must_use]
    pub fn command(&self, has_bash: bool) -> Vec<String> {
        let words: &[&str] = if has_bash { &Self::BASH } else { &Self::SH };
        match self {
            Self::Default => words.iter().map(|word| (*word).to_owned()).collect(),
            Self::Command(command) => command.clone(),
        }
    }
}

/// Retry policy of a failed step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Attempts after the first.
    pub max: u32,
    /// Delay before the second attempt.
    pub delay: Duration,
    /// Growth of the delay.
    pub backoff: Backoff,
    /// Longest delay.
    pub max_delay: Duration,
    /// Whether delays vary at random, so that many steps do not retry at the same moment.
    pub jitter: bool,
    /// Failures to retry; empty means any.
    pub when: Vec<RetryCause>,
}

impl Retry {
    /// No retry.
    pub const NONE: Self = Self {
        max: 0,
        delay: Duration::from_secs(1),
        backoff: Backoff::Exponential,
        max_delay: Duration::from_secs(60),
        jitter: true,
        when: Vec::new(),
    };

    /// Returns whether a failure of this kind is retried, if attempts are left.
    #[must_use]
    pub fn covers(&self, cause: RetryCause) -> bool {
        self.when.is_empty() || self.when.contains(&cause)
    }
}

/// Growth of the delay between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backoff {
    /// Always `delay`.
    Fixed,
    /// Longer by `delay` each time.
    Linear,
    /// Twice as long each time.
    Exponential,
}

/// Kind of failure for a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryCause {
    /// The attempt exceeded the `timeout`.
    Timeout,
    /// Exit with this code; 128 + N after signal N.
    Exit(u8),
    /// End by a signal.
    Signal,
    /// The evidence did not hold, or could not be checked.
    Evidence,
}

/// Failures of a step that let the run continue.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Tolerance {
    /// None.
    Nothing,
    /// All failures.
    Everything,
    /// Failures with one of these exit codes.
    ExitCodes(Vec<u8>),
}

impl Tolerance {
    /// Returns whether the run continues after this failure; `None` for a failure without an exit code.
    #[must_use]
    pub fn covers(&self, exit_code: Option<u8>) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::ExitCodes(codes) => exit_code.is_some_and(|code| codes.contains(&code)),
        }
    }
}

/// Source of an output.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OutputSource {
    /// File, below the base folder.
    pub from: Template,
    /// Path in a JSON file; `None` for the text of the file.
    pub json: Option<JsonPath>,
}
