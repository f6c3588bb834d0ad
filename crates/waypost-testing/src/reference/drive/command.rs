//! A script as a workflow file for the built command. The world is a log of events: a killed process loses at
//! most the event of a step.
//!
//! Input: a seed, and the events so far. Output: the workflow file, the effects of an execution, and the
//! defects at rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::definition::{Definition, Kind, Name, Step, StepPath, Steps};
use super::super::engine::Halt;
use super::super::position::Content;
use super::play::Level;
use super::script::Script;
use super::shared_world::{Given, SharedWorld};

/// An event in the world.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An execution of a step.
    Executed {
        /// The scope.
        scope: String,
        /// The step.
        step: String,
        /// The outputs read.
        outputs: BTreeMap<String, i64>,
    },
    /// Files were lost.
    Lost(Vec<String>),
    /// Hidden inputs changed.
    Hidden(BTreeMap<String, i64>),
    /// A person decided whether steps in doubt run again.
    Retries(bool),
}

/// The effects of an execution.
#[derive(Debug, Clone)]
pub struct Effects {
    /// The output.
    pub output: i64,
    /// The written file and its content.
    pub file: Option<(String, i64)>,
}

/// A script for the command.
#[derive(Debug, Clone)]
pub struct CommandScript {
    script: Script,
}

impl CommandScript {
    /// Returns the script of a seed.
    ///
    /// # Errors
    /// [`Halt`]: a defect of the model.
    pub fn of(seed: u64, level: Level) -> Result<Self, Halt> {
        Script::of_command(seed, level).map(|script| Self { script })
    }

    /// Returns the number of rounds.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.script.rounds.len()
    }

    /// Returns the events before a round.
    #[must_use]
    pub fn before(&self, round: usize) -> [Event; 3] {
        let round = &self.script.rounds[round];
        let lost = round.lost.iter().map(ToString::to_string).collect();
        let hidden = round.hidden.iter().map(|(step, value)| (step.to_string(), *value)).collect();
        [Event::Lost(lost), Event::Hidden(hidden), Event::Retries(false)]
    }

    /// Returns the workflow file; `execute` is the command of each step.
    #[must_use]
    pub fn workflow(&self, execute: &str) -> String {
        let steps = list(&self.script.steps, &[], execute);
        json!({ "name": "reference", "max_parallel": 2, "steps": steps }).to_string()
    }

    /// Returns the world after these events.
    #[must_use]
    pub fn world(&self, events: &[Event]) -> CommandWorld {
        let mut world = CommandWorld {
            steps: self.script.steps.clone(),
            world: SharedWorld::new(self.script.steps.clone()),
        };
        for event in events {
            world.take_in(event);
        }
        world
    }

    /// Compares the executions of a round with the model.
    #[must_use]
    pub fn compare(&self, round: usize, executed: &[StepPath]) -> Vec<String> {
        let mut ran = executed.to_vec();
        ran.sort();
        let expected = &self.script.rounds[round].expected;
        if ran == *expected {
            Vec::new()
        } else {
            vec![format!("{ran:?} ran, and in the model {expected:?}")]
        }
    }
}

/// The world of a script, after some events.
#[derive(Debug)]
pub struct CommandWorld {
    steps: Steps,
    world: SharedWorld,
}

impl CommandWorld {
    fn take_in(&mut self, event: &Event) {
        match event {
            Event::Executed { scope, step, outputs } => {
                self.execute(scope, step, outputs);
            }
            Event::Lost(files) => {
                let lost: BTreeSet<&str> = files.iter().map(String::as_str).collect();
                self.world.lock().files.retain(|file, _| !lost.contains(&**file));
            }
            Event::Hidden(hidden) => {
                let hidden = hidden.iter().map(|(step, value)| (Name::from(step.as_str()), *value));
                self.world.lock().hidden.extend(hidden);
            }
            Event::Retries(retries) => self.world.lock().retries_all = *retries,
        }
    }

    /// Executes a step; returns `None` if the script does not contain the step.
    pub fn execute(&mut self, scope: &str, step: &str, outputs: &BTreeMap<String, i64>) -> Option<Effects> {
        let steps = Definition::new(self.steps.clone()).steps_of(scope);
        let step: Arc<Step> = steps.iter().find(|found| &*found.id == step)?.clone();
        let path = StepPath::new(scope, &step.id);
        let mut world = self.world.lock();
        let input = world.value_of(scope);
        // A workflow file passes only outputs of leaves; outputs of openers come from the world.
        let mut read = world.outputs_read(scope, &step);
        read.extend(outputs.iter().map(|(id, output)| (Name::from(id.as_str()), *output)));
        let outputs = read;
        let output = world.execute(&Given { path, step: step.clone(), input, outputs });
        let file = step.file_in(scope).and_then(|file| match world.files.get(&file) {
            Some(Content::Number(content)) => Some((self.file_name(scope, &step), *content)),
            _ => None,
        });
        Some(Effects { output, file })
    }

    /// Returns the expected files on the disk, by name.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, i64> {
        let world = self.world.lock();
        let content = |(file, content): (&Name, &Content)| match content {
            Content::Number(number) => Some((self.on_disk(file)?, *number)),
            _ => None,
        };
        world.files.iter().filter_map(content).collect()
    }

    /// Returns all executions in order.
    #[must_use]
    pub fn executed(&self) -> Vec<StepPath> {
        self.world.lock().executed.clone()
    }

    /// Returns the defects of a run at rest, except needless executions, which the comparison with the model
    /// finds.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        let mut found = self.world.lock().check();
        found.retain(|found| !found.ends_with("needlessly"));
        found
    }

    /// Returns the name on disk of the model file `STEP-SCOPE`.
    fn on_disk(&self, file: &str) -> Option<String> {
        let (step, scope) = file.split_once('-')?;
        let steps = Definition::new(self.steps.clone()).steps_of(scope);
        let step = steps.iter().find(|found| &*found.id == step)?;
        Some(self.file_name(scope, step))
    }

    fn file_name(&self, scope: &str, step: &Step) -> String {
        let mut name = step.id.to_string();
        let mut steps = self.steps.clone();
        for part in scope.split('/').skip(1) {
            let opener = part.split(['~', ':']).next().unwrap_or(part);
            let Some(opener) = steps.iter().find(|found| &*found.id == opener).cloned() else { break };
            match part.split_once(['~', ':']) {
                Some((_, key)) if opener.kind != Kind::Group || opener.passes > 1 => {
                    name.push_str(&format!("-{key}"));
                }
                _ => {}
            }
            steps = opener.body.clone();
        }
        name
    }
}

/// Returns steps as a list for the workflow file. `around` holds the expressions for the scope in file names.
fn list(steps: &Steps, around: &[String], execute: &str) -> Vec<Value> {
    let is_leaf = |id: &Name| steps.iter().any(|step| step.id == *id && step.is_leaf());
    let written = |step: &Arc<Step>| {
        let needs: Vec<&str> = step.needs.iter().map(|need| &**need).collect();
        let mut node = json!({ "id": &*step.id, "needs": needs });
        match step.kind {
            Kind::Leaf => {
                let read = step.upstream().filter(|id| is_leaf(id));
                let env: BTreeMap<String, String> =
                    read.map(|id| (format!("P_{id}"), format!("${{{{ steps.{id}.outputs.v }}}}"))).collect();
                (node["run"], node["env"]) = (json!(execute), json!(env));
                if !step.idempotent {
                    node["idempotent"] = json!(false);
                }
                if step.file.is_some() {
                    let name: Vec<String> =
                        std::iter::once(step.id.to_string()).chain(around.to_vec()).collect();
                    node["evidence"] = json!([{ "sha256": format!("files/{}", name.join("-")) }]);
                }
            }
            Kind::Group => {
                let pass = (step.passes > 1).then(|| "${{ iteration }}".to_owned());
                let around: Vec<String> = around.iter().cloned().chain(pass).collect();
                node["steps"] = json!(list(&step.body, &around, execute));
                if step.passes > 1 {
                    let until = format!("iteration >= {}", step.passes);
                    node["repeat"] = json!({ "until": until, "max": step.passes });
                }
            }
            Kind::ForEach => {
                let item = format!("i_{}", step.id);
                let around: Vec<String> =
                    around.iter().cloned().chain([format!("${{{{ {item} }}}}")]).collect();
                let items: Vec<&str> = step.items.iter().map(|item| &**item).collect();
                let steps = list(&step.body, &around, execute);
                node["foreach"] = json!({ "items": items, "as": item, "steps": steps });
            }
        }
        node
    };
    steps.iter().map(written).collect()
}
