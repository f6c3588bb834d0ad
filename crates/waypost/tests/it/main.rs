//! Tests of the library, in one binary.

mod plan;
