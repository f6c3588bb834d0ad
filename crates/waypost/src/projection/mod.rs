//! Projections of records for people and tools: events and reports.
//!
//! Input: committed records. Output: derived data; no decision of the engine reads it.

pub mod events;
pub mod report;
