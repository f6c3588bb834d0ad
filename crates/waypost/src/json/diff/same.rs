//! Finds the longest common subsequence of two lists.
//!
//! Knows only the lengths, and which elements are equal.
//!
//! # Source
//! Myers, "An O(ND) Difference Algorithm and Its Variations" (1986): the greedy algorithm, and its
//! backtracking.

use super::array::EDITS_MAX;

/// The furthest point on each diagonal, `x - y`; diagonal 0 is in the middle of the list.
struct Reach {
    furthest: Vec<usize>,
    middle: usize,
}

impl Reach {
    fn at(&self, diagonal: isize) -> usize {
        self.furthest[shifted(self.middle, diagonal)]
    }

    /// Returns the neighbour diagonal of the last edit on the way here: above by an insertion, below by a
    /// removal, the further of both.
    fn origin(&self, diagonal: isize, edits: usize) -> isize {
        let edits = edits.cast_signed();
        let by_insertion =
            diagonal == -edits || (diagonal != edits && self.at(diagonal - 1) < self.at(diagonal + 1));
        if by_insertion { diagonal + 1 } else { diagonal - 1 }
    }
}

fn shifted(place: usize, by: isize) -> usize {
    place.checked_add_signed(by).expect("no diagonal is followed to before its begin")
}

/// Finds the longest common subsequence, as pairs of rising indices.
///
/// Returns `None` if the lists differ by more than [`EDITS_MAX`] edits, or `comparisons_left` runs out.
pub(super) fn find_same(
    length_x: usize,
    length_y: usize,
    comparisons_left: &mut usize,
    equal: impl Fn(usize, usize) -> bool,
) -> Option<Vec<(usize, usize)>> {
    let edits_max = EDITS_MAX.min(length_x + length_y);
    let middle = edits_max + 1;
    let mut reach = Reach { furthest: vec![0; 2 * middle + 1], middle };
    let mut rounds = Vec::new();
    for edits in 0..=edits_max {
        for diagonal in (-edits.cast_signed()..=edits.cast_signed()).step_by(2) {
            let origin = reach.origin(diagonal, edits);
            // A removal advances `x`; the first diagonal starts from zero.
            let mut x = reach.at(origin) + usize::from(origin < diagonal);
            let mut y = shifted(x, -diagonal);
            *comparisons_left = comparisons_left.checked_sub(1)?;
            while x < length_x && y < length_y && equal(x, y) {
                *comparisons_left = comparisons_left.checked_sub(1)?;
                (x, y) = (x + 1, y + 1);
            }
            reach.furthest[shifted(middle, diagonal)] = x;
            if (x, y) == (length_x, length_y) {
                return Some(way_back(&rounds, x, y));
            }
        }
        // Input of the next round, and of the backtracking.
        let window = middle - edits - 1..=middle + edits + 1;
        rounds.push(Reach { furthest: reach.furthest[window].to_vec(), middle: edits + 1 });
    }
    None
}

/// Backtracks from the end, round by round, and collects the equal elements.
fn way_back(rounds: &[Reach], mut x: usize, mut y: usize) -> Vec<(usize, usize)> {
    let mut same = Vec::new();
    for (before, reach) in rounds.iter().enumerate().rev() {
        let diagonal = x.cast_signed() - y.cast_signed();
        let origin = reach.origin(diagonal, before + 1);
        let origin_x = reach.at(origin);
        let origin_y = shifted(origin_x, -origin);
        while x > origin_x && y > origin_y {
            (x, y) = (x - 1, y - 1);
            same.push((x, y));
        }
        (x, y) = (origin_x, origin_y);
    }
    same.extend((0..x).rev().map(|at| (at, at)));
    same.reverse();
    same
}
