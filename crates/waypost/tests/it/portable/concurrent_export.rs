//! A run that continues during its export.

use std::sync::Arc;

use waypost::memory::MemoryStore;
use waypost::portable::{ExportError, Portable};
use waypost::record::Position;
use waypost::store::Store as _;
use waypost_testing::faulty::{Call, FaultyStore};
use waypost_testing::records::scope;

use super::{Story, fans_out, main_scope, opened_by};

#[tokio::test]
async fn a_run_that_joins_while_its_scopes_are_read_is_not_exported() {
    // Given a run inside a fan-out that joins as soon as its scopes are listed.
    let mut story = Story::new(MemoryStore::new());
    story.add(&main_scope(), Position::default(), |_| ()).await;
    story.add(&scope("each:a"), opened_by(2), |_| ()).await;
    story.add(&main_scope(), fans_out("each", 2, None), |_| ()).await;
    let (join, lease) = (story.links.step(), story.lease.clone().unwrap());
    let busy = FaultyStore::around(Arc::new(story.store.clone()));
    let below = story.store.clone();
    busy.meanwhile(|call| matches!(call, Call::Scan(scan) if scan.seq_max == Some(1)), async move {
        below.append(&[&lease], join).await.unwrap();
    });

    let overtaken = Portable::of(busy.as_ref(), &story.at(&main_scope(), 2)).await.unwrap_err();

    assert!(matches!(overtaken, ExportError::Overtaken { .. }), "{overtaken:?}");
    assert!(story.export(&main_scope(), 3).await.is_ok());
}
