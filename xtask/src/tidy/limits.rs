//! The limits of the figures, the same for each area.

use std::fmt;

/// Fewest words of an area with a rate: one pronoun in 30 words says nothing.
pub(super) const WORDS_MIN: u32 = 200;

/// Most words of a kind per 1,000 words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prose {
    pub(super) pronouns: u32,
    pub(super) banned: u32,
}

/// The limits of prose.
pub(super) const PROSE: Prose = Prose { pronouns: 45, banned: 0 };

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

/// Returns the most places of a kind in a crate or folder.
pub(super) const fn shape(kind: Kind) -> usize {
    match kind {
        Kind::Entry => 15,
        Kind::LongLine | Kind::Tuple | Kind::FlagPair | Kind::SharedName | Kind::CyclicRoom => 0,
    }
}
