//! The command `waypost`.

fn main() {}
