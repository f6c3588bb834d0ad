//! Settings of a recorder, and the run record for a recorder.

use std::path::PathBuf;
use std::sync::Arc;

use crate::evidence::Verifier;
use crate::id::RunId;
use crate::record::RunRecord;
use crate::schema::Migrations;
use crate::system::clock::{Clock, SystemClock};

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
    /// Creates the default settings: evidence is checked at commit by the probes of this crate; the schema
    /// version is 0.
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

    /// Sets the base folder of evidence files, in place of the run's base folder.
    #[must_use]
    pub fn with_base(self, folder: impl Into<PathBuf>) -> Self {
        Self { base: Some(folder.into()), ..self }
    }

    /// Allows evidence with absolute paths beneath `folder`.
    #[must_use]
    pub fn allowing(mut self, folder: impl Into<PathBuf>) -> Self {
        self.allowed.push(folder.into());
        self
    }

    /// Sets the verifier: probes and limits.
    #[must_use]
    pub fn with_verifier(self, verifier: Verifier) -> Self {
        Self { verifier, ..self }
    }

    /// Sets whether a commit checks evidence; `false` leaves evidence `skipped` until a later verification.
    #[must_use]
    pub fn auto_verify(self, auto_verify: bool) -> Self {
        Self { auto_verify, ..self }
    }

    /// Sets the schema version of the program's states. Older states are read as they are.
    #[must_use]
    pub fn with_schema(self, schema: u32) -> Self {
        Self { schema, migrations: None, ..self }
    }

    /// Sets the migrations, and the schema version after the last one. A rollback migrates older states.
    #[must_use]
    pub fn with_migrations(self, migrations: Migrations) -> Self {
        Self { schema: migrations.current(), migrations: Some(migrations), ..self }
    }

    /// Sets the clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }
}

/// Creates the record of a run for a recorder. Before the run is created, its fields may be set: labels, base
/// folder, durability, retention.
pub fn run_record(run: RunId, workflow: &str) -> RunRecord {
    RunRecord::new(run, workflow, SystemClock.now())
}
