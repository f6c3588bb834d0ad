//! What the file store reads of a run that somebody goes through record by record.

use std::sync::Arc;

use waypost::BranchPath;
use waypost::file::FileStore;
use waypost::store::{Lease, Scan, Store};
use waypost_testing::disk::SimDisk;
use waypost_testing::records::{Links, branch, holder, run_id, run_record, sealed};

const RUN: &str = "long";

async fn make(store: &FileStore, links: &mut Links) -> Lease {
    let first = links.step();
    store.create(&sealed(run_record(links.run())), first, &holder("test")).await.unwrap()
}

fn store(disk: &SimDisk, retention: Option<u32>) -> FileStore {
    FileStore::on(Arc::new(disk.clone()), "store").with_retention(retention)
}

/// Goes through a run as `verify` does; returns how many records it has, and the calls of the disk for each.
async fn walk(disk: &SimDisk, retention: Option<u32>) -> (u64, u64) {
    let store = store(disk, retention);
    let mut scan = Scan::of(&run_id(RUN));
    let mut all = Vec::new();
    loop {
        let found = store.scan(&scan).await.unwrap();
        assert!(found.damaged.is_empty(), "{:?}", found.damaged);
        all.extend(found.records);
        match found.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => break,
        }
    }
    let before = disk.call_count();

    for record in &all {
        let header = record.header();
        let loaded = store.load(&header.run, &header.branch, header.seq).await.unwrap();
        assert_eq!(loaded.digest(), record.digest());
    }

    let count = all.len() as u64;
    (count, (disk.call_count() - before).div_ceil(count))
}

#[tokio::test]
async fn a_record_costs_the_same_however_long_its_run_is() {
    // What happened: `verify` of 4,174 steps took half a minute, and of twice as many four times as long.
    // Why: a record whose file rotation had removed was found by reading all files and the whole journal.
    // What stops it now: it is read from its line, whose place is known.
    let mut costs = Vec::new();
    for steps in [40, 400] {
        let disk = SimDisk::with_folder("store");
        let mut links = Links::of(&run_id(RUN));
        let writer = store(&disk, Some(5));
        let lease = make(&writer, &mut links).await;
        for _ in 1..steps {
            writer.append(&lease, links.step()).await.unwrap();
        }
        writer.close().await.unwrap();

        let (count, cost) = walk(&disk, Some(5)).await;

        assert_eq!(count, steps);
        costs.push(cost);
    }

    assert!(costs[1] <= costs[0].max(8), "calls for each record of a short and a long run: {costs:?}");
}

#[tokio::test]
async fn a_record_costs_the_same_however_many_branches_its_run_has() {
    // What happened: nothing yet; found beside the one above.
    // Why: the number of a commit is near the seq on the main branch only, and the rest was walked for each record.
    // What stops it now: a store remembers in which commit it has seen a record.
    let mut costs = Vec::new();
    for branches in [20, 200] {
        let disk = SimDisk::with_folder("store");
        let mut links = Links::of(&run_id(RUN));
        let writer = store(&disk, None);
        let lease = make(&writer, &mut links).await;
        for number in 0..branches {
            let child: BranchPath = branch(&format!("each:{number}"));
            for _ in 0..2 {
                let record = links.record(&child);
                let batch = links.batch(vec![record]);
                writer.append(&lease, batch).await.unwrap();
            }
        }
        writer.close().await.unwrap();

        let (count, cost) = walk(&disk, None).await;

        assert_eq!(count, 1 + 2 * branches);
        costs.push(cost);
    }

    assert!(costs[1] <= costs[0].max(8), "calls for each record with few and with many branches: {costs:?}");
}
