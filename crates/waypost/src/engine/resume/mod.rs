//! Resumes: from the records of a run to the first record of a new session.
//!
//! ```text
//!   first_record::resumed --> begin --> resume_point --> trust, reruns, invalidation --> a session, or questions
//!            ^                                                                               |
//!            +----------- another session of the same resume, after a rerun <----------------+
//! ```
//!
//! Input: the newest sound records, the definition in force, the evidence, and the request of a person. Output: the
//! questions to a person, or for each scope the position from which the session continues. A resume may have several
//! sessions under one lease: after a rerun, the evidence of other steps is verified again.

pub(super) mod accept;
pub(super) mod accepted_pins;
pub(super) mod begin;
pub(super) mod definition;
pub(super) mod first_record;
pub(super) mod in_doubt;
pub(super) mod invalidation;
pub(super) mod requested;
pub(super) mod reruns;
pub(super) mod resume_point;
pub(super) mod trust;
