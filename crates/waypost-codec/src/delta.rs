//! Fast matching of two versions of some bytes.
//!
//! ```text
//!   before   aaaa bb ccc dddddddd ee ff gg
//!   after    aaaa BB ccc DDDDDDDDDDD ee FF gg
//!                 1        2            3          three hunks
//! ```
//!
//! A comparison finds the common start and end. Between them, hunks of equal length are found from the front
//! until bytes were inserted or removed, and likewise from the back. The remaining middle is a single hunk.
//! So the matcher separates a single change of length from any number of other changes; zstd handles the
//! rest.

use std::ops::Range;

/// Most hunks of a position or state; with more, hunk numbers cost more than compressing the bytes between.
pub(crate) const HUNKS_MAX: usize = 128;
/// Bytes before a hunk that serve as reference for zstd, for all hunks together. The preceding lines are most
/// similar to a new line, and distant lines are not more similar.
const LOOK_BACK_BYTES: usize = 16 << 10;
/// Bytes per comparison at the common start and end.
const STRIDE: usize = 256;
/// Bytes per comparison in the middle.
const BLOCK: usize = 64;
/// Number of consecutive different blocks that indicates an insertion or removal.
const LOST_BLOCKS: usize = 16;
/// A shorter middle is not split.
const SPLIT_BYTES_MIN: usize = 1024;

/// The hunks between two versions, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hunks(pub(crate) Vec<Hunk>);

/// A hunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hunk {
    /// Unchanged bytes since the previous hunk, or since the start.
    pub(crate) stays: usize,
    /// Removed bytes.
    pub(crate) goes: usize,
    /// Added bytes.
    pub(crate) comes: usize,
}

impl Hunks {
    /// Returns the hunks that turn `before` into `after`.
    pub(crate) fn between(before: &[u8], after: &[u8]) -> Self {
        let front = common_front(before, after);
        let back = common_back(&before[front..], &after[front..]);
        let (old, new) = (front..before.len() - back, front..after.len() - back);
        if old.is_empty() && new.is_empty() {
            return Self(Vec::new());
        }
        let mut places = Vec::new();
        if old.len().min(new.len()) < SPLIT_BYTES_MIN {
            places.push((old, new));
        } else {
            split(before, after, old, new, &mut places);
        }
        let mut end = 0;
        let hunks = places.into_iter().map(|(old, new)| {
            let stays = old.start - end;
            end = old.end;
            Hunk { stays, goes: old.len(), comes: new.len() }
        });
        Self(hunks.collect())
    }

    /// Returns the number of added bytes.
    pub(crate) fn coming(&self) -> usize {
        self.0.iter().map(|hunk| hunk.comes).sum()
    }

    /// Checks that the hunks apply to `before` bytes and result in `after` bytes.
    ///
    /// # Errors
    /// The hunks do not fit.
    pub(crate) fn check(&self, before: usize, after: usize) -> Result<(), String> {
        // Sums cannot overflow: there are few hunks, and each number is at most the size of a body.
        let used: usize = self.0.iter().map(|hunk| hunk.stays + hunk.goes).sum();
        let goes: usize = self.0.iter().map(|hunk| hunk.goes).sum();
        if used <= before && before - goes + self.coming() == after {
            return Ok(());
        }
        Err("the frame does not match its base".to_owned())
    }

    /// Appends the reference for zstd to `reference`: removed bytes and some bytes before them.
    pub(crate) fn reference(&self, before: &[u8], reference: &mut Vec<u8>) {
        let look_back = LOOK_BACK_BYTES / self.0.len().max(1);
        let mut at = 0;
        for hunk in &self.0 {
            let start = at + hunk.stays;
            reference.extend_from_slice(&before[start - hunk.stays.min(look_back)..start + hunk.goes]);
            at = start + hunk.goes;
        }
    }

    /// Appends the added bytes to `comes`.
    pub(crate) fn comes(&self, after: &[u8], comes: &mut Vec<u8>) {
        let mut at = 0;
        for hunk in &self.0 {
            let start = at + hunk.stays;
            comes.extend_from_slice(&after[start..start + hunk.comes]);
            at = start + hunk.comes;
        }
    }

    /// Returns the number of bytes that [`apply`](Self::apply) moves in `before` bytes.
    pub(crate) fn moved(&self, before: usize) -> u64 {
        let (mut moved, mut tail) = (0, before);
        tail -= self.0.iter().map(|hunk| hunk.stays + hunk.goes).sum::<usize>();
        for hunk in self.0.iter().rev() {
            moved += hunk.comes + if hunk.comes == hunk.goes { 0 } else { tail };
            tail += hunk.comes + hunk.stays;
        }
        moved as u64
    }

    /// Replaces removed by added bytes; the hunks must pass [`check`](Self::check).
    pub(crate) fn apply(&self, bytes: &mut Vec<u8>, comes: &[u8]) {
        let mut at: usize = self.0.iter().map(|hunk| hunk.stays + hunk.goes).sum();
        let mut from = comes.len();
        // From the back, so that earlier offsets stay valid.
        for hunk in self.0.iter().rev() {
            at -= hunk.goes;
            from -= hunk.comes;
            replace(bytes, at, hunk.goes, &comes[from..from + hunk.comes]);
            at -= hunk.stays;
        }
    }
}

/// Replaces the `goes` bytes at `at` by `with`.
fn replace(bytes: &mut Vec<u8>, at: usize, goes: usize, with: &[u8]) {
    if with.len() != goes {
        let tail = at + goes..bytes.len();
        let length = at + with.len() + tail.len();
        if length > bytes.len() {
            bytes.resize(length, 0);
        }
        bytes.copy_within(tail, at + with.len());
        bytes.truncate(length);
    }
    bytes[at..at + with.len()].copy_from_slice(with);
}

/// Splits the middle into hunks.
fn split(
    before: &[u8],
    after: &[u8],
    old: Range<usize>,
    new: Range<usize>,
    places: &mut Vec<(Range<usize>, Range<usize>)>,
) {
    let blocks = old.len().min(new.len()) / BLOCK;
    let front = |block: usize| {
        let at = block * BLOCK;
        (old.start + at..old.start + at + BLOCK, new.start + at..new.start + at + BLOCK)
    };
    let back = |block: usize| {
        let at = (block + 1) * BLOCK;
        (old.end - at..old.end - at + BLOCK, new.end - at..new.end - at + BLOCK)
    };
    let (of_front, done_front) = runs(blocks, |block| {
        let (old, new) = front(block);
        before[old] == after[new]
    });
    let (of_back, done_back) = runs(blocks - done_front, |block| {
        let (old, new) = back(block);
        before[old] == after[new]
    });
    for run in of_front {
        let ((old, new), (old_last, new_last)) = (front(run.start), front(run.end - 1));
        places.push((old.start..old_last.end, new.start..new_last.end));
    }
    let (at_front, at_back) = (done_front * BLOCK, done_back * BLOCK);
    let between = (old.start + at_front..old.end - at_back, new.start + at_front..new.end - at_back);
    if !between.0.is_empty() || !between.1.is_empty() {
        places.push(between);
    }
    for run in of_back.into_iter().rev() {
        let ((old, new), (old_last, new_last)) = (back(run.start), back(run.end - 1));
        places.push((old_last.start..old.end, new_last.start..new.end));
    }
}

/// Returns runs of different blocks, and the number of blocks until the versions diverge.
fn runs(blocks: usize, is_alike: impl Fn(usize) -> bool) -> (Vec<Range<usize>>, usize) {
    let mut runs = Vec::new();
    let mut block = 0;
    while block < blocks {
        if is_alike(block) {
            block += 1;
            continue;
        }
        let first = block;
        while block < blocks && !is_alike(block) {
            block += 1;
            if block - first > LOST_BLOCKS {
                return (runs, first);
            }
        }
        // A hunk is reserved for the middle between both directions.
        if block == blocks || runs.len() >= HUNKS_MAX / 2 - 1 {
            return (runs, first);
        }
        runs.push(first..block);
    }
    (runs, blocks)
}

fn common_front(a: &[u8], b: &[u8]) -> usize {
    let whole = a.chunks_exact(STRIDE).zip(b.chunks_exact(STRIDE)).take_while(|(a, b)| a == b).count();
    let at = whole * STRIDE;
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

fn common_back(a: &[u8], b: &[u8]) -> usize {
    let whole = a.rchunks_exact(STRIDE).zip(b.rchunks_exact(STRIDE)).take_while(|(a, b)| a == b).count();
    let left = |bytes: &[u8]| bytes.len() - whole * STRIDE;
    let (a, b) = (&a[..left(a)], &b[..left(b)]);
    whole * STRIDE + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    fn found(before: &[u8], after: &[u8]) -> Hunks {
        let hunks = Hunks::between(before, after);
        hunks.check(before.len(), after.len()).unwrap();
        let (mut comes, mut made) = (Vec::new(), before.to_vec());
        hunks.comes(after, &mut comes);
        assert_eq!(comes.len(), hunks.coming());
        hunks.apply(&mut made, &comes);
        assert!(made == after);
        hunks
    }

    #[test]
    fn places_far_apart_are_told_apart() {
        let before = noise(100_000);
        let mut after = before.clone();
        for at in [10, 20_000, 40_000, 70_000, 99_990] {
            after[at] ^= 1;
        }
        // One place changes its length.
        after.splice(50_000..50_010, *b"something longer");

        let hunks = found(&before, &after);

        assert_eq!(hunks.0.len(), 6);
        assert!(hunks.coming() < 2_500, "{}", hunks.coming());
        let (mut reference, tail) = (Vec::new(), before.len() - 51_000);
        hunks.reference(&before, &mut reference);
        assert!(reference.len() < LOOK_BACK_BYTES + 2_500);
        assert!(hunks.moved(before.len()) < (tail + 5_000) as u64, "only what is behind it is moved");
    }

    #[test]
    fn the_same_bytes_have_no_hunks() {
        assert_eq!(found(&noise(5_000), &noise(5_000)).0, []);
        assert_eq!(found(b"", b"").0, []);
    }

    #[test]
    fn bytes_that_have_nothing_in_common_are_one_hunk() {
        let (before, mut after) = (noise(9_000), noise(12_000));
        after.iter_mut().for_each(|byte| *byte = !*byte);

        assert_eq!(found(&before, &after).0, [Hunk { stays: 0, goes: 9_000, comes: 12_000 }]);
    }

    #[test]
    fn there_are_never_more_hunks_than_allowed() {
        let before = noise(400_000);
        let mut after = before.clone();
        after.iter_mut().step_by(500).for_each(|byte| *byte ^= 1);

        let hunks = found(&before, &after);

        assert!(hunks.0.len() <= HUNKS_MAX, "{}", hunks.0.len());
    }

    #[test]
    fn repeated_patterns_are_right_whatever_was_inserted() {
        let before = b"ab".repeat(4_000);
        for (at, with) in [(0, &b"a"[..]), (1, b"ba"), (4_001, b"xyz"), (8_000, b"ab"), (3_000, b"")] {
            let mut after = before.clone();
            after.splice(at..(at + 5).min(before.len()), with.iter().copied());

            found(&before, &after);
        }
    }
}
