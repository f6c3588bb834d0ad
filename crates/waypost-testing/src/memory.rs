//! Fixture of the memory store, for the contract and as the model of differential tests.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use waypost::memory::{MemoryStore, Part};
use waypost::store::Store;
use waypost::{RunId, ScopePath};

use crate::contract::{DamageTarget, StoreFixture};

/// A memory store that tests can crash and damage.
#[derive(Debug)]
pub struct MemoryFixture(Arc<MemoryStore>);

impl MemoryFixture {
    /// Returns a fixture over an empty store.
    pub fn fresh() -> Self {
        Self(Arc::new(MemoryStore::new()))
    }

    /// Returns the store, for a test that wraps it.
    pub fn memory(&self) -> MemoryStore {
        self.0.as_ref().clone()
    }
}

#[async_trait]
impl StoreFixture for MemoryFixture {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    async fn reopen(&mut self) {
        self.0 = Arc::new(self.0.reopen());
    }

    async fn damage(&mut self, run: &RunId, place: &DamageTarget) {
        match place {
            DamageTarget::Run => self.0.damage(run, &ScopePath::main(), 0, Part::Run),
            DamageTarget::Header(scope, seq) => self.0.damage(run, scope, *seq, Part::Header),
            DamageTarget::Body(scope, seq) => self.0.damage(run, scope, *seq, Part::Body),
        }
    }

    async fn quarantined(&mut self, run: &RunId) -> Vec<Vec<u8>> {
        self.0.quarantined(run)
    }

    fn folder(&self) -> Option<PathBuf> {
        None
    }
}
