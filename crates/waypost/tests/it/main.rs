//! Tests of the library, in one binary.

mod engine;
mod lock;
mod plan;
mod toy;
