//! Kinds of evidence beyond those of `waypost`: what a file contains, a value in a JSON file, rows of an SQLite database,
//! a port, what an API answers, a container.
//!
//! It owns the probes and the language of expectations. It knows no workflow files, runs nothing, and changes nothing that
//! it looks at. What is not understood is never taken to hold.

use std::sync::Arc;

use waypost::evidence::Verifier;

mod address;
mod container;
mod exchange;
mod expect;
mod file;
mod found;
mod http;
mod json;
mod port;
mod sqlite;
mod tls;
mod url;

pub use container::{CONTAINER_RUNNING, ContainerProbe, ENGINES, check_container};
pub use expect::{InvalidExpectation, check, fits};
pub use file::FileProbe;
pub use http::{API_RESPONSE, HttpProbe, METHODS, check_header};
pub use json::{JSON_VALUE, JsonProbe, check_path};
pub use port::{NETWORK_REACHABLE, PortProbe, check_port};
pub use sqlite::{DB_ROW, SqliteProbe};
pub use url::{check_url, is_private_url};

/// Makes a verifier that knows all kinds of this crate, and those of `waypost`.
pub fn verifier() -> Verifier {
    Verifier::new()
        .with_probe(Arc::new(ContainerProbe::default()))
        .with_probe(Arc::new(FileProbe::default()))
        .with_probe(Arc::new(HttpProbe))
        .with_probe(Arc::new(JsonProbe))
        .with_probe(Arc::new(PortProbe))
        .with_probe(Arc::new(SqliteProbe))
}
