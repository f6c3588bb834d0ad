//! The figures of each crate: prose, shape of functions, names, and rooms. `limits.rs` has their limits.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::limits::{self, Kind};
use super::rooms::{Cycle, Rooms};
use super::source::Source;
use super::tree::{File, Tree};
use super::words::{self, Count};

/// Widest line of a page, outside of tables and code.
const COLUMNS_MAX: usize = 100;

/// The folder of the crates.
const CRATES: &str = "crates/";

/// All figures of the repository.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Words by area: a crate or top-level folder, and `comments`, `docs` or `messages`.
    pub(super) prose: BTreeMap<String, Count>,
    /// Findings by area and kind; their number is the figure.
    pub(super) places: BTreeMap<(String, Kind), Vec<Finding>>,
    pub(super) cycles: BTreeMap<String, Vec<Cycle>>,
    /// Sentences with a share of pronouns and banned words, the worst first.
    pub(super) sentences: Vec<(f64, Finding)>,
}

/// A Rust file of a crate.
pub(super) struct Module<'a> {
    pub(super) file: &'a File,
    /// The names of the modules down to this one; empty for the root of the crate.
    pub(super) path: Vec<String>,
    pub(super) source: Source,
}

impl Figures {
    /// Measures all files except tests and snapshots.
    pub(super) fn of(tree: &Tree) -> Self {
        let mut figures = Self::default();
        let mut crates: BTreeMap<String, Vec<Module<'_>>> = BTreeMap::new();
        for file in tree.with_extension(&["rs", "md"]).filter(|file| !is_left_out(&file.path)) {
            let owner = owner(&file.path);
            let kind = if file.extension() == "rs" { "comments" } else { "docs" };
            figures.add(file, format!("{owner} {kind}"), &words::prose(file));
            if file.extension() == "md" {
                figures.long_lines(file, &owner);
            } else if let Some(module) = Module::read(file, &owner) {
                if !file.is_test() {
                    figures.add(file, format!("{owner} messages"), &module.source.messages());
                }
                crates.entry(owner).or_default().push(module);
            }
        }
        for (owner, modules) in crates {
            figures.shape(&owner, &modules);
        }
        figures.sentences.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        figures
    }

    /// Returns the count of an area and kind.
    pub(super) fn count(&self, area: &str, kind: Kind) -> usize {
        self.places.get(&(area.to_owned(), kind)).map_or(0, Vec::len)
    }

    fn add(&mut self, file: &File, area: String, prose: &str) {
        self.prose.entry(area).or_default().add(Count::of(prose));
        for sentence in words::sentences(prose) {
            if let Some(score) = Count::of(sentence).score() {
                self.sentences.push((score, Finding::new(&file.path, 0, sentence)));
            }
        }
    }

    fn place(&mut self, area: &str, kind: Kind, finding: Finding) {
        self.places.entry((area.to_owned(), kind)).or_default().push(finding);
    }

    fn long_lines(&mut self, file: &File, area: &str) {
        for (number, line) in file.prose() {
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !line.trim_start().starts_with('|') {
                self.place(
                    area,
                    Kind::LongLine,
                    Finding::new(&file.path, number, format!("{columns} columns")),
                );
            }
        }
    }

    fn shape(&mut self, owner: &str, modules: &[Module<'_>]) {
        let mut types: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for Module { file, source, .. } in modules.iter().filter(|module| !module.file.is_test()) {
            for place in &source.tuples {
                let message = format!("`{}`: a tuple of more than two elements", place.text);
                self.place(owner, Kind::Tuple, Finding::new(&file.path, place.line, message));
            }
            for place in &source.flags {
                let message = format!("`{}`: two parameters of type `bool`", place.text);
                self.place(owner, Kind::FlagPair, Finding::new(&file.path, place.line, message));
            }
            for place in &source.types {
                types.entry(&place.text).or_default().push(format!("{}:{}", file.path, place.line));
            }
        }
        let mut shared: Vec<_> = types.into_iter().filter(|(_, places)| places.len() > 1).collect();
        shared.sort_by_key(|(_, places)| std::cmp::Reverse(places.len()));
        for (name, places) in shared {
            let message = format!("`{name}` is {} types: {}", places.len(), places.join(", "));
            self.place(owner, Kind::SharedName, Finding::new(owner, 0, message));
        }
        self.rooms(owner, modules);
    }

    fn rooms(&mut self, owner: &str, modules: &[Module<'_>]) {
        let prefix = format!("{owner}/src/");
        let entries: BTreeSet<&str> = modules
            .iter()
            .filter_map(|module| module.file.path.strip_prefix(&prefix)?.split('/').next())
            .collect();
        for entry in entries {
            self.place(owner, Kind::Entry, Finding::new(&format!("{prefix}{entry}"), 0, "an entry of `src`"));
        }
        let root = modules.iter().find(|module| module.path.is_empty());
        let others = modules.iter().filter(|module| !module.file.is_test());
        let rooms = Rooms::of(root, others);
        let cycles = rooms.cycles();
        for cycle in &cycles {
            for room in &cycle.rooms {
                let message = format!("`{room}` is in a cycle of {} rooms", cycle.rooms.len());
                self.place(owner, Kind::CyclicRoom, Finding::new(owner, 0, message));
            }
        }
        self.cycles.insert(owner.to_owned(), cycles);
    }
}

impl<'a> Module<'a> {
    /// Reads a file below `src` of `owner`; `None` for other files and for text that is not Rust.
    fn read(file: &'a File, owner: &str) -> Option<Self> {
        let path = file.path.strip_prefix(owner)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
        let mut path: Vec<&str> = path.split('/').collect();
        if matches!(path[..], ["lib" | "main"]) || path.last() == Some(&"mod") {
            path.pop();
        }
        let source = Source::read(file, &path)?;
        Some(Self { file, path: path.into_iter().map(str::to_owned).collect(), source })
    }
}

/// Finds the figures above their limits.
pub(super) fn above_limits(tree: &Tree) -> Vec<Finding> {
    let figures = Figures::of(tree);
    let mut findings = Vec::new();
    for (area, count) in figures.prose.iter().filter(|(_, count)| count.words >= limits::WORDS_MIN) {
        let rates = [
            ("pronouns", count.pronouns_rate(), limits::PROSE.pronouns),
            ("banned words", count.banned_rate(), limits::PROSE.banned),
        ];
        for (kind, rate, limit) in rates {
            if rate > f64::from(limit) {
                let message = format!(
                    "{rate:.1} {kind} per 1,000 words, the limit is {limit}: see `cargo xtask tidy --report`"
                );
                findings.push(Finding::new(area, 0, message));
            }
        }
    }
    for ((area, kind), places) in &figures.places {
        let limit = limits::shape(*kind);
        if places.len() > limit {
            let message =
                format!("{} {kind}, the limit is {limit}: see `cargo xtask tidy --report`", places.len());
            findings.push(Finding::new(area, 0, message));
        }
    }
    findings
}

/// Returns the crate or top-level folder that a file belongs to.
fn owner(path: &str) -> String {
    let parts = if path.starts_with(CRATES) { 2 } else { 1 };
    path.split('/').take(parts).collect::<Vec<_>>().join("/")
}

/// Tests and snapshots quote what they test.
fn is_left_out(path: &str) -> bool {
    path.contains("/tests/") || path.contains("snapshots")
}
