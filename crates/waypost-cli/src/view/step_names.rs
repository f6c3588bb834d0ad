//! The names of steps, `name:` of the workflow file, shown beside their ids.

use std::sync::Arc;

use waypost::ScopePath;
use waypost_workflow::file::{Body, HookOn, Step, Workflow};
use waypost_workflow::program::FILE_KEY;

use super::step_of;

/// Suffix of the opener of a step's hooks, if the step has other child scopes.
const HOOKS: &str = "-hooks";

/// The names of the steps of a workflow and its included files; none without a workflow.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepNames(Option<Arc<Workflow>>);

impl StepNames {
    /// Creates the names of a workflow.
    pub(crate) fn of(workflow: &Workflow) -> Self {
        Self(Some(Arc::new(workflow.clone())))
    }

    /// Returns the name of a step in a scope.
    pub(crate) fn name(&self, scope: &ScopePath, step: &str) -> Option<&str> {
        self.step(scope, step)?.name.as_deref()
    }

    /// Returns whether the child scopes of a step are items. Without a workflow, every child scope counts.
    pub(crate) fn has_items(&self, scope: &ScopePath, step: &str) -> bool {
        self.0.is_none() || self.step(scope, step).is_some_and(|step| step.work.foreach().is_some())
    }

    /// Returns a step in a scope: steps of an included file are in that file.
    fn step(&self, scope: &ScopePath, step: &str) -> Option<&Step> {
        let mut within = self.0.as_deref()?;
        let around: Vec<ScopePath> = std::iter::successors(Some(scope.clone()), ScopePath::parent).collect();
        for (opener, _) in around.iter().rev().filter_map(ScopePath::opened_by) {
            let child = within.step(opener.as_str()).and_then(|opener| opener.work.child());
            within = child.map_or(within, |child| child.workflow());
        }
        within.step(step)
    }

    /// Returns the steps that run in a scope: of the workflow, an included file, a group or an item.
    pub(crate) fn body(&self, scope: &ScopePath) -> Option<&Body> {
        let workflow = self.0.as_deref()?;
        let Some((above, (opener, _))) = scope.parent().zip(scope.opened_by()) else {
            return Some(workflow.body());
        };
        step_of(workflow, &above, opener.as_str())?.work.body()
    }

    /// Returns whether a step of a scope runs an included file.
    pub(crate) fn runs_file(&self, scope: &ScopePath, step: &str) -> bool {
        let step = self.0.as_deref().and_then(|workflow| step_of(workflow, scope, step));
        step.is_some_and(|step| step.work.child().is_some())
    }

    /// Returns whether a step of the main scope only runs the hooks of the run.
    pub(crate) fn is_for_hooks(&self, step: &str) -> bool {
        self.0.as_deref().and_then(|workflow| workflow.step(step)).is_some_and(Step::is_for_hooks)
    }

    /// Returns the path of a scope, as the user names it: see [`path`]. Empty for the main scope.
    pub(crate) fn path(&self, scope: &ScopePath) -> String {
        path(self.0.as_deref(), scope)
    }

    /// Returns the path of a step.
    pub(crate) fn called(&self, scope: &ScopePath, step: &str) -> String {
        called(self.0.as_deref(), scope, step)
    }

    /// Returns a text of the engine with each scope and step as [`path`] names these.
    pub(crate) fn plain(&self, text: &str) -> String {
        let is_apart = |c: char| c.is_whitespace() || "`'\"(),;".contains(c);
        let words =
            text.split_inclusive(is_apart).map(|part| part.split_at(part.trim_end_matches(is_apart).len()));
        words.map(|(word, after)| self.plain_word(word).unwrap_or_else(|| word.to_owned()) + after).collect()
    }

    /// Returns the readable form of `SCOPE`, `SCOPE/STEP`, `SCOPE@SEQ` or `RUN/SCOPE@SEQ`, perhaps before a colon.
    fn plain_word(&self, word: &str) -> Option<String> {
        let workflow = self.0.as_deref().filter(|_| word.contains([':', '~']))?;
        if word.contains(r"\~") {
            // In Markdown.
            let plain = self.plain_word(&word.replace(r"\~", "~").replace(r"\_", "_"))?;
            return Some(plain.replace('~', r"\~").replace('_', r"\_"));
        }
        let (word, colon) = word.strip_suffix(':').map_or((word, ""), |word| (word, ":"));
        let (place, seq) = word.split_at(word.find('@').unwrap_or(word.len()));
        let named = |text: &str| {
            let scope = ScopePath::new(text).ok()?;
            let (opener, _) = scope.opened_by().filter(|_| scope.depth() > 0)?;
            let known = [Some(opener.as_str()), before_hooks(opener.as_str())];
            let around: Vec<_> = std::iter::successors(scope.parent(), ScopePath::parent).collect();
            let is_known =
                around.len() > 1 || known.into_iter().flatten().any(|id| workflow.step(id).is_some());
            is_known.then(|| path(Some(workflow), &scope))
        };
        let split = |(first, rest): (&str, &str)| Some(format!("{first}/{}", named(rest)?));
        let whole = named(place)
            .or_else(|| {
                place.rsplit_once('/').and_then(|(above, step)| Some(format!("{}/{step}", named(above)?)))
            })
            .or_else(|| place.split_once('/').filter(|_| !seq.is_empty()).and_then(split))?;
        Some(format!("{whole}{seq}{colon}"))
    }
}

/// Returns the path of a step for a person: see [`path`].
pub(crate) fn called(workflow: Option<&Workflow>, scope: &ScopePath, step: &str) -> String {
    if scope.is_main() { step.to_owned() } else { format!("{}/{step}", path(workflow, scope)) }
}

/// Returns the path of a scope for a person: a key or a pass is named only where a step can have several child scopes,
/// so not for a group without `repeat`, an included file, and the hooks of a run.
pub(crate) fn path(workflow: Option<&Workflow>, scope: &ScopePath) -> String {
    let mut around: Vec<ScopePath> = std::iter::successors(Some(scope.clone()), ScopePath::parent).collect();
    let (mut within, mut path) = (workflow, Vec::new());
    while let Some(scope) = around.pop() {
        let Some((opener, key)) = scope.opened_by() else { continue };
        let step = within.and_then(|workflow| workflow.step(opener.as_str()));
        let included = step.and_then(|step| step.work.child());
        let is_only = step.is_some_and(|step| match included {
            Some(_) => key == FILE_KEY,
            None if step.is_for_hooks() => key == HookOn::Run.key(),
            None => step.repeat.is_none() && scope.pass_number() == Some(1),
        });
        let readable = scope.readable();
        path.push(match (hook(within, opener.as_str(), &key), readable.rsplit('/').next()) {
            (Some(hook), _) => hook,
            (None, Some(last)) if !is_only => last.to_owned(),
            (None, _) => opener.to_string(),
        });
        within = included.map_or(within, |child| Some(child.workflow()));
    }
    path.join("/")
}

/// Returns `STEP:HOOK` for a hook of a step with other child scopes.
fn hook(workflow: Option<&Workflow>, opener: &str, key: &str) -> Option<String> {
    let of_step = |id: &str| workflow.and_then(|workflow| workflow.step(id));
    let (id, step) = [Some(opener), before_hooks(opener)]
        .into_iter()
        .flatten()
        .find_map(|id| of_step(id).map(|step| (id, step)))?;
    let is_own = step.hooks.iter().any(|own| own.on.key() == key);
    (id != opener && is_own).then(|| format!("{id}:{key}"))
}

/// Returns the step of a hook's opener: `STEP` of `STEP-hooks`.
pub(crate) fn before_hooks(opener: &str) -> Option<&str> {
    opener.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-').strip_suffix(HOOKS)
}
