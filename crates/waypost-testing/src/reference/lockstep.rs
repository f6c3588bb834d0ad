//! Generated workflows for the built command: the model plays each round first, and the command must
//! execute the same steps.
//!
//! Input: a seed and the features of the workflow. Output: for each round the workflow file, the files and the
//! hidden inputs before it, the arguments of the command, and what the model executed.

mod restrict;
mod workflow_file;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Rules;
use super::definition::{MAIN, Name, StepPath, Steps, When, all, leaves};
use super::engine::{Engine, FailurePolicy, Halt};
use super::generate::{Features, adoption, one_of, scopes_fail, upset, workflow};
use super::play::Feature;
use super::position::{Content, How};
use super::request::Request;
use crate::random::seed::Seeded;

/// The hidden inputs and failures of the steps, as a file beside the workflow.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StepInputs {
    /// The hidden input of a step.
    pub hidden: BTreeMap<String, i64>,
    /// The failing steps, each with a part of the scopes in which it fails.
    pub failing: Vec<(String, String)>,
}

impl StepInputs {
    /// Returns whether a step fails in a scope.
    #[must_use]
    pub fn fails(&self, scope: &str, step: &str) -> bool {
        self.failing.iter().any(|(failing, part)| failing == step && scope.contains(part))
    }
}

/// A round: the changes and the request before it, and the result in the model.
#[derive(Debug, Clone)]
pub struct RoundOutcome {
    /// The workflow file.
    pub workflow: String,
    /// The hidden inputs and failures.
    pub inputs: StepInputs,
    /// The files before the round, by name.
    pub files_before: BTreeMap<String, String>,
    /// The arguments after `resume RUN`.
    pub args: Vec<String>,
    /// The round to whose end the run returns first.
    pub rollback: Option<usize>,
    /// The ids of the steps without children. Empty in a workflow with conditions: a plan counts an unknown
    /// condition as true.
    pub leaves: BTreeSet<String>,
    /// The executions of the model, sorted.
    pub executed: Vec<StepPath>,
    /// The outputs of the completed steps.
    pub outputs: BTreeMap<StepPath, i64>,
    /// The files after the round, by name.
    pub files_after: BTreeMap<String, String>,
    /// Whether the run failed.
    pub has_failed: bool,
    /// Whether no step fails, in this round or in the round before.
    pub is_calm: bool,
}

/// A generated workflow beside the model.
#[derive(Debug)]
pub struct Lockstep {
    random: Seeded,
    model: Engine,
    features: Features,
    /// The passes of each group, also of removed groups.
    passes: BTreeMap<Name, u32>,
    /// The command of a step, without its options.
    execute: String,
    number: u64,
    rounds: u64,
    had_failures: bool,
    /// The commit at the end of each round, from the last edit on; `None` for the rounds before.
    ends: Vec<Option<usize>>,
}

impl Lockstep {
    /// Returns the workflow of a seed. `execute` is the start of the command line of each step.
    #[must_use]
    pub fn new(seed: u64, features: &Features, execute: &str) -> Self {
        let mut random = Seeded::new(seed);
        let steps = restrict::restricted(&workflow(&mut random, features));
        let passes = passes(&steps);
        let rounds = 2 + random.below(3);
        let mut model = Engine::new(steps, FailurePolicy::KeepGoing, Rules::default(), Seeded::new(!seed));
        model.confirm_percent = 0;
        model.reads_openers = false;
        let (features, execute) = (features.clone(), execute.to_owned());
        Self {
            random,
            model,
            features,
            passes,
            execute,
            number: 0,
            rounds,
            had_failures: false,
            ends: Vec::new(),
        }
    }

    /// Plays the next round in the model. Returns `None` after the last round, and if two steps undo each other.
    ///
    /// # Errors
    /// [`Halt`]: a defect of the model.
    pub fn next_round(&mut self) -> Result<Option<RoundOutcome>, Halt> {
        if self.number == self.rounds || self.model.stopped {
            return Ok(None);
        }
        let (is_first, is_last) = (self.number == 0, self.number + 1 == self.rounds);
        self.number += 1;
        let (mut request, mut args, mut rollback) = (Request::None, Vec::new(), None);
        let steps = self.model.disk_definition.steps.clone();
        if is_first {
            scopes_fail(&mut self.random, &mut self.model.world, &steps, &self.features);
        } else {
            let files = self.model.world.files.clone();
            upset(&mut self.random, &mut self.model.world, &steps, &self.features);
            if is_last {
                self.model.world.mend();
            }
            (request, args) = self.request();
            if let Request::Rollback(round) = &mut request {
                rollback = Some(*round);
                *round = self.ends[*round].unwrap_or_default();
            }
            // Where lost evidence enters the opener of a requested step again, the model also reruns the siblings.
            if matches!(request, Request::From(_)) {
                self.model.world.files = files;
            }
        }
        let steps = match &request {
            Request::Adopt(adoption) => adoption.steps.clone(),
            _ => self.model.disk_definition.steps.clone(),
        };
        self.passes.extend(passes(&steps));
        let mut leaves: BTreeSet<String> = leaves(&steps).iter().map(|leaf| restrict::id(&leaf.id)).collect();
        if all(&steps)
            .iter()
            .any(|step| step.skip_if.is_some() || matches!(step.when, When::Always | When::Failure))
        {
            leaves.clear();
        }
        let workflow = workflow_file::workflow(&steps, &self.execute);
        let (inputs, files_before) = (self.inputs(), self.files());
        let before = self.model.world.executed.len();
        self.model.resume(&request)?;
        if self.model.stopped {
            return Ok(None);
        }
        if matches!(request, Request::Adopt(_)) {
            self.ends.fill(None);
        }
        self.ends.push(Some(self.model.history() - 1));
        let mut executed: Vec<StepPath> = self.model.world.executed[before..].iter().map(on_screen).collect();
        executed.sort();
        let has_failures = !inputs.failing.is_empty();
        let is_calm = !has_failures && !std::mem::replace(&mut self.had_failures, has_failures);
        Ok(Some(RoundOutcome {
            workflow,
            inputs,
            files_before,
            args,
            rollback,
            leaves,
            executed,
            outputs: self.outputs(),
            files_after: self.files(),
            has_failed: !self.model.failures().is_empty(),
            is_calm,
        }))
    }

    /// Returns a request of a person, with its arguments.
    fn request(&mut self) -> (Request, Vec<String>) {
        let requests = [Feature::DeadLetters, Feature::Travel, Feature::Edits, Feature::Rollback];
        let mut kinds: Vec<Option<Feature>> =
            requests.into_iter().filter(|feature| self.features.contains(feature)).map(Some).collect();
        kinds.push(None);
        match one_of(&mut self.random, &kinds) {
            Some(Feature::DeadLetters) => (Request::RetryFailed, vec!["--retry-failed".to_owned()]),
            Some(Feature::Travel) => self.rerun_from(),
            Some(Feature::Edits) => {
                let adoption = adoption(&mut self.random, &mut self.model);
                let (adoption, choice) = restrict::adoption(adoption, &self.model.disk_definition.steps);
                (Request::Adopt(adoption), vec![choice])
            }
            Some(Feature::Rollback) => {
                let known = self.ends.iter().enumerate().filter(|(_, end)| end.is_some());
                let rounds: Vec<usize> = known.map(|(round, _)| round).collect();
                (Request::Rollback(one_of(&mut self.random, &rounds)), Vec::new())
            }
            _ => (Request::None, Vec::new()),
        }
    }

    fn rerun_from(&mut self) -> (Request, Vec<String>) {
        let model = &self.model;
        let scopes = model
            .positions
            .iter()
            .filter(|(scope, _)| model.in_force(scope) && !scope.contains(restrict::HOOK));
        let ended = scopes.flat_map(|(scope, position)| {
            let ran = position
                .ledger
                .iter()
                .filter(|(id, end)| end.how != How::PassedOver && !id.contains(restrict::HOOK));
            ran.map(|(id, _)| StepPath { scope: scope.clone(), step: id.clone() })
        });
        let ended: Vec<StepPath> = ended.collect();
        if ended.is_empty() {
            return (Request::None, Vec::new());
        }
        let path = one_of(&mut self.random, &ended);
        let address = format!("{}/{}", path.scope, path.step);
        let address = address.strip_prefix("main/").unwrap_or(&address).to_owned();
        (Request::From(path), vec!["--from".to_owned(), address])
    }

    fn inputs(&self) -> StepInputs {
        let world = &self.model.world;
        let hidden = world.hidden.iter().map(|(step, value)| (restrict::id(step), *value)).collect();
        // The scope of a hook has no pass and no item.
        let part = |step: &str, part: &str| if step.contains(restrict::HOOK) { "" } else { part }.to_owned();
        let failing = world.failing.iter();
        let failing =
            failing.map(|failing| (restrict::id(&failing.step), part(&failing.step, failing.scope_part)));
        StepInputs { hidden, failing: failing.collect() }
    }

    fn files(&self) -> BTreeMap<String, String> {
        let text = |content: &Content| match content {
            Content::Number(number) => number.to_string(),
            _ => HALF.to_owned(),
        };
        self.model.world.files.iter().map(|(file, content)| (self.on_disk(file), text(content))).collect()
    }

    fn outputs(&self) -> BTreeMap<StepPath, i64> {
        let scopes = self.model.positions.iter().filter(|(scope, _)| self.model.in_force(scope));
        let outputs = scopes.flat_map(|(scope, position)| {
            let completed = position.ledger.iter().filter(|(_, end)| end.how == How::Completed);
            completed.filter_map(move |(id, end)| {
                let is_leaf = self.model.step(scope, id).is_some_and(|step| step.is_leaf());
                is_leaf.then_some((on_screen(&StepPath::new(scope, id)), end.output?))
            })
        });
        outputs.collect()
    }

    /// Returns the name on disk of a file of the model: the name, then the scope.
    fn on_disk(&self, file: &str) -> String {
        let at = file.find(MAIN).unwrap_or(file.len());
        let (mut name, scope) = (file[..at].to_owned(), &file[at..]);
        for part in scope.split('/').skip(1) {
            let key = match part.split_once(':') {
                Some((_, item)) => Some(item),
                None => part
                    .split_once('~')
                    .filter(|(opener, _)| self.passes.get(*opener) > Some(&1))
                    .map(|pair| pair.1),
            };
            if let Some(key) = key {
                name.push_str(&format!("-{key}"));
            }
        }
        name
    }
}

/// The content of a file whose step failed.
pub const HALF: &str = "half";

fn passes(steps: &Steps) -> BTreeMap<Name, u32> {
    all(steps).iter().map(|step| (step.id.clone(), step.passes)).collect()
}

/// Returns the path of a step as the command names it: hooks have a scope of their own.
fn on_screen(path: &StepPath) -> StepPath {
    let part = |part: &str| match part.split_once(restrict::HOOK) {
        Some((step, when)) => format!("{step}:on_{}", when.trim_end_matches("~1")),
        None => part.to_owned(),
    };
    let scope: Vec<String> = path.scope.split('/').map(part).collect();
    StepPath::new(&scope.join("/"), &restrict::id(&path.step))
}

/// The features of a set of workflows, such as `failures+hooks`.
///
/// # Errors
/// The unknown feature, with all features.
pub fn features(text: &str) -> Result<Features, String> {
    let mut found = BTreeSet::new();
    for name in text.split('+').filter(|name| *name != "base") {
        let feature = FEATURES.iter().find(|(known, _)| *known == name).map(|(_, feature)| *feature);
        let known = || FEATURES.map(|(known, _)| known).join(", ");
        found.insert(feature.ok_or_else(|| format!("`{name}` is not one of base, {}", known()))?);
    }
    Ok(found)
}

const FEATURES: [(&str, Feature); 8] = [
    ("failures", Feature::Failures),
    ("hooks", Feature::Hooks),
    ("letters", Feature::DeadLetters),
    ("edits", Feature::Edits),
    ("from", Feature::Travel),
    ("inplace", Feature::InPlace),
    ("scopes", Feature::Scopes),
    ("rollback", Feature::Rollback),
];
