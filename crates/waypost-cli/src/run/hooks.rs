//! The steps of a hook's branch. The hooks of a step are parallel chains in a graph; each branch runs a
//! single chain.

use std::collections::HashSet;

use waypost::record::Position;
use waypost::shape::{Shape, Step};
use waypost::{BranchPath, StepId};

/// Returns the opener of a hook's branch; `None` for other branches.
pub(crate) fn opener<'s>(shape: &'s Shape, branch: &BranchPath) -> Option<&'s Step> {
    let (name, _) = branch.opened_by()?;
    let above = shape.of_branch(&branch.parent()?)?;
    let step = &above.steps()[above.opener(&name)?];
    step.are_hooks(&name).then_some(step)
}

/// Returns the steps of a branch; for a hook's branch, the chain of its position.
pub(crate) fn steps_of<'s>(shape: &'s Shape, branch: &BranchPath, position: &Position) -> Vec<&'s Step> {
    let Some(own) = shape.of_branch(branch) else { return Vec::new() };
    if opener(shape, branch).is_none() {
        return own.steps().iter().collect();
    }
    let stands = position.open_entries().map(|entry| &entry.step).chain(position.ledger.keys());
    let mut line: HashSet<&StepId> = stands.collect();
    loop {
        let before = line.len();
        for step in own.steps() {
            if line.contains(&step.id) || step.needs.iter().any(|need| line.contains(need)) {
                line.insert(&step.id);
                line.extend(&step.needs);
            }
        }
        if line.len() == before {
            break;
        }
    }
    own.steps().iter().filter(|step| line.contains(&step.id)).collect()
}
