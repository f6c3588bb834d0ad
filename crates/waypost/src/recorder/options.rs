//! Settings of a recorder, and the record of a run that one drives.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::evidence::Verifier;
use crate::id::RunId;
use crate::record::{Definition, Durability, FORMAT, RunRecord};
use crate::schema::Migrations;

/// Settings of a recorder.
#[derive(Debug, Clone)]
pub struct Options {
    pub(super) base: Option<PathBuf>,
    pub(super) allowed: Vec<PathBuf>,
    pub(super) verifier: Verifier,
    pub(super) auto_verify: bool,
    pub(super) schema: u32,
    pub(super) migrations: Option<Migrations>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// Makes the usual ones: evidence is checked at commit, by the probes of this crate; states have schema version 0.
    pub fn new() -> Self {
        Self {
            base: None,
            allowed: Vec::new(),
            verifier: Verifier::new(),
            auto_verify: true,
            schema: 0,
            migrations: None,
            clock: Arc::new(SystemClock),
        }
    }

    /// Looks for the files of evidence beneath `folder`, and not in the run's own base folder.
    #[must_use]
    pub fn with_base(self, folder: impl Into<PathBuf>) -> Self {
        Self { base: Some(folder.into()), ..self }
    }

    /// Allows evidence to name absolute paths beneath `folder`.
    #[must_use]
    pub fn allowing(mut self, folder: impl Into<PathBuf>) -> Self {
        self.allowed.push(folder.into());
        self
    }

    /// Checks evidence by these probes and limits.
    #[must_use]
    pub fn with_verifier(self, verifier: Verifier) -> Self {
        Self { verifier, ..self }
    }

    /// Checks evidence at commit, or leaves it `skipped` until somebody verifies.
    #[must_use]
    pub fn auto_verify(self, auto_verify: bool) -> Self {
        Self { auto_verify, ..self }
    }

    /// Sets the version of the schema of the states that the program gives. It reads older ones as they are.
    #[must_use]
    pub fn with_schema(self, schema: u32) -> Self {
        Self { schema, migrations: None, ..self }
    }

    /// Sets the version of the schema to that behind the last migration; older states are migrated when they are gone
    /// back to.
    #[must_use]
    pub fn with_migrations(self, migrations: Migrations) -> Self {
        Self { schema: migrations.current(), migrations: Some(migrations), ..self }
    }

    /// Uses another clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }
}

/// Makes the record of a run that a recorder drives. Its members may be set before the run is created: labels, base
/// folder, durability, retention.
pub fn run_record(run: RunId, workflow: &str) -> RunRecord {
    RunRecord {
        v: FORMAT,
        run,
        workflow: workflow.to_owned(),
        definition: Definition { text: None, path: None, steps: Vec::new(), accepted: BTreeMap::new() },
        path: None,
        base: None,
        params: serde_json::Map::new(),
        env: BTreeMap::new(),
        labels: BTreeMap::new(),
        settings: serde_json::Map::new(),
        config: serde_json::Map::new(),
        durability: Durability::default(),
        retention: None,
        parent: None,
        tool: concat!("waypost ", env!("CARGO_PKG_VERSION")).to_owned(),
        actor: String::new(),
        created_at: SystemClock.now(),
    }
}
