//! What a person wants to be worked on again beside the main branch: a step of a branch, or branches that failed.
//!
//! The way to it leads through the branches above it, each of which waits for the next one or has joined it.

use std::collections::{BTreeMap, BTreeSet};

use crate::events::RerunCause;
use crate::id::{BranchPath, StepId};
use crate::shape::Shape;

use super::ResumeFrom;
use super::redo::opener_of;

/// What is wanted, and the ways to it.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// A step that runs again, with all that comes of it.
    pub(super) step: Option<(BranchPath, StepId)>,
    /// The person who asks.
    pub(super) by: Option<String>,
    /// Finished steps of child branches with a changed definition, to rerun.
    pub(super) changed: Vec<(BranchPath, StepId)>,
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
        let named: Vec<BranchPath> =
            wishes.step.iter().map(|(branch, _)| branch).chain(&wishes.branches).cloned().collect();
        named.iter().for_each(|branch| wishes.find_way(branch, shape));
        wishes
    }

    /// Adds finished steps of child branches with a changed definition.
    pub(super) fn rerun_changed(&mut self, changed: Vec<(BranchPath, StepId)>, shape: &Shape) {
        for (branch, step) in changed {
            self.find_way(&branch, shape);
            self.changed.push((branch, step));
        }
    }

    fn find_way(&mut self, named: &BranchPath, shape: &Shape) {
        let mut below = named.clone();
        self.ways.entry(below.clone()).or_default();
        while let Some(above) = below.parent() {
            let opener = opener_of(shape, &below);
            let is_known = self.ways.contains_key(&above);
            let news = opener.is_some_and(|step| self.ways.entry(above.clone()).or_default().insert(step));
            if is_known && !news {
                break;
            }
            below = above;
        }
    }

    /// Returns the causes of the reruns on a branch.
    pub(super) fn causes_on(&self, branch: &BranchPath) -> impl Iterator<Item = (&StepId, RerunCause)> {
        let named = self.step.iter().map(|named| (named, RerunCause::Requested { by: self.by.clone() }));
        let changed = self.changed.iter().map(|changed| (changed, RerunCause::DefinitionChanged));
        let own = named.chain(changed).filter(move |((on, _), _)| on == branch);
        own.map(|((_, step), cause)| (step, cause))
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
