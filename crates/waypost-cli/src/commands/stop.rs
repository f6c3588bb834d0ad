//! `waypost stop`: leaves a durable message, and waits until the run has written its last checkpoint.

use std::time::{Duration, Instant};

use waypost::RunId;
use waypost::record::RunStatus;
use waypost::store::{RunSummary, Signal, SignalKind};

use super::Context;
use crate::cli::StopArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::place::Access;
use crate::reference::{Default, find};
use crate::time;
use crate::view::{StoppedView, VERSION};

/// How often is looked whether the run has stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) async fn stop(context: &Context, args: StopArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    let summary = store.run(&run).await?.summary;
    if is_free(&summary) {
        // A message that nobody takes in would stop the next resume.
        return told(context, &run, summary.status, false);
    }
    let store = context.store(None, Access::Write)?;
    store.signal(&run, &message(context)).await?;
    context.output.note(&format!("Asked {} to stop.", holder(&summary)));
    let began = Instant::now();
    loop {
        let summary = store.run(&run).await?.summary;
        if is_free(&summary) {
            return told(context, &run, summary.status, true);
        }
        if began.elapsed() >= args.wait {
            return Err(Error::StillRunning { run: run.to_string(), waited: time::lasted(args.wait) });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn message(context: &Context) -> Signal {
    let now = context.now();
    // Unique: one process makes one message.
    let id = format!("stop-{}-{}", now.as_nanosecond(), std::process::id());
    Signal { id, kind: SignalKind::Stop, branch: None, sender: "waypost stop".to_owned(), created_at: now }
}

/// Says whether nobody works on the run any more.
fn is_free(summary: &RunSummary) -> bool {
    summary.holder.as_ref().is_none_or(waypost::lock::Holder::is_gone)
}

fn holder(summary: &RunSummary) -> String {
    summary.holder.as_ref().map_or_else(|| "the run".to_owned(), ToString::to_string)
}

fn told(context: &Context, run: &RunId, status: RunStatus, stopped: bool) -> Result<Exit, Error> {
    if context.output.json {
        context.output.document(&StoppedView { v: VERSION, run: run.to_string(), status, stopped })?;
        return Ok(Exit::Done);
    }
    if !stopped {
        context
            .output
            .note(&format!("Nothing to stop, because run {run} is not running ({}).", status.name()));
        return Ok(Exit::Done);
    }
    let next = if status.is_resumable() {
        format!("; go on with: waypost resume {run}{}", context.store_words())
    } else {
        String::new()
    };
    context.output.answer(&format!("Run {run} has stopped ({}){next}", status.name()))?;
    Ok(Exit::Done)
}
