//! The declared outgoing edges of a step, and the text of edges in errors and fingerprints.

use std::collections::HashSet;

use super::END;
use super::error::GraphError;
use super::level::RouteFn;
use crate::id::StepId;
use crate::plan::shape::{Shape, Step};

/// The outgoing edges of a step, by step id.
pub(super) enum Outgoing<S> {
    Edge(StepId),
    /// Through the branches of a fork to the join.
    Fork(StepId),
    Route {
        targets: Vec<StepId>,
        choose: RouteFn<S>,
    },
}

impl<S> Outgoing<S> {
    pub(super) fn targets(&self) -> Vec<&StepId> {
        match self {
            Self::Edge(target) | Self::Fork(target) => vec![target],
            Self::Route { targets, .. } => targets.iter().collect(),
        }
    }

    pub(super) fn describe(&self, from: &str) -> String {
        match self {
            Self::Edge(target) => describe_edge(from, target.as_str()),
            Self::Fork(_) => describe_fork(from),
            Self::Route { .. } => describe_route(from),
        }
    }

    /// Returns the targets, for the fingerprint of the step: only the fingerprint distinguishes graphs with other
    /// edges. Without an edge, with an edge to the join, or with an edge to the end, a branch simply ends; all
    /// three give an empty list.
    pub(super) fn print(&self, find: &impl Fn(&StepId) -> Option<usize>) -> Vec<Vec<u8>> {
        let name = |id: &StepId| if find(id).is_some() { id.as_str().into() } else { END.into() };
        let mut names: Vec<Vec<u8>> = self.targets().into_iter().map(name).collect();
        names.sort();
        names.dedup();
        if names == [END.as_bytes()] { Vec::new() } else { names }
    }
}

pub(super) fn describe_edge(from: &str, to: &str) -> String {
    format!("the edge from `{from}` to `{to}`")
}

pub(super) fn describe_route(from: &str) -> String {
    format!("the route after `{from}`")
}

pub(super) fn describe_fork(after: &str) -> String {
    format!("the fork after `{after}`")
}

/// Parses the targets of a route or a fork. Refuses an empty list and duplicates.
pub(super) fn targets_of(
    names: impl IntoIterator<Item = impl AsRef<str>>,
    describe: impl Fn() -> String,
) -> Result<Vec<StepId>, GraphError> {
    let mut targets = Vec::new();
    for name in names {
        let target = StepId::new(name.as_ref());
        targets.push(target.map_err(|why| GraphError::BadName { edge: describe(), why })?);
    }
    if targets.is_empty() {
        return Err(GraphError::NoTargets(describe()));
    }
    let mut known = HashSet::with_capacity(targets.len());
    match targets.iter().find(|target| !known.insert(*target)) {
        Some(step) => Err(GraphError::NamedTwice { edge: describe(), step: step.clone() }),
        None => Ok(targets),
    }
}

/// Returns the start steps of a fork for the fingerprint, since the index identifies a branch. Empty in the
/// default case: the start steps are all steps without a predecessor, in name order.
pub(super) fn print_of_starts(shape: &Shape, starts: &[StepId]) -> Vec<Vec<u8>> {
    let led_to: HashSet<&StepId> = shape.steps().iter().flat_map(|step| &step.routes).collect();
    let mut plain: Vec<&StepId> = shape.steps().iter().map(|step| &step.id).collect();
    plain.retain(|id| !led_to.contains(id));
    plain.sort();
    if plain.into_iter().eq(starts) {
        return Vec::new();
    }
    starts.iter().map(|id| id.as_str().into()).collect()
}

/// Returns the steps of a shape for the fingerprint.
pub(super) fn prints_of(shape: &Shape) -> Vec<Vec<u8>> {
    let print =
        |step: &Step| [step.id.as_str().as_bytes(), b"\0", step.fingerprint.as_bytes().as_slice()].concat();
    let mut prints: Vec<Vec<u8>> = shape.steps().iter().map(print).collect();
    // The order in which steps were added does not matter.
    prints.sort();
    prints
}
