//! Steps in doubt: the questions to a person, and the decisions.

use serde_json::json;

use crate::evidence::Site;
use crate::id::{RunId, ScopePath, StepId};
use crate::plan::shape::Shape;
use crate::plan::{Action, Cause, Decision, steps_in_lost};
use crate::projection::events::RerunCause;
use crate::record::{EndDigests, Ending, FrontierEntry, Note, Pack, Phase, Position, Record, Trace, Verdict};
use crate::store::{Scan, ScanOrder};

use super::begin::decode_state;
use super::reruns::opener_of;
use crate::engine::inspect::{Snapshot, position_of};
use crate::engine::scope::{Scope, ScopeId};
use crate::engine::session::Session;
use crate::engine::walk::choice::settled_by_person;
use crate::engine::walk::invalidate::invalidated;
use crate::engine::walk::rewind::drop_chain;
use crate::engine::walk::trace::{EndResult, digests_of, trace_of};
use crate::engine::{
    Answers, Doubtful, EXITED_KEY, Engine, Exited, Follow, KnownOutputs, OnDoubt, Program, Recovered,
    ResumeFrom, RunError, Settlement, StepRef, TreatAs,
};

/// Limit of steps in doubt per scope that evidence may settle, since each step is checked separately.
const QUESTIONS_MAX: usize = 100;
/// Mark in the note about an invalid step: a person confirmed the rerun.
pub(crate) const CONFIRMED: &str = "confirmed";

/// Returns the questions about steps of a scope that lost records may have started.
pub(crate) fn questions_of_lost(
    shape: &Shape,
    scope: &ScopePath,
    position: &Position,
    lost: u64,
) -> Vec<Decision> {
    let ask = |place: usize| Decision {
        scope: scope.clone(),
        step: shape.steps()[place].id.clone(),
        action: Action::Ask,
        cause: Cause::InLost(lost),
    };
    steps_in_lost(shape, position, lost).into_iter().map(ask).collect()
}

/// A resume that may abandon steps in doubt.
#[derive(Clone, Copy)]
pub(crate) struct AbandonRequest<'a> {
    pub(crate) from: Option<&'a ResumeFrom>,
    /// True if the resume adopts a definition.
    pub(crate) adopts: bool,
    /// True if a step without an answer is asked about.
    pub(crate) asks: bool,
    pub(crate) answers: &'a Answers,
}

/// Asks about interrupted steps that the resume would silently abandon:
///
/// - after a rerun of another step: steps of the main scope that left the frontier, but come again later,
/// - after the adoption of a definition: steps of scopes that are abandoned.
///
/// A rollback to a checkpoint asks nothing: the caller knows the later steps.
///
/// `before`: the position of the main scope in the graph `began_with`. `after`: the position in the current
/// graph.
///
/// # Errors
/// [`RunError::InDoubt`]: there are questions. [`RunError::Changed`]: the caller's decision needs the definition so far.
pub(crate) async fn check_abandoned(
    engine: &Engine,
    run: &RunId,
    began_with: &Shape,
    (before, after): (&Position, &Position),
    request: AbandonRequest<'_>,
) -> Result<(), RunError> {
    let mut questions = Vec::new();
    if let Some(ResumeFrom::Step(named)) = request.from {
        let is_open = |step: &StepId| after.frontier.iter().any(|entry| entry.step == *step);
        let main = ScopePath::main();
        let cut = questions_at(before, began_with, &main);
        questions.extend(cut.filter(|question| question.step != *named && !is_open(&question.step)));
    }
    if request.adopts && !matches!(request.from, Some(ResumeFrom::Checkpoint(_) | ResumeFrom::End)) {
        let main = ScopePath::main();
        let goes_on =
            |step: &StepId| after.frontier.iter().any(|entry| entry.step == *step) || after.asks_about(step);
        let mut gone = questions_at(before, began_with, &main).filter(|asked| !goes_on(&asked.step));
        if let Some(Decision { step, .. }) =
            gone.find(|asked| request.answers.retries_at_once(&asked.scope, &asked.step))
        {
            let why = format!("step `{step}` is in doubt, and the changed definition lacks the step");
            return Err(RunError::Changed { run: run.clone(), why });
        }
        let left = questions_of_abandoned(engine, run, began_with, (before, after)).await?;
        if let Some(Decision { scope, step, .. }) = left.first()
            && (!request.asks || request.answers.about(scope, step).is_some())
        {
            let why = format!(
                "step `{scope}/{step}` is in doubt, and the changed definition does not continue its scope"
            );
            return Err(RunError::Changed { run: run.clone(), why });
        }
        questions.extend(left);
    }
    questions.retain(|asked| !request.answers.retries(&asked.scope, &asked.step));
    if questions.is_empty() { Ok(()) } else { Err(RunError::InDoubt { run: run.clone(), questions }) }
}

/// Returns the questions about steps in abandoned scopes: their opener changed or is gone.
async fn questions_of_abandoned(
    engine: &Engine,
    run: &RunId,
    began_with: &Shape,
    (before, after): (&Position, &Position),
) -> Result<Vec<Decision>, RunError> {
    let goes_on = |step: &StepId| {
        let is_open = after.frontier.iter().any(|entry| entry.step == *step && entry.has_children());
        is_open || after.asks_about(step)
    };
    let open = before.frontier.iter().filter(|entry| entry.has_children()).map(|entry| &entry.step);
    let left: Vec<&StepId> = open.filter(|step| !goes_on(step)).collect();
    let mut questions = Vec::new();
    if left.is_empty() {
        return Ok(questions);
    }
    for head in &Snapshot::read(engine.store.as_ref(), run).await?.heads {
        let scope = &head.record.header().scope;
        let mut top = scope.clone();
        while let Some(above) = top.parent().filter(|above| !above.is_main()) {
            top = above;
        }
        let opener = opener_of(began_with, &top).filter(|opener| left.contains(&opener));
        if let Some(shape) = opener.and_then(|_| began_with.of_scope(scope)) {
            questions.extend(questions_at(&position_of(&head.record)?, shape, scope));
        }
    }
    Ok(questions)
}

/// Returns the questions about the interrupted steps of a scope's position.
pub(crate) fn questions_at<'a>(
    position: &'a Position,
    shape: &'a Shape,
    scope: &'a ScopePath,
) -> impl Iterator<Item = Decision> + 'a {
    let is_cut = |entry: &&FrontierEntry| entry.is_unsettled() && shape.must_ask(position, &entry.step);
    position.frontier.iter().filter(is_cut).map(|entry| Decision {
        scope: scope.clone(),
        step: entry.step.clone(),
        action: Action::Ask,
        cause: Cause::of_doubt(position, entry),
    })
}

/// Returns the interrupted non-idempotent steps of a position.
pub(crate) fn cut_in(position: &Position, shape: &Shape) -> Vec<StepId> {
    let cut = position.frontier.iter().filter(|entry| entry.is_unsettled());
    cut.map(|entry| &entry.step).filter(|step| shape.must_ask(position, step)).cloned().collect()
}

/// Returns the questions about the interrupted non-idempotent steps of a reopened scope.
///
/// `before`: the graph at the start of the steps, if different.
pub(crate) fn questions_of_cut<S>(scope: &Scope<'_, S>, before: Option<&Shape>) -> Vec<Decision> {
    let before = before.and_then(|shape| shape.of_scope(scope.path()));
    let is_in_doubt = |entry: &&FrontierEntry| {
        let mut graphs = before.into_iter().chain([scope.shape]);
        scope.interrupted.contains(&entry.step)
            && graphs.any(|shape| shape.must_ask(&scope.position, &entry.step))
    };
    let ask = |entry: &FrontierEntry| Decision {
        scope: scope.path().clone(),
        step: entry.step.clone(),
        action: Action::Ask,
        cause: Cause::of_doubt(&scope.position, entry),
    };
    scope.position.frontier.iter().filter(is_in_doubt).map(ask).collect()
}

/// An interrupted step with an effect proved by evidence: its output, and the verified claims.
#[derive(Debug)]
pub(crate) struct RecoveredStep<O> {
    step: StepId,
    recovered: Recovered<O>,
}

impl<O> RecoveredStep<O> {
    /// Returns whether this settles the question.
    pub(crate) fn is_about(&self, question: &Decision) -> bool {
        self.step == question.step && question.cause.is_of_one_try()
    }
}

/// A scope with steps in doubt: its graph, the place of its evidence, and its state.
pub(crate) struct DoubtScope<'a, S> {
    pub(crate) run: &'a RunId,
    pub(crate) scope: &'a ScopePath,
    pub(crate) shape: &'a Shape,
    pub(crate) site: &'a Site,
    pub(crate) state: &'a S,
}

/// Returns the steps in doubt of a scope that their evidence proves to be done, and removes their questions.
///
/// Only claims that are `ok` now count, and pins taken at the end of a step do not: the end was not observed. A
/// dry check (`waits` false) ignores the time limits of claims that may hold later.
pub(crate) async fn recovered<P: Program>(
    engine: &Engine,
    program: &P,
    doubt: DoubtScope<'_, P::State>,
    questions: &mut Vec<Decision>,
    waits: bool,
) -> Vec<RecoveredStep<P::Output>> {
    let DoubtScope { run, scope, shape, site, state } = doubt;
    let mut found = Vec::new();
    for (at, question) in std::mem::take(questions).into_iter().enumerate() {
        let is_cut = question.scope == *scope && question.cause.is_of_one_try();
        let place = shape.place(question.step.as_str()).filter(|_| is_cut && at < QUESTIONS_MAX);
        let Some(place) = place else {
            questions.push(question);
            continue;
        };
        let step_ref = StepRef { scope, level: shape.level(), place, step: &shape.steps()[place] };
        let exited = exited_at(engine, (run, scope), &question).await;
        let checked = match program.recover(step_ref, state, exited.as_ref()).await {
            Some(mut result) => {
                if !waits {
                    result.pack.claims.iter_mut().for_each(|claim| claim.terms.within_ms = None);
                }
                let site = site.clone().with_exit_code(exited.map(|exited| exited.exit_code));
                let pack = engine.verifier.verify(&result.pack, &site).await;
                Some(Recovered { pack, ..result }).filter(|result| result.pack.verdict() == Verdict::Ok)
            }
            None => None,
        };
        match checked {
            Some(recovered) => found.push(RecoveredStep { step: question.step, recovered }),
            None => questions.push(question),
        }
    }
    found
}

/// Reads the recorded end of the attempt in question; `None` if there is no readable record.
async fn exited_at(
    engine: &Engine,
    (run, scope): (&RunId, &ScopePath),
    question: &Decision,
) -> Option<Exited> {
    let Cause::Unbelieved(at) = &question.cause else { return None };
    let order = ScanOrder::NewestFirst;
    let (scope, step) = (Some(scope.clone()), Some(question.step.to_string()));
    let mut scan = Scan { scope, step, phase: Some("progress"), order, ..Scan::of(run) };
    loop {
        let page = engine.store.scan(&scan).await.ok()?;
        let is_it = |record: &&Record| record.header().at == *at;
        let report = |record: &Record| match &record.header().phase {
            Phase::Progress { key, value } if key == EXITED_KEY => Some(value.clone()),
            _ => None,
        };
        if let Some(value) = page.records.iter().filter(is_it).find_map(report) {
            let exit_code = i32::try_from(value["exit_code"].as_i64()?).ok()?;
            return Some(Exited { exit_code, outputs: value["outputs"].as_object().cloned() });
        }
        scan.cursor = Some(page.next?);
    }
}

/// Returns the questions about a scope that evidence answers, for the state of a record.
pub(crate) async fn recoverable<P: Program>(
    engine: &Engine,
    program: &P,
    site: &Site,
    record: &Record,
    asked: Vec<Decision>,
) -> Result<Vec<Decision>, RunError> {
    if !asked.iter().any(|question| question.cause.is_of_one_try()) {
        return Ok(Vec::new());
    }
    let (shape, header) = (program.shape(), record.header());
    let state = decode_state(program, shape.level(), record)?;
    let doubt = DoubtScope { run: &header.run, scope: &header.scope, shape, site, state: &state };
    Ok(recoverable_in(engine, program, doubt, asked, true).await)
}

/// As [`recoverable`], for a scope with its state.
pub(crate) async fn recoverable_in<P: Program>(
    engine: &Engine,
    program: &P,
    doubt: DoubtScope<'_, P::State>,
    asked: Vec<Decision>,
    waits: bool,
) -> Vec<Decision> {
    let found = recovered(engine, program, doubt, &mut asked.clone(), waits).await;
    let is_found = |question: &Decision| found.iter().any(|found| found.is_about(question));
    asked.into_iter().filter(is_found).collect()
}

/// Settles steps by their evidence.
///
/// # Errors
/// The program refuses a result.
pub(crate) fn settle_recovered<P: Program>(
    program: &P,
    scope: &mut Scope<'_, P::State>,
    found: Vec<RecoveredStep<P::Output>>,
) -> Result<(), RunError> {
    for RecoveredStep { step, recovered: Recovered { pack, output, ending } } in found {
        let is_open = scope.position.frontier.iter().any(|entry| entry.step == step);
        let Some(place) = scope.shape.place(step.as_str()).filter(|_| is_open) else { continue };
        let path = scope.path().clone();
        let step_ref =
            StepRef { scope: &path, level: scope.shape.level(), place, step: &scope.shape.steps()[place] };
        let follow = program.apply(&mut scope.state, step_ref, Settlement::Completed(output, &ending));
        let doubtful = Doubtful { scope: path.clone(), step, was_done: false };
        let follow = follow.map_err(|failure| not_settled(scope, &doubtful, &failure.error.join(": ")))?;
        let traced = traced(program, scope, place, Some(&pack));
        scope.settle_by_evidence(place, follow, (ending, pack));
        note_trace(scope, place, traced);
    }
    Ok(())
}

/// Returns the trace and the digests of a step settled by a person or by evidence, from its current input.
pub(crate) fn traced<P: Program>(
    program: &P,
    scope: &Scope<'_, P::State>,
    place: usize,
    evidence: Option<&Pack>,
) -> Option<(Trace, EndDigests)> {
    let trace = trace_of(program, scope, place).filter(|_| !scope.shape.is_routed())?;
    let output = program.output_of(scope.step_ref(place), &scope.state);
    let digests = digests_of(scope, place, &EndResult { output, evidence, children: None });
    Some((trace, digests))
}

/// Writes the trace and the digests into the record of the end.
pub(crate) fn note_trace<S>(scope: &mut Scope<'_, S>, place: usize, traced: Option<(Trace, EndDigests)>) {
    let Some((trace, digests)) = traced else { return };
    scope.digests.insert(scope.step_id(place).clone(), digests);
    if let Some(last) = scope.drafts.last_mut() {
        (last.trace, last.digests) = (Some(trace), Some(digests));
    }
}

/// Applies the decision of a person, `by`, about the steps in doubt of a scope. Writes drafts, unless all these steps
/// come later anyway.
///
/// # Errors
/// - [`RunError::InDoubt`]: there is no decision, or there are other questions.
/// - [`RunError::NotSettled`]: the decision is not possible for a step.
pub(crate) fn apply_decisions<P: Program>(
    program: &P,
    scope: &mut Scope<'_, P::State>,
    questions: Vec<Decision>,
    (on_doubt, by): (&OnDoubt<P::State>, Option<&str>),
) -> Result<(), RunError> {
    let run = scope.chain.run.clone();
    let is_ours = |decision: &Decision| {
        let settles = decision.cause.is_of_one_try()
            || matches!(decision.cause, Cause::Undone | Cause::Begun | Cause::InLost(_));
        decision.scope == *scope.path() && settles
    };
    if !questions.iter().all(is_ours) {
        return Err(RunError::InDoubt { run, questions });
    }
    let open = on_doubt.unanswered(&questions);
    if !open.is_empty() {
        return Err(RunError::InDoubt { run, questions: open });
    }
    let answers = on_doubt.answers();
    for Decision { scope: path, step, cause, .. } in questions {
        let doubtful = Doubtful { scope: path, step, was_done: cause == Cause::Undone };
        let step = &doubtful.step;
        let answer = answers.about(&doubtful.scope, step);
        let is_open = scope.position.frontier.iter().any(|entry| entry.step == *step);
        if matches!(cause, Cause::InLost(_)) && !is_open {
            // The step runs at its turn.
            if answer != Some(TreatAs::Retry) {
                return Err(not_settled(scope, &doubtful, "an upstream step is not finished"));
            }
            continue;
        }
        let place = scope.shape.place(step.as_str());
        // The step runs at its turn, or the current definition lacks the step and has nothing to settle.
        if !is_open && place.is_some() == (answer == Some(TreatAs::Retry)) {
            continue;
        }
        let Some(place) = place.filter(|_| is_open) else {
            let lacks =
                if place.is_none() { "this definition lacks the step" } else { "it is no longer next" };
            return Err(RunError::Changed { run, why: format!("step `{step}` is in doubt, and {lacks}") });
        };
        let begun = scope.position.started_before(step).cloned();
        if let Some(begun) = begun.filter(|_| answer == Some(TreatAs::Done)) {
            let is_cut = !begun.has_children() && begun.is_unsettled();
            if is_cut && scope.shape.steps()[place].children.is_some() {
                let why = "the step is partly run, and its open scopes do not match this graph or run; \
                           it can only restart";
                return Err(not_settled(scope, &doubtful, why));
            }
            if !is_cut {
                scope.resume_as_decided(place);
                continue;
            }
            scope.entry_mut(place).at.iteration.clone_from(&begun.at.iteration);
        }
        match settled(program, scope, (place, &doubtful), on_doubt)? {
            Some(settled) => {
                let traced = traced(program, scope, place, None);
                scope.settle_as_decided(place, settled);
                note_trace(scope, place, traced);
                scope.note(settled_by_person(&doubtful.step, "done", by));
                if scope.position.frontier.is_empty() && scope.path().is_main() {
                    // The scope has ended without a rejoin.
                    drop_chain(&mut scope.position, scope.shape);
                }
            }
            None => {
                if matches!(cause, Cause::Undone | Cause::Begun) {
                    forget(program, scope, place);
                }
                rerun_confirmed(scope, place, by);
            }
        }
    }
    Ok(())
}

impl<P: Program> Session<'_, P> {
    /// Applies the answer of the resume to the question about a ready step. Returns the answer; `None` without an answer, or if
    /// the step cannot count as done.
    pub(crate) fn answer_in_turn(&mut self, id: ScopeId, place: usize) -> Option<TreatAs> {
        let program = self.program;
        let scope = self.scopes.get_mut(id);
        let (path, step) = (scope.path().clone(), scope.step_id(place).clone());
        if self.answers.retries(&path, &step) {
            // From pass 1, without the earlier result.
            forget(program, scope, place);
            rerun_confirmed(scope, place, self.by.as_deref());
            self.mark_dirty(id);
            return Some(TreatAs::Retry);
        }
        // A bare answer is about the questions before the resume.
        let named = self.answers.named.get(&(path.clone(), step.clone()));
        named.filter(|answer| **answer == TreatAs::Done)?;
        let known = match scope.position.started_before(&step) {
            Some(_) => KnownOutputs::Unknown,
            None => KnownOutputs::InState,
        };
        let step_ref =
            StepRef { scope: &path, level: scope.shape.level(), place, step: &scope.shape.steps()[place] };
        let settled = program.settle_as_done(step_ref, &mut scope.state, known).ok()?;
        let traced = traced(program, scope, place, None);
        scope.position.ask_no_more(&step);
        scope.settle_as_decided(place, settled);
        note_trace(scope, place, traced);
        scope.note(settled_by_person(&step, "done", self.by.as_deref()));
        self.mark_dirty(id);
        Some(TreatAs::Done)
    }
}

fn forget<P: Program>(program: &P, scope: &mut Scope<'_, P::State>, place: usize) {
    let (path, shape) = (scope.path().clone(), scope.shape);
    let step_ref = StepRef { scope: &path, level: shape.level(), place, step: &shape.steps()[place] };
    program.forget(step_ref, &mut scope.state);
}

/// Reruns a step in doubt, by decision of the person `by`.
fn rerun_confirmed<S>(scope: &mut Scope<'_, S>, place: usize, by: Option<&str>) {
    scope.redo_as_decided(place);
    let cause = RerunCause::Requested { by: by.map(ToOwned::to_owned), by_rollback: false };
    let mut note = invalidated(scope.step_id(place), &cause);
    if let Note::Event { data, .. } = &mut note {
        data[CONFIRMED] = json!(true);
    }
    scope.note(note);
}

/// Marks a step as done in the state of its scope, if a person decides so. Returns the next step and the phase
/// for the record.
fn settled<P: Program>(
    program: &P,
    scope: &mut Scope<'_, P::State>,
    (place, doubtful): (usize, &Doubtful),
    on_doubt: &OnDoubt<P::State>,
) -> Result<Option<(Follow, Phase)>, RunError> {
    let (path, step) = (&doubtful.scope, &scope.shape.steps()[place]);
    let step_ref = StepRef { scope: path, level: scope.shape.level(), place, step };
    let settled = match on_doubt {
        OnDoubt::Settle(settle) => match settle.settle(&mut scope.state, doubtful) {
            Ok(TreatAs::Retry) => return Ok(None),
            Ok(TreatAs::Done) => {
                let follow = next_of(scope.shape, place);
                let follow = follow.map_or_else(|| program.follow(step_ref, &scope.state), Ok);
                follow.map(|follow| (follow, Phase::Completed(Ending::default())))
            }
            Err(why) => Err(why),
        },
        _ if on_doubt.answers().about(path, &step.id) == Some(TreatAs::Done) => {
            let known = if doubtful.was_done { KnownOutputs::InState } else { KnownOutputs::Unknown };
            program.settle_as_done(step_ref, &mut scope.state, known)
        }
        _ => return Ok(None),
    };
    settled.map(Some).map_err(|why| not_settled(scope, doubtful, &why))
}

fn not_settled<S>(scope: &Scope<'_, S>, doubtful: &Doubtful, why: &str) -> RunError {
    let Doubtful { scope: path, step, .. } = doubtful.clone();
    RunError::NotSettled { run: scope.chain.run.clone(), scope: path, step, why: why.to_owned() }
}

/// Returns the next step, if there is no choice.
fn next_of(shape: &Shape, place: usize) -> Option<Follow> {
    match shape.routes(place) {
        [] => Some(Follow::Needs),
        [only] if !shape.steps()[place].may_end => Some(Follow::To(*only)),
        _ => None,
    }
}
