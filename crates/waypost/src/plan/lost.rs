//! What may have happened in records that are lost: a step may have been started there that must not be repeated.

use std::collections::{BTreeSet, VecDeque};

use crate::record::{Position, Status};
use crate::shape::{Shape, Step};

/// Returns the steps that may have been started in `lost` records after this position, and must not be repeated blindly.
///
/// Each end of a step takes a record, and so does each start of such a step, so that no step farther away was reached.
/// A step that stands as started is not among them: that it was cut is known. Nor are branches that are waited for,
/// which have records of their own.
pub(crate) fn steps_in_lost(shape: &Shape, position: &Position, lost: u64) -> BTreeSet<usize> {
    // Fewest records that must have been written before a step could start.
    let mut before: Vec<Option<u64>> = vec![None; shape.steps().len()];
    let mut reached: VecDeque<usize> = VecDeque::new();
    let mut known = BTreeSet::new();
    for entry in position.frontier.iter().filter(|_| lost > 0) {
        let Some(place) = shape.place(entry.step.as_str()) else { continue };
        before[place] = Some(0);
        reached.push_back(place);
        if entry.status == Status::Started || entry.fan.is_some() {
            known.insert(place);
        }
    }
    while let Some(place) = reached.pop_front() {
        let count = before[place].expect("what was reached was counted") + 1;
        if count >= lost {
            continue;
        }
        let needing = (0..before.len()).filter(|next| shape.needs(*next).contains(&place));
        for next in needing.chain(shape.routes(place).iter().copied()) {
            if before[next].is_none() {
                before[next] = Some(count);
                reached.push_back(next);
            }
        }
    }
    let is_careful = |place: &usize| must_not_repeat(&shape.steps()[*place]);
    let places = (0..before.len()).filter(|place| before[*place].is_some() && !known.contains(place));
    places.filter(is_careful).collect()
}

/// Says whether a step, or one on the branches that it opens, must not be repeated blindly.
fn must_not_repeat(step: &Step) -> bool {
    let below = step.all_children().flat_map(|children| children.shape.steps());
    !step.idempotent || below.into_iter().any(must_not_repeat)
}
