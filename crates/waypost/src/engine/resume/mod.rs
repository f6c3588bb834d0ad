//! Resumes: from the records of a run to the first record of a new session.
//!
//! Input: the newest sound records, the definition in force, the evidence, and the request of a person. Output: the
//! questions in doubt, and for each scope the position from which the session continues.

pub(super) mod accept;
pub(super) mod accepted_pins;
pub(super) mod begin;
pub(super) mod definition;
pub(super) mod first_record;
pub(super) mod in_doubt;
pub(super) mod reentry;
pub(super) mod requested;
pub(super) mod reruns;
pub(super) mod resume_point;
pub(super) mod trust;
