//! Arguments of the commands for use inside a step.

use clap::Args;

use super::key_value;

#[derive(Debug, Args)]
pub(crate) struct EventArgs {
    /// Name of the event
    pub(crate) name: String,
    /// Fields, as text
    #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) data: Vec<(String, String)>,
}
