//! What can be said before a session begins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{RunError, StopHandle, unpanicked};
use crate::id::{BranchPath, StepId};
use crate::record::{Choice, Definition};
use crate::shape::Shape;

/// What to do when a checkpoint cannot be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnLostCheckpoint {
    /// Stop at once: no work is done that could be lost.
    #[default]
    Fail,
    /// Warn, mark the run, and write it together with the next one.
    Tolerate,
}

/// Settings of one session of a run.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Through which a stop is asked for.
    pub stop: StopHandle,
    /// What to do when a checkpoint cannot be written.
    pub on_lost_checkpoint: OnLostCheckpoint,
    /// Start nothing that this step does not need, and stop after it.
    pub until: Option<StepId>,
    /// Trim states after each batch to this many.
    pub retention: Option<u32>,
    /// Where to hold the run, for a resume to go on.
    pub interrupts: Interrupts,
    /// How many steps a branch may start in all, crashes and resumes included; the step beyond fails. A guard against
    /// loops that do not end.
    pub step_limit: Option<u64>,
    /// How many steps may be at work at once on all branches together. Each branch and each fan-out has a limit of its own
    /// beside it.
    pub parallel_max: Option<NonZeroUsize>,
    /// One failure keeps all steps from starting that have not, on all graphs: see
    /// [`Shape::failing_fast`](crate::shape::Shape::failing_fast).
    pub fail_fast: bool,
    /// How often a step that runs long writes a checkpoint meanwhile; never if not said.
    pub interval: Option<Duration>,
}

impl SessionOptions {
    /// Makes sure that the graph has the steps that are named here.
    pub(super) fn check_steps(&self, shape: &Shape) -> Result<(), RunError> {
        let held = self.interrupts.before.iter().chain(&self.interrupts.after);
        let mut held = held.filter(|step| !shape.has_anywhere(step));
        let until = self.until.iter().find(|step| shape.place(step.as_str()).is_none());
        held.next().or(until).map_or(Ok(()), |step| Err(RunError::InvalidStep(step.clone())))
    }
}

/// Steps before or after which a run is held: it is checkpointed, its session ends, and a resume goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// Before the first attempt of these, on whatever branch.
    pub before: Vec<StepId>,
    /// After these have completed.
    pub after: Vec<StepId>,
}

/// How a resume goes on.
#[derive(Debug)]
pub struct ResumeOptions<S> {
    /// As for a first session.
    pub session: SessionOptions,
    /// Goes on with the program's own graph although the run was made with another, whose shape is known.
    pub adopt: Option<Adoption>,
    /// Starts over with this state, the user having said so; the configuration in force stays.
    pub restart: Option<S>,
    /// Goes on from there and not from where it stood. What came after stays visible, abandoned.
    pub from: Option<ResumeFrom>,
    /// Changes the state of the main branch before anything runs.
    pub edit: Option<Edit<S>>,
    /// Changes the states of other branches before anything runs, in this order: of those that a step waits for, ended or
    /// not.
    pub edit_branches: Vec<(BranchPath, EditBranch<S>)>,
    /// Looks at that state, edited or not; a refusal leaves the run as it is.
    pub validate: Option<Validate<S>>,
    /// Laid over the configuration of the run, map by map. What changes is written down, also where nothing is left to do.
    pub config: Map<String, Value>,
    /// What to do about damaged records.
    pub on_damage: OnDamage<S>,
    /// What a person says became of steps that were cut and must not be repeated blindly.
    pub on_doubt: OnDoubt<S>,
    /// Choices of a person about unfinished steps of the main branch: each step is settled in turn, without an execution.
    pub choices: BTreeMap<StepId, Choice>,
    /// The name of the person who asks, for the causes on record.
    pub by: Option<String>,
    /// What to do where the graph is not that of the run.
    pub on_change: OnChange,
    /// What to do where the evidence of a finished step cannot be checked.
    pub on_unknown: OnUnknown,
    /// Whether steps run.
    pub then: Then,
}

impl<S> Default for ResumeOptions<S> {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            adopt: None,
            restart: None,
            from: None,
            edit: None,
            edit_branches: Vec::new(),
            validate: None,
            config: Map::new(),
            on_damage: OnDamage::FallBack,
            on_doubt: OnDoubt::Ask,
            choices: BTreeMap::new(),
            by: None,
            on_change: OnChange::Stop,
            on_unknown: OnUnknown::Stop,
            then: Then::GoOn,
        }
    }
}

/// Where a resume goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeFrom {
    /// This checkpoint of the main branch. Branches that were not joined by then are opened anew, unless they are under
    /// way at the newest checkpoint too, the state is not edited, and the run is to go on.
    Checkpoint(u64),
    /// Where this step was last about to run: it runs again, with the state of then. One whose branches are named after
    /// itself opens them again.
    Step(StepId),
    /// Where this step of another branch was last about to run, one that waits to be joined or has been: it runs again, with
    /// what comes after it there, the join, and what comes after that. Other branches stay as they ended.
    StepOn(BranchPath, StepId),
    /// Where the branches stand that are changed by hand ([`ResumeOptions::edit_branches`]), also where the steps that
    /// waited for them have joined them: those join again what comes of it, and what comes after that runs again. A branch
    /// that is not there any more by then, as one above it has gone further back for another of them, is not changed.
    Branches,
    /// The end: no step runs, and the run counts as completed.
    End,
    /// A step that no graph can have: refused.
    Unknown(String),
}

/// What to do about damaged records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnDamage<S> {
    /// Reopened them to quarantine and go on from the newest sound one; where none is sound, stop.
    #[default]
    FallBack,
    /// Stop, and change nothing.
    Stop,
    /// As [`FallBack`](Self::FallBack), but where none is sound, start over with this state.
    Restart(S),
}

/// What to do about a step that was cut and must not be repeated blindly, on whatever branch.
#[derive(Debug, Default)]
pub enum OnDoubt<S> {
    /// Stop, and ask.
    #[default]
    Ask,
    /// Each is treated as a function says that has the state of its branch.
    Settle(Settle<S>),
    /// Each took effect: it is settled as the program does it ([`Program::settle_as_done`](super::Program::settle_as_done)).
    Done,
    /// It did not take effect, or may again: it runs again in a new epoch, so with another idempotency key.
    Retry,
}

/// A step in doubt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Doubtful {
    /// The branch that it stands on.
    pub branch: BranchPath,
    /// The step.
    pub step: StepId,
    /// It was done, and is in doubt since something that it needs was done again: the state has what it gave.
    pub was_done: bool,
}

/// What a person says became of a step in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TreatAs {
    /// It took effect: it is settled as completed, without outputs. Recorded as a person's decision.
    Done,
    /// It did not, or may again: it runs again in a new epoch, so with another idempotency key.
    Retry,
}

/// Says what became of a step in doubt: puts into the state of its branch what the step would have, or says that it runs
/// again, or refuses with a reason.
pub struct Settle<S>(pub SettleFn<S>);

/// What is in a [`Settle`].
pub type SettleFn<S> = Box<dyn Fn(&mut S, &Doubtful) -> Result<TreatAs, String> + Send + Sync>;

impl<S> Settle<S> {
    /// Settles a step in doubt in the state of its branch.
    ///
    /// # Errors
    /// The refusal, or the message of a panic. The caller drops the state then.
    pub(super) fn settle(&self, state: &mut S, doubtful: &Doubtful) -> Result<TreatAs, String> {
        let settled = unpanicked(|| (self.0)(state, doubtful));
        settled.unwrap_or_else(|panic| Err(format!("the function that settles it panicked: {panic}")))
    }
}

impl<S> Debug for Settle<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Settle")
    }
}

/// What to do where the evidence of a finished step cannot be checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// Stop, and say so.
    #[default]
    Stop,
    /// Take it as failed: the step runs again.
    RunAgain,
}

/// What to do where the program's graph is not that of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnChange {
    /// Stop, and say what changed.
    #[default]
    Stop,
    /// Go on with the program's graph, as long as it has the steps that the run stands at.
    Adopt,
}

/// Whether steps run after a resume has written its record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Then {
    /// They do.
    #[default]
    GoOn,
    /// Only the record is written, and the lease given back.
    Stop,
}

/// Changes a state.
pub struct Edit<S>(pub Box<dyn FnOnce(&mut S) + Send>);

impl<S> Edit<S> {
    /// Changes the state of the checkpoint `at`.
    ///
    /// # Errors
    /// [`RunError::Rejected`]: the edit panicked. The caller drops the state then.
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

/// Changes the state of a branch, or refuses with a reason.
pub struct EditBranch<S> {
    /// Changes it.
    pub edit: EditBranchFn<S>,
    /// Steps that read what is changed: of these, finished ones are done again, with what comes after them. Only where the
    /// state keeps apart what each step gave ([`Program::keeps_apart`](super::Program::keeps_apart)); else nothing is.
    pub again: Vec<StepId>,
}

/// What is in an [`EditBranch`].
pub type EditBranchFn<S> = Box<dyn FnOnce(&mut S) -> Result<(), String> + Send>;

impl<S> EditBranch<S> {
    /// Changes the state of a branch.
    ///
    /// # Errors
    /// The refusal, or the message of a panic. The caller drops the state then.
    pub(super) fn apply(self, state: &mut S) -> Result<(), String> {
        unpanicked(|| (self.edit)(state)).unwrap_or_else(|panic| Err(format!("the edit panicked: {panic}")))
    }
}

impl<S> Debug for EditBranch<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EditBranch")
    }
}

/// Looks at a state, and refuses it with a reason.
pub struct Validate<S>(pub ValidateFn<S>);

/// What is in a [`Validate`].
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

/// A changed definition to go on with.
#[derive(Debug, Clone)]
pub struct Adoption {
    /// The shape of the definition in force so far.
    pub before: Shape,
    /// The new definition; it must be that of the program's shape.
    pub definition: Definition,
    /// Changed finished steps run again, with all steps downstream, except for kept steps. Otherwise the change is refused.
    pub redo: bool,
    /// Finished steps with results to keep: changed steps, and steps downstream of added steps.
    pub kept: BTreeSet<StepId>,
    /// Changed finished steps of child branches to rerun, with all steps downstream.
    pub rerun: Vec<(BranchPath, StepId)>,
    /// Openers whose branches stay, although steps of the branches changed: [`changed_within`](super::changed_within()).
    pub within: BTreeSet<StepId>,
}

/// Lays one map over another, maps in them likewise; anything else replaces what was there.
pub(super) fn merge(config: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (config.get_mut(&key), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (_, value) => drop(config.insert(key, value)),
        }
    }
}
