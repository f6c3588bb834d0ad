//! Deletion of a run on a disk that loses power: after the next writer, the run is complete or absent.

use std::sync::Arc;

use futures_util::FutureExt as _;
use waypost::file::FileStore;
use waypost::store::{Scan, Store, StoreError};
use waypost_testing::disk::{Sampling, SimDisk, first_loss};
use waypost_testing::picture::scan_all;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

const DIR: &str = "store";
const RUN: &str = "r-1";

/// Completes a call of the file store, which waits only for the disk.
fn now<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("the file store does not wait")
}

fn open(disk: &SimDisk) -> FileStore {
    FileStore::on(Arc::new(disk.clone()), DIR)
}

/// Makes a run of three checkpoints and releases its lease.
fn make(disk: &SimDisk, name: &str) -> Result<(), StoreError> {
    let (store, run) = (open(disk), run_id(name));
    let mut links = Links::of(&run);
    let lease = now(store.create(&sealed(run_record(&run)), links.step(), &holder("first")))?;
    for _ in 0..2 {
        now(store.append(&[&lease], links.step()))?;
    }
    now(store.release(lease, None))
}

/// Checks whether the run is complete, then makes another run, after which no file of a deleted run may remain.
fn check(acknowledged: &bool, disk: &SimDisk) -> Result<(), String> {
    let (store, run) = (open(disk), run_id(RUN));
    let is_there = match now(store.run(&run)) {
        Ok(_) if *acknowledged => return Err("it is there after its deletion".to_owned()),
        Ok(_) => true,
        Err(StoreError::NotFound { .. }) => false,
        Err(error) => return Err(format!("run: {error:?}")),
    };
    if is_there {
        let found = now(scan_all(&store, Scan::of(&run))).map_err(|error| format!("scan: {error:?}"))?;
        if (found.records.len(), found.damaged.len()) != (3, 0) {
            return Err(format!("a run that is listed has {} records of 3", found.records.len()));
        }
    }
    make(disk, "q").map_err(|error| format!("the next run: {error:?}"))?;
    let left = disk.files().into_iter().map(|(path, _)| path.display().to_string());
    match left.filter(|path| path.contains(RUN)).find(|_| !is_there) {
        Some(path) => Err(format!("{path} is left")),
        None => Ok(()),
    }
}

#[test]
fn a_deletion_is_whole_whenever_the_power_fails() {
    let disk = SimDisk::with_folder(DIR);
    make(&disk, RUN).unwrap();
    disk.settle();

    let delete = |disk: &SimDisk| now(open(disk).delete(&run_id(RUN))).is_ok();
    let survey = first_loss(&disk, Sampling { seed: 1, draws: 4 }, delete, check);

    let survey = survey.unwrap_or_else(|loss| panic!("{loss}"));
    assert!(survey.states > survey.calls, "{survey:?} shows nothing");
}
