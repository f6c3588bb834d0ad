//! The interface between the engine and a program.

use std::collections::BTreeSet;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::engine::{Attempt, Item, Joined};
use crate::id::{ScopePath, StepId};
use crate::plan::shape::{Shape, Step};
use crate::record::{Claim, Ending, Failure, Flaw, Note, Pack, Phase, SkipCause, Try, Usage};
use crate::schema::SchemaError;
use crate::store::Lease;

/// A step with its scope and shape: the subject of a call to a program.
#[derive(Debug, Clone, Copy)]
pub struct StepRef<'a> {
    /// The scope it runs on.
    pub scope: &'a ScopePath,
    /// The level of its shape: [`Shape::level`].
    pub level: usize,
    /// The index in the shape.
    pub place: usize,
    /// The step.
    pub step: &'a Step,
}

/// A program: the meaning of the steps of a shape over a state.
///
/// No method has a default body: each program chooses its own meaning of a resume, a rerun and a person's
/// decision.
///
/// All methods except `perform` are fast and touch nothing outside the state; `perform` does the work. Other
/// running steps may change the state between `prepare` and `apply`. Each scope has a separate state. Scopes
/// of different shapes may have different kinds of states.
#[async_trait]
pub trait Program: Send + Sync {
    /// The state of a scope.
    type State: Send + Sync;
    /// The input of a step.
    type Job: Send;
    /// The output of a step.
    type Output: Send;

    /// Returns the shape of the main scope.
    fn shape(&self) -> &Shape;

    /// Returns the schema version of the states of a shape.
    fn schema(&self, level: usize) -> u32;

    /// Appends a state as JSON to `bytes`.
    ///
    /// # Errors
    /// [`Flaw`]: the field that JSON would change or cannot represent.
    fn encode(&self, level: usize, state: &Self::State, bytes: &mut Vec<u8>) -> Result<(), Flaw>;

    /// Decodes a state of a schema version. Runs no user code of the state.
    ///
    /// # Errors
    /// The state cannot be decoded.
    fn decode(&self, level: usize, bytes: &[u8], schema: u32) -> Result<Self::State, StateError>;

    /// Decides whether a step with ended needs runs or is skipped. May be called several times before the start; the
    /// answer must depend on the arguments only. The first record of the step, its start or its skip, keeps the decision. A
    /// retry of a failed step by a resume decides again.
    ///
    /// # Errors
    /// A failure of the step.
    fn admit(
        &self,
        step_ref: StepRef<'_>,
        state: &Self::State,
        upstream: Upstream<'_>,
    ) -> Result<Admission, Failure>;

    /// Returns the items of a step, one for each child, in order. Called once for each fan-out; the items are recorded. Not
    /// called if the shape names the children. If the work of the step lists the items, only dry runs call this
    /// method.
    ///
    /// # Errors
    /// A failure of the step; in a dry run, the items are unknown without the work.
    fn open(&self, step_ref: StepRef<'_>, state: &Self::State) -> Result<Vec<Item>, Failure>;

    /// Returns the initial state of a child, from the state of its parent.
    ///
    /// # Errors
    /// A failure of the opener.
    fn child(&self, step_ref: StepRef<'_>, state: &Self::State, item: &Item) -> Result<Self::State, Failure>;

    /// Copies the parts of the parent's state that a child reads but does not store into the decoded state of the child.
    fn attach(&self, step_ref: StepRef<'_>, state: &Self::State, child: &mut Self::State);

    /// Removes the results of a finished step from the state before a rerun. The step finds everything else in the state.
    fn forget(&self, step_ref: StepRef<'_>, state: &mut Self::State);

    /// Applies the children of a step that fails without a join to the state. The failure of the step is applied next.
    fn apply_unjoined(
        &self,
        step_ref: StepRef<'_>,
        state: &mut Self::State,
        children: Unjoined<'_, Self::State>,
    );

    /// Removes the failure of a step from the state before a retry.
    fn forget_failure(&self, step_ref: StepRef<'_>, state: &mut Self::State);

    /// As [`forget`](Self::forget), for a step that joins the scopes of its last pass again.
    fn forget_join(&self, step_ref: StepRef<'_>, state: &mut Self::State);

    /// Replaces the results of a step in the state with its results in `then`, an earlier state of the same scope: a
    /// reused end, or the pass before a rerun pass.
    fn restore(&self, step_ref: StepRef<'_>, state: &mut Self::State, then: &Self::State);

    /// Masks the secrets in the found value of a claim.
    fn redact(&self, claim: &mut Claim);

    /// Masks secrets in an answer or signal before the record.
    fn redact_answer(&self, value: &mut Value);

    /// Returns whether the state keeps the outputs of each step apart, so that [`forget`](Self::forget) removes everything
    /// that a step left in the state. If `false`, a requested rerun rewinds the scope to the input state of the
    /// step, instead of invalidating only downstream steps.
    fn keeps_apart(&self) -> bool;

    /// Returns the output of a finished step in the state, for its output digest; `None` without a separate output. Called
    /// only for graphs with `needs`.
    fn output_of(&self, step_ref: StepRef<'_>, state: &Self::State) -> Option<Value>;

    /// Returns the steps whose outputs a step reads, with or without a `needs` edge: the step is downstream of all these
    /// steps. Called only for graphs with `needs`.
    fn reads(&self, step_ref: StepRef<'_>) -> Vec<StepId>;

    /// Returns whether a step, or a nested step, reads the index of the item of its scope: the index is then part of the
    /// step's input.
    fn reads_index(&self, step_ref: StepRef<'_>) -> bool;

    /// Returns whether the state of a child is of an item with this value.
    fn is_of_item(&self, state: &Self::State, item: &Item) -> bool;

    /// Sets the index of the item in the state of a child. Returns whether the state had another index.
    fn set_index(&self, state: &mut Self::State, index: u64) -> bool;

    /// Returns the input of a step from the state. A step with children also gets their ends.
    ///
    /// # Errors
    /// A failure of the step, such as an expression that cannot be evaluated.
    fn prepare(
        &self,
        step_ref: StepRef<'_>,
        state: &Self::State,
        joined: Option<Joined>,
    ) -> Result<Self::Job, Failure>;

    /// Does the work. The start is recorded before. Must observe [`Attempt::stopped`]. Dropping the future must
    /// end everything that the work started.
    async fn perform(&self, job: Self::Job, attempt: Attempt) -> Performed<Self::Output>;

    /// Returns the job that undoes a finished step, for [`perform`](Self::perform), from the newest state of its
    /// scope; `None` if the step has no undo. `at` is the attempt that finished the step.
    ///
    /// # Errors
    /// A failure, such as an expression that cannot be evaluated.
    fn undo(
        &self,
        step_ref: StepRef<'_>,
        at: &Try,
        state: &Self::State,
    ) -> Result<Option<Self::Job>, Failure>;

    /// Returns the subjects of the evidence of a running or interrupted step, as far as the state determines these: files
    /// that the step may be writing.
    fn subjects(&self, step_ref: StepRef<'_>, state: &Self::State) -> Vec<String>;

    /// Returns the claims that prove the effect of an interrupted non-idempotent step, with the output of the step. The
    /// output is read again from its files, or is the recorded output in `exited`. `None` if the step has no such claims or
    /// output; then a person decides.
    async fn recover(
        &self,
        step_ref: StepRef<'_>,
        state: &Self::State,
        exited: Option<&Exited>,
    ) -> Option<Recovered<Self::Output>>;

    /// Marks a step in doubt as done in the state, by decision of a person who does not know the output. Returns
    /// the next steps, and the phase for the record: completed, or a tolerated failure.
    ///
    /// # Errors
    /// The decision is not possible; nothing is changed.
    fn settle_as_done(
        &self,
        step_ref: StepRef<'_>,
        state: &mut Self::State,
        outputs: KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String>;

    /// Returns the next step after a step with its effect already in the state, if the shape alone does not
    /// decide.
    ///
    /// # Errors
    /// The reason why the state does not determine the next step.
    fn follow(&self, step_ref: StepRef<'_>, state: &Self::State) -> Result<Follow, String>;

    /// Decides about a failure: retry, toleration, hooks.
    fn on_failure(&self, step_ref: StepRef<'_>, failure: &Failure) -> OnFailure;

    /// Applies the result of a step to the state, and returns the chosen route. Called once for each end; the choice is
    /// recorded.
    ///
    /// # Errors
    /// A failure of the step; the state is unchanged.
    fn apply(
        &self,
        state: &mut Self::State,
        step_ref: StepRef<'_>,
        settled: Settlement<'_, Self::Output>,
    ) -> Result<Follow, Failure>;

    /// Prepares for the first step, under the lease. Called once per session.
    ///
    /// # Errors
    /// No step can run; nothing was started.
    async fn begin(&self, lease: &Lease) -> Result<(), BeginError>;

    /// Ends the remaining processes and files of the steps, before the lease is released.
    async fn end(&self);
}

/// The children of a step that fails without a join.
#[derive(Debug)]
pub struct Unjoined<'a, S> {
    /// The number of children.
    pub total: u64,
    /// The number of completed children.
    pub succeeded: u64,
    /// The number of failed children.
    pub failed: u64,
    /// The states of the children that have not ended on their own.
    pub states: Vec<&'a S>,
}

/// The known outputs of a step for a settlement as done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KnownOutputs<'a> {
    /// The outputs in the state; the record of an earlier end also has these.
    InState,
    /// These outputs.
    Given(&'a Map<String, Value>),
    /// No known outputs.
    Unknown,
}

/// The successor of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Every step that needs the step, once its other needs have ended.
    Needs,
    /// The step at this place, a declared route.
    To(usize),
    /// None: the scope ends.
    End,
}

/// The reason why a program cannot decode a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A newer program wrote the state.
    #[error("it has schema version {found}, this program reads up to {supported}")]
    Newer {
        /// The schema version of the state.
        found: u32,
        /// The newest supported version.
        supported: u32,
    },
    /// The bytes are not a valid state.
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

/// The reason why a program cannot begin.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare to run steps")]
pub struct BeginError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

/// The end of a step's work, recorded before the check of its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Exited {
    /// The exit code.
    pub exit_code: i32,
    /// The outputs; `None` if too large.
    pub outputs: Option<Map<String, Value>>,
}

/// The proof and the result of an interrupted step that is done.
#[derive(Debug)]
pub struct Recovered<O> {
    /// The claims of the proof; without pins taken at the end of a step.
    pub pack: Pack,
    /// The output for the state.
    pub output: O,
    /// The ending for the record.
    pub ending: Ending,
}

/// Whether a step runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// The step runs.
    Run,
    /// The step is skipped.
    Skip(SkipCause),
}

/// The state of the upstream steps: all ancestors by needs, in the same scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream<'a> {
    /// No step failed, or only with a tolerated failure.
    Succeeded,
    /// This step failed.
    Failed(&'a StepId),
    /// A plan asks before upstream steps have run. Each of these steps counts on success.
    Unknown {
        /// The step that failed, if any.
        failed: Option<&'a StepId>,
        /// The steps of the same scope with an unknown result.
        steps: &'a BTreeSet<StepId>,
        /// The input of the scope is unknown, too: the item, and the params of an included file.
        around: bool,
    },
}

impl Upstream<'_> {
    /// Returns the default decision for a step without a condition: runs unless an upstream step failed.
    pub fn admission(self) -> Admission {
        match self.failed() {
            None => Admission::Run,
            Some(step) => Admission::Skip(SkipCause::UpstreamFailed(step.clone())),
        }
    }

    /// Returns the failed step, if any.
    pub fn failed(&self) -> Option<&StepId> {
        match self {
            Self::Succeeded => None,
            Self::Failed(step) => Some(step),
            Self::Unknown { failed, .. } => *failed,
        }
    }
}

/// The result of a step, for the state.
#[derive(Debug)]
pub enum Settlement<'a, O> {
    /// The step completed.
    Completed(O, &'a Ending),
    /// The step failed, and the failure is tolerated.
    Tolerated(&'a Failure),
    /// The step failed for good; a resume retries the step. A returned route is ignored.
    Failed(&'a Failure),
    /// The step was skipped.
    Skipped,
}

/// The reaction to a failure.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OnFailure {
    /// True to retry, within the retry budget.
    pub retry: bool,
    /// True to tolerate the failure once the retry budget is used up.
    pub tolerate: bool,
    /// The hooks to open once the retry budget is used up, for a step with
    /// [hooks](crate::plan::shape::Step::hooks). The join of the hooks fails with the same failure.
    pub opens: Vec<Item>,
}

/// The end of an attempt.
#[derive(Debug)]
pub enum Performed<O> {
    /// The step completed.
    Completed {
        /// The output for the state.
        output: O,
        /// The ending for the record.
        ending: Ending,
        /// Notes, usage and evidence of the attempt.
        report: StepReport,
    },
    /// The step failed.
    Failed {
        /// The failure.
        failure: Failure,
        /// Notes, usage and evidence of the attempt.
        report: StepReport,
    },
    /// The step was stopped, as requested by [`Attempt::stopped`].
    Stopped {
        /// True if work had begun: the attempt counts as interrupted. False undoes the start.
        in_progress: bool,
    },
    /// The work of the step has listed the scopes to open:
    /// [`Children::by_work`](crate::plan::shape::Children::by_work). The step ends after these scopes.
    Opened {
        /// The items, with unique keys.
        items: Vec<Item>,
        /// Notes, usage and evidence of the attempt.
        report: StepReport,
    },
    /// The effect of the attempt is unknown. The attempt counts as interrupted, and the session ends.
    Cut {
        /// The cause, for people.
        why: String,
        /// The processes of the step were killed, perhaps by the step: the attempt counts toward
        /// [`Step::cuts_max`](crate::plan::shape::Step::cuts_max).
        was_killed: bool,
        /// Notes, usage and evidence of the attempt.
        report: StepReport,
    },
}

/// The notes, usage and evidence of an attempt, next to its result.
#[derive(Debug, Default, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StepReport {
    /// Events and report text.
    pub notes: Vec<Note>,
    /// Tokens and cost.
    pub usage: Option<Usage>,
    /// Claims and verdicts.
    pub evidence: Option<Pack>,
}
