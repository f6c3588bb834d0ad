//! Verified reads of each table, summaries, leases, and the detection of lost or contradictory rows.

pub(crate) mod inspect;
pub(crate) mod lease;
pub(crate) mod read;
pub(crate) mod rows;
pub(crate) mod runs;
pub(crate) mod scopes;
pub(crate) mod signals;
