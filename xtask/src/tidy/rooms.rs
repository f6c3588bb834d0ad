//! The rooms of a crate: its top-level modules, and the cycles among their references.

use std::collections::{BTreeMap, BTreeSet};

use super::figures::Module;

/// The references between the rooms of a crate.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// For each room, the rooms it refers to, with the places of the references.
    references: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

/// Rooms that refer to each other, directly or through others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    pub(super) rooms: Vec<String>,
    /// `from -> to (count)` with the first place, the fewest references first: those are the cheapest to cut.
    pub(super) edges: Vec<String>,
}

impl Rooms {
    /// Reads the rooms of a crate: `root` is `lib.rs` or `main.rs`.
    pub(super) fn of<'a>(
        root: Option<&Module<'a>>,
        modules: impl Iterator<Item = &'a Module<'a>> + Clone,
    ) -> Self {
        let names: BTreeSet<&str> =
            modules.clone().filter_map(|module| Some(module.path.first()?.as_str())).collect();
        let exports: BTreeMap<&str, &str> = root
            .map(|root| {
                root.source.imports.iter().map(|(name, room)| (name.as_str(), room.as_str())).collect()
            })
            .unwrap_or_default();
        let mut rooms = Self::default();
        for module in modules {
            let Some(from) = module.path.first() else { continue };
            for place in &module.source.references {
                let name = place.text.as_str();
                let to = if names.contains(name) { Some(name) } else { exports.get(name).copied() };
                if let Some(to) = to.filter(|to| to != from && names.contains(to)) {
                    let references = rooms.references.entry(from.clone()).or_default();
                    references
                        .entry(to.to_owned())
                        .or_default()
                        .push(format!("{}:{}", module.file.path, place.line));
                }
            }
        }
        rooms
    }

    /// Returns the cycles, the largest first.
    pub(super) fn cycles(&self) -> Vec<Cycle> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.references.keys().map(|room| (room.as_str(), self.reach(room))).collect();
        let mut cycles = Vec::new();
        let mut seen = BTreeSet::new();
        for (room, reached) in &reach {
            if seen.contains(room) || !reached.contains(room) {
                continue;
            }
            let mutual = |other: &&&str| reach.get(**other).is_some_and(|back| back.contains(room));
            let members: BTreeSet<&str> = reached.iter().filter(mutual).copied().collect();
            seen.extend(members.iter().copied());
            cycles.push(self.cycle(&members));
        }
        cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.rooms.len()));
        cycles
    }

    fn cycle(&self, members: &BTreeSet<&str>) -> Cycle {
        let mut edges: Vec<(usize, String)> = Vec::new();
        for from in members {
            for (to, places) in &self.references[*from] {
                if members.contains(to.as_str()) {
                    let text = format!("{from} -> {to} ({}): {}", places.len(), places[0]);
                    edges.push((places.len(), text));
                }
            }
        }
        edges.sort();
        let rooms = members.iter().map(|room| (*room).to_owned()).collect();
        Cycle { rooms, edges: edges.into_iter().map(|(_, text)| text).collect() }
    }

    /// Returns the rooms that `room` refers to, directly or through others.
    fn reach(&self, room: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = self.targets(room).collect();
        while let Some(room) = next.pop() {
            if reached.insert(room) {
                next.extend(self.targets(room));
            }
        }
        reached
    }

    fn targets(&self, room: &str) -> impl Iterator<Item = &str> {
        self.references.get(room).into_iter().flat_map(|targets| targets.keys().map(String::as_str))
    }
}
