//! What a changed definition means for branches under way: those of a step go on where they stand if only steps of theirs
//! changed that none of them has finished.

use std::collections::BTreeSet;

use crate::id::{BranchPath, RunId, StepId};
use crate::record::{End, Fan, Position};
use crate::shape::{Shape, Step, Unfinished};
use crate::store::{Store, StoreError, StoreExt as _};

use super::RunError;
use super::snapshot::position_of;

/// Finds the steps of the main branch whose branches go on although steps within them are to do something else: nothing that
/// is finished there changed. For [`Adoption::within`](super::Adoption::within).
///
/// `before` is the graph of the run's own definition, `position` where its main branch stands. Reads the newest record of
/// each branch of such steps, up to the first that has finished what changed.
///
/// # Errors
/// Those of reading the run.
pub async fn within(
    store: &dyn Store,
    run: &RunId,
    graphs: (&Shape, &Position, &Shape),
) -> Result<BTreeSet<StepId>, RunError> {
    found_within(store, run, graphs, Ended::Counts).await
}

/// Finds them as [`within`] does, where branches that completed keep their results, whatever changed of their steps: only
/// the others go on by the other definition.
///
/// # Errors
/// Those of reading the run.
pub async fn within_unfinished(
    store: &dyn Store,
    run: &RunId,
    graphs: (&Shape, &Position, &Shape),
) -> Result<BTreeSet<StepId>, RunError> {
    found_within(store, run, graphs, Ended::IsKept).await
}

/// What a changed step means for a branch that completed with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Its result is one of the old definition.
    Counts,
    /// Its result is kept.
    IsKept,
}

async fn found_within(
    store: &dyn Store,
    run: &RunId,
    (before, position, after): (&Shape, &Position, &Shape),
    ended: Ended,
) -> Result<BTreeSet<StepId>, RunError> {
    let mut found = BTreeSet::new();
    let waiting = position.frontier.iter().filter_map(|entry| Some((&entry.step, entry.fan.as_ref()?)));
    // A retry of failed branches that were tolerated opens their step again.
    let tolerated = position.joined.iter().filter(|(_, fan)| ended == Ended::IsKept && fan.dead > 0);
    for (step, fan) in waiting.chain(tolerated) {
        let Some((old, new)) = before.step(step.as_str()).zip(after.step(step.as_str())) else { continue };
        if old.fingerprint != new.fingerprint
            && is_frame_same(old, new)
            && !is_touched_below(store, run, (before, after), (step, fan), ended).await?
        {
            found.insert(step.clone());
        }
    }
    Ok(found)
}

/// Says whether steps differ at most by what steps within them do, which are the same ones.
fn is_frame_same(old: &Step, new: &Step) -> bool {
    let children = old.children.as_ref().zip(new.children.as_ref());
    let same_frame =
        old.frame.is_some() && old.frame == new.frame && old.after.is_some() == new.after.is_some();
    same_frame
        && children.is_some_and(|(old, new)| old.name == new.name && is_form_same(&old.shape, &new.shape))
}

/// Says whether the one graph has the steps of the other in the same places, and at most others beside them: a position of
/// the old one is one of the new one, as far as those others come after what is open there.
fn is_form_same(old: &Shape, new: &Shape) -> bool {
    old.steps().iter().all(|old| {
        new.step(old.id.as_str()).is_some_and(|new| {
            let opens = old.children.is_some() || new.children.is_some();
            let same = old.fingerprint == new.fingerprint || !opens || is_frame_same(old, new);
            same && old.needs == new.needs && old.routes == new.routes
        })
    })
}

/// Says whether a branch below a step has finished something, or is amid branches, that does something else now.
async fn is_touched_below(
    store: &dyn Store,
    run: &RunId,
    (before, after): (&Shape, &Shape),
    (step, fan): (&StepId, &Fan),
    ended: Ended,
) -> Result<bool, RunError> {
    let is_below = |branch: &BranchPath| {
        let mut top = branch.clone();
        while let Some(parent) = top.parent().filter(|parent| !parent.is_main()) {
            top = parent;
        }
        top.opened_by()
            .and_then(|(name, _)| before.opener(&name))
            .is_some_and(|place| before.steps()[place].id == *step)
    };
    for branch in
        store.branches(run).await?.into_iter().filter(|branch| !branch.is_main() && is_below(branch))
    {
        let Some((old, new)) = before.of_branch(&branch).zip(after.of_branch(&branch)) else {
            return Ok(true);
        };
        let newest = match store.newest(run, &branch).await {
            // Who goes on with it says so.
            Err(StoreError::Damaged { .. }) => return Ok(true),
            newest => newest?,
        };
        if ended == Ended::IsKept && newest.header().end == Some(End::Completed) {
            continue;
        }
        let position = position_of(&newest)?;
        // One of before that fan-out is nobody's any more.
        if branch.depth() == 1 && position.origin.is_some_and(|origin| origin != fan.since) {
            continue;
        }
        if is_touched(old, new, &position) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_touched(old: &Shape, new: &Shape, position: &Position) -> bool {
    let unfinished = Unfinished::of(old, position);
    let open = Unfinished::of(new, position);
    let is_new = |(place, step): (usize, &Step)| old.place(step.id.as_str()).is_none() && !open.has(place);
    if new.steps().iter().enumerate().any(is_new) {
        return true;
    }
    old.steps().iter().enumerate().any(|(place, step)| {
        let Some(new) = new.step(step.id.as_str()) else { return true };
        let is_amid = || position.frontier.iter().any(|entry| entry.step == step.id && entry.fan.is_some());
        step.fingerprint != new.fingerprint
            && (!unfinished.has(place) || (!is_frame_same(step, new) && is_amid()))
    })
}
