//! Tests of the library, in one binary.

mod contract;
mod plan;
