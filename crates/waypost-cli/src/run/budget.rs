//! The budget of a run: the usage of its steps over the limits of the workflow file.

use waypost::engine::Snapshot;
use waypost::store::Store;
use waypost_workflow::file::Workflow;
use waypost_workflow::program::spent;

use crate::error::Error;

/// Returns the usage of an unfinished run over its budget, with the limit.
pub(crate) async fn passed_budget(
    store: &dyn Store,
    snapshot: &Snapshot,
    workflow: &Workflow,
) -> Result<Option<String>, Error> {
    let Some(budget) = workflow.budget().filter(|_| snapshot.ended.is_none()) else { return Ok(None) };
    Ok(budget.passed_by(&spent(store, &snapshot.entry.summary.run).await?))
}
