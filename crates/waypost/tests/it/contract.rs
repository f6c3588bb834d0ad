//! The contract of a store, kept by the stores of this crate.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use waypost::memory::{MemoryStore, Part};
use waypost::store::Store;
use waypost::{BranchPath, RunId};
use waypost_testing::contract::{Place, StoreFixture};
use waypost_testing::store_contract;

struct Memory(Arc<MemoryStore>);

impl Memory {
    fn fresh() -> Self {
        Self(Arc::new(MemoryStore::new()))
    }
}

#[async_trait]
impl StoreFixture for Memory {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    async fn reopen(&mut self) {
        self.0 = Arc::new(self.0.reopen());
    }

    async fn damage(&mut self, run: &RunId, place: &Place) {
        match place {
            Place::Run => self.0.damage(run, &BranchPath::main(), 0, Part::Run),
            Place::Header(branch, seq) => self.0.damage(run, branch, *seq, Part::Header),
            Place::Body(branch, seq) => self.0.damage(run, branch, *seq, Part::Body),
        }
    }

    async fn quarantined(&mut self, run: &RunId) -> Vec<Vec<u8>> {
        self.0.quarantined(run)
    }

    fn folder(&self) -> Option<PathBuf> {
        None
    }
}

store_contract!(memory, Memory::fresh());
