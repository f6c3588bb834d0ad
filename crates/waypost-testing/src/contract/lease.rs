//! Clauses about leases and signals.

use serde_json::json;
use waypost::store::{Appended, Renewal, Signal, SignalKind, Signalled, StoreError};

use super::StoreFixture;
use super::support::{create, main, other, refused, stale, step};
use crate::picture::picture;
use crate::records::{Links, holder, run_id, signal, time};

/// While the lease is held, `acquire` returns `Held` with the holder.
pub async fn acquire_excludes(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    refused!(store.acquire(&run, &main(), &other()).await, StoreError::NotFound { .. });
    let lease = create(&*store, &mut links).await;

    for _ in 0..2 {
        refused!(
            store.acquire(&run, &main(), &other()).await,
            StoreError::Held { holder: Some(found), .. } if found == holder("first")
        );
    }
    step(&*store, &lease, &mut links).await;

    // Another run has its own lease.
    let mut second = Links::of(&run_id("r-2"));
    create(&*store, &mut second).await;

    // The holder dies; the lease needs no manual unlock.
    drop((lease, store));
    fixture.reopen().await;
    let store = fixture.store();
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    refused!(
        store.acquire(&run, &main(), &holder("first")).await,
        StoreError::Held { holder: Some(found), .. } if found == other()
    );
    links.under(&lease);
    step(&*store, &lease, &mut links).await;
}

/// Every lease has a greater token than all earlier leases.
pub async fn acquire_raises_the_token(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let mut newest = lease.token();
    assert_eq!(newest, waypost::store::FIRST_TOKEN);
    store.release(lease, None).await.unwrap();
    drop(store);

    // With and without a record in between, and with and without a crash in between.
    for round in 0..6 {
        let store = fixture.store();
        let lease = store.acquire(&run, &main(), &other()).await.unwrap();
        assert!(lease.token() > newest, "round {round}: {} is not above {newest}", lease.token());
        newest = lease.token();
        if round % 2 == 0 {
            links.under(&lease);
            step(&*store, &lease, &mut links).await;
        }
        if round % 3 == 0 {
            drop((lease, store));
            fixture.reopen().await;
        } else {
            store.release(lease, None).await.unwrap();
        }
    }
}

/// After `release`, or a batch with `release`, the lease is free at once and the old lease is refused.
pub async fn release_frees(fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let old = stale(&lease);

    store.release(lease, Some(time(60))).await.unwrap();

    let entry = store.run(&run).await.unwrap();
    assert_eq!((entry.summary.summary.wake_at, entry.summary.holder), (Some(time(60)), None));
    refused!(store.append(&[&old], links.clone().step()).await, StoreError::Fenced { .. });
    refused!(store.release(old, None).await, StoreError::Fenced { .. });

    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    links.under(&lease);
    let mut batch = links.step();
    batch.release = true;
    assert_eq!(store.append(&[&lease], batch).await.unwrap(), Appended::Now);
    let old = stale(&lease);
    // The last copy of a lease releases the kernel lock.
    drop(lease);

    assert_eq!(store.run(&run).await.unwrap().summary.holder, None);
    refused!(store.append(&[&old], links.clone().step()).await, StoreError::Fenced { .. });
    assert_eq!(store.renew(&[&old]).await.unwrap(), [Renewal::Lost]);
    let lease = store.acquire(&run, &main(), &holder("third")).await.unwrap();
    refused!(store.append(&[&old], links.clone().step()).await, StoreError::Fenced { .. });
    links.under(&lease);
    step(&*store, &lease, &mut links).await;

    // The first batch may release too.
    let mut second = Links::of(&run_id("r-2"));
    let mut first = second.step();
    first.release = true;
    drop(super::support::create_with(&*store, second.run(), first).await);
    store.acquire(second.run(), &main(), &other()).await.unwrap();
}

fn asked(answers: &[Renewal]) -> Vec<Vec<&str>> {
    let asks = |signal: &&Signal| signal.kind.is_for_the_run();
    let ids = |answer: &'static str| vec![answer];
    answers
        .iter()
        .map(|answer| match answer {
            Renewal::Held(signals) => signals.iter().filter(asks).map(|signal| signal.id.as_str()).collect(),
            Renewal::Lost => ids("lost"),
            Renewal::Expired => ids("expired"),
        })
        .collect()
}

/// `renew` reports a pending stop, cancel or checkpoint request until it is consumed, and a lost lease as
/// lost.
pub async fn renew_tells_of_stop_requests(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let mut second = Links::of(&run_id("r-2"));
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let calm = create(&*store, &mut second).await;
    assert_eq!(asked(&store.renew(&[&lease, &calm]).await.unwrap()), [vec![], Vec::<&str>::new()]);
    assert_eq!(store.renew(&[]).await.unwrap(), []);

    store.signal(&run, &signal("z", SignalKind::Stop)).await.unwrap();
    store.signal(&run, &signal("m", SignalKind::Checkpoint { label: None })).await.unwrap();
    store.signal(&run, &signal("a", SignalKind::Cancel)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(asked(&store.renew(&[&calm, &lease]).await.unwrap()), [vec![], vec!["z", "m", "a"]]);
    }

    let mut batch = links.step();
    batch.consumed = vec!["z".to_owned(), "m".to_owned()];
    store.append(&[&lease], batch).await.unwrap();
    assert_eq!(asked(&store.renew(&[&lease]).await.unwrap()), [["a"]]);

    let slept = stale(&lease);
    drop((lease, calm, store));
    fixture.reopen().await;
    let store = fixture.store();
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    assert_eq!(asked(&store.renew(&[&slept, &lease]).await.unwrap()), [["lost"], ["a"]]);
}

/// A repeated id is the same signal; a consumed id stays known.
pub async fn signal_is_unique(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let named = |id: &str, value: i32| {
        signal(id, SignalKind::Named { name: "go".to_owned(), value: json!({ "count": value }) })
    };
    refused!(store.signal(&run, &named("b", 1)).await, StoreError::NotFound { .. });
    refused!(store.signals(&run).await, StoreError::NotFound { .. });
    let lease = create(&*store, &mut links).await;
    create(&*store, &mut Links::of(&run_id("r-2"))).await;

    // Order of arrival: all signals have the same time. Ids may contain any characters.
    let odd = "../../x y/\u{e9}'\"";
    for id in ["b", odd, "a"] {
        assert_eq!(store.signal(&run, &named(id, 1)).await.unwrap(), Signalled::Now);
    }
    assert_eq!(store.signal(&run, &named("b", 2)).await.unwrap(), Signalled::Before);
    assert_eq!(store.signals(&run).await.unwrap(), [named("b", 1), named(odd, 1), named("a", 1)]);

    let mut batch = links.step();
    batch.consumed = vec!["b".to_owned(), odd.to_owned()];
    store.append(&[&lease], batch).await.unwrap();
    assert_eq!(store.signals(&run).await.unwrap(), [named("a", 1)]);
    assert_eq!(store.signal(&run, &named("b", 3)).await.unwrap(), Signalled::Before);
    let before = picture(&*store, &run).await;
    drop((lease, store));
    fixture.reopen().await;

    let store = fixture.store();
    assert_eq!(store.signal(&run, &named(odd, 3)).await.unwrap(), Signalled::Before);
    assert_eq!(store.signal(&run, &named("a", 3)).await.unwrap(), Signalled::Before);
    assert_eq!(store.signals(&run).await.unwrap(), [named("a", 1)]);
    assert!(before.contains("signal a"));

    // The id is unique per run only; a signal may name a scope.
    let second = run_id("r-2");
    let mut meant = named("b", 4);
    meant.scope = Some(crate::records::scope("each:eu"));
    assert_eq!(store.signal(&second, &meant).await.unwrap(), Signalled::Now);
    assert_eq!(store.signals(&second).await.unwrap(), [meant]);
}
