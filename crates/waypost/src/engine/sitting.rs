//! What a run that begins where another one stood is in the middle of.

use crate::id::StepId;
use crate::record::{Fan, Position};
use crate::shape::Shape;

use super::back::joins;
use super::take_up::is_done_again;

/// A fan-out that a branch of the new run is in the middle of.
pub(super) struct Sitting {
    pub(super) step: StepId,
    pub(super) fan: Fan,
    /// All of its branches have ended, and the step that joins them is the next.
    pub(super) is_joining: bool,
}

impl Sitting {
    pub(super) fn of(position: &Position, shape: &Shape) -> Vec<Self> {
        let staying = position.frontier.iter().filter(|entry| !is_done_again(entry, shape));
        let entries = staying.filter_map(|entry| {
            let (step, fan) = (entry.step.clone(), entry.fan.clone()?);
            Some(Self { step, fan, is_joining: joins(entry) })
        });
        entries.collect()
    }
}
