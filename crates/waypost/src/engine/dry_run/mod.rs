//! A dry run: the plan of a resume, made by the engine itself over a copy of the records.
//!
//! ```text
//!   records --> resume, with DryProgram over Overlay --> starts, reuses, skips, questions --> decisions
//! ```
//!
//! The engine decides as in a real resume. No step is executed: the result of a start is unknown, and differs from all
//! results on record. A step downstream with a reusable result is `recheck`: a real resume compares the real result.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{Span, Timestamp};

use crate::id::{RunId, ScopePath, StepId};
use crate::plan::shape::Shape;
use crate::plan::shape::Unfinished;
use crate::plan::{Action, Cause, Decision, Plan};
use crate::projection::events::{RerunCause, STEP_INVALIDATED, STEP_SETTLED};
use crate::record::{Note, Phase, Position, Reason, Record, RunStatus, SkipCause, Status, Try, WaitKind};
use crate::store::Store;
use crate::store::overlay::Overlay;
use crate::system::clock::Clock;

use crate::engine::inspect::position_of;
use crate::engine::resume::in_doubt::CONFIRMED;
use crate::engine::resume::reruns::broken_by;
use crate::engine::walk::choice::KEPT;
use crate::engine::walk::early_cutoff::COMPARED;
use crate::engine::{Answers, Engine, OnDoubt, Program, ResumeOptions, RunError, Silent, TreatAs};

mod program;

use program::{DryProgram, Input, Keyed, Seen};

/// The lead of the clock of a dry run: delays and sleeps are over at once.
const AHEAD_YEARS: i64 = 100;

/// The decisions of a dry run.
#[derive(Debug, Default)]
pub struct DryRun {
    started: Keyed<Input>,
    rejoined: Keyed<StepId>,
    /// The steps with a new list of items.
    listed: BTreeSet<(ScopePath, StepId)>,
    /// The steps that open their children, again or for the first time.
    opened: BTreeSet<(ScopePath, StepId)>,
    /// The first start of each step.
    tries: Keyed<Try>,
    reran: Keyed<RerunCause>,
    /// The steps with a reusable result on record, compared in turn.
    reusable: BTreeSet<(ScopePath, StepId)>,
    skipped: Keyed<SkipCause>,
    /// The steps that a person settles, with the name of the person.
    settled: Keyed<String>,
    questions: Vec<Decision>,
    /// The steps in doubt that rerun by an answer.
    confirmed: BTreeSet<(ScopePath, StepId)>,
    /// The last position of each scope of the dry run.
    positions: BTreeMap<ScopePath, Position>,
}

/// A step that a person settles or reruns.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// The scope.
    pub scope: &'a ScopePath,
    /// The step.
    pub step: &'a StepId,
    /// The decision.
    pub treat_as: TreatAs,
}

/// A clock far ahead of another clock.
#[derive(Debug)]
struct ClockAhead(Arc<dyn Clock>);

impl Clock for ClockAhead {
    fn now(&self) -> Timestamp {
        let now = self.0.now();
        now.checked_add(Span::new().hours(AHEAD_YEARS * 365 * 24)).unwrap_or(now)
    }
}

impl Engine {
    /// Resumes a run without executing a step or changing the store, and returns the decisions of a real resume.
    ///
    /// # Errors
    /// Those of [`resume_program`](Self::resume_program), but [`RunError::InDoubt`]: questions are part of the result.
    pub async fn dry_run<P: Program>(
        &self,
        program: &P,
        run: &RunId,
        options: impl Fn() -> ResumeOptions<P::State> + Send,
    ) -> Result<DryRun, RunError> {
        let overlay = Arc::new(Overlay::over(Arc::clone(&self.store)));
        self.dry_run_over(&overlay, program, run, options).await
    }

    /// As [`dry_run`](Self::dry_run), after the records of an overlay: these are decisions of the same resume.
    ///
    /// # Errors
    /// As for [`dry_run`](Self::dry_run).
    pub async fn dry_run_over<P: Program>(
        &self,
        overlay: &Arc<Overlay>,
        program: &P,
        run: &RunId,
        options: impl Fn() -> ResumeOptions<P::State> + Send,
    ) -> Result<DryRun, RunError> {
        let dry_run = |options| self.try_dry_run(overlay, program, run, options);
        let first = dry_run(options()).await?;
        if first.questions.is_empty() {
            return Ok(first);
        }
        // The remaining decisions depend on the answers: each question counts as answered with a retry.
        let mut answered = options();
        let given = answered.on_doubt.answers();
        let mut answers = Answers { rest: Some(TreatAs::Retry), in_turn: true, ..given.clone() };
        for Answered { scope, step, treat_as } in first.answered() {
            answers.named.entry((scope.clone(), step.clone())).or_insert(treat_as);
        }
        answered.on_doubt = OnDoubt::Each(answers);
        let rest = match dry_run(answered).await {
            // The adopted definition abandons the scope of a question: the answer comes first.
            Err(RunError::NotSettled { .. } | RunError::Changed { .. }) => return Ok(first),
            rest => rest?,
        };
        let is_first = |scope: &ScopePath, step: &StepId| {
            first.questions.iter().any(|asked| asked.scope == *scope && asked.step == *step)
        };
        let later = rest
            .confirmed
            .iter()
            .filter(|(scope, step)| !is_first(scope, step) && given.about(scope, step).is_none());
        let later: Vec<Decision> = later.map(|(scope, step)| asked_in_turn(scope, step)).collect();
        let is_certain = |asked: &Decision| {
            let key = (asked.scope.clone(), asked.step.clone());
            let is_compared =
                matches!(rest.started.get(&key), Some(Input::Unknown(_))) && rest.reusable.contains(&key);
            asked.cause != Cause::AskedInTurn || !is_compared
        };
        let questions = first.questions.into_iter().chain(later).filter(is_certain).collect();
        Ok(DryRun { questions, confirmed: first.confirmed, ..rest })
    }

    async fn try_dry_run<P: Program>(
        &self,
        before: &Arc<Overlay>,
        program: &P,
        run: &RunId,
        options: ResumeOptions<P::State>,
    ) -> Result<DryRun, RunError> {
        let overlay = Arc::new(Overlay::over(Arc::clone(before) as Arc<dyn Store>));
        let engine = Self {
            store: Arc::clone(&overlay) as Arc<dyn Store>,
            clock: Arc::new(ClockAhead(Arc::clone(&self.clock))),
            observer: Arc::new(Silent),
            ..self.clone()
        };
        let dry = DryProgram::of(program);
        let ended = engine.resume_program(&dry, run, options).await;
        let Seen { started, rejoined, listed, .. } = dry.into_seen();
        let mut found = DryRun { started, rejoined, listed, ..DryRun::default() };
        before.records().iter().for_each(|record| found.take_in_notes(program.shape(), record));
        for record in overlay.records() {
            found.take_in(program.shape(), &record)?;
        }
        match ended {
            Err(RunError::InDoubt { questions, .. }) => found.questions = questions,
            Err(error) => return Err(error),
            Ok(outcome) if outcome.status == RunStatus::InDoubt => found.ask_in_turn(),
            Ok(_) => {}
        }
        found.ask_after_failure();
        Ok(found)
    }
}

impl DryRun {
    /// Returns the started steps, each with a flag: the input is fully known, so a real resume starts the step
    /// too.
    pub fn starts(&self) -> impl Iterator<Item = (&ScopePath, &StepId, bool)> {
        self.started.iter().map(|((scope, step), input)| (scope, step, *input == Input::InForce))
    }

    /// Returns the steps that a person settles or reruns, without the steps skipped by hand.
    pub fn answered(&self) -> impl Iterator<Item = Answered<'_>> {
        let done = self.settled.keys().filter(|key| !self.skipped.contains_key(*key));
        let done = done.map(|key| (key, TreatAs::Done));
        let all = done.chain(self.confirmed.iter().map(|key| (key, TreatAs::Retry)));
        all.map(|((scope, step), treat_as)| Answered { scope, step, treat_as })
    }

    fn take_in(&mut self, root: &Shape, record: &Record) -> Result<(), RunError> {
        let header = record.header();
        let scope = &header.scope;
        if let Some(step) = &header.step {
            let key = (scope.clone(), step.clone());
            match &header.phase {
                Phase::Skipped(cause) => drop(self.skipped.insert(key, cause.clone())),
                phase if phase.opens_work() => drop(self.opened.insert(key)),
                _ => {}
            }
        }
        for start in &header.started {
            self.tries.entry((scope.clone(), start.step.clone())).or_insert_with(|| start.at.clone());
        }
        self.take_in_notes(root, record);
        if record.state_bytes().is_some() {
            let position = position_of(record)?;
            let results = position.reusable.keys().filter(|step| position.has_result(step));
            self.reusable.extend(results.map(|step| (scope.clone(), step.clone())));
            self.positions.insert(scope.clone(), position);
        }
        Ok(())
    }

    /// Takes in the settled and the invalid steps of a record.
    fn take_in_notes(&mut self, root: &Shape, record: &Record) {
        let header = record.header();
        let scope = &header.scope;
        let compares = header.definition.is_none() && header.reason != Reason::Redo;
        let is_own =
            |step: &StepId| root.of_scope(scope).is_some_and(|own| own.place(step.as_str()).is_some());
        for note in &header.notes {
            let Note::Event { name, data } = note else { continue };
            let step = data["step"].as_str().and_then(|step| StepId::new(step).ok());
            // A kept result stays as recorded.
            if let (STEP_SETTLED, Some(step)) = (name.as_str(), &step)
                && data["how"] != KEPT
            {
                let by = data["cause"]["by"].as_str().unwrap_or("a person").to_owned();
                self.settled.insert((scope.clone(), step.clone()), by);
            }
            let cause = serde_json::from_value(data["cause"].clone()).ok();
            self.confirmed.extend(
                step.iter().filter(|_| data[CONFIRMED] == true).map(|step| (scope.clone(), step.clone())),
            );
            if let (STEP_INVALIDATED, Some(step), Some(cause)) = (name.as_str(), step, cause) {
                // Below an opener that reruns as a whole, nothing is compared.
                if let RerunCause::UpstreamChanged { step: upstream } = &cause
                    && compares
                    && (data[COMPARED] == true || upstream.as_ref().is_none_or(is_own))
                {
                    self.reusable.insert((scope.clone(), step.clone()));
                }
                self.reran.insert((scope.clone(), step), cause);
            }
        }
        if let (Some(step), Some(claims)) = (&header.step, broken_by(header)) {
            self.reran.insert((scope.clone(), step.clone()), RerunCause::EvidenceFailed { claims });
        }
    }

    /// Notes the questions about steps at their turn.
    fn ask_in_turn(&mut self) {
        for (scope, position) in &self.positions {
            let asked = position.frontier.iter().filter(|entry| position.asks_about(&entry.step));
            self.questions.extend(asked.map(|entry| asked_in_turn(scope, &entry.step)));
        }
    }

    /// Notes the questions about steps that only another failure reaches.
    fn ask_after_failure(&mut self) {
        let is_asked = |((scope, step), cause): &(&(ScopePath, StepId), &SkipCause)| {
            let position = self.positions.get(scope);
            matches!(cause, SkipCause::Condition(_)) && position.is_some_and(|own| own.asks_about(step))
        };
        let asked = self.skipped.iter().filter(is_asked);
        self.questions.extend(asked.map(|((scope, step), _)| asked_in_turn(scope, step)));
    }

    /// Corrects a plan from the records alone. The dry run has the starts, the plan has the causes.
    pub fn correct<P: Program>(&self, program: &P, plan: &mut Plan) {
        let asked = self.questions.iter().map(|asked| ((asked.scope.clone(), asked.step.clone()), asked));
        let asked: Keyed<&Decision> = asked.collect();
        let starts = |action| matches!(action, Action::Run | Action::Retry | Action::Restart);
        plan.decisions.retain(|decision| {
            let is_dropped = starts(decision.action) && self.is_dropped(&decision.scope);
            !is_dropped && !self.is_left_out(&decision.scope)
        });
        for decision in &mut plan.decisions {
            let key = (decision.scope.clone(), decision.step.clone());
            let is_settled = self.skipped.contains_key(&key) || self.settled.contains_key(&key);
            let waits = decision.action == Action::Wait && !is_settled && !self.reopens(&key, decision);
            if let Some(asked) = asked.get(&key) {
                decision.clone_from(asked);
            } else if let Some((action, cause)) = self.decided(program, &key, decision).filter(|_| !waits) {
                (decision.action, decision.cause) = (action, cause);
            }
        }
        let planned = plan.decisions.iter().map(|planned| (planned.scope.clone(), planned.step.clone()));
        let planned: BTreeSet<(ScopePath, StepId)> = planned.collect();
        let [started, skipped, settled] = [
            self.started.keys().collect::<Vec<_>>(),
            self.skipped.keys().collect(),
            self.settled.keys().collect(),
        ];
        let seen: BTreeSet<_> =
            started.into_iter().chain(skipped).chain(settled).chain(asked.keys()).collect();
        let more = seen.into_iter().filter(|key| !planned.contains(key));
        plan.decisions
            .extend(more.map(|key| asked.get(key).map_or_else(|| self.added(key), |asked| (*asked).clone())));
    }

    /// Returns the decision about a step without a decision in the plan.
    fn added(&self, key: &(ScopePath, StepId)) -> Decision {
        let (action, cause) = match (self.started.get(key), self.skipped.get(key)) {
            (Some(Input::InForce), _) => self.begun(key, Cause::Ready),
            (Some(Input::Unknown(step)), _) => self.compared(key, step, false),
            (None, Some(cause)) => (Action::Skip, skipped_by(cause)),
            (None, None) => {
                (Action::Reuse, Cause::Settled(self.settled.get(key).cloned().unwrap_or_default()))
            }
        };
        Decision { scope: key.0.clone(), step: key.1.clone(), action, cause }
    }

    /// Returns whether a step around a scope is skipped or settled, so that the scope does not continue.
    fn is_left_out(&self, scope: &ScopePath) -> bool {
        let is_ended = |opener| self.skipped.contains_key(&opener) || self.settled.contains_key(&opener);
        !self.positions.contains_key(scope) && openers(scope).any(|(_, opener)| is_ended(opener))
    }

    /// Returns whether a scope belongs to an item dropped by another list: the opener opens other scopes only.
    fn is_dropped(&self, scope: &ScopePath) -> bool {
        openers(scope)
            .any(|(around, opener)| !self.positions.contains_key(&around) && self.listed.contains(&opener))
    }

    /// Returns whether a waiting step begins again, and its children with it.
    fn reopens(&self, key: &(ScopePath, StepId), planned: &Decision) -> bool {
        let Cause::Waits(waits) = &planned.cause else { return false };
        let awaits_children = waits.iter().any(|wait| wait.on == WaitKind::Children);
        let begins = self.started.contains_key(key) || self.opened.contains(key);
        self.reran.contains_key(key) || awaits_children && begins
    }

    /// Returns the decision about a step if the plan differs.
    fn decided<P: Program>(
        &self,
        program: &P,
        key: &(ScopePath, StepId),
        planned: &Decision,
    ) -> Option<(Action, Cause)> {
        let is_run = matches!(planned.action, Action::Run | Action::Retry | Action::Restart);
        let was_done = planned.action != Action::Skip;
        if is_run
            && planned.cause == Cause::Ready
            && let Some(cause) = self.recorded(key)
        {
            // An opener that is entered again.
            return Some((Action::Run, cause));
        }
        if let Some(input) = self.started.get(key) {
            return match input {
                Input::Unknown(step) if !is_run => Some(self.compared(key, step, was_done)),
                Input::Unknown(step) if matches!(planned.cause, Cause::EvidenceFailed(_)) => None,
                // The answer counts if the results upstream stay the same.
                Input::Unknown(step) if matches!(planned.cause, Cause::Come(_)) => {
                    Some((Action::Recheck, Cause::UpstreamChanged(step.clone())))
                }
                Input::InForce if !is_run => {
                    let is_first = self.tries.get(key).is_some_and(|at| at.epoch == 0 && at.attempt == 1);
                    Some(self.begun(key, if is_first { Cause::Ready } else { Cause::Requested }))
                }
                _ => None,
            };
        }
        let is_open = matches!(planned.action, Action::Reuse | Action::Wait | Action::Ask);
        if let Some(step) = self.rejoined.get(key).filter(|_| is_open) {
            let cause = self.recorded(key).unwrap_or_else(|| Cause::UpstreamChanged(step.clone()));
            return Some((Action::Run, cause));
        }
        if let Some(cause) = self.skipped.get(key) {
            return (planned.action != Action::Skip).then(|| (Action::Skip, skipped_by(cause)));
        }
        // The list of items is known only at the run of the opener.
        if let Some((_, cause)) = self.around(&key.0).filter(|_| planned.action == Action::Run) {
            return Some((Action::Recheck, cause));
        }
        // A step without a start: its end is in force, or its turn did not come.
        let shape = program.shape().of_scope(&key.0)?;
        let Some(position) = self.positions.get(&key.0) else {
            return match planned.action {
                Action::Reuse => self.around(&key.0),
                Action::Ask => self.settled.get(key).map(|by| (Action::Reuse, Cause::Settled(by.clone()))),
                _ => None,
            };
        };
        let place = shape.place(key.1.as_str())?;
        let is_leaf = shape.steps()[place].children.is_none();
        let is_finished = !Unfinished::of(shape, position).has(place)
            && position.frontier.iter().all(|entry| entry.step != key.1 || entry.status == Status::Ready);
        let seq = position.ledger.get(&key.1).map(|settled| settled.seq);
        let by = self.settled.get(key).cloned();
        ((is_leaf || by.is_some() || planned.action == Action::Ask)
            && is_finished
            && !matches!(planned.action, Action::Reuse | Action::Skip | Action::Wait))
        .then_some((Action::Reuse, by.map_or(Cause::Finished(seq), Cause::Settled)))
    }

    /// Returns the decision about a finished step of a scope that the dry run does not enter, if the step around it begins
    /// again or is joined again.
    fn around(&self, scope: &ScopePath) -> Option<(Action, Cause)> {
        openers(scope).find_map(|(_, opener)| match (self.started.get(&opener), self.rejoined.get(&opener)) {
            (Some(Input::Unknown(step)), _) => Some(self.compared(&opener, step, true)),
            (_, Some(step)) => Some((Action::Recheck, Cause::UpstreamChanged(step.clone()))),
            // A new list of items, known only at the run of the opener.
            (Some(Input::InForce), None) if !self.listed.contains(&opener) => {
                Some((Action::Recheck, Cause::UpstreamChanged(opener.1)))
            }
            _ => None,
        })
    }

    /// Returns the decision about a step with an unknown input. Without a result to compare, the step runs in any case.
    fn compared(&self, key: &(ScopePath, StepId), upstream: &StepId, was_done: bool) -> (Action, Cause) {
        let upstream = upstream.clone();
        let was_done = was_done || self.reran.contains_key(key);
        // The result of an opener comes back with the results below.
        let is_below = was_done
            && matches!(self.reran.get(key), None | Some(RerunCause::UpstreamChanged { .. }))
            && openers(&key.0).any(|(_, opener)| self.reusable.contains(&opener));
        match (is_below || self.reusable.contains(key), was_done) {
            (true, _) => (Action::Recheck, Cause::UpstreamChanged(upstream)),
            (false, true) => (Action::Run, self.recorded(key).unwrap_or(Cause::UpstreamChanged(upstream))),
            (false, false) => (Action::Run, Cause::After(vec![upstream])),
        }
    }

    /// Returns the decision about a started step. `first_cause`: the cause of a first attempt without a recorded cause.
    fn begun(&self, key: &(ScopePath, StepId), first_cause: Cause) -> (Action, Cause) {
        if let Some(cause) = self.recorded(key) {
            return (Action::Run, cause);
        }
        match self.tries.get(key).filter(|at| at.attempt > 1) {
            Some(at) => (Action::Retry, Cause::Failed(Try { attempt: at.attempt - 1, ..at.clone() })),
            None => (Action::Run, first_cause),
        }
    }

    /// Returns the recorded cause of the rerun of a step. An unnamed upstream step is the opener.
    fn recorded(&self, key: &(ScopePath, StepId)) -> Option<Cause> {
        Some(match self.reran.get(key)? {
            RerunCause::EvidenceFailed { claims } => Cause::EvidenceFailed(claims.clone()),
            RerunCause::UpstreamChanged { step } => {
                Cause::UpstreamChanged(step.clone().or_else(|| Some(key.0.opened_by()?.0))?)
            }
            RerunCause::DefinitionChanged => Cause::Redefined,
            RerunCause::Requested { by_rollback: true, .. } => Cause::RolledBack,
            RerunCause::Requested { .. } => Cause::Requested,
        })
    }
}

/// Returns the cause of a skip.
fn skipped_by(cause: &SkipCause) -> Cause {
    match cause.clone() {
        SkipCause::Need(need) => Cause::NeedSkipped(need),
        SkipCause::Condition(condition) => Cause::ConditionFalse(condition),
        SkipCause::UpstreamFailed(step) => Cause::UpstreamFailed(step),
        SkipCause::ByHand(by) => Cause::Settled(by),
    }
}

/// Returns the question about a step at its turn.
fn asked_in_turn(scope: &ScopePath, step: &StepId) -> Decision {
    let (scope, step) = (scope.clone(), step.clone());
    Decision { scope, step, action: Action::Ask, cause: Cause::AskedInTurn }
}

/// Lists a scope and the scopes around, each with the opener.
fn openers(scope: &ScopePath) -> impl Iterator<Item = (ScopePath, (ScopePath, StepId))> {
    let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    around.filter_map(|scope| {
        let opener = (scope.parent()?, scope.opened_by()?.0);
        Some((scope, opener))
    })
}
