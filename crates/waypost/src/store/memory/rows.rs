//! The records of a scope in memory.

use super::run::Stored;

/// Records of most scopes, such as items: the first and the last.
const USUAL: usize = 2;

/// Records by ascending seq; new records are appended.
///
/// # Source
/// A vector instead of a map: a hundred thousand scopes of two records take a third of the memory. First
/// touches of memory dominate the cost of an item in large fan-outs.
#[derive(Default)]
pub(super) struct Rows(Vec<(u64, Stored)>);

impl Rows {
    fn find(&self, seq: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&seq, |(at, _)| *at)
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Stored> {
        Some(&self.0[self.find(seq).ok()?].1)
    }

    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut Stored> {
        let place = self.find(seq).ok()?;
        Some(&mut self.0[place].1)
    }

    /// Appends the newest record.
    pub(super) fn push(&mut self, seq: u64, stored: Stored) {
        assert!(self.last().is_none_or(|(last, _)| *last < seq), "a scope grows at its end");
        if self.0.is_empty() {
            self.0.reserve_exact(USUAL);
        }
        self.0.push((seq, stored));
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Stored> {
        Some(self.0.remove(self.find(seq).ok()?).1)
    }

    pub(super) fn last(&self) -> Option<&(u64, Stored)> {
        self.0.last()
    }

    /// Returns the records from `least` to `most`, inclusive.
    pub(super) fn between(&self, least: u64, most: u64) -> &[(u64, Stored)] {
        let place = |seq: u64| self.find(seq).unwrap_or_else(|place| place);
        let end = most.checked_add(1).map_or(self.0.len(), place);
        &self.0[place(least).min(end)..end]
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, (u64, Stored)> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, (u64, Stored)> {
        self.0.iter_mut()
    }
}
