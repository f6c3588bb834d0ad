//! Options of a session.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::engine::{RunError, StopHandle, unpanicked};
use crate::id::{ScopePath, StepId};
use crate::plan::Decision;
use crate::plan::shape::Shape;
use crate::record::{Choice, Definition, RerunRequest};
use crate::store::Lease;

/// The reaction to a checkpoint that cannot be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnLostCheckpoint {
    /// Stop at once, so that no work is lost.
    #[default]
    Fail,
    /// Warn, mark the run, and write the checkpoint together with the next checkpoint.
    Tolerate,
}

/// Settings of a session.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// The handle for stop requests.
    pub stop: StopHandle,
    /// The reaction to a checkpoint that cannot be written.
    pub on_lost_checkpoint: OnLostCheckpoint,
    /// Start only the needs of this step and the step, and stop afterwards.
    pub until: Option<StepId>,
    /// Keep this many states, trimmed after batches.
    pub retention: Option<u32>,
    /// The steps before or after which the run is held.
    pub interrupts: Interrupts,
    /// The limit of started steps in a scope, crashes and resumes included; a step above the limit fails. Guards
    /// against endless loops.
    pub step_limit: Option<u64>,
    /// The limit of running steps in all scopes together, in addition to the limits per scope and fan-out.
    pub parallel_max: Option<NonZeroUsize>,
    /// A failure stops new starts on all graphs: see [`Shape::failing_fast`](crate::plan::shape::Shape::failing_fast).
    pub fail_fast: bool,
    /// The interval of checkpoints within a running step; `None` for no such checkpoints.
    pub interval: Option<Duration>,
}

impl SessionOptions {
    /// Checks that the graph has the named steps.
    pub(super) fn check_steps(&self, shape: &Shape) -> Result<(), RunError> {
        let held = self.interrupts.before.iter().chain(&self.interrupts.after);
        let mut held = held.filter(|step| !shape.has_anywhere(step));
        let until = self.until.iter().find(|step| shape.place(step.as_str()).is_none());
        held.next().or(until).map_or(Ok(()), |step| Err(RunError::InvalidStep(step.clone())))
    }
}

/// Steps before or after which a run is held: a checkpoint is written, the session ends, and a resume continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// Before the first attempt of these steps, in any scope.
    pub before: Vec<StepId>,
    /// After the completion of these steps.
    pub after: Vec<StepId>,
}

/// The options of a resume.
#[derive(Debug)]
pub struct ResumeOptions<S> {
    /// The options of the session.
    pub session: SessionOptions,
    /// The lease of a claim, instead of a new lease. The claim of a queued or waiting run is no resume: its evidence is not
    /// checked, and no retry budget is reset.
    pub claimed: Option<Lease>,
    /// Adopts the program's graph, although the run has another graph with a known shape.
    pub adopt: Option<Adoption>,
    /// Restarts the run with this state, by decision of the user. The configuration in force stays.
    pub restart: Option<S>,
    /// The start point, instead of the current position. Later records stay visible, abandoned.
    pub from: Option<ResumeFrom>,
    /// Edits the state of the main scope before anything runs.
    pub edit: Option<Edit<S>>,
    /// Edits the states of unjoined scopes, open or ended, before anything runs, in this order.
    pub edit_scopes: Vec<(ScopePath, EditScope<S>)>,
    /// Validates the state, edited or not; an error leaves the run unchanged.
    pub validate: Option<Validate<S>>,
    /// Merged into the configuration of the run, map by map. A change is recorded even if no step is left to run.
    pub config: Map<String, Value>,
    /// The reaction to damaged records.
    pub on_damage: OnDamage<S>,
    /// The decision of a person about interrupted non-idempotent steps.
    pub on_doubt: OnDoubt<S>,
    /// Choices of a person about unfinished steps of the main scope: each step is settled at its turn, without
    /// an execution.
    pub choices: BTreeMap<StepId, Choice>,
    /// The name of the person who asks, for the causes on record.
    pub by: Option<String>,
    /// The reaction to a graph that differs from the graph of the run.
    pub on_change: OnChange,
    /// The reaction to evidence of a finished step that cannot be checked.
    pub on_unknown: OnUnknown,
    /// Retries the tolerated failures of steps in force, in every scope. Downstream results are reused if the
    /// input of their step is equal.
    pub retry_tolerated: bool,
    /// Whether steps run.
    pub then: Then,
}

impl<S> Default for ResumeOptions<S> {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            claimed: None,
            adopt: None,
            restart: None,
            from: None,
            edit: None,
            edit_scopes: Vec::new(),
            validate: None,
            config: Map::new(),
            on_damage: OnDamage::FallBack,
            on_doubt: OnDoubt::Ask,
            choices: BTreeMap::new(),
            by: None,
            on_change: OnChange::Stop,
            on_unknown: OnUnknown::Stop,
            retry_tolerated: false,
            then: Then::GoOn,
        }
    }
}

impl<S> ResumeOptions<S> {
    /// Returns the steps with a choice of a person.
    pub(super) fn chosen_steps(&self) -> BTreeSet<(ScopePath, StepId)> {
        let on_main = self.choices.keys().map(|step| (ScopePath::main(), step.clone()));
        let below = self.edit_scopes.iter();
        let below =
            below.flat_map(|(scope, edit)| edit.choices.keys().map(|step| (scope.clone(), step.clone())));
        on_main.chain(below).collect()
    }
}

/// The start point of a resume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeFrom {
    /// This checkpoint of the main scope. Unjoined scopes restart, unless these are open at the newest
    /// checkpoint too, the state is not edited, and the run continues at once.
    Checkpoint(u64),
    /// The last start of this step: the step reruns with its original input state. A step that names its scopes
    /// opens these again.
    Step(StepId),
    /// The last start of this step in another scope, joined or not. The step, its downstream steps on the
    /// scope, the join, and the steps downstream of the join rerun. Other scopes keep their ends.
    StepOn(ScopePath, StepId),
    /// The scopes in [`ResumeOptions::edit_scopes`], even if already joined: the join and its downstream
    /// steps run again. An edit is dropped if a rollback for another edit abandons its scope.
    Scopes,
    /// The end: no step runs, and the run counts as completed.
    End,
    /// An invalid step id: refused.
    Unknown(String),
}

/// The reaction to damaged records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnDamage<S> {
    /// Quarantine these and continue from the newest sound record; stop without a sound record.
    #[default]
    FallBack,
    /// Stop, and change nothing.
    Stop,
    /// As [`FallBack`](Self::FallBack), but restart with this state if there is no sound record.
    Restart(S),
}

/// The reaction to an interrupted non-idempotent step, in any scope.
#[derive(Debug, Default)]
pub enum OnDoubt<S> {
    /// Stop, and ask a person.
    #[default]
    Ask,
    /// Call a function for each step, with the state of the scope.
    Settle(Settle<S>),
    /// The steps took effect: the program settles each
    /// ([`Program::settle_as_done`](crate::engine::Program::settle_as_done)).
    Done,
    /// The steps had no effect, or may have a second effect: each reruns in a new epoch, with a new idempotency
    /// key.
    Retry,
    /// Each step has its own decision.
    Each(Answers),
}

impl<S> OnDoubt<S> {
    /// Returns the questions without a decision.
    pub(super) fn unanswered(&self, questions: &[Decision]) -> Vec<Decision> {
        let answers = self.answers();
        let is_open = |asked: &&Decision| answers.about(&asked.scope, &asked.step).is_none();
        match self {
            Self::Settle(_) => Vec::new(),
            _ => questions.iter().filter(is_open).cloned().collect(),
        }
    }

    /// Returns the decisions that need no function.
    pub(super) fn answers(&self) -> Answers {
        let rest = |treat_as| Answers { rest: Some(treat_as), ..Answers::default() };
        match self {
            Self::Ask | Self::Settle(_) => Answers::default(),
            Self::Done => rest(TreatAs::Done),
            Self::Retry => rest(TreatAs::Retry),
            Self::Each(answers) => answers.clone(),
        }
    }
}

/// The decisions of a person about steps in doubt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// The decisions about named steps.
    pub named: BTreeMap<(ScopePath, StepId), TreatAs>,
    /// Steps that another process still executes, or has executed with a result: the attempt of this session adopts each, and
    /// nothing is asked. If there are any, other steps that were cut stay in doubt meanwhile: the session ends with the
    /// questions about these.
    pub continuing: BTreeSet<(ScopePath, StepId)>,
    /// The decision about all other steps; `None` asks.
    pub rest: Option<TreatAs>,
    /// Each question is kept until the turn of its step, and answered there.
    pub(super) in_turn: bool,
    /// The answers to the first questions of this resume are on record.
    pub(super) recorded: bool,
}

impl Answers {
    /// Returns the decision about a step.
    #[must_use]
    pub fn about(&self, scope: &ScopePath, step: &StepId) -> Option<TreatAs> {
        self.named.get(&(scope.clone(), step.clone())).copied().or(self.rest)
    }

    /// Removes the questions about steps that continue elsewhere, and those that come after these.
    pub(super) fn remove_continuing(&self, questions: &mut Vec<Decision>) {
        let is_later =
            |scope: &ScopePath, step: &StepId| self.continues(scope, step) || self.holds(scope, step);
        questions.retain(|asked| !asked.cause.is_of_one_try() || !is_later(&asked.scope, &asked.step));
    }

    /// Returns whether a step that was cut stays in doubt while other steps continue elsewhere.
    pub(super) fn holds(&self, scope: &ScopePath, step: &StepId) -> bool {
        !self.continuing.is_empty() && !self.continues(scope, step) && self.about(scope, step).is_none()
    }

    /// Returns whether a step continues elsewhere.
    pub(super) fn continues(&self, scope: &ScopePath, step: &StepId) -> bool {
        self.continuing.contains(&(scope.clone(), step.clone()))
    }

    /// Returns whether the step reruns without a question.
    pub(super) fn retries(&self, scope: &ScopePath, step: &StepId) -> bool {
        self.about(scope, step) == Some(TreatAs::Retry)
    }

    /// Returns whether the step reruns without a question, now and not at its turn.
    pub(super) fn retries_at_once(&self, scope: &ScopePath, step: &StepId) -> bool {
        let is_given = !self.in_turn || self.named.contains_key(&(scope.clone(), step.clone()));
        is_given && self.retries(scope, step)
    }

    /// Returns whether all steps rerun without a question.
    pub(super) fn retries_all(&self) -> bool {
        let is_retry = |treat_as: &TreatAs| *treat_as == TreatAs::Retry;
        !self.in_turn && self.rest.as_ref().is_some_and(is_retry) && self.named.values().all(is_retry)
    }
}

/// A step in doubt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Doubtful {
    /// The scope of the step.
    pub scope: ScopePath,
    /// The step.
    pub step: StepId,
    /// True if the step was done, and is in doubt because an upstream step reran: the state has its outputs.
    pub was_done: bool,
}

/// The decision of a person about a step in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TreatAs {
    /// The step took effect: it is settled as completed, without outputs, and recorded as a person's decision.
    Done,
    /// The step had no effect, or may have a second effect: it reruns in a new epoch, with a new idempotency key.
    Retry,
}

/// Decides about a step in doubt: puts the output of the step into the state of its scope, or requests a rerun,
/// or refuses with a reason.
pub struct Settle<S>(pub SettleFn<S>);

/// The function of a [`Settle`].
pub type SettleFn<S> = Box<dyn Fn(&mut S, &Doubtful) -> Result<TreatAs, String> + Send + Sync>;

impl<S> Settle<S> {
    /// Settles a step in doubt in the state of its scope.
    ///
    /// # Errors
    /// The refusal, or the message of a panic. The caller then drops the state.
    pub(super) fn settle(&self, state: &mut S, doubtful: &Doubtful) -> Result<TreatAs, String> {
        let settled = unpanicked(|| (self.0)(state, doubtful));
        settled.unwrap_or_else(|panic| Err(format!("the settling function panicked: {panic}")))
    }
}

impl<S> Debug for Settle<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settle")
    }
}

/// The reaction to evidence of a finished step that cannot be checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// Stop with an error.
    #[default]
    Stop,
    /// Treat the evidence as failed: the step reruns.
    RunAgain,
}

/// The reaction to a program graph that differs from the graph of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChange {
    /// Stop, and list the changes.
    #[default]
    Stop,
    /// Adopt the program's graph, if the graph has the steps of the frontier.
    Adopt,
}

/// Whether steps run after a resume has written its records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Then {
    /// Steps run.
    #[default]
    GoOn,
    /// Only the records are written, and the lease is released.
    Stop,
}

/// A state edit.
pub struct Edit<S>(pub Box<dyn FnOnce(&mut S) + Send>);

impl<S> Edit<S> {
    /// Edits the state of the checkpoint `at`.
    ///
    /// # Errors
    /// [`RunError::Rejected`]: the edit panicked. The caller then drops the state.
    pub(super) fn apply(self, state: &mut S, at: impl FnOnce() -> String) -> Result<(), RunError> {
        unpanicked(|| (self.0)(state))
            .map_err(|panic| RunError::Rejected { at: at(), why: format!("the edit panicked: {panic}") })
    }
}

impl<S> Debug for Edit<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Edit")
    }
}

/// An edit of a scope's state; may refuse with a reason.
pub struct EditScope<S> {
    /// The edit.
    pub edit: EditScopeFn<S>,
    /// The value that the edit puts in the place of the scope's item, also after a later rerun of the opener.
    pub item: Option<Value>,
    /// Steps that read the edited values: finished steps among these rerun, with all downstream steps. Only for a
    /// state with separate outputs ([`Program::keeps_apart`](crate::engine::Program::keeps_apart)).
    pub again: Vec<StepId>,
    /// Choices of a person about unfinished steps of the scope: each step is settled at its turn, without an
    /// execution.
    pub choices: BTreeMap<StepId, Choice>,
}

/// The function of an [`EditScope`].
pub type EditScopeFn<S> = Box<dyn FnOnce(&mut S) -> Result<(), String> + Send>;

impl<S> EditScope<S> {
    /// Continues a scope without an edit.
    pub(super) fn retry() -> Self {
        Self { edit: Box::new(|_| Ok(())), item: None, again: Vec::new(), choices: BTreeMap::new() }
    }

    /// Returns whether the edit replaces the item or has choices.
    pub(super) fn decides(&self) -> bool {
        self.item.is_some() || !self.choices.is_empty()
    }

    /// Edits the state of a scope.
    ///
    /// # Errors
    /// The refusal, or the message of a panic. The caller then drops the state.
    pub(super) fn apply(self, state: &mut S) -> Result<(), String> {
        unpanicked(|| (self.edit)(state)).unwrap_or_else(|panic| Err(format!("the edit panicked: {panic}")))
    }
}

impl<S> Debug for EditScope<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EditScope")
    }
}

/// A validation of a state; may refuse with a reason.
pub struct Validate<S>(pub ValidateFn<S>);

/// The function of a [`Validate`].
pub type ValidateFn<S> = Box<dyn FnOnce(&S) -> Result<(), String> + Send>;

impl<S> Validate<S> {
    /// Checks the state of the checkpoint `at`.
    ///
    /// # Errors
    /// [`RunError::Rejected`]: the check refused the state, or panicked.
    pub(super) fn check(self, state: &S, at: impl FnOnce() -> String) -> Result<(), RunError> {
        let checked = unpanicked(|| (self.0)(state));
        let checked =
            checked.unwrap_or_else(|panic| Err(format!("the check of the state panicked: {panic}")));
        checked.map_err(|why| RunError::Rejected { at: at(), why })
    }
}

impl<S> Debug for Validate<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Validate")
    }
}

/// A changed definition to adopt.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The shape of the definition in force, [as careful as](Shape::as_careful_as) the new one: a step that
    /// either definition declares non-idempotent is not repeated unasked.
    pub before: Shape,
    /// The new definition; must match the program's shape.
    pub definition: Definition,
    /// Reruns changed finished steps with all downstream steps, except for kept steps. Without this flag, such
    /// changes are refused.
    pub redo: bool,
    /// Finished steps with results to keep: changed steps, and steps downstream of added steps.
    pub kept: BTreeSet<StepId>,
    /// Changed finished steps, new steps and openers with another list of items, of child scopes.
    pub rerun: Vec<RerunRequest>,
    /// Openers with scopes to keep, although steps of the scopes changed:
    /// [`changed_within`](crate::engine::changed_within()).
    pub within: BTreeSet<StepId>,
    /// Openers whose scopes are entered again: the list of items changed, or finished scopes have new steps.
    pub entered: BTreeSet<StepId>,
}

/// The options of a fork or an import.
#[derive(Debug)]
pub struct StartOptions<S> {
    /// The options of the first session.
    pub session: SessionOptions,
    /// Edits the state before anything runs.
    pub edit: Option<Edit<S>>,
    /// The reaction to a program that differs from the program of the checkpoint.
    pub on_change: OnChange,
    /// Adopts the program's definition: changed steps rerun, with all downstream steps. Without it, the new run
    /// keeps the unfinished steps of the checkpoint.
    pub adoption: Option<Adoption>,
    /// Whether the evidence of finished steps is checked.
    pub evidence: OriginEvidence,
    /// The step to rerun and its scope, with all downstream steps. A step of the main scope for an import.
    pub from: Option<(ScopePath, StepId)>,
}

/// Whether a fork or an import checks the evidence of finished steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OriginEvidence {
    /// Checks the evidence, and refuses to begin unless all of it holds.
    #[default]
    Checked,
    /// Drops the evidence, by decision of a person: never checked.
    Left,
}

impl<S> Default for StartOptions<S> {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            edit: None,
            on_change: OnChange::Stop,
            adoption: None,
            evidence: OriginEvidence::Checked,
            from: None,
        }
    }
}

/// Merges a map into another map, nested maps included. Other values are replaced.
pub(super) fn merge(config: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (config.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (_, value) => drop(config.insert(key, value)),
        }
    }
}
