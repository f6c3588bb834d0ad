//! `waypost stop`: sends a durable stop request, and waits until the run has written its last checkpoint.

use std::fs;
use std::time::{Duration, Instant};

use waypost::RunId;
use waypost::lock::Holder;
use waypost::record::RunStatus;
use waypost::store::{Signal, SignalKind, Store, StoreError};

use super::Context;
use crate::cli::StopArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::time;
use crate::run::definition::how_to_resume;
use crate::run::keepalive::keepalive_holder;
use crate::run::reference::find_to_decide;
use crate::store_location::Access;
use crate::view::{StoppedView, VERSION};

/// The poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) async fn stop(context: &Context, args: StopArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let run =
        find_to_decide(store.as_ref(), args.run.as_deref(), [RunStatus::Running].into(), "live run").await?;
    let summary = store.run(&run).await?.summary;
    let Some(holder) = summary.holder.or_else(|| keepalive_holder(store.as_ref(), &run)) else {
        return told(context, &run, summary.status, None);
    };
    let began = Instant::now();
    if holder.is_gone() {
        let note = format!("{holder} is dead: waiting for its supervisor to end the remaining processes.");
        context.output.note(&first_upper(&note));
        let status = freed(store.as_ref(), &run, (began, args.wait)).await?;
        return told(context, &run, status, None);
    }
    let store = context.store(None, Access::Write)?;
    store.signal(&run, &message(context, "waypost stop")).await?;
    context.output.note(&format!("Asked {holder} to stop."));
    let status = freed(store.as_ref(), &run, (began, args.wait)).await?;
    let next = how_to_resume(store.run(&run).await?.record.record(), &context.store_words());
    told(context, &run, status, Some(&next))
}

/// Waits until the run has neither a holder nor a waiting process; returns its status then.
pub(super) async fn freed(
    store: &dyn Store,
    run: &RunId,
    (began, wait): (Instant, Duration),
) -> Result<RunStatus, Error> {
    loop {
        let summary = store.run(run).await?.summary;
        match summary.holder.or_else(|| keepalive_holder(store, run)) {
            None => return Ok(summary.status),
            Some(holder) if began.elapsed() >= wait && holder.is_gone() => {
                return Err(StoreError::Held { run: run.clone(), holder: Some(holder), until: None }.into());
            }
            Some(holder) if began.elapsed() >= wait => {
                let halted = halted(&holder);
                let (run, waited, holder) = (run.to_string(), time::lasted(wait), Box::new(holder));
                return Err(Error::StillRunning { run, waited, holder, halted });
            }
            Some(_) => tokio::time::sleep(POLL_INTERVAL.min(wait)).await,
        }
    }
}

/// Returns the processes of a run suspended by SIGSTOP, as far as known: the holder and its supervisor.
fn halted(holder: &Holder) -> Vec<u32> {
    let children = |pid: u32| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let is_halted = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before it is in parentheses, and arbitrary.
        status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
    };
    if !holder.is_of_here() {
        return Vec::new();
    }
    let children = children(holder.pid).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    std::iter::once(holder.pid).chain(children).filter(is_halted).collect()
}

pub(super) fn first_upper(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

pub(super) fn message(context: &Context, sender: &str) -> Signal {
    let now = context.now();
    // Unique: each process sends one message.
    let id = format!("stop-{}-{}", now.as_nanosecond(), std::process::id());
    Signal { id, kind: SignalKind::Stop, branch: None, sender: sender.to_owned(), created_at: now }
}

/// Prints that a run stopped, and how to resume it, `next`; or, without `next`, that it was not running.
fn told(context: &Context, run: &RunId, status: RunStatus, next: Option<&str>) -> Result<Exit, Error> {
    if context.output.json {
        context.output.document(&StoppedView {
            v: VERSION,
            run: run.to_string(),
            status,
            stopped: next.is_some(),
        })?;
        return Ok(Exit::Done);
    }
    let Some(next) = next else {
        context
            .output
            .note(&format!("Nothing to stop, because run {run} is not running ({}).", status.name()));
        return Ok(Exit::Done);
    };
    let next = if status.is_resumable() { format!("; {next}") } else { String::new() };
    context.output.done(&format!("Run {run} stopped ({}){next}", status.name()))?;
    Ok(Exit::Done)
}
