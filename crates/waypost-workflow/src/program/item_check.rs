//! Checks of items before the run starts, for items made of params only.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::expr::Scope;
use crate::file::{Mode, Step, Workflow};

use super::items::Listing;
use super::{ProgramError, WorkflowProgram};

impl WorkflowProgram {
    /// Checks for duplicate keys among the items that `params` determine before the run starts.
    ///
    /// Covers steps of the workflow's own list that always run, with items and keys made of params only.
    ///
    /// # Errors
    /// [`ProgramError::SameKey`].
    pub fn check_items(&self, params: &Map<String, Value>) -> Result<(), ProgramError> {
        let scope = Scope::new(self.surroundings.run.as_str(), params);
        for step in self.workflow.steps() {
            let Some(foreach) = step.items_of_params() else { continue };
            if step.continue_on_error.covers(None) || !is_sure(&self.workflow, step) {
                continue;
            }
            let around = (&self.surroundings, self.surroundings.base.as_path());
            let listing = Listing::render(step, &Arc::new(foreach.clone()), &scope, around);
            // Any other error is reported by the step.
            let Some(items) = listing.ok().and_then(|listing| listing.known(self.mask())) else { continue };
            let mut first = HashMap::new();
            for (place, item) in items.iter().enumerate() {
                if let Some(other) = first.insert(item.key.as_str(), place) {
                    let (step, key) = (step.id.clone(), crate::expr::shown(&item.key));
                    return Err(ProgramError::SameKey { step, key, items: [other + 1, place + 1] });
                }
            }
        }
        Ok(())
    }
}

/// Returns whether neither the step nor any upstream step can be skipped.
fn is_sure(workflow: &Workflow, step: &Step) -> bool {
    let (mut open, mut seen) = (vec![step], HashSet::new());
    while let Some(step) = open.pop() {
        if step.condition.is_some() {
            return false;
        }
        // Without `needs`, a skipped step does not skip later steps.
        if workflow.mode() == Mode::Graph && seen.insert(step.index) {
            open.extend(workflow.upstream(step));
        }
    }
    true
}
