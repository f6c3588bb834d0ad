//! Definitions: the steps of a workflow, and the accepted versions of a step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The name of a step, a scope, an item or a file.
pub type Name = Arc<str>;
/// The steps of a scope in file order: each step follows its needs.
pub type Steps = Arc<[Arc<Step>]>;

/// The main scope. Other scopes are named by their path: `main/each:x/group~2`.
pub const MAIN: &str = "main";

/// A step in a scope.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepPath {
    /// The scope.
    pub scope: Name,
    /// The step in the scope.
    pub step: Name,
}

impl StepPath {
    /// Returns the path of a step in a scope.
    pub fn new(scope: &str, step: &str) -> Self {
        Self { scope: scope.into(), step: step.into() }
    }
}

impl fmt::Debug for StepPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scope, self.step)
    }
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A single execution.
    Leaf,
    /// A scope for each pass.
    Group,
    /// A scope for each item.
    ForEach,
}

/// The condition of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// All needs succeeded.
    Success,
    /// All needs ended.
    Always,
    /// A step upstream failed.
    Failure,
    /// Hook: the step of the hook succeeded.
    OnSuccess,
    /// Hook: the step of the hook failed.
    OnFailure,
}

impl When {
    /// Returns whether the condition makes the step a hook.
    pub const fn is_hook(self) -> bool {
        matches!(self, Self::OnSuccess | Self::OnFailure)
    }
}

/// The effect of a failed item on the other items of a fan-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnItemFailure {
    /// The other items continue.
    DeadLetter,
    /// The other items start no further step.
    Stop,
}

/// A step of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The first name of the step; a renamed step keeps it.
    pub id: Name,
    /// The kind of the step.
    pub kind: Kind,
    /// Needed steps.
    pub needs: Vec<Name>,
    /// Steps that are read but not needed; these are upstream too.
    pub reads: Vec<Name>,
    /// The condition.
    pub when: When,
    /// `if`: the step is skipped if the output of this need is 0, 3 or 6.
    pub skip_if: Option<Name>,
    /// The version of the step's text, in place of a definition digest.
    pub version: u32,
    /// Whether the step may run again without a question.
    pub idempotent: bool,
    /// Whether a failure is tolerated.
    pub continue_on_error: bool,
    /// The written and pinned file. `$S` is replaced by the scope; without `$S`, scopes share the file.
    pub file: Option<Name>,
    /// The output is the input modulo this number.
    pub output_modulus: i64,
    /// The file content is the input modulo this number; with 1, a rerun writes the same content.
    pub file_modulus: i64,
    /// Whether the step edits the file of an upstream step in place.
    pub edits: bool,
    /// The steps of its child scopes.
    pub body: Steps,
    /// The items of a fan-out.
    pub items: Vec<Name>,
    /// The passes of a group.
    pub passes: u32,
    /// The number of failed items that a fan-out tolerates.
    pub failures_max: usize,
    /// The effect of a failed item on the other items.
    pub on_item_failure: OnItemFailure,
    /// The number of retries before a failure counts.
    pub retries: u32,
}

impl Step {
    /// Returns a leaf without needs and pins.
    pub fn leaf(id: &str) -> Self {
        Self {
            id: id.into(),
            kind: Kind::Leaf,
            needs: Vec::new(),
            reads: Vec::new(),
            when: When::Success,
            skip_if: None,
            version: 0,
            idempotent: true,
            continue_on_error: false,
            file: None,
            output_modulus: 7,
            file_modulus: 7,
            edits: false,
            body: Steps::from([]),
            items: Vec::new(),
            passes: 1,
            failures_max: 0,
            on_item_failure: OnItemFailure::DeadLetter,
            retries: 0,
        }
    }

    /// Returns whether the step has no children.
    pub fn is_leaf(&self) -> bool {
        self.kind == Kind::Leaf
    }

    /// Returns the steps that this step needs or reads.
    pub fn upstream(&self) -> impl Iterator<Item = &Name> {
        self.needs.iter().chain(&self.reads)
    }

    /// Returns the step's file in a scope.
    pub fn file_in(&self, scope: &str) -> Option<Name> {
        self.file.as_ref().map(|file| file.replace("$S", scope).into())
    }
}

/// A workflow, with the accepted versions of its steps.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The steps of the main scope.
    pub steps: Steps,
    /// Per step, the versions whose results count as results of the current version.
    pub accepted: BTreeMap<Name, BTreeSet<u32>>,
}

impl Definition {
    /// Returns the definition of these steps, without accepted versions.
    pub fn new(steps: Steps) -> Self {
        Self { steps, accepted: BTreeMap::new() }
    }

    /// Returns whether a result of `version` counts as a result of the current step.
    pub fn accepts(&self, step: &Step, version: u32) -> bool {
        version == step.version || self.accepted.get(&step.id).is_some_and(|all| all.contains(&version))
    }

    /// Returns the steps of a scope in file order; empty if its opener was removed.
    pub fn steps_of(&self, scope: &str) -> Steps {
        let mut steps = self.steps.clone();
        for part in scope.split('/').skip(1) {
            let opener = part.split(['~', ':']).next().unwrap_or(part);
            let found = steps.iter().find(|step| &*step.id == opener).map(|step| step.body.clone());
            steps = found.unwrap_or_default();
        }
        steps
    }
}

/// The parent of a child scope: an opener and its pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// The scope of the opener.
    pub scope: Name,
    /// The opener.
    pub opener: Name,
    /// The pass; 1 for an item.
    pub pass: u32,
    /// The item, for a fan-out.
    pub item: Option<Name>,
}

impl Parent {
    /// Returns the parent of a scope; `None` for the main scope.
    pub fn of(scope: &str) -> Option<Self> {
        let (up, part) = scope.rsplit_once('/')?;
        if let Some((opener, item)) = part.split_once(':') {
            return Some(Self { scope: up.into(), opener: opener.into(), pass: 1, item: Some(item.into()) });
        }
        let (opener, pass) = part.split_once('~')?;
        Some(Self { scope: up.into(), opener: opener.into(), pass: pass.parse().ok()?, item: None })
    }
}

/// Returns the child scopes of a step in a pass.
pub fn children(scope: &str, step: &Step, pass: u32, items: &[Name]) -> Vec<Name> {
    match step.kind {
        Kind::ForEach => items.iter().map(|item| format!("{scope}/{}:{item}", step.id).into()).collect(),
        Kind::Leaf | Kind::Group => vec![format!("{scope}/{}~{pass}", step.id).into()],
    }
}

/// Returns all leaves of the steps, including nested leaves.
pub fn leaves(steps: &[Arc<Step>]) -> Vec<Arc<Step>> {
    all(steps).into_iter().filter(|step| step.is_leaf()).collect()
}

/// Returns the steps and all nested steps, each before its body.
pub fn all(steps: &[Arc<Step>]) -> Vec<Arc<Step>> {
    let mut found = Vec::new();
    for step in steps {
        found.push(step.clone());
        found.extend(all(&step.body));
    }
    found
}
