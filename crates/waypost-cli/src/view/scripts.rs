//! The documents of commands that are about scripts.

use serde::Serialize;

/// The answer of `once`.
#[derive(Debug, Serialize)]
pub(crate) struct OnceView {
    pub(crate) v: u32,
    pub(crate) run: String,
    pub(crate) key: String,
    /// The step of the run that has its records.
    pub(crate) step: String,
    /// Nothing was done: this is what is remembered.
    pub(crate) replayed: bool,
    /// It will not be done again.
    pub(crate) remembered: bool,
    pub(crate) exit_code: Option<u8>,
    /// Its beginning, if it is large.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// All of it.
    pub(crate) stdout_bytes: u64,
    pub(crate) stderr_bytes: u64,
}

/// The answer of `once --finish`.
#[derive(Debug, Serialize)]
pub(crate) struct FinishedView {
    pub(crate) v: u32,
    pub(crate) run: String,
    /// This call did it.
    pub(crate) finished: bool,
}
