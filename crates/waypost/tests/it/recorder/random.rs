//! Random programs with crashes, and files that vanish and return, against a model of the guarantees.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use waypost::record::{Claim, Pack, Phase, Verdict};
use waypost::recorder::{Commit, Error};
use waypost_testing::seed::Seeded;

use super::*;

/// Programs, and the calls of each.
const PROGRAMS: u64 = 20;
const CALLS: usize = 50;
/// Steps of a program: few, so that each begins several times.
const STEPS: [&str; 3] = ["a", "b", "c"];

/// A commit in the model.
#[derive(Debug, Clone)]
struct Kept {
    at: CheckpointRef,
    state: u64,
    file: String,
    /// Commits in force after a rollback to this one, itself included.
    effective: Vec<usize>,
}

/// A program and its invariants.
struct Model {
    rig: Rig,
    recorder: Option<Recorder>,
    seeded: Seeded,
    kept: Vec<Kept>,
    /// Indexes in `kept`, oldest first.
    effective: Vec<usize>,
    state: u64,
    open: BTreeMap<String, Begun>,
    cut: BTreeSet<String>,
    made: u64,
    /// A log of the calls, for debugging.
    story: Vec<String>,
}

impl Model {
    async fn begin(seed: u64) -> Self {
        let rig = Rig::new();
        let recorder = Some(rig.create().await);
        Self {
            rig,
            recorder,
            seeded: Seeded::new(seed),
            kept: Vec::new(),
            effective: Vec::new(),
            state: 0,
            open: BTreeMap::new(),
            cut: BTreeSet::new(),
            made: 0,
            story: vec![format!("seed {seed}")],
        }
    }

    fn recorder(&self) -> &Recorder {
        self.recorder.as_ref().unwrap()
    }

    fn there(&self, file: &str) -> bool {
        self.rig.path(file).exists()
    }

    fn pick(&mut self, count: usize) -> usize {
        self.seeded.below(count as u64) as usize
    }

    async fn call(&mut self) {
        match self.pick(16) {
            0..=4 => self.begin_step().await,
            5..=8 => self.commit_step().await,
            9 => self.fail_step().await,
            10 => self.crash().await,
            11 => self.verify().await,
            12 => self.rollback().await,
            13 | 14 => self.search().await,
            _ => self.touch(),
        }
        self.look().await;
    }

    async fn begin_step(&mut self) {
        let step = STEPS[self.pick(STEPS.len())];
        self.story.push(format!("begin {step}"));
        let begun = self.recorder().begin_step(begin(step)).await;
        if self.open.contains_key(step) {
            assert!(matches!(begun, Err(Error::UnderWay { .. })), "{:?}", self.story);
            return;
        }
        self.cut.remove(step);
        self.open.insert(step.to_owned(), begun.unwrap());
    }

    fn any_open(&mut self) -> Option<Begun> {
        let place = self.pick(self.open.len().max(1));
        let step = self.open.keys().nth(place)?.clone();
        self.open.remove(&step)
    }

    async fn commit_step(&mut self) {
        let Some(begun) = self.any_open() else { return };
        self.made += 1;
        let (n, file) = (self.made, format!("f{}", self.made));
        let written = self.pick(5) > 0;
        if written {
            self.rig.write(&file, "x");
        }
        self.story.push(format!("commit {} of {file}, written: {written}", begun.step()));
        let commit = Commit::with(Pack::all([Claim::file(&*file)])).state(&n).external(file.clone());
        let done = self.recorder().commit_step(&begun, commit).await.unwrap();
        assert_eq!(matches!(done.phase(), Phase::Completed(_)), written, "{:?}", self.story);
        self.effective.push(self.kept.len());
        let effective = self.effective.clone();
        self.kept.push(Kept { at: done.reference(), state: n, file, effective });
        if written {
            self.state = n;
        }
    }

    async fn fail_step(&mut self) {
        let Some(begun) = self.any_open() else { return };
        self.story.push(format!("fail {}", begun.step()));
        self.recorder().fail_step(&begun, ["no".to_owned()], Vec::new()).await.unwrap();
    }

    async fn crash(&mut self) {
        self.story.push("crash".to_owned());
        let recorder = self.recorder.take().unwrap();
        self.recorder = Some(self.rig.crash(recorder).await);
        self.cut.extend(std::mem::take(&mut self.open).into_keys());
    }

    async fn verify(&mut self) {
        let place = self.pick(self.kept.len().max(1));
        let Some(kept) = self.kept.get(place).cloned() else { return };
        self.story.push(format!("verify {} with {}", kept.at, kept.file));
        let verified = self.recorder().verify_checkpoint(&kept.at).await.unwrap();
        let expect = if self.there(&kept.file) { Verdict::Ok } else { Verdict::Failed };
        assert_eq!(verified.verdict(), expect, "{:?}", self.story);
    }

    async fn rollback(&mut self) {
        let place = self.pick(self.kept.len().max(1));
        let Some(kept) = self.kept.get(place).cloned() else { return };
        self.story.push(format!("roll back to {} with {}", kept.at, kept.file));
        match self.recorder().rollback_to_checkpoint::<u64>(&kept.at).await {
            Ok(state) => {
                assert!(self.there(&kept.file) && state == kept.state, "{:?}", self.story);
                (self.state, self.effective) = (state, kept.effective);
                self.open.clear();
                self.cut.clear();
            }
            Err(error) => {
                let refused = matches!(error, Error::NotVerified { .. });
                assert!(refused && !self.there(&kept.file), "{error}: {:?}", self.story);
            }
        }
    }

    async fn search(&mut self) {
        self.story.push("search".to_owned());
        let found = self.recorder().last_verified_checkpoint(None).await.unwrap();
        let newest = self.effective.iter().rev().map(|place| &self.kept[*place]);
        let expect = newest.clone().find(|kept| self.there(&kept.file));
        assert!(!found.given_up, "{:?}", self.story);
        let found = found.checkpoint.map(|checkpoint| (checkpoint.reference(), checkpoint.state().unwrap()));
        assert_eq!(found, expect.map(|kept| (kept.at.clone(), kept.state)), "{:?}", self.story);
    }

    /// Removes or restores a file.
    fn touch(&mut self) {
        let place = self.pick(self.kept.len().max(1));
        let Some(kept) = self.kept.get(place) else { return };
        let file = kept.file.clone();
        self.story.push(format!("touch {file}"));
        if self.there(&file) { self.rig.remove(&file) } else { self.rig.write(&file, "x") }
    }

    /// Checks the invariants of every call.
    async fn look(&self) {
        let story = &self.story;
        let recorder = self.recorder();
        let cut = recorder.cut().await.unwrap();
        let cut: BTreeSet<String> = cut.iter().map(|begun| begun.step().to_string()).collect();
        assert_eq!(cut, self.cut, "{story:?}");
        let newest = recorder.newest().await.unwrap();
        let newest = recorder.get(&newest).await.unwrap().unwrap();
        if newest.seq() > 1 && !matches!(newest.phase(), Phase::Failed(_)) {
            let state: Value = newest.state().unwrap();
            let expect = if self.state == 0 { json!({ "n": 0 }) } else { json!(self.state) };
            assert_eq!(state, expect, "{story:?}");
        }
    }

    /// Checks the invariants of the end.
    async fn look_back(&self) {
        for kept in &self.kept {
            let record = self.recorder().get(&kept.at).await.unwrap().unwrap();
            assert_eq!(record.external(), Some(&*kept.file), "what was told is there: {:?}", self.story);
        }
        let stats = self.recorder().stats().await.unwrap();
        assert_eq!((stats.checkpoints, stats.damaged), (self.rig.count().await as u64, 0));
    }
}

#[tokio::test]
async fn random_programs_keep_what_they_were_promised() {
    for seed in 0..PROGRAMS {
        let mut model = Model::begin(seed).await;
        for _ in 0..CALLS {
            model.call().await;
        }
        model.look_back().await;
    }
}
