//! `waypost dead-letters`: items that failed for good while the others continued.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use waypost::RunId;
use waypost::engine::{Engine, Snapshot};
use waypost::record::{Header, Record, RunStatus};
use waypost::store::{RunSummary, Store};
use waypost_workflow::program::WorkflowState;

use super::Context;
use crate::cli::DeadLetter;
use crate::cli::{DeadLetters, DropArgs, OneRun, ResumeArgs, RetryArgs, ShowLetters};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::{log_lines, shown};
use crate::run::dead_letters::{self};
use crate::run::dead_letters::{keeps_letters, letters_of};
use crate::run::definition::{names, resume_line, workflow_in_force};
use crate::run::doubt::doubts_of;
use crate::run::environment::person;
use crate::run::questions::refuse_secret;
use crate::run::reference::{Default, find, here_first, only, unfinished_statuses};
use crate::store_location::Access;
use crate::view::doubt::questions;
use crate::view::{DeadLetterView, DeadLettersView, DroppedView, VERSION};

pub(crate) async fn dead_letters(context: &Context, command: DeadLetters) -> Result<Exit, Error> {
    match command {
        DeadLetters::List(args) => list(context, args).await,
        DeadLetters::Show(args) => show(context, args).await,
        DeadLetters::Retry(args) => retry(context, args).await,
        DeadLetters::Drop(args) => drop_them(context, args).await,
    }
}

/// Returns why a run has no dead letters.
async fn why_none(store: &dyn Store, run: &RunId) -> Result<String, Error> {
    let snapshot = Snapshot::read(store, run).await?;
    let workflow = workflow_in_force(&snapshot);
    let workflow = workflow.as_ref();
    let dropped = match dead_letters::dropped(store, run, &|_, each| keeps_letters(workflow, each)).await? {
        0 => None,
        1 => Some("its dead letter was dropped".to_owned()),
        count => Some(format!("its {count} dead letters were dropped")),
    };
    let skipped = match dead_letters::skipped(store, run, workflow).await? {
        0 => None,
        1 => Some("1 failed item was skipped by `on_item_failure`".to_owned()),
        count => Some(format!("{count} failed items were skipped by `on_item_failure`")),
    };
    let fails = |header: &Header| header.phase.failure().is_some_and(|failure| !failure.retried);
    let mut heads = snapshot.heads.iter().map(|head| head.record.header());
    let stopped = heads.any(|header| fails(header) && dead_letters::stops(workflow, &header.scope));
    let stopped = stopped.then(|| {
        format!(
            "a failed item stopped its step by `on_item_failure`; `waypost resume {run}` retries the item"
        )
    });
    let own: Vec<String> = dropped.into_iter().chain(skipped).chain(stopped).collect();
    if !own.is_empty() {
        return Ok(own.join(", and "));
    }
    let none = if snapshot.status() == RunStatus::InDoubt { "a step is in doubt" } else { "no item failed" };
    Ok(failed_before(&snapshot).unwrap_or_else(|| none.to_owned()))
}

/// Returns the newest record of the main scope.
fn main_of(snapshot: &Snapshot) -> Option<&Record> {
    let mut heads = snapshot.heads.iter().map(|head| &head.record).chain(&snapshot.ended);
    heads.find(|record| record.header().scope.is_main())
}

/// Returns how many items had failed in the parent run, if this run has no failed items.
fn failed_before(snapshot: &Snapshot) -> Option<String> {
    let parent = snapshot.entry.record.record().parent.as_ref()?;
    let main = main_of(snapshot);
    let state = main.and_then(|main| serde_json::from_slice::<WorkflowState>(main.state_bytes()?).ok());
    let count = match state.map_or(0, |state| state.items_failed()) {
        // Failures of a nested `foreach` are in the states of scopes.
        0 => main.and_then(|main| main.position().ok()).map_or(0, |position| position.failed_children()),
        count => count,
    };
    let run = &parent.run;
    match count {
        0 => None,
        1 => Some(format!("1 item failed in run {run}, before the fork")),
        count => Some(format!("{count} items failed in run {run}, before the fork")),
    }
}

async fn list(context: &Context, args: OneRun) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    let letters = letters_of(store.as_ref(), &run).await?;
    if context.output.json {
        let items = letters.iter().map(|letter| view(store.as_ref(), &run, letter)).collect();
        context.output.document(&DeadLettersView { v: VERSION, run: run.to_string(), items })?;
        return Ok(Exit::Done);
    }
    if letters.is_empty() {
        let why = why_none(store.as_ref(), &run).await?;
        context.output.answer(&format!("Run {run} has no dead letters: {why}."))?;
        note_doubts(context, store.as_ref(), &run).await?;
        return Ok(Exit::Done);
    }
    let names = names(store.as_ref(), &run).await;
    let mut keys = HashSet::new();
    let is_nested = |letter: &DeadLetter| letter.scope.parent().is_some_and(|above| !above.is_main());
    let scopes = !letters.iter().all(|letter| keys.insert(&letter.key)) || letters.iter().any(is_nested);
    let rows = letters.iter().map(|letter| {
        let failed = dead_letters::place(letter, &names);
        let item = format!("{}/", names.path(&letter.scope));
        let failed = failed.strip_prefix(&item).filter(|_| letter.step.is_some()).unwrap_or_default();
        let error = letter.failure.error.first().map_or("", String::as_str);
        vec![
            shown(&letter.key).into_owned(),
            if scopes { shown(&names.path(&letter.scope)).into_owned() } else { String::new() },
            letter.index.to_string(),
            failed.to_owned(),
            letter.attempts.to_string(),
            shown(error).into_owned(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    context
        .output
        .answer(&context.output.table(&["KEY", "SCOPE", "INDEX", "STEP", "ATTEMPTS", "ERROR"], &rows))?;
    let snapshot = Snapshot::read(store.as_ref(), &run).await?;
    let record = snapshot.entry.record.record();
    let next = match snapshot.definition.text {
        Some(_) => format!("Retry with: waypost dead-letters retry {run}{}", context.store_words()),
        None => format!("{}.", resume_line(record, &context.store_words())),
    };
    context.output.note(&next);
    note_doubts(context, store.as_ref(), &run).await?;
    Ok(Exit::Done)
}

/// Prints the open questions of a run in doubt: an item in doubt is not a dead letter yet.
async fn note_doubts(context: &Context, store: &dyn Store, run: &RunId) -> Result<(), Error> {
    let snapshot = Snapshot::read(store, run).await?;
    if snapshot.status() == RunStatus::InDoubt {
        let doubts = doubts_of(store, &snapshot, context.now()).await?;
        let line = format!("waypost resume {run}{}", context.store_words());
        context.output.note(&questions(&line, &doubts));
    }
    Ok(())
}

async fn show(context: &Context, args: ShowLetters) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    let found = dead_letters::chosen(store.as_ref(), &run, &args.keys).await?;
    if context.output.json {
        let items = found.iter().map(|letter| view(store.as_ref(), &run, letter)).collect();
        context.output.document(&DeadLettersView { v: VERSION, run: run.to_string(), items })?;
        return Ok(Exit::Done);
    }
    if found.is_empty() {
        let why = why_none(store.as_ref(), &run).await?;
        context.output.answer(&format!("Run {run} has no dead letters: {why}."))?;
    }
    let names = names(store.as_ref(), &run).await;
    for letter in found {
        let item = serde_json::to_string(&letter.item).unwrap_or_default();
        let mut text = format!(
            "{}\n  scope     {}\n  item      {}\n  attempts  {}\n",
            shown(&letter.key),
            shown(&names.path(&letter.scope)),
            context.output.wrapped(&shown(&item), 12, 12),
            letter.attempts
        );
        for (place, error) in letter.failure.error.iter().enumerate() {
            let label = if place == 0 { "error" } else { "cause" };
            text.push_str(&format!("  {label:<9} {}\n", context.output.wrapped(&shown(error), 12, 12)));
        }
        if let Some(log) = &letter.failure.ending.log {
            text.push('\n');
            for line in log_lines(&log.tail) {
                text.push_str(&format!("  | {line}\n"));
            }
        }
        context.output.answer(text.trim_end())?;
    }
    Ok(Exit::Done)
}

async fn retry(context: &Context, args: RetryArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let run = find(store.as_ref(), args.run.as_deref(), Default::Newest).await?;
    let found = dead_letters::chosen(store.as_ref(), &run, &args.keys).await?;
    let item = match (&args.item, found.as_slice()) {
        (None, _) => None,
        (Some(_), [letter]) if letter.failed_on != letter.scope => {
            return Err(Error::usage(
                format!("cannot change the item `{}`: it failed in a step of a group", shown(&letter.key)),
                "`waypost dead-letters retry RUN KEY` retries the item unchanged",
            ));
        }
        (Some(text), [_]) => {
            refuse_secret(store.as_ref(), &run, text).await?;
            Some(parsed(text)?)
        }
        (Some(_), many) => {
            return Err(Error::usage(
                format!("`--item` replaces one dead letter, but {} are selected", many.len()),
                "name one key: `waypost dead-letters retry RUN KEY --item JSON`",
            ));
        }
    };
    if found.is_empty() {
        return nothing(context, &run, &why_none(store.as_ref(), &run).await?);
    }
    let resume = ResumeArgs {
        run: Some(run.to_string()),
        keep_definition: true,
        wait_default: Some(args.wait),
        retry: found.into_iter().map(|letter| (letter, item.clone())).collect(),
        ..ResumeArgs::default()
    };
    super::resume::resume_in(context, store, resume).await
}

async fn drop_them(context: &Context, args: DropArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let run = match args.run.as_deref() {
        None | Some("@") => only(with_letters(store.as_ref()).await?, "run with dead letters")?,
        name => find(store.as_ref(), name, Default::Newest).await?,
    };
    if args.keys.is_empty() && !args.all {
        return Err(Error::usage("no dead letter selected".to_owned(), "name keys, or give `--all`"));
    }
    let found = dead_letters::chosen(store.as_ref(), &run, &args.keys).await?;
    if found.is_empty() {
        return nothing(context, &run, &why_none(store.as_ref(), &run).await?);
    }
    let scopes: Vec<_> = found.iter().map(|letter| letter.scope.clone()).collect();
    Engine::new(Arc::clone(&store)).leave_scopes(&run, &scopes, &person()).await?;
    if context.output.json {
        let keys = found.into_iter().map(|letter| letter.key).collect();
        context.output.document(&DroppedView { v: VERSION, run: run.to_string(), dropped: keys })?;
        return Ok(Exit::Done);
    }
    let count = found.len();
    context.output.done(&format!("Dropped {count} of the dead letters of run {run}."))?;
    Ok(Exit::Done)
}

/// Returns the runs with dead letters, newest first.
async fn with_letters(store: &dyn Store) -> Result<Vec<RunId>, Error> {
    let qualifying = unfinished_statuses().into_iter().chain([RunStatus::CompletedWithFailures]).collect();
    let mut found = Vec::new();
    for RunSummary { run, .. } in here_first(store, qualifying).await? {
        if !letters_of(store, &run).await?.is_empty() {
            found.push(run);
        }
    }
    Ok(found)
}

fn nothing(context: &Context, run: &RunId, why: &str) -> Result<Exit, Error> {
    context.output.note(&format!("Nothing to do, because run {run} has no dead letters: {why}."));
    if context.output.json {
        context.output.document(&DroppedView { v: VERSION, run: run.to_string(), dropped: Vec::new() })?;
    }
    Ok(Exit::Done)
}

/// Parses an item given by a person: JSON, else text.
fn parsed(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|error| {
        let help = format!("quote a text: `--item '\"{}\"'`", shown(text));
        Error::usage(format!("the value of `--item` is not JSON: {error}"), help)
    })
}

fn view(store: &dyn Store, run: &RunId, letter: &DeadLetter) -> DeadLetterView {
    let folder = store.folder(run);
    DeadLetterView {
        key: letter.key.clone(),
        scope: letter.scope.to_string(),
        foreach: letter.each.to_string(),
        step: letter.step.as_ref().map(ToString::to_string),
        index: letter.index,
        item: letter.item.clone(),
        error: letter.failure.error.clone(),
        attempts: letter.attempts,
        log: folder.zip(letter.log.as_ref()).map(|(folder, log)| folder.join(log).display().to_string()),
    }
}
