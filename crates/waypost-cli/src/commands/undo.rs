//! Undo commands of a run's steps, for `waypost rollback --undo-steps` and `waypost cancel --undo-steps`.

use std::sync::Arc;

use waypost::RunId;
use waypost::engine::{Engine, RunError, Undone};
use waypost::store::Store;

use super::Context;
use super::resume::Prepared;
use crate::cli::ResumeArgs;
use crate::error::Error;
use crate::output::log_lines;
use crate::session::Session;
use crate::view::UndoneView;
use crate::view::step_names::StepNames;

/// Most steps without `undo` that a message names.
const WITHOUT_UNDO_NAMED_MAX: usize = 10;

/// Runs the undo commands of the steps finished after record `to` of the main scope, newest first, and
/// prints each.
pub(super) async fn undo_after(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    to: u64,
) -> Result<Vec<UndoneView>, Error> {
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
