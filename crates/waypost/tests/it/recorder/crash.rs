//! A program with its own loop over a disk that loses power, and over a store whose replies are lost.

use serde_json::json;
use waypost::disk::Disk;
use waypost::file::FileStore;
use waypost::record::{Claim, Pack, RunStatus};
use waypost::recorder::{Commit, Error, Options, Recorder, run_record};
use waypost::store::{Scan, Store, StoreError};
use waypost_testing::TestClock;
use waypost_testing::disk::{Sampling, SimDisk};
use waypost_testing::faulty::{Fault, FaultyStore};

use super::*;

const PASSES: u64 = 2;
/// The power cut is before one in `CUTS_SHARE` calls, and one in `STATES_SHARE` states is checked; both are
/// primes. `WAYPOST_RIG_SHARE=1` checks all of them, which takes minutes.
const CUTS_SHARE: usize = 7;
const STATES_SHARE: usize = 29;

/// Acknowledged commits, by id, and rollbacks.
#[derive(Debug, Clone, Default)]
struct Heard {
    committed: Vec<(String, CheckpointRef)>,
}

/// The whole program: begins or resumes, does every pass once, and finishes. Its evidence is an exit code, so it
/// makes no disk calls.
async fn work(store: Arc<dyn Store>, heard: &mut Heard) -> Result<(), Error> {
    let options = Options::new().with_clock(Arc::new(TestClock::default()));
    let mut record = run_record(run(), "loop");
    record.created_at = waypost_testing::records::time(0);
    record.retention = Some(100);
    let recorder = match Recorder::open_or_create(store, record, &json!({ "n": 0 }), options).await {
        Err(Error::Ended(_)) => return Ok(()),
        recorder => recorder?,
    };
    let last = recorder.last_verified_checkpoint(None).await?.checkpoint;
    let state = match last {
        Some(last) => recorder.rollback_to_checkpoint(&last.reference()).await?,
        None => json!({ "n": 0 }),
    };
    let done = state["n"].as_u64().unwrap();
    for n in done + 1..=PASSES {
        let begun = recorder.begin_step(begin("pass")).await?;
        let commit = Commit::with(Pack::all([Claim::exited("make", 0)])).exit_code(0);
        let commit = commit.external(format!("pass-{n}")).state(&json!({ "n": n }));
        let committed = recorder.commit_step(&begun, commit).await?;
        heard.committed.push((format!("pass-{n}"), committed.reference()));
        if n == 1 {
            recorder.verify_checkpoint(&committed.reference()).await?;
        }
    }
    for begun in recorder.cut().await? {
        recorder.fail_step(&begun, ["it was cut".to_owned()], Vec::new()).await?;
    }
    recorder.finish().await?;
    Ok(())
}

fn run_to_end<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

/// Checks that acknowledged commits are present, that the program reaches its end, and that every pass has one
/// commit.
fn keeps_its_word(heard: &Heard, disk: &SimDisk) -> Result<(), String> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let store: Arc<dyn Store> = Arc::new(FileStore::on(disk, "disk/store"));
    let mut again = heard.clone();
    run_to_end(async {
        work(store.clone(), &mut again)
            .await
            .map_err(|error| format!("it cannot go on: {error}: {error:?}"))?;
        let status = store.run(&run()).await.map_err(|error| error.to_string())?.summary.status;
        if status != RunStatus::Completed {
            return Err(format!("it ended as {status:?}"));
        }
        for (id, at) in &again.committed {
            let record = store.load(&at.run, &at.scope, at.seq).await.map_err(|error| error.to_string())?;
            if record.header().external.as_ref() != Some(id) {
                return Err(format!("{id} was committed at {at} and is not there: {record:?}"));
            }
        }
        for n in 1..=PASSES {
            let id = format!("pass-{n}");
            let scan = Scan { external: Some(id.clone()), ..Scan::of(&run()) };
            let found = store.scan(&scan).await.map_err(|error| error.to_string())?.records.len();
            if found != 1 {
                return Err(format!("{id} is there {found} times"));
            }
        }
        Ok(())
    })
}

fn share(default: usize) -> usize {
    std::env::var("WAYPOST_RIG_SHARE").map_or(default, |text| text.parse().expect("a share is a number"))
}

#[test]
fn a_power_cut_at_any_call_costs_at_most_the_step_under_way() {
    let start = SimDisk::with_folder("disk");
    let program = |disk: &SimDisk| {
        let mut heard = Heard::default();
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        // The disk may have lost power: only earlier acknowledgements count.
        let _ = run_to_end(work(Arc::new(FileStore::on(disk, "disk/store")), &mut heard));
        heard
    };
    let whole = start.fork();
    assert_eq!(program(&whole).committed.len() as u64, PASSES);
    let mut checked = 0;

    for cut in (start.call_count()..=whole.call_count()).step_by(share(CUTS_SHARE)) {
        let disk = start.fork();
        disk.die_at(cut);
        let heard = program(&disk);
        let states = disk.crash_states_with(Sampling { seed: 1, draws: 5 });
        for (index, state) in states.enumerate().step_by(share(STATES_SHARE)) {
            checked += 1;
            let kept = keeps_its_word(&heard, &state);
            kept.unwrap_or_else(|what| panic!("power cut before call {cut}, state {index}: {what}\n{state}"));
        }
    }

    assert!(checked > 50, "{checked} states were checked");
}

/// Returns a memory store with planted failures, and a recorder over it.
async fn shaky(rig: &Rig) -> (Arc<FaultyStore>, Recorder) {
    let store = FaultyStore::around(rig.store.clone());
    let recorder =
        Recorder::create(store.clone(), run_record(run(), "loop"), &json!({ "n": 0 }), rig.options()).await;
    (store, recorder.unwrap())
}

#[tokio::test]
async fn a_lost_answer_is_asked_about_and_nothing_is_written_twice() {
    let rig = Rig::new();
    let (store, recorder) = shaky(&rig).await;

    for fault in [Fault::LoseAnswer, Fault::Lose] {
        store.plan(1, 1, fault);
        let begun = recorder.begin_step(begin("a")).await.unwrap();
        store.plan(1, 1, fault);
        recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
    }

    assert_eq!(rig.count().await, 5);
}

#[tokio::test]
async fn a_start_whose_answer_stays_lost_is_known_to_the_next_call() {
    for fault in [Fault::LoseAnswer, Fault::Lose] {
        let rig = Rig::new();
        let (store, recorder) = shaky(&rig).await;
        store.plan(1, 2, fault);

        let error = recorder.begin_step(begin("a")).await.unwrap_err();

        assert!(matches!(error, Error::Store(StoreError::Unknown { .. })), "{error}");
        let begun = recorder.begun(2).await.unwrap().unwrap();
        recorder.commit_step(&begun, Commit::without_evidence()).await.unwrap();
        assert_eq!(rig.count().await, 3);
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_has_happened_by_the_next() {
    for fault in [Fault::DieAfter, Fault::DieBefore] {
        let rig = Rig::new();
        let (store, recorder) = shaky(&rig).await;
        let begun = recorder.begin_step(begin("a")).await.unwrap();
        let commit = || Commit::without_evidence().external("id").state(&json!({ "n": 1 }));
        store.plan(1, 1, fault);

        {
            let commit = recorder.commit_step(&begun, commit());
            tokio::select! {
                biased;
                done = commit => panic!("it was not to end: {done:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        let again = recorder.commit_step(&begun, commit()).await.unwrap();

        assert_eq!((again.reference(), rig.count().await), (at(3), 3), "{fault:?}");
        step(&rig, &recorder, "b", 2).await;
        recorder.finish().await.unwrap();
    }
}

#[tokio::test]
async fn what_could_not_be_written_can_be_written_later() {
    let rig = Rig::new();
    let (store, recorder) = shaky(&rig).await;
    let a = step(&rig, &recorder, "a", 1).await;
    let full = |error: &Error| matches!(error, Error::Store(StoreError::Full { .. }));

    store.plan(1, 1, Fault::Refuse);
    assert!(full(&recorder.begin_step(begin("b")).await.unwrap_err()));
    let begun = recorder.begin_step(begin("b")).await.unwrap();
    store.plan(1, 1, Fault::Refuse);
    let commit = || Commit::without_evidence().state(&json!({ "n": 2 }));
    assert!(full(&recorder.commit_step(&begun, commit()).await.unwrap_err()));
    recorder.commit_step(&begun, commit()).await.unwrap();
    store.plan(1, 1, Fault::Refuse);
    assert!(full(&recorder.verify_checkpoint(&a.reference()).await.unwrap_err()));
    store.plan(1, 1, Fault::Refuse);
    assert!(full(&recorder.rollback_to_checkpoint::<Value>(&a.reference()).await.unwrap_err()));
    let begun = recorder.begin_step(begin("c")).await.unwrap();
    assert_eq!(state(&recorder, begun.since()).await, json!({ "n": 2 }), "it did not go back");
    recorder.fail_step(&begun, ["no".to_owned()], Vec::new()).await.unwrap();
    store.plan(1, 1, Fault::Refuse);
    assert!(full(&recorder.finish().await.unwrap_err()));
    recorder.finish().await.unwrap();

    assert_eq!(rig.count().await, 8);
}
