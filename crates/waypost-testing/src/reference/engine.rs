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
use crate::seed::Seeded;

/// In how many of a hundred questions a person confirms the old result: both answers are common.
const CONFIRM_PERCENT: u64 = 40;

/// Why a resume ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    /// The process died: memory is lost, files and records remain.
    Crash,
    /// It finds broken evidence for ever: a defect of the model.
    NoEnd,
}

/// Whether a failure stops what does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// A failure passes over what has not started in its scope.
    FailFast,
    /// Only what depends on a failure is passed over.
    KeepGoing,
}

/// What stays reusable of invalidated steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// All of it.
    Keep,
    /// Nothing: a person requested a rerun.
    Drop,
}

/// All positions after a commit.
#[derive(Debug, Clone)]
struct Committed {
    positions: BTreeMap<Name, Arc<Position>>,
    definition: Definition,
    /// How many executions there were.
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
    /// How failures are treated.
    pub policy: FailurePolicy,
    /// The commit at which the process dies.
    pub crash_at: Option<usize>,
    /// Commits since this number was set to 0.
    pub commits: usize,
    /// Steps that this resume neither reuses nor runs: their evidence cannot be verified.
    pub blocked: BTreeSet<StepPath>,
    /// Whether two steps undo each other, so that the resume stopped.
    pub stopped: bool,
    /// In how many of a hundred questions a person confirms the old result.
    pub confirm_percent: u64,
    /// How often a person was asked.
    pub asked: usize,
    /// How many results were reused.
    pub reused: usize,
    /// Steps that a request or a question lets run again.
    pub may_rerun: BTreeSet<StepPath>,
    /// Steps that a request told to run again.
    pub must_run: BTreeSet<StepPath>,
    /// What a plan says of each leaf.
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
    /// Returns an engine at the beginning of a run.
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

    /// Returns how many commits there were in the whole run.
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

    /// Returns the position of a scope, for a change in the next commit.
    fn change(&mut self, scope: &str) -> &mut Position {
        if !self.changed.contains(scope) {
            self.changed.insert(scope.into());
        }
        self.positions.get_mut(scope).expect("the scope was opened")
    }

    /// Writes all changed positions to disk in one batch. A plan writes nothing.
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
