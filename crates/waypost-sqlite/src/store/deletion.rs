//! The deletion of runs: a tombstone beside the database, then rows, then files.

use std::io;

use waypost::folder::{begin_deletion, deletions, end_deletion, is_deleting};
use waypost::id::RunId;
use waypost::lock::{Holder, RunLock};
use waypost::record::Durability;
use waypost::store::StoreError;

use super::SqliteStore;
use crate::database::heads::RunRow;
use crate::database::shrink::Shrink;
use crate::write::removal;

impl SqliteStore {
    pub(super) async fn delete_run(&self, run: &RunId) -> Result<(), StoreError> {
        self.writer()?;
        match self.read(|view| RunRow::get(view.connection, run)) {
            Err(StoreError::NotFound { .. } | StoreError::Damaged { .. }) if self.is_left(run)? => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        let kernel_lock = self.lock_to_delete(run)?;
        if !self.is_deleting(run)? {
            self.projector.finish();
            begin_deletion(self.disk.as_ref(), &self.place.folder, run)
                .map_err(|source| self.not_removed(run, source))?;
        }
        self.remove_run(run, kernel_lock).await
    }

    /// Completes the interrupted deletions. A deletion that cannot be completed now is left to the next writer.
    pub(super) async fn end_deletions(&self) -> Result<(), StoreError> {
        for run in self.begun_deletions()? {
            let Ok(kernel_lock) = self.lock_to_delete(&run) else { continue };
            // Another writer may have completed the deletion before this call took the lock.
            if self.is_deleting(&run)? {
                let _ = self.remove_run(&run, kernel_lock).await;
            }
        }
        Ok(())
    }

    fn lock_to_delete(&self, run: &RunId) -> Result<RunLock, StoreError> {
        let holder = Holder::here(self.options.clock.now()).map_err(|source| StoreError::Io {
            action: "read",
            place: "/proc".to_owned(),
            source,
        })?;
        self.take_lock(run, &holder)
    }

    /// Removes the rows, the files and the tombstone of a run whose deletion has begun.
    async fn remove_run(&self, run: &RunId, kernel_lock: RunLock) -> Result<(), StoreError> {
        let id = run.clone();
        self.write(Durability::Sync, move |connection, _| removal::delete(connection, &id)).await?;
        end_deletion(self.disk.as_ref(), &self.place.folder, run, Some(kernel_lock))
            .map_err(|source| self.not_removed(run, source))?;
        self.place.delta_cache.remove_run(run);
        self.shrink(Shrink::All).await;
        Ok(())
    }

    /// Returns whether a run without a row has a folder or a tombstone to delete.
    fn is_left(&self, run: &RunId) -> Result<bool, StoreError> {
        Ok(self.folder_of(run).exists() || self.is_deleting(run)?)
    }

    pub(super) fn refuse_deleting(&self, run: &RunId) -> Result<(), StoreError> {
        if self.is_deleting(run)? { Err(StoreError::no_run(&self.place.name, run)) } else { Ok(()) }
    }

    pub(super) fn begun_deletions(&self) -> Result<Vec<RunId>, StoreError> {
        deletions(self.disk.as_ref(), &self.place.folder).map_err(|source| self.not_read(source))
    }

    pub(super) fn is_deleting(&self, run: &RunId) -> Result<bool, StoreError> {
        is_deleting(self.disk.as_ref(), &self.place.folder, run).map_err(|source| self.not_read(source))
    }

    fn not_read(&self, source: io::Error) -> StoreError {
        StoreError::Io { action: "read", place: self.place.folder.display().to_string(), source }
    }

    fn not_removed(&self, run: &RunId, source: io::Error) -> StoreError {
        StoreError::of_write("remove", self.folder_of(run).display().to_string(), source)
    }
}
