//! Verified reads of each table, leases, and the detection of lost or contradictory rows.
//!
//! Bytes that do not match their digest do not leave this room.

pub(crate) mod ack_journal;
pub(crate) mod commit_order;
pub(crate) mod counters;
pub(crate) mod frames;
pub(crate) mod inspect;
pub(crate) mod lease;
pub(crate) mod read;
pub(crate) mod rows;
pub(crate) mod run_copies;
pub(crate) mod runs;
pub(crate) mod scope;
pub(crate) mod tail_check;
