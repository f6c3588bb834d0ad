//! A program without executions: the result of each started step is unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::id::{BranchPath, StepId};
use crate::plan::shape::Shape;
use crate::record::{Claim, Ending, Failure, Flaw, Phase, SkipCause, Try};
use crate::store::Lease;

use super::super::{
    Admission, Attempt, BeginError, Exited, Follow, Item, Joined, KnownOutputs, OnFailure, Performed,
    Program, Recovered, Settlement, StateError, StepRef, StepReport, Upstream,
};

/// The known part of the input of a step at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    /// The whole input.
    InForce,
    /// The input without the result of this step upstream.
    Unknown(StepId),
}

/// A program for a dry run.
#[derive(Debug)]
pub(super) struct DryProgram<'a, P> {
    inner: &'a P,
    seen: Mutex<Seen>,
}

/// By branch and step.
pub(super) type Keyed<T> = BTreeMap<(BranchPath, StepId), T>;

#[derive(Debug, Default)]
struct Seen {
    /// The started steps, with the known part of the input.
    started: Keyed<Input>,
    /// The joins of children with an unknown result, each with a step of that child.
    rejoined: Keyed<StepId>,
    /// The steps with an unknown result.
    unknown: BTreeSet<(BranchPath, StepId)>,
}

/// The work of a step in a dry run.
pub(super) enum DryJob<J> {
    /// Nothing: the result is unknown.
    Unknown,
    /// The join of children with known results.
    Join(J),
}

/// The result of a step in a dry run.
pub(super) enum DryOutput<O> {
    Unknown,
    InForce(O),
}

impl<'a, P: Program> DryProgram<'a, P> {
    pub(super) fn of(inner: &'a P) -> Self {
        Self { inner, seen: Mutex::default() }
    }

    /// Returns the started steps with the known part of the input, and the joins of children with an unknown result.
    pub(super) fn into_seen(self) -> (Keyed<Input>, Keyed<StepId>) {
        let seen = self.seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        (seen.started, seen.rejoined)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_unknown(&self, branch: &BranchPath, step: &StepId) -> bool {
        self.seen().unknown.contains(&(branch.clone(), step.clone()))
    }

    /// Returns the known part of the input of a step: results upstream, and inputs of the openers around.
    fn input_of(&self, spot: StepRef<'_>) -> Input {
        let shape = self.inner.shape().of_branch(spot.branch);
        let upstream = shape.into_iter().flat_map(|shape| self.upstream(shape, spot));
        let own = upstream.chain([spot.step.id.clone()]).find(|step| self.is_unknown(spot.branch, step));
        own.or_else(|| self.unknown_around(spot.branch)).map_or(Input::InForce, Input::Unknown)
    }

    /// Returns the needed and read steps; in a graph with routes, all steps.
    fn upstream(&self, shape: &Shape, spot: StepRef<'_>) -> Vec<StepId> {
        if shape.is_routed() {
            return shape.steps().iter().map(|step| step.id.clone()).collect();
        }
        let needs = shape.needs(spot.place).iter().map(|need| shape.steps()[*need].id.clone());
        needs.chain(self.inner.reads(spot)).collect()
    }

    /// Returns an unknown step upstream of an opener of a branch.
    fn unknown_around(&self, branch: &BranchPath) -> Option<StepId> {
        let (above, (name, _)) = (branch.parent()?, branch.opened_by()?);
        let shape = self.inner.shape().of_branch(&above)?;
        let place = shape.opener(&name)?;
        let spot = StepRef { branch: &above, level: shape.level(), place, step: &shape.steps()[place] };
        match self.input_of(spot) {
            Input::Unknown(step) => Some(step),
            Input::InForce => None,
        }
    }

    /// Returns a step beneath the joined children with an unknown result.
    fn unknown_below(&self, joined: &Joined) -> Option<StepId> {
        let seen = self.seen();
        let below = |(branch, _): &&(BranchPath, StepId)| {
            let mut around = std::iter::successors(Some(branch.clone()), BranchPath::parent);
            let is_child = |branch: &BranchPath| {
                branch.parent().as_ref() == Some(&joined.branch)
                    && branch.opened_by().is_some_and(|(name, _)| name == joined.name)
            };
            around.any(|branch| is_child(&branch))
        };
        seen.unknown.iter().find(below).map(|(_, step)| step.clone())
    }
}

#[async_trait]
impl<P: Program> Program for DryProgram<'_, P> {
    type State = P::State;
    type Job = DryJob<P::Job>;
    type Output = DryOutput<P::Output>;

    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn schema(&self, level: usize) -> u32 {
        self.inner.schema(level)
    }

    fn encode(&self, level: usize, state: &P::State, bytes: &mut Vec<u8>) -> Result<(), Flaw> {
        self.inner.encode(level, state, bytes)
    }

    fn decode(&self, level: usize, bytes: &[u8], schema: u32) -> Result<P::State, StateError> {
        self.inner.decode(level, bytes, schema)
    }

    /// A condition over an unknown result counts as true.
    fn admit(
        &self,
        spot: StepRef<'_>,
        state: &P::State,
        upstream: Upstream<'_>,
    ) -> Result<Admission, Failure> {
        let admitted = self.inner.admit(spot, state, upstream);
        let is_known = match &admitted {
            Ok(Admission::Run | Admission::Skip(SkipCause::UpstreamFailed(_) | SkipCause::ByHand(_))) => true,
            Ok(Admission::Skip(SkipCause::Need(need))) => !self.is_unknown(spot.branch, need),
            Ok(Admission::Skip(SkipCause::Condition(_))) | Err(_) => self.input_of(spot) == Input::InForce,
        };
        if is_known { admitted } else { Ok(Admission::Run) }
    }

    /// A list of items over an unknown result counts as empty.
    fn open(&self, spot: StepRef<'_>, state: &P::State) -> Result<Vec<Item>, Failure> {
        match self.inner.open(spot, state) {
            Err(_) if self.input_of(spot) != Input::InForce => {
                self.seen().unknown.insert((spot.branch.clone(), spot.step.id.clone()));
                Ok(Vec::new())
            }
            items => items,
        }
    }

    fn child(&self, spot: StepRef<'_>, state: &P::State, item: &Item) -> Result<P::State, Failure> {
        self.inner.child(spot, state, item)
    }

    fn attach(&self, spot: StepRef<'_>, state: &P::State, child: &mut P::State) {
        self.inner.attach(spot, state, child);
    }

    fn forget(&self, spot: StepRef<'_>, state: &mut P::State) {
        self.inner.forget(spot, state);
    }

    fn forget_failure(&self, spot: StepRef<'_>, state: &mut P::State) {
        self.inner.forget_failure(spot, state);
    }

    fn forget_join(&self, spot: StepRef<'_>, state: &mut P::State) {
        self.inner.forget_join(spot, state);
    }

    fn restore(&self, spot: StepRef<'_>, state: &mut P::State, then: &P::State) {
        self.inner.restore(spot, state, then);
    }

    fn redact(&self, claim: &mut Claim) {
        self.inner.redact(claim);
    }

    fn redact_answer(&self, value: &mut Value) {
        self.inner.redact_answer(value);
    }

    fn keeps_apart(&self) -> bool {
        self.inner.keeps_apart()
    }

    /// Returns for an unknown result a value unequal to all real results.
    fn gave(&self, spot: StepRef<'_>, state: &P::State) -> Option<Value> {
        match self.is_unknown(spot.branch, &spot.step.id) {
            true => Some(json!({ "unknown result of": [spot.branch.as_str(), spot.step.id] })),
            false => self.inner.gave(spot, state),
        }
    }

    fn reads(&self, spot: StepRef<'_>) -> Vec<StepId> {
        self.inner.reads(spot)
    }

    fn prepare(
        &self,
        spot: StepRef<'_>,
        state: &P::State,
        joined: Option<Joined>,
    ) -> Result<Self::Job, Failure> {
        let input = self.input_of(spot);
        let below = joined.as_ref().and_then(|joined| self.unknown_below(joined));
        if joined.is_some() && input == Input::InForce && below.is_none() {
            return self.inner.prepare(spot, state, joined).map(DryJob::Join);
        }
        let key = (spot.branch.clone(), spot.step.id.clone());
        let mut seen = self.seen();
        if joined.is_none() {
            seen.started.entry(key.clone()).or_insert(input);
        }
        seen.rejoined.extend(below.map(|step| (key.clone(), step)));
        seen.unknown.insert(key);
        Ok(DryJob::Unknown)
    }

    async fn perform(&self, job: Self::Job, attempt: Attempt) -> Performed<Self::Output> {
        let DryJob::Join(job) = job else {
            let (ending, told) = (Ending::default(), StepReport::default());
            return Performed::Completed { output: DryOutput::Unknown, ending, told };
        };
        match self.inner.perform(job, attempt).await {
            Performed::Completed { output, ending, told } => {
                Performed::Completed { output: DryOutput::InForce(output), ending, told }
            }
            Performed::Failed { failure, told } => Performed::Failed { failure, told },
            Performed::Stopped { in_progress } => Performed::Stopped { in_progress },
            Performed::Opened { items, told } => Performed::Opened { items, told },
            Performed::Cut { why, told } => Performed::Cut { why, told },
        }
    }

    fn undo(&self, _: StepRef<'_>, _: &Try, _: &P::State) -> Result<Option<Self::Job>, Failure> {
        Ok(None)
    }

    fn subjects(&self, spot: StepRef<'_>, state: &P::State) -> Vec<String> {
        self.inner.subjects(spot, state)
    }

    async fn recover(
        &self,
        spot: StepRef<'_>,
        state: &P::State,
        exited: Option<&Exited>,
    ) -> Option<Recovered<Self::Output>> {
        let Recovered { pack, output, ending } = self.inner.recover(spot, state, exited).await?;
        Some(Recovered { pack, output: DryOutput::InForce(output), ending })
    }

    fn settle_as_done(
        &self,
        spot: StepRef<'_>,
        state: &mut P::State,
        outputs: KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String> {
        self.inner.settle_as_done(spot, state, outputs)
    }

    fn follow(&self, spot: StepRef<'_>, state: &P::State) -> Result<Follow, String> {
        self.inner.follow(spot, state)
    }

    fn on_failure(&self, spot: StepRef<'_>, failure: &Failure) -> OnFailure {
        self.inner.on_failure(spot, failure)
    }

    fn apply(
        &self,
        state: &mut P::State,
        spot: StepRef<'_>,
        settled: Settlement<'_, Self::Output>,
    ) -> Result<Follow, Failure> {
        let settled = match settled {
            Settlement::Completed(DryOutput::InForce(output), ending) => {
                Settlement::Completed(output, ending)
            }
            Settlement::Completed(DryOutput::Unknown, _) => {
                let was_done = self.inner.gave(spot, state).is_some();
                if was_done
                    && let Ok((follow, _)) = self.inner.settle_as_done(spot, state, KnownOutputs::InState)
                {
                    return Ok(follow);
                }
                Settlement::Skipped
            }
            Settlement::Tolerated(failure) => Settlement::Tolerated(failure),
            Settlement::Failed(failure) => Settlement::Failed(failure),
            Settlement::Skipped => Settlement::Skipped,
        };
        self.inner.apply(state, spot, settled)
    }

    async fn begin(&self, _: &Lease) -> Result<(), BeginError> {
        Ok(())
    }

    async fn end(&self) {}
}
