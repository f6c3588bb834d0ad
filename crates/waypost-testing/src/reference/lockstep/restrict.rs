//! The part of the model's workflows and edits that a workflow file can express.

use std::sync::Arc;

use super::super::definition::{Kind, Name, Step, Steps, all};
use super::super::request::Adoption;

/// The mark of hooks in the names of the model.
pub(super) const HOOK: &str = ".on_";

/// Returns the id of a step in a workflow file.
pub(super) fn id(step: &str) -> String {
    step.replace('.', "_")
}

/// Returns the steps without what a workflow file cannot express: reads without a need, nested passes, conditions
/// on outputs of openers, and files shared by scopes.
pub(super) fn restricted(steps: &Steps) -> Steps {
    within(steps, false)
}

fn within(steps: &Steps, in_passes: bool) -> Steps {
    let is_leaf = |id: &Name| steps.iter().any(|step| step.id == *id && step.is_leaf());
    let written = |step: &Arc<Step>| {
        let passes = if in_passes { 1 } else { step.passes };
        let file = step.file.as_ref().map(|file| match file.contains("$S") {
            true => file.clone(),
            false => format!("{file}$S").into(),
        });
        Arc::new(Step {
            reads: Vec::new(),
            skip_if: step.skip_if.clone().filter(is_leaf),
            body: within(&step.body, in_passes || passes > 1),
            passes,
            file,
            ..Step::clone(step)
        })
    };
    steps.iter().map(written).collect()
}

/// Returns an edit as the command can make it: one choice for all changed steps, and no changed hooks. Returns the
/// argument of the choice, too.
pub(super) fn adoption(wanted: Adoption, old: &Steps) -> (Adoption, String) {
    let is_hook = |id: &Name| id.contains(HOOK);
    let steps = with_old_hooks(&restricted(&wanted.steps), &all(old));
    let drops = !wanted.rerun_changed.is_empty() || has_other_items(&steps, old);
    let changed = wanted.rerun_changed.into_iter().chain(wanted.keep_finished);
    let changed: Vec<Name> = changed.filter(|id| !is_hook(id)).collect();
    let (rerun_changed, keep_finished) = if drops { (changed, Vec::new()) } else { (Vec::new(), changed) };
    let choice = if drops { "--rerun-changed" } else { "--keep-finished" };
    (Adoption { steps, rerun_changed, keep_finished }, choice.to_owned())
}

fn with_old_hooks(steps: &Steps, old: &[Arc<Step>]) -> Steps {
    let kept = |step: &Arc<Step>| {
        if step.when.is_hook()
            && let Some(before) = old.iter().find(|before| before.id == step.id)
        {
            return before.clone();
        }
        Arc::new(Step { body: with_old_hooks(&step.body, old), ..Step::clone(step) })
    };
    steps.iter().map(kept).collect()
}

fn has_other_items(steps: &[Arc<Step>], old: &Steps) -> bool {
    let old = all(old);
    let is_other =
        |step: &Arc<Step>| old.iter().any(|before| before.id == step.id && before.items != step.items);
    all(steps).iter().any(|step| step.kind == Kind::ForEach && is_other(step))
}
