//! Random graphs, crashed at every call to this store, and again.

use waypost_testing::contract::block_on;
use waypost_testing::graphs::{StoreKind, every_crash_ends_the_same};

use crate::contract::Postgres;

#[test]
fn every_random_graph_ends_the_same_wherever_it_crashes() {
    let postgres = StoreKind { fresh: || Box::new(Postgres::fresh_anywhere()), damages: true };

    block_on(every_crash_ends_the_same(&[postgres], 1, "cargo test -p waypost-postgres --test it -- graphs"));
}
