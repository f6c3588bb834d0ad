//! Arguments of the commands about evidence.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Evidence {
    /// Print evidence for the workflow file, from the files written by the step
    Suggest(EvidenceArgs),
    /// Pin the current values: the step counts as done with these values, and does not rerun
    Accept(EvidenceArgs),
}

#[derive(Debug, Args)]
pub(crate) struct EvidenceArgs {
    /// Run, `@` for the newest, or a unique prefix
    pub(crate) run: String,
    /// Step of any scope, or PATH/STEP for one item
    pub(crate) step: String,
}
