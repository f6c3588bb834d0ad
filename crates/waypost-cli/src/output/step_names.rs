//! The names of steps, `name:` of the workflow file, shown beside their ids.

use std::sync::Arc;

use waypost::BranchPath;
use waypost_workflow::file::Workflow;

use super::shown;

/// The names of the steps of a workflow and its included files; none without a workflow.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepNames(Option<Arc<Workflow>>);

impl StepNames {
    /// Creates the names of a workflow.
    pub(crate) fn of(workflow: &Workflow) -> Self {
        Self(Some(Arc::new(workflow.clone())))
    }

    /// Returns the name of a step on a branch. Steps of an included file are named by that file.
    pub(crate) fn name(&self, branch: &BranchPath, step: &str) -> Option<&str> {
        let mut within = self.0.as_deref()?;
        let around: Vec<BranchPath> =
            std::iter::successors(Some(branch.clone()), BranchPath::parent).collect();
        for (opener, _) in around.iter().rev().filter_map(BranchPath::opened_by) {
            let child = within.step(opener.as_str()).and_then(|opener| opener.work.child());
            within = child.map_or(within, |child| child.workflow());
        }
        within.step(step)?.name.as_deref()
    }

    /// Returns a step with its branch, as the user names it: see [`path`].
    pub(crate) fn called(&self, branch: &BranchPath, step: &str) -> String {
        if branch.is_main() { step.to_owned() } else { format!("{}/{step}", path(self.0.as_deref(), branch)) }
    }

    /// Returns the text of a step followed by its name, if the step has one.
    pub(crate) fn beside(&self, text: String, branch: &BranchPath, step: &str) -> String {
        match self.name(branch, step) {
            Some(name) => format!("{text} ({})", shown(name)),
            None => text,
        }
    }
}

/// Returns the path of a branch for a person: a group without `repeat` needs no number of its pass.
pub(crate) fn path(workflow: Option<&Workflow>, branch: &BranchPath) -> String {
    let mut around: Vec<BranchPath> =
        std::iter::successors(Some(branch.clone()), BranchPath::parent).collect();
    let (mut within, mut path) = (workflow, Vec::new());
    while let Some(branch) = around.pop() {
        let Some((opener, _)) = branch.opened_by() else { continue };
        let step = within.and_then(|workflow| workflow.step(opener.as_str()));
        let is_group = step.is_some_and(|step| step.repeat.is_none() && step.work.child().is_none());
        let is_plain = is_group && branch.pass_number() == Some(1);
        let readable = branch.readable();
        path.push(match readable.rsplit('/').next() {
            Some(last) if !is_plain => last.to_owned(),
            _ => opener.to_string(),
        });
        let child = step.and_then(|step| step.work.child());
        within = child.map_or(within, |child| Some(child.workflow()));
    }
    path.join("/")
}
