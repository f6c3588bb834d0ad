//! Contract suite, a disk and a store that can die, a clock that can be set, generators, random graphs that crash, a server
//! that says what is wanted, a PostgreSQL of the tests' own.

pub mod certificates;
pub mod clock;
pub mod contract;
pub mod damage;
pub mod differential;
pub mod disk;
pub mod faulty;
pub mod graphs;
pub mod memory;
pub mod picture;
pub mod postgres;
pub mod random;
pub mod records;
pub mod reference;
pub mod seed;
pub mod server;

pub use clock::TestClock;
pub use server::{Reply, Server};
