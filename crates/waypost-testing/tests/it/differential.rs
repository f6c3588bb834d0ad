//! The random calls of the differential test: they reach what they are to compare.

use waypost::store::Appended;
use waypost_testing::contract::{StoreFixture, block_on};
use waypost_testing::differential::{Tally, find_difference};
use waypost_testing::memory::MemoryFixture;
use waypost_testing::random::history;
use waypost_testing::records::{holder, run_id, run_record, sealed};

#[test]
fn random_calls_are_carried_out_and_refused_often_enough() {
    let mut tally = Tally::new();

    block_on(async {
        for seed in 0..10 {
            for (call, [done, refused]) in find_difference(seed, 150, MemoryFixture::fresh()).await.unwrap() {
                let counts = tally.entry(call).or_default();
                *counts = [counts[0] + done, counts[1] + refused];
            }
        }
    });

    for call in
        ["create", "acquire", "append", "release", "quarantine", "trim", "delete", "append a blob", "load"]
    {
        let [done, refused] = tally[call];
        assert!(done >= 5 && refused >= 3, "{call}: {done} carried out, {refused} refused");
    }
    for call in ["heads", "scan", "runs", "renew", "signal", "read a blob", "crash", "close", "damage"] {
        assert!(tally[call][0] >= 5, "{call}: {} carried out", tally[call][0]);
    }
    assert!(tally["append"][0] >= 300, "{} appends went through", tally["append"][0]);
}

#[test]
fn a_random_history_is_accepted_and_repeated_by_its_seed() {
    let run = run_id("r-1");
    let batches = history(7, &run, 40);
    assert_eq!(history(7, &run, 40), batches);
    assert_ne!(history(8, &run, 40), batches);
    let count: usize = batches.iter().map(|batch| batch.records.len()).sum();

    block_on(async {
        let store = MemoryFixture::fresh().store();
        let mut batches = batches.into_iter();
        let first = batches.next().unwrap();
        let lease = store.create(&sealed(run_record(&run)), first, &holder("first")).await.unwrap();
        for batch in batches {
            assert_eq!(store.append(&[&lease], batch).await.unwrap(), Appended::Now);
        }
        assert_eq!(store.run(&run).await.unwrap().summary.checkpoints, count as u64);
    });
}
