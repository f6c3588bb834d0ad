//! `waypost resume --dry-run`: the plan of a resume with these options.
//!
//! Input: the options of a resume. Output: the plan. The resume takes its own path over a copy of the records, up to
//! the first start of a step: each refusal and each decision is that of the resume.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use waypost::engine::{Answered, DryRun, Engine, RunError, Snapshot, StopHandle, TreatAs};
use waypost::plan::{Action, Decision, Plan};
use waypost::record::Occasion;
use waypost::shape::Shape;
use waypost::store::Store;
use waypost::store::overlay::Overlay;
use waypost::{RunId, StepId};

use super::{Going, Prepared, from_step, refuse_held, refused};
use crate::cli::DeadLetter;
use crate::cli::ResumeArgs;
use crate::context::Context;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::run::current_evidence::{self, restart_services};
use crate::run::reference::step_on;
use crate::view::step_names::StepNames;

pub(super) async fn dry_run(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    (args, letters): (&ResumeArgs, &[DeadLetter]),
) -> Result<Exit, Error> {
    // The copy of the records has no holder.
    refuse_held(store.as_ref(), run).await?;
    let Rehearsal { prepared, planned: Planned { mut plan, dry_run } } =
        rehearse(context, store, run, args).await?;
    prepared.tell(context);
    let workflow = &prepared.chosen.workflow;
    let mut notes = told_of(letters);
    if prepared.params.is_some() && !args.set.is_empty() {
        let names = args.set.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        notes.push(format!("Remaining steps would read new values of {names}."));
    }
    if args.restart {
        notes.push("The run would start over; earlier records stay.".to_owned());
    }
    if let Some(from) = &args.from {
        let step = from_step(workflow, from)?;
        let is_it = |decision: &&Decision| (&decision.scope, &decision.step) == (&step.0, &step.1);
        let is_skipped = plan.decisions.iter().find(is_it).is_some_and(|own| own.action == Action::Skip);
        notes.push(match (is_skipped, args.only) {
            (true, _) => format!("Step {from} would be skipped again."),
            (false, true) => format!("Step {from} would rerun."),
            (false, false) => format!("Step {from} would rerun, with all steps downstream."),
        });
    }
    if let Some(until) = &args.until {
        notes.push(stop_after(&mut plan, &prepared.chosen.shape, until)?);
    }
    let answered: Vec<_> = dry_run.answered().collect();
    let decides = !prepared.choices.is_empty() || !answered.is_empty();
    if !decides && plan.decisions.iter().all(Decision::changes_nothing) {
        notes = vec!["A resume would do nothing, because every step is finished.".to_owned()];
    }
    notes.extend(answered.into_iter().map(answer_text));
    let questions = plan.decisions.iter().filter(|decision| decision.action == Action::Ask);
    notes.extend(questions.map(question_text));
    let names = StepNames::of(workflow);
    let decisions = crate::commands::plan::views(store.as_ref(), run, &plan).await?;
    crate::commands::plan::show(context, Some(run.as_str()), (decisions, Vec::new()), &names)?;
    notes.iter().for_each(|note| context.output.note(&names.plain(note)));
    context.output.note("Nothing was run, as requested.");
    Ok(Exit::Done)
}

/// A resume over a copy of the records.
pub(super) struct Rehearsal {
    prepared: Prepared,
    planned: Planned,
}

/// The plan of a resume, with the dry run.
pub(super) struct Planned {
    pub(super) plan: Plan,
    dry_run: DryRun,
}

/// Resumes a run over a copy of its records, without an execution. Refuses all that the resume refuses.
pub(super) async fn rehearse(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    args: &ResumeArgs,
) -> Result<Rehearsal, Error> {
    let overlay = Arc::new(Overlay::over(Arc::clone(store)));
    let copy = Arc::clone(&overlay) as Arc<dyn Store>;
    let (prepared, args) = Prepared::decided(context, &copy, run, args.clone()).await?;
    let is_changed = prepared.chosen.adoption.is_some();
    let planned = planned(context, &overlay, &prepared, &args).await;
    let planned = planned.map_err(|error| refused(error, &args, &[], is_changed))?;
    Ok(Rehearsal { prepared, planned })
}

/// Returns the plan of a prepared resume.
pub(super) async fn planned(
    context: &Context,
    overlay: &Arc<Overlay>,
    prepared: &Prepared,
    args: &ResumeArgs,
) -> Result<Planned, Error> {
    let (store, chosen) = (&(Arc::clone(overlay) as Arc<dyn Store>), &prepared.chosen);
    let snapshot = Snapshot::read(store.as_ref(), &prepared.run).await?;
    let look = current_evidence::look(store, &snapshot, chosen, Occasion::Resume).await?;
    let mut plan = chosen.plan(store.as_ref(), &snapshot, Some(&look.verdicts), context.now()).await?;
    look.tell_in(&mut plan, &chosen.shape);
    let going = Going::of(&chosen.workflow, args)?;
    // A step beyond `--until` is planned, and left out afterwards.
    let args = &ResumeArgs { until: None, ..args.clone() };
    let options = || prepared.clone().make(store, StopHandle::default(), args, going.clone());
    let (program, first) = options()?;
    let engine = program.equip(Engine::new(Arc::clone(store)));
    let first = Mutex::new(Some(first));
    let next = || {
        let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.or_else(|| options().ok().map(|(_, options)| options)).unwrap_or_default()
    };
    let dry_run = engine.dry_run_over(overlay, &program, &prepared.run, next).await?;
    dry_run.correct(&program, &mut plan);
    restart_services(chosen, &mut plan);
    Ok(Planned { plan, dry_run })
}

fn answer_text(Answered { scope, step, treat_as }: Answered<'_>) -> String {
    let step = step_on(scope, step.as_str());
    match treat_as {
        TreatAs::Done => format!("Step {step} would count as done."),
        TreatAs::Retry => format!("Step {step} would rerun."),
    }
}

fn question_text(question: &Decision) -> String {
    format!("The resume would ask about step {}: {}.", named(question), question.cause)
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
        let on_main = match decision.scope.is_main() {
            true => Some(decision.step.clone()),
            false => crate::run::definition::opener_on_main(&decision.scope),
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
    step_on(&decision.scope, decision.step.as_str())
}
