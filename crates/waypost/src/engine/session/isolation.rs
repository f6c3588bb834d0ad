//! The limit of running steps, and steps that run alone.
//!
//! A step may kill the runner, for example by its memory use. After many interruptions in a row, the step starts
//! only while no other step is running, and fails after another interruption. Input: a ready step with its number
//! of interruptions. Output: start, wait or fail.

use crate::record::{Failure, FailureKind};

use super::Session;
use crate::engine::scope::ScopeId;
use crate::engine::{Program, StepReport};

impl<P: Program> Session<'_, P> {
    /// Returns whether no further step may start.
    pub(crate) fn is_full(&self) -> bool {
        let in_flight = self.in_flight();
        let is_beside = self.is_isolated && in_flight > 0;
        is_beside || self.options.parallel_max.is_some_and(|most| in_flight >= most.get())
    }

    fn in_flight(&self) -> usize {
        let about_to = |id: &ScopeId| {
            let scope = self.scopes.get(*id);
            scope.starting.len() + scope.starting_alone.len()
        };
        self.jobs.len() + self.launching.iter().map(about_to).sum::<usize>()
    }

    /// Returns whether a step must wait for running steps to end: the step was interrupted often, and starts only
    /// alone.
    pub(crate) fn must_wait_to_be_alone(&mut self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get(id);
        let is_alone = scope.entry(place).cuts >= scope.shape.steps()[place].cuts_max;
        let waits = is_alone && self.in_flight() > 0;
        self.is_isolated = is_alone || (self.is_isolated && self.in_flight() > 0);
        waits
    }

    /// Fails a step that was interrupted again after a start alone. Returns whether the step has failed.
    pub(crate) fn fail_after_cuts(&mut self, id: ScopeId, place: usize) -> bool {
        let scope = self.scopes.get(id);
        let cuts = scope.entry(place).cuts;
        if cuts <= scope.shape.steps()[place].cuts_max {
            return false;
        }
        let text = format!("cut {cuts} times: each time, the process that ran the step was killed");
        self.fail(id, place, Failure::new(FailureKind::Limit, vec![text]), StepReport::default());
        true
    }
}
