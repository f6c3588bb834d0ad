//! The cause of a question about a step that must not be repeated, from the records of its branch.

use serde_json::Value;
use waypost::plan::{Cause, Decision};
use waypost::record::{Header, Note, Reason, Record};
use waypost::store::{Store, StoreExt as _};
use waypost::{RunId, StepId};

use crate::error::Error;

/// Returns the cause of a decision as text. If a step that must not be repeated ran before, the text names the change
/// since then, as far as the records have it.
pub(crate) async fn cause_of(store: &dyn Store, run: &RunId, decision: &Decision) -> Result<String, Error> {
    let (ran, turn) = match decision.cause {
        Cause::Undone => ("completed", ""),
        Cause::Begun => ("started", ""),
        Cause::AskedInTurn => ("ran", ": the question comes at its turn"),
        _ => return Ok(decision.cause.to_string()),
    };
    let newest = store.newest(run, &decision.branch).await?;
    // Newest first.
    let history = store.history(run, &decision.branch, newest.header().seq).await?;
    let found = history.iter().map(Record::header).find_map(|header| change(header, &decision.step));
    let change = match found {
        None if store.run(run).await?.record.record().parent.is_some() => {
            Some("the run was forked".to_owned())
        }
        found => found,
    };
    Ok(match change {
        Some(change) => format!("not idempotent, and {change} after it {ran}{turn}"),
        None => decision.cause.to_string(),
    })
}

/// Returns the change by a record after which the step must not rerun without a question.
fn change(header: &Header, step: &StepId) -> Option<String> {
    let invalidated = |note: &Note| match note {
        Note::Event { name, data } if name == "step_invalidated" && data["step"] == step.as_str() => {
            Some(data["cause"].clone())
        }
        _ => None,
    };
    if let Some(cause) = header.notes.iter().find_map(invalidated) {
        return Some(match (cause["code"].as_str(), &cause["step"]) {
            (Some("upstream_changed"), Value::String(upstream)) => format!("upstream `{upstream}` reran"),
            (Some("evidence_failed"), _) => "its evidence failed".to_owned(),
            (Some("definition_changed"), _) => "its definition changed".to_owned(),
            (Some("requested"), _) => "a person requested its rerun".to_owned(),
            _ => "the input of its scope changed".to_owned(),
        });
    }
    let text = match header.reason {
        Reason::Rollback => "the run was rolled back",
        Reason::Repair => "newer records were lost",
        // A restart is based on no record.
        Reason::Redo if header.basis == Some(0) => "the run was restarted",
        _ => return None,
    };
    Some(text.to_owned())
}
