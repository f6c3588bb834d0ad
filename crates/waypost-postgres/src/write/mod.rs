//! New runs and new records, pruning, quarantine and removal. Every change is a single statement.

pub(crate) mod append;
pub(crate) mod blobs;
pub(crate) mod chain;
pub(crate) mod removal;
pub(crate) mod trim;
