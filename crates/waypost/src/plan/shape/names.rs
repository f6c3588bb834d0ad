//! Checks the scope names of all steps.

use std::collections::HashSet;

use super::{ShapeError, Step};
use crate::id::{SCOPE_DEPTH_MAX, ScopePath};

/// Checks that scope names are valid, and naming steps unique.
pub(super) fn check(steps: &[Step]) -> Result<(), ShapeError> {
    steps.iter().try_for_each(check_step)?;
    let mut found = HashSet::new();
    let mut names = steps.iter().flat_map(Step::all_children).map(|children| &children.name);
    names.find(|name| !found.insert(*name)).map_or(Ok(()), |twice| Err(ShapeError::SameScopes(twice.clone())))
}

fn check_step(step: &Step) -> Result<(), ShapeError> {
    for children in step.all_children() {
        if children.shape.depth == SCOPE_DEPTH_MAX {
            return Err(ShapeError::TooDeep(step.id.clone()));
        }
        for (key, _) in &children.named {
            let path = ScopePath::main().child(&children.name, key);
            path.map_err(|why| ShapeError::ScopeName { step: step.id.clone(), why })?;
        }
    }
    Ok(())
}
