//! The world outside the store: files, hidden inputs, failures, and the plain inputs of executions for the
//! oracles.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::{Name, StepPath};
use super::position::{Content, Pin, Truth};

/// An execution, as recorded for the oracles.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The plain inputs.
    pub input: Truth,
    /// The version of the step.
    pub version: u32,
    /// The resulting pins.
    pub pins: Vec<Pin>,
}

/// A result that a person confirmed for the current input.
#[derive(Debug, Clone)]
pub struct Confirmed {
    /// The input for which the result counts.
    pub input: Truth,
    /// The version of the step.
    pub version: u32,
    /// The number of executions at that time.
    pub executions: usize,
}

/// A failure of a step in the scopes whose path contains a part.
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
    /// The active failures.
    pub failing: BTreeSet<Failing>,
    /// The number of failures before a step succeeds.
    pub flaky: BTreeMap<Name, u32>,
    /// The number of consecutive failures of each step in this resume.
    pub failed_in_a_row: BTreeMap<StepPath, u32>,
    /// Files that cannot be verified.
    pub unknown: BTreeSet<Name>,
    /// Steps skipped by a person, with their inputs at the time of the skip.
    pub skipped: BTreeMap<StepPath, Option<Truth>>,
    /// Confirmed results, by number of the end.
    pub confirmed: BTreeMap<u64, Confirmed>,
    /// The last execution of each step.
    pub last: BTreeMap<StepPath, Execution>,
    /// The last execution of each step, if it completed.
    pub good: BTreeMap<StepPath, Execution>,
    /// The number of executions of each non-idempotent step.
    pub counts: BTreeMap<StepPath, usize>,
    /// The number of permitted executions.
    pub allowed: BTreeMap<StepPath, usize>,
    /// All executions.
    pub executed: Vec<StepPath>,
    /// Findings of executions, such as a repetition without permission.
    pub twice: Vec<String>,
    /// Executions with an existing valid result.
    pub needless: Vec<StepPath>,
}

impl World {
    /// Returns the number of executions of a step.
    pub fn executions(&self, path: &StepPath) -> usize {
        self.executed.iter().filter(|other| *other == path).count()
    }

    /// Ends all failures, and makes all evidence verifiable.
    pub fn mend(&mut self) {
        self.failing.clear();
        self.flaky.clear();
        self.unknown.clear();
    }

    /// Permits another execution of a non-idempotent step.
    pub fn allow(&mut self, path: &StepPath) {
        *self.allowed.entry(path.clone()).or_default() += 1;
    }

    /// Returns whether a step fails in a scope.
    pub fn fails(&self, scope: &str, step: &str) -> bool {
        self.failing.iter().any(|failing| &*failing.step == step && scope.contains(failing.scope_part))
    }

    /// Returns whether the evidence of a step cannot be verified.
    pub fn is_unknown<'a>(&self, pins: impl IntoIterator<Item = &'a Pin>) -> bool {
        pins.into_iter().any(|pin| self.unknown.contains(&pin.file))
    }

    /// Returns whether the files have the contents of their pins.
    pub fn holds<'a>(&self, pins: impl IntoIterator<Item = &'a Pin>) -> bool {
        pins.into_iter().all(|pin| self.files.get(&pin.file) == Some(&pin.content))
    }
}
