//! Clauses about reading records.

use serde_json::json;
use waypost::record::{End, RunStatus};
use waypost::store::{Head, RunQuery, StoreError, StoreExt};

use super::support::{create, create_with, create_with_steps, files, main, other, refused, stale};
use super::{DamageTarget, StoreFixture};
use crate::picture::{heads, list, newest_first, of_scan, picture, scan_all};
use crate::records::{Links, run_id, run_record, scope, sealed, summary_mut};

fn places(heads: &[Head]) -> Vec<(String, u64, u64)> {
    let place = |head: &Head| {
        let header = head.record.header();
        (header.scope.to_string(), header.seq, head.next)
    };
    heads.iter().map(place).collect()
}

fn at(scope: &str, seq: u64, next: u64) -> (String, u64, u64) {
    (scope.to_owned(), seq, next)
}

/// Heads follow the opening order of scopes; a scope whose newest header has `end` is not listed.
pub async fn heads_are_the_newest_of_open_scopes(fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    refused!(heads(&*store, &run, 10).await, StoreError::NotFound { .. });
    let lease = create(&*store, &mut links).await;
    // Sorted neither by name nor by length.
    let names = ["each:z", "each:a", "each:a%2Fb/in:1", "each:m", "each:b"];
    for page in [&names[..3], &names[3..]] {
        let records = page.iter().map(|name| links.record(&scope(name))).collect();
        let batch = links.batch(records);
        store.append(&[&lease], batch).await.unwrap();
    }
    let newest = links.record(&scope("each:a"));
    let batch = links.batch(vec![newest.clone()]);
    store.append(&[&lease], batch).await.unwrap();

    let open = vec![
        at("main", 1, 2),
        at("each:z", 1, 2),
        at("each:a", 2, 3),
        at("each:a%2Fb/in:1", 1, 2),
        at("each:m", 1, 2),
        at("each:b", 1, 2),
    ];
    for limit in [1, 2, 5, 6, 1_000] {
        let found = heads(&*store, &run, limit).await.unwrap();
        assert_eq!(places(&found), open, "in pages of {limit}");
        assert_eq!(found[2].record, newest, "with its body");
        assert!(found.iter().all(|head| head.damaged.is_empty()));
    }

    // Two scopes end, and one of them continues.
    for (name, end) in [("each:z", End::Completed), ("each:m", End::Failed)] {
        let mut header = links.header(&scope(name));
        header.end = Some(end);
        let last = links.seal(header, &json!({}));
        let batch = links.batch(vec![last]);
        store.append(&[&lease], batch).await.unwrap();
    }
    let again = links.record(&scope("each:m"));
    let batch = links.batch(vec![again]);
    store.append(&[&lease], batch).await.unwrap();
    let open = [&open[..1], &open[2..4], &[at("each:m", 3, 4)], &open[5..]].concat();
    for limit in [1, 2, 1_000] {
        assert_eq!(places(&heads(&*store, &run, limit).await.unwrap()), open, "in pages of {limit}");
    }
}

/// If the newest record of a scope is damaged, the head is the newest sound record with a body.
pub async fn heads_pass_over_damage(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create_with_steps(&*store, &mut links, 5).await;
    let item = scope("each:a");
    let first_of_item = links.record(&item);
    let batch = links.batch(vec![first_of_item]);
    store.append(&[&lease], batch).await.unwrap();
    drop((lease, store));
    fixture.reopen().await;

    let damaged_of = |head: &Head| head.damaged.iter().map(|damage| damage.seq).collect::<Vec<_>>();
    // First a broken header, then a broken body below it.
    for (place, seq, damaged) in
        [(DamageTarget::Header(main(), 5), 4, vec![5]), (DamageTarget::Body(main(), 4), 3, vec![5, 4])]
    {
        fixture.damage(&run, &place).await;
        let store = fixture.store();
        let found = heads(&*store, &run, 1).await.unwrap();
        assert_eq!(places(&found), [at("main", seq, 6), at("each:a", 1, 2)], "after {place:?}");
        assert_eq!(damaged_of(&found[0]), damaged, "after {place:?}");
        assert!(found[0].record.body_bytes().is_some());
        assert!(found[0].damaged.iter().all(|damage| damage.run == run && damage.scope == main()));
    }

    // The seqs of quarantined records stay used, even after a crash.
    let store = fixture.store();
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    for damage in heads(&*store, &run, 10).await.unwrap().remove(0).damaged {
        store.quarantine(&lease, &damage).await.unwrap();
    }
    drop((lease, store));
    fixture.reopen().await;
    let found = heads(&*fixture.store(), &run, 10).await.unwrap();
    assert_eq!((places(&found).remove(0), damaged_of(&found[0])), (at("main", 3, 6), vec![]));

    // A scope without a sound record is an error; the store does not restart it.
    fixture.damage(&run, &DamageTarget::Body(item.clone(), 1)).await;
    let store = fixture.store();
    match heads(&*store, &run, 10).await {
        Err(StoreError::Damaged { damage, older: None }) => {
            assert_eq!((damage.scope, damage.seq), (item, 1))
        }
        other => panic!("expected damage and nothing older, got {other:?}"),
    }
}

/// The frozen record is the record given to `create`; a damaged one blocks neither its checkpoints nor other
/// runs.
pub async fn run_returns_exact_bytes(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut record = run_record(&run);
    let odd = "\u{0}\u{7f}\u{2028} \u{1f9ed} \"quoted\" \\ `back` <b> 1e400";
    record.definition.text = Some(odd.repeat(1_000));
    record
        .params
        .insert(odd.to_owned(), json!([1.0, 1e300, u64::MAX, i64::MIN, 0.1, -0.0, {"z": 1, "a": 2}]));
    let frozen = sealed(record);
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = store.create(&frozen, links.step(), &other()).await.unwrap();
    let second = Links::of(&run_id("r-2"));
    create_with(&*store, second.run(), second.clone().step()).await;

    let found = store.run(&run).await.unwrap().record;
    assert_eq!((found.bytes(), found.digest()), (frozen.bytes(), frozen.digest()));
    refused!(store.run(&run_id("r-3")).await, StoreError::NotFound { .. });
    drop((lease, store));
    fixture.reopen().await;
    assert_eq!(fixture.store().run(&run).await.unwrap().record, frozen);

    fixture.damage(&run, &DamageTarget::Run).await;
    let store = fixture.store();
    refused!(
        store.run(&run).await,
        StoreError::Damaged { damage, .. } if damage.seq == 0 && damage.run == run
    );
    assert_eq!(store.load(&run, &main(), 1).await.unwrap().header().seq, 1);
    assert_eq!(heads(&*store, &run, 10).await.unwrap().len(), 1);
    store.run(second.run()).await.unwrap();
    let listed = list(&*store, &RunQuery::default()).await.unwrap();
    assert!(listed.iter().any(|summary| summary.run == *second.run()), "other runs are listed");
}

/// Header and body are returned byte for byte.
pub async fn load_returns_exact_bytes(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let odd = "\u{0}\u{7f}\u{2028}\u{fffd} \u{1f9ed} \"q\" \\u0041 \r\n\t </script>";
    let states = [
        json!(null),
        json!(""),
        json!({}),
        json!([1.0, 1e300, u64::MAX, i64::MIN, 0.1, -0.0, 5e-324]),
        json!({"z": 1, "a": {"b": [odd, {odd: odd}]}, "": 2}),
        // The state grows, shrinks and changes little: stores may keep deltas.
        json!({"text": "x".repeat(300_000), "count": 1}),
        json!({"text": "x".repeat(300_000), "count": 2}),
        json!({"text": odd.repeat(20_000)}),
    ];
    let mut kept = Vec::new();
    for state in states {
        let mut header = links.header(&main());
        header.labels.insert(odd.to_owned(), odd.to_owned());
        let record = links.seal(header, &state);
        let batch = links.batch(vec![record.clone()]);
        store.append(&[&lease], batch).await.unwrap();
        kept.push(record);
    }
    // Bytes that are not text, look like another format, compress badly, or are empty.
    let noise: Vec<u8> =
        (0..70_000_u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect();
    let all: Vec<u8> = (0..=255).collect();
    for state in
        [&noise[..], &all, b"", b"\n", b"{\"frontier\":[]}\n", b"\xff\xfe\x00", b"\x28\xb5\x2f\xfd\x00"]
    {
        let header = links.header(&scope("each:a"));
        let record = links.seal_opaque(header, state);
        let batch = links.batch(vec![record.clone()]);
        store.append(&[&lease], batch).await.unwrap();
        kept.push(record);
    }

    let mut store = Some(store);
    for round in ["before", "after"] {
        let open = store.take().unwrap_or_else(|| fixture.store());
        for record in &kept {
            let header = record.header();
            let found = open.load(&run, &header.scope, header.seq).await.unwrap();
            assert_eq!(found.digest(), record.digest(), "{} {round} a crash", header.reference());
            assert!(found.header_bytes() == record.header_bytes(), "{} {round} a crash", header.reference());
            assert!(found.body_bytes() == record.body_bytes(), "{} {round} a crash", header.reference());
        }
        drop(open);
        fixture.reopen().await;
    }
    drop(lease);

    let store = fixture.store();
    refused!(store.load(&run_id("r-2"), &main(), 1).await, StoreError::NotFound { .. });
    refused!(store.load(&run, &scope("each:b"), 1).await, StoreError::NotFound { .. });
    for seq in [0, 10, u64::MAX] {
        refused!(store.load(&run, &main(), seq).await, StoreError::NotFound { .. });
    }
}

/// `load` reports a damaged record as `Damaged`, with the next older sound record, and never returns it.
pub async fn load_names_the_older_sound_one(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create_with_steps(&*store, &mut links, 5).await;
    drop((lease, store));
    fixture.reopen().await;

    let expect = |seq: u64, older: Option<u64>| (seq, older);
    for (place, damaged) in [
        (DamageTarget::Body(main(), 4), vec![expect(4, Some(3))]),
        (DamageTarget::Header(main(), 3), vec![expect(4, Some(2)), expect(3, Some(2))]),
        (DamageTarget::Header(main(), 1), vec![expect(4, Some(2)), expect(3, Some(2)), expect(1, None)]),
        (
            DamageTarget::Body(main(), 2),
            vec![expect(4, None), expect(3, None), expect(2, None), expect(1, None)],
        ),
    ] {
        fixture.damage(&run, &place).await;
        let store = fixture.store();
        for (seq, older) in damaged {
            match store.load(&run, &main(), seq).await {
                Err(StoreError::Damaged { damage, older: found }) => {
                    assert_eq!((damage.run, damage.scope, damage.seq), (run.clone(), main(), seq));
                    assert_eq!(found, older, "of {seq} after {place:?}");
                }
                other => panic!("{seq} after {place:?}: expected damage, got {other:?}"),
            }
        }
        assert_eq!(store.load(&run, &main(), 5).await.unwrap().header().seq, 5);
    }
}

/// Reading needs no lease and changes nothing.
pub async fn reading_needs_no_lease(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create_with_steps(&*store, &mut links, 4).await;
    store.blobs().append(&lease, "logs/work.1.log", b"a line\n").await.unwrap();
    let held = picture(&*store, &run).await;
    assert!(held.contains("running"), "it was read while another had the lease");
    let mut batch = links.step();
    summary_mut(&mut batch).status = RunStatus::Failed;
    batch.release = true;
    store.append(&[&lease], batch).await.unwrap();
    let token = lease.token();
    drop((lease, store));
    fixture.reopen().await;
    // Readers only report damage.
    fixture.damage(&run, &DamageTarget::Header(main(), 2)).await;

    let store = fixture.store();
    // The first use of an opened store may do maintenance.
    let before = picture(&*store, &run).await;
    let kept = fixture.folder().map(|folder| files(&folder));
    let scanned = of_scan(&scan_all(&*store, newest_first(&run)).await.unwrap());
    for _ in 0..2 {
        assert_eq!(picture(&*store, &run).await, before);
        assert_eq!(of_scan(&scan_all(&*store, newest_first(&run)).await.unwrap()), scanned);
        assert_eq!(store.newest(&run, &main()).await.unwrap().header().seq, 5);
        assert_eq!(list(&*store, &RunQuery::default()).await.unwrap().len(), 1);
        assert_eq!(store.blobs().read(&run, "logs/work.1.log", 2).await.unwrap(), b"line\n");
        assert_eq!(store.blobs().read(&run, "logs/none.log", 0).await.unwrap(), b"");
        refused!(store.load(&run, &main(), 2).await, StoreError::Damaged { .. });
        refused!(store.run(&run_id("r-2")).await, StoreError::NotFound { .. });
    }
    assert_eq!(fixture.folder().map(|folder| files(&folder)), kept, "no file changed");
    assert_eq!(fixture.quarantined(&run).await, Vec::<Vec<u8>>::new());

    // Reading took no lease.
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    assert!(lease.token() > token);
    drop(stale(&lease));
}
