//! States of branches that a person changes by hand, before anything runs.
//!
//! A branch can be changed for as long as a step waits for it: while it is open, and, until the step that joins it has
//! run, also when it has ended. The change is a record of its own on the branch; the join sees it. What was joined, or left
//! behind by what was done again, counts no more: nobody would ever read what is changed there.
//!
//! A branch that ended as one below it failed goes on with that one, and so do those beside it that were cancelled.

use std::collections::BTreeMap;

use crate::id::{BranchPath, RunId, StepId};
use crate::record::{FrontierEntry, Record};
use crate::store::StoreExt as _;

use super::back::joins;
use super::begin::by_hand;
use super::line::Line;
use super::{EditBranch, Engine, RunError};

/// What is changed by hand, by branch.
#[derive(Debug)]
pub(super) struct Edits<S>(BTreeMap<BranchPath, Vec<EditBranch<S>>>);

impl<S> Edits<S> {
    pub(super) fn of(edits: Vec<(BranchPath, EditBranch<S>)>) -> Self {
        let mut by_branch: BTreeMap<BranchPath, Vec<EditBranch<S>>> = BTreeMap::new();
        for (branch, edit) in edits {
            by_branch.entry(branch).or_default().push(edit);
        }
        Self(by_branch)
    }

    pub(super) fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// Takes out what is changed on one branch.
    pub(super) fn take(&mut self, branch: &BranchPath) -> Self {
        Self(self.0.remove_entry(branch).into_iter().collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the branches that are still to be changed.
    pub(super) fn branches(&self) -> impl Iterator<Item = &BranchPath> {
        self.0.keys()
    }

    /// Returns the steps that read what is changed.
    pub(super) fn read_by(&self) -> Vec<StepId> {
        self.0.values().flatten().flat_map(|edit| edit.again.iter().cloned()).collect()
    }

    /// Changes the state of a branch, all of it or nothing, and has that written down.
    ///
    /// # Errors
    /// [`RunError::NotEdited`]: the change was refused, or the branch has ended amid branches of its own.
    pub(super) fn apply(self, line: &mut Line<'_, S>, newest: &Record) -> Result<(), RunError> {
        if self.is_empty() {
            return Ok(());
        }
        let (run, branch) = (line.chain.run.clone(), line.branch().clone());
        // Where only the step that joins them failed, it is done again with what is changed.
        let amid = |entry: &FrontierEntry| entry.fan.is_some() && !joins(entry);
        if newest.header().end.is_some() && line.position.frontier.iter().any(amid) {
            let why = "it ended together with branches that it opened: change one of those, and it goes on with that";
            return Err(RunError::NotEdited { run, branch, why: why.to_owned() });
        }
        for edit in self.0.into_values().flatten() {
            edit.apply(&mut line.state).map_err(|why| {
                let (run, branch) = (run.clone(), branch.clone());
                RunError::NotEdited { run, branch, why }
            })?;
        }
        line.drafts.push(by_hand());
        Ok(())
    }
}

/// Says of a branch that is to be changed and was not found why that cannot be, if there is one.
///
/// # Errors
/// [`RunError::NotEdited`]: there is one.
pub(super) async fn refuse_left(
    engine: &Engine,
    run: &RunId,
    left: Option<BranchPath>,
) -> Result<(), RunError> {
    let Some(branch) = left else { return Ok(()) };
    let run = run.clone();
    let why = if branch.is_main() {
        "it is the main one, whose state has an edit of its own"
    } else if engine.store.branches(&run).await?.contains(&branch) {
        "no step waits for it any more: it was joined, or left behind by what was done again"
    } else {
        "the run has no such branch"
    };
    Err(RunError::NotEdited { run, branch, why: why.to_owned() })
}

/// Refuses all that is to be changed.
///
/// # Errors
/// [`RunError::NotEdited`]: there is something.
pub(super) fn refuse_all<S>(
    run: &RunId,
    edits: &[(BranchPath, EditBranch<S>)],
    why: &str,
) -> Result<(), RunError> {
    match edits.first() {
        None => Ok(()),
        Some((branch, _)) => {
            let (run, branch) = (run.clone(), branch.clone());
            Err(RunError::NotEdited { run, branch, why: why.to_owned() })
        }
    }
}
