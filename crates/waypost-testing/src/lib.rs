//! Test support for stores and engines.
//!
//! One line in the tests of a store checks the contract of [`waypost::store::Store`]:
//! `store_contract!(mine, MyStore::fixture());`, where the expression returns a [`StoreFixture`](contract::StoreFixture).
//!
//! | module | has |
//! |---|---|
//! | [`contract`] | the contract of a store, a test for each clause |
//! | [`differential`], [`memory`] | random calls to two stores; the memory store is the model |
//! | [`disk`], [`faulty`], [`damage`] | a disk that can die, a store that fails at a call, flipped and lost bytes |
//! | [`graphs`], [`reference`](mod@reference) | random graphs with crashes, and the model of a resume |
//! | [`records`], [`random`](mod@random), [`picture`] | valid records, by hand or by seed, and stores as text |
//! | [`clock`], [`server`], [`postgres`] | a settable clock, a scripted HTTP server, a private PostgreSQL |

pub mod clock;
pub mod contract;
pub mod differential;
mod faults;
pub mod graphs;
pub mod memory;
pub mod picture;
pub mod random;
pub mod records;
pub mod reference;
mod servers;

pub use clock::TestClock;

pub use faults::{damage, disk, faulty};
pub use random::seed;
pub use servers::server::{Reply, Server};
pub use servers::{certificates, postgres, server};
