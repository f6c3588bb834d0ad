//! One record of a run, read without the others.

use crate::id::BranchPath;
use crate::record::Record;

use super::read::{Found, RunReader};

/// Most commits that are looked at: with a few records a commit the second or third guess is right, and where it is not,
/// walking the history costs little more.
const GUESSES_MAX: usize = 4;

impl RunReader<'_> {
    /// Looks for a record where it usually stands: a commit has one record, or few, so that its number is near the seq.
    /// Whoever reads all records of a run one by one then reads each file once, and never the whole history.
    pub(super) fn load_near(&self, branch: &BranchPath, seq: u64) -> Option<Record> {
        let mut number = seq;
        for _ in 0..GUESSES_MAX {
            let Ok(Found::Sound(commit) | Found::Copied(commit, _)) = self.commit(number) else {
                return None;
            };
            let of_branch = commit.records.into_iter().map(|(_, record)| record);
            let mut of_branch: Vec<Record> =
                of_branch.filter(|record| record.header().branch == *branch).collect();
            if let Some(place) = of_branch.iter().position(|record| record.header().seq == seq) {
                return Some(of_branch.swap_remove(place));
            }
            let greatest = of_branch.iter().map(|record| record.header().seq).max()?;
            number = number.checked_add(seq)?.checked_sub(greatest).filter(|number| *number > 0)?;
        }
        None
    }
}
