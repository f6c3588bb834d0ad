//! The limits of the figures: one table, which only goes down.
//!
//! An area in the table is above the rules of the project; its limit is the figure of the day it was last lowered. An
//! area that is not in the table has the limits of [`PROSE`] and [`shape_rule`]. `cargo xtask tidy --report` shows which
//! limits can be lowered.

use std::fmt;

/// Fewest words of an area with a rate: one pronoun in 30 words says nothing.
pub(super) const WORDS_MIN: u32 = 200;

/// Most words of a kind per 1,000 words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prose {
    pub(super) pronouns: u32,
    pub(super) banned: u32,
}

/// The rule for prose.
const PROSE: Prose = Prose { pronouns: 45, banned: 0 };

/// Areas above [`PROSE`].
const PROSE_ABOVE: &[(&str, Prose)] =
    &[("crates/waypost-testing messages", Prose { pronouns: 45, banned: 1 })];

/// A kind of place that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    LongLine,
    Tuple,
    FlagPair,
    SharedName,
    CyclicRoom,
    Entry,
}

impl Kind {
    pub(super) const ALL: [Self; 6] =
        [Self::LongLine, Self::Tuple, Self::FlagPair, Self::SharedName, Self::CyclicRoom, Self::Entry];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::LongLine => "long lines of pages",
            Self::Tuple => "tuple parameters",
            Self::FlagPair => "flag pairs",
            Self::SharedName => "shared type names",
            Self::CyclicRoom => "rooms in cycles",
            Self::Entry => "entries of `src`",
        })
    }
}

/// The rule for the shape of a crate.
const fn shape_rule(kind: Kind) -> usize {
    match kind {
        Kind::Entry => 15,
        Kind::LongLine | Kind::Tuple | Kind::FlagPair | Kind::SharedName | Kind::CyclicRoom => 0,
    }
}

/// Areas above [`shape_rule`].
const SHAPE_ABOVE: &[(&str, Kind, usize)] =
    &[("crates/waypost-testing", Kind::SharedName, 11), ("crates/waypost-workflow", Kind::SharedName, 4)];

/// Returns the limits of the prose of an area, such as `crates/waypost comments`.
pub(super) fn prose(area: &str) -> Prose {
    PROSE_ABOVE.iter().find(|(name, _)| *name == area).map_or(PROSE, |(_, limit)| *limit)
}

/// Returns the most places of a kind in an area, such as `crates/waypost`.
pub(super) fn shape(area: &str, kind: Kind) -> usize {
    let above = SHAPE_ABOVE.iter().find(|(name, of, _)| *name == area && *of == kind);
    above.map_or(shape_rule(kind), |(_, _, limit)| *limit)
}
