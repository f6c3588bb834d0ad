//! Resumes a run until its end, whatever ends each session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;
use waypost::engine::{Outcome, RunError};
use waypost::memory::MemoryStore;
use waypost::plan::Cause;
use waypost::record::{Phase, RunStatus};
use waypost::store::{Page, Scan, Store as _};
use waypost::{Engine, RunId, ScopePath};

use super::StoreKind;
use super::make::{Made, Notes};
use crate::contract::{DamageTarget, StoreFixture};
use crate::faults::faulty::{Fault, FaultyStore};
use crate::random::seed::Seeded;

/// Most sessions of a run: more than the crashes, questions and holds of any graph here.
const SESSIONS_MAX: usize = 300;

/// The disturbances of a run.
#[derive(Debug, Clone)]
pub(super) struct Disturbance {
    /// Number of the store call at which a session dies.
    pub(super) nth: u64,
    pub(super) fault: Fault,
    /// Number of sessions that die.
    pub(super) deaths: u32,
    /// After a death, damages the newest record of a scope.
    pub(super) damage: Option<Seeded>,
}

impl Default for Disturbance {
    fn default() -> Self {
        Self { nth: 0, fault: Fault::DieBefore, deaths: 0, damage: None }
    }
}

/// The end of a run and its effects.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) status: RunStatus,
    pub(super) state: Notes,
    /// Store calls in all sessions.
    pub(super) calls: u64,
    /// Number of effects per step.
    pub(super) effects: BTreeMap<String, usize>,
    /// Number of non-idempotent effects per step.
    pub(super) paid: BTreeMap<String, u32>,
    /// Number of decisions to repeat a step.
    pub(super) decided: BTreeMap<String, u32>,
}

/// A store that crashes and reopens, with an engine.
struct PlaySite {
    fixture: Box<dyn StoreFixture>,
    store: Arc<FaultyStore>,
    engine: Engine,
}

impl PlaySite {
    fn new(fixture: Box<dyn StoreFixture>) -> Self {
        let store = FaultyStore::around(fixture.store());
        Self { fixture, engine: Engine::new(store.clone()), store }
    }

    async fn reopen(&mut self) {
        // Drops the old store first, which releases its locks.
        self.store = FaultyStore::around(Arc::new(MemoryStore::new()));
        self.engine = Engine::new(self.store.clone());
        self.fixture.reopen().await;
        self.store = FaultyStore::around(self.fixture.store());
        self.engine = Engine::new(self.store.clone());
    }
}

fn run_id() -> RunId {
    RunId::new("r").unwrap()
}

/// Works on a run until its end. Answers every question, mends failures, and decides to repeat steps in
/// doubt.
pub(super) async fn play(kind: StoreKind, made: &Made, mut disturbance: Disturbance) -> Played {
    let mut site = PlaySite::new((kind.fresh)());
    let (mut calls, mut decided, mut from) = (0, BTreeMap::<String, u32>::new(), None);
    for _ in 0..SESSIONS_MAX {
        let before = finished(&site, made).await;
        let counted = site.store.calls();
        if disturbance.deaths > 0 {
            site.store.plan_call(disturbance.nth, disturbance.fault);
        }
        let end = session(&site, made, from.take()).await;
        calls += site.store.calls() - counted;
        site.reopen().await;
        if disturbance.damage.is_none() {
            for (name, times) in &before {
                let ran = made.external.ran.lock().unwrap().get(name).copied().unwrap_or(0);
                assert_eq!(ran, *times, "{name} was finished and ran again");
            }
        }
        match end {
            None => {
                disturbance.deaths -= 1;
                if let Some(random) = &mut disturbance.damage {
                    damage(&mut site, random).await;
                }
            }
            Some(Err(RunError::InDoubt { questions, .. })) => {
                for question in &questions {
                    let name = match &question.cause {
                        Cause::InDoubt(at) => {
                            format!("{}/{}{:?}", question.scope, question.step, at.iteration)
                        }
                        // The iteration is unknown.
                        Cause::InLost(_) => format!("{}/{}", question.scope, question.step),
                        cause => panic!("{cause:?}"),
                    };
                    *decided.entry(name).or_default() += 1;
                }
                // The newest sound record.
                let heads = site.store.heads(&run_id(), &Page::default()).await.unwrap().heads;
                from = Some(heads[0].record.header().seq);
            }
            Some(outcome) => {
                let outcome = outcome.unwrap();
                if matches!(outcome.status, RunStatus::Completed | RunStatus::CompletedWithFailures) {
                    return told(made, outcome, calls, decided);
                }
                if outcome.failed.is_some() {
                    made.external.is_mended.store(true, Ordering::SeqCst);
                }
                for waiting in &outcome.waiting {
                    if waiting.wait.question.is_some() {
                        site.engine.answer("r", &waiting.wait.id, json!("!")).await.unwrap();
                    }
                }
            }
        }
    }
    panic!("it does not end");
}

/// Runs a session until the planned death; returns its outcome if it ended before.
async fn session(
    site: &PlaySite,
    made: &Made,
    from: Option<u64>,
) -> Option<Result<Outcome<Notes>, RunError>> {
    let work = async {
        match from {
            Some(seq) => site.engine.resume(&made.graph, "r").from_checkpoint(seq).await,
            None => {
                let run = site.engine.run(&made.graph, "r", Notes::default());
                run.interrupt_before(&made.before).interrupt_after(&made.after).or_resume().await
            }
        }
    };
    tokio::select! {
        biased;
        end = work => Some(end),
        () = site.store.died() => None,
    }
}

fn told(made: &Made, outcome: Outcome<Notes>, calls: u64, decided: BTreeMap<String, u32>) -> Played {
    let count = |(name, keys): (&String, &BTreeSet<String>)| (name.clone(), keys.len());
    Played {
        status: outcome.status,
        state: outcome.state,
        calls,
        effects: made.external.effects.lock().unwrap().iter().map(count).collect(),
        paid: made.external.paid.lock().unwrap().clone(),
        decided,
    }
}

/// Returns the steps recorded as finished, each with the number of executions so far.
async fn finished(site: &PlaySite, made: &Made) -> BTreeMap<String, u32> {
    let mut scan = Scan::of(&run_id());
    let mut finished = BTreeMap::new();
    loop {
        let Ok(page) = site.store.scan(&scan).await else { return finished };
        for record in &page.records {
            let header = record.header();
            if let (Phase::Completed(_), Some(step)) = (&header.phase, &header.step) {
                let name = format!("{}/{step}{:?}", header.scope, header.at.iteration);
                let times = made.external.ran.lock().unwrap().get(&name).copied().unwrap_or(0);
                finished.insert(name, times);
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None => return finished,
        }
    }
}

/// Damages the newest record of an open scope that has an older record with a body.
async fn damage(site: &mut PlaySite, random: &mut Seeded) {
    let Ok(heads) = site.store.heads(&run_id(), &Page::default()).await else { return };
    let mut found: Vec<(ScopePath, u64)> = Vec::new();
    for head in heads.heads.iter().filter(|head| head.damaged.is_empty()) {
        let (scope, newest) = (&head.record.header().scope, head.record.header().seq);
        for seq in 1..newest {
            let older = site.store.load(&run_id(), scope, seq).await;
            if older.is_ok_and(|record| record.body_bytes().is_some()) {
                found.push((scope.clone(), newest));
                break;
            }
        }
    }
    if !found.is_empty() {
        let (scope, seq) = found.swap_remove(random.below(found.len() as u64) as usize);
        let place = if random.below(2) == 0 {
            DamageTarget::Header(scope, seq)
        } else {
            DamageTarget::Body(scope, seq)
        };
        site.fixture.damage(&run_id(), &place).await;
    }
}
