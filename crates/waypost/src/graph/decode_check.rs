//! Selects the states to decode right after their encoding.
//!
//! Serde can write values that it cannot read. The first resume would find such a state, too late: every
//! checkpoint of the run would hold a bad state. So a session decodes some of its states at once, and refuses a
//! state that does not round-trip before any step builds on it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::level::{Held, Level};
use crate::engine::unpanicked;

/// Bytes of states that a session decodes before sampling begins: about a hundred small states, in less than a
/// millisecond. Most types that cannot be decoded fail within the first few values.
const TRIED_BYTES_FREE: u64 = 64 << 10;
/// The sampling rate afterwards: one byte in `TRIED_SHARE`. Decoding and comparing cost about four times as much
/// as encoding, so sampling adds an eighth to the cost of encoding.
const TRIED_SHARE: u64 = 32;

/// Which states are decoded right after their encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// A sample within a cost limit. The decoded state is compared and dropped.
    Some,
    /// All states. The next step gets the decoded state.
    All,
}

impl Default for Reading {
    fn default() -> Self {
        if cfg!(debug_assertions) { Self::All } else { Self::Some }
    }
}

impl Reading {
    /// Returns a state as a resume would decode it. A state that does not round-trip is returned unchanged; the
    /// commit then refuses the state and names the field.
    pub(super) fn back(self, level: &dyn Level, state: Held) -> Held {
        if self == Self::Some {
            return state;
        }
        let read = unpanicked(|| {
            let mut bytes = Vec::new();
            level.encode(&state, &mut bytes).ok()?;
            level.check(&bytes).ok()?;
            level.decode(&bytes, level.schema()).ok()
        });
        read.ok().flatten().unwrap_or(state)
    }
}

/// Decides which states of a session are decoded again.
#[derive(Debug)]
pub(super) struct DecodeChecks {
    /// By level: true once a state of the level was decoded again.
    begun: Box<[AtomicBool]>,
    /// The remaining budget in bytes, times [`TRIED_SHARE`].
    credit: AtomicU64,
}

impl DecodeChecks {
    pub(super) fn of(levels: usize) -> Self {
        let begun = (0..levels).map(|_| AtomicBool::new(false)).collect();
        Self { begun, credit: AtomicU64::new(TRIED_BYTES_FREE * TRIED_SHARE) }
    }

    /// Returns true if a newly written state is to be decoded again. The first state of each level always is;
    /// later states while the budget from written bytes suffices.
    pub(super) fn is_due(&self, level: usize, bytes: usize) -> bool {
        // A session writes its states one at a time, so these updates do not race.
        let bytes = bytes as u64;
        let credit = self.credit.load(Ordering::Relaxed).saturating_add(bytes);
        let price = bytes.saturating_mul(TRIED_SHARE);
        let is_due = credit >= price || !self.begun[level].load(Ordering::Relaxed);
        if is_due {
            self.begun[level].store(true, Ordering::Relaxed);
        }
        let left = if is_due { credit.saturating_sub(price) } else { credit };
        self.credit.store(left, Ordering::Relaxed);
        is_due
    }
}
