//! Scripts: a workflow, the changes and the request before each round, and the executions expected by the
//! model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::definition::{Kind, MAIN, Name, Step, StepPath, Steps, all, leaves};
use super::super::engine::{Engine, FailurePolicy, Halt};
use super::super::generate::{chance, one_of, workflow};
use super::super::request::{Adoption, Request};
use super::super::rule::Rules;
use super::play::Level;
use crate::random::seed::Seeded;

/// The changes before a round, and the expected executions.
#[derive(Debug, Clone, Default)]
pub(super) struct ScriptRound {
    /// Lost files.
    pub lost: Vec<Name>,
    /// Changed hidden inputs.
    pub hidden: BTreeMap<Name, i64>,
    /// The request of a person.
    pub request: Request,
    /// The executions of the model, sorted.
    pub expected: Vec<StepPath>,
}

/// A workflow with its rounds.
#[derive(Debug, Clone)]
pub(super) struct Script {
    pub steps: Steps,
    pub rounds: Vec<ScriptRound>,
}

const ROUNDS: u64 = 4;

/// The requests of a person before the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requests {
    /// None.
    None,
    /// Reruns from a step of the main scope, and edits of its steps.
    Main,
    /// Also reruns from a step of a child scope.
    Any,
}

impl Script {
    /// Returns the script of a seed.
    ///
    /// # Errors
    /// [`Halt`]: a defect of the model.
    pub(super) fn of(seed: u64, level: Level, requests: Requests) -> Result<Self, Halt> {
        let mut random = Seeded::new(seed);
        let steps = normalized(&workflow(&mut random, &BTreeSet::new()), level);
        Self::of_steps(seed, random, steps, requests)
    }

    fn of_steps(seed: u64, mut random: Seeded, steps: Steps, requests: Requests) -> Result<Self, Halt> {
        let mut model =
            Engine::new(steps.clone(), FailurePolicy::KeepGoing, Rules::default(), Seeded::new(!seed));
        model.confirm_percent = 0;
        let mut rounds = Vec::new();
        for number in 0..2 + random.below(ROUNDS - 1) {
            let mut round = ScriptRound::default();
            if number > 0 {
                round = trouble(&mut random, &model, &steps);
            }
            if number > 0 {
                round.request = request(&mut random, &model, requests);
            }
            model.world.files.retain(|file, _| !round.lost.contains(file));
            model.world.hidden.extend(round.hidden.clone());
            let before = model.world.executed.len();
            model.resume(&round.request)?;
            round.expected = model.world.executed[before..].to_vec();
            round.expected.sort();
            rounds.push(round);
        }
        Ok(Self { steps, rounds })
    }
}

fn trouble(random: &mut Seeded, model: &Engine, steps: &Steps) -> ScriptRound {
    let files = model.world.files.keys();
    let lost = files.filter(|_| chance(random, 25)).cloned().collect();
    let mut hidden = BTreeMap::new();
    for leaf in leaves(steps) {
        if chance(random, 25) {
            hidden.insert(leaf.id.clone(), one_of(random, &[0, 1, 2, 5]));
        }
    }
    ScriptRound { lost, hidden, ..ScriptRound::default() }
}

/// Returns the request of a person: nothing, a rerun from a step, or an edit of steps of the main scope, whose
/// results are all kept or all dropped.
fn request(random: &mut Seeded, model: &Engine, requests: Requests) -> Request {
    // Without evidence, ends have no traces: the engine asks about an opener, and not about its children.
    let has_evidence = all(&model.disk_definition.steps).iter().any(|step| step.file.is_some());
    if requests == Requests::None || !has_evidence {
        return Request::None;
    }
    match random.below(5) {
        0 => rerun_from(random, model, requests),
        1 => edit(random, model),
        _ => Request::None,
    }
}

fn rerun_from(random: &mut Seeded, model: &Engine, requests: Requests) -> Request {
    let scopes = model
        .positions
        .iter()
        .filter(|(scope, _)| model.in_force(scope) && (requests == Requests::Any || &***scope == MAIN));
    let ended = scopes.flat_map(|(scope, position)| {
        position.ledger.keys().map(|id| StepPath { scope: scope.clone(), step: id.clone() })
    });
    Request::From(one_of(random, &ended.collect::<Vec<_>>()))
}

fn edit(random: &mut Seeded, model: &Engine) -> Request {
    let old = model.disk_definition.steps.clone();
    let version = 1 + old.iter().map(|step| step.version).max().unwrap_or(0);
    let mut changed = Vec::new();
    let edited = |step: &Arc<Step>| {
        if !step.is_leaf() || !chance(random, 50) {
            return step.clone();
        }
        changed.push(step.id.clone());
        Arc::new(Step { version, ..Step::clone(step) })
    };
    let steps: Steps = old.iter().map(edited).collect();
    if changed.is_empty() {
        return Request::None;
    }
    let (mut rerun_changed, mut keep_finished) = (Vec::new(), changed);
    if chance(random, 40) {
        std::mem::swap(&mut rerun_changed, &mut keep_finished);
    }
    Request::Adopt(Adoption { steps, rerun_changed, keep_finished })
}

/// Restricts the steps to a valid program: scopes do not share files, and only upstream steps are read.
fn normalized(steps: &Steps, level: Level) -> Steps {
    let mut upstream: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
    let mut found = Vec::new();
    for step in steps.iter() {
        let mut ancestors: BTreeSet<Name> = step.needs.iter().cloned().collect();
        for need in &step.needs {
            ancestors.extend(upstream.get(need).into_iter().flatten().cloned());
        }
        let file = step.file.as_ref().map(|_| format!("{}-$S", step.id).into());
        let reads = step.reads.iter().filter(|id| ancestors.contains(*id)).cloned().collect();
        let mut new = Step { file, reads, body: normalized(&step.body, level), ..Step::clone(step) };
        if level == Level::Leaves || (level == Level::Items && step.kind == Kind::Group) {
            new = Step {
                kind: Kind::Leaf,
                body: Steps::from([]),
                items: Vec::new(),
                passes: 1,
                file: Some(format!("{}-$S", step.id).into()),
                ..new
            };
        }
        if level != Level::Passes {
            new.passes = 1;
        }
        upstream.insert(step.id.clone(), ancestors);
        found.push(Arc::new(new));
    }
    found.into()
}

/// Returns the number of steps of a script, including nested steps.
pub(super) fn size(script: &Script) -> usize {
    all(&script.steps).len()
}
