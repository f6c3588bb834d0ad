//! Manual changes to the scopes of a run before a resume: decisions on steps in doubt, and state edits.

use std::collections::BTreeMap;

use super::level::{Held, State};
use super::run::Resume;
use crate::engine::{Doubtful, EditScope, RunError, Settle, TreatAs};
use crate::id::ScopePath;

/// Functions that settle steps in doubt. Each handles states of a single type and returns `None` for other types.
pub(super) type Settles =
    Vec<Box<dyn Fn(&mut Held, &Doubtful) -> Option<Result<TreatAs, String>> + Send + Sync>>;

/// State edits by scope, in the order of the calls.
pub(super) type ScopeEdits = Vec<(String, EditScope<Held>)>;

impl<S: State> Resume<'_, S> {
    /// Settles steps in doubt, for a caller that has found out the result of the interrupted attempt.
    ///
    /// `settle` gets the state of the scope of the step: the main scope or a scope of a fork. It returns:
    ///
    /// - [`TreatAs::Done`], after it has put the output of the step into the state,
    /// - [`TreatAs::Retry`], to run the step again,
    /// - an error with a reason: nothing changes, and the resume ends with [`RunError::NotSettled`].
    ///
    /// Items and sub-graphs have states of other types: see [`settle_doubtful_as`](Self::settle_doubtful_as). A
    /// route after the step reads the state that `settle` leaves.
    pub fn settle_doubtful(
        self,
        settle: impl Fn(&mut S, &Doubtful) -> Result<TreatAs, String> + Send + Sync + 'static,
    ) -> Self {
        self.settle_doubtful_as(settle)
    }

    /// As [`settle_doubtful`](Self::settle_doubtful), for scopes with a state of type `T`. For a sub-graph, `T`
    /// is its state; for an item, `T` is [`Child`](super::Child), and `settle` fills in `result`. Can be called
    /// for several types.
    pub fn settle_doubtful_as<T: State>(
        mut self,
        settle: impl Fn(&mut T, &Doubtful) -> Result<TreatAs, String> + Send + Sync + 'static,
    ) -> Self {
        self.settles
            .push(Box::new(move |held, doubtful| held.downcast_mut().map(|state| settle(state, doubtful))));
        self
    }

    /// Edits the state of a scope, such as `plan:a`, before anything runs.
    ///
    /// The scope may have failed, been interrupted, be waiting for an answer, or not have begun. It may also
    /// have ended, until the step that joins it has run. The edit is a record in the scope. Finished steps do
    /// not run again, and the join reads the result. A failed scope continues with the failed step.
    ///
    /// Can be called for several scopes. Items and sub-graphs have states of other types: see
    /// [`edit_scope_as`](Self::edit_scope_as).
    ///
    /// # Errors
    /// Of the awaited resume: [`RunError::NotEdited`], and nothing changed. The scope was joined, was abandoned
    /// by a rerun, or never existed; or its state has another type.
    pub fn edit_scope(self, scope: impl AsRef<str>, edit: impl FnOnce(&mut S) + Send + 'static) -> Self {
        self.edit_scope_as(scope, edit)
    }

    /// As [`edit_scope`](Self::edit_scope), for a scope with a state of type `T`: the state of a sub-graph, or
    /// [`Child`](super::Child) for an item.
    pub fn edit_scope_as<T: State>(
        mut self,
        scope: impl AsRef<str>,
        edit: impl FnOnce(&mut T) + Send + 'static,
    ) -> Self {
        let edit = move |held: &mut Held| {
            let state = held
                .downcast_mut()
                .ok_or_else(|| format!("the state is not a `{}`", std::any::type_name::<T>()))?;
            edit(state);
            Ok(())
        };
        self.edits.push((
            scope.as_ref().to_owned(),
            EditScope { edit: Box::new(edit), item: None, again: Vec::new(), choices: BTreeMap::new() },
        ));
        self
    }
}

/// Parses the scope names of the edits.
///
/// # Errors
/// [`RunError::InvalidName`]: a name is not a valid scope path.
pub(super) fn held_edits(edits: ScopeEdits) -> Result<Vec<(ScopePath, EditScope<Held>)>, RunError> {
    edits.into_iter().map(|(scope, edit)| Ok((scope.parse()?, edit))).collect()
}

/// Combines the functions that settle steps in doubt. The first function for the type of the state decides.
pub(super) fn held_settle(settles: Settles) -> Settle<Held> {
    Settle(Box::new(move |held, doubtful| {
        let said = settles.iter().find_map(|settle| settle(held, doubtful));
        said.unwrap_or_else(|| Err("no function settles a scope with this state type".to_owned()))
    }))
}
