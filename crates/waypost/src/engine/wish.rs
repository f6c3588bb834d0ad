//! What a person wants to be worked on again beside the main branch: a step of a branch, or branches that failed.
//!
//! The way to it leads through the branches above it, each of which waits for the next one or has joined it.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{BranchPath, StepId};
use crate::shape::Shape;

use super::ResumeFrom;
use super::redo::opener_of;

/// What is wanted, and the ways to it.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// A step that runs again, with all that comes of it.
    pub(super) step: Option<(BranchPath, StepId)>,
    /// Branches that go on where they stand, and are joined again.
    pub(super) branches: BTreeSet<BranchPath>,
    /// The branches that are named, those above them, and of each the steps that open the next ones.
    ways: BTreeMap<BranchPath, BTreeSet<StepId>>,
}

impl Wishes {
    /// Takes what is wanted beside the main branch out of where a resume is to go on from. `edited`: the branches that are
    /// changed by hand.
    pub(super) fn take<'a>(
        from: &mut Option<ResumeFrom>,
        edited: impl Iterator<Item = &'a BranchPath>,
        shape: &Shape,
    ) -> Self {
        let mut wishes = Self::default();
        match from.take_if(|from| matches!(from, ResumeFrom::StepOn(..) | ResumeFrom::Branches)) {
            Some(ResumeFrom::StepOn(branch, step)) => wishes.step = Some((branch, step)),
            Some(ResumeFrom::Branches) => {
                wishes.branches = edited.filter(|branch| !branch.is_main()).cloned().collect();
            }
            _ => {}
        }
        let Self { step, branches, ways } = &mut wishes;
        for named in step.iter().map(|(branch, _)| branch).chain(branches.iter()) {
            let mut below = named.clone();
            ways.entry(below.clone()).or_default();
            while let Some(above) = below.parent() {
                let opener = opener_of(shape, &below);
                let is_known = ways.contains_key(&above);
                let news = opener.is_some_and(|step| ways.entry(above.clone()).or_default().insert(step));
                if is_known && !news {
                    break;
                }
                below = above;
            }
        }
        wishes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// Says whether a branch is one that is named, or above it.
    pub(super) fn is_on_the_way(&self, branch: &BranchPath) -> bool {
        self.ways.contains_key(branch)
    }

    /// Returns the steps of a branch that opened the next ones on the ways.
    pub(super) fn ways_on(&self, branch: &BranchPath) -> impl Iterator<Item = &StepId> {
        self.ways.get(branch).into_iter().flatten()
    }
}
