//! Kinds of evidence beyond those of `waypost`: what a file contains, a value in a JSON file, rows of an SQLite database,
//! a port.
//!
//! It owns the probes and the language of expectations. It knows no workflow files, runs nothing, and changes nothing that
//! it looks at. What is not understood is never taken to hold.

use std::sync::Arc;

use waypost::evidence::Verifier;

mod expect;
mod file;
mod json;
mod port;
mod sqlite;

pub use expect::{InvalidExpectation, check, fits};
pub use file::FileProbe;
pub use json::{JSON_VALUE, JsonProbe, check_path};
pub use port::{NETWORK_REACHABLE, PortProbe};
pub use sqlite::{DB_ROW, SqliteProbe};

/// Makes a verifier that knows all kinds of this crate, and those of `waypost`.
pub fn verifier() -> Verifier {
    Verifier::new()
        .with_probe(Arc::new(FileProbe::default()))
        .with_probe(Arc::new(JsonProbe))
        .with_probe(Arc::new(PortProbe))
        .with_probe(Arc::new(SqliteProbe))
}
