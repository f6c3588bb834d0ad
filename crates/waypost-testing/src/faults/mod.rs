//! Injected faults: a disk that can die, a store that fails at a call, and damaged bytes.

pub mod damage;
pub mod disk;
pub mod faulty;
