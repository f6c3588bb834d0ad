//! What the engine runs: a program, as the engine sees it.

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::{Attempt, Item, Joined};
use crate::id::{BranchPath, StepId};
use crate::record::{Claim, Ending, Failure, Flaw, Note, Pack, Phase, SkipCause, Try, Usage};
use crate::schema::SchemaError;
use crate::shape::{Shape, Step};
use crate::store::Lease;

/// A step with its branch and shape: the subject of a call to a program.
#[derive(Debug, Clone, Copy)]
pub struct StepRef<'a> {
    /// The branch it runs on.
    pub branch: &'a BranchPath,
    /// The number of its shape, [`Shape::level`].
    pub level: usize,
    /// Its place in the shape.
    pub place: usize,
    /// The step.
    pub step: &'a Step,
}

/// What the engine runs: the meaning of the steps of a shape over a state.
///
/// No method has a default body: each program chooses its own meaning of a resume, a rerun and a person's decision.
///
/// All but `perform` are quick and touch nothing outside the state; `perform` does the work. Between `prepare` and
/// `apply` the state may change by other steps in flight. A branch has a state of its own, and states of branches of
/// different shapes may differ in kind.
#[async_trait]
pub trait Program: Send + Sync {
    /// The state of a branch.
    type State: Send + Sync;
    /// What a step needs of the state to run.
    type Job: Send;
    /// What a step gives to the state.
    type Output: Send;

    /// Returns the shape of the main branch.
    fn shape(&self) -> &Shape;

    /// Returns the schema version of the states of a shape.
    fn schema(&self, level: usize) -> u32;

    /// Writes a state as JSON behind what is in `bytes`.
    ///
    /// # Errors
    /// [`Flaw`] names the field that JSON would change or cannot hold.
    fn encode(&self, level: usize, state: &Self::State, bytes: &mut Vec<u8>) -> Result<(), Flaw>;

    /// Reads a state that was written with that schema version. Runs nothing of the state's own.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn decode(&self, level: usize, bytes: &[u8], schema: u32) -> Result<Self::State, StateError>;

    /// Decides whether a step whose needs have ended runs or is skipped. ResumeQuery once; the answer is recorded. A step that
    /// failed is decided again when a resume retries it.
    ///
    /// # Errors
    /// A failure of the step.
    fn admit(
        &self,
        spot: StepRef<'_>,
        state: &Self::State,
        upstream: Upstream<'_>,
    ) -> Result<Admission, Failure>;

    /// Names the children that a step opens, in order, with what each is about. ResumeQuery once; the answer is frozen.
    /// Not asked where the shape names them, or the step finds them out by its work.
    ///
    /// # Errors
    /// A failure of the step.
    fn open(&self, spot: StepRef<'_>, state: &Self::State) -> Result<Vec<Item>, Failure>;

    /// Makes the state that a child begins with from that of the branch that opens it.
    ///
    /// # Errors
    /// A failure of the step that opens it.
    fn child(&self, spot: StepRef<'_>, state: &Self::State, item: &Item) -> Result<Self::State, Failure>;

    /// Gives the state of a child that was read back what it has from that of the branch that opened it, and does not keep
    /// itself.
    fn attach(&self, spot: StepRef<'_>, state: &Self::State, child: &mut Self::State);

    /// Takes out of a state what a finished step left there, which is to run again as the definition has changed: the state
    /// is from after it. What is not taken out, the step finds when it runs.
    fn forget(&self, spot: StepRef<'_>, state: &mut Self::State);

    /// Takes the failure of a step out of the state: the step is retried.
    fn forget_failure(&self, spot: StepRef<'_>, state: &mut Self::State);

    /// As [`forget`](Self::forget), of a step that is to join the branches of its last pass again.
    fn forget_join(&self, spot: StepRef<'_>, state: &mut Self::State);

    /// Leaves in a state of what a step left there what it had left by an earlier one of its branch, `then`: its last pass
    /// is done again, or was, and has come out as before.
    fn restore(&self, spot: StepRef<'_>, state: &mut Self::State, then: &Self::State);

    /// Hides in what was found of a claim what nobody may keep or show.
    fn redact(&self, claim: &mut Claim);

    /// Masks secrets in an answer or signal before the record.
    fn redact_answer(&self, value: &mut Value);

    /// Says whether the state keeps what each step gave apart, so that [`forget`](Self::forget) leaves it as if the step had
    /// never run. Then a step that a person wants to be done again takes with it only those that come after it; otherwise
    /// the whole branch goes back to the state that the step was given.
    fn keeps_apart(&self) -> bool;

    /// Returns what a finished step has given to the state, where the state tells that of each step: it is compared when the
    /// step was done again, and steps after it are used again where it is the same. ResumeQuery only of graphs by needs.
    fn gave(&self, spot: StepRef<'_>, state: &Self::State) -> Option<Value>;

    /// Returns the steps whose outputs a step reads, needed or not: it depends on them. ResumeQuery only of graphs by needs.
    fn reads(&self, spot: StepRef<'_>) -> Vec<StepId>;

    /// Takes from the state what the step needs. A step that has opened children is given what became of them.
    ///
    /// # Errors
    /// A failure of the step, such as an expression that cannot be evaluated.
    fn prepare(
        &self,
        spot: StepRef<'_>,
        state: &Self::State,
        joined: Option<Joined>,
    ) -> Result<Self::Job, Failure>;

    /// Does the work. Its start is recorded before; it must heed [`Attempt::stopped`]. Dropping it must end all that
    /// it started.
    async fn perform(&self, job: Self::Job, attempt: Attempt) -> Performed<Self::Output>;

    /// Makes what undoes a finished step, for [`perform`](Self::perform), from the newest state of its branch; none where it
    /// cannot be undone. `at` is the try that finished it.
    ///
    /// # Errors
    /// A failure, such as an expression that cannot be evaluated.
    fn undo(&self, spot: StepRef<'_>, at: &Try, state: &Self::State) -> Result<Option<Self::Job>, Failure>;

    /// Names the subjects of the evidence that a step will make, as far as the state that it is given tells: what it is
    /// about to write, or was when it was cut.
    fn subjects(&self, spot: StepRef<'_>, state: &Self::State) -> Vec<String>;

    /// Says by what a step can be seen to be done that was cut and must not be repeated blindly, and what it gave, read
    /// anew, or as it was recorded before its evidence was asked. None where that cannot be told without having seen its end:
    /// then a person decides.
    async fn salvage(
        &self,
        spot: StepRef<'_>,
        state: &Self::State,
        exited: Option<&Exited>,
    ) -> Option<Salvage<Self::Output>>;

    /// Puts into the state that a step in doubt is done, as a person says who has not seen what it gave; says what comes
    /// after it, and how it ended by the record: completed, or with a failure that is tolerated.
    ///
    /// # Errors
    /// Why that cannot be: nothing is changed then.
    fn settle_as_done(
        &self,
        spot: StepRef<'_>,
        state: &mut Self::State,
        outputs: KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String>;

    /// Returns the way on from a step whose effect is in the state already, where the shape alone does not decide it.
    ///
    /// # Errors
    /// The reason why the state does not tell.
    fn follow(&self, spot: StepRef<'_>, state: &Self::State) -> Result<Follow, String>;

    /// Says what is to be done about a failure.
    fn on_failure(&self, spot: StepRef<'_>, failure: &Failure) -> OnFailure;

    /// Changes the state by what became of a step, and says which of its routes is taken. ResumeQuery once; the answer is
    /// recorded.
    ///
    /// # Errors
    /// A failure of the step; the state is as it was.
    fn apply(
        &self,
        state: &mut Self::State,
        spot: StepRef<'_>,
        settled: Settlement<'_, Self::Output>,
    ) -> Result<Follow, Failure>;

    /// Prepares for steps, once, before the first of them: the lease is held.
    ///
    /// # Errors
    /// Why no step can run; nothing was started.
    async fn begin(&self, lease: &Lease) -> Result<(), BeginError>;

    /// Ends everything that steps left behind; afterwards the lease is given up.
    async fn end(&self);
}

/// The known outputs of a step for a settlement as done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KnownOutputs<'a> {
    /// The outputs in the state, which the record of an earlier end has too.
    InState,
    /// These.
    Given(&'a Map<String, Value>),
    /// Nothing.
    Unknown,
}

/// What comes after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Every step that needs it, as far as nothing else holds it back.
    Needs,
    /// The step at this place, one of its routes.
    To(usize),
    /// Nothing: the branch ends.
    End,
}

/// Why a state cannot be read by this program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A newer program wrote it.
    #[error("it has schema version {found}, this program reads up to {supported}")]
    Newer {
        /// Its version.
        found: u32,
        /// The newest version that this program knows.
        supported: u32,
    },
    /// It is not such a state.
    #[error("{0}")]
    Malformed(String),
}

impl From<SchemaError> for StateError {
    fn from(error: SchemaError) -> Self {
        if let SchemaError::Newer { found, supported } = error {
            return Self::Newer { found, supported };
        }
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        Self::Malformed(text)
    }
}

/// Why a program cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare to run steps")]
pub struct BeginError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// What is recorded of the work of a step that has ended, while it is not known whether it is to be believed.
#[derive(Debug, Clone, PartialEq)]
pub struct Exited {
    /// Its exit code.
    pub exit_code: i32,
    /// Its outputs; none if they were too large.
    pub outputs: Option<Map<String, Value>>,
}

/// What a step that was cut would have given, if it is done.
#[derive(Debug)]
pub struct Salvage<O> {
    /// What shows that it is; nothing in it was taken from the world when a step ended.
    pub pack: Pack,
    /// For the state.
    pub output: O,
    /// For the record.
    pub ending: Ending,
}

/// Whether a step runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It runs.
    Run,
    /// It is passed over.
    Skip(SkipCause),
}

/// What became of the steps upstream of a step: its ancestors by needs, on the same branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream<'a> {
    /// None of them failed, or only with a failure that is tolerated.
    Succeeded,
    /// This one failed.
    Failed(&'a StepId),
}

impl Upstream<'_> {
    /// Decides about a step that has no condition of its own: it runs unless a step upstream failed.
    pub fn admission(self) -> Admission {
        match self {
            Self::Succeeded => Admission::Run,
            Self::Failed(step) => Admission::Skip(SkipCause::UpstreamFailed(step.clone())),
        }
    }
}

/// What became of a step.
#[derive(Debug)]
pub enum Settlement<'a, O> {
    /// It completed.
    Completed(O, &'a Ending),
    /// It failed, and the workflow goes on.
    Tolerated(&'a Failure),
    /// It failed for good: a resume retries it. Whatever route the program names, none is taken.
    Failed(&'a Failure),
    /// It was passed over.
    Skipped,
}

/// What is to be done about a failure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OnFailure {
    /// It may be tried again, as far as the budget goes.
    pub retry: bool,
    /// Once the budget is used up, the workflow goes on all the same.
    pub tolerate: bool,
    /// What a step whose branches come [afterwards](crate::shape::Children::afterwards) opens once the budget is used up; as
    /// the join it fails with the same failure.
    pub opens: Vec<Item>,
}

/// How a try ended.
#[derive(Debug)]
pub enum Performed<O> {
    /// It completed.
    Completed {
        /// For the state.
        output: O,
        /// For the record.
        ending: Ending,
        /// What it said.
        told: StepReport,
    },
    /// It failed.
    Failed {
        /// Why.
        failure: Failure,
        /// What it said.
        told: StepReport,
    },
    /// It was stopped, as [`Attempt::stopped`] asked.
    Stopped {
        /// Something had run: it counts as cut. Otherwise it is as if it had not been started.
        in_progress: bool,
    },
    /// It found out what branches it opens, [`Children::by_work`](crate::shape::Children::by_work), and ends when they have.
    Opened {
        /// What they are about; each key once.
        items: Vec<Item>,
        /// What it said.
        told: StepReport,
    },
    /// Whether the attempt took effect is unknown. The attempt counts as cut, and the session ends.
    Cut {
        /// The cause, for people.
        why: String,
        /// Notes and usage of the attempt.
        told: StepReport,
    },
}

/// The notes, usage and evidence of an attempt, next to its result.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct StepReport {
    /// Events and report text.
    pub notes: Vec<Note>,
    /// Tokens and cost.
    pub usage: Option<Usage>,
    /// Claims and verdicts.
    pub evidence: Option<Pack>,
}
