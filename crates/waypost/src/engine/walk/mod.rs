//! The walk: decides the next starts in a scope, and which finished work counts.
//!
//! The [event loop](super::session::event_loop) calls these functions for each scope with a change, in this order:
//!
//! ```text
//!   failure::pass_over            steps downstream of a failed step end as passed over
//!   early_cutoff::reuse_ready     a ready step with a reusable result: trace, reuse --> reused, or the result is dropped
//!   in_place::check_earlier_declarers   a file that a ready step edits is broken: the session pauses
//!   scheduler::start_ready        a ready step: choice, condition, doubt, hold, limit --> start, or open children
//! ```
//!
//! A resume and a rollback take finished work out of force before the walk: [`invalidate`] in graphs with `needs`,
//! [`rewind`] in graphs with routes.
//!
//! Input: the positions of scopes in memory. Output: starts, skips, reuses and invalidations, for the next commit.
//! [`trace`] and [`invalidate`] are functions of positions. [`scheduler`], [`reuse`], [`choice`] and the session part of
//! [`failure`] change scopes in memory, without a store. [`early_cutoff`], [`in_place`] and [`rewind`] read the store.

pub(super) mod choice;
pub(super) mod early_cutoff;
pub(super) mod failure;
pub(super) mod in_place;
pub(super) mod invalidate;
pub(super) mod reuse;
pub(super) mod rewind;
pub(super) mod scheduler;
pub(super) mod trace;
