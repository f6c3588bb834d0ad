//! Questions of a run to a person, and valid answers.

use serde_json::Value;
use waypost::RunId;
use waypost::engine::{Engine, Snapshot, Waiting};
use waypost::record::WaitKind;
use waypost::store::{Signal, SignalKind, Store};
use waypost::unique_keys::UniqueKeys;
use waypost_workflow::file::{AnswerKind, Work};
use waypost_workflow::mask::Mask;
use waypost_workflow::program::ProgramError;

use crate::error::Error;
use crate::output::shown;
use crate::run::definition::Chosen;
use crate::run::environment;
use crate::view::step_of;

/// Returns the run's questions to a person: open questions, and answered questions not yet processed by a
/// session.
pub(crate) async fn questions(engine: &Engine, run: &RunId) -> Result<(Vec<Waiting>, Vec<Waiting>), Error> {
    let given = engine.store().signals(run).await?;
    let is_open = |waiting: &Waiting| {
        let answers = |signal: &Signal| matches!(&signal.kind, SignalKind::Answer { wait, .. } if *wait == waiting.wait.id);
        !given.iter().any(answers)
    };
    let asked = engine.waiting(run).await?.into_iter().filter(|waiting| waiting.wait.on == WaitKind::Answer);
    Ok(asked.partition(is_open))
}

/// Converts an answer to the type required by the step.
pub(crate) async fn taken(
    store: &dyn Store,
    run: &RunId,
    question: &Waiting,
    text: &str,
) -> Result<Value, Error> {
    let snapshot = Snapshot::read(store, run).await?;
    let workflow = Chosen::in_force(store, &snapshot).map(|chosen| chosen.workflow);
    let asking = |workflow| step_of(workflow, &question.scope, question.step.as_str());
    let step = workflow.as_ref().ok().and_then(asking);
    let Some(Work::Approve(approval)) = step.map(|step| &step.work) else {
        // In a run of a program, the program validates answers.
        return Ok(json_or_text(text));
    };
    let given = match approval.answer {
        AnswerKind::Json => serde_json::from_str(text).map(|UniqueKeys(value)| value).map_err(|error| {
            Error::usage(format!("the answer is not JSON: {error}"), "quote a text: '\"text\"'")
        })?,
        _ => Value::String(text.to_owned()),
    };
    approval.answer.take(&given).map_err(|why| {
        let question = question.wait.question.as_ref().and_then(Value::as_str).unwrap_or_default();
        Error::usage(
            format!("`{text}` is not a valid answer: {why}"),
            format!("step {} asks: {}", step.map_or("", |step| step.id.as_str()), shown(question)),
        )
    })
}

/// Refuses text with a secret of the run's workflow, as far as the secrets are set here.
pub(crate) async fn refuse_secret(store: &dyn Store, run: &RunId, text: &str) -> Result<(), Error> {
    let snapshot = Snapshot::read(store, run).await?;
    // A run of a program has no workflow with declared secrets.
    let Ok(Chosen { workflow, .. }) = Chosen::in_force(store, &snapshot) else { return Ok(()) };
    let value = |name: &String| environment::secret(&workflow, name).filter(|value| !value.is_empty());
    let secrets = workflow.secrets().iter().filter_map(|name| Some((name.as_str(), value(name)?)));
    let secrets: Vec<_> = secrets.map(|(name, value)| (name, value.into_encoded_bytes())).collect();
    let mask = Mask::new(secrets.iter().map(|(name, value)| (*name, value.as_slice())));
    if mask.map_err(ProgramError::from)?.contains(text.as_bytes()) {
        return Err(Error::usage(
            "the value contains a secret of the workflow",
            "answers and signals are recorded; send another value",
        ));
    }
    Ok(())
}

/// Parses JSON; other text is a string.
pub(crate) fn json_or_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
