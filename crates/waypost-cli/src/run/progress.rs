//! The progress of a run in words.

use std::collections::HashSet;

use waypost::RunId;
use waypost::engine::Snapshot;
use waypost::record::{Header, Phase, Record, SkipCause};
use waypost::shape::Unfinished;
use waypost::store::{Progress, Store, StoreError, StoreExt as _};

use super::definition::shape_in_force;

/// Returns the number of done steps and of skipped steps in words: a skipped step is finished, but not done.
/// `words`: what is done, "steps are done".
pub(crate) fn in_words(progress: Progress, skipped: u64, words: &str) -> String {
    let done = progress.done.saturating_sub(skipped);
    let text = format!("{done} of {} {words}", progress.total);
    if skipped == 0 { text } else { format!("{text}, {skipped} skipped") }
}

/// Returns the progress of a run as a clause, for the last lines about a run.
pub(crate) async fn steps_are_done(store: &dyn Store, run: &RunId, progress: Progress) -> String {
    let skipped = skipped(store, run).await.unwrap_or_default();
    in_words(progress, skipped, "steps are done")
}

/// Returns the number of finished steps of the main scope that a condition, a skipped step upstream or a person skipped.
async fn skipped(store: &dyn Store, run: &RunId) -> Result<u64, StoreError> {
    let snapshot = Snapshot::read(store, run).await?;
    let newest = snapshot.newest();
    let Some((shape, position)) = shape_in_force(&snapshot).zip(newest.position().ok()) else { return Ok(0) };
    let unfinished = Unfinished::of(&shape, &position);
    let history = store.effective_history(run, &newest.header().scope, newest.header().seq).await?;
    // The newest end of a step counts.
    let (mut skipped, mut seen) = (0, HashSet::new());
    for Header { step, phase, .. } in history.records.iter().map(Record::header) {
        let is_end = matches!(phase, Phase::Completed(_) | Phase::Failed(_) | Phase::Skipped(_));
        let Some(step) = step.as_ref().filter(|step| is_end && seen.insert(*step)) else { continue };
        let is_skip =
            matches!(phase, Phase::Skipped(cause) if !matches!(cause, SkipCause::UpstreamFailed(_)));
        let place = shape.place(step.as_str()).filter(|place| !shape.steps()[*place].is_for_hooks);
        skipped += u64::from(is_skip && place.is_some_and(|place| !unfinished.has(place)));
    }
    Ok(skipped)
}
