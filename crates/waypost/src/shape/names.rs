//! Whether the branches that a step opens can be named by records.

use super::{ShapeError, Step};
use crate::id::{BRANCH_DEPTH_MAX, BranchPath};

/// Makes sure that the branches of a step can be named.
pub(super) fn check(step: &Step) -> Result<(), ShapeError> {
    let Some(children) = &step.children else { return Ok(()) };
    if children.shape.depth == BRANCH_DEPTH_MAX {
        return Err(ShapeError::TooDeep(step.id.clone()));
    }
    for (key, _) in &children.named {
        let path = BranchPath::main().child(&children.name, key);
        path.map_err(|why| ShapeError::BranchName { step: step.id.clone(), why })?;
    }
    Ok(())
}
