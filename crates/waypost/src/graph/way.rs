//! The way on from a step, as it was written, and what is told of it.

use std::collections::HashSet;

use super::END;
use super::error::GraphError;
use super::level::RouteFn;
use crate::id::StepId;

/// The way on from a step, by name.
pub(super) enum Way<S> {
    Edge(StepId),
    /// Through the branches of a fork to its join.
    Fork(StepId),
    Route {
        targets: Vec<StepId>,
        choose: RouteFn<S>,
    },
}

impl<S> Way<S> {
    pub(super) fn targets(&self) -> Vec<&StepId> {
        match self {
            Self::Edge(target) | Self::Fork(target) => vec![target],
            Self::Route { targets, .. } => targets.iter().collect(),
        }
    }

    pub(super) fn told(&self, from: &str) -> String {
        match self {
            Self::Edge(target) => told_edge(from, target.as_str()),
            Self::Fork(_) => told_fork(from),
            Self::Route { .. } => told_route(from),
        }
    }

    /// Where it leads, for the fingerprint of its step: nothing else tells a graph with other edges apart. That a branch
    /// ends is said in three ways, without any, with an edge to the join, and with one to the end, and means the same.
    pub(super) fn print(&self, find: &impl Fn(&StepId) -> Option<usize>) -> Vec<Vec<u8>> {
        let name = |id: &StepId| if find(id).is_some() { id.as_str().into() } else { END.into() };
        let mut names: Vec<Vec<u8>> = self.targets().into_iter().map(name).collect();
        names.sort();
        names.dedup();
        if names == [END.as_bytes()] { Vec::new() } else { names }
    }
}

pub(super) fn told_edge(from: &str, to: &str) -> String {
    format!("the edge from `{from}` to `{to}`")
}

pub(super) fn told_route(from: &str) -> String {
    format!("the route after `{from}`")
}

pub(super) fn told_fork(after: &str) -> String {
    format!("the fork after `{after}`")
}

/// Reads the names that a route or a fork was given: there are some, and no two are the same.
pub(super) fn targets_of(
    names: impl IntoIterator<Item = impl AsRef<str>>,
    told: impl Fn() -> String,
) -> Result<Vec<StepId>, GraphError> {
    let mut targets = Vec::new();
    for name in names {
        let target = StepId::new(name.as_ref());
        targets.push(target.map_err(|why| GraphError::BadName { edge: told(), why })?);
    }
    if targets.is_empty() {
        return Err(GraphError::NoTargets(told()));
    }
    let mut known = HashSet::with_capacity(targets.len());
    match targets.iter().find(|target| !known.insert(*target)) {
        Some(step) => Err(GraphError::NamedTwice { edge: told(), step: step.clone() }),
        None => Ok(targets),
    }
}
