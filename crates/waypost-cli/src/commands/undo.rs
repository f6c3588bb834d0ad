//! Undo commands of a run's steps, for `waypost rollback --undo-steps` and `waypost cancel --undo-steps`.

use std::sync::Arc;

use waypost::engine::{Engine, RunError, Snapshot, Undone};
use waypost::store::Store;
use waypost::{RunId, StepId};
use waypost_workflow::file::Workflow;

use super::Context;
use super::resume::Prepared;
use crate::cli::ResumeArgs;
use crate::error::Error;
use crate::output::log_lines;
use crate::run::bases;
use crate::run::definition::Chosen;
use crate::run::included_files::FILES;
use crate::session::Session;
use crate::view::step_names::{StepNames, called};
use crate::view::{UndoneView, step_of};

/// Most steps without `undo` that a message names.
const WITHOUT_UNDO_NAMED_MAX: usize = 10;

/// Refuses to undo the steps of a run that no undo can follow.
///
/// # Errors
/// [`Error::Usage`]; nothing is stopped or undone.
pub(super) async fn refuse(store: &dyn Store, run: &RunId) -> Result<(), Error> {
    refuse_elsewhere(store, run).await?;
    let snapshot = Snapshot::read(store, run).await?;
    refuse_amid_hooks(&snapshot, &Chosen::in_force(store, &snapshot)?.workflow)
}

/// Refuses to undo steps that ran in another folder: in a base of workers, or in a copy of included files.
///
/// # Errors
/// [`Error::Usage`]; nothing is undone.
async fn refuse_elsewhere(store: &dyn Store, run: &RunId) -> Result<(), Error> {
    let entry = store.run(run).await?;
    let settings = &entry.record.record().settings;
    let folder = match bases::name_of(entry.record.record()) {
        Some(base) => format!("the base `{base}` of a worker"),
        None if settings.contains_key(FILES) => "a worker's copy of the included files".to_owned(),
        None => return Ok(()),
    };
    Err(Error::usage(
        format!("cannot undo steps of run {run} here: they ran in {folder}"),
        "undo the effects by hand, then give the command without `--undo-steps`",
    ))
}

/// Refuses to undo while hooks of a step with `undo` are open: the end of the step has no record.
///
/// # Errors
/// [`Error::Usage`]; nothing is undone.
fn refuse_amid_hooks(snapshot: &Snapshot, workflow: &Workflow) -> Result<(), Error> {
    let run = &snapshot.entry.summary.run;
    for head in &snapshot.heads {
        let (scope, position) = (&head.record.header().scope, head.record.position().unwrap_or_default());
        let has_undo =
            |step: &StepId| step_of(workflow, scope, step.as_str()).is_some_and(|step| step.undo.is_some());
        let mut open = position.frontier.iter().filter(|entry| entry.hooks.is_some());
        if let Some(entry) = open.find(|entry| has_undo(&entry.step)) {
            let step = called(Some(workflow), scope, entry.step.as_str());
            return Err(Error::usage(
                format!("cannot undo steps of run {run}: the hooks of step {step} have not ended"),
                format!("`waypost resume {run}` runs the hooks to their end; then undo"),
            ));
        }
    }
    Ok(())
}

/// Runs the undo commands of the steps finished after record `to` of the main scope, newest first, and
/// prints each.
pub(super) async fn undo_after(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    to: u64,
) -> Result<Vec<UndoneView>, Error> {
    refuse(store.as_ref(), run).await?;
    let prepared = Prepared::to_write(context, store, run).await?;
    let session = Session::begin(context, None)?;
    let names = StepNames::of(&prepared.chosen.workflow);
    let program = prepared.program(store, &ResumeArgs::default())?;
    let engine = program.equip(Engine::new(Arc::clone(store)));
    let (mut views, mut without) = (Vec::new(), Vec::new());
    let told = |undone: &Undone| {
        let Undone { step, scope, iteration, is_undone, .. } = undone;
        let mut called = names.called(scope, step.as_str());
        called.extend(
            iteration
                .last()
                .filter(|_| scope.pass_number().is_none())
                .map(|pass| format!(" (iteration {pass})")),
        );
        if *is_undone {
            context.output.note(&format!("Undid step {called}."));
        } else {
            without.push(called);
        }
        let (step, scope) = (step.to_string(), scope.to_string());
        views.push(UndoneView { step, scope, undone: *is_undone });
    };
    let undone = engine.undo_program(&program, run, (to, &session.stop), told).await;
    if let Some(text) = remaining(&without) {
        context.output.note(&text);
    }
    if let Err(RunError::NotUndone { failure, .. }) = &undone
        && let Some(printed) = &failure.ending.log
    {
        log_lines(&printed.tail).for_each(|line| context.output.note(&line));
    }
    undone?;
    Ok(views)
}

/// Names the first steps without `undo`; `None` without any.
fn remaining(without: &[String]) -> Option<String> {
    let named =
        without.iter().take(WITHOUT_UNDO_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match without.len() {
        0 => None,
        1 => Some(format!("Step {named} has no `undo` in the workflow of the run, and its effects remain.")),
        count if count > WITHOUT_UNDO_NAMED_MAX => Some(format!(
            "{count} steps have no `undo` in the workflow of the run, and their effects remain: {named} and {} more",
            count - WITHOUT_UNDO_NAMED_MAX
        )),
        count => Some(format!(
            "{count} steps have no `undo` in the workflow of the run, and their effects remain: {named}"
        )),
    }
}
