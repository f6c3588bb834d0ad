//! Which states are read again as soon as they are written.
//!
//! What serde writes it may not be able to read: only reading tells. A state that cannot be read would be noticed by the
//! first resume, and by then every checkpoint of the run has one. So a session reads some of what it writes, and refuses
//! a state that does not come back before anything is built on it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::level::{Held, Level};
use crate::engine::unpanicked;

/// Bytes of states that a session reads again before it begins to choose: some hundred small states, in less than a
/// millisecond. Most types that cannot be read show it in their first few values.
const TRIED_BYTES_FREE: u64 = 64 << 10;
/// Afterwards one byte in so many is read again. To read and compare costs about four times as much as to write, so that
/// this adds an eighth to what encoding costs.
const TRIED_SHARE: u64 = 32;

/// Which states are read back as soon as they are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// As many as cost little. What was read is compared, and dropped.
    Some,
    /// All of them. What was read goes on.
    All,
}

impl Default for Reading {
    fn default() -> Self {
        if cfg!(debug_assertions) { Self::All } else { Self::Some }
    }
}

impl Reading {
    /// Returns a state as a resume would read it. A state that does not come back as it is stays: the commit refuses it, and
    /// names the field.
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

/// Decides which states of a session are read again.
#[derive(Debug)]
pub(super) struct Trials {
    /// By level: one of its states was read again.
    begun: Box<[AtomicBool]>,
    /// Bytes that may be read again, times [`TRIED_SHARE`].
    credit: AtomicU64,
}

impl Trials {
    pub(super) fn of(levels: usize) -> Self {
        let begun = (0..levels).map(|_| AtomicBool::new(false)).collect();
        Self { begun, credit: AtomicU64::new(TRIED_BYTES_FREE * TRIED_SHARE) }
    }

    /// Says whether a state that was just written is to be read again: the first of each level always, others as far as
    /// they are paid for by what was written.
    pub(super) fn is_due(&self, level: usize, bytes: usize) -> bool {
        // One session writes one state at a time: no two of these are about each other.
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
