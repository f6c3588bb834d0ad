//! The database file: its folder, connections, schema, errors, and the identity of its files.
//!
//! The room knows no records.

pub(crate) mod error;
pub(crate) mod file_identity;
pub(crate) mod folder;
pub(crate) mod heads;
pub(crate) mod open;
pub(crate) mod run_cache;
pub(crate) mod schema;
pub(crate) mod shrink;
pub(crate) mod values;
pub(crate) mod wal_prealloc;
