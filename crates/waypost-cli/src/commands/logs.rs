//! `waypost logs`: what steps printed, read from the store chunk by chunk, so that its size does not matter.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use waypost::record::{RunStatus, Start};
use waypost::store::{Scan, Store, StoreExt as _};
use waypost::{BranchPath, RunId};
use waypost_workflow::file::Workflow;
use waypost_workflow::program::log_name;

use super::Context;
use super::events::FOLLOW_INTERVAL;
use crate::cli::LogsArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::shown;
use crate::reference::{StepRef, encode};
use crate::view::{LogView, LogsView, VERSION, attempt_name};

pub(crate) async fn logs(context: &Context, mut args: LogsArgs) -> Result<Exit, Error> {
    let (store, run) = context.find(Some(&args.run)).await?;
    encode(store.as_ref(), &run, &mut args.step).await?;
    let mut printer = Printer {
        context,
        store: store.as_ref(),
        run: &run,
        offsets: HashMap::new(),
        last: None,
        torn: false,
        grows: false,
    };
    loop {
        let working = store.run(&run).await?.summary.status == RunStatus::Running;
        let tries = tries(store.as_ref(), &run, &args).await?;
        if let Some(step) = args.step.as_ref().filter(|_| tries.is_empty())
            && (!args.follow || !working)
        {
            return no_tries(store.as_ref(), context, &run, step).await;
        }
        if context.output.json {
            return documents(context, store.as_ref(), &run, &tries).await;
        }
        printer.grows = args.follow && working;
        let printed = printer.print(&tries).await?;
        if !args.follow || !working {
            if !printed && printer.last.is_none() {
                context.output.note(&match &args.step {
                    Some(step) => format!("Nothing to print, because `{}` has printed nothing.", shown(step)),
                    None => "Nothing to print, because no step has printed anything.".to_owned(),
                });
            }
            return Ok(Exit::Done);
        }
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// Says why there is nothing: the step was not started, or there is no such step.
async fn no_tries(store: &dyn Store, context: &Context, run: &RunId, step: &str) -> Result<Exit, Error> {
    let entry = store.run(run).await?;
    let definition = &entry.record.record().definition;
    let workflow = definition.text.as_deref().and_then(|text| Workflow::parse(text, Path::new("")).ok());
    let known = match StepRef::parse(step) {
        StepRef { branch: Some(branch), step } => {
            let of_workflow = |step: &String| workflow.as_ref().is_none_or(|all| all.step(step).is_some());
            store.branches(run).await?.contains(&branch) && step.as_ref().is_none_or(of_workflow)
        }
        StepRef { branch: None, .. } => {
            definition.steps.iter().any(|print| print.id.as_str() == step)
                || workflow.is_some_and(|workflow| workflow.step(step).is_some())
        }
    };
    if !known {
        return Err(Error::not_found(
            format!("step `{step}` in run {run}"),
            format!("see its steps: `waypost show {run}`"),
        ));
    }
    if context.output.json {
        context.output.document(&LogsView { v: VERSION, run: run.to_string(), logs: Vec::new() })?;
    } else {
        context.output.note(&format!("Nothing to print, because step {step} was not started."));
    }
    Ok(Exit::Done)
}

/// One try of a step on a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attempt {
    branch: BranchPath,
    start: Start,
}

impl Attempt {
    fn blob(&self) -> String {
        log_name(&self.branch, &self.start.step, &self.start.at)
    }

    fn name(&self) -> String {
        let name = attempt_name(&self.start);
        if self.branch.is_main() { name } else { format!("{}: {name}", self.branch) }
    }
}

/// Lists the tries whose start is recorded, in order.
async fn tries(store: &dyn Store, run: &RunId, args: &LogsArgs) -> Result<Vec<Attempt>, Error> {
    let named = args.step.as_deref().map(StepRef::parse);
    let mut tries: Vec<Attempt> = Vec::new();
    let mut seen = HashSet::new();
    let mut scan = Scan::of(run);
    loop {
        let page = store.scan(&scan).await?;
        for record in &page.records {
            let header = record.header();
            // A start that was in a record now damaged is known from the end of that try.
            let ended = header.step.clone().filter(|_| header.at.attempt > 0);
            let ended = ended.map(|step| Start { step, at: header.at.clone() });
            for start in ended.iter().chain(&header.started) {
                let attempt = Attempt { branch: header.branch.clone(), start: start.clone() };
                let wanted = named.as_ref().is_none_or(|named| named.is(&header.branch, start.step.as_str()));
                if wanted && seen.insert((header.branch.clone(), start.step.clone(), start.at.clone())) {
                    tries.push(attempt);
                }
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    if args.last {
        let newest: HashMap<_, _> = tries
            .iter()
            .enumerate()
            .map(|(place, t)| ((t.branch.clone(), t.start.step.clone()), place))
            .collect();
        let mut place = 0;
        tries.retain(|attempt| {
            place += 1;
            newest[&(attempt.branch.clone(), attempt.start.step.clone())] == place - 1
        });
    }
    Ok(tries)
}

struct Printer<'a> {
    context: &'a Context,
    store: &'a dyn Store,
    run: &'a RunId,
    /// How much of each log was printed.
    offsets: HashMap<String, u64>,
    /// The log printed last, under whose heading the terminal stands.
    last: Option<String>,
    /// What was printed last did not end its line.
    torn: bool,
    /// More may come of each log.
    grows: bool,
}

impl Printer<'_> {
    /// Prints what is new of these logs, and says whether anything was.
    async fn print(&mut self, tries: &[Attempt]) -> Result<bool, Error> {
        let headed = tries.len() > 1;
        let mut printed = false;
        for attempt in tries {
            let blob = attempt.blob();
            loop {
                let offset = self.offsets.get(&blob).copied().unwrap_or(0);
                let chunk = self.store.blobs().read(self.run, &blob, offset).await?;
                if chunk.is_empty() {
                    break;
                }
                if (headed || self.last.is_some()) && self.last.as_ref() != Some(&blob) {
                    let heading = self.context.output.paint.bold(&format!("==> {} <==", attempt.name()));
                    self.context.output.answer(&format!("{}{heading}", if self.torn { "\n" } else { "" }))?;
                }
                let end = offset + chunk.len() as u64;
                let output = &self.context.output;
                let is_last = !self.grows
                    && output.terminal
                    && self.store.blobs().read(self.run, &blob, end).await?.is_empty();
                let taken = output.log(&chunk, is_last)?;
                self.last = Some(blob.clone());
                self.torn = chunk.last() != Some(&b'\n');
                self.offsets.insert(blob.clone(), offset + taken as u64);
                printed = true;
                if taken == 0 {
                    break;
                }
            }
        }
        Ok(printed)
    }
}

/// Writes the JSON document one log at a time: together they may be larger than memory.
async fn documents(
    context: &Context,
    store: &dyn Store,
    run: &RunId,
    tries: &[Attempt],
) -> Result<Exit, Error> {
    let (output, name) = (&context.output, serde_json::to_string(run).map_err(std::io::Error::from)?);
    output.bytes(format!("{{\"v\":{VERSION},\"run\":{name},\"logs\":[").as_bytes())?;
    for (index, attempt) in tries.iter().enumerate() {
        let view = serde_json::to_string(&read(store, run, attempt).await?).map_err(std::io::Error::from)?;
        output.bytes(format!("{}{view}", if index > 0 { "," } else { "" }).as_bytes())?;
    }
    output.bytes(b"]}\n")?;
    Ok(Exit::Done)
}

async fn read(store: &dyn Store, run: &RunId, attempt: &Attempt) -> Result<LogView, Error> {
    let mut bytes = Vec::new();
    loop {
        let chunk = store.blobs().read(run, &attempt.blob(), bytes.len() as u64).await?;
        if chunk.is_empty() {
            break;
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(LogView {
        branch: attempt.branch.to_string(),
        step: attempt.start.step.to_string(),
        attempt: attempt.start.at.attempt,
        iteration: attempt.start.at.iteration.clone(),
        epoch: attempt.start.at.epoch,
        bytes: bytes.len() as u64,
        text: String::from_utf8_lossy(&bytes).into_owned(),
    })
}
