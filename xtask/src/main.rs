//! Repository chores: test set-up, benchmarks, proof rigs, tidy checks.

fn main() {}
