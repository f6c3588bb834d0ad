//! Clauses about looking up records and runs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde_json::json;
use waypost::lock::Holder;
use waypost::record::{Phase, RunStatus, SkipCause};
use waypost::store::{Batch, RunQuery, Scan, ScanOrder, Store, StoreError};

use super::support::{create_with, main, other, refused};
use super::{DamageTarget, StoreFixture};
use crate::picture::{list, newest_first, of_scan, scan_all};
use crate::records::{Links, run_id, run_record, scope, sealed, step_id, summary_mut, time};

/// Creates a run with eight records on `main` and three on each of two other scopes, opened in this order.
async fn filled(store: &dyn Store, links: &mut Links) -> waypost::store::Lease {
    let mut first = links.step();
    first.release = false;
    let lease = create_with(store, links.run(), first).await;
    for seq in 2..=8_u64 {
        let mut header = links.header(&main());
        header.step = Some(step_id(if seq % 2 == 0 { "even" } else { "odd" }));
        if seq == 3 || seq == 8 {
            header.phase = Phase::Skipped(SkipCause::Condition("false".to_owned()));
        }
        if seq == 7 {
            header.step = None;
        }
        let third = (seq % 3).to_string();
        header.labels = BTreeMap::from([("third".to_owned(), third), ("all".to_owned(), "yes".to_owned())]);
        header.external = (seq > 5).then(|| format!("client-{}", seq / 7));
        header.about = (seq == 4 || seq == 6).then_some(2);
        let record = links.seal(header, &json!(seq));
        let batch = links.batch(vec![record]);
        store.append(&[&lease], batch).await.unwrap();
    }
    for name in ["each:z", "each:a"] {
        for _ in 0..3 {
            let record = links.record(&scope(name));
            let batch = links.batch(vec![record]);
            store.append(&[&lease], batch).await.unwrap();
        }
    }
    lease
}

/// A scan filters by run, scope, seq range, step, phase, label, `external` and `about`, pages, and works in
/// both directions.
pub async fn scan_filters_and_pages(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let store = fixture.store();
    refused!(scan_all(&*store, Scan::of(&run)).await, StoreError::NotFound { .. });
    let lease = filled(&*store, &mut links).await;
    let mut other_run = Links::of(&run_id("r-2"));
    filled(&*store, &mut other_run).await;
    let all = || Scan::of(&run);
    let of_main = || Scan { scope: Some(main()), ..Scan::of(&run) };
    let label = |key: &str, value: &str| Some((key.to_owned(), value.to_owned()));
    let cases: Vec<(&str, Scan, Vec<u64>)> = vec![
        ("main", of_main(), vec![1, 2, 3, 4, 5, 6, 7, 8]),
        ("seq_min", Scan { seq_min: Some(6), ..of_main() }, vec![6, 7, 8]),
        ("seq_max", Scan { seq_max: Some(2), ..of_main() }, vec![1, 2]),
        ("range", Scan { seq_min: Some(3), seq_max: Some(5), ..of_main() }, vec![3, 4, 5]),
        ("empty range", Scan { seq_min: Some(5), seq_max: Some(3), ..of_main() }, vec![]),
        ("huge range", Scan { seq_min: Some(u64::MAX), seq_max: Some(u64::MAX), ..of_main() }, vec![]),
        ("step", Scan { step: Some("even".to_owned()), ..of_main() }, vec![2, 4, 6, 8]),
        ("no such step", Scan { step: Some("eve%".to_owned()), ..of_main() }, vec![]),
        ("phase", Scan { phase: Some("skipped"), ..of_main() }, vec![3, 8]),
        ("label", Scan { label: label("third", "1"), ..of_main() }, vec![4, 7]),
        ("no such label", Scan { label: label("third", "all"), ..of_main() }, vec![]),
        ("external", Scan { external: Some("client-1".to_owned()), ..of_main() }, vec![7, 8]),
        ("about", Scan { about: Some(2), ..of_main() }, vec![4, 6]),
        ("two filters", Scan { step: Some("even".to_owned()), phase: Some("skipped"), ..of_main() }, vec![8]),
        ("no such scope", Scan { scope: Some(scope("each:b")), ..all() }, vec![]),
        ("child", Scan { scope: Some(scope("each:z")), ..all() }, vec![1, 2, 3]),
        // All scopes, in opening order.
        ("all", all(), vec![1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 1, 2, 3]),
        ("first ones", Scan { seq_max: Some(1), ..all() }, vec![1, 1, 1]),
        ("steps of all", Scan { step: Some("work".to_owned()), ..all() }, vec![1, 1, 2, 3, 1, 2, 3]),
    ];
    for (what, scan, expect) in &cases {
        for limit in [1, 2, 3, 7, 1_000] {
            let found = scan_all(&*store, Scan { limit, ..scan.clone() }).await.unwrap();
            let seqs: Vec<_> = found.records.iter().map(|record| record.header().seq).collect();
            assert_eq!(seqs, *expect, "{what} in pages of {limit}");
            assert!(found.records.iter().all(|record| record.header().run == run), "{what}: of this run");
            assert_eq!(found.damaged, [], "{what}");

            let back = Scan { order: ScanOrder::NewestFirst, limit, ..scan.clone() };
            let found = scan_all(&*store, back).await.unwrap();
            let mut seqs: Vec<_> = found.records.iter().map(|record| record.header().seq).collect();
            if scan.scope.is_some() {
                seqs.reverse();
                assert_eq!(seqs, *expect, "{what}, newest first in pages of {limit}");
            }
        }
    }
    let back: Vec<_> = scan_all(&*store, Scan { limit: 2, ..newest_first(&run) }).await.unwrap().records;
    let back: Vec<_> = back.iter().map(|record| record.header().seq).collect();
    assert_eq!(back, [8, 7, 6, 5, 4, 3, 2, 1, 3, 2, 1, 3, 2, 1], "scopes stay in the order they were opened");

    // Records appended between pages are not returned twice.
    let first = store.scan(&Scan { limit: 3, ..newest_first(&run) }).await.unwrap();
    super::support::step(&*store, &lease, &mut links).await;
    let rest = scan_all(&*store, Scan { limit: 3, cursor: first.next, ..newest_first(&run) }).await.unwrap();
    let seqs: Vec<_> = rest.records.iter().map(|record| record.header().seq).collect();
    assert_eq!(seqs, [5, 4, 3, 2, 1, 3, 2, 1, 3, 2, 1]);

    drop((lease, store));
    fixture.reopen().await;
    damaged_headers(&mut fixture, &run).await;
}

/// Damaged headers in the range are listed rather than returned, whatever the filter.
async fn damaged_headers(fixture: &mut impl StoreFixture, run: &waypost::RunId) {
    for place in [DamageTarget::Header(main(), 4), DamageTarget::Header(scope("each:a"), 3)] {
        fixture.damage(run, &place).await;
    }
    let store = fixture.store();
    let even = Scan { step: Some("even".to_owned()), ..Scan::of(run) };
    for limit in [1, 2, 1_000] {
        let found = scan_all(&*store, Scan { limit, ..even.clone() }).await.unwrap();
        let expect = "r-1@2\nr-1@6\nr-1@8\ndamaged r-1/main@4\ndamaged r-1/each:a@3";
        assert_eq!(of_scan(&found), expect, "in pages of {limit}");
    }
    let range = Scan { seq_min: Some(5), scope: Some(main()), ..even };
    assert_eq!(of_scan(&scan_all(&*store, range).await.unwrap()), "r-1@6\nr-1@8");
}

/// Runs are listed by creation order rather than by clock, filtered and paged.
pub async fn runs_come_newest_first(mut fixture: impl StoreFixture) {
    let store = fixture.store();
    assert_eq!(list(&*store, &RunQuery::default()).await.unwrap(), []);
    // The clock runs backwards, and the names are unsorted.
    let names = ["m-1", "z-1", "a-2", "a-1", "a-10", "b"];
    for (place, name) in names.into_iter().enumerate() {
        let mut record = run_record(&run_id(name));
        record.created_at = time(-(place as i64));
        record.workflow = if place % 2 == 0 { "nightly" } else { "hourly" }.to_owned();
        record.path = (place > 1).then(|| format!("flows/{place}.yaml"));
        record.labels =
            BTreeMap::from([("place".to_owned(), (place % 3).to_string()), ("all".into(), "yes".into())]);
        let mut links = Links::of(&record.run);
        let mut header = links.header(&main());
        header.created_at = time(100 * (place as i64 % 2));
        let first = links.seal(header, &json!(place));
        let mut batch = links.batch(vec![first]);
        summary_mut(&mut batch).status = if place < 3 { RunStatus::Completed } else { RunStatus::Failed };
        batch.release = true;
        store.create(&sealed(record), batch, &other()).await.unwrap();
    }
    drop(store);
    fixture.reopen().await;

    let store = fixture.store();
    let query = RunQuery::default;
    let labels = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
    };
    let statuses = |status: RunStatus| BTreeSet::from([status]);
    let cases: Vec<(&str, RunQuery, Vec<&str>)> = vec![
        ("all", query(), vec!["b", "a-10", "a-1", "a-2", "z-1", "m-1"]),
        ("prefix", RunQuery { prefix: Some("a-1".into()), ..query() }, vec!["a-10", "a-1"]),
        ("prefix is no pattern", RunQuery { prefix: Some("%".into()), ..query() }, vec![]),
        (
            "status",
            RunQuery { statuses: statuses(RunStatus::Completed), ..query() },
            vec!["a-2", "z-1", "m-1"],
        ),
        ("no such status", RunQuery { statuses: statuses(RunStatus::Running), ..query() }, vec![]),
        ("workflow", RunQuery { workflow: Some("hourly".into()), ..query() }, vec!["b", "a-1", "z-1"]),
        ("path", RunQuery { path: Some("flows/2.yaml".into()), ..query() }, vec!["a-2"]),
        ("label", RunQuery { labels: labels(&[("place", "1")]), ..query() }, vec!["a-10", "z-1"]),
        ("labels", RunQuery { labels: labels(&[("place", "1"), ("all", "no")]), ..query() }, vec![]),
        ("since", RunQuery { since: Some(time(100)), ..query() }, vec!["b", "a-1", "z-1"]),
        (
            "two",
            RunQuery { prefix: Some("a".into()), labels: labels(&[("place", "0")]), ..query() },
            vec!["a-1"],
        ),
    ];
    for (what, query, expect) in cases {
        for limit in [0, 1, 2, 4, 1_000] {
            let found = list(&*store, &RunQuery { limit, ..query.clone() }).await.unwrap();
            let found: Vec<_> = found.iter().map(|run| run.run.as_str()).collect();
            assert_eq!(found, expect, "{what} in pages of {limit}");
        }
    }
    listed_as_made(&*store).await;
}

async fn listed_as_made(store: &dyn Store) {
    let found =
        list(store, &RunQuery { prefix: Some("a-2".into()), ..RunQuery::default() }).await.unwrap().remove(0);
    assert_eq!(found, store.run(&run_id("a-2")).await.unwrap().summary, "the list and the run say the same");
    let seen = (
        found.workflow.as_str(),
        found.path.as_deref(),
        found.created_at,
        found.updated_at,
        found.checkpoints,
    );
    assert_eq!(seen, ("nightly", Some("flows/2.yaml"), time(-2), time(0), 1));
    assert!(found.bytes > 0);

    // A recreated run is the newest.
    store.delete(&run_id("m-1")).await.unwrap();
    let mut links = Links::of(&run_id("m-1"));
    let first = links.step();
    create_with(store, links.run(), first).await;
    let found = list(store, &RunQuery { limit: 1, ..RunQuery::default() }).await.unwrap();
    assert_eq!(found[0].run.as_str(), "m-1");
    assert_eq!(found.len(), 6);
}

/// Updates of a run do not change its place in the list.
pub async fn remarks_make_no_run_younger(fixture: impl StoreFixture) {
    let store = fixture.store();
    let run = run_id("r");
    let mut links = Links::of(&run);
    let first = links.step();
    let lease = create_with(&*store, links.run(), first).await;
    for (batch, expect) in
        [(None, None), (Some(time(-5)), Some(time(-5))), (Some(time(7)), Some(time(7))), (None, None)]
    {
        let batch = Batch { updated_at: batch, ..links.step() };
        let written_at = batch.records[0].header().created_at;
        store.append(&[&lease], batch).await.unwrap();
        let expect = expect.unwrap_or(written_at);
        assert_eq!(store.run(&run).await.unwrap().summary.updated_at, expect);
        assert_eq!(list(&*store, &RunQuery::default()).await.unwrap()[0].updated_at, expect);
        let since = |since| RunQuery { since: Some(since), ..RunQuery::default() };
        assert_eq!(list(&*store, &since(expect)).await.unwrap().len(), 1);
        assert_eq!(list(&*store, &since(expect + SignedDuration::from_nanos(1))).await.unwrap().len(), 0);
    }
}

/// A run with a dead holder is `interrupted` or `in_doubt`, whatever its last record says.
pub async fn runs_tell_the_truth(mut fixture: impl StoreFixture) {
    let store = fixture.store();
    let cases = [
        // Written status, in doubt after death, status while held, status after death.
        ("r-running", RunStatus::Running, false, RunStatus::Running, RunStatus::Interrupted),
        ("r-doubtful", RunStatus::Running, true, RunStatus::Running, RunStatus::InDoubt),
        ("r-interrupted", RunStatus::Interrupted, false, RunStatus::Running, RunStatus::Interrupted),
        ("r-waiting", RunStatus::Waiting, false, RunStatus::Running, RunStatus::Waiting),
        ("r-completed", RunStatus::Completed, false, RunStatus::Running, RunStatus::Completed),
    ];
    let mut leases = Vec::new();
    for (name, written, doubtful, ..) in cases {
        let mut links = Links::of(&run_id(name));
        let mut first = links.step();
        let summary = summary_mut(&mut first);
        (summary.status, summary.doubtful) = (written, doubtful);
        summary.step = Some("work".to_owned());
        leases.push(create_with(&*store, links.run(), first).await);
    }

    for (name, written, _, held, _) in cases {
        told(&*store, name, written, held, Some(&crate::records::holder("first"))).await;
    }
    drop((leases, store));
    fixture.reopen().await;

    let store = fixture.store();
    for (name, written, _, _, dead) in cases {
        told(&*store, name, written, dead, None).await;
    }
    // A resumed run is running again.
    let lease = store.acquire(&run_id("r-doubtful"), &main(), &other()).await.unwrap();
    told(&*store, "r-doubtful", RunStatus::Running, RunStatus::Running, Some(&other())).await;
    store.release(lease, None).await.unwrap();
    told(&*store, "r-doubtful", RunStatus::Running, RunStatus::InDoubt, None).await;
}

async fn told(store: &dyn Store, name: &str, written: RunStatus, status: RunStatus, holder: Option<&Holder>) {
    let found = store.run(&run_id(name)).await.unwrap().summary;
    assert_eq!((found.summary.status, found.status), (written, status), "{name}");
    assert_eq!(found.holder.as_ref(), holder, "{name}");
    assert_eq!(found.summary.step.as_deref(), Some("work"), "{name}");
    // The list shows the same status and filters by it.
    let query = RunQuery { statuses: BTreeSet::from([status]), ..RunQuery::default() };
    let listed = list(store, &query).await.unwrap();
    assert_eq!(listed.iter().find(|run| run.run.as_str() == name), Some(&found), "{name}");
}
