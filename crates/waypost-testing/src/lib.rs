//! Test support: the contract suite, a simulated disk, a faulty store, a settable clock, generators, random
//! graphs with crashes, a scripted server and a private PostgreSQL server.

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
