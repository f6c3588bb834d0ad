//! The stored form of records: headers by a dictionary, bodies as full frames or deltas.
//!
//! The room has no connection and no path: bytes in, bytes out. `delta_cache` keeps the bases of deltas in memory.

pub(crate) mod compression;
pub(crate) mod delta;
pub(crate) mod delta_cache;
pub(crate) mod encode;
pub(crate) mod frame;
pub(crate) mod header;
