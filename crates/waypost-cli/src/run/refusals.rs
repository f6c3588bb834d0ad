//! The errors of a resume that does not depend on its options: a plan warns with the words of the resume.

use waypost::engine::{RunError, Snapshot};
use waypost::record::{End, Flaw, Status};
use waypost::store::{RunEntry, Store, StoreError};
use waypost_workflow::file::Workflow;
use waypost_workflow::program::spent;

use super::{run_status, unfinished_undo};
use crate::error::Error;

/// Returns the errors of a resume with this workflow: of a running or cancelled run, an exceeded budget, an unfinished undo, and
/// missing checkpoints.
pub(crate) async fn refusals(
    store: &dyn Store,
    snapshot: &Snapshot,
    workflow: &Workflow,
) -> Result<Vec<Error>, Error> {
    let run = || snapshot.entry.summary.run.clone();
    let is_cancelled = snapshot.ended.as_ref().is_some_and(|last| last.header().end == Some(End::Cancelled));
    let cancelled = is_cancelled.then(|| RunError::Cancelled(run()).into());
    let undone = unfinished_undo::target(snapshot).map(|to| RunError::Undoing { run: run(), to }.into());
    let newest = snapshot.newest().header().seq;
    let missing = snapshot.damaged().find(|damage| damage.flaw == Flaw::Missing);
    let missing = missing.map(|damage| StoreError::of_damage(damage.clone(), Some(newest)).into());
    let behind = behind(store, snapshot).await;
    let spent = match snapshot.ended {
        None => passed_budget(store, snapshot, workflow).await?,
        Some(_) => None,
    };
    let spent = spent.map(|passed| Error::Budget { run: run(), passed });
    let held = held(&snapshot.entry);
    Ok(cancelled.into_iter().chain(undone).chain(missing).chain(behind).chain(spent).chain(held).collect())
}

/// Returns the error of a resume of a running run.
pub(crate) fn held(entry: &RunEntry) -> Option<Error> {
    let holder = entry.summary.holder.clone()?;
    let (run, until) = (entry.summary.run.clone(), entry.summary.until);
    Some(StoreError::Held { run, holder: Some(holder), until }.into())
}

/// Returns the error of a resume whose log proves lost checkpoints: finished steps would rerun unasked.
pub(crate) async fn behind(store: &dyn Store, snapshot: &Snapshot) -> Option<Error> {
    let logged = run_status::logged_and_lost(store, snapshot).await?;
    let log = store.folder(&logged.run).expect("a log stands in a folder").join("events.jsonl");
    Some(Error::Behind { newest: snapshot.newest().header().reference(), logged, log })
}

/// Returns the usage of a run over its budget, with the limit.
pub(crate) async fn passed_budget(
    store: &dyn Store,
    snapshot: &Snapshot,
    workflow: &Workflow,
) -> Result<Option<String>, Error> {
    let Some(budget) = workflow.budget() else { return Ok(None) };
    Ok(budget.passed_by(&spent(store, &snapshot.entry.summary.run).await?))
}

/// Returns a step of an open scope that has failed: a worker that claims the run does not retry the step.
pub(crate) fn failed_step(snapshot: &Snapshot) -> Option<String> {
    snapshot.heads.iter().find_map(|head| {
        let frontier = head.record.position().ok()?.frontier;
        let failed = frontier.into_iter().find(|entry| entry.status == Status::Failed)?;
        let scope = &head.record.header().scope;
        Some(if scope.is_main() {
            failed.step.to_string()
        } else {
            format!("{}/{}", scope.readable(), failed.step)
        })
    })
}
