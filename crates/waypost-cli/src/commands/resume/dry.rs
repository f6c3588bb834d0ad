//! `waypost resume --dry-run`: the plan of a resume with these options.
//!
//! Input: the options of a resume. Output: the plan. The plan from the records is corrected by a dry run of
//! the engine with the options of the real resume.

use std::collections::BTreeSet;
use std::sync::Arc;

use waypost::engine::{Answers, Engine, RunError, Snapshot, StopHandle, TreatAs};
use waypost::plan::{Action, Cause, Decision, Plan};
use waypost::record::Occasion;
use waypost::shape::Shape;
use waypost::store::Store;
use waypost::{RunId, StepId};

use super::choice::Asked;
use super::{Going, Prepared, choice};
use crate::cli::DeadLetter;
use crate::cli::ResumeArgs;
use crate::context::Context;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::run::current_evidence::{self, restart_services};
use crate::view::step_names::StepNames;

pub(super) async fn dry_run(
    context: &Context,
    shared: &Arc<dyn Store>,
    run: &RunId,
    (args, letters): (&ResumeArgs, &[DeadLetter]),
) -> Result<Exit, Error> {
    let store = shared.as_ref();
    // An answer to a question about a step in doubt changes the plan in words only: see `settle`.
    let answers = &args.answers;
    let mut notes = told_of(letters);
    let snapshot = Snapshot::read(store, run).await?;
    let mut prepared = Prepared::of(context, shared, run, &args.undecided()).await?;
    let at = (&snapshot, &prepared.chosen);
    let is_told = !args.treat_as.is_empty() && args.retry.is_empty();
    let asked = match is_told {
        true => choice::decide(context, shared, &snapshot, &prepared.chosen, (answers, true)).await?,
        false => Asked::Nothing,
    };
    prepared.choices = choice::of(args, store, at, asked, context.now()).await?;
    if is_told && asked == Asked::Nothing && prepared.choices.is_empty() {
        return Err(choice::nothing_to_decide(store, run, &prepared.chosen.workflow).await?);
    }
    let plan = planned(context, shared, (&snapshot, &prepared), args).await;
    let (mut plan, stops) = plan.map_err(|error| error.of_resume(args, &[]))?;
    stops.iter().for_each(|stop| context.output.warn(stop));
    if prepared.params.is_some() {
        let names = args.set.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        notes.push(format!("Remaining steps would read new values of {names}."));
    }
    if args.restart {
        notes.push("The run would start over; earlier records stay.".to_owned());
    }
    if let Some(from) = &args.from {
        notes.push(format!("Step {from} would rerun, with all steps downstream."));
    }
    if let Some(until) = &args.until {
        notes.push(stop_after(&mut plan, &prepared.chosen.shape, until)?);
    }
    if stops.is_empty() && prepared.choices.is_empty() && plan.decisions.iter().all(Decision::changes_nothing)
    {
        notes = vec!["A resume would do nothing, because every step is finished.".to_owned()];
    }
    let questions = plan.decisions.iter().filter(|decision| decision.action == Action::Ask);
    notes.extend(questions.map(|question| question_text(question, answers)));
    settle(&mut plan, answers);
    let names = StepNames::of(&prepared.chosen.workflow);
    let decisions = crate::commands::plan::views(store, run, &plan).await?;
    crate::commands::plan::show(context, Some(run.as_str()), (decisions, stops), &names)?;
    notes.iter().for_each(|note| context.output.note(&names.plain(note)));
    context.output.note("Nothing was run, as requested.");
    Ok(Exit::Done)
}

/// Refuses what a resume with these options would refuse, before anything is recorded.
pub(super) async fn refuse(
    context: &Context,
    shared: &Arc<dyn Store>,
    run: &RunId,
    args: &ResumeArgs,
) -> Result<(), Error> {
    let store = shared.as_ref();
    let snapshot = Snapshot::read(store, run).await?;
    let mut prepared = Prepared::untold(context, shared, run, &args.undecided()).await?;
    let at = (&snapshot, &prepared.chosen);
    prepared.choices = choice::of(args, store, at, Asked::Nothing, context.now()).await?;
    let mut plan = prepared.chosen.plan(store, &snapshot, None, context.now()).await?;
    decide(shared, &prepared, args, &mut plan).await.map_err(|error| error.of_resume(args, &[]))
}

/// Returns the plan of a resume with these options, and the obstacles.
pub(super) async fn planned(
    context: &Context,
    shared: &Arc<dyn Store>,
    (snapshot, prepared): (&Snapshot, &Prepared),
    args: &ResumeArgs,
) -> Result<(Plan, Vec<String>), Error> {
    let (store, chosen) = (shared.as_ref(), &prepared.chosen);
    let look = current_evidence::look(shared, snapshot, chosen, Occasion::Resume).await?;
    let mut plan = chosen.plan(store, snapshot, Some(&look.verdicts), context.now()).await?;
    look.tell_in(&mut plan, &chosen.shape);
    let stops = match args.restart {
        true => Vec::new(),
        false => crate::commands::plan::stops(store, snapshot, &chosen.workflow).await?,
    };
    if stops.is_empty() {
        decide(shared, prepared, args, &mut plan).await?;
    }
    Ok((plan, stops))
}

/// Corrects a plan by a dry run of the engine with the options of the real resume.
async fn decide(
    store: &Arc<dyn Store>,
    prepared: &Prepared,
    args: &ResumeArgs,
    plan: &mut Plan,
) -> Result<(), Error> {
    let going = Going::of(&prepared.chosen.workflow, args)?;
    let prepared = Prepared { decides_first: false, ..prepared.clone() };
    // A step beyond `--until` is planned, and left out afterwards.
    let mut args = ResumeArgs { until: None, ..args.clone() };
    if prepared.chosen.reruns_finished() {
        // A real resume records the answers first, in the definition in force.
        args.answers = Answers::default();
    }
    let args = &args;
    let options = || prepared.clone().make(store, StopHandle::default(), args, going.clone());
    let (program, first) = options()?;
    let engine = program.equip(Engine::new(Arc::clone(store)));
    let first = std::sync::Mutex::new(Some(first));
    let next = || {
        let first = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        first.or_else(|| options().ok().map(|(_, options)| options)).unwrap_or_default()
    };
    let dry_run = engine.dry_run(&program, &prepared.run, next).await?;
    dry_run.correct(&program, plan);
    restart_services(&prepared.chosen, plan);
    Ok(())
}

/// Settles the questions of a plan as a person decides.
fn settle(plan: &mut Plan, answers: &Answers) {
    for decision in plan.decisions.iter_mut().filter(|decision| decision.action == Action::Ask) {
        match answer_to(decision, answers) {
            Some(TreatAs::Done) => decision.action = Action::Reuse,
            Some(TreatAs::Retry) => decision.action = Action::Run,
            None => {}
        }
    }
}

/// Returns the answer to a question. A bare "done" is about the questions known before the resume.
fn answer_to(question: &Decision, answers: &Answers) -> Option<TreatAs> {
    let (branch, step) = (&question.branch, &question.step);
    let is_named = answers.named.contains_key(&(branch.clone(), step.clone()));
    let answer = answers.about(branch, step);
    answer.filter(|answer| is_named || *answer == TreatAs::Retry || question.cause != Cause::AskedInTurn)
}

fn question_text(question: &Decision, answers: &Answers) -> String {
    let step = named(question);
    match answer_to(question, answers) {
        Some(TreatAs::Done) => format!("Step {step} would count as done."),
        Some(TreatAs::Retry) => format!("Step {step} would rerun."),
        None => format!("Step {step} is not idempotent: the resume would ask for a decision."),
    }
}

/// Returns notes about the failed items of a retry.
fn told_of(letters: &[DeadLetter]) -> Vec<String> {
    let told = |letter: &DeadLetter| {
        let step = letter.step.as_ref().map(|step| format!(", from step {step}")).unwrap_or_default();
        format!("Item {} would be retried, in {}{step}.", shown(&letter.key), letter.failed_on)
    };
    letters.iter().map(told).collect()
}

/// Removes from a plan the steps not needed by the step of `--until`; returns a note.
///
/// # Errors
/// [`RunError::InvalidStep`]: the step does not exist.
pub(in crate::commands) fn stop_after(plan: &mut Plan, shape: &Shape, until: &str) -> Result<String, Error> {
    let Some(place) = shape.place(until) else {
        return Err(RunError::InvalidStep(StepId::new(until).map_err(Error::from_name)?).into());
    };
    let mut needed: BTreeSet<&StepId> = BTreeSet::new();
    let mut walk = vec![&shape.steps()[place]];
    while let Some(step) = walk.pop() {
        if needed.insert(&step.id) {
            let leads = |other: &&waypost::shape::Step| other.routes.contains(&step.id);
            walk.extend(step.needs.iter().filter_map(|need| shape.step(need.as_str())));
            walk.extend(shape.steps().iter().filter(leads));
        }
    }
    let is_later = |decision: &Decision| {
        let on_main = match decision.branch.is_main() {
            true => Some(decision.step.clone()),
            false => crate::run::definition::opener_on_main(&decision.branch),
        };
        !matches!(decision.action, Action::Reuse | Action::Skip)
            && on_main.is_some_and(|step| !needed.contains(&step))
    };
    let later: Vec<String> = plan.decisions.iter().filter(|one| is_later(one)).map(named).collect();
    plan.decisions.retain(|decision| !is_later(decision));
    let note = format!("The resume would stop after step {until}.");
    Ok(match later.is_empty() {
        true => note,
        false => format!("{note} Not started: {}.", later.join(", ")),
    })
}

fn named(decision: &Decision) -> String {
    crate::run::reference::step_on(&decision.branch, decision.step.as_str())
}
