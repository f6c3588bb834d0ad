//! `waypost answer` and `waypost signal`: input from outside for open waits of a run.

use std::sync::Arc;

use serde_json::Value;
use waypost::RunId;
use waypost::engine::{Engine, RunError, Snapshot, Waiting};
use waypost::record::RunStatus;
use waypost::store::Store;
use waypost_workflow::file::{Body, Work};

use super::Context;
use super::resume::resume_in;
use crate::cli::{AnswerArgs, ResumeArgs, SignalArgs};
use crate::error::Error;
use crate::exit::Exit;
use crate::format::text::quoted;
use crate::output::{shown, shown_lines};
use crate::run::definition::{how_to_resume, names, workflow_in_force};
use crate::run::keepalive::keepalive_holder;
use crate::run::questions::{json_or_text, questions, refuse_secret, taken};
use crate::run::reference::{Default, find, here_first, is_step, only, unnamed};
use crate::store_location::Access;
use crate::view::step_names::StepNames;
use crate::view::{AnsweredView, SignalledView, VERSION};

/// Most commands in a hint.
const COMMANDS_MAX: usize = 10;

pub(crate) async fn answer(context: &Context, args: AnswerArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let engine = Engine::new(Arc::clone(&store));
    let (id, text) = match args.words.as_slice() {
        [id, value] => (Some(id.as_str()), value),
        [value] => (None, value),
        // `answer VALUE` would take the value for the name of a run.
        _ => return Err(unnamed("answer", &asking(&engine).await?)),
    };
    let run = match args.run.as_deref() {
        None | Some("@") => only(asking(&engine).await?, "run with an open question")?,
        name => match find(store.as_ref(), name, Default::Newest).await {
            // Perhaps a step in place of the run: only runs with an open question qualify.
            Err(Error::NotFound { what, .. }) => {
                let runs = asking(&engine).await?;
                let unknown = unnamed("answer", &runs).diagnosis().hint.unwrap_or_default();
                return Err(Error::not_found(what, unknown));
            }
            found => found?,
        },
    };
    let (open, answered) = questions(&engine, &run).await?;
    let names = names(store.as_ref(), &run).await;
    let question = meant(&Questions { run: &run, open: &open, answered: &answered, names: &names }, id)?;
    refuse_secret(store.as_ref(), &run, text).await?;
    let value = taken(store.as_ref(), &run, question, text).await?;
    let step = names.called(&question.scope, question.step.as_str());
    engine.answer(run.as_str(), &question.wait.id, value.clone()).await.map_err(|error| match error {
        RunError::Answered { run, .. } => RunError::Answered { run, id: step.clone() },
        error => error,
    })?;
    if context.output.json {
        context.output.document(&AnsweredView {
            v: VERSION,
            run: run.to_string(),
            id: question.wait.id.clone(),
            scope: question.scope.to_string(),
            step: question.step.to_string(),
            value,
        })?;
    } else if let Some(asked) = question.wait.question.as_ref() {
        context.output.done(&format!(
            "Question: {}",
            shown_lines(&asked.as_str().map_or_else(|| asked.to_string(), str::to_owned))
        ))?;
    }
    let text = format!("Answered step {step} of run {run}");
    if args.after.resume && !is_held(store.as_ref(), &run).await? {
        if !context.output.json {
            context.output.done(&text)?;
        }
        let (run, wait) = (Some(run.to_string()), args.after.wait);
        return resume_in(
            context,
            store,
            ResumeArgs { run, wait_default: Some(wait), ..ResumeArgs::default() },
        )
        .await;
    }
    if context.output.json {
        return Ok(Exit::Done);
    }
    told(context, store.as_ref(), &run, &text, open.len().saturating_sub(1)).await
}

pub(crate) async fn signal(context: &Context, args: SignalArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    refuse_secret(
        store.as_ref(),
        &run,
        &format!("{}\n{}", args.name, args.value.as_deref().unwrap_or_default()),
    )
    .await?;
    let value = args.value.as_deref().map_or(Value::Null, json_or_text);
    Engine::new(Arc::clone(&store)).signal(run.as_str(), &args.name, value.clone()).await?;
    if context.output.json {
        let (run, name) = (run.to_string(), args.name.clone());
        context.output.document(&SignalledView { v: VERSION, run, name, value })?;
        return Ok(Exit::Done);
    }
    let mut text = format!("Sent signal {} to run {run}", shown(&args.name));
    let workflow = workflow_in_force(&Snapshot::read(store.as_ref(), &run).await?);
    if workflow.is_some_and(|workflow| !may_wait(workflow.body(), &args.name)) {
        text.push_str(", although no step of the workflow waits for it");
    }
    told(context, store.as_ref(), &run, &text, 0).await
}

/// Returns whether a step of a body may wait for a signal: the name of a wait may have expressions.
fn may_wait(body: &Body, name: &str) -> bool {
    body.steps().iter().any(|step| match &step.work {
        Work::Wait(signal) => signal.as_str() == name || signal.as_str().contains("${{"),
        work => work.body().is_some_and(|body| may_wait(body, name)),
    })
}

/// Lists the runs with an open question.
async fn asking(engine: &Engine) -> Result<Vec<RunId>, Error> {
    let statuses = [RunStatus::Waiting, RunStatus::Running, RunStatus::Interrupted, RunStatus::Failed];
    let mut asking = Vec::new();
    for run in here_first(engine.store().as_ref(), statuses.into()).await? {
        let (open, _) = questions(engine, &run.run).await?;
        asking.extend((!open.is_empty()).then_some(run.run));
    }
    Ok(asking)
}

/// Returns whether a process works on the run, or waits for its answers.
async fn is_held(store: &dyn Store, run: &RunId) -> Result<bool, Error> {
    Ok(store.run(run).await?.summary.holder.is_some() || keepalive_holder(store, run).is_some())
}

/// Prints the input given, and its effect.
async fn told(
    context: &Context,
    store: &dyn Store,
    run: &RunId,
    what: &str,
    others: usize,
) -> Result<Exit, Error> {
    let entry = store.run(run).await?;
    let queued = match store.queue() {
        Some(queue) => queue.job(run).await?,
        None => None,
    };
    // A run at rest continues after a resume only.
    let is_for_workers = queued.is_some() && entry.summary.status != RunStatus::Interrupted;
    let next = match (is_held(store, run).await?, others) {
        (true, _) => "; the process of the run continues".to_owned(),
        (false, 0) if is_for_workers => "; a worker continues the run".to_owned(),
        (false, 0) => {
            let words = context.store_words();
            let words = if queued.is_some() { format!(" --queue{words}") } else { words };
            format!("; {}", how_to_resume(entry.record.record(), &words))
        }
        (false, 1) => "; one more question is open".to_owned(),
        (false, others) => format!("; {others} more questions are open"),
    };
    context.output.done(&format!("{what}{next}"))?;
    Ok(Exit::Done)
}

/// The questions of a run, and the names of its steps.
#[derive(Clone, Copy)]
struct Questions<'q> {
    run: &'q RunId,
    open: &'q [Waiting],
    answered: &'q [Waiting],
    names: &'q StepNames,
}

/// Selects a question: by prefix of the id, by step, or as the only question.
fn meant<'q>(asked: &Questions<'q>, given: Option<&str>) -> Result<&'q Waiting, Error> {
    let Questions { run, open, answered, names } = *asked;
    let Some(given) = given else {
        return match (open, answered) {
            // For an answered question, the engine returns the error.
            ([one], _) | ([], [one]) => Ok(one),
            ([], []) => Err(Error::usage(
                format!("run {run} has no questions"),
                "`waypost show` lists the waits of the run",
            )),
            ([], _) => Err(Error::usage(
                format!("every question of run {run} has an answer"),
                format!("`waypost resume {run}` resumes the run"),
            )),
            (several, _) => {
                let several: Vec<&Waiting> = several.iter().collect();
                Err(Error::usage(
                    format!("run {run} has several questions: {}", listed(&several, names)),
                    commands_for(run, &several, names),
                ))
            }
        };
    };
    let is_meant = |waiting: &&Waiting| {
        let step = waiting.step.as_str();
        given == step || is_step(&waiting.scope, step, given)
    };
    let begins = |waiting: &&Waiting| !given.is_empty() && waiting.wait.id.starts_with(given);
    // Answered questions are selected only if no open one matches; the engine then returns the error.
    let steps = [open, answered].map(|asked| asked.iter().filter(is_meant).collect::<Vec<_>>());
    let ids = [open, answered].map(|asked| asked.iter().filter(begins).collect::<Vec<_>>());
    let found = steps.into_iter().chain(ids).find(|found| !found.is_empty()).unwrap_or_default();
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let waiting = open.iter().chain(answered).cloned().collect();
            Err(RunError::NoSuchWait { run: run.clone(), id: given.to_owned(), waiting }.into())
        }
        several if several.iter().all(|one| answered.iter().any(|had| had.wait.id == one.wait.id)) => {
            Err(Error::usage(
                format!("every question of run {run} that matches `{given}` has an answer"),
                format!("`waypost resume {run}` resumes the run"),
            ))
        }
        several => Err(Error::usage(
            format!("`{given}` matches several questions of run {run}: {}", listed(several, names)),
            commands_for(run, several, names),
        )),
    }
}

fn listed(questions: &[&Waiting], names: &StepNames) -> String {
    let one = |waiting: &&Waiting| {
        let question = waiting.wait.question.as_ref().and_then(Value::as_str).unwrap_or_default();
        format!("{} ({})", names.called(&waiting.scope, waiting.step.as_str()), shown(question))
    };
    questions.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns the commands to answer these questions, one each.
fn commands_for(run: &RunId, questions: &[&Waiting], names: &StepNames) -> String {
    let one = |waiting: &&Waiting| {
        let step = names.called(&waiting.scope, waiting.step.as_str());
        format!("`waypost answer {run} {} ANSWER`", quoted(&step))
    };
    let mut commands: Vec<String> = questions.iter().take(COMMANDS_MAX).map(one).collect();
    if questions.len() > COMMANDS_MAX {
        commands.push(format!("`waypost show {run}` lists all questions"));
    }
    format!("answer one: {}", commands.join(", "))
}
