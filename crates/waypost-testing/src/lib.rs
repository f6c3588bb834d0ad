//! Test support: the contract suite, a simulated disk, a faulty store, a settable clock, generators, random
//! graphs with crashes, a scripted server and a private PostgreSQL server.

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
