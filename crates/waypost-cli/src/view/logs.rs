//! Documents about printed text of steps.

use serde::Serialize;

use super::place_in_loops;

/// The answer of `logs`.
#[derive(Debug, Serialize)]
pub(crate) struct LogsView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) logs: Vec<LogView>,
}

/// The printed text of an attempt.
#[derive(Debug, Serialize)]
pub(crate) struct LogView {
    pub(crate) scope: String,
    pub(crate) step: String,
    pub(crate) attempt: u32,
    #[serde(serialize_with = "place_in_loops")]
    pub(crate) iteration: Vec<u32>,
    pub(crate) epoch: u32,
    pub(crate) bytes: u64,
    /// Invalid UTF-8 is replaced.
    pub(crate) text: String,
    /// The record counts bytes, and the log is missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) missing: bool,
}

/// A line of the answer of `logs -f`: a piece of an attempt's printed text.
#[derive(Debug, Serialize)]
pub(crate) struct LogPieceView {
    pub(crate) v: u32,
    pub(crate) run: String,
    /// The offset of the piece in the log.
    pub(crate) offset: u64,
    #[serde(flatten)]
    pub(crate) log: LogView,
}
