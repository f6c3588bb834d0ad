//! `waypost logs`: the printed text of steps, read by chunks, for any size.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use waypost::engine::Snapshot;
use waypost::plan::{Action, Decision};
use waypost::record::{Phase, RunStatus, Start, Try};
use waypost::store::{Scan, Store, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};
use waypost_workflow::file::Workflow;
use waypost_workflow::program::log_name;

use super::Context;
use super::events::FOLLOW_INTERVAL;
use crate::cli::LogsArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::{size, time};
use crate::output::{shown, whole};
use crate::run::definition::Chosen;
use crate::run::idle_times::IdleTimes;
use crate::run::reference::{StepRef, encode, no_step};
use crate::view::step_names::StepNames;
use crate::view::{LogPieceView, LogView, LogsView, VERSION};

/// Most missing logs named in a warning.
const LOST_MAX: usize = 5;

pub(crate) async fn logs(context: &Context, mut args: LogsArgs) -> Result<Exit, Error> {
    let (store, run) = context.find(args.run.as_deref()).await?;
    encode(store.as_ref(), &run, &mut args.step).await?;
    let names = crate::run::definition::names(store.as_ref(), &run).await;
    let mut printer = Printer {
        context,
        store: store.as_ref(),
        run: &run,
        names: &names,
        offsets: HashMap::new(),
        last: None,
        torn: false,
        grows: false,
        live: false,
        headed: args.follow && !is_one_step(args.step.as_deref()),
    };
    loop {
        let working = store.run(&run).await?.summary.status == RunStatus::Running;
        let tries = tries(store.as_ref(), &run, &args, context.now()).await?;
        if let Some(step) = args.step.as_ref().filter(|_| tries.is_empty())
            && (!args.follow || !working)
        {
            return no_tries(store.as_ref(), context, &run, step, args.follow).await;
        }
        if context.output.json && !args.follow {
            return documents(context, store.as_ref(), &run, &tries).await;
        }
        (printer.live, printer.grows) = (working, args.follow && working);
        let printed = printer.print(&tries).await?;
        if context.output.json {
            if !working {
                printer.report_lost(&tries).await?;
                return Ok(Exit::Done);
            }
        } else if !printer.grows {
            let lost = report_lost(context, store.as_ref(), &run, &names, &tries).await?;
            if !lost && !printed && printer.last.is_none() {
                report_nothing(context, store.as_ref(), &run, args.step.as_deref()).await?;
            }
            return Ok(Exit::Done);
        }
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// Returns whether a single step of a single scope is requested.
fn is_one_step(named: Option<&str>) -> bool {
    named.map(StepRef::parse).is_some_and(|named| named.step.is_some())
}

/// Prints that the step, or all steps, printed nothing.
async fn report_nothing(
    context: &Context,
    store: &dyn Store,
    run: &RunId,
    step: Option<&str>,
) -> Result<(), Error> {
    let parent = store.run(run).await?.record.record().parent.as_ref().map(|parent| parent.run.clone());
    context.output.note(&match (step, parent) {
        (Some(step), _) => format!("Nothing to print, because `{}` printed nothing.", shown(step)),
        (None, None) => "Nothing to print, because no step printed anything.".to_owned(),
        (None, Some(parent)) => format!(
            "Nothing to print, because no step printed anything since the run started from a checkpoint of \
             {parent}, and logs are not inherited."
        ),
    });
    Ok(())
}

/// Returns the parent run, if this run inherited the finished step from it.
async fn came_from(context: &Context, store: &dyn Store, run: &RunId, step: &str) -> Option<RunId> {
    let snapshot = Snapshot::read(store, run).await.ok()?;
    let parent = snapshot.entry.record.record().parent.as_ref()?.run.clone();
    let chosen = Chosen::in_force(store, &snapshot).ok()?;
    let plan = chosen.plan(store, &snapshot, None, context.now()).await.ok()?;
    let is_done = |decision: &Decision| {
        let is_it = decision.scope.is_main() && decision.step.as_str() == step;
        is_it && decision.action == Action::Reuse
    };
    plan.decisions.iter().any(is_done).then_some(parent)
}

/// Prints why there are no logs: the step was not started, or does not exist.
async fn no_tries(
    store: &dyn Store,
    context: &Context,
    run: &RunId,
    step: &str,
    follow: bool,
) -> Result<Exit, Error> {
    let entry = store.run(run).await?;
    let definition = &entry.record.record().definition;
    let workflow = definition.text.as_deref().and_then(|text| Workflow::parse(text, Path::new("")).ok());
    let known = match StepRef::parse(step) {
        StepRef { scope: Some(scope), step } => {
            let of_workflow = |step: &String| workflow.as_ref().is_none_or(|all| all.step(step).is_some());
            store.scopes(run).await?.contains(&scope) && step.as_ref().is_none_or(of_workflow)
        }
        StepRef { scope: None, .. } => {
            definition.steps.iter().any(|print| print.id.as_str() == step)
                || workflow.is_some_and(|workflow| workflow.step(step).is_some())
        }
    };
    if !known {
        return Err(no_step(store, run, &StepRef::parse(step)).await?);
    }
    if context.output.json {
        if follow {
            return Ok(Exit::Done);
        }
        context.output.document(&LogsView { v: VERSION, run: run.to_string(), logs: Vec::new() })?;
        return Ok(Exit::Done);
    }
    context.output.note(&match came_from(context, store, run, step).await {
        Some(parent) => format!(
            "Nothing to print, because step {step} ran in the parent run {parent}, and logs are not \
             inherited."
        ),
        None => format!("Nothing to print, because step {step} did not start."),
    });
    Ok(Exit::Done)
}

/// Warns of missing logs of steps that printed text; returns whether there are any.
async fn report_lost(
    context: &Context,
    store: &dyn Store,
    run: &RunId,
    names: &StepNames,
    tries: &[Attempt],
) -> Result<bool, Error> {
    let mut lost = Vec::new();
    for attempt in tries.iter().filter(|attempt| attempt.printed > 0) {
        if store.blobs().read(run, &attempt.blob(), 0).await?.is_empty() {
            lost.push(format!("{} ({})", attempt.name(names), size::shown(attempt.printed)));
        }
    }
    if lost.is_empty() {
        return Ok(false);
    }
    let more = lost.len().saturating_sub(LOST_MAX);
    lost.truncate(LOST_MAX);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let why = match &store.run(run).await?.record.record().parent {
        Some(parent) => {
            format!("the run started from a checkpoint of {}, and logs are not inherited", parent.run)
        }
        None => "the log file is missing".to_owned(),
    };
    context.output.warn(&format!("cannot print the log of {}{more}: {why}", lost.join(", ")));
    Ok(true)
}

/// An attempt of a step in a scope.
#[derive(Debug, Clone)]
struct Attempt {
    scope: ScopePath,
    start: Start,
    began: Timestamp,
    /// The time of the record of the end.
    ended: Option<Timestamp>,
    /// The time of work until the end, or until now.
    took: Duration,
    /// Bytes printed, by the record of the end.
    printed: u64,
    /// The number of earlier logs of the same attempt of the same pass.
    rerun: usize,
}

impl Attempt {
    fn blob(&self) -> String {
        log_name(&self.scope, &self.start.step, &self.start.at)
    }

    fn view(&self, bytes: &[u8], missing: bool) -> LogView {
        LogView {
            scope: self.scope.to_string(),
            step: self.start.step.to_string(),
            attempt: self.start.at.attempt,
            iteration: self.start.at.iteration.clone(),
            epoch: self.start.at.epoch,
            bytes: bytes.len() as u64,
            missing,
            text: String::from_utf8_lossy(bytes).into_owned(),
        }
    }

    /// Returns the path of the step, with the attempt, the passes of the loops around it, and its rerun.
    fn name(&self, names: &StepNames) -> String {
        let Try { attempt, iteration, .. } = &self.start.at;
        let mut name = names.called(&self.scope, self.start.step.as_str());
        let _ = write!(name, " (attempt {attempt}");
        if !iteration.is_empty() {
            let passes: Vec<_> = iteration.iter().map(u32::to_string).collect();
            let _ = write!(name, ", iteration {}", passes.join("."));
        }
        if self.rerun > 0 {
            let _ = write!(name, ", rerun {}", self.rerun);
        }
        name.push(')');
        name
    }

    /// Returns the heading of a log: the step as `logs` takes it, the attempt, start, duration and size.
    fn heading(&self, at: &LogsAt<'_>) -> String {
        let lasted = match self.ended {
            Some(_) => format!("took {}", time::lasted(self.took)),
            // The duration and the size grow while the log is followed.
            None if at.follows => {
                return format!(
                    "==> {}, started {}, running <==",
                    self.name(at.names),
                    time::utc(self.began)
                );
            }
            None if at.live => format!("running for {}", time::lasted(self.took)),
            None => "cut".to_owned(),
        };
        let stored = || {
            let path = at.store.folder(at.run)?.join(self.blob());
            std::fs::symlink_metadata(path).ok().map(|file| file.len())
        };
        let bytes = if self.printed > 0 { self.printed } else { stored().unwrap_or_default() };
        let (began, size) = (time::utc(self.began), size::shown(bytes));
        format!("==> {}, started {began}, {lasted}, {size} <==", self.name(at.names))
    }
}

/// The run of the headings.
struct LogsAt<'a> {
    store: &'a dyn Store,
    run: &'a RunId,
    names: &'a StepNames,
    /// The run is under way.
    live: bool,
    /// The logs are followed.
    follows: bool,
}

/// Returns whether STEP names a step, or a step that opens the scope.
fn names(named: &StepRef, scope: &ScopePath, step: &StepId) -> bool {
    let around = std::iter::successors(Some(scope.clone()), ScopePath::parent);
    let mut openers = around.filter_map(|scope| Some((scope.parent()?, scope.opened_by()?.0)));
    named.is(scope, step.as_str()) || openers.any(|(above, opener)| named.is(&above, opener.as_str()))
}

/// Lists the attempts with a recorded start, in the order of starts over all scopes.
async fn tries(
    store: &dyn Store,
    run: &RunId,
    args: &LogsArgs,
    now: Timestamp,
) -> Result<Vec<Attempt>, Error> {
    let mut idle = IdleTimes::default();
    let named = args.step.as_deref().map(StepRef::parse);
    let mut tries: Vec<Attempt> = Vec::new();
    let mut seen: HashMap<_, usize> = HashMap::new();
    let mut scan = Scan::of(run);
    loop {
        let page = store.scan(&scan).await?;
        for record in &page.records {
            let header = record.header();
            idle.take(header);
            // If the record of a start is damaged, the end of the attempt replaces it.
            let ended = header.step.clone().filter(|_| header.at.attempt > 0);
            let ended =
                ended.map(|step| Start { step, at: header.at.clone(), joins: false, needs: Vec::new() });
            let printed = header.phase.ending().and_then(|ending| ending.log.as_ref());
            let printed = printed.map_or(0, |log| log.bytes);
            let end = (!matches!(header.phase, Phase::Started | Phase::Progress { .. }))
                .then_some(header.created_at);
            let ended = ended.iter().map(|start| (start, printed, end));
            for (start, printed, end) in ended.chain(header.started.iter().map(|start| (start, 0, None))) {
                if named.as_ref().is_some_and(|named| !names(named, &header.scope, &start.step)) {
                    continue;
                }
                let of = (header.scope.clone(), start.step.clone(), start.at.clone());
                let place = *seen.entry(of).or_insert(tries.len());
                if place == tries.len() {
                    let (scope, start, began) = (header.scope.clone(), start.clone(), header.created_at);
                    tries.push(Attempt {
                        scope,
                        start,
                        began,
                        ended: None,
                        took: Duration::ZERO,
                        printed: 0,
                        rerun: 0,
                    });
                }
                tries[place].printed = tries[place].printed.max(printed);
                tries[place].ended = end.or(tries[place].ended);
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    tries.iter_mut().for_each(|attempt| {
        attempt.took = idle.work(attempt.began, attempt.ended.unwrap_or(now));
    });
    // Records of one commit share a time; those of outer scopes come first.
    tries.sort_by_key(|attempt| (attempt.began, attempt.scope.depth()));
    let mut reruns = HashMap::new();
    for attempt in &mut tries {
        let Start { step, at, .. } = &attempt.start;
        let of = (attempt.scope.clone(), step.clone(), at.attempt, at.iteration.clone());
        let earlier = reruns.entry(of).or_insert(0);
        attempt.rerun = *earlier;
        *earlier += 1;
    }
    if args.last {
        let newest: HashMap<_, _> = tries
            .iter()
            .enumerate()
            .map(|(place, t)| ((t.scope.clone(), t.start.step.clone()), place))
            .collect();
        let mut place = 0;
        tries.retain(|attempt| {
            place += 1;
            newest[&(attempt.scope.clone(), attempt.start.step.clone())] == place - 1
        });
    }
    Ok(tries)
}

struct Printer<'a> {
    context: &'a Context,
    store: &'a dyn Store,
    run: &'a RunId,
    names: &'a StepNames,
    /// Printed bytes of each log.
    offsets: HashMap<String, u64>,
    /// The last printed log, under the current heading.
    last: Option<String>,
    /// The last printed text did not end its line.
    torn: bool,
    /// The logs may still grow.
    grows: bool,
    /// The run is under way.
    live: bool,
    /// Each log has a heading, as other steps may start while the logs are followed.
    headed: bool,
}

impl Printer<'_> {
    /// Prints new text of these logs; returns whether there was any.
    async fn print(&mut self, tries: &[Attempt]) -> Result<bool, Error> {
        let headed = self.headed || tries.len() > 1;
        let mut printed = false;
        for attempt in tries {
            let blob = attempt.blob();
            loop {
                let offset = self.offsets.get(&blob).copied().unwrap_or(0);
                let chunk = self.store.blobs().read(self.run, &blob, offset).await?;
                if chunk.is_empty() {
                    break;
                }
                if self.context.output.json {
                    let end = offset + chunk.len() as u64;
                    let is_last =
                        !self.grows && self.store.blobs().read(self.run, &blob, end).await?.is_empty();
                    let taken = if is_last { chunk.len() } else { whole(&chunk) };
                    if taken == 0 {
                        break;
                    }
                    self.piece(attempt, offset, &chunk[..taken], false)?;
                    self.offsets.insert(blob.clone(), offset + taken as u64);
                    continue;
                }
                if (headed || self.last.is_some()) && self.last.as_ref() != Some(&blob) {
                    let Self { store, run, names, live, grows: follows, .. } = *self;
                    let heading = attempt.heading(&LogsAt { store, run, names, live, follows });
                    let output = &self.context.output;
                    let heading = output.paint.bold(&output.wrapped(&heading, 0, 4));
                    output.answer(&format!("{}{heading}", if self.torn { "\n" } else { "" }))?;
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

    /// Prints a piece of a log as a line of JSON.
    fn piece(&self, attempt: &Attempt, offset: u64, bytes: &[u8], missing: bool) -> Result<(), Error> {
        let log = attempt.view(bytes, missing);
        Ok(self.context.output.line(&LogPieceView { v: VERSION, run: self.run.to_string(), offset, log })?)
    }

    /// Reports missing logs in the same form.
    async fn report_lost(&self, tries: &[Attempt]) -> Result<(), Error> {
        for attempt in tries.iter().filter(|attempt| attempt.printed > 0) {
            if self.store.blobs().read(self.run, &attempt.blob(), 0).await?.is_empty() {
                self.piece(attempt, 0, &[], true)?;
            }
        }
        Ok(())
    }
}

/// Writes the JSON document log by log: together they may exceed memory.
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
    Ok(attempt.view(&bytes, bytes.is_empty() && attempt.printed > 0))
}
