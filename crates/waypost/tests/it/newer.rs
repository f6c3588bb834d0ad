//! What a newer program left in a file store: it is refused, and stays as it is.

use std::path::PathBuf;
use std::sync::Arc;

use waypost::file::FileStore;
use waypost::store::{Store, StoreError};
use waypost::{BranchPath, Digest};
use waypost_testing::disk::SimDisk;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

fn store(disk: &SimDisk) -> FileStore {
    FileStore::on(Arc::new(disk.clone()), "store")
}

/// Makes of a file one of the next format, as sound as it was.
fn make_newer(text: &mut [u8]) {
    const MEMBER: &[u8] = b"\"format\":2";
    let at = text.windows(MEMBER.len()).position(|window| window == MEMBER).unwrap();
    text[at + MEMBER.len() - 1] = b'3';
    text[19..83].fill(b'0');
    let digest = Digest::of(text).to_string();
    text[19..83].copy_from_slice(digest.as_bytes());
}

#[tokio::test]
async fn a_newer_run_record_is_refused_and_not_written_over() {
    // What happened: a `run.json` of a newer format counted as damaged, and was replaced by its older copy.
    // Why: of the two files, the one that could be read was taken for the truth.
    // What stops it now: newer is no damage; the run is refused, whichever of the two it is.
    for name in ["run.json", "run.copy.json"] {
        let disk = SimDisk::with_folder("store");
        let run = run_id("r");
        let writer = store(&disk);
        let first = Links::of(&run).step();
        let lease = writer.create(&sealed(run_record(&run)), first, &holder("test")).await.unwrap();
        writer.release(lease, None).await.unwrap();
        writer.close().await.unwrap();
        let path = PathBuf::from("store/runs/r").join(name);
        disk.settle();
        disk.spoil(&path, |text| make_newer(text)).unwrap();
        let files = disk.files();

        let store = store(&disk);
        let read = store.run(&run).await;
        let taken = store.acquire(&run, &BranchPath::main(), &holder("test")).await;
        let deleted = store.delete(&run).await;

        assert!(matches!(deleted, Err(StoreError::Version { found: 3, .. })), "{name}: {deleted:?}");
        assert!(matches!(taken, Err(StoreError::Version { found: 3, .. })), "{name}: {taken:?}");
        assert!(
            name != "run.json" || matches!(read, Err(StoreError::Version { found: 3, .. })),
            "{name}: {read:?}"
        );
        let run_files = |files: Vec<(PathBuf, Vec<u8>)>| -> Vec<_> {
            files.into_iter().filter(|(path, _)| path.starts_with("store/runs")).collect()
        };
        assert!(run_files(files) == run_files(disk.files()), "{name}: a file changed");
    }
}

// What happened: a run whose newest checkpoint a newer program had written was deleted, with all that this program knows
// nothing of. Why: whatever is wrong with a run, it can be deleted, and newer counted as wrong. What stops it now: it is
// asked before, and a damaged one still goes.
#[tokio::test]
async fn a_run_with_a_newer_checkpoint_is_not_deleted_and_a_damaged_one_is() {
    for is_newer in [true, false] {
        let disk = SimDisk::with_folder("store");
        let run = run_id("r");
        let writer = store(&disk);
        let first = Links::of(&run).step();
        let lease = writer.create(&sealed(run_record(&run)), first, &holder("test")).await.unwrap();
        writer.release(lease, None).await.unwrap();
        writer.close().await.unwrap();
        disk.settle();
        let path = PathBuf::from("store/runs/r/history/checkpoint_0000000001.json");
        disk.spoil(&path, |text| if is_newer { make_newer(text) } else { text[300] ^= 1 }).unwrap();

        let store = store(&disk);
        let deleted = store.delete(&run).await;

        if is_newer {
            assert!(matches!(deleted, Err(StoreError::Version { found: 3, .. })), "{deleted:?}");
            assert!(disk.files().iter().any(|(name, _)| *name == path), "it is as it was");
        } else {
            deleted.unwrap();
        }
    }
}
