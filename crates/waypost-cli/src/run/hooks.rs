//! The steps of a hook's scope. The hooks of a step are parallel chains in a graph; each scope runs a
//! single chain.

use std::collections::HashSet;

use waypost::record::Position;
use waypost::shape::{Shape, Step};
use waypost::{ScopePath, StepId};

/// Returns the opener of a hook's scope; `None` for other scopes.
pub(crate) fn opener<'s>(shape: &'s Shape, scope: &ScopePath) -> Option<&'s Step> {
    let (name, _) = scope.opened_by()?;
    let above = shape.of_scope(&scope.parent()?)?;
    let step = &above.steps()[above.opener(&name)?];
    step.are_hooks(&name).then_some(step)
}

/// Returns the steps of a scope; for a hook's scope, the chain of its position.
pub(crate) fn steps_of<'s>(shape: &'s Shape, scope: &ScopePath, position: &Position) -> Vec<&'s Step> {
    let Some(own) = shape.of_scope(scope) else { return Vec::new() };
    if opener(shape, scope).is_none() {
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
