//! Changed steps within openers: an opener with an unchanged definition of its own keeps the branches, and only the changed
//! steps of the branches are at stake.

use std::collections::BTreeMap;

use crate::id::{BranchPath, RunId, StepId};
use crate::record::{Fan, Position};
use crate::shape::{Shape, Step, Unfinished};
use crate::store::{Store, StoreError, StoreExt as _};

use super::RunError;
use super::snapshot::position_of;

/// The definition of a run in comparison with another definition.
#[derive(Debug, Clone, Copy)]
pub struct Compared<'a> {
    /// The graph of the definition so far.
    pub before: &'a Shape,
    /// The position of the main branch in the graph before.
    pub position: &'a Position,
    /// The other graph.
    pub after: &'a Shape,
}

/// Returns the openers of the main branch with changes only in inner steps, each with the changed finished steps of the
/// branches.
///
/// Reads the newest record of each branch of these openers.
///
/// # Errors
/// Those of reading the run.
pub async fn changed_within(
    store: &dyn Store,
    run: &RunId,
    compared: Compared<'_>,
) -> Result<BTreeMap<StepId, Vec<(BranchPath, StepId)>>, RunError> {
    let Compared { before, position, after } = compared;
    let mut found = BTreeMap::new();
    let amid = position.frontier.iter().filter_map(|entry| Some((&entry.step, entry.fan.as_ref()?)));
    for (step, fan) in amid.chain(&position.joined) {
        let Some((old, new)) = before.step(step.as_str()).zip(after.step(step.as_str())) else { continue };
        if old.fingerprint == new.fingerprint || !is_frame_same(old, new) || found.contains_key(step) {
            continue;
        }
        if let Some(changed) = changed_below(store, run, &compared, (step, fan)).await? {
            found.insert(step.clone(), changed);
        }
    }
    Ok(found)
}

/// Says whether steps differ at most by what steps within them do, which are the same ones.
fn is_frame_same(old: &Step, new: &Step) -> bool {
    let children = old.children.as_ref().zip(new.children.as_ref());
    let is_same = old.frame.is_some() && (old.frame, old.list) == (new.frame, new.list);
    let same_after = old.after.is_some() == new.after.is_some();
    is_same
        && same_after
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

/// Returns the changed finished steps of the branches of an opener; `None` if a branch has to run added steps, or is not
/// readable.
async fn changed_below(
    store: &dyn Store,
    run: &RunId,
    compared: &Compared<'_>,
    (step, fan): (&StepId, &Fan),
) -> Result<Option<Vec<(BranchPath, StepId)>>, RunError> {
    let Compared { before, after, .. } = *compared;
    let mut found = Vec::new();
    for branch in store.branches(run).await? {
        let outermost = std::iter::successors(Some(branch.clone()), BranchPath::parent)
            .find(|around| around.depth() == 1);
        let Some((name, key)) = outermost.and_then(|outermost| outermost.opened_by()) else { continue };
        if before.opener(&name).is_none_or(|place| before.steps()[place].id != *step) {
            continue;
        }
        let Some((old, new)) = before.of_branch(&branch).zip(after.of_branch(&branch)) else {
            return Ok(None);
        };
        let newest = match store.newest(run, &branch).await {
            Err(StoreError::Damaged { .. }) => return Ok(None),
            newest => newest?,
        };
        let position = position_of(&newest)?;
        let pass = key.parse().ok().filter(|_| fan.pass > 0);
        let fan = pass.map_or_else(|| Some(fan.clone()), |pass| fan.of_pass(pass));
        let is_current = fan.is_some_and(|fan| position.origin == Some(fan.since));
        if branch.depth() == 1 && !is_current {
            continue;
        }
        let Some(changed) = changed_on(old, new, &position) else { return Ok(None) };
        found.extend(changed.into_iter().map(|step| (branch.clone(), step)));
    }
    Ok(Some(found))
}

/// Returns the changed finished steps of a branch; `None` if the branch has to run added steps or an opener changed.
fn changed_on(old: &Shape, new: &Shape, position: &Position) -> Option<Vec<StepId>> {
    let unfinished = Unfinished::of(old, position);
    let open = Unfinished::of(new, position);
    let is_added = |(place, step): (usize, &Step)| old.place(step.id.as_str()).is_none() && !open.has(place);
    if new.steps().iter().enumerate().any(is_added) {
        return None;
    }
    let mut changed = Vec::new();
    for (place, step) in old.steps().iter().enumerate() {
        let other = new.step(step.id.as_str())?;
        if step.fingerprint == other.fingerprint || is_frame_same(step, other) {
            continue;
        }
        let is_amid = position.frontier.iter().any(|entry| entry.step == step.id && entry.fan.is_some());
        if is_amid {
            return None;
        }
        if !unfinished.has(place) {
            changed.push(step.id.clone());
        }
    }
    Some(changed)
}
