//! Choices about unfinished steps: `--skip STEP`, and `--treat-as done` of failed steps with `--output`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};
use waypost::StepId;
use waypost::engine::Snapshot;
use waypost::record::{Choice, SettleBy};

use crate::cli::{ResumeArgs, TreatAs};
use crate::error::Error;

/// Reads the choices from the options of `resume`. `failed`: the run whose failed steps `--treat-as done` settles, unless it
/// answers a question about a step in doubt.
///
/// # Errors
/// [`Error::Usage`]: a step is in an item or another scope, or an output is of a step that is not settled as done.
pub(super) fn of(
    args: &ResumeArgs,
    failed: Option<&Snapshot>,
    at: Timestamp,
) -> Result<BTreeMap<StepId, Choice>, Error> {
    let mut settled: BTreeMap<StepId, SettleBy> = BTreeMap::new();
    if let Some(snapshot) = failed.filter(|_| args.treat_as == Some(TreatAs::Done)) {
        let position = snapshot.newest().position().unwrap_or_default();
        let failed = position.failed.iter().filter(|entry| entry.exited.is_none());
        settled.extend(failed.map(|entry| (entry.step.clone(), SettleBy::Done(Map::new()))));
    }
    for (path, value) in &args.output {
        let named = path.split_once('.').and_then(|(step, name)| Some((StepId::new(step).ok()?, name)));
        let outputs = named.as_ref().and_then(|(step, name)| match settled.get_mut(step)? {
            SettleBy::Done(outputs) => Some((outputs, *name)),
            SettleBy::Skip => None,
        });
        let Some((outputs, name)) = outputs else {
            let message = format!("`--output {path}` names no failed step that `--treat-as done` settles");
            return Err(Error::usage(message, "write it as STEP.NAME=VALUE, with the id of a failed step"));
        };
        outputs.insert(name.to_owned(), Value::from(value.as_str()));
    }
    for step in &args.skip {
        if step.contains('/') {
            let message = format!("cannot skip `{step}`: it is a step of an item or of another scope");
            return Err(Error::usage(
                message,
                "`--skip` takes a step of the workflow itself; for a failed item: `waypost dead-letters drop`",
            ));
        }
        let step = StepId::new(step).map_err(Error::from_name)?;
        settled.insert(step, SettleBy::Skip);
    }
    let by =
        std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "a person".to_owned());
    let choice = |(step, settle)| (step, Choice { settle, by: by.clone(), at });
    Ok(settled.into_iter().map(choice).collect())
}
