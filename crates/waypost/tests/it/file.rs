//! The file store after a crash, damage and a full disk, and its files for people.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use waypost::file::FileStore;
use waypost::store::Store;
use waypost::{RunId, ScopePath};
use waypost_testing::contract::{DamageTarget, StoreFixture};
use waypost_testing::disk::SimDisk;
use waypost_testing::{store_contract, store_differential};

/// A store in a folder of the real disk.
struct Folder {
    dir: tempfile::TempDir,
    store: Option<Arc<FileStore>>,
}

impl Folder {
    fn fresh() -> Self {
        let mut folder = Self { dir: tempfile::tempdir().unwrap(), store: None };
        folder.open();
        folder
    }

    fn open(&mut self) {
        // By the contract, only `trim` drops states.
        self.store =
            Some(Arc::new(FileStore::open(self.dir.path().join("store")).unwrap().with_retention(None)));
    }

    fn run(&self, run: &RunId) -> PathBuf {
        self.dir.path().join("store/runs").join(run.as_str())
    }
}

/// Returns the commit file of a record and the offset of its header in that file.
fn find(run: &Path, scope: &ScopePath, seq: u64) -> (PathBuf, usize) {
    let mark = format!("\"scope\":\"{scope}\",\"seq\":{seq},");
    let files = fs::read_dir(run.join("history")).unwrap().map(|entry| entry.unwrap().path());
    let found =
        files.filter(|path| path.extension().is_some_and(|suffix| suffix == "json")).find_map(|path| {
            let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
            text.find(&mark).map(|at| (path, at))
        });
    found.unwrap_or_else(|| panic!("no file has {scope}@{seq}"))
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Changes a byte of a commit file, and of `checkpoint.json` if that is a separate file with the same commit. The
/// next writer rewrites the first from the second otherwise.
fn flip_commit(run: &Path, path: &Path, at: usize) {
    let (copy, before) = (run.join("checkpoint.json"), fs::read(path).unwrap());
    flip(path, at);
    if fs::read(&copy).is_ok_and(|bytes| bytes == before) {
        flip(&copy, at);
    }
}

#[async_trait]
impl StoreFixture for Folder {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone().unwrap()
    }

    async fn reopen(&mut self) {
        self.store = None;
        self.open();
    }

    async fn damage(&mut self, run: &RunId, place: &DamageTarget) {
        let folder = self.run(run);
        match place {
            DamageTarget::Run => {
                for name in ["run.json", "run.copy.json"] {
                    flip(&folder.join(name), 200);
                }
            }
            DamageTarget::Header(scope, seq) => {
                let (path, at) = find(&folder, scope, *seq);
                flip_commit(&folder, &path, at + 40);
            }
            DamageTarget::Body(scope, seq) => {
                let (path, at) = find(&folder, scope, *seq);
                let text = fs::read_to_string(&path).unwrap();
                let state = text[at..].find("\"state\":").unwrap();
                flip_commit(&folder, &path, at + state + 10);
            }
        }
    }

    async fn quarantined(&mut self, run: &RunId) -> Vec<Vec<u8>> {
        let Ok(entries) = fs::read_dir(self.run(run).join("quarantine")) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let is_record = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            !name.ends_with(".note") && !name.ends_with(".sha256")
        };
        paths.filter(is_record).map(|path| fs::read(path).unwrap()).collect()
    }

    fn folder(&self) -> Option<PathBuf> {
        Some(self.dir.path().to_owned())
    }
}

/// A store on a memory disk: the same code without the wait for a real disk.
pub(crate) struct Memory {
    disk: SimDisk,
    store: Option<Arc<FileStore>>,
}

impl Memory {
    pub(crate) fn fresh() -> Self {
        let disk = SimDisk::with_folder("store");
        let store = Some(Self::open(&disk));
        Self { disk, store }
    }

    fn open(disk: &SimDisk) -> Arc<FileStore> {
        Arc::new(FileStore::on(Arc::new(disk.clone()), "store").with_retention(None))
    }
}

#[async_trait]
impl StoreFixture for Memory {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone().unwrap()
    }

    async fn reopen(&mut self) {
        self.store = Some(Self::open(&self.disk));
    }

    async fn damage(&mut self, run: &RunId, place: &DamageTarget) {
        self.disk.settle();
        let root = Path::new("store/runs").join(run.as_str());
        let (history, copy) = (root.join("history"), root.join("checkpoint.json"));
        let (DamageTarget::Header(scope, seq) | DamageTarget::Body(scope, seq)) = place else {
            panic!("only records are damaged here");
        };
        let mark = format!("\"scope\":\"{scope}\",\"seq\":{seq},");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut files = self.disk.files().into_iter().filter(|(path, _)| path.starts_with(&history));
        let (path, before) = files.find(|(_, bytes)| text(bytes).contains(&mark)).unwrap();
        let at = text(&before).find(&mark).unwrap() + 40;
        self.disk.spoil(&path, |bytes| bytes[at] ^= 1).unwrap();
        // As in a folder: `checkpoint.json` may be a separate file.
        if self.disk.files().contains(&(copy.clone(), before)) {
            self.disk.spoil(&copy, |bytes| bytes[at] ^= 1).unwrap();
        }
    }

    async fn quarantined(&mut self, _: &RunId) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn folder(&self) -> Option<PathBuf> {
        None
    }
}

store_contract!(contract, Folder::fresh());
store_differential!(like_the_model, Memory::fresh());
