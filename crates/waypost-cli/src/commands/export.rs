//! `waypost export`: a checkpoint with all dependencies of a new run, as one self-verifying file.

use std::io;
use std::sync::Arc;

use waypost::CheckpointRef;
use waypost::engine::{Engine, RunError};
use waypost::portable::{ExportError, Portable, SaveError, SaveMode};
use waypost::store::{Signal, SignalKind, Store, StoreError};

use super::from_checkpoint::report_pending;
use super::rollback_fork::{checkpoint, of_main, on_main};
use super::{Context, attest};
use crate::atomic_file;
use crate::cli::ExportArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::size;
use crate::output::shown;
use crate::run::definition::names;
use crate::store_location::Access;
use crate::view::{ExportedView, VERSION};

pub(crate) async fn export(context: &Context, args: ExportArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let reference = checkpoint(store.as_ref(), &args.checkpoint).await?;
    on_main(&names(store.as_ref(), &reference.run).await, &reference, "cannot export", || {
        of_main(&reference)
    })?;
    atomic_file::refuse_taken(&args.file, args.replace)?;
    if args.attest {
        return attest::attest(context, &store, &reference, &args).await;
    }
    let portable = Portable::of(store.as_ref(), &reference).await.map_err(not_exported)?;
    report_pending(context, store.as_ref(), &reference.run).await?;
    report_signals(context, &store, &reference).await?;
    let mode = if args.replace { SaveMode::Replace } else { SaveMode::New };
    portable.save(&args.file, mode).map_err(not_saved)?;
    let bytes = args.file.metadata().map_or(0, |file| file.len());
    let file = args.file.display().to_string();
    if context.output.json {
        let checkpoint = reference.to_string();
        context.output.document(&ExportedView { v: VERSION, checkpoint, file, bytes })?;
        return Ok(Exit::Done);
    }
    let file = shown(&file);
    context.output.done(&format!("Exported {reference} to {file} ({})", size::shown(bytes)))?;
    context.output.note(
        "The file contains params, state and workflow unmasked, and its commands are code: share it only \
         with trusted readers.",
    );
    Ok(Exit::Done)
}

/// Warns of the signals that the checkpoint leaves to later steps: the file has none.
async fn report_signals(
    context: &Context,
    store: &Arc<dyn Store>,
    reference: &CheckpointRef,
) -> Result<(), Error> {
    let signals = Engine::new(Arc::clone(store)).signals_at(reference).await?;
    let name = |signal: &Signal| match &signal.kind {
        SignalKind::Named { name, .. } => Some(format!("`{}`", shown(name))),
        _ => None,
    };
    let names: Vec<String> = signals.iter().filter_map(name).collect();
    if !names.is_empty() {
        let names = names.join(", ");
        context.output.warn(&format!(
            "signals not exported: {names}, still pending at {reference}; send them to the new run with \
             `waypost signal`"
        ));
    }
    Ok(())
}

fn not_exported(error: ExportError) -> Error {
    let hint = match &error {
        ExportError::Store(_) => None,
        ExportError::Absent { .. } => None,
        ExportError::Items { reference, .. } => {
            Some(format!("`waypost checkpoints {}` lists the other checkpoints", reference.run))
        }
        ExportError::Amid { reference, .. } | ExportError::Overtaken { reference } => {
            Some(format!("`waypost export {} FILE` exports the newest checkpoint", reference.run))
        }
        ExportError::TooLarge { .. } => Some("copy the store instead".to_owned()),
    };
    match error {
        ExportError::Store(error) => error.into(),
        ExportError::Absent { reference } => {
            let why = "retention dropped its state".to_owned();
            RunError::NoState { at: reference.to_string(), why }.into()
        }
        error => Error::Usage { message: error.to_string(), hint },
    }
}

fn not_saved(error: SaveError) -> Error {
    match error {
        SaveError::Full { path, source } => {
            StoreError::Full { place: path.display().to_string(), source }.into()
        }
        SaveError::Io { action: "create", path, source } => Error::Create { path, source },
        SaveError::Io { action, path, source } if source.kind() != io::ErrorKind::NotFound => {
            StoreError::Io { action, place: path.display().to_string(), source }.into()
        }
        SaveError::Io { path, source, .. } => Error::Create { path, source },
        SaveError::Exists { path } => atomic_file::exists(&path),
        error @ SaveError::TooLarge { .. } => Error::usage(error.to_string(), "copy the store instead"),
    }
}
