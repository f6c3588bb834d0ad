//! Files of a newer program in a file store are refused and stay unchanged.

use std::path::PathBuf;
use std::sync::Arc;

use waypost::file::FileStore;
use waypost::store::{Store, StoreError};
use waypost::{Digest, RunId, ScopePath};
use waypost_testing::disk::SimDisk;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

fn store(disk: &SimDisk) -> FileStore {
    FileStore::on(Arc::new(disk.clone()), "store")
}

/// Turns a valid file into a valid file of the next format.
fn make_newer(text: &mut [u8]) {
    const MEMBER: &[u8] = b"\"format\":3";
    let at = text.windows(MEMBER.len()).position(|window| window == MEMBER).unwrap();
    text[at + MEMBER.len() - 1] = b'4';
    text[19..83].fill(b'0');
    let digest = Digest::of(text).to_string();
    text[19..83].copy_from_slice(digest.as_bytes());
}

/// Writes a run with one checkpoint.
async fn write_run(disk: &SimDisk, run: &RunId) {
    let writer = store(disk);
    let first = Links::of(run).step();
    let lease = writer.create(&sealed(run_record(run)), first, &holder("test")).await.unwrap();
    writer.release(lease, None).await.unwrap();
    writer.close().await.unwrap();
}

#[tokio::test]
async fn a_newer_run_record_is_refused_and_not_written_over() {
    // Bug: a `run.json` of a newer format counted as damaged and was replaced by its older copy. Cause: the
    // readable file of the two won. Fix: a newer format is not damage; the run is refused if either file is
    // newer.
    for name in ["run.json", "run.copy.json"] {
        let (disk, run) = (SimDisk::with_folder("store"), run_id("r"));
        write_run(&disk, &run).await;
        let path = PathBuf::from("store/runs/r").join(name);
        disk.settle();
        disk.spoil(&path, |text| make_newer(text)).unwrap();
        let files = disk.files();

        let store = store(&disk);
        let read = store.run(&run).await;
        let taken = store.acquire(&run, &ScopePath::main(), &holder("test")).await;
        let deleted = store.delete(&run).await;

        assert!(matches!(deleted, Err(StoreError::Version { found: 4, .. })), "{name}: {deleted:?}");
        assert!(matches!(taken, Err(StoreError::Version { found: 4, .. })), "{name}: {taken:?}");
        assert!(
            name != "run.json" || matches!(read, Err(StoreError::Version { found: 4, .. })),
            "{name}: {read:?}"
        );
        let run_files = |files: Vec<(PathBuf, Vec<u8>)>| -> Vec<_> {
            files.into_iter().filter(|(path, _)| path.starts_with("store/runs")).collect()
        };
        assert!(run_files(files) == run_files(disk.files()), "{name}: a file changed");
    }
}

// Bug: a run whose newest checkpoint came from a newer program was deleted, with data unknown to this program.
// Cause: a run with any error can be deleted, and a newer format counted as an error. Fix: `delete` checks the
// format first; a damaged run can still be deleted.
#[tokio::test]
async fn a_run_with_newer_records_is_kept_and_a_damaged_one_goes() {
    for is_newer in [true, false] {
        let (disk, run) = (SimDisk::with_folder("store"), run_id("r"));
        write_run(&disk, &run).await;
        disk.settle();
        let path = PathBuf::from("store/runs/r/history/checkpoint_0000000001.json");
        disk.spoil(&path, |text| if is_newer { make_newer(text) } else { text[300] ^= 1 }).unwrap();

        let store = store(&disk);
        let deleted = store.delete(&run).await;

        if is_newer {
            assert!(matches!(deleted, Err(StoreError::Version { found: 4, .. })), "{deleted:?}");
            assert!(disk.files().iter().any(|(name, _)| *name == path), "it is as it was");
        } else {
            deleted.unwrap();
        }
    }
}
