//! What a person says about the branches of a run before it goes on: how steps in doubt are settled, and what is changed
//! in a state.

use super::level::{Held, State};
use super::run::Resume;
use crate::engine::{Doubtful, EditBranch, RunError, Settle, TreatAs};
use crate::id::BranchPath;

/// Functions that settle steps in doubt, each for states of one type; each says nothing about those of another.
pub(super) type Settles =
    Vec<Box<dyn Fn(&mut Held, &Doubtful) -> Option<Result<TreatAs, String>> + Send + Sync>>;

/// What is changed on branches, in the order in which it was said.
pub(super) type BranchEdits = Vec<(String, EditBranch<Held>)>;

impl<S: State> Resume<'_, S> {
    /// Settles steps that are in doubt, for who has found out what became of them. `settle` is given the state of the branch
    /// that the step stands on: the main one, or one of a fork. It puts into the state what the step would have and says
    /// [`TreatAs::Done`], or says [`TreatAs::Retry`], or refuses with a reason: then nothing changes, and the resume ends
    /// with [`RunError::NotSettled`].
    ///
    /// Items and sub-graphs have states of other types: see [`settle_doubtful_as`](Self::settle_doubtful_as). A route after
    /// the step reads the state that `settle` leaves.
    pub fn settle_doubtful(
        self,
        settle: impl Fn(&mut S, &Doubtful) -> Result<TreatAs, String> + Send + Sync + 'static,
    ) -> Self {
        self.settle_doubtful_as(settle)
    }

    /// As [`settle_doubtful`](Self::settle_doubtful), for steps on branches whose state is a `T`: of a sub-graph its own, of
    /// an item [`Child`](super::Child), whose `result` is to be filled in. Can be said for several types.
    pub fn settle_doubtful_as<T: State>(
        mut self,
        settle: impl Fn(&mut T, &Doubtful) -> Result<TreatAs, String> + Send + Sync + 'static,
    ) -> Self {
        self.settles
            .push(Box::new(move |held, doubtful| held.downcast_mut().map(|state| settle(state, doubtful))));
        self
    }

    /// Changes the state of a branch before anything runs, such as `plan:a`: one that failed, was cut, waits for an answer
    /// or has not begun; and one that has ended, for as long as the step that joins it has not run. It is a record of its
    /// own on that branch, nothing finished is done again for it, and the join sees what came of it. One that had ended as
    /// failed goes on with the step that failed.
    ///
    /// Can be said for several branches. Items and sub-graphs have states of other types: see
    /// [`edit_branch_as`](Self::edit_branch_as).
    ///
    /// # Errors
    /// Of the awaited resume: [`RunError::NotEdited`] for a branch that no step waits for, as it was joined, or left behind
    /// by what was done again, or never there; and for a state of another type. Then nothing changed.
    pub fn edit_branch(self, branch: &str, edit: impl FnOnce(&mut S) + Send + 'static) -> Self {
        self.edit_branch_as(branch, edit)
    }

    /// As [`edit_branch`](Self::edit_branch), for a branch whose state is a `T`: of a sub-graph its own, of an item
    /// [`Child`](super::Child).
    pub fn edit_branch_as<T: State>(
        mut self,
        branch: &str,
        edit: impl FnOnce(&mut T) + Send + 'static,
    ) -> Self {
        let edit = move |held: &mut Held| {
            let state = held
                .downcast_mut()
                .ok_or_else(|| format!("its state is not a `{}`", std::any::type_name::<T>()))?;
            edit(state);
            Ok(())
        };
        self.edits.push((branch.to_owned(), EditBranch { edit: Box::new(edit), again: Vec::new() }));
        self
    }
}

/// Reads the names of branches that are changed.
///
/// # Errors
/// [`RunError::InvalidName`]: no branch can be called so.
pub(super) fn held_edits(edits: BranchEdits) -> Result<Vec<(BranchPath, EditBranch<Held>)>, RunError> {
    edits.into_iter().map(|(branch, edit)| Ok((branch.parse()?, edit))).collect()
}

/// Makes one function of those that settle steps in doubt.
pub(super) fn held_settle(settles: Settles) -> Settle<Held> {
    Settle(Box::new(move |held, doubtful| {
        let said = settles.iter().find_map(|settle| settle(held, doubtful));
        said.unwrap_or_else(|| Err("nobody said how, for a branch with a state of its type".to_owned()))
    }))
}
