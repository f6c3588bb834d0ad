//! The queue: each clause of its contract, with processes as separate stores.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use waypost::RunId;
use waypost::record::RunStatus;
use waypost::store::{Batch, Job, Lease, Queue as _, Signal, SignalKind, Store as _, StoreError, Summary};
use waypost::worker::Worker;
use waypost_postgres::{PostgresOptions, PostgresStore};
use waypost_testing::contract::block_on;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed, time};

use crate::proxy::{Proxy, When};
use crate::support::Site;

fn needs(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn job(priority: i32) -> Job {
    Job { priority, needs: needs(&["tag:a", "tag:b"]), ..Job::default() }
}

/// Returns the first batch of a submitted run.
fn first(run: &RunId) -> Batch {
    let summary = Some(Summary::of_status(RunStatus::Queued));
    Batch { summary, release: true, ..Links::of(run).step() }
}

async fn submit(store: &PostgresStore, name: &str, job: &Job) -> RunId {
    let run = run_id(name);
    store.submit(&sealed(run_record(&run)), first(&run), job, &holder("submit")).await.unwrap();
    run
}

async fn claim(store: &PostgresStore, count: usize) -> Vec<Lease> {
    store.claim(&holder("worker"), &BTreeSet::from([job(0).needs]), count).await.unwrap()
}

fn names(leases: &[Lease]) -> Vec<String> {
    leases.iter().map(|lease| lease.run().to_string()).collect()
}

#[test]
fn a_claim_excludes() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        for number in 0..30 {
            submit(&store, &format!("r-{number}"), &job(0)).await;
        }

        let workers: Vec<Arc<PostgresStore>> = (0..4).map(|_| site.open()).collect();
        let claiming = workers.iter().cloned().map(|worker| {
            tokio::spawn(async move {
                let mut claimed = Vec::new();
                // An empty answer may mean that the other workers have locked the rows.
                for _ in 0..40 {
                    claimed.extend(claim(&worker, 2).await);
                }
                claimed
            })
        });
        let mut claimed = Vec::new();
        for worker in claiming.collect::<Vec<_>>() {
            claimed.extend(worker.await.unwrap());
        }

        let mut found = names(&claimed);
        found.sort();
        found.dedup();
        assert_eq!((claimed.len(), found.len()), (30, 30));
        assert_eq!(store.depth().await.unwrap(), 0);
    });
}

#[test]
fn a_claim_obeys_priority_needs_and_time() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        submit(&store, "low", &job(-1)).await;
        submit(&store, "first", &job(0)).await;
        submit(&store, "second", &job(0)).await;
        submit(&store, "high", &job(7)).await;
        submit(&store, "other", &Job { needs: needs(&["tag:c"]), ..job(9) }).await;
        let later = waypost::clock::Clock::now(&waypost::SystemClock) + Duration::from_secs(3_600);
        submit(&store, "later", &Job { not_before: Some(later), ..job(9) }).await;

        let order = claim(&store, 10).await;

        assert_eq!(names(&order), ["high", "first", "second", "low"]);
        let age = "UPDATE waypost.ready SET rank = clock_timestamp() - interval '1 hour'";
        site.tables().await.batch_execute(age).await.unwrap();
        assert_eq!(store.oldest().await.unwrap().as_secs(), 3_600);
        drop(store.claim(&holder("worker"), &BTreeSet::from([needs(&["tag:c"])]), 1).await.unwrap());
        assert_eq!(store.oldest().await.unwrap(), Duration::ZERO, "a later run is not ready");
        submit(&store, "other-2", &Job { needs: needs(&["tag:c"]), ..job(9) }).await;
        let known = BTreeSet::from([job(0).needs]);
        assert_eq!(store.needs(&known).await.unwrap(), [needs(&["tag:c"])]);
        // The lack of the nearest worker counts.
        for lack in ["secret `S`, tag `c`", "tag `c`", "tag `c`, tag `d`"] {
            store.report_missing(&needs(&["tag:c"]), lack).await.unwrap();
        }
        let missing = store.job(&run_id("other-2")).await.unwrap().unwrap().missing.unwrap();
        assert_eq!(missing.0, "tag `c`");
    });
}

#[test]
fn a_lost_worker_leaves_its_runs() {
    block_on(async {
        let site = Site::new().await;
        let (lost, next) = (site.open(), site.open());
        submit(&next, "r-1", &job(0)).await;
        let lease = claim(&lost, 1).await.pop().unwrap();

        next.expire().await.unwrap();
        assert_eq!(names(&claim(&next, 1).await), [""; 0], "the worker lives");
        site.end_workers().await;
        next.expire().await.unwrap();
        assert_eq!(next.depth().await.unwrap(), 1);

        // A result after the end of the lease, and before a claim, counts.
        let mut links = Links::of(lease.run());
        drop(links.step());
        links.under(&lease);
        lost.append(&[&lease], links.step()).await.unwrap();
        let taken = claim(&next, 1).await.pop().unwrap();
        assert_eq!(taken.token(), lease.token() + 1);
        lost.append(&[&lease], links.step()).await.unwrap_err();
    });
}

/// The return to the queue was once a second statement: a worker that died before it left the run in no queue.
#[test]
fn the_last_batch_of_a_returned_run_queues_it() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        submit(&store, "r-1", &job(0)).await;
        let lease = claim(&store, 1).await.pop().unwrap();
        let mut links = Links::of(lease.run());
        drop(links.step());
        links.under(&lease);
        let summary = Some(Summary::of_status(RunStatus::Queued));

        store.append(&[&lease], Batch { summary, release: true, ..links.step() }).await.unwrap();

        assert_eq!(store.depth().await.unwrap(), 1);
        assert_eq!(names(&claim(&store, 1).await), ["r-1"]);
    });
}

#[test]
fn a_deferred_run_keeps_its_lack() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let run = submit(&store, "r-1", &job(0)).await;
        let lacking = async |missing: &str| {
            let lease = claim(&store, 1).await.pop().unwrap();
            store.release(lease, None).await.unwrap();
            store.defer(&run, missing, Duration::from_secs(600)).await.unwrap();
            assert_eq!(names(&claim(&store, 1).await), [""; 0], "not before the pause has ended");
            let job = store.job(&run).await.unwrap().unwrap();
            assert!(job.is_ready);
            site.tables().await.batch_execute("UPDATE waypost.ready SET not_before = NULL").await.unwrap();
            job.missing.unwrap()
        };

        let first = lacking("room").await;
        let second = lacking("a folder").await;
        // A record in between: the lack is a new one.
        let recorded = "UPDATE waypost.scopes SET updated_at = '2100-01-01T00:00:00.000000000Z'";
        site.tables().await.batch_execute(recorded).await.unwrap();
        let third = lacking("a folder").await;

        assert_eq!((&*first.0, &*second.0), ("room", "a folder"));
        assert!(first.1 == second.1 && second.1 < third.1, "{first:?} {second:?} {third:?}");
    });
}

#[test]
fn a_started_server_gives_workers_time_to_renew() {
    block_on(async {
        let site = Site::new().await;
        let (away, next) = (site.open(), site.open());
        submit(&next, "r-1", &job(0)).await;
        let lease = claim(&away, 1).await.pop().unwrap();

        // The end of the lease has passed while the server was away; the lease is longer than the server is up.
        let text =
            "UPDATE waypost.workers SET until = clock_timestamp() - interval '1 s', lease_ms = 86400000";
        site.tables().await.batch_execute(text).await.unwrap();
        next.expire().await.unwrap();

        assert_eq!(next.depth().await.unwrap(), 0);
        assert_eq!(next.run(lease.run()).await.unwrap().summary.status, RunStatus::Running);
    });
}

#[test]
fn a_wait_and_a_signal_make_a_run_ready() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        submit(&store, "r-1", &job(0)).await;
        let lease = claim(&store, 1).await.pop().unwrap();
        let mut links = Links::of(lease.run());
        drop(links.step());
        links.under(&lease);
        let far = waypost::clock::Clock::now(&waypost::SystemClock) + Duration::from_secs(3_600);
        let waiting = Summary { wake_at: Some(far), ..Summary::of_status(RunStatus::Waiting) };

        let batch = Batch { summary: Some(waiting), release: true, ..links.step() };
        store.append(&[&lease], batch).await.unwrap();
        assert_eq!(names(&claim(&store, 1).await), [""; 0], "not before its time");
        let kind = SignalKind::Named { name: "go".to_owned(), value: serde_json::Value::Null };
        let signal =
            Signal { id: "s".to_owned(), kind, scope: None, sender: String::new(), created_at: time(1) };
        store.signal(lease.run(), &signal).await.unwrap();

        assert_eq!(names(&claim(&store, 1).await), ["r-1"]);
    });
}

#[test]
fn the_first_submit_counts() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let run = submit(&store, "r-1", &job(1)).await;
        let lease = claim(&store, 1).await.pop().unwrap();

        let refused = store.submit(&sealed(run_record(&run)), first(&run), &job(2), &holder("submit")).await;

        assert!(matches!(refused, Err(StoreError::Exists { .. })), "{refused:?}");
        assert_eq!(store.depth().await.unwrap(), 0);
        assert_eq!(store.job(&run).await.unwrap().unwrap().job.priority, 1);
        drop(lease);
    });
}

/// A submission cut between its statements left a queued run without a place in the queue. It is one statement.
#[test]
fn a_submission_is_whole() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        // The place in the queue is refused after the rows of the run were written.
        let text = "ALTER TABLE waypost.ready ADD CHECK (priority < 5)";
        site.tables().await.batch_execute(text).await.unwrap();
        let run = run_id("r-1");
        let submission = sealed(run_record(&run));

        store.submit(&submission, first(&run), &job(5), &holder("submit")).await.unwrap_err();
        let missing = store.run(&run).await.unwrap_err();
        store.submit(&submission, first(&run), &job(4), &holder("submit")).await.unwrap();

        assert!(matches!(missing, StoreError::NotFound { .. }), "{missing}");
        assert_eq!(names(&claim(&store, 2).await), ["r-1"]);
    });
}

/// The throttle of hints once delayed each submission to 50 ms.
#[test]
fn a_submission_does_not_wait_for_its_hint() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let begun = std::time::Instant::now();
        for number in 0..100 {
            submit(&store, &format!("r-{number}"), &job(0)).await;
        }

        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    });
}

#[test]
fn an_interrupted_run_is_not_claimed() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let run = submit(&store, "r-1", &job(0)).await;
        let engine = waypost::Engine::new(Arc::clone(&store) as _);

        assert!(engine.interrupt(&run, "test").await.unwrap().is_some());
        assert!(engine.interrupt(&run, "test").await.unwrap().is_none(), "the run is not queued");
        assert_eq!(store.run(&run).await.unwrap().summary.status, RunStatus::Interrupted);
        assert!(!store.job(&run).await.unwrap().unwrap().is_ready);
        assert_eq!(names(&claim(&store, 1).await), [""; 0]);

        store.requeue(&run, None).await.unwrap();
        let leases = claim(&store, 1).await;
        assert_eq!(names(&leases), ["r-1"]);
        let held = engine.interrupt(&run, "test").await.unwrap_err();
        assert!(held.to_string().contains("held"), "{held}");
    });
}

/// A cancelled run keeps its row in the queue until the next claim, and was shown as ready.
#[test]
fn a_cancelled_run_is_not_ready() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let run = submit(&store, "r-1", &job(0)).await;
        let engine = waypost::Engine::new(Arc::clone(&store) as _);
        engine.cancel(&run, "test").await.unwrap();
        let count = async || {
            let tables = site.tables().await;
            tables.query_one("SELECT count(*) FROM waypost.ready", &[]).await.unwrap().get::<_, i64>(0)
        };
        // No worker has the needs of the run.
        store.expire().await.unwrap();
        assert_eq!(count().await, 0);
        let kind = SignalKind::Named { name: "go".to_owned(), value: serde_json::Value::Null };
        let signal =
            Signal { id: "s".to_owned(), kind, scope: None, sender: String::new(), created_at: time(1) };
        store.signal(&run, &signal).await.unwrap();
        assert_eq!(count().await, 0, "a signal to a finished run wakes no worker");

        assert!(!store.job(&run).await.unwrap().unwrap().is_ready);
        assert_eq!(store.depth().await.unwrap(), 0);
        assert_eq!(names(&claim(&store, 1).await), [""; 0]);
    });
}

#[test]
fn a_hint_wakes_a_worker() {
    block_on(async {
        let site = Site::new().await;
        let (worker, store) = (site.open(), site.open());
        assert_eq!(worker.listen().await, None);
        // The first hint is that of the connection.
        worker.wait(Duration::from_secs(60)).await;

        let begun = std::time::Instant::now();
        let waiting = tokio::spawn(async move { worker.wait(Duration::from_secs(60)).await });
        submit(&store, "r-1", &job(0)).await;
        waiting.await.unwrap();

        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    });
}

/// A worker renews all its leases by one row, and no busy runtime delays a renewal.
#[test]
fn a_busy_process_keeps_its_leases() {
    block_on(async {
        let site = Site::new().await;
        let options = PostgresOptions { lease: Duration::from_secs(1), ..PostgresOptions::default() };
        let busy = PostgresStore::open(&site.url(), options).unwrap();
        let next = site.open();
        submit(&next, "r-1", &job(0)).await;
        let lease = claim(&busy, 1).await.pop().unwrap();

        std::thread::sleep(Duration::from_secs(3));
        next.expire().await.unwrap();

        assert_eq!(next.depth().await.unwrap(), 0);
        assert!(next.run(lease.run()).await.unwrap().summary.holder.is_some());
    });
}

/// Returns the number of connections of a role to the database.
async fn connections(site: &Site, role: &str) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND datname = current_database()";
    site.tables().await.query_one(count, &[&role]).await.unwrap().get(0)
}

/// Makes a role with the rights of a worker; returns its name and the address.
async fn worker_role(site: &Site) -> (String, String) {
    let role = format!("worker_of_{}", site.database());
    let rights = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA waypost TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA waypost TO {role}"
    );
    site.tables().await.batch_execute(&rights).await.unwrap();
    let url = format!("{} user={role}", site.url());
    (role, url)
}

/// The server refuses another connection: a worker keeps those that it has, and its leases.
#[test]
fn a_full_server_ends_no_lease() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let (role, url) = worker_role(&site).await;
        submit(&store, "r-1", &job(0)).await;
        let options = PostgresOptions { lease: Duration::from_secs(2), ..PostgresOptions::default() };
        let worker = PostgresStore::open(&url, options).unwrap();
        let lease = claim(&worker, 1).await.pop().unwrap();

        let full = format!("ALTER ROLE {role} CONNECTION LIMIT {}", connections(&site, &role).await);
        site.tables().await.batch_execute(&full).await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        store.expire().await.unwrap();

        assert_eq!(store.depth().await.unwrap(), 0);
        assert!(store.run(lease.run()).await.unwrap().summary.holder.is_some());
        let others = PostgresStore::open(&url, PostgresOptions::default()).unwrap();
        let free = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            site.tables()
                .await
                .batch_execute(&format!("ALTER ROLE {role} CONNECTION LIMIT -1"))
                .await
                .unwrap();
        };
        let (depth, ()) = tokio::join!(others.depth(), free);
        assert_eq!(depth.unwrap(), 0, "a command waits for a free connection");
    });
}

#[test]
fn a_worker_needs_few_connections() {
    block_on(async {
        let site = Site::new().await;
        let (role, url) = worker_role(&site).await;
        let worker = Arc::new(PostgresStore::open(&url, PostgresOptions::default()).unwrap());
        assert_eq!(worker.listen().await, None);
        drop(claim(&worker, 1).await);

        let calls = (0..200).map(|_| {
            let worker = Arc::clone(&worker);
            tokio::spawn(async move { worker.depth().await })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap().unwrap();
        }

        // Statements, lease, hints.
        assert_eq!(connections(&site, &role).await, 4 + 1 + 1);
        while connections(&site, &role).await > 3 {
            worker.depth().await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
}

/// A graph of functions, submitted by one process and executed by another.
#[test]
fn a_worker_executes_registered_graphs() {
    async fn add(state: u32, _: waypost::Context) -> Result<u32, waypost::StepError> {
        Ok(state + 1)
    }
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let graph = waypost::Graph::<u32>::builder("sum").step("one", add).step("two", add);
        let graph = graph.edge("one", "two").build().unwrap();
        let engine = waypost::Engine::new(Arc::clone(&store) as _);
        let run = engine.run(&graph, "monday", 40).submit(Job::default()).await.unwrap();
        assert_eq!(store.run(&run).await.unwrap().summary.status, RunStatus::Queued);

        let stop = waypost::StopHandle::default();
        let worker = Worker::new(site.open()).register(&graph).with_stop(stop.clone());
        let working = tokio::spawn(worker.run());
        while store.run(&run).await.unwrap().summary.status != RunStatus::Completed {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        stop.stop(waypost::StopLevel::Graceful, "test");
        working.await.unwrap().unwrap();

        let outcome = engine.resume(&graph, "monday").await.unwrap();
        assert_eq!((outcome.state, outcome.status), (42, RunStatus::Completed));
    });
}

/// A worker whose future is dropped leaves its run to the next worker; a run that cannot be executed rests.
#[test]
fn a_dropped_worker_leaves_its_runs() {
    async fn hang(_: u32, _: waypost::Context) -> Result<u32, waypost::StepError> {
        std::future::pending().await
    }
    async fn end(state: u32, _: waypost::Context) -> Result<u32, waypost::StepError> {
        Ok(state + 1)
    }
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let first = waypost::Graph::<u32>::builder("sum").step("one", hang).build().unwrap();
        let second = waypost::Graph::<u32>::builder("sum").step("one", end).build().unwrap();
        let engine = waypost::Engine::new(Arc::clone(&store) as _);
        let run = engine.run(&first, "monday", 41).submit(Job::default()).await.unwrap();

        let worker = tokio::spawn(Worker::new(Arc::clone(&store) as _).register(&first).run());
        while store.run(&run).await.unwrap().summary.status != RunStatus::Running {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        worker.abort();
        drop(worker.await);
        let stop = waypost::StopHandle::default();
        let next = Worker::new(Arc::clone(&store) as _).register(&second).with_stop(stop.clone());
        let working = tokio::spawn(next.run());
        while store.run(&run).await.unwrap().summary.status != RunStatus::Completed {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        stop.stop(waypost::StopLevel::Graceful, "test");
        working.await.unwrap().unwrap();

        assert_eq!(engine.resume(&second, "monday").await.unwrap().state, 42);
    });
}

#[test]
fn a_lost_connection_for_hints_is_reported() {
    block_on(async {
        let site = Site::new().await;
        let proxy = Proxy::before(&site.url(), b"LISTEN waypost").await;
        let store = proxy.store(PostgresOptions::default());
        assert_eq!(store.depth().await.unwrap(), 0);
        proxy.cut(When::BeforeTheStatement);

        let why = store.listen().await.unwrap();

        assert!(why.contains("the connection for hints failed"), "{why}");
    });
}
