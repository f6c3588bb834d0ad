//! The effective history of a scope, and the damage on it.

use serde_json::json;
use waypost::ScopePath;
use waypost::memory::{MemoryStore, Part};
use waypost::store::{Batch, Store as _, StoreExt as _};
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

/// Walks back from the ninth record of a scope whose seventh record continues from the third, with some records
/// damaged. Returns the valid seqs and the reported damaged ones.
async fn walked(damaged: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let run = run_id("r");
    let main = ScopePath::main();
    let store = MemoryStore::new();
    let mut links = Links::of(&run);
    let first = Batch { release: false, ..links.step() };
    let lease = store.create(&sealed(run_record(&run)), first, &holder("test")).await.unwrap();
    for seq in 2..=9_u64 {
        let mut header = links.header(&main);
        header.basis = (seq == 7).then_some(3);
        let record = links.seal(header, &json!(seq));
        let batch = links.batch(vec![record]);
        store.append(&[&lease], batch).await.unwrap();
    }
    for seq in damaged {
        store.damage(&run, &main, *seq, Part::Header);
    }

    let history = store.effective_history(&run, &main, 9).await.unwrap();

    let sound: Vec<u64> = history.records.iter().map(|record| record.header().seq).collect();
    let walked = store.history(&run, &main, 9).await.unwrap();
    assert_eq!(walked, history.records);
    (sound, history.damaged.iter().map(|damage| damage.seq).collect())
}

// Bug: no view of a run's history reported damage in it. Cause: the walk skipped damage silently. Fix: the walk
// returns the damage on its way, without damage that a rollback removed.
#[tokio::test]
async fn a_history_is_given_with_the_damage_on_it() {
    assert_eq!(walked(&[]).await, (vec![9, 8, 7, 3, 2, 1], vec![]));
    assert_eq!(walked(&[2]).await, (vec![9, 8, 7, 3, 1], vec![2]));
    assert_eq!(walked(&[1, 3]).await, (vec![9, 8, 7, 2], vec![3, 1]));
    assert_eq!(walked(&[5]).await, (vec![9, 8, 7, 3, 2, 1], vec![]), "it does not count any more");
    // The target of a damaged record is unknown, so the walk continues with the record before it.
    assert_eq!(walked(&[5, 7]).await, (vec![9, 8, 6, 4, 3, 2, 1], vec![7, 5]));
}
