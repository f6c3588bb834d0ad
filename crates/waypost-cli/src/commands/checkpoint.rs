//! `waypost checkpoint`: writes a checkpoint of the present position, with an optional label.

use waypost::engine::Engine;

use super::Context;
use crate::cli::CheckpointArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::run::questions::refuse_secret;
use crate::run::reference::{Default, find};
use crate::store_location::Access;
use crate::view::{MarkedView, VERSION};

pub(crate) async fn checkpoint(context: &Context, args: CheckpointArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    let label = args.label.as_deref();
    if let Some(label) = label {
        refuse_secret(store.as_ref(), &run, label).await?;
    }
    let at = Engine::new(store).checkpoint(&run, label).await?.to_string();
    if context.output.json {
        let run = run.to_string();
        context.output.document(&MarkedView { v: VERSION, run, checkpoint: at, label: args.label })?;
        return Ok(Exit::Done);
    }
    let named = label.map(|label| format!(", also {run}@{label}")).unwrap_or_default();
    context.output.done(&format!("Checkpoint {at}{named}"))?;
    Ok(Exit::Done)
}
