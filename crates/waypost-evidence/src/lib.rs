//! Kinds of evidence beyond those of `waypost`: what a file contains, a value in a JSON file, rows of an SQLite database,
//! a port, what a command comes to, what a program of the user says, processes, git repositories.
//!
//! It owns the probes and the language of expectations. It knows no workflow files, runs nothing that no claim names, and
//! changes nothing that it looks at. What is not understood is never taken to hold.

use std::sync::Arc;

use waypost::evidence::Verifier;

mod command;
mod environment;
mod exec;
mod expect;
mod file;
mod git;
mod group;
mod json;
mod port;
mod process;
mod sqlite;

pub use command::{COMMAND, CommandProbe};
pub use environment::Environment;
pub use exec::{EXEC, ExecProbe};
pub use expect::{InvalidExpectation, check, fits};
pub use file::FileProbe;
pub use git::{GIT, GitProbe};
pub use json::{JSON_VALUE, JsonProbe, check_path};
pub use port::{NETWORK_REACHABLE, PortProbe, check_port};
pub use process::{PROCESS_EXISTS, ProcessProbe};
pub use sqlite::{DB_ROW, SqliteProbe};

/// Makes a verifier that knows all kinds of this crate, and those of `waypost`. Programs that claims name are given these
/// variables.
#[must_use]
pub fn verifier(environment: Environment) -> Verifier {
    Verifier::new()
        .with_probe(Arc::new(FileProbe::default()))
        .with_probe(Arc::new(JsonProbe))
        .with_probe(Arc::new(PortProbe))
        .with_probe(Arc::new(SqliteProbe))
        .with_probe(Arc::new(CommandProbe::new(environment.clone())))
        .with_probe(Arc::new(ExecProbe::new(environment.clone())))
        .with_probe(Arc::new(GitProbe::new(environment)))
        .with_probe(Arc::new(ProcessProbe::default()))
}
