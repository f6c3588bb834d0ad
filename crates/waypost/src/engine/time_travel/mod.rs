//! Time travel: rollback, restart and fork to an older checkpoint, and undo of effects.
//!
//! Input: a checkpoint of a run. Output: for each scope its position then, and records of the return. No record is
//! removed: a return to an older checkpoint is itself a record, and can be taken back.

pub(super) mod fork;
pub(super) mod restart;
pub(super) mod rollback;
pub(super) mod source_scopes;
pub(super) mod undo;
