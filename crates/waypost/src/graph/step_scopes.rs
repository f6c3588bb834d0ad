//! Finds the scope of each step, and checks that every step is reachable and can reach an end.

use super::error::GraphError;
use crate::id::{SCOPE_DEPTH_MAX, StepId};
use crate::plan::shape::ShapeError;

/// Steps and edges by index.
pub(super) struct Outline {
    pub(super) ids: Vec<StepId>,
    /// The possible next steps of each step; `None` is the end. Empty: the step ends its scope.
    pub(super) outgoing: Vec<Vec<Option<usize>>>,
    /// For the join of a fork: the step before the fork, and the first steps of the scopes.
    pub(super) forks: Vec<Option<(usize, Vec<usize>)>>,
}

/// Returns the join of the enclosing fork for each step; `None` in the main scope.
pub(super) fn find(outline: &Outline, start: &StepId) -> Result<Vec<Option<usize>>, GraphError> {
    let start = outline.ids.iter().position(|id| id == start).unwrap_or(0);
    let mut scopes: Vec<Option<Option<usize>>> = vec![None; outline.ids.len()];
    walk(outline, &[start], (None, 0), &mut scopes)?;
    for (place, scope) in scopes.iter().enumerate() {
        if scope.is_none() {
            return Err(GraphError::Unreachable(outline.ids[place].clone()));
        }
    }
    let scopes: Vec<Option<usize>> = scopes.into_iter().flatten().collect();
    check_joins(outline, start, &scopes)?;
    check_ends(outline, &scopes)?;
    Ok(scopes)
}

/// Assigns all steps reachable from `starts` to a scope. Recurses into the scopes of every fork on the path.
fn walk(
    outline: &Outline,
    starts: &[usize],
    (scope, depth): (Option<usize>, usize),
    scopes: &mut Vec<Option<Option<usize>>>,
) -> Result<(), GraphError> {
    let mut forks = Vec::new();
    let mut rest: Vec<usize> = starts.to_vec();
    while let Some(place) = rest.pop() {
        match scopes[place] {
            Some(known) if known == scope => continue,
            Some(known) => return Err(shared(outline, place, known, scope)),
            None => scopes[place] = Some(scope),
        }
        if let Some((_, starts)) = &outline.forks[place] {
            forks.push((place, starts.clone()));
        }
        // The join ends a scope and is not a step of the scope.
        rest.extend(outline.outgoing[place].iter().flatten().filter(|next| Some(**next) != scope));
    }
    for (join, starts) in forks {
        if depth == SCOPE_DEPTH_MAX {
            return Err(ShapeError::TooDeep(outline.ids[join].clone()).into());
        }
        walk(outline, &starts, (Some(join), depth + 1), scopes)?;
    }
    Ok(())
}

fn shared(outline: &Outline, place: usize, one: Option<usize>, other: Option<usize>) -> GraphError {
    let describe = |scope: Option<usize>| match scope.and_then(|join| outline.forks[join].as_ref()) {
        Some((after, _)) => format!("the fork after `{}`", outline.ids[*after]),
        None => "the main scope".to_owned(),
    };
    GraphError::Shared { step: outline.ids[place].clone(), one: describe(one), other: describe(other) }
}

/// Checks that only a fork and its scopes lead to the join of the fork. Any other edge would run the fork
/// without the step before the fork.
fn check_joins(outline: &Outline, start: usize, scopes: &[Option<usize>]) -> Result<(), GraphError> {
    let describe = |place: usize| format!("step `{}`", outline.ids[place]);
    let first = |target: usize| (target, usize::MAX, "the start".to_owned());
    let mut outgoing = vec![first(start)];
    for (place, targets) in outline.outgoing.iter().enumerate() {
        outgoing.extend(targets.iter().flatten().map(|target| (*target, place, describe(place))));
    }
    for (after, starts) in outline.forks.iter().flatten() {
        // No step may lead to the first step of a scope, not even the step before the fork: that first step may
        // be a join.
        outgoing.extend(starts.iter().map(|target| (*target, usize::MAX, describe(*after))));
    }
    for (target, from, edge) in outgoing {
        let Some((after, _)) = &outline.forks[target] else { continue };
        let is_scope = scopes.get(from).is_some_and(|scope| *scope == Some(target));
        if from != *after && !is_scope {
            let (join, after) = (outline.ids[target].clone(), outline.ids[*after].clone());
            return Err(GraphError::IntoJoin { from: edge, join, after });
        }
    }
    Ok(())
}

/// Checks that every step can reach the end of its scope.
fn check_ends(outline: &Outline, scopes: &[Option<usize>]) -> Result<(), GraphError> {
    let ends = |place: usize| {
        let outgoing = &outline.outgoing[place];
        outgoing.is_empty()
            || outgoing.iter().any(|next| next.is_none() || *next == scopes[place] && next.is_some())
    };
    let mut arrives: Vec<bool> = (0..outline.ids.len()).map(ends).collect();
    let mut before = vec![Vec::new(); outline.ids.len()];
    for (place, outgoing) in outline.outgoing.iter().enumerate() {
        outgoing.iter().flatten().for_each(|next| before[*next].push(place));
    }
    let mut rest: Vec<usize> = (0..arrives.len()).filter(|place| arrives[*place]).collect();
    while let Some(place) = rest.pop() {
        for earlier in &before[place] {
            if !std::mem::replace(&mut arrives[*earlier], true) {
                rest.push(*earlier);
            }
        }
    }
    match arrives.iter().position(|arrives| !arrives) {
        Some(place) => Err(GraphError::NoEnd(outline.ids[place].clone())),
        None => Ok(()),
    }
}
