//! Tests of the library, in one binary.

mod lock;
mod plan;
