//! The write path: group commit of queued jobs, and the jobs that add and remove records.

pub(crate) mod append;
pub(crate) mod commit;
pub(crate) mod group_commit;
pub(crate) mod removal;
pub(crate) mod trim;
