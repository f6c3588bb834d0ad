//! The walk: the next starts in a scope, and the finished work in force.
//!
//! Input: the positions of scopes, in memory. Output: starts, skips, reuses and invalidations, for the next commit.
//! [`trace`], [`reuse`], [`invalidate`] and [`scheduler`] are pure: no I/O, no clock.

pub(super) mod choice;
pub(super) mod early_cutoff;
pub(super) mod failure;
pub(super) mod in_place;
pub(super) mod invalidate;
pub(super) mod reuse;
pub(super) mod rewind;
pub(super) mod scheduler;
pub(super) mod trace;
