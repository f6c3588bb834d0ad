//! The guarantees of the recorder for a program with its own loop, also after a crash at any point.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use waypost::evidence::Limits;
use waypost::memory::MemoryStore;
use waypost::record::{Claim, Pack};
use waypost::recorder::{Begin, Begun, Checkpoint, Commit, Label, Options, Recorder, run_record};
use waypost::store::{Scan, Store};
use waypost::{CheckpointRef, RunId};
use waypost_testing::records::{run_id, step_id};

mod crash;
mod kill;
mod occasions;
mod random;
mod rollback;
mod steps;
mod verify;

/// A memory store, and a folder for the files of steps.
struct Rig {
    store: Arc<MemoryStore>,
    folder: TempDir,
}

impl Rig {
    fn new() -> Self {
        Self { store: Arc::new(MemoryStore::new()), folder: tempfile::tempdir().unwrap() }
    }

    fn options(&self) -> Options {
        Options::new().with_base(self.folder.path())
    }

    fn shared(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    async fn create(&self) -> Recorder {
        self.create_with(self.options()).await
    }

    async fn create_with(&self, options: Options) -> Recorder {
        Recorder::create(self.shared(), run_record(run(), "loop"), &json!({ "n": 0 }), options).await.unwrap()
    }

    /// Reopens the run after its recorder was closed or died.
    async fn open(&self) -> Recorder {
        Recorder::open(self.shared(), &run(), self.options()).await.unwrap()
    }

    /// Crashes as `kill -9` does, without another call of the store. Then reopens the run.
    async fn crash(&self, recorder: Recorder) -> Recorder {
        drop(recorder);
        self.store.drop_holder(&run());
        self.open().await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    /// Returns the number of records of the run.
    async fn count(&self) -> usize {
        self.store.scan(&Scan::of(&run())).await.unwrap().records.len()
    }

    /// Returns one line per record: `@seq phase step(attempt.iteration.epoch) < basis, about = verdict`.
    async fn history(&self) -> String {
        let mut lines = Vec::new();
        for record in self.store.scan(&Scan::of(&run())).await.unwrap().records {
            let header = record.header();
            let mut line = format!("@{} {}", header.seq, header.phase.name());
            if let Some(step) = &header.step {
                let iteration = header.at.iteration.first().copied().unwrap_or(0);
                line += &format!(" {step}({}.{iteration}.{})", header.at.attempt, header.at.epoch);
            }
            if let Some(basis) = header.basis {
                line += &format!(" < {basis}");
            }
            if let Some(about) = header.about {
                line += &format!(", about {about}");
            }
            if let Some(pack) = &header.evidence {
                line += &format!(" = {:?}", pack.verdict()).to_lowercase();
            }
            if header.idle_since.is_some() {
                line += " resumed";
            }
            lines.push(line);
        }
        lines.join("\n")
    }
}

fn run() -> RunId {
    run_id("r")
}

fn at(seq: u64) -> CheckpointRef {
    CheckpointRef { run: run(), scope: waypost::ScopePath::main(), seq }
}

fn begin(step: &str) -> Begin {
    Begin::new(step_id(step), Label::ToolExecuted)
}

/// Claims that a file exists and stays unchanged from now on.
fn keeps(name: &str) -> Pack {
    Pack::all([Claim::unchanged(name)])
}

/// Runs a whole step: begins it, writes its file, and commits it with `n` in its state.
async fn step(rig: &Rig, recorder: &Recorder, name: &str, n: u64) -> Checkpoint {
    let begun = recorder.begin_step(begin(name)).await.unwrap();
    rig.write(&format!("{name}.txt"), &n.to_string());
    let commit = Commit::with(keeps(&format!("{name}.txt"))).state(&json!({ "n": n }));
    recorder.commit_step(&begun, commit).await.unwrap()
}

async fn state(recorder: &Recorder, at: &CheckpointRef) -> Value {
    recorder.get(at).await.unwrap().unwrap().state().unwrap()
}

/// Returns the cut steps, as `step(attempt)`.
async fn cut(recorder: &Recorder) -> Vec<String> {
    let cut = recorder.cut().await.unwrap();
    cut.iter().map(|begun| format!("{}({})", begun.step(), begun.at().attempt)).collect()
}

macro_rules! expect_lines {
    ($actual:expr, $expect:expr) => {
        let expect: Vec<&str> = $expect.trim().lines().map(str::trim).collect();
        assert_eq!($actual, expect.join("\n"));
    };
}
use expect_lines;

/// Returns limits without pauses, for tests with broken stores.
fn hasty() -> Limits {
    Limits { claim: std::time::Duration::from_secs(2), ..Limits::default() }
}

fn since(begun: &Begun) -> u64 {
    begun.since().seq
}
