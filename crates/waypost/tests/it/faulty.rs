//! A store that dies, fails or loses data on demand, and an engine over it.

use std::path::Path;
use std::sync::Arc;

use waypost::RunId;
use waypost::engine::{Engine, Outcome, RunError};
use waypost::file::FileStore;
use waypost::memory::MemoryStore;
use waypost::store::{Scan, Store, StoreExt as _};
pub(crate) use waypost_testing::faulty::{Fault, FaultyStore};

/// The place of a world's store.
#[derive(Debug)]
enum Home {
    Memory(Arc<MemoryStore>),
    Folder(tempfile::TempDir),
}

/// A store with an engine over it; both can crash and reopen.
#[derive(Debug)]
pub(crate) struct World {
    home: Home,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) engine: Engine,
}

impl World {
    pub(crate) fn memory() -> Self {
        let store = Arc::new(MemoryStore::new());
        Self::over(Home::Memory(store.clone()), store)
    }

    pub(crate) fn folder() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Self::open(folder.path());
        Self::over(Home::Folder(folder), store)
    }

    /// Returns one world of each store kind.
    pub(crate) fn each() -> [Self; 2] {
        [Self::memory(), Self::folder()]
    }

    fn over(home: Home, store: Arc<dyn Store>) -> Self {
        let store = FaultyStore::around(store);
        Self { home, engine: Engine::new(store.clone()), store }
    }

    fn open(folder: &Path) -> Arc<dyn Store> {
        Arc::new(FileStore::open(folder.join("store")).unwrap().with_retention(None))
    }

    /// Reopens as another process.
    pub(crate) fn reopen(&mut self) {
        let inner: Arc<dyn Store> = match &self.home {
            Home::Memory(store) => Arc::new(store.reopen()),
            Home::Folder(folder) => {
                let folder = folder.path().to_owned();
                // Drops the old store first, which releases its locks.
                self.store = FaultyStore::around(Arc::new(MemoryStore::new()));
                self.engine = Engine::new(self.store.clone());
                Self::open(&folder)
            }
        };
        self.store = FaultyStore::around(inner);
        self.engine = Engine::new(self.store.clone());
    }

    /// Returns the memory store below, to damage it.
    pub(crate) fn below(&self) -> &MemoryStore {
        match &self.home {
            Home::Memory(store) => store,
            Home::Folder(_) => panic!("this world is not kept in memory"),
        }
    }

    /// Returns the folder of the store.
    pub(crate) fn path(&self) -> &Path {
        match &self.home {
            Home::Folder(folder) => folder.path(),
            Home::Memory(_) => panic!("this world is not kept in a folder"),
        }
    }

    /// Runs until the planned death. Returns the result of an earlier end.
    pub(crate) async fn until_death<S>(
        &self,
        session: impl Future<Output = Result<Outcome<S>, RunError>>,
    ) -> Option<Result<Outcome<S>, RunError>> {
        tokio::select! {
            biased;
            end = session => Some(end),
            () = self.store.died() => None,
        }
    }

    /// Returns the records of run `r`, one per line: `scope@seq phase step`.
    pub(crate) async fn records(&self) -> Vec<String> {
        let mut scan = Scan::of(&run_id());
        let mut lines = Vec::new();
        loop {
            let page = self.store.scan(&scan).await.unwrap();
            for record in &page.records {
                let header = record.header();
                let step = header.step.as_ref().map(|step| format!(" {step}")).unwrap_or_default();
                let phase = header.phase.name();
                lines.push(format!("{}@{} {phase}{step}", header.scope, header.seq));
            }
            match page.next {
                Some(cursor) => scan.cursor = Some(cursor),
                None => return lines,
            }
        }
    }

    /// Returns the end that the newest record of a scope reports.
    pub(crate) async fn end_of(&self, scope: &str) -> Option<waypost::record::End> {
        let newest = self.store.newest(&run_id(), &scope.parse().unwrap()).await.unwrap();
        newest.header().end
    }
}

pub(crate) fn run_id() -> RunId {
    RunId::new("r").unwrap()
}
