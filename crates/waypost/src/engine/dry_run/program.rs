//! A program without executions: the result of each started step is unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::evidence::FILE_SHA256;
use crate::id::{ScopePath, StepId};
use crate::plan::shape::Shape;
use crate::record::{Claim, Ending, Failure, Flaw, Occasion, Pack, Phase, SkipCause, Terms, Try, Verdict};
use crate::store::Lease;

use crate::engine::{
    Admission, Attempt, BeginError, Exited, Follow, Item, Joined, KnownOutputs, OnFailure, Performed,
    Program, Recovered, Settlement, StateError, StepRef, StepReport, Unjoined, Upstream,
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

/// The limit of a list of items in a dry run: beyond, a plan has only the step with the list.
const ITEMS_MAX: usize = 1_000;

/// By scope and step.
pub(super) type Keyed<T> = BTreeMap<(ScopePath, StepId), T>;

#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The started steps, with the known part of the input.
    pub(super) started: Keyed<Input>,
    /// The joins of children with an unknown result, each with a step of that child.
    pub(super) rejoined: Keyed<StepId>,
    /// The steps whose items are known.
    pub(super) listed: BTreeSet<(ScopePath, StepId)>,
    /// The steps with an unknown result.
    unknown: BTreeSet<(ScopePath, StepId)>,
}

/// The work of a step in a dry run.
pub(super) enum DryJob<J> {
    /// Nothing: the result is unknown. With the files and other subjects that the step may write.
    Unknown(Vec<String>),
    /// The known items of the step.
    Open(Vec<Item>),
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

    pub(super) fn into_seen(self) -> Seen {
        self.seen.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_unknown(&self, scope: &ScopePath, step: &StepId) -> bool {
        self.seen().unknown.contains(&(scope.clone(), step.clone()))
    }

    /// Returns the steps of a scope with an unknown result.
    fn unknown_on(&self, scope: &ScopePath) -> BTreeSet<StepId> {
        let seen = self.seen();
        let here = seen.unknown.iter().filter(|(on, _)| on == scope);
        here.map(|(_, step)| step.clone()).collect()
    }

    /// Returns the known part of the input of a step: results upstream, and inputs of the openers around.
    fn input_of(&self, step_ref: StepRef<'_>) -> Input {
        let shape = self.inner.shape().of_scope(step_ref.scope);
        let upstream = shape.into_iter().flat_map(|shape| self.upstream(shape, step_ref));
        let own =
            upstream.chain([step_ref.step.id.clone()]).find(|step| self.is_unknown(step_ref.scope, step));
        own.or_else(|| self.unknown_around(step_ref.scope)).map_or(Input::InForce, Input::Unknown)
    }

    /// Returns the needed and read steps; in a graph with routes, all steps.
    fn upstream(&self, shape: &Shape, step_ref: StepRef<'_>) -> Vec<StepId> {
        if shape.is_routed() {
            return shape.steps().iter().map(|step| step.id.clone()).collect();
        }
        let needs = shape.needs(step_ref.place).iter().map(|need| shape.steps()[*need].id.clone());
        needs.chain(self.inner.reads(step_ref)).collect()
    }

    /// Returns the items of a step with a fully known input, if listed without its work.
    fn items_of(&self, step_ref: StepRef<'_>, state: &P::State) -> Option<Vec<Item>> {
        step_ref.step.children.as_ref().filter(|children| children.by_work)?;
        self.inner.open(step_ref, state).ok().filter(|items| items.len() <= ITEMS_MAX)
    }

    /// Settles a step with an unknown result if the next pass does not depend on the result.
    fn next_pass(&self, step_ref: StepRef<'_>, state: &mut P::State) -> Option<Follow> {
        let shape = self.inner.shape().of_scope(step_ref.scope)?;
        let is_known = |step: &StepId| {
            *step != step_ref.step.id
                && shape.place(step.as_str()).is_some()
                && !self.is_unknown(step_ref.scope, step)
        };
        let repeats = !shape.is_routed() && step_ref.step.routes.contains(&step_ref.step.id);
        if !repeats || !self.inner.reads(step_ref).iter().all(is_known) {
            return None;
        }
        let outputs = KnownOutputs::Given(&serde_json::Map::new());
        self.inner.settle_as_done(step_ref, state, outputs).ok().map(|(follow, _)| follow)
    }

    /// Returns an unknown step upstream of an opener of a scope.
    fn unknown_around(&self, scope: &ScopePath) -> Option<StepId> {
        let (above, (name, _)) = (scope.parent()?, scope.opened_by()?);
        let shape = self.inner.shape().of_scope(&above)?;
        let place = shape.opener(&name)?;
        let step_ref = StepRef { scope: &above, level: shape.level(), place, step: &shape.steps()[place] };
        match self.input_of(step_ref) {
            Input::Unknown(step) => Some(step),
            Input::InForce => None,
        }
    }

    /// Returns a step beneath the joined children with an unknown result.
    fn unknown_below(&self, joined: &Joined) -> Option<StepId> {
        let seen = self.seen();
        let below = |(scope, _): &&(ScopePath, StepId)| {
            let mut around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
            let is_child = |scope: &ScopePath| {
                scope.parent().as_ref() == Some(&joined.scope)
                    && scope.opened_by().is_some_and(|(name, _)| name == joined.name)
            };
            around.any(|scope| is_child(&scope))
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

    /// A condition over an unknown result counts as true; any other condition decides. A step with an unknown result
    /// counts on success.
    fn admit(
        &self,
        step_ref: StepRef<'_>,
        state: &P::State,
        upstream: Upstream<'_>,
    ) -> Result<Admission, Failure> {
        let admitted = self.inner.admit(step_ref, state, upstream);
        let is_known = match &admitted {
            Ok(Admission::Skip(SkipCause::UpstreamFailed(_) | SkipCause::ByHand(_))) => true,
            Ok(Admission::Skip(SkipCause::Need(need))) => !self.is_unknown(step_ref.scope, need),
            Ok(Admission::Run | Admission::Skip(SkipCause::Condition(_))) | Err(_) => {
                self.input_of(step_ref) == Input::InForce
            }
        };
        if is_known {
            return admitted;
        }
        let upstream = Upstream::Unknown {
            failed: upstream.failed(),
            steps: &self.unknown_on(step_ref.scope),
            around: self.unknown_around(step_ref.scope).is_some(),
        };
        self.inner.admit(step_ref, state, upstream).or(Ok(Admission::Run))
    }

    /// A list of items over an unknown result counts as empty.
    fn open(&self, step_ref: StepRef<'_>, state: &P::State) -> Result<Vec<Item>, Failure> {
        match self.inner.open(step_ref, state) {
            Err(_) if self.input_of(step_ref) != Input::InForce => {
                self.seen().unknown.insert((step_ref.scope.clone(), step_ref.step.id.clone()));
                Ok(Vec::new())
            }
            items => items,
        }
    }

    fn child(&self, step_ref: StepRef<'_>, state: &P::State, item: &Item) -> Result<P::State, Failure> {
        self.inner.child(step_ref, state, item)
    }

    fn attach(&self, step_ref: StepRef<'_>, state: &P::State, child: &mut P::State) {
        self.inner.attach(step_ref, state, child);
    }

    fn reads_index(&self, step_ref: StepRef<'_>) -> bool {
        self.inner.reads_index(step_ref)
    }

    fn is_of_item(&self, state: &P::State, item: &Item) -> bool {
        self.inner.is_of_item(state, item)
    }

    fn set_index(&self, state: &mut P::State, index: u64) -> bool {
        self.inner.set_index(state, index)
    }

    fn forget(&self, step_ref: StepRef<'_>, state: &mut P::State) {
        self.inner.forget(step_ref, state);
    }

    fn apply_unjoined(&self, step_ref: StepRef<'_>, state: &mut P::State, children: Unjoined<'_, P::State>) {
        self.inner.apply_unjoined(step_ref, state, children);
    }

    fn forget_failure(&self, step_ref: StepRef<'_>, state: &mut P::State) {
        self.inner.forget_failure(step_ref, state);
    }

    fn forget_join(&self, step_ref: StepRef<'_>, state: &mut P::State) {
        self.inner.forget_join(step_ref, state);
    }

    fn restore(&self, step_ref: StepRef<'_>, state: &mut P::State, then: &P::State) {
        self.inner.restore(step_ref, state, then);
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
    fn output_of(&self, step_ref: StepRef<'_>, state: &P::State) -> Option<Value> {
        match self.is_unknown(step_ref.scope, &step_ref.step.id) {
            true => Some(json!({ "unknown result of": [step_ref.scope.as_str(), step_ref.step.id] })),
            false => self.inner.output_of(step_ref, state),
        }
    }

    fn reads(&self, step_ref: StepRef<'_>) -> Vec<StepId> {
        self.inner.reads(step_ref)
    }

    fn prepare(
        &self,
        step_ref: StepRef<'_>,
        state: &P::State,
        joined: Option<Joined>,
    ) -> Result<Self::Job, Failure> {
        let input = self.input_of(step_ref);
        // A step with hooks ends like its work.
        let below =
            joined.as_ref().filter(|joined| !joined.is_after).and_then(|joined| self.unknown_below(joined));
        if joined.is_some() && input == Input::InForce && below.is_none() {
            return self.inner.prepare(step_ref, state, joined).map(DryJob::Join);
        }
        let key = (step_ref.scope.clone(), step_ref.step.id.clone());
        let listed = match input {
            Input::InForce if joined.is_none() => self.items_of(step_ref, state),
            _ => None,
        };
        let mut seen = self.seen();
        if joined.is_none() {
            seen.started.entry(key.clone()).or_insert(input);
        }
        if let Some(items) = listed {
            seen.listed.insert(key);
            return Ok(DryJob::Open(items));
        }
        seen.rejoined.extend(below.map(|step| (key.clone(), step)));
        seen.unknown.insert(key);
        let mut subjects = self.inner.subjects(step_ref, state);
        subjects.extend(step_ref.step.subjects.iter().cloned());
        Ok(DryJob::Unknown(subjects))
    }

    async fn perform(&self, job: Self::Job, attempt: Attempt) -> Performed<Self::Output> {
        let mut report = StepReport::default();
        let job = match job {
            DryJob::Join(job) => job,
            DryJob::Open(items) => return Performed::Opened { items, report },
            DryJob::Unknown(subjects) => {
                report.evidence = claims_about(subjects);
                let ending = Ending::default();
                return Performed::Completed { output: DryOutput::Unknown, ending, report };
            }
        };
        match self.inner.perform(job, attempt).await {
            Performed::Completed { output, ending, report } => {
                Performed::Completed { output: DryOutput::InForce(output), ending, report }
            }
            Performed::Failed { failure, report } => Performed::Failed { failure, report },
            Performed::Stopped { in_progress } => Performed::Stopped { in_progress },
            Performed::Opened { items, report } => Performed::Opened { items, report },
            Performed::Cut { why, was_killed, report } => Performed::Cut { why, was_killed, report },
        }
    }

    fn undo(&self, _: StepRef<'_>, _: &Try, _: &P::State) -> Result<Option<Self::Job>, Failure> {
        Ok(None)
    }

    fn subjects(&self, step_ref: StepRef<'_>, state: &P::State) -> Vec<String> {
        self.inner.subjects(step_ref, state)
    }

    async fn recover(
        &self,
        step_ref: StepRef<'_>,
        state: &P::State,
        exited: Option<&Exited>,
    ) -> Option<Recovered<Self::Output>> {
        let Recovered { pack, output, ending } = self.inner.recover(step_ref, state, exited).await?;
        Some(Recovered { pack, output: DryOutput::InForce(output), ending })
    }

    fn settle_as_done(
        &self,
        step_ref: StepRef<'_>,
        state: &mut P::State,
        outputs: KnownOutputs<'_>,
    ) -> Result<(Follow, Phase), String> {
        self.inner.settle_as_done(step_ref, state, outputs)
    }

    fn follow(&self, step_ref: StepRef<'_>, state: &P::State) -> Result<Follow, String> {
        self.inner.follow(step_ref, state)
    }

    fn on_failure(&self, step_ref: StepRef<'_>, failure: &Failure) -> OnFailure {
        self.inner.on_failure(step_ref, failure)
    }

    fn apply(
        &self,
        state: &mut P::State,
        step_ref: StepRef<'_>,
        settled: Settlement<'_, Self::Output>,
    ) -> Result<Follow, Failure> {
        let settled = match settled {
            Settlement::Completed(DryOutput::InForce(output), ending) => {
                Settlement::Completed(output, ending)
            }
            Settlement::Completed(DryOutput::Unknown, _) => {
                if let Some(follow) = self.next_pass(step_ref, state) {
                    return Ok(follow);
                }
                let was_done = self.inner.output_of(step_ref, state).is_some();
                if was_done
                    && let Ok((follow, _)) = self.inner.settle_as_done(step_ref, state, KnownOutputs::InState)
                {
                    return Ok(follow);
                }
                Settlement::Skipped
            }
            Settlement::Tolerated(failure) => Settlement::Tolerated(failure),
            Settlement::Failed(failure) => Settlement::Failed(failure),
            Settlement::Skipped => Settlement::Skipped,
        };
        self.inner.apply(state, step_ref, settled)
    }

    async fn begin(&self, _: &Lease) -> Result<(), BeginError> {
        Ok(())
    }

    async fn end(&self) {}
}

/// Returns claims that replace the earlier claims about these subjects, and that no resume checks; `None` without a subject.
fn claims_about(subjects: Vec<String>) -> Option<Pack> {
    let terms = Terms { at: [Occasion::Commit].into(), ..Terms::default() };
    let claim =
        |subject| Claim { terms: terms.clone(), verdict: Verdict::Ok, ..Claim::new(FILE_SHA256, subject) };
    let claims: Vec<Claim> = subjects.into_iter().map(claim).collect();
    (!claims.is_empty()).then_some(Pack { at_least: None, claims })
}
