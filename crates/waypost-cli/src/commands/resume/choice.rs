//! Choices about unfinished steps: `--skip STEP`, and `--treat-as done` of failed steps with `--output`.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use waypost::engine::{Answers, Snapshot, TreatAs};
use waypost::plan::{Action, Cause, Decision};
use waypost::record::{Choice, FrontierEntry, Occasion, SettleBy};
use waypost::store::overlay::Overlay;
use waypost::store::{Store, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::Workflow;

use crate::cli::ResumeArgs;
use crate::context::Context;
use crate::error::Error;
use crate::format::text::quoted;
use crate::output::shown;
use crate::run::current_evidence;
use crate::run::dead_letters::counts;
use crate::run::definition::Chosen;
use crate::run::doubt::has_result;
use crate::run::environment::person;
use crate::run::reference::{StepRef, encoded, is_scope, is_step};
use crate::view::step_names::{StepNames, called};
use crate::view::{file_of, step_of};

use super::dry::planned;
use super::{Prepared, from_step};

/// A step by its scope.
type StepAt = (ScopePath, StepId);

/// Reads the choices from the options of `resume`. `--treat-as done` settles failed steps if no step is in doubt, and cut
/// steps at their turn if evidence upstream has failed.
///
/// # Errors
/// [`Error::Usage`]: a step is in a scope that has not started, an output is for a step not settled as done, or a later
/// step reads outputs that are not given.
pub(super) async fn of(
    args: &ResumeArgs,
    store: &dyn Store,
    (snapshot, chosen): (&Snapshot, &Chosen),
    asked: Asked,
    at: Timestamp,
) -> Result<BTreeMap<StepAt, Choice>, Error> {
    let mut settled: BTreeMap<StepAt, SettleBy> = BTreeMap::new();
    let (run, workflow) = (&snapshot.entry.summary.run, &chosen.workflow);
    let position = snapshot.newest().position().unwrap_or_default();
    let in_turn = |step: &StepId| {
        let entry = position.open_entries().find(|entry| entry.step == *step);
        chosen.shape.step(step.as_str()).is_some_and(|own| own.is_asked(&position, entry))
    };
    let answers = &args.answers;
    let done = || SettleBy::Done(Map::new());
    let settles = |(scope, step): &StepAt| answers.about(scope, step) == Some(TreatAs::Done);
    let settles_failed = |at: &StepAt| {
        settles(at)
            && (matches!(asked, Asked::Nothing | Asked::OnTheWay | Asked::InTurn)
                || answers.named.contains_key(at))
    };
    if !args.treat_as.is_empty() {
        let failed = failed_steps(store, run, &ScopePath::main()).await?;
        if asked == Asked::InTurn && answers.rest == Some(TreatAs::Done) && !failed.is_empty() {
            let message =
                "`--treat-as done` names no step, but a step failed and another is in doubt at its turn";
            return Err(Error::usage(message, "name the step: `--treat-as done=STEP`"));
        }
        settled.extend(failed.into_iter().filter(settles_failed).map(|step| (step, done())));
        for at in answers.named.keys().filter(|at| settles(at)) {
            if failed_steps(store, run, &at.0).await?.contains(at) {
                settled.insert(at.clone(), done());
            }
        }
    }
    let is_in_doubt = |at: &StepAt| {
        let is_cut = |entry: &FrontierEntry| entry.step == at.1 && entry.is_unsettled();
        let is_asked = || position.open_entries().any(is_cut) || in_turn(&at.1);
        // In other scopes, a named answer is about a question of the plan.
        settles(at) && if at.0.is_main() { is_asked() } else { answers.named.contains_key(at) }
    };
    if asked == Asked::BeforeEvidence {
        let cut = position.open_entries().filter(|entry| entry.is_unsettled() && !entry.has_children());
        let cut = cut.filter(|entry| settles(&(ScopePath::main(), entry.step.clone())));
        let cut = cut.filter(|entry| workflow.step(entry.step.as_str()).is_some_and(|step| !step.idempotent));
        settled.extend(cut.map(|entry| ((ScopePath::main(), entry.step.clone()), done())));
    }
    for (path, value) in &args.output {
        let mut named = None;
        if let Some((step, name)) =
            path.rsplit_once('/').map_or(path.as_str(), |(_, step)| step).split_once('.')
        {
            let text = encoded(store, run, &path[..path.len() - name.len() - 1]).await?;
            let step = StepId::new(step).ok();
            let scope = StepRef::parse(&text).scope.unwrap_or_else(ScopePath::main);
            named = step.map(|step| ((scope, step), name));
        }
        let named = named.filter(|(step, _)| settled.contains_key(step) || is_in_doubt(step));
        let Some((step, name)) = named else {
            let message = format!(
                "`--output {path}` does not name a failed step, or a step in doubt, settled by `--treat-as done`"
            );
            return Err(Error::usage(
                message,
                "give STEP.NAME=VALUE, with the id of a failed step or a step in doubt",
            ));
        };
        if let SettleBy::Done(outputs) = settled.entry(step).or_insert_with(done) {
            outputs.insert(name.to_owned(), Value::from(value.as_str()));
        }
    }
    for (step, settle) in &settled {
        if let SettleBy::Done(outputs) = settle {
            refuse_missing(workflow, run, step, outputs)?;
        }
    }
    let asked = position.reusable.keys().filter(|step| in_turn(step));
    let asked = asked.filter(|step| !has_result(snapshot.newest(), step));
    for at in asked.map(|step| (ScopePath::main(), step.clone())).filter(settles) {
        if !settled.contains_key(&at) {
            refuse_missing(workflow, run, &at, &Map::new())?;
        }
    }
    let scopes = store.scopes(run).await?;
    for skip in &args.skip {
        let on = StepRef::parse(skip).scope;
        if on.is_some_and(|scope| !scope.is_main() && !scopes.contains(&scope)) {
            return Err(not_started(workflow, skip));
        }
        settled.insert(skipped(args, (snapshot, workflow), skip)?, SettleBy::Skip);
    }
    let by = person();
    let choice = |(step, settle)| (step, Choice { settle, by: by.clone(), at });
    Ok(settled.into_iter().map(choice).collect())
}

/// Returns the step of a `--skip`.
fn skipped(
    args: &ResumeArgs,
    (snapshot, workflow): (&Snapshot, &Workflow),
    skip: &str,
) -> Result<StepAt, Error> {
    let StepRef { scope, step } = StepRef::parse(skip);
    let scope = scope.unwrap_or_else(ScopePath::main);
    let named = step.as_deref().and_then(|step| StepId::new(step).ok());
    let Some(step) = named else {
        return Err(not_started(workflow, skip));
    };
    if step_of(workflow, &scope, step.as_str()).is_none()
        && let Some(near) = workflow.step_near(skip).filter(|near| workflow.step(near).is_some())
    {
        let meant = |own: &String| if own == skip { near.to_owned() } else { own.clone() };
        let corrected = ResumeArgs { skip: args.skip.iter().map(meant).collect(), ..args.clone() };
        let command = corrected.command(&snapshot.entry.summary.run);
        let what = format!("step `{skip}` in the workflow");
        return Err(Error::not_found(what, format!("did you mean `{command}`?")));
    }
    Ok((scope, step))
}

/// Returns why a step of a scope without records cannot be skipped.
fn not_started(workflow: &Workflow, skip: &str) -> Error {
    let called = StepNames::of(workflow).plain(skip);
    let opener = skip.split(['/', '~', ':']).next().unwrap_or_default();
    if workflow.step(opener).is_none() {
        return Error::not_found(
            format!("step `{called}` in the workflow"),
            "`waypost show` lists the steps",
        );
    }
    let message = format!("cannot skip `{called}`: no such scope of `{opener}` has started");
    Error::usage(message, format!("`--skip {opener}` skips all of `{opener}`"))
}

/// Returns the failed steps to settle in a scope. Of a failed group or included file, these are the failed steps inside; of
/// failed items, the step that opened them.
async fn failed_steps(store: &dyn Store, run: &RunId, scope: &ScopePath) -> Result<Vec<StepAt>, Error> {
    let scopes = store.scopes(run).await?;
    let position = store.newest(run, scope).await?.position().unwrap_or_default();
    let (mut failed, mut within) = (Vec::new(), vec![(scope.clone(), position)]);
    while let Some((path, position)) = within.pop() {
        for entry in position.failed.iter().filter(|entry| entry.exited.is_none()) {
            let opens = entry.fan.as_ref().is_some_and(|fan| fan.items.is_none());
            let known = within.len();
            let is_child = |child: &&ScopePath| {
                let opener = child.opened_by().filter(|_| child.parent().as_ref() == Some(&path));
                opener.is_some_and(|(opener, _)| opener == entry.step)
            };
            for child in scopes.iter().filter(|_| opens).filter(is_child) {
                let newest = store.newest(run, child).await?;
                let position = newest.position().unwrap_or_default();
                if !position.failed.is_empty() && counts(store, run, &newest).await? {
                    within.push((child.clone(), position));
                }
            }
            if within.len() == known {
                failed.push((path.clone(), entry.step.clone()));
            }
        }
    }
    Ok(failed)
}

/// Returns the failed steps of a scope within items. `text`: the scope or a step.
async fn failed_within(
    store: &dyn Store,
    run: &RunId,
    names: &StepNames,
    text: &str,
) -> Result<Vec<StepAt>, Error> {
    let Some(scope) = StepRef::parse(text).scope else { return Ok(Vec::new()) };
    let is_there = store.scopes(run).await?.contains(&scope);
    if !is_there || !counts(store, run, &store.newest(run, &scope).await?).await? {
        return Ok(Vec::new());
    }
    let mut failed = failed_steps(store, run, &scope).await?;
    failed.retain(|(path, step)| covers(names, path, step, text));
    Ok(failed)
}

/// Refuses to settle a step as done if a later step reads a result that is not given.
fn refuse_missing(
    workflow: &Workflow,
    run: &RunId,
    (scope, step): &StepAt,
    outputs: &Map<String, Value>,
) -> Result<(), Error> {
    let is_given = |name: &str| outputs.contains_key(name);
    let file = file_of(workflow, scope);
    let missing: Vec<_> = file.readers_of_missing(step.as_str(), is_given).collect();
    let Some((_, first)) = missing.first() else { return Ok(()) };
    let readers: Vec<String> = missing.iter().map(|(reader, _)| format!("`{}`", reader.id)).collect();
    let readers = readers.join(", ");
    let step = called(Some(workflow), scope, step.as_str());
    let message =
        format!("cannot settle step `{step}` of run {run} as done: outputs that {readers} reads are missing");
    let hint = match first {
        Some(name) => format!("`--output {step}.{name}=VALUE` gives the output"),
        None => format!("`--skip {step}` skips the step"),
    };
    Err(Error::usage(message, hint))
}

/// Finds the steps of `--treat-as`. A named group, item or `foreach` stands for the steps in doubt inside.
///
/// # Errors
/// [`Error::Usage`]: a named step is not asked about, or decisions contradict each other.
pub(super) async fn answers(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    args: &ResumeArgs,
) -> Result<Answers, Error> {
    let mut answers = Answers::default();
    for given in args.treat_as.iter().filter(|given| given.steps.is_empty()) {
        if answers.rest.replace(given.treat_as).is_some_and(|rest| rest != given.treat_as) {
            let message = "both `--treat-as done` and `--treat-as retry` select all steps in doubt";
            return Err(Error::usage(message, "name steps in one of the options: `--treat-as done=STEP`"));
        }
    }
    let is_bare = args.treat_as.iter().all(|given| given.steps.is_empty());
    if answers.rest != Some(TreatAs::Done) && is_bare {
        return Ok(answers);
    }
    let undecided = ResumeArgs { dry_run: true, ..args.undecided() };
    let overlay = Arc::new(Overlay::over(Arc::clone(store)));
    let prepared = match Prepared::untold(context, store, run, &undecided).await {
        // The resume reports the error, with all options in its hint.
        Err(_) if is_bare => return Ok(answers),
        prepared => prepared?,
    };
    let plan = match planned(context, &overlay, &prepared, &undecided).await {
        Err(_) if is_bare => return Ok(answers),
        planned => planned.map_err(|error| error.of_resume(args, &[]))?.plan,
    };
    let asked = plan.decisions.iter().filter(|decision| decision.action == Action::Ask);
    let asked: Vec<&Decision> = asked.collect();
    let in_turn = asked.iter().filter(|asked| asked.cause == Cause::AskedInTurn);
    let in_turn: Vec<StepAt> = in_turn.map(|asked| (asked.scope.clone(), asked.step.clone())).collect();
    let asked: Vec<StepAt> =
        asked.into_iter().map(|asked| (asked.scope.clone(), asked.step.clone())).collect();
    let failed = failed_steps(store.as_ref(), run, &ScopePath::main()).await?;
    let names = StepNames::of(&prepared.chosen.workflow);
    let from = args.from.as_deref().map(|from| from_step(&prepared.chosen.workflow, from)).transpose()?;
    for given in &args.treat_as {
        let is_done = given.treat_as == TreatAs::Done;
        let candidates: Vec<_> = asked.iter().chain(failed.iter().filter(|_| is_done)).cloned().collect();
        for text in &given.steps {
            let encoded = encoded(store.as_ref(), run, text).await?;
            let is_meant = |(scope, step): &&StepAt| {
                [text, &encoded].into_iter().any(|text| covers(&names, scope, step, text))
            };
            let mut meant: Vec<StepAt> = candidates.iter().filter(is_meant).cloned().collect();
            let is_rerun = from.as_ref().is_some_and(|(scope, step)| names_step(&names, scope, step, text));
            if is_rerun && is_done {
                return Err(both_ways(run, args, text));
            }
            if meant.is_empty() && is_rerun {
                // The request reruns the step without a question.
                meant.extend(from.clone());
            }
            if meant.is_empty() {
                let within = failed_within(store.as_ref(), run, &names, &encoded).await?;
                if within.is_empty() || !is_done {
                    let failed = if within.is_empty() { &failed } else { &within };
                    return Err(not_asked(run, text, &names, &asked, failed));
                }
                meant = within;
            }
            for (scope, step) in &meant {
                let before = answers.named.insert((scope.clone(), step.clone()), given.treat_as);
                if before.is_some_and(|before| before != given.treat_as) {
                    let step = names.called(scope, step.as_str());
                    let message = format!("`--treat-as` has two decisions about step `{step}`");
                    return Err(Error::usage(message, "name the step once"));
                }
            }
        }
    }
    // A question on record comes at the step's turn, and is known before the resume. A step that is partly done is asked
    // about by name.
    for at in in_turn.into_iter().filter(|_| answers.rest == Some(TreatAs::Done)) {
        let position = store.newest(run, &at.0).await?.position().unwrap_or_default();
        if position.had_effect(&at.1) && position.started_before(&at.1).is_none() {
            answers.named.entry(at).or_insert(TreatAs::Done);
        }
    }
    Ok(answers)
}

/// Returns whether a text names a step.
fn names_step(names: &StepNames, scope: &ScopePath, step: &StepId, text: &str) -> bool {
    names.called(scope, step.as_str()) == text || is_step(scope, step.as_str(), text)
}

/// Returns whether a text names a step or an enclosing scope.
fn covers(names: &StepNames, scope: &ScopePath, step: &StepId, text: &str) -> bool {
    let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    names_step(names, scope, step, text)
        || around.filter(|scope| !scope.is_main()).any(|scope| {
            let opener = scope.parent().zip(scope.opened_by());
            let is_opener = |(above, (opener, _)): (ScopePath, (StepId, String))| {
                names.called(&above, opener.as_str()) == text
            };
            names.path(&scope) == text || is_scope(&scope, text) || opener.is_some_and(is_opener)
        })
}

/// Returns the error of a resume that reruns a step and counts the step as done.
fn both_ways(run: &RunId, args: &ResumeArgs, text: &str) -> Error {
    let reruns = args.undecided().command(run);
    let until = args.until.clone().filter(|_| !args.only);
    let settles = ResumeArgs { from: None, only: false, until, ..args.clone() }.command(run);
    Error::usage(
        format!("`--from` reruns step `{}`, and `--treat-as done` keeps it", shown(text)),
        format!("`{reruns}` reruns the step; `{settles}` keeps the step"),
    )
}

/// Returns the error of a decision without a question. `failed`: the failed steps.
fn not_asked(run: &RunId, text: &str, names: &StepNames, asked: &[StepAt], failed: &[StepAt]) -> Error {
    let is_failed = failed.iter().any(|(scope, step)| covers(names, scope, step, text));
    let why = match is_failed {
        true => "the step failed, and is not in doubt".to_owned(),
        false => format!("the step is not in doubt in run {run}"),
    };
    let message = format!("cannot decide about step `{}`: {why}", shown(text));
    let asked: Vec<String> =
        asked.iter().map(|(scope, step)| format!("`{}`", names.called(scope, step.as_str()))).collect();
    match asked.is_empty() || is_failed {
        true => Error::usage(message, undecided_hint(run, names, failed)),
        false => Error::usage(message, format!("in doubt: {}", asked.join(", "))),
    }
}

/// Returns the commands for a run without a step in doubt.
fn undecided_hint(run: &RunId, names: &StepNames, failed: &[StepAt]) -> String {
    match failed {
        [] => format!("`waypost resume {run}` resumes without a decision"),
        [(scope, step), ..] => {
            let step = quoted(&names.called(scope, step.as_str()));
            format!(
                "`waypost resume {run}` retries failed steps; `waypost resume {run} --treat-as done={step}` settles the step as done"
            )
        }
    }
}

/// Applies `--treat-as` to steps with failed evidence. Returns the questions for the answer.
pub(super) async fn decide(
    context: &Context,
    store: &Arc<dyn Store>,
    (snapshot, chosen): (&Snapshot, &Chosen),
    answers: &Answers,
) -> Result<Asked, Error> {
    let look = current_evidence::look(store, snapshot, chosen, Occasion::Resume).await?;
    let mut plan = chosen.plan(store.as_ref(), snapshot, Some(&look.verdicts), context.now()).await?;
    look.tell_in(&mut plan, &chosen.shape);
    let of_evidence =
        |decision: &Decision| matches!(decision.cause, Cause::EvidenceFailed(_) | Cause::EvidenceUnknown(_));
    let has_doubt = plan.questions().any(|decision| !of_evidence(decision));
    let asks_later = plan.decisions.iter().any(|decision| decision.cause == Cause::AskedInTurn);
    let has_broken =
        plan.decisions.iter().any(|decision| decision.action == Action::Run && of_evidence(decision));
    let believed = current_evidence::believe(store, snapshot, chosen, (&plan, answers)).await?;
    Ok(match (has_doubt, has_broken) {
        (true, true) => Asked::BeforeEvidence,
        (true, false) => Asked::Now,
        (false, _) if !believed.is_empty() => Asked::Now,
        (false, _) if asks_later => Asked::InTurn,
        (false, _) if chosen.shape.has_evidence() => Asked::OnTheWay,
        (false, _) => Asked::Nothing,
    })
}

/// The scope of `--treat-as`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// No step is in doubt.
    Nothing,
    /// No step is in doubt now. Evidence may raise a question in this resume.
    OnTheWay,
    /// No step is in doubt now, but a step is at its turn.
    InTurn,
    /// Steps are in doubt.
    Now,
    /// Steps are in doubt, and the answers are written before the evidence of others is acted on.
    BeforeEvidence,
}

/// Returns why a bare `--treat-as` decides nothing.
pub(super) async fn nothing_to_decide(
    store: &dyn Store,
    run: &RunId,
    workflow: &Workflow,
) -> Result<Error, Error> {
    let failed = failed_steps(store, run, &ScopePath::main()).await?;
    let or_failed = if failed.is_empty() { " or failed" } else { "" };
    let message = format!("cannot decide: no step of run {run} is in doubt{or_failed}");
    Ok(Error::usage(message, undecided_hint(run, &StepNames::of(workflow), &failed)))
}
