//! Helpers of the clauses.

use std::collections::BTreeMap;
use std::path::Path;

use waypost::lock::Holder;
use waypost::record::Record;
use waypost::store::{Batch, Lease, Store};
use waypost::{Digest, RunId, ScopePath};

use crate::records::{Links, holder, run_record, sealed};

/// Asserts that a call returns this error variant.
macro_rules! refused {
    ($call:expr, $expected:pat $(if $guard:expr)?) => {
        match $call {
            Err($expected) $(if $guard)? => {}
            other => panic!("expected {}, got {other:?}", stringify!($expected $(if $guard)?)),
        }
    };
}
pub(super) use refused;

/// Returns the main scope.
pub(super) fn main() -> ScopePath {
    ScopePath::main()
}

/// Returns a second holder, distinct from `first`.
pub(super) fn other() -> Holder {
    holder("other")
}

/// Creates a run with a record in its main scope.
pub(super) async fn create(store: &dyn Store, links: &mut Links) -> Lease {
    let first = links.step();
    create_with(store, links.run(), first).await
}

/// Creates a run with records up to seq `newest` in its main scope.
pub(super) async fn create_with_steps(store: &dyn Store, links: &mut Links, newest: u64) -> Lease {
    let lease = create(store, links).await;
    for _ in 2..=newest {
        step(store, &lease, links).await;
    }
    lease
}

/// Creates a run with this first batch.
pub(super) async fn create_with(store: &dyn Store, run: &RunId, first: Batch) -> Lease {
    store.create(&sealed(run_record(run)), first, &holder("first")).await.unwrap()
}

/// Appends a record to the main scope.
pub(super) async fn step(store: &dyn Store, lease: &Lease, links: &mut Links) -> Record {
    let batch = links.step();
    let record = batch.records[0].clone();
    store.append(&[lease], batch).await.unwrap();
    record
}

/// Returns a copy of a lease as a process has after it slept through the loss: without a kernel lock.
pub(super) fn stale(lease: &Lease) -> Lease {
    Lease::new(lease.run().clone(), lease.token(), None)
}

/// Returns the digest of every file below a folder, except SQLite's shared-memory index of the log.
pub(super) fn files(folder: &Path) -> BTreeMap<String, Digest> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !name.ends_with("-shm") {
                found.insert(name, Digest::of(&std::fs::read(&path).unwrap()));
            }
        }
    }
    found
}
