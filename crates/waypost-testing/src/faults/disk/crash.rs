//! The possible states of the media after a power cut.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::SimDisk;
use super::tree::{Change, Node, Part, Tree};
use crate::random::seed::Seeded;

/// Most unsynced changes for which every subset is tried. A careful store has a handful between two syncs;
/// each further change doubles the states.
pub const EXHAUSTIVE_MAX: usize = 8;

/// Most states for which every tear of every write is combined with every subset. Beyond that, each write is
/// torn in every way while the others are whole or lost, and joint tears are sampled.
const TOGETHER_MAX: usize = 1 << 16;

/// Write units of media: the atomic sector, and the page size of file systems and most drives.
const UNITS: [usize; 2] = [512, 4096];

/// How to sample states if there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Seed of the sample.
    pub seed: u64,
    /// Number of random states, added to all states that differ in one change from losing nothing or
    /// everything.
    pub draws: usize,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { seed: 1, draws: 2_000 }
    }
}

/// A change that may not have reached the media.
#[derive(Debug, Clone)]
pub(super) struct Logged {
    pub(super) change: Change,
    /// Nodes to sync before the change is durable.
    waits_for: Vec<Node>,
    /// Whether a sync failed: a later sync does not save the change.
    dropped: bool,
    /// The call that made the change, for messages.
    what: Arc<str>,
}

impl Logged {
    pub(super) fn new(change: Change, waits_for: Vec<Node>, what: Arc<str>) -> Self {
        Self { change, waits_for, dropped: false, what }
    }

    pub(super) fn may_be_lost(&self) -> bool {
        !self.waits_for.is_empty()
    }

    pub(super) fn synced(&mut self, node: Node) {
        if !self.dropped {
            self.waits_for.retain(|waits_for| *waits_for != node);
        }
    }

    pub(super) fn drop_from_cache(&mut self, node: Node) {
        self.dropped |= self.waits_for.contains(&node);
    }

    pub(super) fn settle(&mut self) {
        if !self.dropped {
            self.waits_for.clear();
        }
    }

    /// Returns the partial forms in which a write can arrive.
    fn parts(&self) -> Vec<Part> {
        match &self.change {
            Change::Write { offset, bytes, .. } => parts(*offset, offset + bytes.len()),
            Change::Name { .. } | Change::Unname { .. } | Change::Cut { .. } => Vec::new(),
        }
    }
}

/// Returns the parts of a write to the bytes `from..end` of a file, cut at the first, middle and last
/// boundary of each unit.
fn parts(from: usize, end: usize) -> Vec<Part> {
    let mut cuts = Vec::new();
    for unit in UNITS {
        let first = (from / unit + 1) * unit;
        let last = (end - 1) / unit * unit;
        if first <= last {
            cuts.extend([first, (first + last) / 2 / unit * unit, last]);
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    // Only the length arrived.
    let mut parts = vec![Part { from, to: from, end }];
    for cut in cuts {
        parts.push(Part { from, to: cut, end: cut });
        parts.push(Part { from, to: cut, end });
        parts.push(Part { from: cut, to: end, end });
    }
    parts
}

/// Per undecided change: [`LOST`], [`WHOLE`], or the index of a part plus two.
type Choice = Vec<usize>;
const LOST: usize = 0;
const WHOLE: usize = 1;

/// The power cut from which a disk resulted.
#[derive(Clone)]
pub(super) struct Origin {
    undecided: Arc<[Undecided]>,
    choice: Choice,
}

/// A change that the power cut may lose.
struct Undecided {
    index: usize,
    what: Arc<str>,
    parts: Vec<Part>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a disk after a power cut;")?;
        for (undecided, choice) in self.undecided.iter().zip(&self.choice) {
            match *choice {
                LOST => write!(f, " lost: {};", undecided.what)?,
                WHOLE => write!(f, " kept: {};", undecided.what)?,
                part => {
                    let Part { from, to, end } = undecided.parts[part - 2];
                    write!(f, " kept bytes {from} to {to} and length {end} of: {};", undecided.what)?;
                }
            }
        }
        Ok(())
    }
}

/// The states that [`SimDisk::crash_states`] returns.
pub struct CrashStates {
    media: Tree,
    log: Vec<Logged>,
    undecided: Arc<[Undecided]>,
    choices: Box<dyn Iterator<Item = Choice> + Send>,
    seen: HashSet<u64>,
}

impl fmt::Debug for CrashStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashStates").field("unsynced", &self.undecided.len()).finish_non_exhaustive()
    }
}

impl CrashStates {
    pub(super) fn new(media: Tree, log: &[Logged], sampling: Sampling) -> Self {
        let undecided: Arc<[Undecided]> = log
            .iter()
            .enumerate()
            .filter(|(_, logged)| logged.may_be_lost())
            .map(|(index, logged)| Undecided { index, what: logged.what.clone(), parts: logged.parts() })
            .collect();
        let options = undecided.iter().map(|undecided| undecided.parts.len() + 2).collect();
        Self {
            media,
            log: log.to_vec(),
            undecided,
            choices: choices(options, sampling),
            seen: HashSet::new(),
        }
    }

    fn tree(&self, choice: &[usize]) -> Tree {
        let mut tree = self.media.clone();
        let mut undecided = self.undecided.iter().zip(choice).peekable();
        for (index, logged) in self.log.iter().enumerate() {
            match undecided.next_if(|(undecided, _)| undecided.index == index) {
                None | Some((_, &WHOLE)) => tree.apply(&logged.change, None),
                Some((_, &LOST)) => {}
                Some((undecided, part)) => tree.apply(&logged.change, Some(undecided.parts[part - 2])),
            }
        }
        tree.forget_nameless();
        tree
    }
}

impl Iterator for CrashStates {
    type Item = SimDisk;

    fn next(&mut self) -> Option<SimDisk> {
        loop {
            let choice = self.choices.next()?;
            let tree = self.tree(&choice);
            if self.seen.insert(tree.fingerprint(&self.media)) {
                let origin = Origin { undecided: self.undecided.clone(), choice };
                return Some(SimDisk::mounted(tree, Some(origin)));
            }
        }
    }
}

/// Lists the choices for changes with these numbers of options. The first choice loses everything.
fn choices(options: Vec<usize>, sampling: Sampling) -> Box<dyn Iterator<Item = Choice> + Send> {
    let count = options.len();
    if count > EXHAUSTIVE_MAX {
        return Box::new(edges(count).chain(newest(count)).chain(draws(options, sampling)));
    }
    let together = options.iter().try_fold(1_usize, |product, more| product.checked_mul(*more));
    if together.is_some_and(|together| together <= TOGETHER_MAX) {
        return Box::new(product(options));
    }
    Box::new(product(vec![2; count]).chain(one_torn(options.clone())).chain(draws(options, sampling)))
}

/// Lists every combination of options.
fn product(options: Vec<usize>) -> impl Iterator<Item = Choice> + Send {
    let mut next = Some(vec![LOST; options.len()]);
    std::iter::from_fn(move || {
        let choice = next.take()?;
        let mut more = choice.clone();
        for (digit, options) in more.iter_mut().zip(&options) {
            if *digit + 1 < *options {
                *digit += 1;
                next = Some(more);
                break;
            }
            *digit = 0;
        }
        Some(choice)
    })
}

/// Lists every tear of a single write, combined with every subset of the other changes.
fn one_torn(options: Vec<usize>) -> impl Iterator<Item = Choice> + Send {
    (0..options.len()).flat_map(move |torn| {
        let (count, parts) = (options.len(), options[torn]);
        product(vec![2; count - 1]).flat_map(move |others| {
            (2..parts).map(move |part| {
                let mut choice = others.clone();
                choice.insert(torn, part);
                choice
            })
        })
    })
}

/// Lists the choices that differ in one change from losing nothing or everything, and every prefix and
/// suffix.
fn edges(count: usize) -> impl Iterator<Item = Choice> + Send {
    let none = [vec![LOST; count], vec![WHOLE; count]].into_iter();
    none.chain((0..count).flat_map(move |index| {
        let mut one_lost = vec![WHOLE; count];
        one_lost[index] = LOST;
        let one_kept = one_lost.iter().map(|choice| WHOLE - choice).collect();
        let prefix: Choice = (0..count).map(|other| usize::from(other < index)).collect();
        let suffix = prefix.iter().map(|choice| WHOLE - choice).collect();
        [one_lost, one_kept, prefix, suffix]
    }))
}

/// Lists every subset of the newest changes, with the older changes all kept or all lost.
fn newest(count: usize) -> impl Iterator<Item = Choice> + Send {
    [WHOLE, LOST].into_iter().flat_map(move |older| {
        product(vec![2; EXHAUSTIVE_MAX]).map(move |newest| {
            let mut choice = vec![older; count - EXHAUSTIVE_MAX];
            choice.extend(newest);
            choice
        })
    })
}

/// Draws random choices: mostly lost or whole, and a quarter partial where possible.
fn draws(options: Vec<usize>, sampling: Sampling) -> impl Iterator<Item = Choice> + Send {
    let mut seeded = Seeded::new(sampling.seed);
    let mut draw = move |options: usize| {
        let parts = options - 2;
        if parts > 0 && seeded.below(4) == 0 {
            return 2 + usize::try_from(seeded.below(parts as u64)).expect("below a usize");
        }
        usize::from(seeded.below(2) == 1)
    };
    (0..sampling.draws).map(move |_| options.iter().map(|options| draw(*options)).collect())
}
