//! Random graphs, crashed at every call to this store, and again.

use waypost_testing::contract::block_on;
use waypost_testing::graphs::{StoreKind, every_crash_ends_the_same};

use crate::contract::Sqlite;

#[test]
fn every_random_graph_ends_the_same_wherever_it_crashes() {
    let sqlite = StoreKind { fresh: || Box::new(Sqlite::fresh()), damages: true };

    block_on(every_crash_ends_the_same(&[sqlite], 2, "cargo test -p waypost-sqlite --test it -- graphs"));
}
