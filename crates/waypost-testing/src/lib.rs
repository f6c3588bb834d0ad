//! Contract suite, a disk that can die, a clock that can be set, generators.

pub mod disk;
pub mod seed;
