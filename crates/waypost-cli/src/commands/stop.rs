//! `waypost stop`: sends a durable stop request, and waits until the run has written its last checkpoint.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waypost::RunId;
use waypost::engine::{Engine, RunError};
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

/// The sender of a stop.
const STOP: &str = "waypost stop";
/// The poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) async fn stop(context: &Context, args: StopArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let run =
        find_to_decide(store.as_ref(), args.run.as_deref(), [RunStatus::Running].into(), "live run").await?;
    let mut summary = store.run(&run).await?.summary;
    if matches!(summary.status, RunStatus::Queued | RunStatus::Waiting)
        && is_submitted(store.as_ref(), &run).await?
    {
        if is_interrupted(context, &run).await? {
            return told(context, &run, Stopped::Queued);
        }
        // A worker has claimed the run.
        summary = store.run(&run).await?.summary;
    }
    let Some(holder) = summary.holder.or_else(|| keepalive_holder(store.as_ref(), &run)) else {
        return told(context, &run, Stopped::Not(summary.status));
    };
    let began = Instant::now();
    if holder.is_gone() {
        let note = format!("{holder} is dead: waiting for its supervisor to end the remaining processes.");
        context.output.note(&first_upper(&note));
        let status = freed(store.as_ref(), &run, (began, args.wait)).await?;
        return told(context, &run, Stopped::Not(status));
    }
    let store = context.store(None, Access::Write)?;
    store.signal(&run, &message(context, STOP)).await?;
    context.output.note(&format!("Asked {holder} to stop."));
    let status = freed(store.as_ref(), &run, (began, args.wait)).await?;
    let next = how_to_resume(store.run(&run).await?.record.record(), &context.store_words());
    told(context, &run, Stopped::Running { status, next })
}

async fn is_submitted(store: &dyn Store, run: &RunId) -> Result<bool, Error> {
    Ok(match store.queue() {
        Some(queue) => queue.job(run).await?.is_some(),
        None => false,
    })
}

/// Interrupts a run in the queue; returns whether no worker has claimed the run.
async fn is_interrupted(context: &Context, run: &RunId) -> Result<bool, Error> {
    let store = context.store(None, Access::Write)?;
    let interrupted = Engine::new(Arc::clone(&store)).interrupt(run, STOP).await;
    store.close().await?;
    match interrupted {
        Ok(at) => Ok(at.is_some()),
        Err(RunError::Store(StoreError::Held { .. })) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The effect of a stop.
enum Stopped {
    /// The run ran; `next` says how to resume it.
    Running { status: RunStatus, next: String },
    /// The run was queued, or waited for a time or a signal.
    Queued,
    /// The run was at rest with this status.
    Not(RunStatus),
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
    Signal { id, kind: SignalKind::Stop, scope: None, sender: sender.to_owned(), created_at: now }
}

/// Prints the effect of a stop, and how to continue.
fn told(context: &Context, run: &RunId, stopped: Stopped) -> Result<Exit, Error> {
    let status = match &stopped {
        Stopped::Running { status, .. } | Stopped::Not(status) => *status,
        Stopped::Queued => RunStatus::Interrupted,
    };
    if context.output.json {
        context.output.document(&StoppedView {
            v: VERSION,
            run: run.to_string(),
            status,
            stopped: !matches!(stopped, Stopped::Not(_)),
        })?;
        return Ok(Exit::Done);
    }
    let name = status.name();
    match stopped {
        Stopped::Not(_) => {
            context.output.note(&format!("Nothing to stop, because run {run} is not running ({name})."));
        }
        Stopped::Running { next, .. } => {
            let next = if status.is_resumable() { format!("; {next}") } else { String::new() };
            context.output.done(&format!("Run {run} stopped ({name}){next}"))?;
        }
        Stopped::Queued => context.output.done(&format!(
            "Run {run} stopped ({name}) in the queue: {}",
            not_claimed(run, &context.store_words())
        ))?,
    }
    Ok(Exit::Done)
}

/// Returns how to continue a run that left the queue.
pub(super) fn not_claimed(run: &RunId, words: &str) -> String {
    format!(
        "no worker claims it. To queue it again: waypost resume {run} --queue{words}; to run it here: waypost \
         resume {run}{words}"
    )
}
