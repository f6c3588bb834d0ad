//! The limit of running steps, and steps that run alone.
//!
//! A step may kill the runner, for example by its memory use. After many interruptions in a row, the step starts
//! only while no other step is running, and fails after another interruption. Input: a ready step with its number
//! of interruptions. Output: start, wait or fail.

use crate::record::{Failure, FailureKind};

use super::scope::LineId;
use super::session::Session;
use super::{Program, StepReport};

impl<P: Program> Session<'_, P> {
    /// Returns whether no further step may start.
    pub(super) fn is_full(&self) -> bool {
        let in_flight = self.in_flight();
        let is_beside = self.is_isolated && in_flight > 0;
        is_beside || self.options.parallel_max.is_some_and(|most| in_flight >= most.get())
    }

    fn in_flight(&self) -> usize {
        let about_to = |id: &LineId| {
            let line = self.lines.get(*id);
            line.starting.len() + line.alone.len()
        };
        self.jobs.len() + self.launching.iter().map(about_to).sum::<usize>()
    }

    /// Returns whether a step must wait for running steps to end: the step was interrupted often, and starts only
    /// alone.
    pub(super) fn must_wait_to_be_alone(&mut self, id: LineId, place: usize) -> bool {
        let line = self.lines.get(id);
        let is_alone = line.entry(place).cuts >= line.shape.steps()[place].cuts_max;
        let waits = is_alone && self.in_flight() > 0;
        self.is_isolated = is_alone || (self.is_isolated && self.in_flight() > 0);
        waits
    }

    /// Fails a step that was interrupted again after it ran alone.
    pub(super) fn is_cut_too_often(&mut self, id: LineId, place: usize) -> bool {
        let line = self.lines.get(id);
        let cuts = line.entry(place).cuts;
        if cuts <= line.shape.steps()[place].cuts_max {
            return false;
        }
        let text = format!("cut {cuts} times: each time, the process that ran the step was killed");
        self.fail(id, place, Failure::new(FailureKind::Limit, vec![text]), StepReport::default());
        true
    }
}
