//! Tests of the library, in one binary.

mod engine;
mod plan;
mod toy;
