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

    /// Returns the text of a step followed by its name, if the step has one.
    pub(crate) fn beside(&self, text: String, branch: &BranchPath, step: &str) -> String {
        match self.name(branch, step) {
            Some(name) => format!("{text} ({})", shown(name)),
            None => text,
        }
    }
}
