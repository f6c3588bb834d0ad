//! Deletion from a store, also on a full disk: files that can be removed without a write go first.

use std::path::PathBuf;
use std::sync::Arc;

use waypost::RunId;
use waypost::engine::Snapshot;
use waypost::store::{Store, StoreError};
use waypost_sqlite::{clear_files, folder_of};

use super::Context;
use crate::error::Error;
use crate::store_location::{Access, StoreUrl};

/// A store, opened to delete runs.
pub(super) struct Deleting {
    store: Arc<dyn Store>,
    /// The store could only be opened for reading: the disk is full.
    is_full: bool,
}

impl Deleting {
    /// Opens the store; on a full disk, for reading, to select the runs to delete.
    pub(super) fn open(context: &Context) -> Result<Self, Error> {
        match context.store(None, Access::Write) {
            Err(Error::Store(full @ StoreError::Full { .. })) => match context.store(None, Access::Read) {
                Ok(store) if database_of(store.as_ref()).is_some() => Ok(Self { store, is_full: true }),
                _ => Err(full.into()),
            },
            opened => Ok(Self { store: opened?, is_full: false }),
        }
    }

    /// Wraps a store for a dry run.
    pub(super) fn for_inspection(store: Arc<dyn Store>) -> Self {
        Self { store, is_full: false }
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Makes these runs deletable: on a full disk, removes their logs and other files first. Runs that cannot
    /// be deleted keep their files.
    ///
    /// # Errors
    /// The disk is still full.
    pub(super) async fn make_room(
        &mut self,
        context: &Context,
        runs: impl IntoIterator<Item = &RunId>,
    ) -> Result<(), Error> {
        if !self.is_full {
            return Ok(());
        }
        for run in runs {
            let cleared = match refuse_newer(self.store.as_ref(), run).await {
                Ok(()) => clear(self.store.as_ref(), run),
                refused => refused,
            };
            match cleared {
                Ok(()) | Err(StoreError::Held { .. } | StoreError::Version { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A reader on a full disk may hold the database exclusively.
        self.store.close().await?;
        let place = place_of(self.store.as_ref());
        self.store = context.store(None, Access::Write).map_err(|error| match error {
            Error::Store(source @ StoreError::Full { .. }) => Error::NoRoom { place, source },
            error => error,
        })?;
        self.is_full = false;
        Ok(())
    }

    /// Deletes a run; on a full disk, its files first.
    pub(super) async fn delete(&self, run: &RunId) -> Result<(), Error> {
        let store = self.store.as_ref();
        match store.delete(run).await {
            Err(StoreError::Full { .. }) if database_of(store).is_some() => {
                clear(store, run)?;
                store.delete(run).await.map_err(|error| match error {
                    source @ StoreError::Full { .. } => Error::NoRoom { place: place_of(store), source },
                    error => error.into(),
                })
            }
            deleted => Ok(deleted?),
        }
    }
}

/// Removes the files of a run, for a store with files next to its records.
fn clear(store: &dyn Store, run: &RunId) -> Result<(), StoreError> {
    database_of(store).map_or(Ok(()), |database| clear_files(&database, run))
}

/// Returns the database of a store; `None` for a store with records in folders.
fn database_of(store: &dyn Store) -> Option<PathBuf> {
    match StoreUrl::parse(&store.to_string()) {
        Ok(StoreUrl::Sqlite(path)) => Some(path),
        _ => None,
    }
}

fn place_of(store: &dyn Store) -> PathBuf {
    database_of(store).map(|database| folder_of(&database)).unwrap_or_default().join("runs")
}

/// Refuses a run with records of a newer version, because its files and holders are unknown here.
pub(super) async fn refuse_newer(store: &dyn Store, run: &RunId) -> Result<(), StoreError> {
    match Snapshot::read(store, run).await {
        Err(error @ StoreError::Version { .. }) => Err(error),
        _ => Ok(()),
    }
}

/// Asks for confirmation of a deletion on a terminal.
pub(super) fn agreed(context: &Context, names: &[String]) -> Result<bool, Error> {
    if !context.output.can_ask() {
        return Err(Error::usage(
            format!("cannot ask for confirmation to delete {}: there is no terminal", names.join(", ")),
            "`--yes` deletes without confirmation",
        ));
    }
    let what = if names.len() == 1 { "run" } else { "runs" };
    Ok(context
        .output
        .confirm(&format!("Delete {what} {} with all checkpoints and logs?", names.join(", ")))?)
}
