//! Steps that read the outputs of a step. Readers of an item's step, or of an included file's step, are also
//! in parent files.

use std::collections::BTreeSet;

use waypost::{ScopePath, StepId};

use super::WorkflowProgram;
use crate::expr::ELEMENT;
use crate::file::{Body, ITEM_INDEX, Step};

impl WorkflowProgram {
    /// Returns the steps of an item's scope with a use of the item, directly or in a nested step.
    #[must_use]
    pub fn item_readers(&self, scope: &ScopePath) -> Vec<StepId> {
        let opener = scope.opened_by().zip(scope.parent());
        let opener = opener.and_then(|((opener, _), above)| self.file_of(&above).step(opener.as_str()));
        let Some(foreach) = opener.and_then(|opener| opener.work.foreach()) else { return Vec::new() };
        let readers = foreach.body.steps().iter().filter(|step| reads(step, &foreach.name));
        readers.filter_map(|step| StepId::new(&step.id).ok()).collect()
    }

    /// Returns the readers of the outputs or the standard output of a step. Readers of the whole `items` list
    /// of a `foreach` are left out: no particular output is read.
    pub(super) fn readers<'p>(&'p self, scope: &ScopePath, id: &str) -> Vec<&'p Step> {
        let mut readers: Vec<&Step> = self.file_of(scope).readers_of(id).collect();
        // Paths as read in the step's own file, without the leading `steps`.
        let mut paths: Vec<Vec<String>> = ["outputs", "stdout"].map(|what| named([id, what])).into();
        let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
        for (opener, above) in around.filter_map(|scope| Some((scope.opened_by()?.0, scope.parent()?))) {
            let file = self.file_of(&above);
            let Some(opener) = file.step(opener.as_str()) else { continue };
            let id = opener.id.as_str();
            if opener.work.child().is_some() {
                // Another file exports only the outputs of steps, by step id.
                let outputs = paths.into_iter().filter_map(|path| {
                    let [step, what, rest @ ..] = path.as_slice() else { return None };
                    let within = named([id, "outputs", step]);
                    (what == "outputs").then(|| within.into_iter().chain(rest.iter().cloned()).collect())
                });
                paths = outputs.collect();
            } else if opener.work.foreach().is_some() {
                let item = named([id, "items", ELEMENT, "steps"]);
                paths = paths.into_iter().map(|path| item.iter().cloned().chain(path).collect()).collect();
            } else {
                // Steps of a group are read as if declared next to the group.
                continue;
            }
            for path in &paths {
                let new =
                    file.readers_at(path).filter(|step| readers.iter().all(|known| known.id != step.id));
                readers.extend(new.collect::<Vec<_>>());
            }
        }
        readers
    }
}

/// Adds the ids of the steps read by a step, directly or in a nested step.
pub(super) fn steps_read_by(step: &Step, read: &mut BTreeSet<String>) {
    read.extend(step.steps_read().map(str::to_owned));
    let hooks = step.hooks.iter().map(|hook| &hook.body);
    for inner in step.work.body().into_iter().chain(hooks).flat_map(Body::steps) {
        steps_read_by(inner, read);
    }
}

/// Returns whether a step, a hook or a nested step reads the index of its item. The items of an inner `foreach` have their
/// own index; an included file reads only the given params.
pub(super) fn reads_index(step: &Step) -> bool {
    let within = step.work.body().filter(|_| step.work.foreach().is_none() && step.work.child().is_none());
    let hooks = step.hooks.iter().map(|hook| &hook.body);
    step.reads_local(ITEM_INDEX) || within.into_iter().chain(hooks).flat_map(Body::steps).any(reads_index)
}

fn reads(step: &Step, name: &str) -> bool {
    let hooks = step.hooks.iter().map(|hook| &hook.body);
    let within = step.work.body().into_iter().chain(hooks).flat_map(Body::steps);
    step.reads_local(name) || within.into_iter().any(|step| reads(step, name))
}

fn named<const COUNT: usize>(parts: [&str; COUNT]) -> Vec<String> {
    parts.map(str::to_owned).into()
}
