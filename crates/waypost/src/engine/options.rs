//! What can be said before a session begins.

use std::fmt::Debug;

use serde_json::{Map, Value};

use super::{RunError, StopHandle};
use crate::id::StepId;
use crate::record::Definition;
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
    /// Starts over with this state, the user having said so.
    pub restart: Option<S>,
    /// Goes on from there and not from where it stood. What came after stays visible, abandoned.
    pub from: Option<ResumeFrom>,
    /// Changes the state of the main branch before anything runs.
    pub edit: Option<Edit<S>>,
    /// Looks at that state, edited or not; a refusal leaves the run as it is.
    pub validate: Option<Validate<S>>,
    /// Laid over the configuration of the run, map by map.
    pub config: Map<String, Value>,
    /// What to do about damaged records.
    pub on_damage: OnDamage<S>,
    /// What a person says became of steps that were cut and must not be repeated blindly.
    pub on_doubt: OnDoubt<S>,
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
            validate: None,
            config: Map::new(),
            on_damage: OnDamage::FallBack,
            on_doubt: OnDoubt::Ask,
            on_change: OnChange::Stop,
            on_unknown: OnUnknown::Stop,
            then: Then::GoOn,
        }
    }
}

/// Where a resume goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeFrom {
    /// This checkpoint of the main branch.
    Checkpoint(u64),
    /// Where this step was last about to run: it runs again, with the state of then.
    Step(StepId),
    /// The end: no step runs, and the run counts as completed.
    End,
    /// A step that no graph can have: refused.
    Unknown(String),
}

/// What to do about damaged records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnDamage<S> {
    /// Move them to quarantine and go on from the newest sound one; where none is sound, stop.
    #[default]
    FallBack,
    /// Stop, and change nothing.
    Stop,
    /// As [`FallBack`](Self::FallBack), but where none is sound, start over with this state.
    Restart(S),
}

/// What to do about a step that was cut and must not be repeated blindly.
#[derive(Debug, Default)]
pub enum OnDoubt<S> {
    /// Stop, and ask.
    #[default]
    Ask,
    /// It took effect: it is settled as completed, without outputs. Recorded as a person's decision.
    Done(SettleAsDone<S>),
    /// It did not, or may again: it runs again in a new epoch, so with another idempotency key.
    Retry,
}

impl<S: 'static> OnDoubt<S> {
    /// Makes it one about a state that holds this one.
    pub(crate) fn within<T: 'static>(self, get: fn(&mut T) -> &mut S) -> OnDoubt<T> {
        match self {
            Self::Ask => OnDoubt::Ask,
            Self::Retry => OnDoubt::Retry,
            Self::Done(settle) => {
                OnDoubt::Done(SettleAsDone(Box::new(move |state, step| (settle.0)(get(state), step))))
            }
        }
    }
}

/// Puts into a state that a step is done, or refuses with a reason.
pub struct SettleAsDone<S>(pub SettleAsDoneFn<S>);

/// What is in a [`SettleAsDone`].
pub type SettleAsDoneFn<S> = Box<dyn Fn(&mut S, &StepId) -> Result<(), String> + Send>;

impl<S> Debug for SettleAsDone<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SettleAsDone")
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

impl<S> Debug for Edit<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Edit")
    }
}

/// Looks at a state, and refuses it with a reason.
pub struct Validate<S>(pub ValidateFn<S>);

/// What is in a [`Validate`].
pub type ValidateFn<S> = Box<dyn FnOnce(&S) -> Result<(), String> + Send>;

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
    /// Finished steps that the change touches run again, with everything after them; otherwise it is refused.
    pub redo: bool,
}
