//! A chain: the position (lineage, reusable chain, started step) and the phases of a resume (check, rewind,
//! run, rejoin).

use std::collections::{BTreeMap, BTreeSet};

use super::super::definition::{Name, StepPath};
use super::super::engine::Halt;
use super::super::position::{Content, Digest, Pin, Truth};
use super::super::rule::{Rule, Rules};
use super::super::world::{Execution, World};

/// Maximum number of steps of a chain.
pub(super) const LENGTH_MAX: u64 = 9;
/// Most evidence checks of a resume; more is a defect of the model.
const LOOKS_MAX: usize = 60;

/// A step of a chain.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub id: Name,
    /// The step keeps its input modulo this number.
    pub modulus: i64,
    pub file: Option<Name>,
    pub file_modulus: i64,
    pub idempotent: bool,
    /// The routes, chosen by the state.
    pub then: Vec<Name>,
}

/// The state of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RunState {
    pub steps: u64,
    pub value: i64,
}

/// A step and the number of its earlier executions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Visit {
    pub step: Name,
    pub number: u64,
}

impl Visit {
    fn path(&self) -> StepPath {
        StepPath::new(&self.number.to_string(), &self.step)
    }
}

/// The end of a step. Digests remain where retention drops the state.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub number: u64,
    pub visit: Visit,
    pub state: Digest,
    /// The digest of all pins in force at the end of the step, including pins of earlier steps.
    pub pin_digest: Digest,
    pub pins: Vec<Pin>,
    /// The next step; `None` at the end.
    pub next: Option<Name>,
}

/// The position of a chain.
#[derive(Debug, Clone, Default)]
pub(super) struct ChainPosition {
    /// Records in force.
    pub lineage: Vec<Record>,
    /// The previous lineage, out of force.
    pub reusable: Option<Vec<Record>>,
    /// Steps begun since the lineage was set aside.
    pub begun: BTreeSet<Visit>,
    /// The step whose start is recorded.
    pub started: Option<Visit>,
}

/// Why a resume of a chain ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Halt(Halt),
    /// Retention dropped a required state: a defect of the model.
    NoState,
}

/// A run of a chain.
#[derive(Debug)]
pub(super) struct ChainRun {
    pub nodes: Vec<Node>,
    pub world: World,
    pub position: ChainPosition,
    pub crash_at: Option<usize>,
    pub commits: usize,
    pub asked: usize,
    pub rejoined: usize,
    /// The number of states that retention keeps.
    pub states_max: usize,
    rules: Rules,
    disk: Option<ChainPosition>,
    states: BTreeMap<u64, RunState>,
    number: u64,
    may_rerun: BTreeSet<Visit>,
}

impl ChainRun {
    pub(super) fn new(nodes: Vec<Node>, states_max: usize, rules: Rules) -> Self {
        Self {
            nodes,
            world: World::default(),
            position: ChainPosition::default(),
            crash_at: None,
            commits: 0,
            asked: 0,
            rejoined: 0,
            states_max,
            rules,
            disk: None,
            states: BTreeMap::from([(0, RunState { steps: 0, value: 0 })]),
            number: 0,
            may_rerun: BTreeSet::new(),
        }
    }

    fn commit(&mut self) -> Result<(), Stop> {
        self.die_if_due()?;
        self.commits += 1;
        self.disk = Some(self.position.clone());
        let head = |records: &Vec<Record>| records.last().map_or(0, |record| record.number);
        let mut needed = BTreeSet::from([0, head(&self.position.lineage)]);
        if self.rules.on(Rule::ChainRetainsHead) {
            needed.extend(self.position.reusable.as_ref().map(head));
        }
        let newest: BTreeSet<u64> = self.states.keys().rev().take(self.states_max).copied().collect();
        self.states.retain(|number, _| newest.contains(number) || needed.contains(number));
        Ok(())
    }

    fn die_if_due(&self) -> Result<(), Stop> {
        let is_due = self.crash_at.is_some_and(|at| self.commits >= at);
        if is_due { Err(Stop::Halt(Halt::Crash)) } else { Ok(()) }
    }

    fn state(&self) -> Result<RunState, Stop> {
        let number = self.position.lineage.last().map_or(0, |record| record.number);
        self.states.get(&number).copied().ok_or(Stop::NoState)
    }

    fn next_visit(&self) -> Option<Visit> {
        let step = match self.position.lineage.last() {
            Some(last) => last.next.clone()?,
            None => self.nodes[0].id.clone(),
        };
        let before = self.position.lineage.iter().filter(|record| record.visit.step == step).count();
        Some(Visit { step, number: before as u64 + 1 })
    }

    /// Returns the index of the first record whose evidence fails. Of several claims about a file, the last one counts.
    fn broken(&self) -> Option<usize> {
        let claims = self.position.lineage.iter().enumerate();
        let claims = claims.flat_map(|(index, record)| record.pins.iter().map(move |pin| (index, pin)));
        let newest: BTreeMap<&Name, (usize, &Pin)> =
            claims.map(|(index, pin)| (&pin.file, (index, pin))).collect();
        newest.into_values().filter(|(_, pin)| !self.world.holds([*pin])).map(|(index, _)| index).min()
    }

    /// Rewinds to the newest retained state before a record. The records after that state become the reusable
    /// chain.
    fn rewind(&mut self, mut index: usize) {
        let ChainPosition { lineage, reusable, begun, started } = &mut self.position;
        begun.extend(started.clone());
        let had_reusable = reusable.is_some();
        let old = reusable.get_or_insert_with(|| lineage.clone());
        while index > 0 && !self.states.contains_key(&lineage[index - 1].number) {
            index -= 1;
        }
        let visits =
            |records: &[Record]| records.iter().map(|record| record.visit.clone()).collect::<Vec<_>>();
        if had_reusable {
            self.may_rerun.extend(visits(&lineage[index..]));
            self.may_rerun.extend(visits(old));
        } else {
            self.may_rerun.extend(visits(&lineage[index..=index.min(lineage.len() - 1)]));
        }
        lineage.truncate(index);
    }

    /// Joins the reusable chain after a step with the same state and the same pins in force.
    fn rejoin(&mut self) -> Result<(), Stop> {
        let Some(old) = &self.position.reusable else { return Ok(()) };
        let lineage = &self.position.lineage;
        let new = lineage.last().expect("a step has just ended");
        for (index, record) in old.iter().enumerate().filter(|(_, record)| record.visit == new.visit) {
            let rest = &old[index + 1..];
            let count = |records: &[Record]| {
                let mut counts: BTreeMap<Name, usize> = BTreeMap::new();
                let is_ahead = |step: &Name| rest.iter().any(|record| record.visit.step == *step);
                for record in records.iter().filter(|record| is_ahead(&record.visit.step)) {
                    *counts.entry(record.visit.step.clone()).or_default() += 1;
                }
                counts
            };
            if self.rules.on(Rule::ChainPasses) && count(lineage) != count(&old[..=index]) {
                continue;
            }
            let same_pins = if self.rules.on(Rule::ChainPinDigest) {
                record.pin_digest == new.pin_digest
            } else {
                record.pins == new.pins
            };
            let was_begun = rest.iter().any(|record| self.position.begun.contains(&record.visit));
            if record.state == new.state && same_pins && !(was_begun && self.rules.on(Rule::ChainBegun)) {
                let rest = rest.to_vec();
                self.position.lineage.extend(rest);
                self.drop_reusable();
                self.rejoined += 1;
                return self.state().map(|_| ());
            }
        }
        Ok(())
    }

    /// Discards the reusable chain, but remembers non-idempotent steps that ran off the lineage.
    fn drop_reusable(&mut self) {
        let discarded = self.position.reusable.take().unwrap_or_default();
        let mut begun = std::mem::take(&mut self.position.begun);
        if self.rules.on(Rule::ChainRemembersDiscarded) {
            begun.extend(discarded.into_iter().map(|record| record.visit));
            begun.retain(|visit| !self.node(&visit.step).idempotent);
            self.position.begun = begun;
        }
    }

    fn node(&self, id: &Name) -> &Node {
        self.nodes.iter().find(|node| node.id == *id).expect("routes lead to steps of the chain")
    }

    /// For the oracles: returns the state and the pins in force after these records.
    fn truth(&self, lineage: &[Record]) -> Truth {
        let start = Digest::of(RunState { steps: 0, value: 0 });
        let state = lineage.last().map_or(start, |record| record.state);
        let pins = pins_in_force(lineage);
        let pins = pins.into_iter().map(|(file, content)| Truth::Pin(Pin { file, content }));
        Truth::list([Truth::Digest(state), Truth::list(pins)])
    }

    fn execute(&mut self, visit: &Visit) -> Result<(), Stop> {
        let node = self.node(&visit.step).clone();
        if self.position.reusable.is_some() {
            self.position.begun.insert(visit.clone());
        }
        self.position.started = Some(visit.clone());
        self.commit()?;
        let truth = self.truth(&self.position.lineage);
        self.note_execution(visit, &node, truth.clone());
        let state = self.state()?;
        let hidden = self.world.hidden.get(&node.id).copied().unwrap_or(0);
        let value = (state.value + hidden + 1).rem_euclid(node.modulus);
        let content = Content::Number((value + state.steps as i64).rem_euclid(node.file_modulus));
        let pins: Vec<Pin> = node.file.iter().map(|file| Pin { file: file.clone(), content }).collect();
        self.world.files.extend(pins.iter().map(|pin| (pin.file.clone(), pin.content)));
        self.die_if_due()?;
        self.number += 1;
        let route = &node.then[value as usize % node.then.len()];
        let next = (state.steps < LENGTH_MAX).then(|| route.clone());
        let state = RunState { steps: state.steps + 1, value };
        self.states.insert(self.number, state);
        let mut in_force = pins_in_force(&self.position.lineage);
        in_force.extend(pins.iter().map(|pin| (pin.file.clone(), pin.content)));
        let execution = Execution { input: truth, version: 0, pins: pins.clone() };
        self.position.lineage.push(Record {
            number: self.number,
            visit: visit.clone(),
            state: Digest::of(state),
            pin_digest: Digest::of(in_force),
            pins,
            next,
        });
        self.world.good.insert(visit.path(), execution);
        self.may_rerun.remove(visit);
        self.position.started = None;
        if self.position.reusable.is_none() {
            self.position.begun.remove(visit);
        }
        self.rejoin()?;
        self.commit()
    }

    /// For the oracles: records an execution, and whether the execution is needless or repeated without
    /// permission.
    fn note_execution(&mut self, visit: &Visit, node: &Node, truth: Truth) {
        let path = visit.path();
        let world = &mut self.world;
        let is_there = |good: &Execution| good.input == truth && world.holds(&good.pins);
        if world.good.get(&path).is_some_and(is_there) && !self.may_rerun.contains(visit) {
            world.needless.push(path.clone());
        }
        world.executed.push(path.clone());
        world.good.remove(&path);
        let count = world.counts.entry(path.clone()).or_default();
        *count += 1;
        if !node.idempotent && *count > 1 + world.allowed.get(&path).copied().unwrap_or(0) {
            world.twice.push(format!("{path:?} ran twice"));
        }
        world.last.insert(path, Execution { input: truth, version: 0, pins: Vec::new() });
    }

    pub(super) fn resume(&mut self) -> Result<(), Stop> {
        match &self.disk {
            Some(disk) => self.position = disk.clone(),
            None => {
                self.position = ChainPosition::default();
                self.commit()?;
            }
        }
        for _ in 0..LOOKS_MAX {
            if let Some(index) = self.broken() {
                self.rewind(index);
                self.commit()?;
            }
            let Some(visit) = self.next_visit() else {
                if self.position.reusable.is_some() {
                    self.drop_reusable();
                    self.commit()?;
                }
                return Ok(());
            };
            if self.must_ask(&visit) {
                // An old result needs its resulting state, so a person can only retry.
                self.asked += 1;
                self.world.allow(&visit.path());
                self.may_rerun.insert(visit.clone());
            }
            self.execute(&visit)?;
        }
        Err(Stop::Halt(Halt::NoEnd))
    }

    fn must_ask(&self, visit: &Visit) -> bool {
        let ChainPosition { reusable, begun, started, .. } = &self.position;
        let was_done = reusable.iter().flatten().any(|record| record.visit == *visit);
        let was_begun = started.as_ref() == Some(visit) || begun.contains(visit);
        !self.node(&visit.step).idempotent && (was_done || was_begun)
    }

    /// Returns the defects of a chain at rest.
    pub(super) fn check(&self) -> Vec<String> {
        let mut found = Vec::new();
        let lineage = &self.position.lineage;
        for (index, record) in lineage.iter().enumerate() {
            let before = &lineage[..index];
            let last = self.world.last.get(&record.visit.path());
            if last.is_none_or(|execution| execution.input != self.truth(before)) {
                found.push(format!("{:?} is stale", record.visit));
            }
            let visits = before.iter().filter(|other| other.visit.step == record.visit.step).count();
            let next = before.last().map_or(Some(&self.nodes[0].id), |last| last.next.as_ref());
            if record.visit.number != visits as u64 + 1 || next != Some(&record.visit.step) {
                found.push(format!("{:?} is not on the route", record.visit));
            }
        }
        found.extend(self.world.twice.iter().cloned());
        found
    }
}

fn pins_in_force(lineage: &[Record]) -> BTreeMap<Name, Content> {
    let pins = lineage.iter().flat_map(|record| &record.pins);
    pins.map(|pin| (pin.file.clone(), pin.content)).collect()
}
