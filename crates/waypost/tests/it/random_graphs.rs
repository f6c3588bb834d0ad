//! Random graphs, crashed at every call to the store in memory or to the file store, and again.

use waypost_testing::graphs::{StoreKind, every_crash_ends_the_same};
use waypost_testing::memory::MemoryFixture;

#[tokio::test]
async fn every_random_graph_ends_the_same_wherever_it_crashes() {
    let memory = StoreKind { fresh: || Box::new(MemoryFixture::fresh()), damages: true };
    // A file of a commit is damaged as a whole, and with it what other scopes have in it.
    let file = StoreKind { fresh: || Box::new(crate::file::Memory::fresh()), damages: false };

    every_crash_ends_the_same(&[memory, file], 8, "cargo test -p waypost --test it -- random_graphs").await;
}
