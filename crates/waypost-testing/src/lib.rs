//! Contract suite, a disk that can die, a clock that can be set, generators.

pub mod clock;
pub mod contract;
pub mod picture;
pub mod records;

pub use clock::TestClock;
