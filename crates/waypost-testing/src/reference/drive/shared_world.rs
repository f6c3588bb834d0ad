//! The world of driven runs: files, hidden inputs, executions, and the oracles.
//!
//! The inputs of an execution are compared with the newest upstream executions, without trust in the records
//! of the engine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
use waypost::record::Claim;

use super::super::definition::{Kind, MAIN, Name, Parent, Step, StepPath, Steps, children};
use super::super::position::{Content, Pin, Provenance, Truth};

/// The kind of evidence about a file of this world.
pub(in super::super) const KIND: &str = "reference_file";

/// An execution.
#[derive(Debug, Clone)]
struct ExecutedStep {
    input: Truth,
    output: i64,
    pins: Vec<Pin>,
}

/// The world.
#[derive(Debug)]
pub(super) struct WorldState {
    steps: Steps,
    pub files: BTreeMap<Name, Content>,
    pub hidden: BTreeMap<Name, i64>,
    pub executed: Vec<StepPath>,
    /// Defects seen by executions.
    pub found: Vec<String>,
    last: BTreeMap<StepPath, ExecutedStep>,
    /// Executions with a durable end; a further execution with the same input is needless.
    good: BTreeMap<StepPath, ExecutedStep>,
    counts: BTreeMap<StepPath, usize>,
    allowed: BTreeMap<StepPath, usize>,
    /// Whether a person decided that all steps in doubt run again.
    pub retries_all: bool,
}

/// The world, shared by running steps, probe and player.
#[derive(Debug, Clone)]
pub(super) struct SharedWorld(Arc<Mutex<WorldState>>);

/// The inputs that the engine passes to an execution.
#[derive(Debug)]
pub(super) struct Given {
    pub path: StepPath,
    pub step: Arc<Step>,
    /// The value of the scope.
    pub input: i64,
    /// The outputs read.
    pub outputs: BTreeMap<Name, i64>,
}

impl SharedWorld {
    pub(super) fn new(steps: Steps) -> Self {
        Self(Arc::new(Mutex::new(WorldState {
            steps,
            files: BTreeMap::new(),
            hidden: BTreeMap::new(),
            executed: Vec::new(),
            found: Vec::new(),
            last: BTreeMap::new(),
            good: BTreeMap::new(),
            counts: BTreeMap::new(),
            allowed: BTreeMap::new(),
            retries_all: false,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl WorldState {
    fn steps_of(&self, scope: &str) -> Steps {
        super::super::definition::Definition::new(self.steps.clone()).steps_of(scope)
    }

    fn step(&self, scope: &str, id: &str) -> Option<Arc<Step>> {
        self.steps_of(scope).iter().find(|step| &*step.id == id).cloned()
    }

    /// Executes a step and returns its output.
    pub(super) fn execute(&mut self, given: &Given) -> i64 {
        let Given { path, step, .. } = given;
        self.check_outputs(given);
        let input = self.truth_given(&path.scope, step);
        let is_there = self.good.get(path).is_some_and(|good| good.input == input && self.holds(&good.pins));
        if is_there && self.allowance(path) == 0 {
            self.found.push(format!("{path:?} ran needlessly"));
        }
        let count = self.counts.entry(path.clone()).or_default();
        *count += 1;
        let count = *count;
        if self.retries_all && count > 1 {
            *self.allowed.entry(path.clone()).or_default() += 1;
        }
        if !step.idempotent && count > 1 + self.allowance(path) {
            self.found.push(format!("{path:?} ran {count} times, unasked"));
        }
        let read: i64 = given.outputs.values().sum();
        let value =
            given.input + read + i64::from(step.version) + self.hidden.get(&step.id).copied().unwrap_or(0);
        let file = step.file_in(&path.scope);
        let content = Content::Number(value.rem_euclid(step.file_modulus));
        let pins: Vec<Pin> = file.into_iter().map(|file| Pin { file, content }).collect();
        self.files.extend(pins.iter().map(|pin| (pin.file.clone(), pin.content)));
        let output = value.rem_euclid(step.output_modulus);
        let execution = ExecutedStep { input, output, pins };
        self.executed.push(path.clone());
        self.last.insert(path.clone(), execution.clone());
        self.good.insert(path.clone(), execution);
        output
    }

    /// Checks that every output read is the output of the newest execution.
    fn check_outputs(&mut self, given: &Given) {
        let scope = &given.path.scope;
        for (id, output) in &given.outputs {
            let Some(step) = self.step(scope, id) else { continue };
            let newest = self.output(scope, &step);
            if newest != Some(*output) {
                let found = format!("{:?} read output {output} of {id}, which is {newest:?}", given.path);
                self.found.push(found);
            }
        }
    }

    /// Returns the output of the newest executions of a step.
    fn output(&self, scope: &str, step: &Step) -> Option<i64> {
        if step.is_leaf() {
            return self.last.get(&StepPath::new(scope, &step.id)).map(|execution| execution.output);
        }
        let mut sum = 0;
        for child in children(scope, step, step.passes, &step.items) {
            for inner in self.steps_of(&child).iter() {
                sum += self.output(&child, inner)?;
            }
        }
        Some(sum.rem_euclid(97))
    }

    fn holds(&self, pins: &[Pin]) -> bool {
        pins.iter().all(|pin| self.files.get(&pin.file) == Some(&pin.content))
    }

    fn allowance(&self, path: &StepPath) -> usize {
        self.allowed.get(path).copied().unwrap_or(0)
    }

    /// Records the decision of a person to run a step again.
    pub(super) fn allow(&mut self, path: StepPath) {
        *self.allowed.entry(path.clone()).or_default() += 1;
        self.good.remove(&path);
    }

    /// Replaces the steps after an edit.
    pub(super) fn adopt(&mut self, steps: Steps) {
        self.steps = steps;
    }

    /// Records that a person requested a rerun of these steps.
    pub(super) fn allow_reruns(&mut self, paths: &[StepPath]) {
        self.good.retain(|path, _| !paths.contains(path));
    }

    /// After a crash: forgets ends that are not in the store.
    pub(super) fn lose_ends(&mut self, recorded: impl Fn(&StepPath) -> usize) {
        let counts = &self.counts;
        self.good.retain(|path, _| counts.get(path).is_none_or(|count| recorded(path) >= *count));
    }

    /// Returns the provenance of the newest executions of a step and of all upstream steps.
    fn truth(&self, scope: &str, step: &Step) -> Provenance {
        let upstream = step.needs.iter().filter_map(|id| self.step(scope, id));
        let upstream = Truth::list(upstream.map(|need| self.truth(scope, &need).pins));
        if step.is_leaf() {
            let Some(last) = self.last.get(&StepPath::new(scope, &step.id)) else {
                return Provenance::default();
            };
            let own = Truth::list(last.pins.iter().cloned().map(Truth::Pin));
            return Provenance { output: Truth::Number(last.output), pins: Truth::list([own, upstream]) };
        }
        let mut outputs = Vec::new();
        let mut pins = vec![upstream];
        for child in children(scope, step, step.passes, &step.items) {
            for inner in self.steps_of(&child).iter() {
                let truth = self.truth(&child, inner);
                outputs.push(truth.output);
                pins.push(truth.pins);
            }
        }
        Provenance { output: Truth::list(outputs), pins: Truth::list(pins) }
    }

    fn truth_given(&self, scope: &str, step: &Step) -> Truth {
        let find = |ids: &[Name]| ids.iter().filter_map(|id| self.step(scope, id)).collect::<Vec<_>>();
        let needs = find(&step.needs).into_iter().map(|need| self.truth(scope, &need).whole());
        let reads = find(&step.reads).into_iter().map(|need| self.truth(scope, &need).output);
        Truth::list([self.input(scope), Truth::list(needs), Truth::list(reads)])
    }

    fn input(&self, scope: &str) -> Truth {
        let Some(parent) = Parent::of(scope) else { return Truth::Nothing };
        let Some(opener) = self.step(&parent.scope, &parent.opener) else { return Truth::Nothing };
        let before = if opener.kind == Kind::Group && parent.pass > 1 {
            let pass = format!("{}/{}~{}", parent.scope, opener.id, parent.pass - 1);
            Truth::list(self.steps_of(&pass).iter().map(|step| self.truth(&pass, step).whole()))
        } else {
            Truth::Nothing
        };
        Truth::list([self.truth_given(&parent.scope, &opener), before])
    }

    /// Returns the defects of a run at rest.
    pub(super) fn check(&self) -> Vec<String> {
        let mut found = self.found.clone();
        self.check_scope(MAIN, &mut found);
        found
    }

    fn check_scope(&self, scope: &str, found: &mut Vec<String>) {
        for step in self.steps_of(scope).iter() {
            if !step.is_leaf() {
                for pass in 1..=step.passes {
                    for child in children(scope, step, pass, &step.items) {
                        self.check_scope(&child, found);
                    }
                }
                continue;
            }
            let path = StepPath::new(scope, &step.id);
            match self.last.get(&path) {
                None => found.push(format!("{path:?} never ran")),
                Some(last) if last.input != self.truth_given(scope, step) => {
                    found.push(format!("{path:?} is stale"));
                }
                Some(last) if !self.holds(&last.pins) => {
                    found.push(format!("the evidence of {path:?} fails"));
                }
                Some(_) => {}
            }
        }
    }
}

/// A probe for files of a world in memory. The function returns the content of a file, or `None` if the file
/// is lost.
pub(in super::super) struct FileProbe<F>(pub F);

impl<F> fmt::Debug for FileProbe<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileProbe")
    }
}

#[async_trait]
impl<F: Fn(&str) -> Option<i64> + Send + Sync> Probe for FileProbe<F> {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(KIND, Cost::Asking)
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        let number = (self.0)(&claim.subject).ok_or_else(|| Finding::absent("the file is lost"))?;
        Ok(Finding::compared(claim.expect.as_i64() == Some(number), number))
    }

    async fn pin(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        let number = (self.0)(&claim.subject).ok_or_else(|| Finding::failed("the file is lost"))?;
        Ok(Finding::ok(number))
    }
}
