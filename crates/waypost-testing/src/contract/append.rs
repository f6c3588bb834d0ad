//! Clauses about appending.

use serde_json::json;
use waypost::Digest;
use waypost::record::{Reason, Record, RunStatus};
use waypost::store::{Appended, Batch, Lease, SignalKind, Store, StoreError};

use super::support::{create, main, other, refused, stale, step};
use super::{DamageTarget, StoreFixture};
use crate::picture::{heads, picture};
use crate::records::{Links, run_id, scope, signal, summary_mut, time};

/// Everything that `create` or `append` acknowledged is readable from a store opened later.
pub async fn acknowledged_is_durable(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let mut lease = create(&*store, &mut links).await;
    let mut store = Some(store);

    // Several crashes in a row, each after a batch with several scopes and a signal.
    for round in 0..3 {
        let open = store.take().unwrap_or_else(|| fixture.store());
        step(&*open, &lease, &mut links).await;
        let item = scope(&format!("each:{round}"));
        let records = vec![links.record(&item), links.record(&main()), links.record(&item)];
        let mut batch = links.batch(records);
        batch.consumed = vec![format!("taken-{round}")];
        summary_mut(&mut batch).progress.done = round + 1;
        summary_mut(&mut batch).step = Some("work".to_owned());
        for id in ["taken", "kept"] {
            open.signal(&run, &signal(&format!("{id}-{round}"), SignalKind::Stop)).await.unwrap();
        }
        assert_eq!(open.append(&[&lease], batch).await.unwrap(), Appended::Now);
        open.release(lease, Some(time(round as i64))).await.unwrap();
        let before = picture(&*open, &run).await;
        drop(open);
        fixture.reopen().await;

        let open = fixture.store();
        assert_eq!(picture(&*open, &run).await, before, "after crash {round}");
        lease = open.acquire(&run, &main(), &other()).await.unwrap();
        links.under(&lease);
    }
}

/// A refused batch leaves nothing.
pub async fn append_is_all_or_nothing(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    store.signal(&run, &signal("s", SignalKind::Stop)).await.unwrap();
    let before = picture(&*store, &run).await;
    let mut ahead = links.clone();
    let sound = vec![ahead.record(&scope("each:a")), ahead.record(&main()), ahead.record(&main())];
    let mut header = ahead.header(&main());
    header.prev = Some(Digest::of(b"something else"));
    let broken = ahead.seal(header, &json!(1));
    let mut torn = ahead.batch([sound.as_slice(), &[broken]].concat());
    torn.consumed = vec!["s".to_owned()];
    summary_mut(&mut torn).status = RunStatus::Completed;
    torn.release = true;

    refused!(store.append(&[&lease], torn.clone()).await, StoreError::Conflict { seq: 4, .. });

    assert_eq!(picture(&*store, &run).await, before);
    refused!(store.acquire(&run, &main(), &other()).await, StoreError::Held { .. });

    // The refused batch did not use up its id: the same id with sound records is applied.
    torn.records = sound;
    assert_eq!(store.append(&[&lease], torn).await.unwrap(), Appended::Now);
    assert_eq!(store.signals(&run).await.unwrap(), []);
    drop((lease, store));
    fixture.reopen().await;
    assert_eq!(fixture.store().load(&run, &main(), 3).await.unwrap().header().seq, 3);
}

/// Returns a batch with the next record of the main scope, after `change` to its header.
fn altered(links: &Links, change: impl FnOnce(&mut waypost::record::Header)) -> Batch {
    let mut links = links.clone();
    let mut header = links.header(&main());
    change(&mut header);
    let record = links.seal(header, &json!(0));
    links.batch(vec![record])
}

/// A record with the wrong `seq` or `prev` is refused; only a repair may leave a gap.
pub async fn append_continues_the_chain(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let second = step(&*store, &lease, &mut links).await;
    let third = step(&*store, &lease, &mut links).await;
    let before = picture(&*store, &run).await;

    let wrong: [(&str, Batch); 6] = [
        ("a seq again", altered(&links, |header| header.seq = 3)),
        ("a seq left out", altered(&links, |header| header.seq = 5)),
        ("no prev", altered(&links, |header| header.prev = None)),
        ("an older prev", altered(&links, |header| header.prev = Some(second.digest()))),
        (
            "a begin with a prev",
            altered(&links, |header| {
                (header.scope, header.seq) = (scope("each:a"), 1);
            }),
        ),
        (
            "a repair beyond the gap",
            altered(&links, |header| {
                (header.seq, header.reason) = (5, Reason::Repair);
            }),
        ),
    ];
    for (what, batch) in wrong {
        match store.append(&[&lease], batch).await {
            Err(StoreError::Conflict { .. }) => {}
            other => panic!("{what}: expected a conflict, got {other:?}"),
        }
        assert_eq!(picture(&*store, &run).await, before, "{what}");
    }
    // A scope must start with seq 1.
    let mut ahead = links.clone();
    let mut header = ahead.header(&scope("each:a"));
    header.seq = 2;
    let late = ahead.seal(header, &json!(0));
    refused!(store.append(&[&lease], ahead.batch(vec![late])).await, StoreError::Conflict { seq: 2, .. });
    drop((lease, store));

    // The newest record is damaged and quarantined, which leaves a gap.
    fixture.reopen().await;
    fixture.damage(&run, &DamageTarget::Header(main(), third.header().seq)).await;
    let store = fixture.store();
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    links.under(&lease);
    let head = heads(&*store, &run, 10).await.unwrap().remove(0);
    assert_eq!((head.record.header().seq, head.next), (2, 4));
    store.quarantine(&lease, &head.damaged[0]).await.unwrap();
    links.continue_after(&main(), 2, Some(second.digest()));
    repairs(&*store, &lease, &links, &second, &third).await;
}

async fn repairs(store: &dyn Store, lease: &Lease, links: &Links, second: &Record, third: &Record) {
    let repair = |prev: Digest, seq: u64, reason: Reason| {
        altered(links, |header| {
            (header.seq, header.prev, header.reason, header.basis) = (seq, Some(prev), reason, Some(2));
        })
    };
    refused!(
        store.append(&[lease], repair(second.digest(), 4, Reason::Step)).await,
        StoreError::Conflict { seq: 4, .. }
    );
    refused!(
        store.append(&[lease], repair(second.digest(), 5, Reason::Repair)).await,
        StoreError::Conflict { seq: 5, .. }
    );
    refused!(
        store.append(&[lease], repair(third.digest(), 4, Reason::Repair)).await,
        StoreError::Conflict { seq: 4, .. }
    );
    let never = Digest::of(b"never there");
    refused!(
        store.append(&[lease], repair(never, 4, Reason::Repair)).await,
        StoreError::Conflict { seq: 4, .. }
    );

    let batch = repair(second.digest(), 4, Reason::Repair);
    let repaired = batch.records[0].clone();
    assert_eq!(store.append(&[lease], batch).await.unwrap(), Appended::Now);

    // After the repair, the chain continues as usual.
    let mut links = links.clone();
    links.continue_after(&main(), 4, Some(repaired.digest()));
    let mut batch = links.step();
    batch.id.count = 2;
    assert_eq!(store.append(&[lease], batch).await.unwrap(), Appended::Now);
}

/// A batch repeated with the same id is acknowledged but not applied again.
pub async fn append_is_answered_once(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let first = links.step();
    let lease = super::support::create_with(&*store, &run, first.clone()).await;
    let batch = links.step();
    assert_eq!(store.append(&[&lease], batch.clone()).await.unwrap(), Appended::Now);
    let before = picture(&*store, &run).await;

    for _ in 0..2 {
        assert_eq!(store.append(&[&lease], batch.clone()).await.unwrap(), Appended::Before);
    }
    assert_eq!(
        store.append(&[&lease], first).await.unwrap(),
        Appended::Before,
        "an older one of the same lease"
    );
    assert_eq!(picture(&*store, &run).await, before);

    // The answer to the batch that releases the lease is the easiest to lose.
    let mut last = links.step();
    last.release = true;
    assert_eq!(store.append(&[&lease], last.clone()).await.unwrap(), Appended::Now);
    let before = picture(&*store, &run).await;
    assert_eq!(store.append(&[&lease], last.clone()).await.unwrap(), Appended::Before);
    assert_eq!(picture(&*store, &run).await, before);
    let lease = stale(&lease);
    drop(store);
    fixture.reopen().await;

    let store = fixture.store();
    assert_eq!(store.append(&[&lease], last).await.unwrap(), Appended::Before, "also after a crash");
    assert_eq!(picture(&*store, &run).await, before);
}

/// An outdated token is refused forever.
pub async fn append_needs_the_lease(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let slept = stale(&lease);
    drop((lease, store));
    fixture.reopen().await;
    let store = fixture.store();
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    let token = slept.token();

    // The old holder wakes up while another worker runs, and again after that worker's end.
    let late = links.clone().step();
    refused!(store.append(&[&slept], late.clone()).await, StoreError::Fenced { token: shown, .. } if shown == token);
    links.under(&lease);
    step(&*store, &lease, &mut links).await;
    let mut ahead = links.clone();
    ahead.under(&slept);
    let fitting = ahead.step();
    refused!(store.append(&[&slept], fitting.clone()).await, StoreError::Fenced { .. });
    let before = picture(&*store, &run).await;
    store.release(lease, None).await.unwrap();
    refused!(store.append(&[&slept], fitting).await, StoreError::Fenced { .. });
    refused!(store.append(&[&slept], late).await, StoreError::Fenced { .. });
    refused!(store.release(slept, None).await, StoreError::Fenced { .. });

    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    assert_eq!(picture(&*store, &run).await, before, "nothing of it was written");

    // A batch with the token of another lease is a bug of the caller.
    let mut foreign = links.clone();
    foreign.under(&stale(&Lease::new(run.clone(), lease.token() + 7, None)));
    refused!(
        store.append(&[&lease], foreign.step()).await,
        StoreError::Invalid(_) | StoreError::Fenced { .. }
    );

    // Each scope of a batch needs a lease.
    links.under(&lease);
    let of_child = lease.clone().of_scope(scope("each:a"));
    refused!(store.append(&[&of_child], links.clone().step()).await, StoreError::Invalid(_));
    refused!(store.append(&[], links.clone().step()).await, StoreError::Invalid(_));
    step(&*store, &lease, &mut links).await;
}
