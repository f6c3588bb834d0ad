//! The world outside the store: files, hidden inputs, failures, and for the oracles the values that executions read.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::{Name, StepPath};
use super::position::{Content, Pin, Truth};

/// An execution, as the oracles know it.
#[derive(Debug, Clone)]
pub struct Execution {
    /// What it read, in clear.
    pub input: Truth,
    /// The version of its step.
    pub version: u32,
    /// What it left.
    pub pins: Vec<Pin>,
}

/// A person confirmed a result for the input of today.
#[derive(Debug, Clone)]
pub struct Confirmed {
    /// What the result counts as made from.
    pub input: Truth,
    /// The version of its step.
    pub version: u32,
    /// How often the step was executed by then.
    pub executions: usize,
}

/// A failure of a step in the scopes whose path has a part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failing {
    /// The step.
    pub step: Name,
    /// The part of the path: empty for all scopes.
    pub scope_part: &'static str,
}

/// Files, hidden inputs, failures and executions.
#[derive(Debug, Default)]
pub struct World {
    /// All files.
    pub files: BTreeMap<Name, Content>,
    /// Hidden inputs by step.
    pub hidden: BTreeMap<Name, i64>,
    /// What fails.
    pub failing: BTreeSet<Failing>,
    /// How many executions of a step fail before one succeeds.
    pub flaky: BTreeMap<Name, u32>,
    /// How often in a row each step failed in this resume.
    pub failed_in_a_row: BTreeMap<StepPath, u32>,
    /// Files that cannot be verified.
    pub unknown: BTreeSet<Name>,
    /// Steps that a person skips, with what they were given when the decision was applied.
    pub skipped: BTreeMap<StepPath, Option<Truth>>,
    /// Confirmed results, by number of the end.
    pub confirmed: BTreeMap<u64, Confirmed>,
    /// The last execution of each step.
    pub last: BTreeMap<StepPath, Execution>,
    /// The last execution of each step, if it completed.
    pub good: BTreeMap<StepPath, Execution>,
    /// How often each step was executed that is not idempotent.
    pub counts: BTreeMap<StepPath, usize>,
    /// How often it may be repeated.
    pub allowed: BTreeMap<StepPath, usize>,
    /// All executions.
    pub executed: Vec<StepPath>,
    /// Findings of executions, such as a repetition unasked.
    pub twice: Vec<String>,
    /// Executions whose result was there already.
    pub needless: Vec<StepPath>,
}

impl World {
    /// Returns how often a step was executed.
    pub fn executions(&self, path: &StepPath) -> usize {
        self.executed.iter().filter(|other| *other == path).count()
    }

    /// Ends all failures, and makes all evidence verifiable.
    pub fn mend(&mut self) {
        self.failing.clear();
        self.flaky.clear();
        self.unknown.clear();
    }

    /// Allows one more execution of a step that is not idempotent.
    pub fn allow(&mut self, path: &StepPath) {
        *self.allowed.entry(path.clone()).or_default() += 1;
    }

    /// Says whether a step fails in a scope.
    pub fn fails(&self, scope: &str, step: &str) -> bool {
        self.failing.iter().any(|failing| &*failing.step == step && scope.contains(failing.scope_part))
    }

    /// Says whether the evidence of a step cannot be verified.
    pub fn is_unknown<'a>(&self, pins: impl IntoIterator<Item = &'a Pin>) -> bool {
        pins.into_iter().any(|pin| self.unknown.contains(&pin.file))
    }

    /// Says whether these files have the content of their pins.
    pub fn holds<'a>(&self, pins: impl IntoIterator<Item = &'a Pin>) -> bool {
        pins.into_iter().all(|pin| self.files.get(&pin.file) == Some(&pin.content))
    }
}
