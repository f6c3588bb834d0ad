//! Clauses about quarantine, retention, deletion, blobs and closing.

use serde_json::json;
use waypost::record::{FailureKind, Phase, Reason, Record, RunStatus, Verdict};
use waypost::store::{
    BLOB_CHUNK_BYTES, Damage, Lease, Page, Renewal, RunQuery, Scan, ScanOrder, SignalKind, Store, StoreError,
    StoreExt as _, TrimMode, Trimmed,
};
use waypost::{RunId, ScopePath};

use super::support::{create, create_with, create_with_steps, files, main, other, refused, stale, step};
use super::{DamageTarget, StoreFixture};
use crate::picture::{heads, list, of_scan, picture, scan_all};
use crate::records::{Links, evidence, failed, run_id, run_record, scope, sealed, signal};

async fn damage_at(store: &dyn Store, run: &RunId, scope: &ScopePath, seq: u64) -> Damage {
    match store.load(run, scope, seq).await {
        Err(StoreError::Damaged { damage, .. }) => *damage,
        other => panic!("expected damage at {scope}@{seq}, got {other:?}"),
    }
}

/// A damaged record is moved to quarantine and never deleted or overwritten there; only the holder may do so.
pub async fn quarantine_keeps_the_bytes(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let item = scope("each:a");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    // The marks in the states are later searched in quarantine. Both scopes lose a record with the same
    // seq.
    for (path, mark) in [
        (main(), "mark-of-main-2"),
        (main(), "mark-of-main-3"),
        (item.clone(), "mark-of-item-1"),
        (item.clone(), "mark-of-item-2"),
        (item.clone(), "mark-of-item-3"),
    ] {
        let header = links.header(&path);
        let record = links.seal(header, &json!({ "mark": mark }));
        let batch = links.batch(vec![record]);
        store.append(&[&lease], batch).await.unwrap();
    }
    let slept = stale(&lease);
    drop((lease, store));
    fixture.reopen().await;
    fixture.damage(&run, &DamageTarget::Header(main(), 3)).await;
    fixture.damage(&run, &DamageTarget::Header(item.clone(), 3)).await;

    let store = fixture.store();
    let (of_main, of_item) =
        (damage_at(&*store, &run, &main(), 3).await, damage_at(&*store, &run, &item, 3).await);
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    let before = picture(&*store, &run).await;
    refused!(store.quarantine(&slept, &of_main).await, StoreError::Fenced { .. });
    let sound = Damage { seq: 2, ..of_main.clone() };
    refused!(store.quarantine(&lease, &sound).await, StoreError::Invalid(_));
    assert_eq!(picture(&*store, &run).await, before);
    assert_eq!(fixture.quarantined(&run).await.len(), 0);

    for damage in [&of_main, &of_item] {
        store.quarantine(&lease, damage).await.unwrap();
    }

    let kept = fixture.quarantined(&run).await;
    assert_eq!(kept.len(), 2, "two things were moved there, and both are there");
    for mark in ["mark-of-main-3", "mark-of-item-3"] {
        let holds = |bytes: &Vec<u8>| bytes.windows(mark.len()).any(|part| part == mark.as_bytes());
        assert_eq!(kept.iter().filter(|bytes| holds(bytes)).count(), 1, "{mark} is kept once");
    }
    let found = scan_all(&*store, Scan::of(&run)).await.unwrap();
    assert_eq!(of_scan(&found), "r-1@1\nr-1@2\nr-1/each:a@1\nr-1/each:a@2");
    refused!(store.load(&run, &main(), 3).await, StoreError::NotFound { .. });

    // The run continues, and a later record is quarantined too.
    links.under(&lease);
    links.continue_after(&main(), 3, store.load(&run, &main(), 2).await.ok().map(|record| record.digest()));
    let mut header = links.header(&main());
    (header.reason, header.basis) = (Reason::Repair, Some(2));
    let repaired = links.seal(header, &json!({ "mark": "mark-of-main-4" }));
    let batch = links.batch(vec![repaired]);
    store.append(&[&lease], batch).await.unwrap();
    drop((lease, store));
    fixture.reopen().await;
    fixture.damage(&run, &DamageTarget::Header(main(), 4)).await;
    let store = fixture.store();
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    let head = heads(&*store, &run, 10).await.unwrap().remove(0);
    assert_eq!((head.record.header().seq, head.next, head.damaged.len()), (2, 5, 1));
    store.quarantine(&lease, &head.damaged[0]).await.unwrap();
    let now = fixture.quarantined(&run).await;
    assert_eq!(now.len(), 3);
    assert!(kept.iter().all(|bytes| now.contains(bytes)), "what was there is there as it was");
}

fn with_bodies(picture: &str) -> Vec<&str> {
    let records = picture.lines().filter(|line| line.starts_with("r-1") && !line.ends_with("body none"));
    records.map(|line| line.split(' ').next().unwrap_or(line)).collect()
}

/// The newest `keep` sound step boundaries, at least 2, keep their body. All headers stay.
pub async fn trim_drops_states_never_headers(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create_with_steps(&*store, &mut links, 9).await;
    for _ in 1..=4 {
        let record = links.record(&scope("each:a"));
        let batch = links.batch(vec![record]);
        store.append(&[&lease], batch).await.unwrap();
    }
    let all = of_scan(&scan_all(&*store, Scan::of(&run)).await.unwrap());
    let before = picture(&*store, &run).await;
    refused!(
        store.trim(&stale(&Lease::new(run.clone(), 0, None)), 3, TrimMode::Apply).await,
        StoreError::Fenced { .. }
    );
    assert_eq!(store.trim(&lease, 100, TrimMode::Apply).await.unwrap(), Trimmed::default());

    let would = store.trim(&lease, 3, TrimMode::DryRun).await.unwrap();
    assert_eq!(would.checkpoints, 6 + 1);
    let of_others = store.trim(&stale(&Lease::new(run.clone(), 0, None)), 3, TrimMode::DryRun).await;
    assert_eq!(of_others.unwrap(), would, "to look needs no lease");
    assert_eq!(store.would_trim(&run, 3).await.unwrap(), would);
    assert!(would.bytes > 0);
    assert_eq!(picture(&*store, &run).await, before, "a dry run drops nothing");

    assert_eq!(store.trim(&lease, 3, TrimMode::Apply).await.unwrap(), would);

    let kept = ["r-1@7", "r-1@8", "r-1@9", "r-1/each:a@2", "r-1/each:a@3", "r-1/each:a@4"];
    assert_eq!(with_bodies(&picture(&*store, &run).await), kept);
    assert_eq!(of_scan(&scan_all(&*store, Scan::of(&run)).await.unwrap()), all, "every header is there");
    assert_eq!(
        store.trim(&lease, 3, TrimMode::Apply).await.unwrap(),
        Trimmed::default(),
        "nothing is left to drop"
    );
    assert_eq!(store.run(&run).await.unwrap().summary.checkpoints, 13);
    let trimmed = store.load(&run, &main(), 2).await.unwrap();
    assert!(
        trimmed.header().body.is_some() && trimmed.body_bytes().is_none(),
        "the header says what there was"
    );

    // The run continues in both scopes.
    step(&*store, &lease, &mut links).await;
    drop((lease, store));
    fixture.reopen().await;

    // A `keep` of 0 acts as 2; damaged records do not count.
    fixture.damage(&run, &DamageTarget::Header(main(), 10)).await;
    fixture.damage(&run, &DamageTarget::Header(main(), 9)).await;
    let store = fixture.store();
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    store.trim(&lease, 0, TrimMode::Apply).await.unwrap();
    drop((lease, store));
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(
        with_bodies(&picture(&*store, &run).await),
        ["r-1@7", "r-1@8", "r-1/each:a@3", "r-1/each:a@4"]
    );
    assert_eq!(heads(&*store, &run, 1).await.unwrap()[0].record.header().seq, 8);
}

/// A kind of record for the next clause.
enum KeptRun {
    Done,
    Verified,
    Failed,
    /// A rollback to the state of this record.
    Back(u64),
}

async fn make(
    store: &dyn Store,
    lease: &Lease,
    links: &mut Links,
    path: &ScopePath,
    made: KeptRun,
) -> Record {
    let mut header = links.header(path);
    match made {
        KeptRun::Done => {}
        KeptRun::Verified => header.evidence = Some(evidence(Verdict::Ok)),
        KeptRun::Failed => header.phase = failed(FailureKind::Error),
        KeptRun::Back(basis) => {
            (header.phase, header.reason, header.basis) = (Phase::Restored, Reason::Rollback, Some(basis));
        }
    }
    let state = json!({ "seq": header.seq, "fill": "as it was ".repeat(50) });
    let record = links.seal(header, &state);
    let batch = links.batch(vec![record.clone()]);
    store.append(&[lease], batch).await.unwrap();
    record
}

/// The newest state with verified evidence keeps its body, however many attempts failed since. Undone records
/// do not displace the target of a rollback.
pub async fn trim_spares_what_a_resume_needs(mut fixture: impl StoreFixture) {
    use KeptRun::{Back, Done, Failed, Verified};
    let run = run_id("r-1");
    let item = scope("each:a");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let verified = make(&*store, &lease, &mut links, &main(), Verified).await;
    for _ in 3..=5 {
        make(&*store, &lease, &mut links, &main(), Done).await;
    }
    for _ in 6..=40 {
        make(&*store, &lease, &mut links, &main(), Failed).await;
    }
    // The second and third records are undone.
    for made in [Done, Verified, Done, Back(1), Failed, Failed, Failed] {
        make(&*store, &lease, &mut links, &item, made).await;
    }

    let would = store.would_trim(&run, 2).await.unwrap();
    assert_eq!(store.trim(&lease, 2, TrimMode::Apply).await.unwrap(), would);
    // An old body stays below headers without a body, which a store may keep elsewhere.
    for limit in [1, 2, 3, 16, 100] {
        let order = ScanOrder::NewestFirst;
        let scan = Scan { scope: Some(main()), order, limit, ..Scan::of(&run) };
        let found = scan_all(&*store, scan).await.unwrap().records;
        let seqs: Vec<u64> = found.iter().map(|record| record.header().seq).collect();
        assert_eq!(seqs, (1..=40).rev().collect::<Vec<_>>(), "in pages of {limit}");
    }

    let of_item = ["r-1/each:a@1", "r-1/each:a@6", "r-1/each:a@7"];
    let kept = ["r-1@2", "r-1@4", "r-1@5", "r-1@39", "r-1@40"].iter().chain(&of_item).copied();
    assert_eq!(with_bodies(&picture(&*store, &run).await), kept.collect::<Vec<_>>());
    assert_eq!(store.trim(&lease, 2, TrimMode::Apply).await.unwrap(), Trimmed::default(), "nothing is left");

    // Repeated in other processes, until the verified state is far below the others.
    drop((lease, store));
    for round in 1..=3 {
        fixture.reopen().await;
        let store = fixture.store();
        let lease = store.acquire(&run, &main(), &other()).await.unwrap();
        links.under(&lease);
        for made in [Done, Failed, Done, Failed, Failed, Done, Failed, Failed, Failed] {
            make(&*store, &lease, &mut links, &main(), made).await;
        }
        store.trim(&lease, 2, TrimMode::Apply).await.unwrap();
        let last = 40 + round * 9;
        let numbers = [2, last - 6, last - 3, last - 1, last].map(|seq| format!("r-1@{seq}"));
        let kept = numbers.iter().map(String::as_str).chain(of_item);
        assert_eq!(with_bodies(&picture(&*store, &run).await), kept.collect::<Vec<_>>(), "round {round}");
        let found = store.load(&run, &main(), 2).await.unwrap();
        assert_eq!((found.digest(), found.body_bytes()), (verified.digest(), verified.body_bytes()));
        if round == 3 {
            // A newer verified state replaces the older one.
            make(&*store, &lease, &mut links, &main(), Verified).await;
            store.trim(&lease, 2, TrimMode::Apply).await.unwrap();
            let numbers = [last - 3, last - 1, last, last + 1].map(|seq| format!("r-1@{seq}"));
            let kept = numbers.iter().map(String::as_str).chain(of_item);
            assert_eq!(with_bodies(&picture(&*store, &run).await), kept.collect::<Vec<_>>());
            return;
        }
    }
}

/// `delete` removes everything, and only while the lease is free.
pub async fn delete_removes_everything(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let mut second = Links::of(&run_id("r-2"));
    let held = create(&*store, &mut second).await;
    store.release(held, None).await.unwrap();
    let beside = picture(&*store, second.run()).await;
    refused!(store.delete(&run).await, StoreError::NotFound { .. });
    let lease = create(&*store, &mut links).await;
    let record = links.record(&scope("each:a"));
    let batch = links.batch(vec![record]);
    store.append(&[&lease], batch).await.unwrap();
    store.signal(&run, &signal("s", SignalKind::Stop)).await.unwrap();
    store.blobs().append(&lease, "logs/mark-of-deleted.log", b"mark-of-deleted").await.unwrap();
    let before = picture(&*store, &run).await;

    refused!(store.delete(&run).await, StoreError::Held { .. });
    assert_eq!(picture(&*store, &run).await, before);
    step(&*store, &lease, &mut links).await;
    let old = stale(&lease);
    store.release(lease, None).await.unwrap();
    store.delete(&run).await.unwrap();
    assert_eq!(store.deletions().await.unwrap(), [], "it has ended");

    let gone = |store| async move { gone(store, &run_id("r-1"), "r-2").await };
    gone(store.clone()).await;
    refused!(
        store.append(&[&old], links.clone().step()).await,
        StoreError::NotFound { .. } | StoreError::Fenced { .. }
    );
    assert_eq!(store.renew(&[&old]).await.unwrap(), [Renewal::Lost]);
    let answer = store.blobs().append(&old, "logs/late.log", b"late").await;
    refused!(answer, StoreError::NotFound { .. } | StoreError::Fenced { .. });
    assert_eq!(picture(&*store, second.run()).await, beside);
    drop(store);
    fixture.reopen().await;
    gone(fixture.store()).await;
    if let Some(folder) = fixture.folder() {
        let left: Vec<_> = files(&folder).into_keys().filter(|name| name.contains("r-1")).collect();
        assert_eq!(left, Vec::<String>::new(), "no file bears its name");
    }

    // The run id is free again, and a new run inherits nothing.
    let store = fixture.store();
    let mut anew = Links::of(&run);
    create(&*store, &mut anew).await;
    assert_eq!(of_scan(&scan_all(&*store, Scan::of(&run)).await.unwrap()), "r-1@1");
    assert_eq!(store.signals(&run).await.unwrap(), []);
    assert_eq!(store.blobs().read(&run, "logs/mark-of-deleted.log", 0).await.unwrap(), b"");
}

async fn gone(store: std::sync::Arc<dyn Store>, run: &RunId, other: &str) {
    refused!(store.run(run).await, StoreError::NotFound { .. });
    refused!(store.load(run, &main(), 1).await, StoreError::NotFound { .. });
    refused!(scan_all(&*store, Scan::of(run)).await, StoreError::NotFound { .. });
    refused!(store.signals(run).await, StoreError::NotFound { .. });
    refused!(store.acquire(run, &main(), &super::support::other()).await, StoreError::NotFound { .. });
    assert_eq!(store.blobs().read(run, "logs/mark-of-deleted.log", 0).await.unwrap(), b"");
    let listed = list(&*store, &RunQuery::default()).await.unwrap();
    assert_eq!(listed.iter().map(|run| run.run.as_str()).collect::<Vec<_>>(), [other]);
}

/// A chunk is readable at its offset, a stale token is refused, and a missing blob is empty rather than
/// damaged.
pub async fn blobs_are_fenced_and_appended(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let second = create_with(&*store, &run_id("r-2"), Links::of(&run_id("r-2")).step()).await;
    let blobs = store.blobs();
    let name = "logs/work.1.log";
    let chunk: Vec<u8> = (0..BLOB_CHUNK_BYTES).map(|n| (n % 251) as u8).collect();
    assert_eq!(blobs.read(&run, name, 0).await.unwrap(), b"", "it is not there yet");

    let mut whole = Vec::new();
    for part in [b"one\n".as_slice(), b"", &chunk, b"\x00\xff", &chunk[..70]] {
        blobs.append(&lease, name, part).await.unwrap();
        whole.extend_from_slice(part);
    }
    blobs.append(&lease, "logs/work.2.log", b"other").await.unwrap();
    blobs.append(&second, name, b"of r-2").await.unwrap();

    for offset in [0, 1, 4, 100, BLOB_CHUNK_BYTES, BLOB_CHUNK_BYTES + 5, whole.len() - 1] {
        let expect = &whole[offset..whole.len().min(offset + BLOB_CHUNK_BYTES)];
        let found = blobs.read(&run, name, offset as u64).await.unwrap();
        assert!(!found.is_empty() && expect.starts_with(&found), "from {offset}");
        // A read may return less than a chunk, but is not empty before the end.
        assert_eq!(read_on(&*store, &run, name, offset).await, whole[offset..], "from {offset} to the end");
    }
    for offset in [whole.len() as u64, whole.len() as u64 + 1, u64::MAX] {
        assert_eq!(blobs.read(&run, name, offset).await.unwrap(), b"");
    }
    assert_eq!(blobs.read(&run_id("r-2"), name, 0).await.unwrap(), b"of r-2");
    assert_eq!(blobs.read(&run_id("r-3"), name, 0).await.unwrap(), b"");

    for wrong in
        ["", "/abs", "a//b", "a/", "../up", "a/../../up", "a/..", ".", "a b", "a\\b", "\u{e9}", "a\0"]
    {
        refused!(blobs.append(&lease, wrong, b"x").await, StoreError::Invalid(_));
        assert!(
            blobs.read(&run, wrong, 0).await.is_ok_and(|bytes| bytes.is_empty())
                || blobs.read(&run, wrong, 0).await.is_err()
        );
    }
    let large = vec![0; BLOB_CHUNK_BYTES + 1];
    refused!(blobs.append(&lease, name, &large).await, StoreError::Invalid(_));

    let slept = stale(&lease);
    drop((lease, second, store));
    fixture.reopen().await;
    let store = fixture.store();
    let lease = store.acquire(&run, &main(), &other()).await.unwrap();
    refused!(store.blobs().append(&slept, name, b"late").await, StoreError::Fenced { .. });
    store.blobs().append(&lease, name, b"more").await.unwrap();
    let found = read_on(&*store, &run, name, 0).await;
    assert!(found.ends_with(b"more") && !found.windows(4).any(|part| part == b"late"));
}

async fn read_on(store: &dyn Store, run: &RunId, name: &str, from: usize) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let part = store.blobs().read(run, name, (from + all.len()) as u64).await.unwrap();
        if part.is_empty() {
            return all;
        }
        all.extend_from_slice(&part);
    }
}

/// After `close`, every call returns `Closed`; acknowledged data is there for the next process.
pub async fn closed_refuses(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    let lease = create(&*store, &mut links).await;
    let last = step(&*store, &lease, &mut links).await;

    store.close().await.unwrap();

    let frozen = sealed(run_record(&run_id("r-2")));
    let damage = Damage {
        run: run.clone(),
        scope: main(),
        seq: 1,
        place: String::new(),
        flaw: waypost::record::Flaw::Malformed(String::new()),
    };
    let stop = signal("s", SignalKind::Stop);
    refused!(store.create(&frozen, Links::of(&run_id("r-2")).step(), &other()).await, StoreError::Closed(_));
    refused!(store.run(&run).await, StoreError::Closed(_));
    refused!(store.acquire(&run, &main(), &other()).await, StoreError::Closed(_));
    refused!(store.renew(&[&lease]).await, StoreError::Closed(_));
    refused!(store.append(&[&lease], links.clone().step()).await, StoreError::Closed(_));
    refused!(store.heads(&run, &Page::default()).await, StoreError::Closed(_));
    refused!(store.load(&run, &main(), 1).await, StoreError::Closed(_));
    refused!(store.scan(&Scan::of(&run)).await, StoreError::Closed(_));
    refused!(store.runs(&RunQuery::default()).await, StoreError::Closed(_));
    refused!(store.signal(&run, &stop).await, StoreError::Closed(_));
    refused!(store.signals(&run).await, StoreError::Closed(_));
    refused!(store.quarantine(&lease, &damage).await, StoreError::Closed(_));
    refused!(store.trim(&lease, 2, TrimMode::DryRun).await, StoreError::Closed(_));
    refused!(store.delete(&run).await, StoreError::Closed(_));
    refused!(store.blobs().append(&lease, "a", b"x").await, StoreError::Closed(_));
    refused!(store.blobs().read(&run, "a", 0).await, StoreError::Closed(_));
    refused!(store.release(lease, None).await, StoreError::Closed(_));
    drop(store);

    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(store.load(&run, &main(), 2).await.unwrap(), last);
    assert_eq!(store.run(&run).await.unwrap().summary.status, RunStatus::Interrupted, "leases have ended");
    store.acquire(&run, &main(), &other()).await.unwrap();
}
