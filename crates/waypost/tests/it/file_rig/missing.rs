//! Files that somebody took away by hand: what they held is found elsewhere, or missed, but never forgotten.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waypost::disk::Disk as _;
use waypost::file::FileStore;
use waypost::record::{Durability, Flaw};
use waypost::store::{Batch, Head, Page, Scan, Scanned, Store, StoreError};
use waypost_testing::disk::{Action, Call, Fault, Refusal, Sampling, SimDisk, first_loss};
use waypost_testing::picture::scan_all;
use waypost_testing::records::{Links, holder, run_record, sealed};

use super::{DIR, HISTORY, Told, creates, disk_after, goes_on, now, run, take_up, there};

const COPY: &str = "disk/store/runs/r-1/checkpoint.json";

fn open(disk: &SimDisk) -> FileStore {
    FileStore::on(Arc::new(disk.clone()), DIR)
}

fn commit_file(number: u64) -> PathBuf {
    Path::new(HISTORY).join(format!("checkpoint_{number:010}.json"))
}

fn sidecar(number: u64) -> PathBuf {
    Path::new(HISTORY).join(format!("checkpoint_{number:010}.json.sha256"))
}

fn take_away(disk: &SimDisk, paths: impl IntoIterator<Item = PathBuf>) {
    paths.into_iter().for_each(|path| disk.remove(&path).unwrap());
    disk.settle();
}

fn head(disk: &SimDisk) -> Result<Head, StoreError> {
    Ok(now(open(disk).heads(&run(), &Page::default()))?.heads.remove(0))
}

fn scanned(disk: &SimDisk) -> Scanned {
    now(scan_all(&open(disk), Scan::of(&run()))).unwrap()
}

/// Says which records are missed, newest first, by what stands above the head.
fn missed(head: &Head) -> Vec<u64> {
    let missing = head.damaged.iter().filter(|damage| damage.flaw == Flaw::Missing);
    missing.map(|damage| damage.seq).collect()
}

// What happened: with the newest files of the history deleted, a run went on from an older one and did finished steps
// again, and `verify` had nothing to say. Why: the highest file that was there decided, and nothing else was looked at.
// What stops it: `checkpoint.json`, the lease and the sidecars are witnesses of newer commits (file/witness.rs).

#[test]
fn the_newest_file_taken_away_is_read_from_its_copy_and_written_again() {
    let (disk, told) = disk_after(&[creates, goes_on]);
    take_away(&disk, [commit_file(3)]);

    let found = head(&disk).unwrap();
    let before = scanned(&disk);
    take_up(&open(&disk), &mut told.clone()).unwrap();
    let after = scanned(&disk);

    assert_eq!((&found.record, found.damaged.len()), (told.acknowledged.last().unwrap(), 0));
    assert_eq!(before.records.len(), 3);
    let [damage] = &before.damaged[..] else { panic!("{:?}", before.damaged) };
    assert_eq!((damage.seq, &damage.flaw), (3, &Flaw::Missing));
    assert_eq!(damage.place, "history/checkpoint_0000000003.json");
    assert_eq!((after.records, after.damaged), (before.records, Vec::new()), "it was healed");
}

/// Puts another file in the place of one, as an editor does: other names of the old file keep it.
fn put(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    disk.remove(path).unwrap();
    let mut file = disk.create_new(path).unwrap();
    waypost::disk::write_whole(file.as_mut(), bytes).unwrap();
    drop(file);
    disk.settle();
}

fn bytes_of(disk: &SimDisk, path: &Path) -> Vec<u8> {
    disk.files().into_iter().find(|(found, _)| found == path).unwrap().1
}

// What happened: a run fell back by one record, whose step ran again, though `checkpoint.json` had the newest one sound.
// Why: that file was only asked where the newest file of the history was gone, not where it was damaged.
// What stops it now: it stands in for both; what is damaged is reported, and moved aside by who takes the run up.
#[test]
fn the_newest_file_damaged_is_read_from_its_copy_where_that_is_another_file() {
    let damages: [fn(&mut Vec<u8>); 3] =
        [|bytes| bytes[300] ^= 1, |bytes| bytes.truncate(200), |bytes| bytes.clear()];
    for damage in damages {
        let (disk, told) = disk_after(&[creates, goes_on]);
        let mut damaged = bytes_of(&disk, &commit_file(3));
        damage(&mut damaged);
        put(&disk, &commit_file(3), &damaged);

        let found = head(&disk).unwrap();
        let before = scanned(&disk);
        take_up(&open(&disk), &mut told.clone()).unwrap();
        let after = scanned(&disk);

        assert_eq!((&found.record, found.damaged.len()), (told.acknowledged.last().unwrap(), 0));
        let [damage] = &before.damaged[..] else { panic!("{:?}", before.damaged) };
        assert_eq!((damage.seq, damage.place.as_str()), (3, "history/checkpoint_0000000003.json"));
        assert_ne!(damage.flaw, Flaw::Missing);
        assert_eq!((after.records, after.damaged), (before.records, Vec::new()), "it was healed");
        let aside = Path::new("disk/store/runs/r-1/quarantine/replaced_0_checkpoint_0000000003.json");
        assert_eq!(bytes_of(&disk, aside), damaged, "nothing is deleted");
    }
}

#[test]
fn what_was_read_from_a_copy_is_not_noted_as_gone() {
    let (disk, told) = disk_after(&[creates, goes_on]);
    put(&disk, &commit_file(3), b"{}");
    let mut told = told.clone();
    take_up(&open(&disk), &mut told).unwrap();
    disk.settle();
    take_away(&disk, [commit_file(3)]);

    let found = head(&disk).unwrap();
    goes_on(Arc::new(disk.clone()), &mut told).unwrap();

    assert_eq!(found.record.header().seq, 3, "its copy is still believed");
    assert_eq!(there(&open(&disk), &told), Ok(()));
}

#[test]
fn newer_files_taken_away_are_missed() {
    let (disk, told) = disk_after(&[creates, goes_on]);
    take_away(&disk, [commit_file(2), commit_file(3), COPY.into()]);

    let found = head(&disk).unwrap();
    let all = scanned(&disk);

    assert_eq!(found.record, told.acknowledged[0]);
    assert_eq!((missed(&found), found.next), (vec![3, 2], 4));
    assert_eq!(all.damaged.iter().map(|damage| damage.seq).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn what_is_missed_and_noted_as_gone_is_not_given_again() {
    let (disk, _) = disk_after(&[creates, goes_on]);
    take_away(&disk, [commit_file(2), commit_file(3), COPY.into()]);

    let (disk, told) = (disk, Told { token: 2, ..Told::default() });
    let (_, _, behind) = take_up(&open(&disk), &mut told.clone()).unwrap();
    let found = head(&disk).unwrap();

    assert_eq!(behind.map(|head| head.next), Some(4));
    assert_eq!((missed(&found), found.next), (vec![], 4), "nobody looks for them any more");
    goes_on(Arc::new(disk.clone()), &mut told.clone()).unwrap();
    assert_eq!(head(&disk).unwrap().next, 6);
    assert_eq!(scanned(&disk).damaged, []);
}

#[test]
fn a_lease_is_a_witness_of_the_commit_that_it_found() {
    let (disk, told) = disk_after(&[creates, goes_on, goes_on]);
    let gone = (3..=5).flat_map(|number| [commit_file(number), sidecar(number)]);
    take_away(&disk, gone.chain([COPY.into()]));

    let found = head(&disk).unwrap();

    assert_eq!((&found.record, missed(&found)), (&told.acknowledged[1], vec![3]));
}

#[test]
fn a_file_taken_away_between_others_is_missed() {
    let (disk, told) = disk_after(&[creates, goes_on]);
    take_away(&disk, [commit_file(2)]);

    let all = scanned(&disk);

    assert_eq!(head(&disk).unwrap().record, told.acknowledged[2]);
    let [damage] = &all.damaged[..] else { panic!("{:?}", all.damaged) };
    assert_eq!((damage.seq, &damage.flaw), (2, &Flaw::Missing));
}

#[test]
fn no_silent_fresh_start() {
    let (disk, _) = disk_after(&[creates, goes_on]);
    take_away(&disk, (1..=3).flat_map(|number| [commit_file(number), sidecar(number)]).chain([COPY.into()]));

    let found = head(&disk);

    assert!(matches!(&found, Err(StoreError::Damaged { older: None, .. })), "{found:?}");
}

#[test]
fn whatever_newest_files_are_taken_away_is_told_unless_a_crash_could_have_done_it() {
    let mut told_of = 0;
    for (count, copy, sidecars) in (1..=4_u64).flat_map(|count| {
        [(true, true), (true, false), (false, true), (false, false)].map(|(a, b)| (count, a, b))
    }) {
        let (disk, told) = disk_after(&[creates, goes_on, goes_on]);
        let gone = (6 - count..=5).flat_map(|number| {
            [Some(commit_file(number)), sidecars.then(|| sidecar(number))].into_iter().flatten()
        });
        take_away(&disk, gone.chain(copy.then(|| COPY.into())));

        let found = head(&disk).unwrap();

        let is_newest = found.record == *told.acknowledged.last().unwrap();
        // Without its copy, the last commit may as well never have been acknowledged; with all sidecars gone too, only
        // the lease, taken at the third commit, still speaks.
        let undecidable = copy && if sidecars { count <= 2 } else { count == 1 };
        assert_eq!(is_newest || !missed(&found).is_empty(), !undecidable, "{count} {copy} {sidecars}");
        assert_eq!(is_newest, !copy);
        told_of += u32::from(!undecidable);
    }
    assert!(told_of > 10);
}

#[test]
fn what_an_async_run_may_lose_is_not_missed() {
    let disk = SimDisk::with_folder("disk");
    let mut record = run_record(&run());
    record.durability = Durability::Async;
    let mut links = Links::of(&run());
    let batches: [Batch; 4] = std::array::from_fn(|_| links.step());
    let store = open(&disk);
    let lease = now(store.create(&sealed(record), batches[0].clone(), &holder("h"))).unwrap();
    for batch in &batches[1..] {
        now(Store::append(&store, &lease, batch.clone())).unwrap();
    }
    disk.settle();
    take_away(&disk, [commit_file(3), commit_file(4)]);

    let copied = head(&disk).unwrap();
    take_away(&disk, [COPY.into()]);
    let found = head(&disk).unwrap();

    assert_eq!((copied.record.header().seq, missed(&copied)), (4, vec![]), "what is there is used");
    assert_eq!((found.record.header().seq, missed(&found)), (2, vec![]));
}

#[test]
fn a_copy_of_what_was_moved_aside_is_not_believed() {
    let (disk, told) = disk_after(&[creates, goes_on]);
    let sound = disk.files().into_iter().find(|(path, _)| *path == commit_file(3)).unwrap().1;
    disk.spoil(&commit_file(3), |bytes| bytes[300] ^= 1).unwrap();
    take_up(&open(&disk), &mut told.clone()).unwrap();
    // Somebody copied the store before, so that the two files are not the same any more.
    disk.remove(Path::new(COPY)).unwrap();
    let mut file = disk.create_new(Path::new(COPY)).unwrap();
    waypost::disk::write_whole(file.as_mut(), &sound).unwrap();
    drop(file);
    disk.settle();

    let found = head(&disk).unwrap();

    assert_eq!((&found.record, found.next), (&told.acknowledged[1], 4));
}

#[test]
fn a_commit_that_only_the_cache_has_is_not_missed_after_a_power_cut() {
    // The sync of the folder fails after the commit has its name: it is seen until the power goes, and no longer.
    let (start, told) = disk_after(&[creates]);
    let whole = start.fork();
    goes_on(Arc::new(whole.clone()), &mut told.clone()).unwrap();
    let is_named = |call: &&Call| call.action == Action::HardLink;
    let calls = whole.calls();
    let named = calls.iter().rposition(|call| is_named(&call)).unwrap();
    let synced = calls[named..].iter().position(|call| call.action == Action::SyncDir).unwrap() + named;
    start.fail(u64::try_from(synced).unwrap(), Fault::Refuse(Refusal::Broken));
    let mut told = told.clone();
    assert!(goes_on(Arc::new(start.clone()), &mut told).is_err());
    start.heal();
    assert_eq!(head(&start).unwrap().record.header().seq, 3, "the cache has it");

    let survey = first_loss(
        &start,
        Sampling { seed: 1, draws: 50 },
        |disk| {
            // The disk may have died meanwhile.
            let _ = take_up(&open(disk), &mut told.clone());
            told.clone()
        },
        |told, disk| there(&open(disk), told),
    );

    let survey = survey.unwrap_or_else(|loss| panic!("{loss}"));
    assert!(survey.states > survey.calls, "{survey:?}");
}
