//! The engine of the model: positions in memory and on disk, commits, crashes, and the turn of each step.

mod claims;
mod edit;
mod end;
mod invalidate;
mod plan;
mod resume;
mod reuse;
mod rollback;
mod trace;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use plan::Planned;
pub use walk::Decision;

use super::definition::{Definition, Name, Step, StepPath, Steps};
use super::position::Position;
use super::rule::{Rule, Rules};
use super::world::World;
use crate::random::seed::Seeded;

/// Percentage of questions in which a person confirms the old result, so that both answers are common.
const CONFIRM_PERCENT: u64 = 40;

/// Why a resume ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    /// The process died: memory is lost, files and records remain.
    Crash,
    /// Evidence stays broken forever: a defect of the model.
    NoEnd,
}

/// Whether a failure stops steps that do not depend on the failed step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// A failure passes over all unstarted steps in its scope.
    FailFast,
    /// A failure passes over only its dependents.
    KeepGoing,
}

/// Whether the results of invalidated steps stay reusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The results stay reusable.
    Keep,
    /// The results are dropped: a person requested a rerun.
    Drop,
}

/// All positions after a commit.
#[derive(Debug, Clone)]
struct Committed {
    positions: BTreeMap<Name, Arc<Position>>,
    definition: Definition,
    /// The number of executions so far.
    executed: usize,
}

/// An engine with its store and its world.
#[derive(Debug)]
pub struct Engine {
    /// The world.
    pub world: World,
    /// The positions on disk.
    pub disk: BTreeMap<Name, Arc<Position>>,
    /// The definition on disk.
    pub disk_definition: Definition,
    /// The positions in memory.
    pub positions: BTreeMap<Name, Position>,
    /// The definition in memory.
    pub definition: Definition,
    /// The failure policy.
    pub policy: FailurePolicy,
    /// The commit at which the process crashes.
    pub crash_at: Option<usize>,
    /// Commits since the last reset of this counter.
    pub commits: usize,
    /// Steps that this resume neither reuses nor runs, because their evidence cannot be verified.
    pub blocked: BTreeSet<StepPath>,
    /// Whether the resume stopped because two steps undo each other.
    pub stopped: bool,
    /// Percentage of questions in which a person confirms the old result.
    pub confirm_percent: u64,
    /// Whether steps compute with the outputs of openers. A workflow file passes only outputs of leaves.
    pub reads_openers: bool,
    /// The number of questions.
    pub asked: usize,
    /// The number of reused results.
    pub reused: usize,
    /// Steps that may run again after a request or a question.
    pub may_rerun: BTreeSet<StepPath>,
    /// Steps that must run again after a request.
    pub must_run: BTreeSet<StepPath>,
    /// The planned action of each leaf.
    pub planned: BTreeMap<StepPath, Planned>,
    rules: Rules,
    random: Seeded,
    history: Vec<Committed>,
    /// Scopes changed since the last commit.
    changed: BTreeSet<Name>,
    /// Scopes that the next commit removes.
    removed: BTreeSet<Name>,
    number: u64,
    /// Steps executed by this resume.
    executed_now: BTreeSet<StepPath>,
    is_plan: bool,
}

impl Engine {
    /// Returns an engine at the start of a run.
    pub fn new(steps: Steps, policy: FailurePolicy, rules: Rules, random: Seeded) -> Self {
        let definition = Definition::new(steps);
        Self {
            world: World::default(),
            disk: BTreeMap::new(),
            disk_definition: definition.clone(),
            positions: BTreeMap::new(),
            definition,
            policy,
            crash_at: None,
            commits: 0,
            blocked: BTreeSet::new(),
            stopped: false,
            confirm_percent: CONFIRM_PERCENT,
            reads_openers: true,
            asked: 0,
            reused: 0,
            may_rerun: BTreeSet::new(),
            must_run: BTreeSet::new(),
            planned: BTreeMap::new(),
            rules,
            random,
            history: Vec::new(),
            changed: BTreeSet::new(),
            removed: BTreeSet::new(),
            number: 0,
            executed_now: BTreeSet::new(),
            is_plan: false,
        }
    }

    /// Returns the number of commits of the whole run.
    pub fn history(&self) -> usize {
        self.history.len()
    }

    /// Returns the next number of a record.
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Returns the steps of a scope.
    pub fn steps_of(&self, scope: &str) -> Steps {
        self.definition.steps_of(scope)
    }

    /// Returns a step of a scope.
    pub fn step(&self, scope: &str, step: &str) -> Option<Arc<Step>> {
        self.steps_of(scope).iter().find(|other| &*other.id == step).cloned()
    }

    /// Returns the position of a scope.
    ///
    /// # Panics
    /// If the scope was never opened.
    pub fn position(&self, scope: &str) -> &Position {
        self.positions.get(scope).expect("the scope was opened")
    }

    fn on(&self, rule: Rule) -> bool {
        self.rules.on(rule)
    }

    /// Returns the position of a scope and marks it for the next commit.
    fn change(&mut self, scope: &str) -> &mut Position {
        if !self.changed.contains(scope) {
            self.changed.insert(scope.into());
        }
        self.positions.get_mut(scope).expect("the scope was opened")
    }

    /// Writes all changed positions to disk in a single batch. A plan writes nothing.
    fn commit(&mut self) -> Result<(), Halt> {
        if self.is_plan {
            self.changed.clear();
            return Ok(());
        }
        self.die_if_due()?;
        self.commits += 1;
        for scope in std::mem::take(&mut self.removed) {
            self.disk.remove(&scope);
        }
        for scope in std::mem::take(&mut self.changed) {
            if let Some(position) = self.positions.get(&scope) {
                self.disk.insert(scope, Arc::new(position.clone()));
            }
        }
        self.disk_definition = self.definition.clone();
        let executed = self.world.executed.len();
        let (positions, definition) = (self.disk.clone(), self.definition.clone());
        self.history.push(Committed { positions, definition, executed });
        Ok(())
    }

    fn die_if_due(&self) -> Result<(), Halt> {
        let is_due = self.crash_at.is_some_and(|at| self.commits >= at);
        if is_due { Err(Halt::Crash) } else { Ok(()) }
    }

    /// Reads all positions from disk.
    fn load(&mut self) {
        let copy = |(scope, position): (&Name, &Arc<Position>)| (scope.clone(), Position::clone(position));
        self.positions = self.disk.iter().map(copy).collect();
        self.definition = self.disk_definition.clone();
        if !self.on(Rule::SkipIsRecorded) {
            self.positions.values_mut().for_each(|position| position.skipped.clear());
        }
        self.changed.clear();
        self.removed.clear();
    }
}
