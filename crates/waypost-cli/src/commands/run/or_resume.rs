//! `run --or-resume` without `--id`: finds the run to resume, or creates one, under a lock of the store.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use waypost::RunId;
use waypost::engine::Snapshot;
use waypost::lock::{Holder, LockError, RunLock};
use waypost::store::{PAGE_ITEMS_MAX, RunQuery, Store, StoreError};

use super::Context;
use crate::error::Error;
use crate::run::params::current;
use crate::run::reference::{is_there, unfinished_statuses};
use crate::store_location::relative_to;

/// The name of the lock file: not the name of a run.
const LOCK: &str = ".new.lock";
/// The poll interval for the lock, and for the new run.
const LOOK: Duration = Duration::from_millis(20);
/// How long to wait for the lock: far longer than the creation of a run takes.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The lock of a store for looking for a run and creating one.
#[derive(Debug)]
pub(super) struct CreationLock(Option<RunLock>);

impl CreationLock {
    /// Waits for the lock. A store in the memory of this process needs none.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the lock cannot be taken, or another process holds it for too long.
    pub(super) async fn take(context: &Context, store: &dyn Store) -> Result<Self, Error> {
        let Some(path) = store.home().map(|home| path_in(store, home)) else { return Ok(Self(None)) };
        let failed = |source| StoreError::Io { action: "lock", place: path.display().to_string(), source };
        let began = Instant::now();
        loop {
            let holder = Holder::here(context.now()).map_err(Error::Runtime)?;
            match RunLock::take(&path, &holder, true) {
                Ok(lock) => return Ok(Self(Some(lock))),
                Err(LockError::Held { .. }) if began.elapsed() < WAIT_MAX => tokio::time::sleep(LOOK).await,
                Err(error) => return Err(failed(io::Error::other(error)).into()),
            }
        }
    }

    /// Does the work that creates a run, and releases the lock as soon as the store knows the run.
    pub(super) async fn until_created<T>(
        self,
        store: &dyn Store,
        run: &RunId,
        work: impl Future<Output = T>,
    ) -> T {
        let release = async {
            while !matches!(is_there(store, run).await, Ok(true)) {
                tokio::time::sleep(LOOK).await;
            }
            drop(self);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            done = work => done,
            () = release => unreachable!("the release has no end"),
        }
    }
}

impl Drop for CreationLock {
    fn drop(&mut self) {
        // The note of a process that holds no lock has no effect.
        let _ = self.0.take().map(RunLock::release);
    }
}

/// Returns the path of the lock, next to the locks of runs.
fn path_in(store: &dyn Store, home: &Path) -> PathBuf {
    let run = RunId::new("new").expect("the name is valid");
    let beside = store.folder(&run).and_then(|folder| Some(folder.parent()?.parent()?.join("locks")));
    beside.unwrap_or_else(|| home.join("locks")).join(LOCK)
}

/// Returns the newest run of a workflow file with these params, if it is unfinished.
pub(super) async fn unfinished(
    store: &dyn Store,
    file: &Path,
    params: &Map<String, Value>,
) -> Result<Option<RunId>, Error> {
    let Some(path) = store.home().and_then(|home| relative_to(home, file)) else { return Ok(None) };
    let query = RunQuery { path: Some(path), limit: PAGE_ITEMS_MAX, ..RunQuery::default() };
    for summary in store.runs(&query).await?.runs {
        let Ok(snapshot) = Snapshot::read(store, &summary.run).await else { continue };
        if current(&snapshot) == *params {
            return Ok(unfinished_statuses().contains(&summary.status).then_some(summary.run));
        }
    }
    Ok(None)
}
