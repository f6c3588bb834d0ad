//! Evidence kinds beyond those of `waypost`: file content, JSON values, database rows, ports, commands,
//! programs of the user, processes, git repositories, HTTP answers and containers.
//!
//! The crate owns the probes and the language of expectations. It does not know workflow files, starts only
//! the programs that a claim names, and never changes the checked subject. An expectation that the crate does
//! not understand never holds.
//!
//! # Claims
//! The builders read like the claim, and [`verifier`] checks every kind.
//!
//! ```
//! use waypost::evidence::Site;
//! use waypost::record::{Claim, Verdict};
//! use waypost_evidence::{Environment, claims, verifier};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! std::fs::write(folder.join("report.json"), r#"{"rows": 12, "state": "done"}"#)?;
//! let pack = claims::pack()
//!     .and(claims::json("report.json", "$.rows", "> 10"))
//!     .and(claims::file("report.json").contains("done").size("> 0"))
//!     .and(Claim::unchanged("report.json"))
//!     .all();
//!
//! let checked = verifier(Environment::inherited()).commit(&pack, &Site::beneath(folder)).await;
//!
//! assert_eq!(checked.verdict(), Verdict::Ok);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/releases.rs` claims an HTTP answer and database rows, and adds its own kind. An engine and a
//! recorder check them.
//!
//! # Features
//! `http`, `container` and `postgres` (in `db_row`) are on by default. A disabled feature removes the probe,
//! and a workflow file with a claim of that kind is refused.
//!
//! # Your own kinds
//! Implement [`Probe`](waypost::evidence::Probe) and add the probe to the verifier:
//!
//! ```
//! use std::sync::Arc;
//! use waypost::engine::Engine;
//! use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
//! use waypost::memory::MemoryStore;
//! use waypost::record::Claim;
//!
//! /// Claims that a tag is published, by its name.
//! #[derive(Debug)]
//! struct TagProbe(Vec<String>);
//!
//! #[async_trait::async_trait]
//! impl Probe for TagProbe {
//!     fn kind(&self) -> ProbeKind {
//!         ProbeKind::new("tag_published", Cost::Asking)
//!     }
//!     async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
//!         match self.0.contains(&claim.subject) {
//!             true => Ok(Finding::ok("published")),
//!             false => Err(Finding::absent("there is no such tag")),
//!         }
//!     }
//! }
//!
//! use waypost_evidence::{Environment, verifier};
//!
//! let verifier = verifier(Environment::inherited()).with_probe(Arc::new(TagProbe(vec!["v1.0".to_owned()])));
//! let engine = Engine::new(Arc::new(MemoryStore::new())).with_verifier(verifier);
//! # drop(engine);
//! ```

use std::sync::Arc;

use waypost::evidence::Verifier;

pub mod claims;

pub use databases::rows::{DB_ROW, RowProbe};
pub use databases::subject::{check_connection, check_query, recorded_connection};
pub use expectations::expect::{check, check_count, fits, literal_text, sign_of};
pub use files::file::FileProbe;
pub use files::json::{JSON_VALUE, JsonProbe, check_path};
#[cfg(feature = "container")]
pub use network::container::ContainerProbe;
#[cfg(feature = "http")]
pub use network::http::HttpProbe;
pub use network::port::{NETWORK_REACHABLE, PortProbe, check_port};
pub use network::subjects::{
    API_RESPONSE, CONTAINER_RUNNING, ENGINES, METHODS, check_container, check_header, check_status,
    check_url, is_private_url,
};
pub use programs::command::{COMMAND, CommandProbe};
pub use programs::environment::Environment;
pub use programs::exec::{EXEC, ExecProbe};
pub use programs::git::{GIT, GitProbe};
pub use programs::process::{PROCESS_EXISTS, ProcessProbe};

/// Returns a verifier with the probes of this crate and of `waypost`. Programs that a claim starts get the
/// variables of `environment`.
#[must_use]
pub fn verifier(environment: Environment) -> Verifier {
    let verifier = Verifier::new();
    #[cfg(feature = "container")]
    let verifier = verifier.with_probe(Arc::new(ContainerProbe::default()));
    #[cfg(feature = "http")]
    let verifier = verifier.with_probe(Arc::new(HttpProbe));
    verifier
        .with_probe(Arc::new(FileProbe::default()))
        .with_probe(Arc::new(JsonProbe))
        .with_probe(Arc::new(PortProbe))
        .with_probe(Arc::new(RowProbe::default()))
        .with_probe(Arc::new(CommandProbe::new(environment.clone())))
        .with_probe(Arc::new(ExecProbe::new(environment.clone())))
        .with_probe(Arc::new(GitProbe::new(environment)))
        .with_probe(Arc::new(ProcessProbe::default()))
}
mod databases;
mod expectations;
mod files;
mod network;
mod programs;

/// Returns why a claim of a kind is refused that this build leaves out.
fn left_out(feature: &str) -> String {
    format!("the program was built without the feature `{feature}` of `waypost-evidence`")
}

#[cfg(all(test, not(any(feature = "container", feature = "http", feature = "postgres"))))]
mod tests {
    use super::{check_connection, check_container, check_url};

    #[test]
    fn a_kind_that_was_left_out_is_refused() {
        for refused in [
            check_url("https://example.org/").unwrap_err(),
            check_container("web").unwrap_err(),
            check_connection("postgres://example.org/a").unwrap_err(),
        ] {
            assert!(refused.contains("without the feature"), "{refused}");
        }
    }
}
