//! States that retention must keep: each state that a resume or a rollback needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};
use waypost::file::FileStore;
use waypost::record::{
    Body, Claim, FailureKind, Header, Pack, Phase, Position, Record, ReusableChain, SkipCause, Verdict,
};
use waypost::recorder::{Begin, Commit, Label, Options, Recorder, run_record};
use waypost::store::retention::{Mark, kept};
use waypost::{Context, Engine, Graph, ScopePath, StepError};
use waypost_testing::random::Random;
use waypost_testing::records::{Links, evidence, failed, run_id, step_id};

/// A simulated scope that grows and is trimmed.
struct History {
    random: Random,
    links: Links,
    headers: Vec<Header>,
    /// Seqs with their state.
    whole: BTreeSet<u64>,
    ahead: Option<(u64, u64)>,
}

impl History {
    fn new(seed: u64) -> Self {
        let links = Links::of(&run_id("r"));
        Self { random: Random::new(seed), links, headers: Vec::new(), whole: BTreeSet::new(), ahead: None }
    }

    fn newest(&self) -> u64 {
        self.headers.len() as u64
    }

    fn header(&self, seq: u64) -> &Header {
        &self.headers[seq as usize - 1]
    }

    /// Returns the walk of `basis` over all records, dropped ones included.
    fn effective(&self) -> Vec<u64> {
        std::iter::successors(Some(self.newest()), |seq| self.header(*seq).basis()).collect()
    }

    /// Whether the newest check of a committed step's claims held, over all records.
    fn holds(&self, seq: u64) -> bool {
        let looks = self.headers.iter().rev().filter(|header| {
            let is_check = matches!(header.phase, Phase::Progress { .. } | Phase::Restored);
            header.seq == seq || (is_check && header.about == Some(seq) && header.evidence.is_some())
        });
        let verdict = looks.map(|header| header.evidence.as_ref().map(Pack::verdict)).next().flatten();
        let is_commit = match &self.header(seq).phase {
            Phase::Completed(_) => true,
            Phase::Failed(failure) => failure.kind == FailureKind::Evidence,
            _ => false,
        };
        is_commit && self.header(seq).evidence.is_some() && verdict == Some(Verdict::Ok)
    }

    fn finishes(&self, seq: u64) -> bool {
        let header = self.header(seq);
        seq == 1 || matches!(header.phase, Phase::Completed(_) | Phase::Skipped(_))
    }

    /// Returns a random valid target of a rollback.
    fn place(&mut self) -> u64 {
        let places: Vec<u64> = self.effective().into_iter().filter(|seq| self.whole.contains(seq)).collect();
        places[self.random.below(places.len() as u64) as usize]
    }

    fn grow(&mut self) {
        let mut header = self.links.header(&ScopePath::main());
        let is_first = self.headers.is_empty();
        match self.random.below(20) {
            _ if is_first => header.phase = Phase::Started,
            0..3 => {}
            3..5 => header.evidence = Some(evidence(Verdict::Ok)),
            5 => header.evidence = Some(evidence(Verdict::Skipped)),
            6 => header.phase = Phase::Skipped(SkipCause::Condition("false".to_owned())),
            7..12 => header.phase = failed(FailureKind::Error),
            12..14 => {
                header.phase = failed(FailureKind::Evidence);
                header.evidence = Some(evidence(Verdict::Failed));
            }
            14..16 => header.phase = Phase::Started,
            16..18 => {
                header.phase = Phase::Progress { key: "check".to_owned(), value: Value::Null };
                header.about = Some(1 + self.random.below(self.newest()));
                let verdict = if self.random.below(2) == 0 { Verdict::Ok } else { Verdict::Failed };
                header.evidence = Some(evidence(verdict));
            }
            18 => {
                (header.phase, header.basis) = (Phase::Restored, Some(self.place()));
                self.ahead = None;
            }
            _ => {
                // A redo: the position before the rollback may be reused.
                self.ahead = Some((self.newest(), header.seq));
                (header.phase, header.basis) = (Phase::Restored, Some(self.place()));
            }
        }
        let record = self.links.seal(header, &json!(null));
        self.whole.insert(record.header().seq);
        self.headers.push(record.header().clone());
    }

    /// Returns one line per record, for messages.
    fn picture(&self) -> String {
        let line = |header: &Header| {
            let verdict = header.evidence.as_ref().map(Pack::verdict);
            let (basis, about) = (header.basis, header.about);
            format!("@{} {} basis {basis:?} about {about:?} = {verdict:?}\n", header.seq, header.phase.name())
        };
        self.headers.iter().map(line).collect()
    }

    fn marks(&self) -> Vec<Mark> {
        let newest = self.header(self.newest()).clone();
        let chain = self.ahead.map(|(head, since)| {
            Box::new(ReusableChain { head: Some(head), since, ..ReusableChain::default() })
        });
        let position = Position { chain, ..Position::default() };
        let body = Body::json(&position, &json!(null), 0).unwrap();
        let newest = Record::seal(newest, Some(body)).unwrap();
        let older = self.whole.iter().rev().skip(1).map(|seq| Mark::of(self.header(*seq)));
        std::iter::once(Mark::of_newest(&newest)).chain(older).collect()
    }

    fn trim(&mut self, keep: u32) {
        let before = self.whole.clone();
        let effective = self.effective();
        let had = |seq: &u64| before.contains(seq);

        self.whole = kept(&self.marks(), keep);

        assert!(self.whole.is_subset(&before));
        assert!(self.whole.contains(&self.newest()), "the newest");
        let basis = self.header(self.newest()).basis();
        assert!(basis.filter(had).is_none_or(|basis| self.whole.contains(&basis)), "its basis {basis:?}");
        let ahead = self.ahead.map(|(head, _)| head).filter(had);
        assert!(ahead.is_none_or(|ahead| self.whole.contains(&ahead)), "what may be used again {ahead:?}");
        let verified = effective.iter().copied().filter(had).find(|seq| self.holds(*seq));
        let told = || {
            format!(
                "the verified {verified:?} of {before:?}, effective {effective:?}: {:?}\n{}",
                self.whole,
                self.picture()
            )
        };
        assert!(verified.is_none_or(|seq| self.whole.contains(&seq)), "{}", told());
        let boundaries = effective.iter().copied().filter(had).filter(|seq| self.finishes(*seq));
        let boundaries: Vec<u64> = boundaries.take(keep as usize).collect();
        assert!(boundaries.iter().all(|seq| self.whole.contains(seq)), "boundaries {boundaries:?}");
        // The kept states are boundaries, other checkpoints, checks of a kept boundary, and a few by name.
        assert!(self.whole.len() <= 3 * keep as usize + 6, "{} are kept", self.whole.len());
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a failure is shown with its seed")]
fn no_history_loses_what_it_goes_on_from() {
    // Bug: with a small retention, a few failed attempts in a row displaced the last good state. Cause: every
    // checkpoint counted, whatever its kind. Fix: step boundaries and other checkpoints count separately, and
    // states needed by name are never dropped.
    for seed in 0..400 {
        let mut history = History::new(seed);
        for step in 0..120 {
            println!("seed {seed}, step {step}");
            history.grow();
            if history.random.below(3) == 0 {
                let keep = 2 + history.random.below(3) as u32;
                history.trim(keep);
            }
        }
    }
}

#[test]
fn the_verified_state_stays_through_any_number_of_failures() {
    for keep in [2, 3, 5] {
        let mut links = Links::of(&run_id("r"));
        let mut headers: BTreeMap<u64, Header> = BTreeMap::new();
        for seq in 1..=500 {
            let mut header = links.header(&ScopePath::main());
            match seq {
                2 => header.evidence = Some(evidence(Verdict::Ok)),
                3.. => header.phase = failed(FailureKind::Error),
                _ => {}
            }
            let record = links.seal(header, &json!(null));
            headers.insert(seq, record.header().clone());

            let marks: Vec<Mark> = headers.values().rev().map(Mark::of).collect();
            let stays = kept(&marks, keep);
            headers.retain(|seq, _| stays.contains(seq));

            assert!(seq < 2 || headers.contains_key(&2), "keep {keep}, after {seq}");
            assert!(headers.len() <= 2 + keep as usize, "{} are kept", headers.len());
        }
    }
}

#[tokio::test]
async fn a_recorder_rolls_back_to_the_verified_state() {
    // Bug: on a file store, which keeps five states, a step whose evidence failed five times left no state for a
    // rollback. Cause: each failed attempt displaced a state. Fix: the newest verified state is always kept.
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(FileStore::open(folder.path().join("store")).unwrap().with_retention(Some(2)));
    let options = Options::new().with_base(folder.path());
    let state = json!({ "n": 0 });
    let recorder = Recorder::create(store, run_record(run_id("r"), "loop"), &state, options).await.unwrap();
    let begin = |name: &str| Begin::new(step_id(name), Label::ToolExecuted);
    let begun = recorder.begin_step(begin("a")).await.unwrap();
    fs::write(folder.path().join("a.txt"), "made by a").unwrap();
    let commit = Commit::with(Pack::all([Claim::unchanged("a.txt")])).state(&json!({ "n": 1 }));
    let a = recorder.commit_step(&begun, commit).await.unwrap();

    for _ in 0..60 {
        let begun = recorder.begin_step(begin("b")).await.unwrap();
        let commit = Commit::with(Pack::all([Claim::unchanged("b.txt")])).state(&json!({ "n": 2 }));
        let b = recorder.commit_step(&begun, commit).await.unwrap();
        assert_eq!(b.phase().name(), "failed", "b.txt is never made");
    }

    let found = recorder.last_verified_checkpoint(Some(Label::ToolExecuted)).await.unwrap();
    assert!(found.checkpoint.is_none() && found.given_up, "more tries failed than are looked at");
    let back: Value = recorder.rollback_to_checkpoint(&a.reference()).await.unwrap();
    assert_eq!(back, json!({ "n": 1 }));
    let found = recorder.last_verified_checkpoint(None).await.unwrap().checkpoint.unwrap();
    assert_eq!(found.reference(), a.reference());
}

#[tokio::test]
async fn a_step_can_be_done_again_after_many_failed_tries_of_the_next() {
    // The engine's view of the same case: `second` fails at every resume, and then the test rolls back to
    // `first`.
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(FileStore::open(folder.path()).unwrap().with_retention(Some(2)));
    let graph = Graph::<u64>::builder("two")
        .step("first", |state: u64, _: Context| async move { Ok::<_, StepError>(state + 1) })
        .step("second", |_: u64, _: Context| async { Err::<u64, _>(StepError::fatal("not yet")) })
        .edge("first", "second")
        .build()
        .unwrap();
    let engine = Engine::new(store);
    engine.run(&graph, "r", 10).await.unwrap();
    for _ in 0..40 {
        engine.resume(&graph, "r").await.unwrap();
    }

    let outcome = engine.resume(&graph, "r").from_step("first").await.unwrap();

    assert_eq!(outcome.state, 11, "it was given the state that the run began with");
}
