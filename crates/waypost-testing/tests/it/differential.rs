//! The random calls of the differential test: they reach what they are to compare.

use waypost_testing::contract::block_on;
use waypost_testing::differential::{Tally, find_difference};
use waypost_testing::memory::MemoryFixture;

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
