//! Tasks: each clause of their contract, with processes as separate stores.

use std::collections::BTreeSet;
use std::time::Duration;

use waypost::store::{
    ClaimedTask, Job, Lease, Queue as _, Store as _, StoreError, Submitted, Task, TaskQueue as _, TaskState,
    TaskStop, TasksOf,
};
use waypost_postgres::PostgresStore;
use waypost_testing::contract::block_on;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed};

use crate::support::Site;

/// The time of a verification that does not end within a test.
const TIME: Duration = Duration::from_secs(600);

/// The limit of the tasks of a test.
const LOSSES_MAX: u32 = 3;

fn needs() -> BTreeSet<String> {
    BTreeSet::from(["tag:gpu".to_owned()])
}

fn task(key: &str) -> Task {
    Task {
        key: key.to_owned(),
        step: "work".to_owned(),
        definition: "d".to_owned(),
        needs: needs(),
        losses_max: LOSSES_MAX,
        request: format!("\"{key}\""),
    }
}

/// Creates a run, and keeps its lease.
async fn begin(store: &PostgresStore) -> Lease {
    let run = run_id("r-1");
    let first = Links::of(&run).step();
    store.create(&sealed(run_record(&run)), first, &holder("session")).await.unwrap()
}

async fn claim(store: &PostgresStore) -> Vec<ClaimedTask> {
    store.claim_tasks(&holder("worker"), &BTreeSet::from([needs()]), TasksOf::AllRuns, 10).await.unwrap()
}

fn keys(claimed: &[ClaimedTask]) -> Vec<&str> {
    claimed.iter().map(|task| task.key.as_str()).collect()
}

async fn states(store: &PostgresStore) -> Vec<(String, TaskState)> {
    let tasks = store.task_states(&run_id("r-1")).await.unwrap();
    tasks.into_iter().map(|task| (task.key, task.state)).collect()
}

/// Ends the worker of the first task, as a long sleep of its process does.
async fn lose_worker(site: &Site) {
    let text = "UPDATE waypost.workers SET until = '-infinity', lease_ms = 0
        WHERE id = (SELECT worker FROM waypost.tasks ORDER BY id LIMIT 1)";
    site.tables().await.batch_execute(text).await.unwrap();
}

#[test]
fn a_task_is_claimed_once() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let lease = begin(&store).await;
        for number in 0..40 {
            store.submit_task(&lease, &task(&format!("t-{number}"))).await.unwrap();
            // A repetition changes nothing.
            store.submit_task(&lease, &task(&format!("t-{number}"))).await.unwrap();
        }
        assert_eq!(store.task_needs(&BTreeSet::new()).await.unwrap(), [needs()]);
        let other = BTreeSet::from([BTreeSet::new()]);
        let claimed = store.claim_tasks(&holder("worker"), &other, TasksOf::AllRuns, 10).await.unwrap();
        assert_eq!(keys(&claimed), [""; 0], "without its needs");

        let working = (0..8).map(|_| {
            let store = site.open();
            tokio::spawn(async move {
                let mut claimed = Vec::new();
                // An empty answer may mean that the other workers have locked the rows.
                for _ in 0..20 {
                    claimed.extend(
                        store
                            .claim_tasks(&holder("worker"), &BTreeSet::from([needs()]), TasksOf::AllRuns, 1)
                            .await
                            .unwrap(),
                    );
                }
                claimed
            })
        });
        let mut claimed = Vec::new();
        for working in working.collect::<Vec<_>>() {
            claimed.extend(working.await.unwrap().into_iter().map(|task| (task.key, task.losses)));
        }

        assert_eq!((claimed.len(), claimed.iter().filter(|(_, losses)| *losses > 0).count()), (40, 0));
        assert!(store.task_needs(&BTreeSet::new()).await.unwrap().is_empty());
    });
}

#[test]
fn waiting_tasks_are_withdrawn() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let (lease, run) = (begin(&store).await, run_id("r-1"));
        store.requeue(&run, Some(&Job::default())).await.unwrap();
        let both = ["a".to_owned(), "b".to_owned()];
        for key in &both {
            store.submit_task(&lease, &task(key)).await.unwrap();
        }
        let step = BTreeSet::from(["step:tag:gpu".to_owned()]);
        let one = store.claim_tasks(&holder("worker"), &BTreeSet::from([needs()]), TasksOf::AllRuns, 1).await;
        assert_eq!(keys(&one.unwrap()), ["a"]);

        assert!(!store.withdraw_tasks(&run, &both, &step, "tag").await.unwrap(), "a worker has one");
        assert_eq!(states(&store).await.len(), 2);
        assert!(store.withdraw_tasks(&run, &both[1..], &step, "tag `gpu`").await.unwrap());
        assert_eq!(states(&store).await.len(), 1);
        store.release(lease, None).await.unwrap();
        store.requeue(&run, None).await.unwrap();

        // The need of the step counts for one claim.
        let job = store.job(&run).await.unwrap().unwrap();
        assert_eq!((job.job.needs, job.missing.unwrap().0), (BTreeSet::new(), "tag `gpu`".to_owned()));
        let claim = async |needs: &BTreeSet<String>| {
            let served = BTreeSet::from([needs.clone()]);
            store.claim(&holder("worker"), &served, 1).await.unwrap().pop()
        };
        assert!(claim(&BTreeSet::new()).await.is_none());
        let claimed = claim(&step).await.unwrap();
        store.release(claimed, None).await.unwrap();
        store.requeue(&run, None).await.unwrap();
        assert!(claim(&BTreeSet::new()).await.is_some());
    });
}

#[test]
fn a_task_needs_the_lease() {
    block_on(async {
        let site = Site::new().await;
        let (store, worker) = (site.open(), site.open());
        let lease = begin(&store).await;
        store.submit_task(&lease, &task("before")).await.unwrap();

        let stale = lease.clone();
        store.release(lease, None).await.unwrap();

        assert_eq!(keys(&claim(&worker).await), [""; 0], "nobody holds the run");
        let refused = store.submit_task(&stale, &task("after")).await;
        assert!(matches!(refused, Err(StoreError::Fenced { .. })), "{refused:?}");
    });
}

#[test]
fn a_result_reaches_the_holder_of_the_run() {
    block_on(async {
        let site = Site::new().await;
        let (store, worker) = (site.open(), site.open());
        let lease = begin(&store).await;
        store.submit_task(&lease, &task("t")).await.unwrap();
        store.report_missing_for_tasks(&needs(), "tag `gpu`").await.unwrap();
        assert_eq!(states(&store).await[0].1, TaskState::Waiting(Some("tag `gpu`".to_owned())));

        let claimed = claim(&worker).await.pop().unwrap();
        assert_eq!(claimed.request, "\"t\"");
        assert_eq!(states(&store).await[0].1, TaskState::Claimed(holder("worker")));
        // The worker writes the log of the step under the token of the run.
        worker.blobs().append(&claimed.lease, "logs/t.1.log", b"done").await.unwrap();
        assert!(worker.finish_task(&claimed, "1").await.unwrap());

        assert_eq!(states(&store).await[0].1, TaskState::Ended("1".to_owned()));
        store.remove_tasks(lease.run(), lease.token(), &["t".to_owned()]).await.unwrap();
        assert_eq!(states(&store).await, []);
        assert!(!worker.finish_task(&claimed, "1").await.unwrap());
    });
}

#[test]
fn a_lost_worker_leaves_its_tasks() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let lease = begin(&store).await;
        store.submit_task(&lease, &task("again")).await.unwrap();
        let once = Task { losses_max: 0, ..task("once") };

        let mut workers = Vec::new();
        for losses in 0..=LOSSES_MAX {
            let worker = site.open();
            let claimed = claim(&worker).await.pop().unwrap();
            assert_eq!(claimed.losses, losses);
            lose_worker(&site).await;
            workers.push((worker, claimed));
        }
        assert_eq!(states(&store).await[0].1, TaskState::Lost, "after {LOSSES_MAX} losses");
        // Only the newest claim may still end the task.
        assert!(!workers[0].0.finish_task(&workers[0].1, "0").await.unwrap());
        assert!(workers[3].0.finish_task(&workers[3].1, "3").await.unwrap());
        store.remove_tasks(lease.run(), lease.token(), &["again".to_owned()]).await.unwrap();

        store.submit_task(&lease, &once).await.unwrap();
        assert_eq!(keys(&claim(&site.open()).await), ["once"]);
        lose_worker(&site).await;
        assert_eq!(keys(&claim(&site.open()).await), [""; 0]);
        assert_eq!(states(&store).await[0].1, TaskState::Lost);
    });
}

#[test]
fn a_cancelled_task_ends() {
    block_on(async {
        let site = Site::new().await;
        let (store, worker) = (site.open(), site.open());
        let lease = begin(&store).await;
        let run = lease.run();
        store.submit_task(&lease, &task("running")).await.unwrap();
        let claimed = claim(&worker).await.pop().unwrap();
        store.submit_task(&lease, &task("waiting")).await.unwrap();
        let asked = [(claimed.id, claimed.losses)];
        assert_eq!(worker.cancelled_tasks(&asked).await.unwrap(), []);

        for key in ["running", "waiting"] {
            store.cancel_task(run, key, TaskStop::Graceful).await.unwrap();
        }
        assert_eq!(worker.cancelled_tasks(&asked).await.unwrap(), [(claimed.id, TaskStop::Graceful)]);
        store.cancel_task(run, "running", TaskStop::Kill).await.unwrap();
        store.cancel_task(run, "running", TaskStop::Graceful).await.unwrap();

        assert_eq!(worker.cancelled_tasks(&asked).await.unwrap(), [(claimed.id, TaskStop::Kill)]);
        let left = states(&store).await;
        assert_eq!(left, [("running".to_owned(), TaskState::Claimed(holder("worker")))]);
        lose_worker(&site).await;
        assert_eq!(keys(&claim(&site.open()).await), [""; 0], "a cancelled task is not repeated");
        assert_eq!(states(&store).await[0].1, TaskState::Lost);
    });
}

/// A step settled by a person once went on after the end of its run.
#[test]
fn the_end_of_a_run_ends_its_tasks() {
    block_on(async {
        let site = Site::new().await;
        let (store, worker) = (site.open(), site.open());
        let lease = begin(&store).await;
        let run = lease.run().clone();
        store.submit_task(&lease, &Task { losses_max: 0, ..task("t") }).await.unwrap();
        let claimed = claim(&worker).await.pop().unwrap();
        store.release(lease, None).await.unwrap();
        assert_eq!(worker.cancelled_tasks(&[(claimed.id, 0)]).await.unwrap(), []);

        waypost::Engine::new(store).cancel(&run, "test").await.unwrap();

        assert_eq!(worker.cancelled_tasks(&[(claimed.id, 0)]).await.unwrap(), [(claimed.id, TaskStop::Kill)]);
        worker.expire().await.unwrap();
        assert_eq!(states(&worker).await, [], "no row is left");
        assert_eq!(worker.cancelled_tasks(&[(claimed.id, 0)]).await.unwrap(), [(claimed.id, TaskStop::Kill)]);
    });
}

#[test]
fn a_new_lease_cancels_tasks() {
    block_on(async {
        let site = Site::new().await;
        let (store, worker) = (site.open(), site.open());
        let lease = begin(&store).await;
        let run = lease.run().clone();
        for key in ["running", "ended", "waiting"] {
            store.submit_task(&lease, &task(key)).await.unwrap();
        }
        let claimed = worker
            .claim_tasks(&holder("worker"), &BTreeSet::from([needs()]), TasksOf::AllRuns, 2)
            .await
            .unwrap();
        assert!(worker.finish_task(&claimed[1], "1").await.unwrap());
        store.release(lease, None).await.unwrap();

        let next = site.open();
        let lease = next.acquire(&run, &waypost::ScopePath::main(), &holder("next")).await.unwrap();
        assert_eq!(next.clear(&lease).await.unwrap(), 1);
        let asked = [(claimed[0].id, claimed[0].losses)];
        assert_eq!(worker.cancelled_tasks(&asked).await.unwrap(), [(claimed[0].id, TaskStop::Kill)]);
        assert_eq!(states(&next).await.len(), 1);
        assert!(worker.finish_task(&claimed[0], "stopped").await.unwrap());

        assert_eq!(next.clear(&lease).await.unwrap(), 0);
        assert_eq!(states(&next).await, []);
        assert_eq!(worker.cancelled_tasks(&asked).await.unwrap(), [(claimed[0].id, TaskStop::Kill)]);
    });
}

#[test]
fn a_new_lease_adopts_tasks() {
    block_on(async {
        let site = Site::new().await;
        let (store, worker) = (site.open(), site.open());
        let lease = begin(&store).await;
        let run = lease.run().clone();
        for key in ["running", "ended"] {
            store.submit_task(&lease, &task(key)).await.unwrap();
        }
        let claimed = claim(&worker).await;
        assert!(worker.finish_task(&claimed[1], "1").await.unwrap());
        store.release(lease, None).await.unwrap();

        let next = site.open();
        let lease = next.acquire(&run, &waypost::ScopePath::main(), &holder("next")).await.unwrap();
        for key in ["running", "ended"] {
            let other = Task { definition: "other".to_owned(), ..task(key) };
            assert_eq!(next.submit_task(&lease, &other).await.unwrap(), Submitted::Other);
            assert_eq!(next.submit_task(&lease, &task(key)).await.unwrap(), Submitted::Done);
        }

        assert_eq!(next.clear(&lease).await.unwrap(), 0);
        let found = states(&next).await;
        assert_eq!(found[0].1, TaskState::Claimed(holder("worker")));
        assert_eq!(found[1].1, TaskState::Ended("1".to_owned()));
        assert!(worker.finish_task(&claimed[0], "0").await.unwrap());
        assert_eq!(states(&next).await[0].1, TaskState::Ended("0".to_owned()));
    });
}

/// A verifier is no session: the tasks of a living and of an absent session are unaffected.
#[test]
fn a_verification_needs_no_lease() {
    block_on(async {
        let site = Site::new().await;
        let (store, worker) = (site.open(), site.open());
        let lease = begin(&store).await;
        let run = lease.run().clone();
        store.submit_verification(&run, &[task("held")], TIME).await.unwrap();
        assert_eq!(keys(&claim(&worker).await), ["held"]);
        store.release(lease, None).await.unwrap();

        store.submit_verification(&run, &[task("v-1"), task("v-2"), task("v-1")], TIME).await.unwrap();
        let claimed = claim(&worker).await;
        assert_eq!(keys(&claimed), ["v-1", "v-2"]);
        assert!(worker.finish_task(&claimed[0], "1").await.unwrap());

        assert_eq!(states(&store).await[1].1, TaskState::Ended("1".to_owned()));
        let lease = store.acquire(&run, &waypost::ScopePath::main(), &holder("next")).await.unwrap();
        assert_eq!(store.clear(&lease).await.unwrap(), 2, "a resume cancels verifications");
        let missing = store.submit_verification(&run_id("none"), &[task("t")], TIME).await;
        assert!(matches!(missing, Err(StoreError::NotFound { .. })), "{missing:?}");
    });
}

/// The process that asked may have been killed.
#[test]
fn a_verification_ends_by_itself() {
    block_on(async {
        let site = Site::new().await;
        let (store, worker) = (site.open(), site.open());
        let lease = begin(&store).await;
        store.submit_task(&lease, &task("step")).await.unwrap();
        store.submit_verification(lease.run(), &[task("v-1")], TIME).await.unwrap();
        store.submit_verification(lease.run(), &[task("v-2")], Duration::ZERO).await.unwrap();

        let seen: Vec<String> = states(&store).await.into_iter().map(|(key, _)| key).collect();
        assert_eq!(seen, ["step", "v-1"]);
        assert_eq!(keys(&claim(&worker).await), ["step", "v-1"]);
        worker.expire().await.unwrap();
        let left = site.tables().await.query_one("SELECT count(*) FROM waypost.tasks", &[]).await.unwrap();
        assert_eq!(left.get::<_, i64>(0), 2);
    });
}

#[test]
fn living_workers_are_listed() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        assert_eq!(store.workers().await.unwrap(), []);

        store.register(&holder("worker")).await.unwrap();
        store.register(&holder("worker")).await.unwrap();
        assert_eq!(store.workers().await.unwrap(), [holder("worker")]);
        site.end_workers().await;
        assert_eq!(store.workers().await.unwrap(), []);
    });
}
