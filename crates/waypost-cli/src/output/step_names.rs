//! The names of steps, `name:` of the workflow file, shown beside their ids.

use std::sync::Arc;

use waypost::BranchPath;
use waypost_workflow::file::{HookOn, Step, Work, Workflow};
use waypost_workflow::program::FILE_KEY;

use super::shown;

/// The names of the steps of a workflow and its included files; none without a workflow.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepNames(Option<Arc<Workflow>>);

impl StepNames {
    /// Creates the names of a workflow.
    pub(crate) fn of(workflow: &Workflow) -> Self {
        Self(Some(Arc::new(workflow.clone())))
    }

    /// Returns the name of a step on a branch.
    pub(crate) fn name(&self, branch: &BranchPath, step: &str) -> Option<&str> {
        self.step(branch, step)?.name.as_deref()
    }

    /// Returns whether a step on a branch only waits, for an answer, a signal or a time.
    pub(crate) fn only_waits(&self, branch: &BranchPath, step: &str) -> bool {
        let waits = |step: &Step| matches!(step.work, Work::Approve(_) | Work::Sleep(_) | Work::Wait(_));
        self.step(branch, step).is_some_and(waits)
    }

    /// Returns a step on a branch: steps of an included file are in that file.
    fn step(&self, branch: &BranchPath, step: &str) -> Option<&Step> {
        let mut within = self.0.as_deref()?;
        let around: Vec<BranchPath> =
            std::iter::successors(Some(branch.clone()), BranchPath::parent).collect();
        for (opener, _) in around.iter().rev().filter_map(BranchPath::opened_by) {
            let child = within.step(opener.as_str()).and_then(|opener| opener.work.child());
            within = child.map_or(within, |child| child.workflow());
        }
        within.step(step)
    }

    /// Returns whether a step of the main branch only runs the hooks of the run.
    pub(crate) fn is_for_hooks(&self, step: &str) -> bool {
        self.0.as_deref().and_then(|workflow| workflow.step(step)).is_some_and(Step::is_for_hooks)
    }

    /// Returns the path of a branch, as the user names it: see [`path`]. Empty for the main branch.
    pub(crate) fn path(&self, branch: &BranchPath) -> String {
        path(self.0.as_deref(), branch)
    }

    /// Returns the path of a step.
    pub(crate) fn called(&self, branch: &BranchPath, step: &str) -> String {
        called(self.0.as_deref(), branch, step)
    }

    /// Returns the text of a step followed by its name, if the step has one.
    pub(crate) fn beside(&self, text: String, branch: &BranchPath, step: &str) -> String {
        match self.name(branch, step) {
            Some(name) => format!("{text} ({})", shown(name)),
            None => text,
        }
    }
}

/// Returns the path of a step for a person: see [`path`].
pub(crate) fn called(workflow: Option<&Workflow>, branch: &BranchPath, step: &str) -> String {
    if branch.is_main() { step.to_owned() } else { format!("{}/{step}", path(workflow, branch)) }
}

/// Returns the path of a branch for a person: a key or a pass is named only where a step can have several child scopes,
/// so not for a group without `repeat`, an included file, and the hooks of a run.
pub(crate) fn path(workflow: Option<&Workflow>, branch: &BranchPath) -> String {
    let mut around: Vec<BranchPath> =
        std::iter::successors(Some(branch.clone()), BranchPath::parent).collect();
    let (mut within, mut path) = (workflow, Vec::new());
    while let Some(branch) = around.pop() {
        let Some((opener, key)) = branch.opened_by() else { continue };
        let step = within.and_then(|workflow| workflow.step(opener.as_str()));
        let included = step.and_then(|step| step.work.child());
        let is_only = step.is_some_and(|step| match included {
            Some(_) => key == FILE_KEY,
            None if step.is_for_hooks() => key == HookOn::Run.key(),
            None => step.repeat.is_none() && branch.pass_number() == Some(1),
        });
        let readable = branch.readable();
        path.push(match readable.rsplit('/').next() {
            Some(last) if !is_only => last.to_owned(),
            _ => opener.to_string(),
        });
        within = included.map_or(within, |child| Some(child.workflow()));
    }
    path.join("/")
}
