//! A small run in a file store on a simulated disk: programs that write the run, and promises that must hold
//! after any disk fault.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::json;
use waypost::disk::Disk;
use waypost::file::FileStore;
use waypost::record::{Flaw, Reason, Record, SealedRun};
use waypost::store::{Head, Lease, Page, Scan, Store, StoreError};
use waypost::{RunId, ScopePath};
use waypost_testing::disk::SimDisk;
use waypost_testing::picture::scan_all;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

mod crash;
mod damage;
mod errors;
mod missing;
mod planted_faults;

/// The sampling rate of the tests: a case out of so many. `WAYPOST_RIG_SHARE=1` tests all cases, in some minutes.
fn share(default: usize) -> usize {
    std::env::var("WAYPOST_RIG_SHARE").map_or(default, |text| text.parse().expect("a share is a number"))
}

/// The folder of the store.
const DIR: &str = "disk/store";
/// The folder of the commit files.
const HISTORY: &str = "disk/store/runs/r-1/history";

/// The retention of the run: the minimum, for early rotations.
const RETENTION: u32 = 2;
/// This many commits in a row cause a rotation (the limits of `file::write`).
const ROTATING_COUNT: usize = 5;

/// Returns the answer of a store that never waits.
fn now<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("a file store does not wait for anything but the disk")
}

fn run() -> RunId {
    run_id("r-1")
}

fn frozen() -> SealedRun {
    let mut record = run_record(&run());
    record.retention = Some(RETENTION);
    sealed(record)
}

/// The acknowledgements and attempts of programs so far.
#[derive(Debug, Clone, Default)]
struct Told {
    /// True if the run was acknowledged.
    created: bool,
    /// The acknowledged records.
    acknowledged: Vec<Record>,
    /// All records of write attempts.
    tried: Vec<Record>,
    /// The newest token.
    token: u64,
}

/// A program: works on a disk until done or until an error of the store, and notes the acknowledgements.
type Program = fn(Arc<dyn Disk>, &mut Told) -> Result<(), StoreError>;

/// Creates the run with its first record.
fn creates(disk: Arc<dyn Disk>, told: &mut Told) -> Result<(), StoreError> {
    let store = FileStore::on(disk, DIR);
    let mut links = Links::of(&run());
    let first = links.step();
    told.tried.extend(first.records.iter().cloned());
    let lease = now(store.create(&frozen(), first.clone(), &holder("creator")))?;
    told.created = true;
    told.acknowledged.extend(first.records);
    told.token = lease.token();
    Ok(())
}

/// Acquires the lease, quarantines damage, and appends two records.
fn goes_on(disk: Arc<dyn Disk>, told: &mut Told) -> Result<(), StoreError> {
    append_after_all(disk, told, 2)
}

/// The same, with enough records for a rotation.
fn rotates(disk: Arc<dyn Disk>, told: &mut Told) -> Result<(), StoreError> {
    append_after_all(disk, told, ROTATING_COUNT)
}

fn append_after_all(disk: Arc<dyn Disk>, told: &mut Told, count: usize) -> Result<(), StoreError> {
    let store = FileStore::on(disk, DIR);
    let (lease, mut links, behind) = take_up(&store, told)?;
    for index in 0..count {
        let behind = behind.as_ref().filter(|_| index == 0);
        append(&store, &lease, &mut links, behind, told)?;
    }
    Ok(())
}

/// Acquires the lease, quarantines damage, and continues after the last sound record. Returns the head if the
/// next record is a repair.
fn take_up(store: &FileStore, told: &mut Told) -> Result<(Lease, Links, Option<Head>), StoreError> {
    let main = ScopePath::main();
    let lease = now(store.acquire(&run(), &main, &holder("successor")))?;
    if lease.token() <= told.token {
        return Err(StoreError::Invalid(format!("token {} is given again", lease.token())));
    }
    told.token = lease.token();
    let head = now(store.heads(&run(), &Page::default()))?.heads.remove(0);
    for damage in &head.damaged {
        now(store.quarantine(&lease, damage))?;
    }
    let mut links = Links::of(&run());
    links.under(&lease);
    links.continue_after(&main, head.next - 1, Some(head.record.digest()));
    let torn = head.next != head.record.header().seq + 1;
    Ok((lease, links, torn.then_some(head)))
}

fn append(
    store: &FileStore,
    lease: &Lease,
    links: &mut Links,
    behind: Option<&Head>,
    told: &mut Told,
) -> Result<(), StoreError> {
    let mut header = links.header(&ScopePath::main());
    if let Some(head) = behind {
        (header.reason, header.basis) = (Reason::Repair, Some(head.record.header().seq));
    }
    let state = json!({ "seq": header.seq, "token": header.token });
    let record = links.seal(header, &state);
    let batch = links.batch(vec![record.clone()]);
    told.tried.push(record.clone());
    now(Store::append(store, &[lease], batch))?;
    told.acknowledged.push(record);
    Ok(())
}

/// Returns a durable disk after these programs.
fn disk_after(programs: &[Program]) -> (SimDisk, Told) {
    let disk = SimDisk::with_folder("disk");
    let mut told = Told::default();
    for program in programs {
        program(Arc::new(disk.clone()), &mut told).unwrap();
    }
    disk.settle();
    (disk, told)
}

/// Checks the promises after a power-on: acknowledged records exist and are sound and equal, no unwritten record
/// exists, and the run can continue.
fn promises(told: &Told, disk: &SimDisk) -> Result<(), String> {
    let say = |what: &str, error: StoreError| format!("{what}: {error}: {error:?}");
    let store = FileStore::on(Arc::new(disk.clone()), DIR);
    match now(store.run(&run())) {
        Ok(entry) if entry.record == frozen() => {}
        Ok(_) => return Err("the run record is another one".to_owned()),
        Err(StoreError::NotFound { .. }) if !told.created => {
            return creates(Arc::new(disk.clone()), &mut Told::default())
                .map_err(|error| say("the run is not there and cannot be made", error));
        }
        Err(error) => return Err(say("the run cannot be read", error)),
    }
    there(&store, told)?;
    let mut told = told.clone();
    let went_on = goes_on(Arc::new(disk.clone()), &mut told);
    went_on.map_err(|error| say("the run cannot go on", error))?;
    there(&FileStore::on(Arc::new(disk.clone()), DIR), &told)
}

/// Checks that all acknowledged records exist, and no unwritten records.
fn there(store: &FileStore, told: &Told) -> Result<(), String> {
    let say = |what: &str, error: StoreError| format!("{what}: {error}: {error:?}");
    let heads = now(store.heads(&run(), &Page::default())).map_err(|error| say("no heads", error))?;
    let head = heads.heads.first().ok_or("the run has no head")?;
    if !told.tried.contains(&head.record) {
        return Err(format!("a head that nobody wrote: {:?}", head.record));
    }
    if let Some(missing) = head.damaged.iter().find(|damage| damage.flaw == Flaw::Missing) {
        return Err(format!("nobody took anything away, and it is missed: {missing:?}"));
    }
    let newest = told.acknowledged.last().map_or(0, |record| record.header().seq);
    if head.record.header().seq < newest {
        return Err(format!("@{newest} was acknowledged, the head is @{}", head.record.header().seq));
    }
    let all = now(scan_all(store, Scan::of(&run()))).map_err(|error| say("no scan", error))?;
    for record in &told.acknowledged {
        let seq = record.header().seq;
        if !all.records.iter().any(|found| found.header_bytes() == record.header_bytes()) {
            return Err(format!("@{seq} was acknowledged and is not listed; damaged: {:?}", all.damaged));
        }
        let found = now(store.load(&run(), &ScopePath::main(), seq));
        let found = found.map_err(|error| say("an acknowledged record cannot be loaded", error))?;
        let may_lack_state = seq + u64::from(RETENTION) <= newest;
        let same_state = found.body_bytes() == record.body_bytes();
        if found.header_bytes() != record.header_bytes() || !(same_state || may_lack_state) {
            return Err(format!("@{seq} is {found:?}, not {record:?}"));
        }
    }
    if let Some(missing) = all.damaged.iter().find(|damage| damage.flaw == Flaw::Missing) {
        return Err(format!("nobody took anything away, and it is missed: {missing:?}"));
    }
    match all.records.iter().find(|found| !told.tried.iter().any(|tried| tried.digest() == found.digest())) {
        Some(record) => Err(format!("a record that nobody wrote: {record:?}")),
        None => Ok(()),
    }
}

/// Returns the paths of the commit files, oldest first.
fn commit_files(disk: &SimDisk) -> Vec<std::path::PathBuf> {
    let files = disk.files().into_iter().map(|(path, _)| path);
    files
        .filter(|path| path.starts_with(HISTORY) && path.extension().is_some_and(|end| end == "json"))
        .collect()
}

/// Returns whether the disk has a file of this name.
fn has(disk: &SimDisk, path: &str) -> bool {
    disk.files().iter().any(|(found, _)| found.starts_with(Path::new(path)))
}
