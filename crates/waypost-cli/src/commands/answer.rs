//! `waypost answer` and `waypost signal`: what a run waits for, given from outside.

use std::sync::Arc;

use serde_json::Value;
use waypost::RunId;
use waypost::engine::{Engine, RunError, Snapshot, Waiting};
use waypost::record::WaitKind;
use waypost::store::Store;
use waypost_workflow::file::{AnswerKind, Work};

use super::Context;
use crate::cli::{AnswerArgs, SignalArgs};
use crate::definition::Chosen;
use crate::error::Error;
use crate::exit::Exit;
use crate::place::Access;
use crate::reference::{Default, find};
use crate::view::{AnsweredView, SignalledView, VERSION};

pub(crate) async fn answer(context: &Context, args: AnswerArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    let (id, text) = match args.words.as_slice() {
        [value] => (None, value),
        [id, value] => (Some(id.as_str()), value),
        _ => unreachable!("the parser of options takes one or two"),
    };
    let engine = Engine::new(Arc::clone(&store));
    let questions = questions(&engine, &run).await?;
    let question = meant(&run, &questions, id)?;
    let value = taken(store.as_ref(), &run, question, text).await?;
    engine.answer(run.as_str(), &question.wait.id, value.clone()).await?;
    if context.output.json {
        context.output.document(&AnsweredView {
            v: VERSION,
            run: run.to_string(),
            id: question.wait.id.clone(),
            branch: question.branch.to_string(),
            step: question.step.to_string(),
            value,
        })?;
        return Ok(Exit::Done);
    }
    let text = format!("Answered step {} of run {run}", question.step);
    told(context, store.as_ref(), &run, &text, questions.len() - 1).await
}

pub(crate) async fn signal(context: &Context, args: SignalArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    let status = store.run(&run).await?.summary.status;
    if !status.is_resumable() && status != waypost::record::RunStatus::Running {
        return Err(Error::usage(
            format!("run {run} is {}, and takes no signals any more", status.name()),
            "`waypost list --resumable` shows runs that do",
        ));
    }
    let value = args.value.as_deref().map_or(Value::Null, json_or_text);
    Engine::new(Arc::clone(&store)).signal(run.as_str(), &args.name, value.clone()).await?;
    if context.output.json {
        let (run, name) = (run.to_string(), args.name.clone());
        context.output.document(&SignalledView { v: VERSION, run, name, value })?;
        return Ok(Exit::Done);
    }
    let text = format!("Sent signal {} to run {run}", crate::output::shown(&args.name));
    told(context, store.as_ref(), &run, &text, 0).await
}

/// Says what was given, and what comes of it.
async fn told(
    context: &Context,
    store: &dyn Store,
    run: &RunId,
    what: &str,
    others: usize,
) -> Result<Exit, Error> {
    let is_held = store.run(run).await?.summary.holder.is_some();
    let next = match (is_held, others) {
        (true, _) => "; its process goes on with it".to_owned(),
        (false, 0) => format!("; go on with: waypost resume {run}{}", context.store_words()),
        (false, 1) => "; one more question is open".to_owned(),
        (false, others) => format!("; {others} more questions are open"),
    };
    context.output.answer(&format!("{what}{next}"))?;
    Ok(Exit::Done)
}

/// Returns the questions to a person that a run waits for.
async fn questions(engine: &Engine, run: &RunId) -> Result<Vec<Waiting>, Error> {
    let waiting = engine.waiting(run).await?;
    Ok(waiting.into_iter().filter(|waiting| waiting.wait.on == WaitKind::Answer).collect())
}

/// Returns the question that is meant: by the beginning of its id, by its step, or because there is no other.
fn meant<'q>(run: &RunId, questions: &'q [Waiting], given: Option<&str>) -> Result<&'q Waiting, Error> {
    let Some(given) = given else {
        return match questions {
            [one] => Ok(one),
            [] => Err(Error::usage(
                format!("run {run} asks nothing"),
                "`waypost show` lists under `waiting` what a run waits for",
            )),
            several => Err(Error::usage(
                format!("run {run} asks several questions: {}", listed(several)),
                "put the step, or the id of the question, before the answer",
            )),
        };
    };
    let is_meant = |waiting: &&Waiting| {
        let step = waiting.step.as_str();
        given == step || given == format!("{}/{step}", waiting.branch)
    };
    let mut found: Vec<&Waiting> = questions.iter().filter(is_meant).collect();
    if found.is_empty() && !given.is_empty() {
        found = questions.iter().filter(|waiting| waiting.wait.id.starts_with(given)).collect();
    }
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let (run, id, waiting) = (run.clone(), given.to_owned(), questions.to_vec());
            Err(RunError::NoSuchWait { run, id, waiting }.into())
        }
        _ => Err(Error::usage(
            format!("`{given}` may mean several questions of run {run}: {}", listed(questions)),
            "write more of the id",
        )),
    }
}

fn listed(questions: &[Waiting]) -> String {
    let one = |waiting: &Waiting| {
        let question = waiting.wait.question.as_ref().and_then(Value::as_str).unwrap_or_default();
        format!("{} of step {} ({})", waiting.wait.id, waiting.step, crate::output::shown(question))
    };
    questions.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Takes an answer as what the step wants.
async fn taken(store: &dyn Store, run: &RunId, question: &Waiting, text: &str) -> Result<Value, Error> {
    let snapshot = Snapshot::read(store, run).await?;
    let workflow = Chosen::in_force(store, &snapshot).map(|chosen| chosen.workflow);
    let step = workflow.as_ref().ok().and_then(|workflow| workflow.step(question.step.as_str()));
    let Some(Work::Approve(approval)) = step.map(|step| &step.work) else {
        // A run of a program: it knows what it asked.
        return Ok(json_or_text(text));
    };
    let given = match approval.answer {
        AnswerKind::Json => serde_json::from_str(text).map_err(|error| {
            Error::usage(
                format!("the answer is no JSON: {error}"),
                "write a text in double quotes: '\"text\"'",
            )
        })?,
        _ => Value::String(text.to_owned()),
    };
    approval.answer.take(&given).map_err(|why| {
        let question = question.wait.question.as_ref().and_then(Value::as_str).unwrap_or_default();
        Error::usage(
            format!("`{text}` answers nothing: {why}"),
            format!(
                "step {} asks: {}",
                step.map_or("", |step| step.id.as_str()),
                crate::output::shown(question)
            ),
        )
    })
}

fn json_or_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
