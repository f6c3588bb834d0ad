//! Clauses about creating runs.

use waypost::record::{End, Header};
use waypost::store::{Page, RunQuery, StoreError};
use waypost::{Digest, ScopePath};

use super::StoreFixture;
use super::support::{create, create_with, main, other, refused};
use crate::picture::{list, picture};
use crate::records::{Links, holder, run_id, run_record, scope, sealed};

/// After `create`, the run, its frozen record and its first batch exist, or none of them.
pub async fn create_is_all_or_nothing(mut fixture: impl StoreFixture) {
    let run = run_id("r-1");
    let frozen = sealed(run_record(&run));
    let mut links = Links::of(&run);
    let (one, two) = (links.record(&main()), links.record(&main()));
    // A forked run starts with the parent's scopes, some of which have ended.
    let (open, ended) = (scope("plan:a"), scope("plan:b"));
    let begun = links.record(&open);
    let header = Header { end: Some(End::Completed), ..links.header(&ended) };
    let done = links.seal(header, &1.into());
    // A record whose `prev` is not the digest of the record before.
    let mut header = links.header(&main());
    header.prev = Some(Digest::of(b"something else"));
    let broken = links.seal(header, &1.into());
    let whole = links.batch(vec![one.clone(), two.clone(), begun.clone(), done.clone()]);
    let mut torn = whole.clone();
    torn.records.push(broken);

    let store = fixture.store();
    refused!(store.create(&frozen, torn, &holder("first")).await, StoreError::Conflict { seq: 3, .. });

    refused!(store.run(&run).await, StoreError::NotFound { .. });
    refused!(store.load(&run, &main(), 1).await, StoreError::NotFound { .. });
    assert_eq!(list(&*store, &RunQuery::default()).await.unwrap(), [], "nothing is listed");

    // The refused run does not block a new run with the same id.
    let lease = store.create(&frozen, whole, &holder("first")).await.unwrap();
    assert_eq!((lease.run(), lease.token()), (&run, waypost::store::FIRST_TOKEN));
    drop((lease, store));
    fixture.reopen().await;

    let store = fixture.store();
    assert_eq!(store.run(&run).await.unwrap().record, frozen);
    for record in [one, two, begun, done] {
        let at = record.header().reference();
        assert_eq!(store.load(&run, &at.scope, at.seq).await.unwrap(), record);
    }
    let heads = store.heads(&run, &Page::default()).await.unwrap().heads;
    let heads: Vec<_> = heads.iter().map(|head| head.record.header().scope.clone()).collect();
    assert_eq!(heads, [main(), open], "what has ended is not among the open scopes");
}

/// `create` refuses an existing run and does not change it.
pub async fn create_refuses_an_existing_run(fixture: impl StoreFixture) {
    let store = fixture.store();
    let run = run_id("r-1");
    let mut links = Links::of(&run);
    let lease = create(&*store, &mut links).await;
    let before = picture(&*store, &run).await;
    let mut again = run_record(&run);
    again.workflow = "another".to_owned();
    let again = sealed(again);

    // While the run is held, both errors are correct.
    let answer = store.create(&again, Links::of(&run).step(), &other()).await;
    refused!(answer, StoreError::Exists { .. } | StoreError::Held { .. });
    assert_eq!(picture(&*store, &run).await, before);

    // The run is free.
    store.release(lease, None).await.unwrap();
    let before = picture(&*store, &run).await;
    refused!(store.create(&again, Links::of(&run).step(), &other()).await, StoreError::Exists { run: found } if found == run);
    assert_eq!(picture(&*store, &run).await, before);
    store.acquire(&run, &ScopePath::main(), &other()).await.unwrap();

    // Another run is unaffected.
    let second = run_id("r-2");
    create_with(&*store, &second, Links::of(&second).step()).await;
}
