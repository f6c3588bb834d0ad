//! The in-memory branches of a session, by number.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::scope::{Line, LineId};

/// The branches in memory. The main branch always exists.
pub(super) struct Lines<'a, S> {
    kept: Vec<Option<Line<'a, S>>>,
    /// Free numbers, the lowest first, so that branches opened in order are written in order.
    free: BinaryHeap<Reverse<LineId>>,
}

impl<'a, S> Lines<'a, S> {
    pub(super) fn new(main: Line<'a, S>) -> Self {
        Self { kept: vec![Some(main)], free: BinaryHeap::new() }
    }

    pub(super) fn get(&self, id: LineId) -> &Line<'a, S> {
        self.kept[id].as_ref().expect("only branches in memory are named")
    }

    pub(super) fn get_mut(&mut self, id: LineId) -> &mut Line<'a, S> {
        self.kept[id].as_mut().expect("only branches in memory are named")
    }

    pub(super) fn find_ref(&self, id: LineId) -> Option<&Line<'a, S>> {
        self.kept.get(id)?.as_ref()
    }

    pub(super) fn find(&mut self, id: LineId) -> Option<&mut Line<'a, S>> {
        self.kept.get_mut(id)?.as_mut()
    }

    pub(super) fn add(&mut self, line: Line<'a, S>) -> LineId {
        match self.free.pop() {
            Some(Reverse(id)) => {
                self.kept[id] = Some(line);
                id
            }
            None => {
                self.kept.push(Some(line));
                self.kept.len() - 1
            }
        }
    }

    pub(super) fn remove(&mut self, id: LineId) -> Option<Line<'a, S>> {
        let line = self.kept.get_mut(id)?.take();
        if line.is_some() {
            self.free.push(Reverse(id));
        }
        line
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (LineId, &mut Line<'a, S>)> {
        self.kept.iter_mut().enumerate().filter_map(|(id, line)| line.as_mut().map(|line| (id, line)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LineId, &Line<'a, S>)> {
        self.kept.iter().enumerate().filter_map(|(id, line)| line.as_ref().map(|line| (id, line)))
    }
}
