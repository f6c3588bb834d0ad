//! Finds the branch of each step, and checks that every step is reachable and can reach an end.

use super::error::GraphError;
use crate::id::{BRANCH_DEPTH_MAX, StepId};
use crate::plan::shape::ShapeError;

/// Steps and edges by index.
pub(super) struct Outline {
    pub(super) ids: Vec<StepId>,
    /// The possible next steps of each step; `None` is the end. Empty: the step ends its branch.
    pub(super) ways: Vec<Vec<Option<usize>>>,
    /// For the join of a fork: the step before the fork, and the first steps of the branches.
    pub(super) forks: Vec<Option<(usize, Vec<usize>)>>,
}

/// Returns the join of the enclosing fork for each step; `None` on the main branch.
pub(super) fn find(outline: &Outline, start: &StepId) -> Result<Vec<Option<usize>>, GraphError> {
    let start = outline.ids.iter().position(|id| id == start).unwrap_or(0);
    let mut homes: Vec<Option<Option<usize>>> = vec![None; outline.ids.len()];
    walk(outline, &[start], (None, 0), &mut homes)?;
    for (place, home) in homes.iter().enumerate() {
        if home.is_none() {
            return Err(GraphError::Unreachable(outline.ids[place].clone()));
        }
    }
    let homes: Vec<Option<usize>> = homes.into_iter().flatten().collect();
    check_joins(outline, start, &homes)?;
    check_ends(outline, &homes)?;
    Ok(homes)
}

/// Assigns all steps reachable from `starts` to a home. Recurses into the branches of every fork on the path.
fn walk(
    outline: &Outline,
    starts: &[usize],
    (home, depth): (Option<usize>, usize),
    homes: &mut Vec<Option<Option<usize>>>,
) -> Result<(), GraphError> {
    let mut forks = Vec::new();
    let mut rest: Vec<usize> = starts.to_vec();
    while let Some(place) = rest.pop() {
        match homes[place] {
            Some(known) if known == home => continue,
            Some(known) => return Err(shared(outline, place, known, home)),
            None => homes[place] = Some(home),
        }
        if let Some((_, starts)) = &outline.forks[place] {
            forks.push((place, starts.clone()));
        }
        // The join ends a branch and is not a step of the branch.
        rest.extend(outline.ways[place].iter().flatten().filter(|next| Some(**next) != home));
    }
    for (join, starts) in forks {
        if depth == BRANCH_DEPTH_MAX {
            return Err(ShapeError::TooDeep(outline.ids[join].clone()).into());
        }
        walk(outline, &starts, (Some(join), depth + 1), homes)?;
    }
    Ok(())
}

fn shared(outline: &Outline, place: usize, one: Option<usize>, other: Option<usize>) -> GraphError {
    let describe = |home: Option<usize>| match home.and_then(|join| outline.forks[join].as_ref()) {
        Some((after, _)) => format!("the fork after `{}`", outline.ids[*after]),
        None => "the main branch".to_owned(),
    };
    GraphError::Shared { step: outline.ids[place].clone(), one: describe(one), other: describe(other) }
}

/// Checks that only a fork and its branches lead to the join of the fork. Any other edge would run the fork
/// without the step before the fork.
fn check_joins(outline: &Outline, start: usize, homes: &[Option<usize>]) -> Result<(), GraphError> {
    let describe = |place: usize| format!("step `{}`", outline.ids[place]);
    let first = |target: usize| (target, usize::MAX, "the start".to_owned());
    let mut ways = vec![first(start)];
    for (place, targets) in outline.ways.iter().enumerate() {
        ways.extend(targets.iter().flatten().map(|target| (*target, place, describe(place))));
    }
    for (after, starts) in outline.forks.iter().flatten() {
        // No step may lead to the first step of a branch, not even the step before the fork: that first step may
        // be a join.
        ways.extend(starts.iter().map(|target| (*target, usize::MAX, describe(*after))));
    }
    for (target, from, edge) in ways {
        let Some((after, _)) = &outline.forks[target] else { continue };
        let is_branch = homes.get(from).is_some_and(|home| *home == Some(target));
        if from != *after && !is_branch {
            let (join, after) = (outline.ids[target].clone(), outline.ids[*after].clone());
            return Err(GraphError::IntoJoin { from: edge, join, after });
        }
    }
    Ok(())
}

/// Checks that every step can reach the end of its branch.
fn check_ends(outline: &Outline, homes: &[Option<usize>]) -> Result<(), GraphError> {
    let ends = |place: usize| {
        let ways = &outline.ways[place];
        ways.is_empty() || ways.iter().any(|next| next.is_none() || *next == homes[place] && next.is_some())
    };
    let mut arrives: Vec<bool> = (0..outline.ids.len()).map(ends).collect();
    let mut before = vec![Vec::new(); outline.ids.len()];
    for (place, ways) in outline.ways.iter().enumerate() {
        ways.iter().flatten().for_each(|next| before[*next].push(place));
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
