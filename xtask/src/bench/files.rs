//! A durable run on the file store, against its minimum cost.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use waypost::file::FileStore;
use waypost::record::Durability;
use waypost::store::Store;

use super::append::RECORD_BYTES;
use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit};
use super::program::{Row, runtime};
use super::rename;

const ONE: &str = "one run on files, steps of 1 KB state";
/// About half a second on a fast disk.
const STEPS: u32 = 1_000;
const RUN: &str = "r-1";

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("files")?;
    let steps = bench.count(STEPS);
    let subject = Measured::new(ONE, Unit::PerSecond, move || one(&folder, steps));
    let demand = Demand {
        claim: "a step in files costs little more than its file",
        ours: ONE,
        limit: Some(rename::NAME),
        bound: Bound::AtLeast(0.6),
    };
    Ok(Topic { name: "files", subjects: vec![subject], demands: vec![demand] })
}

/// Returns steps per second, including creation and end of the run.
fn one(folder: &Path, steps: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let store: Arc<dyn Store> = Arc::new(FileStore::open(folder.path())?);
    let row = Row::new(steps, RECORD_BYTES);
    runtime()?.block_on(async {
        let start = Instant::now();
        row.run(Arc::clone(&store), RUN, Durability::Sync).await?;
        let figure = measure::per_second(steps, start);

        row.check(store.as_ref(), RUN).await?;
        store.close().await?;
        Ok(figure)
    })
}
