//! Killed servers, lost answers, and late holders.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use waypost::record::{Durability, RunStatus};
use waypost::store::{
    Appended, Batch, Job, Queue as _, Renewal, Scan, Store, StoreError, StoreExt as _, Summary,
};
use waypost_postgres::{PostgresOptions, PostgresStore};
use waypost_testing::contract::block_on;
use waypost_testing::postgres::Cluster;
use waypost_testing::records::{Links, holder, run_id, run_record, sealed, time};

use crate::proxy::{Proxy, When};
use crate::support::Site;

/// A value of the statement of an append: the path of the main scope. The text of the statement is sent once.
const APPEND: &[u8] = b"main";

async fn begin(store: &PostgresStore, links: &mut Links) -> waypost::store::Lease {
    let first = links.step();
    store.create(&sealed(run_record(links.run())), first, &holder("first")).await.unwrap()
}

async fn count(site: &Site) -> i64 {
    site.tables().await.query_one("SELECT count(*) FROM waypost.records", &[]).await.unwrap().get(0)
}

#[test]
fn a_lost_answer_is_asked_for_with_the_same_batch() {
    block_on(async {
        let site = Site::new().await;
        let proxy = Proxy::before(&site.url(), APPEND).await;
        let store = proxy.store(PostgresOptions::default());
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;

        // The commit happens, and the answer does not arrive.
        proxy.cut(When::AfterTheAnswer);
        assert_eq!(Store::append(&store, &[&lease], links.step()).await.unwrap(), Appended::Now);
        // The statement does not arrive.
        proxy.cut(When::BeforeTheStatement);
        assert_eq!(Store::append(&store, &[&lease], links.step()).await.unwrap(), Appended::Now);

        assert_eq!(proxy.cuts(), 2);
        assert_eq!(count(&site).await, 3, "each batch is there once");
    });
}

/// Appends twice, each time with a lost answer or statement. Returns the acknowledged and the written records.
async fn append_with_losses(patience: Duration) -> (usize, i64) {
    let site = Site::new().await;
    let proxy = Proxy::before(&site.url(), APPEND).await;
    let store =
        proxy.store(PostgresOptions { patience, patience_of_holder: patience, ..PostgresOptions::default() });
    let mut links = Links::of(&run_id("r-1"));
    let lease = begin(&store, &mut links).await;
    let mut acknowledged = 1;
    for cut in [When::BeforeTheStatement, When::AfterTheAnswer] {
        proxy.cut(cut);
        let before = links.clone();
        match Store::append(&store, &[&lease], links.step()).await {
            Ok(_) => acknowledged += 1,
            Err(_) => links = before,
        }
    }
    (acknowledged, count(&site).await)
}

#[test]
fn a_lost_statement_that_is_not_repeated_is_seen() {
    block_on(async {
        assert_eq!(append_with_losses(PostgresOptions::default().patience).await, (3, 3));
        // A planted bug: nothing is sent again. The record of the second append exists without an acknowledgement.
        assert_eq!(append_with_losses(Duration::ZERO).await, (1, 2));
    });
}

/// Submits a run with a lost hint. Returns whether the worker claims the run.
async fn claims_without_hint(trusts_hints: bool) -> bool {
    let site = Site::new().await;
    let proxy = Proxy::before(&site.url(), b"pg_notify").await;
    let impatient = PostgresOptions {
        patience: Duration::ZERO,
        patience_of_holder: Duration::ZERO,
        ..PostgresOptions::default()
    };
    let (submitter, worker) = (proxy.store(impatient), site.open());
    assert_eq!(worker.listen().await, None);
    // The first hint is that of the connection.
    worker.wait(Duration::from_secs(60)).await;
    proxy.cut(When::BeforeTheStatement);
    let run = run_id("r-1");
    let first = Batch {
        summary: Some(Summary::of_status(RunStatus::Queued)),
        release: true,
        ..Links::of(&run).step()
    };
    submitter.submit(&sealed(run_record(&run)), first, &Job::default(), &holder("submit")).await.unwrap();

    let wait =
        worker.wait(if trusts_hints { Duration::from_secs(3_600) } else { Duration::from_millis(100) });
    if tokio::time::timeout(Duration::from_secs(3), wait).await.is_err() {
        return false;
    }
    let served = BTreeSet::from([BTreeSet::new()]);
    worker.claim(&holder("worker"), &served, 1).await.unwrap().len() == 1
}

#[test]
fn a_lost_hint_hides_no_run() {
    block_on(async {
        assert!(claims_without_hint(false).await);
        // A planted bug: the worker waits for hints alone.
        assert!(!claims_without_hint(true).await);
    });
}

/// A commit can fail after all statements of its transaction, or answer `ROLLBACK` without an error.
#[test]
fn a_commit_without_effect_is_no_acknowledgement() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;
        let tables = site.tables().await;
        let trigger = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'refused at the commit'; END $$;
            CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON waypost.records DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION refuse()";
        tables.batch_execute(trigger).await.unwrap();

        Store::append(&*store, &[&lease], links.step()).await.unwrap_err();
        assert_eq!(count(&site).await, 1);

        // A planted bug: the tag of the commit of an explicit transaction is not compared.
        tables.batch_execute("BEGIN; DELETE FROM waypost.records").await.unwrap();
        tables.batch_execute("SELECT 1 / 0").await.unwrap_err();
        tables.batch_execute("COMMIT").await.expect("the server answers ROLLBACK, which is not an error");
        assert_eq!(count(&site).await, 1, "nothing was committed");
    });
}

/// The statement arrives after the connection was given up: asked in between, the store would not have the batch.
#[test]
fn a_statement_that_arrives_late_is_not_applied_twice() {
    block_on(async {
        let site = Site::new().await;
        let proxy = Proxy::before(&site.url(), APPEND).await;
        let store = proxy.store(PostgresOptions::default());
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;

        proxy.cut(When::Late(Duration::from_millis(300)));
        let last = links.step();
        assert_eq!(Store::append(&store, &[&lease], last.clone()).await.unwrap(), Appended::Now);
        assert_eq!(Store::append(&store, &[&lease], links.step()).await.unwrap(), Appended::Now);
        tokio::time::sleep(Duration::from_millis(600)).await;

        assert_eq!(count(&site).await, 3);
        assert_eq!(Store::append(&store, &[&lease], last).await.unwrap(), Appended::Before);
        assert_eq!(store.newest(links.run(), &waypost::ScopePath::main()).await.unwrap().header().seq, 3);
    });
}

/// A negative control: the absence of a batch right after a lost answer says nothing.
#[test]
fn to_ask_after_a_lost_answer_proves_nothing() {
    block_on(async {
        let site = Site::new().await;
        let proxy = Proxy::before(&site.url(), APPEND).await;
        let store = proxy.store(PostgresOptions {
            patience: Duration::ZERO,
            patience_of_holder: Duration::ZERO,
            ..PostgresOptions::default()
        });
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;

        proxy.cut(When::Late(Duration::from_millis(500)));
        let batch = links.step();
        let error = Store::append(&store, &[&lease], batch.clone()).await.unwrap_err();

        assert!(matches!(error, StoreError::Unknown { .. }), "{error}");
        assert_eq!(count(&site).await, 1, "asked now, the batch is not there");
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(count(&site).await, 2, "and yet it is written");
        assert_eq!(Store::append(&store, &[&lease], batch).await.unwrap(), Appended::Before);
    });
}

/// Runs of several tasks, while server processes are killed: each kill ends all connections, and the server recovers
/// from its log.
#[test]
fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = Cluster::private();
        let site = Site::on(&cluster).await;
        let stop = Arc::new(AtomicBool::new(false));
        let store = site.open();
        let writers: Vec<_> = (0..4)
            .map(|number| {
                let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
                tokio::spawn(async move {
                    let mut links = Links::of(&run_id(&format!("r-{number}")));
                    let lease = begin(&store, &mut links).await;
                    let mut acknowledged = 1;
                    while !stop.load(Ordering::Relaxed) {
                        Store::append(&*store, &[&lease], links.step()).await.unwrap();
                        acknowledged += 1;
                    }
                    acknowledged
                })
            })
            .collect();

        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            kill_a_backend(&site).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        stop.store(true, Ordering::Relaxed);

        for (number, writer) in writers.into_iter().enumerate() {
            let acknowledged: u64 = writer.await.unwrap();
            assert!(acknowledged > 10, "run {number} wrote {acknowledged} records");
            let run = run_id(&format!("r-{number}"));
            assert_eq!(store.run(&run).await.unwrap().summary.checkpoints, acknowledged);
            let found = store.scan_where(Scan::of(&run), &|_| true).await.unwrap();
            assert_eq!(found.len() as u64, acknowledged, "each record is there once");
            assert_eq!(store.inspect(Some(&run)).await.unwrap(), [""; 0]);
        }
    });
}

async fn kill_a_backend(site: &Site) {
    const BACKEND: &str = "SELECT pid FROM pg_stat_activity WHERE application_name = 'waypost' LIMIT 1";
    // The server may still recover from the kill before.
    for _ in 0..200 {
        if let Ok((client, connection)) = tokio_postgres::connect(&site.url(), tokio_postgres::NoTls).await {
            tokio::spawn(async { drop(connection.await) });
            if let Ok(Some(row)) = client.query_opt(BACKEND, &[]).await {
                let pid = row.get::<_, i32>(0).to_string();
                // As the owner of the process, or as root.
                let killed = std::process::Command::new("kill").args(["-KILL", &pid]).status().unwrap();
                assert!(killed.success());
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server does not come back");
}

#[test]
fn an_answer_that_stays_lost_is_unknown() {
    block_on(async {
        let site = Site::new().await;
        let proxy = Proxy::before(&site.url(), APPEND).await;
        let patience = Duration::from_millis(300);
        let store = proxy.store(PostgresOptions {
            patience,
            patience_of_holder: patience,
            ..PostgresOptions::default()
        });
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;

        proxy.cut(When::Always);
        let batch = links.step();
        let error = Store::append(&store, &[&lease], batch.clone()).await.unwrap_err();

        assert!(matches!(error, StoreError::Unknown { .. }), "{error}");
        proxy.mend();
        assert!(matches!(
            Store::append(&store, &[&lease], batch).await,
            Ok(Appended::Now | Appended::Before)
        ));
        assert_eq!(count(&site).await, 2);
    });
}

#[test]
fn a_call_that_is_dropped_is_ended_by_its_task() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;

        for _ in 0..5 {
            let batch = links.step();
            let leases = [&lease];
            let append = Store::append(&*store, &leases, batch);
            // Long enough to send, too short for an answer.
            let _ = tokio::time::timeout(Duration::from_micros(50), append).await;
        }
        // The next write waits for earlier writes.
        assert_eq!(Store::append(&*store, &[&lease], links.step()).await.unwrap(), Appended::Now);

        assert_eq!(count(&site).await, 7);
    });
}

#[test]
fn a_holder_that_wakes_up_after_its_lease_is_refused() {
    block_on(async {
        let site = Site::new().await;
        let open = || PostgresStore::open(&site.url(), PostgresOptions::default()).unwrap();
        let (paused, next) = (open(), open());
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&paused, &mut links).await;
        let main = waypost::ScopePath::main();
        match next.acquire(links.run(), &main, &holder("next")).await {
            Err(StoreError::Held { holder: Some(found), until: Some(_), .. }) => {
                assert_eq!(found, holder("first"));
            }
            other => panic!("expected the holder and the end of its lease, got {other:?}"),
        }

        site.end_workers().await;
        let taken = next.acquire(links.run(), &main, &holder("next")).await.unwrap();

        let late = links.clone().step();
        let error = Store::append(&paused, &[&lease], late).await.unwrap_err();
        assert!(matches!(error, StoreError::Fenced { token: 1, newest: 2, .. }), "{error}");
        assert_eq!(paused.renew(&[&lease]).await.unwrap(), [Renewal::Lost]);
        links.under(&taken);
        Store::append(&next, &[&taken], links.step()).await.unwrap();
    });
}

/// A holder without a connection gives up before another process may take the lease.
#[test]
fn a_lease_without_renewal_is_lost_in_time() {
    block_on(async {
        let site = Site::new().await;
        let proxy = Proxy::before(&site.url(), b"SET until").await;
        let lease_time = Duration::from_millis(1_200);
        let store = proxy.store(PostgresOptions { lease: lease_time, ..PostgresOptions::default() });
        let mut links = Links::of(&run_id("r-1"));
        let begun = std::time::Instant::now();
        let lease = begin(&store, &mut links).await;
        proxy.cut(When::Always);

        loop {
            match store.renew(&[&lease]).await {
                Ok(answer) if answer == [Renewal::Expired] => break,
                Ok(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => assert!(error.retry(), "{error}"),
            }
        }

        assert!(begun.elapsed() < lease_time, "{:?}", begun.elapsed());
        assert!(proxy.cuts() > 0);
    });
}

/// A renewed lease does not end, even while a batch locks the row.
#[test]
fn renewals_and_batches_do_not_disturb_each_other() {
    block_on(async {
        let site = Site::new().await;
        let options = PostgresOptions { lease: Duration::from_millis(400), ..PostgresOptions::default() };
        let store = Arc::new(PostgresStore::open(&site.url(), options).unwrap());
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;
        let renewing = tokio::spawn({
            let (store, lease) = (Arc::clone(&store), lease.clone());
            async move {
                for _ in 0..40 {
                    assert_eq!(store.renew(&[&lease]).await.unwrap(), [Renewal::Held(Vec::new())]);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });

        while !renewing.is_finished() {
            assert_eq!(Store::append(&*store, &[&lease], links.step()).await.unwrap(), Appended::Now);
        }

        renewing.await.unwrap();
    });
}

#[test]
fn a_batch_that_collides_is_sent_again_a_few_times() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;
        // A sequence counts failed transactions too.
        let trigger = "CREATE SEQUENCE attempts; CREATE TABLE failing (count bigint);
            INSERT INTO failing VALUES (3);
            CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('attempts') <= (SELECT count FROM failing) THEN
                    RAISE EXCEPTION 'a deadlock' USING ERRCODE = '40P01';
                END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER collide BEFORE INSERT ON waypost.records FOR EACH ROW EXECUTE FUNCTION collide()";
        let tables = site.tables().await;
        tables.batch_execute(trigger).await.unwrap();
        let attempts =
            async || tables.query_one("SELECT last_value FROM attempts", &[]).await.unwrap().get::<_, i64>(0);

        assert_eq!(Store::append(&*store, &[&lease], links.step()).await.unwrap(), Appended::Now);
        assert_eq!(attempts().await, 4);

        tables.batch_execute("UPDATE failing SET count = 1000").await.unwrap();
        let batch = links.step();
        let error = Store::append(&*store, &[&lease], batch.clone()).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        assert_eq!(attempts().await, 4 + 11);
        tables.batch_execute("UPDATE failing SET count = 0").await.unwrap();
        assert_eq!(Store::append(&*store, &[&lease], batch).await.unwrap(), Appended::Now);
    });
}

#[test]
fn a_store_that_went_back_is_damaged() {
    block_on(async {
        let site = Site::new().await;
        let store = site.open();
        let mut links = Links::of(&run_id("r-1"));
        let lease = begin(&store, &mut links).await;
        let before = links.step();
        Store::append(&*store, &[&lease], before.clone()).await.unwrap();

        // A standby without the last record takes over.
        let back = "DELETE FROM waypost.records WHERE seq = 2;
             UPDATE waypost.scopes SET newest = 1, tip = (SELECT digest FROM waypost.records WHERE seq = 1)";
        site.tables().await.batch_execute(back).await.unwrap();

        let error = Store::append(&*store, &[&lease], links.step()).await.unwrap_err();
        assert!(matches!(&error, StoreError::Damaged { damage, .. } if damage.seq == 2), "{error}");
    });
}

#[test]
fn a_server_that_loses_commits_is_refused() {
    block_on(async {
        let site = Site::new().await;
        let sql = format!("ALTER DATABASE {} SET synchronous_commit = off", site.database());
        site.tables().await.batch_execute(&sql).await.unwrap();
        let store = site.open();
        let mut links = Links::of(&run_id("r-1"));
        let first = links.step();
        let record = run_record(links.run());

        let answer = store.create(&sealed(record.clone()), first.clone(), &holder("first")).await;

        let error = answer.unwrap_err();
        assert!(error.to_string().contains("`synchronous_commit = off`"), "{error}");
        let record = waypost::record::RunRecord { durability: Durability::Async, ..record };
        let lease = store.create(&sealed(record), first, &holder("first")).await.unwrap();
        Store::append(&*store, &[&lease], links.step()).await.unwrap();
        store.release(lease, Some(time(1))).await.unwrap();
        assert_eq!(store.scan(&Scan::of(links.run())).await.unwrap().records.len(), 2);
    });
}
