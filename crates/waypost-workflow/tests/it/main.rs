//! Tests of the workflow crate, one module a topic.

mod expr;
