//! Unfinished steps of a graph, derived from the frontier of a position.

use crate::record::{Position, Settled};
use crate::store::Progress;

use super::Shape;

/// The unfinished steps: the frontier, and all steps downstream of the frontier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    open: Vec<bool>,
    missing: Vec<usize>,
    count: usize,
}

impl Unfinished {
    /// Derives the set from a position in one walk over the graph.
    pub fn of(shape: &Shape, position: &Position) -> Self {
        let places = position.frontier.iter().filter_map(|entry| shape.place(entry.step.as_str()));
        Self::from_places(shape, places)
    }

    /// Derives the set from the places of the minimal steps.
    pub fn from_places(shape: &Shape, places: impl Iterator<Item = usize>) -> Self {
        let mut open = vec![false; shape.steps.len()];
        let mut walk: Vec<usize> = places.collect();
        while let Some(place) = walk.pop() {
            if !std::mem::replace(&mut open[place], true) {
                walk.extend(&shape.followers[place]);
                walk.extend(&shape.routes[place]);
            }
        }
        let still_open = |needs: &Vec<usize>| needs.iter().filter(|need| open[**need]).count();
        let missing = shape.needs.iter().map(still_open).collect();
        let count = open.iter().filter(|open| **open).count();
        Self { open, missing, count }
    }

    /// Returns whether a step is unfinished.
    pub fn has(&self, place: usize) -> bool {
        self.open[place]
    }

    /// Returns the number of unfinished steps.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the progress at a position: the steps done with success, of all steps but those for hooks of the run.
    pub fn progress(&self, shape: &Shape, position: &Position) -> Progress {
        let is_open = |place: &&usize| {
            let end = position.ledger.get(&shape.steps[**place].id);
            self.has(**place) || end.is_some_and(Settled::is_unsuccessful)
        };
        let open_hooks = shape.hooks.iter().filter(is_open).count();
        let open = (self.count + position.unsuccessful_count() - open_hooks) as u64;
        let total = shape.counted();
        Progress { done: total.saturating_sub(open), total }
    }

    /// Marks a step as finished, and returns the newly ready steps.
    pub fn settle(&mut self, shape: &Shape, place: usize) -> Vec<usize> {
        if !std::mem::replace(&mut self.open[place], false) {
            return Vec::new();
        }
        self.count -= 1;
        let mut freed = Vec::new();
        for follower in &shape.followers[place] {
            self.missing[*follower] -= 1;
            if self.missing[*follower] == 0 && self.open[*follower] {
                freed.push(*follower);
            }
        }
        freed
    }

    /// Follows the chosen route to a step, or to the end of the scope; newly unreachable steps count as
    /// finished.
    ///
    /// `others`: the other unfinished steps whose needs are met.
    pub fn follow(
        &mut self,
        shape: &Shape,
        from: usize,
        to: Option<usize>,
        others: impl Iterator<Item = usize>,
    ) {
        match to {
            Some(to) if shape.share_loop(from, to) => {}
            Some(_) if shape.routes[from].len() == 1 && shape.followers[from].is_empty() => {
                self.count -= usize::from(std::mem::replace(&mut self.open[from], false));
            }
            _ => *self = Self::from_places(shape, to.into_iter().chain(others)),
        }
    }
}
