//! Lost records: finds the non-idempotent steps possibly started there.

use std::collections::{BTreeSet, VecDeque};

use crate::plan::shape::{Shape, Step};
use crate::record::{Position, Status};

/// Returns the non-idempotent steps possibly started in `lost` records after this position.
///
/// Each end of a step takes a record, and so does each start of a non-idempotent step. This bounds the
/// distance of reachable steps. Steps recorded as started are left out: their interruption is known. Awaited
/// scopes are left out too, as each has its own records.
pub(crate) fn steps_in_lost(shape: &Shape, position: &Position, lost: u64) -> BTreeSet<usize> {
    // By place: the fewest records before the step could start.
    let mut before: Vec<Option<u64>> = vec![None; shape.steps().len()];
    let mut reached: VecDeque<usize> = VecDeque::new();
    let mut known = BTreeSet::new();
    for entry in position.frontier.iter().filter(|_| lost > 0) {
        let Some(place) = shape.place(entry.step.as_str()) else { continue };
        before[place] = Some(0);
        reached.push_back(place);
        if entry.status == Status::Started || entry.has_children() {
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

/// Returns whether a step, or a step in its child scopes, is not idempotent.
fn must_not_repeat(step: &Step) -> bool {
    let below = step.all_children().flat_map(|children| children.shape.steps());
    !step.idempotent || below.into_iter().any(must_not_repeat)
}
