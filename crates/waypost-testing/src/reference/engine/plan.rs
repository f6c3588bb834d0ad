//! The plan: the walk on a copy. A step that would run ends with unknown digests.

use std::collections::BTreeMap;

use super::super::definition::{Name, Step, StepPath, children};
use super::super::position::{Content, Digest, End, How, Pin, Progress, Provenance, Reusable, Truth};
use super::super::request::Request;
use super::super::world::World;
use super::walk::Turn;
use super::{Engine, Halt};
use crate::random::seed::Seeded;

/// First record number of a plan, above all numbers of the run.
const FIRST_NUMBER: u64 = 1_000_000;

/// The planned action of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planned {
    /// The result is reused.
    Reuse,
    /// The leaf runs unless its input turns out unchanged.
    Recheck,
    /// A person is asked.
    Ask,
    /// The leaf runs.
    Run,
}

impl Engine {
    /// Returns the planned action of each leaf for a resume with this request, without side effects.
    ///
    /// # Errors
    /// [`Halt::NoEnd`]: the plan does not end.
    pub fn plan(&self, request: &Request) -> Result<BTreeMap<StepPath, Planned>, Halt> {
        let steps = self.disk_definition.steps.clone();
        let mut copy = Self::new(steps, self.policy, self.rules.clone(), Seeded::new(1));
        copy.is_plan = true;
        copy.disk = self.disk.clone();
        copy.disk_definition = self.disk_definition.clone();
        copy.world = World { files: self.world.files.clone(), ..World::default() };
        copy.number = FIRST_NUMBER;
        copy.load();
        copy.resume(request)?;
        Ok(copy.planned)
    }

    fn is_unknown(&self, turn: &Turn) -> bool {
        let position = self.position(&turn.scope);
        let of = |id: &Name| position.ledger.get(id).map(|end| end.output_digest);
        let before = turn.activity.before.as_ref().map(|end| end.output_digest);
        position.input.is_unknown
            || turn.step.upstream().map(of).chain([before]).any(|digest| digest == Some(Digest::UNKNOWN))
    }

    pub(super) fn plan_turn(&mut self, turn: &Turn) -> Result<(), Halt> {
        let Turn { scope, step, activity } = turn;
        let is_unknown = self.is_unknown(turn);
        let is_fresh = activity.progress == Progress::Ready && !activity.retry;
        let reused = if !is_unknown && is_fresh { self.reusable_end(scope, step, activity) } else { None };
        if let Some(end) = reused {
            self.note_reuse(scope, step, &end);
            self.settle(turn, End { before: activity.before.clone(), ..End::clone(&end) });
            return Ok(());
        }
        if step.is_leaf() {
            self.plan_leaf(turn, is_unknown);
            return Ok(());
        }
        self.open_children(turn)?;
        if is_unknown {
            let items = self.position(scope).frontier.get(&step.id).map(|open| open.items.clone());
            for child in children(scope, step, activity.pass, &items.unwrap_or_default()) {
                self.change(&child).input.is_unknown = true;
            }
        }
        Ok(())
    }

    fn plan_leaf(&mut self, turn: &Turn, is_unknown: bool) {
        let Turn { scope, step, activity } = turn;
        let reusable = self.position(scope).reusable.get(&(step.id.clone(), activity.pass)).cloned();
        let may_hold = |end: &End| self.definition.accepts(step, end.version) && self.holds(scope, step, end);
        let may_reuse =
            is_unknown && reusable.as_ref().and_then(Reusable::end).is_some_and(|end| may_hold(end));
        let was_started = reusable.is_some() || activity.progress == Progress::Interrupted;
        let planned = match () {
            () if may_reuse => Planned::Recheck,
            () if !step.idempotent && was_started => Planned::Ask,
            () => Planned::Run,
        };
        self.planned.insert(turn.path(), planned);
        self.executed_now.insert(turn.path());
        let file = step.file_in(scope);
        if let Some(file) = &file {
            self.world.files.insert(file.clone(), Content::Unknown);
        }
        let pins: Vec<Pin> = file.into_iter().map(|file| Pin { file, content: Content::Unknown }).collect();
        let pin_digest = self.pin_digest(scope, step, Digest::of(&pins));
        let truth = Provenance { output: Truth::Nothing, pins: Truth::Nothing };
        let output = Some(1);
        let end = End { pins, pin_digest, truth, output, ..self.end_now(turn, How::Completed) };
        self.settle(turn, end);
    }

    fn note_reuse(&mut self, scope: &str, step: &Step, end: &End) {
        if step.is_leaf() {
            self.planned.insert(StepPath::new(scope, &step.id), Planned::Reuse);
            return;
        }
        for child in children(scope, step, end.pass, &end.items) {
            for inner in self.steps_of(&child).iter() {
                let inner_end = self.position(&child).ledger.get(&inner.id).cloned();
                if let Some(inner_end) = inner_end.filter(|end| end.ran()) {
                    self.note_reuse(&child, inner, &inner_end);
                }
            }
        }
    }
}
