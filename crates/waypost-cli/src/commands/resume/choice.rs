//! Choices about unfinished steps: `--skip STEP`, and `--treat-as done` of failed steps with `--output`.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use waypost::engine::{Answers, Snapshot, TreatAs};
use waypost::plan::{Action, Cause, Decision};
use waypost::record::{Choice, FrontierEntry, Occasion, Position, SettleBy};
use waypost::store::Store;
use waypost::{BranchPath, RunId, StepId};
use waypost_workflow::file::Workflow;

use crate::cli::ResumeArgs;
use crate::context::Context;
use crate::error::Error;
use crate::output::shown;
use crate::run::current_evidence;
use crate::run::definition::Chosen;
use crate::run::environment::person;
use crate::run::reference::{encoded, is_branch, is_step};
use crate::view::step_names::StepNames;

use super::Prepared;
use super::dry::planned;

/// Reads the choices from the options of `resume`. `--treat-as done` settles failed steps if no step is in doubt, and cut
/// steps at their turn if evidence upstream has failed.
///
/// # Errors
/// [`Error::Usage`]: a step is in an item or another scope, an output is for a step not settled as done, or a later
/// step reads outputs that are not given.
pub(super) fn of(
    args: &ResumeArgs,
    (snapshot, workflow): (&Snapshot, &Workflow),
    asked: Asked,
    at: Timestamp,
) -> Result<BTreeMap<StepId, Choice>, Error> {
    let mut settled: BTreeMap<StepId, SettleBy> = BTreeMap::new();
    let position = snapshot.newest().position().unwrap_or_default();
    let answers = &args.answers;
    let main = BranchPath::main();
    let settles = |step: &StepId| answers.about(&main, step) == Some(TreatAs::Done);
    let is_named = |step: &StepId| answers.named.contains_key(&(main.clone(), step.clone()));
    let settles_failed = |step: &StepId| {
        settles(step) && (matches!(asked, Asked::Nothing | Asked::OnTheWay) || is_named(step))
    };
    let failed: Vec<&FrontierEntry> =
        failed_steps(&position).filter(|entry| settles_failed(&entry.step)).collect();
    let is_scope = |entry: &&&FrontierEntry| entry.fan.as_ref().is_some_and(|fan| fan.items.is_none());
    if let Some(entry) = failed.iter().find(is_scope) {
        let step = &entry.step;
        let message = format!("cannot settle `{step}` as done: a step inside failed, and others did not run");
        return Err(Error::usage(message, format!("`--skip {step}` skips all of `{step}`")));
    }
    settled.extend(failed.iter().map(|entry| (entry.step.clone(), SettleBy::Done(Map::new()))));
    let is_in_doubt = |step: &StepId| {
        let is_cut = |entry: &FrontierEntry| entry.step == *step && entry.is_unsettled();
        settles(step) && (position.open_entries().any(is_cut) || position.asks_about(step))
    };
    if asked == Asked::BeforeEvidence {
        let cut = position.open_entries().filter(|entry| entry.is_unsettled() && !entry.has_children());
        let cut = cut.filter(|entry| settles(&entry.step));
        let cut = cut.filter(|entry| workflow.step(entry.step.as_str()).is_some_and(|step| !step.idempotent));
        settled.extend(cut.map(|entry| (entry.step.clone(), SettleBy::Done(Map::new()))));
    }
    for (path, value) in &args.output {
        let named = path.split_once('.').and_then(|(step, name)| Some((StepId::new(step).ok()?, name)));
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
        if let SettleBy::Done(outputs) = settled.entry(step).or_insert_with(|| SettleBy::Done(Map::new())) {
            outputs.insert(name.to_owned(), Value::from(value.as_str()));
        }
    }
    for (step, settle) in &settled {
        if let SettleBy::Done(outputs) = settle {
            refuse_missing(workflow, &snapshot.entry.summary.run, step, outputs)?;
        }
    }
    for step in &args.skip {
        if step.contains('/') {
            let called = StepNames::of(workflow).plain(step);
            let opener = step.split(['/', '~', ':']).next().unwrap_or_default();
            let has_items = workflow.step(opener).is_some_and(|step| step.work.foreach().is_some());
            let (kind, hint) = match has_items {
                true => ("an item", "`waypost dead-letters drop` skips a failed item".to_owned()),
                false => ("another scope", format!("`--skip {opener}` skips all of `{opener}`")),
            };
            let message = format!("cannot skip `{called}`: it is a step of {kind}");
            return Err(Error::usage(message, hint));
        }
        if let (None, Some(near)) =
            (workflow.step(step), workflow.step_near(step).filter(|near| workflow.step(near).is_some()))
        {
            let meant = |skip: &String| if skip == step { near.to_owned() } else { skip.clone() };
            let corrected = ResumeArgs { skip: args.skip.iter().map(meant).collect(), ..args.clone() };
            let command = corrected.command(&snapshot.entry.summary.run);
            let what = format!("step `{step}` in the workflow");
            return Err(Error::not_found(what, format!("did you mean `{command}`?")));
        }
        let step = StepId::new(step).map_err(Error::from_name)?;
        settled.insert(step, SettleBy::Skip);
    }
    let by = person();
    let choice = |(step, settle)| (step, Choice { settle, by: by.clone(), at });
    Ok(settled.into_iter().map(choice).collect())
}

/// Refuses to settle a step as done if a later step reads a result that is not given.
fn refuse_missing(
    workflow: &Workflow,
    run: &RunId,
    step: &StepId,
    outputs: &Map<String, Value>,
) -> Result<(), Error> {
    let is_given = |name: &str| outputs.contains_key(name);
    let missing: Vec<_> = workflow.readers_of_missing(step.as_str(), is_given).collect();
    let Some((_, first)) = missing.first() else { return Ok(()) };
    let readers: Vec<String> = missing.iter().map(|(reader, _)| format!("`{}`", reader.id)).collect();
    let readers = readers.join(", ");
    let message =
        format!("cannot settle step `{step}` of run {run} as done: outputs that {readers} reads are missing");
    let hint = match first {
        Some(name) => format!("`--output {step}.{name}=VALUE` gives the output"),
        None => format!("`--skip {step}` skips the step"),
    };
    Err(Error::usage(message, hint))
}

/// Returns the failed steps of the main scope.
fn failed_steps(position: &Position) -> impl Iterator<Item = &FrontierEntry> {
    position.failed.iter().filter(|entry| entry.exited.is_none())
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
    if args.treat_as.iter().all(|given| given.steps.is_empty()) {
        return Ok(answers);
    }
    let undecided = ResumeArgs { dry_run: true, ..args.undecided() };
    let prepared = Prepared::of(context, store, run, &undecided).await?;
    let snapshot = Snapshot::read(store.as_ref(), run).await?;
    let (plan, _) = planned(context, store, (&snapshot, &prepared), &undecided).await?;
    let asked = plan.decisions.iter().filter(|decision| decision.action == Action::Ask);
    let asked: Vec<(BranchPath, StepId)> =
        asked.map(|asked| (asked.branch.clone(), asked.step.clone())).collect();
    let position = snapshot.newest().position().unwrap_or_default();
    let failed = failed_steps(&position).map(|entry| (BranchPath::main(), entry.step.clone()));
    let failed: Vec<(BranchPath, StepId)> = failed.collect();
    let names = StepNames::of(&prepared.chosen.workflow);
    for given in &args.treat_as {
        let settled = failed.iter().filter(|_| given.treat_as == TreatAs::Done);
        let candidates: Vec<_> = asked.iter().chain(settled).collect();
        for text in &given.steps {
            let encoded = encoded(store.as_ref(), run, text).await?;
            let is_meant = |(branch, step): &&&(BranchPath, StepId)| {
                [text, &encoded].into_iter().any(|text| covers(&names, branch, step, text))
            };
            let meant: Vec<_> = candidates.iter().filter(is_meant).collect();
            if meant.is_empty() {
                return Err(not_asked(run, text, (&names, &asked)));
            }
            for &&(branch, step) in &meant {
                let before = answers.named.insert((branch.clone(), step.clone()), given.treat_as);
                if before.is_some_and(|before| before != given.treat_as) {
                    let step = names.called(branch, step.as_str());
                    let message = format!("`--treat-as` decides about step `{step}` in both ways");
                    return Err(Error::usage(message, "name the step once"));
                }
            }
        }
    }
    Ok(answers)
}

/// Returns whether a text names a step or an enclosing scope.
fn covers(names: &StepNames, branch: &BranchPath, step: &StepId, text: &str) -> bool {
    let around = std::iter::successors(Some(branch.clone()), BranchPath::parent);
    names.called(branch, step.as_str()) == text
        || is_step(branch, step.as_str(), text)
        || around.filter(|branch| !branch.is_main()).any(|branch| {
            let opener = branch.parent().zip(branch.opened_by());
            let is_opener = |(above, (opener, _)): (BranchPath, (StepId, String))| {
                names.called(&above, opener.as_str()) == text
            };
            names.path(&branch) == text || is_branch(&branch, text) || opener.is_some_and(is_opener)
        })
}

/// Returns the error of a decision without a question.
fn not_asked(run: &RunId, text: &str, (names, asked): (&StepNames, &[(BranchPath, StepId)])) -> Error {
    let message = format!("cannot decide about step `{}`: run {run} does not ask about it", shown(text));
    let asked: Vec<String> =
        asked.iter().map(|(branch, step)| format!("`{}`", names.called(branch, step.as_str()))).collect();
    Error::usage(
        message,
        match asked.is_empty() {
            true => "omit `--treat-as`: no step is in doubt".to_owned(),
            false => format!("in doubt: {}", asked.join(", ")),
        },
    )
}

/// Applies `--treat-as` to steps with failed evidence. Returns the questions for the answer.
pub(super) async fn decide(
    context: &Context,
    store: &Arc<dyn Store>,
    snapshot: &Snapshot,
    chosen: &Chosen,
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
    let is_believed = !current_evidence::believe(store, snapshot, chosen, (&plan, answers)).await?.is_empty();
    Ok(match (has_doubt, has_broken) {
        (true, true) => Asked::BeforeEvidence,
        (true, false) => Asked::Now,
        (false, _) if is_believed => Asked::Now,
        (false, _) if asks_later || chosen.shape.has_evidence() => Asked::OnTheWay,
        (false, _) => Asked::Nothing,
    })
}

/// The scope of `--treat-as`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// No step is in doubt.
    Nothing,
    /// No step is in doubt now. A step may be in doubt at its turn, or evidence may raise a question in this resume.
    OnTheWay,
    /// Steps are in doubt.
    Now,
    /// Steps are in doubt, and the answers are written before the evidence of others is acted on.
    BeforeEvidence,
}

pub(super) fn nothing_to_decide(run: &RunId) -> Error {
    let message = format!("cannot decide: no step of run {run} is in doubt or failed");
    Error::usage(message, "omit `--treat-as`")
}
