//! Loops of a graph, and the passes of their steps.

/// The loops of a shape. Two steps share a loop if each is reachable from the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loops {
    /// By place: the number of the loop, or `None`.
    of: Vec<Option<u32>>,
}

impl Loops {
    /// Finds the loops of a graph, given its edges in both directions.
    ///
    /// # Source
    /// Strongly connected components by two depth-first walks, the second one backwards (Kosaraju and
    /// Sharir).
    pub(super) fn find(onward: &[Vec<usize>], back: &[Vec<usize>]) -> Self {
        let mut of = vec![None; onward.len()];
        let mut seen = vec![false; onward.len()];
        let mut count = 0;
        for place in leaving_order(onward).into_iter().rev() {
            if std::mem::replace(&mut seen[place], true) {
                continue;
            }
            let mut members = vec![place];
            let mut next = 0;
            while let Some(member) = members.get(next).copied() {
                next += 1;
                for before in &back[member] {
                    if !std::mem::replace(&mut seen[*before], true) {
                        members.push(*before);
                    }
                }
            }
            if members.len() > 1 || onward[place].contains(&place) {
                members.iter().for_each(|member| of[*member] = Some(count));
                count += 1;
            }
        }
        Self { of }
    }

    /// Returns whether both steps lie on the same loop.
    pub(super) fn share(&self, one: usize, other: usize) -> bool {
        self.of[one].is_some() && self.of[one] == self.of[other]
    }

    /// Returns the passes of a step reached from another step. A step at an earlier or the same place begins
    /// the next pass of their loop. Within a loop, a step has each pass number at most once: each way back
    /// crosses a step to an earlier place.
    ///
    /// `passes`: the predecessor's passes; the first `around` belong to loops around the whole scope.
    pub(super) fn passes(&self, from: usize, to: usize, passes: &[u32], around: usize) -> Vec<u32> {
        let mut next = passes[..around.min(passes.len())].to_vec();
        if self.of[to].is_none() {
            return next;
        }
        let pass = match passes.get(around) {
            Some(pass) if self.share(from, to) => pass + u32::from(to <= from),
            _ => 1,
        };
        next.push(pass);
        next
    }

    /// Returns the passes of the first step of a scope.
    pub(super) fn first_passes(&self, place: usize, around: &[u32]) -> Vec<u32> {
        let mut passes = around.to_vec();
        if self.of[place].is_some() {
            passes.push(1);
        }
        passes
    }
}

/// Walks all places depth-first and returns them in post-order.
fn leaving_order(onward: &[Vec<usize>]) -> Vec<usize> {
    let mut order = Vec::with_capacity(onward.len());
    let mut seen = vec![false; onward.len()];
    for root in 0..onward.len() {
        if std::mem::replace(&mut seen[root], true) {
            continue;
        }
        let mut walk = vec![(root, 0)];
        while let Some((place, edge)) = walk.last_mut() {
            match onward[*place].get(*edge) {
                Some(next) => {
                    *edge += 1;
                    let next = *next;
                    if !std::mem::replace(&mut seen[next], true) {
                        walk.push((next, 0));
                    }
                }
                None => {
                    order.push(*place);
                    walk.pop();
                }
            }
        }
    }
    order
}
