//! Arguments of the commands about evidence.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum Evidence {
    /// Print evidence for the workflow file, made of the files that the step wrote
    Suggest(EvidenceArgs),
    /// Pin what is there now: the step is believed by it from then on, and does not run again
    Accept(EvidenceArgs),
}

#[derive(Debug, Args)]
pub(crate) struct EvidenceArgs {
    /// Run, `@` for the newest, or the beginning of its name
    pub(crate) run: String,
    /// Step, on whatever branch, or BRANCH/STEP: that of one item
    pub(crate) step: String,
}
