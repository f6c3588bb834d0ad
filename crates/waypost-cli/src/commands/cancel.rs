//! `waypost cancel`: stops a running run, and ends it for good.

use std::sync::Arc;
use std::time::{Duration, Instant};

use waypost::engine::{BeginError, Cancel, Engine, RunError};
use waypost::lock::Holder;
use waypost::record::RunStatus;
use waypost::store::{Lease, Store, StoreError};
use waypost::{RunId, ScopePath};
use waypost_workflow::program::kill_processes_of;

use super::Context;
use super::stop::{first_upper, freed, message};
use crate::cli::CancelArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::run::definition::SCRIPT;
use crate::run::keepalive::keepalive_holder;
use crate::run::reference::{find_unasked, unfinished_statuses};
use crate::session::CANCEL;
use crate::store_location::Access;
use crate::view::{CancelledView, UndoneView, VERSION};

/// Pause before the next stop request to a run taken by another process meanwhile.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

pub(crate) async fn cancel(context: &Context, args: CancelArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let run = find_unasked(store.as_ref(), args.run.as_deref(), unfinished_statuses()).await?;
    let summary = store.run(&run).await?.summary;
    if summary.holder.is_none() {
        match summary.status {
            RunStatus::Cancelled => {
                return told(
                    context,
                    (&run, args.undo_steps),
                    (Cancel::AlreadyCancelled, false),
                    (None, false),
                );
            }
            status @ (RunStatus::Completed | RunStatus::CompletedWithFailures) => {
                return told(
                    context,
                    (&run, args.undo_steps),
                    (Cancel::AlreadyFinished(status), false),
                    (None, false),
                );
            }
            _ => {}
        }
    }
    if args.undo_steps {
        super::undo::refuse(store.as_ref(), &run).await?;
    }
    let store = context.store(None, Access::Write)?;
    let (mut lease, stopped) = stopped_lease(context, &store, &run, args.wait).await?;
    // Kill leftovers of a supervisor killed together with its engine; under this lease, no engine is active.
    if let Err(error) = kill_processes_of(store.as_ref(), &run) {
        store.release(lease, None).await?;
        return Err(RunError::Begin(BeginError(error.into())).into());
    }
    let mut undone = None;
    if args.undo_steps {
        store.release(lease, None).await?;
        undone = Some(super::undo::undo_after(context, &store, &run, 0).await?);
        lease = stopped_lease(context, &store, &run, args.wait).await?.0;
    }
    let engine = Engine::new(Arc::clone(&store));
    let cancelled = engine.cancel_under(lease, CANCEL).await?;
    let is_of_script = store.run(&run).await?.record.record().settings.contains_key(SCRIPT);
    // The messages that the run drops may hold a secret: the close removes their bytes from the database.
    store.close().await?;
    told(context, (&run, args.undo_steps), (cancelled, stopped), (undone, is_of_script))
}

/// Takes the lease of a run, after stopping its holder; returns whether there was a holder.
async fn stopped_lease(
    context: &Context,
    store: &Arc<dyn Store>,
    run: &RunId,
    wait: Duration,
) -> Result<(Lease, bool), Error> {
    let (began, mut stopped) = (Instant::now(), false);
    loop {
        let holder = store.run(run).await?.summary.holder;
        if let Some(holder) = holder.or_else(|| keepalive_holder(store.as_ref(), run)) {
            if holder.is_gone() {
                let note =
                    format!("{holder} is dead: waiting for its supervisor to end the remaining processes.");
                context.output.note(&first_upper(&note));
            } else {
                store.signal(run, &message(context, CANCEL)).await?;
                context.output.note(&format!("Asked {holder} to stop."));
                stopped = true;
            }
            freed(store.as_ref(), run, (began, wait)).await?;
        }
        let here = Holder::here(context.now()).map_err(|source| StoreError::Io {
            action: "read",
            place: "/proc".to_owned(),
            source,
        })?;
        match store.acquire(run, &ScopePath::main(), &here).await {
            Ok(lease) => return Ok((lease, stopped)),
            // The run was resumed in between: stop it again.
            Err(StoreError::Held { .. }) if began.elapsed() < wait => tokio::time::sleep(AGAIN_AFTER).await,
            Err(error) => return Err(error.into()),
        }
    }
}

fn told(
    context: &Context,
    (run, undoes): (&RunId, bool),
    (cancelled, stopped): (Cancel, bool),
    (undone, is_of_script): (Option<Vec<UndoneView>>, bool),
) -> Result<Exit, Error> {
    let scopes = match cancelled {
        Cancel::Done { scopes, .. } => Some(scopes),
        Cancel::AlreadyCancelled if undoes => {
            return Err(Error::usage(
                format!("cannot undo the steps of run {run}: it is cancelled"),
                format!("`waypost events {run}` lists the undone steps"),
            ));
        }
        Cancel::AlreadyCancelled => None,
        Cancel::AlreadyFinished(status) => {
            return Err(Error::usage(
                format!("cannot cancel run {run}: it is {}", status.name()),
                match undoes {
                    true => format!("`waypost rollback {run}@1 --undo-steps` undoes its steps"),
                    false => format!("`waypost delete {run}` deletes the run"),
                },
            ));
        }
    };
    if context.output.json {
        context.output.document(&CancelledView {
            v: VERSION,
            run: run.to_string(),
            status: RunStatus::Cancelled,
            cancelled: scopes.is_some(),
            stopped,
            scopes: scopes.unwrap_or(0),
            undone,
        })?;
        return Ok(Exit::Done);
    }
    let Some(scopes) = scopes else {
        context.output.note(&format!("Nothing to do, because run {run} is already cancelled."));
        return Ok(Exit::Done);
    };
    let others = match scopes {
        0 => String::new(),
        1 => ", with 1 open scope".to_owned(),
        count => format!(", with {count} open scopes"),
    };
    let words = context.store_words();
    let undone = undone.unwrap_or_default();
    let what = match undone.iter().filter(|step| step.undone).count() {
        0 => "the effects of its steps remain".to_owned(),
        count if count == undone.len() => "the effects of its finished steps are undone".to_owned(),
        count => format!("the effects of {count} of {} finished steps are undone", undone.len()),
    };
    let next = match is_of_script {
        true => format!("delete {run}{words}"),
        false => format!("resume {run} --restart{words}"),
    };
    context
        .output
        .done(&format!("Run {run} is cancelled{others}; {what}.\nTo start over: waypost {next}"))?;
    Ok(Exit::Done)
}
