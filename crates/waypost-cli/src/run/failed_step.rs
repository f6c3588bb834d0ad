//! The failed step of a run, with item and place in the file.

use std::path::{Path, PathBuf};

use waypost::record::{Failure, FailureKind};
use waypost::{ScopePath, StepId};
use waypost_workflow::file::{Work, Workflow};

use crate::output::shown;
use crate::view::step_names::{StepNames, called, path};

/// A failed step.
#[derive(Debug)]
pub(crate) struct FailedAt {
    /// The step, with item or scope, such as `check of item eu`.
    pub(crate) name: String,
    /// The names of the steps of the workflow.
    pub(crate) names: StepNames,
    /// The file and line, if known.
    pub(crate) place: Option<(PathBuf, usize)>,
    /// The step as an argument of `--from`, for work in scopes.
    opener: Option<(String, Opens)>,
}

/// The kind of scopes with a step's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opens {
    Items,
    Passes,
    File,
}

impl FailedAt {
    /// Looks up `step` of `scope` in the workflow; `file` is the workflow file.
    pub(crate) fn find(
        workflow: &Workflow,
        file: Option<&Path>,
        step: &StepId,
        scope: Option<&ScopePath>,
    ) -> Self {
        let mut around: Vec<ScopePath> = std::iter::successors(scope.cloned(), ScopePath::parent).collect();
        around.pop_if(|scope| scope.is_main());
        let (mut within, mut own, mut item) = (Some(workflow), None, None);
        for scope in around.iter().rev() {
            let Some((opener, key)) = scope.opened_by() else { continue };
            let opener = within.and_then(|workflow| workflow.step(opener.as_str()));
            item = opener.filter(|opener| opener.work.foreach().is_some()).map(|_| key);
            if let Some(child) = opener.and_then(|opener| opener.work.child()) {
                own = Path::new(child.file()).file_name().map(|name| child.folder().join(name));
                within = Some(child.workflow());
            } else if opener.is_none() {
                within = None;
            }
        }
        let path = around.first().map(|scope| shown(&path(Some(workflow), scope)).into_owned());
        let name = match (item, path) {
            (_, None) => step.to_string(),
            (Some(key), Some(_)) if around.len() == 1 => format!("{step} of item {}", shown(&key)),
            (_, Some(path)) => format!("{path}/{step}"),
        };
        let found = within.and_then(|workflow| workflow.step(step.as_str()));
        let opener = found
            .and_then(|found| Opens::of(&found.work))
            .map(|opens| (called(Some(workflow), scope.unwrap_or(&ScopePath::main()), step.as_str()), opens));
        let line = found.map(|step| step.line);
        let file = file.map(|file| match own {
            Some(own) => file.parent().unwrap_or(Path::new("")).join(own),
            None => file.to_owned(),
        });
        let names = StepNames::of(workflow);
        Self { name, names, place: file.zip(line), opener }
    }

    /// Returns whether an error only says that this step failed.
    pub(crate) fn is_named_by(&self, error: &str) -> bool {
        let named = self.names.plain(error);
        let named = named.strip_prefix("step `").and_then(|rest| rest.strip_suffix("` failed"));
        named.is_some_and(|step| self.name == step || self.name.ends_with(&format!("/{step}")))
    }

    /// Returns a hint if a resume would only check the step again and keep the results of its scopes.
    pub(crate) fn help(&self, failure: &Failure, resume: &str) -> Option<String> {
        let (step, opens) = self.opener.as_ref()?;
        let restart = match opens {
            Opens::Items => "restart its items",
            Opens::Passes => "restart its iterations",
            Opens::File => "restart its file",
        };
        let way = match (failure.kind, opens) {
            (FailureKind::Evidence, _) => "fix the evidence and resume",
            (FailureKind::Limit, Opens::Passes) => "raise `max` and resume",
            _ => return None,
        };
        Some(format!("{way}, or {restart}: `{resume} --from {step}`"))
    }
}

impl Opens {
    fn of(work: &Work) -> Option<Self> {
        match work {
            Work::Foreach(_) => Some(Self::Items),
            Work::Group(_) => Some(Self::Passes),
            Work::Workflow(_) => Some(Self::File),
            _ => None,
        }
    }
}
