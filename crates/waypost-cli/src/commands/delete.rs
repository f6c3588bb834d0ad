//! `waypost delete`: removes runs with their records, logs and files, after a confirmation.

use std::collections::BTreeSet;
use std::sync::Arc;

use waypost::RunId;
use waypost::store::{Store, StoreError, StoreExt as _};

use super::Context;
use super::deletion::{Deleting, agreed, refuse_newer};
use crate::cli::DeleteArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::run::keepalive::keepalive_holder;
use crate::run::reference::{find_to_decide, find_unasked, here_first, unnamed};
use crate::view::{DeletedView, VERSION};

pub(crate) async fn delete(context: &Context, args: DeleteArgs) -> Result<Exit, Error> {
    let mut deleting = Deleting::open(context)?;
    let store = Arc::clone(deleting.store());
    if args.runs.is_empty() {
        let runs = here_first(store.as_ref(), BTreeSet::new()).await?;
        return Err(unnamed("delete a run", &runs.into_iter().map(|run| run.run).collect::<Vec<_>>()));
    }
    let asks = !args.yes && context.output.can_ask();
    let mut runs: Vec<RunId> = Vec::with_capacity(args.runs.len());
    for name in &args.runs {
        let found = match asks {
            true => find_to_decide(store.as_ref(), Some(name), BTreeSet::new(), "run").await,
            false => find_unasked(store.as_ref(), Some(name), BTreeSet::new()).await,
        };
        let run = match found {
            // The remaining files of a lost run can be deleted.
            Err(Error::Lost { run, .. }) => run,
            Err(error @ Error::NotFound { .. }) => {
                let cut_short = store.deletions().await?;
                cut_short.into_iter().find(|run| run.as_str() == name).ok_or(error)?
            }
            found => found?,
        };
        if !runs.contains(&run) {
            runs.push(run);
        }
    }
    for run in &runs {
        refuse_live(store.as_ref(), run).await?;
        refuse_newer(store.as_ref(), run).await?;
    }
    let names = runs.iter().map(ToString::to_string).collect::<Vec<_>>();
    if !args.yes && !agreed(context, &names)? {
        context.output.note("Nothing was deleted, because the deletion was not confirmed.");
        return Ok(Exit::Usage);
    }
    drop(store);
    deleting.make_room(context, &runs).await?;
    let mut deleted = Vec::with_capacity(runs.len());
    for run in &runs {
        deleting.delete(run).await?;
        if !context.output.json {
            context.output.done(&format!("Deleted run {run}"))?;
        }
        deleted.push(run.to_string());
    }
    if context.output.json {
        context.output.document(&DeletedView { v: VERSION, deleted })?;
    }
    Ok(Exit::Done)
}

/// Refuses a running run before the confirmation; the store checks again when it deletes.
async fn refuse_live(store: &dyn Store, run: &RunId) -> Result<(), Error> {
    store.wait_for_release(run).await?;
    match store.run(run).await {
        Ok(entry) => match entry.summary.holder.or_else(|| keepalive_holder(store, run)) {
            None => Ok(()),
            holder => Err(StoreError::Held { run: run.clone(), holder, until: None }.into()),
        },
        // Damaged runs can be deleted, and lost runs of which only the log remains.
        Err(StoreError::Damaged { .. } | StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
