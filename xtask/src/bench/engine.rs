//! The engine alone: processor time of steps on the memory store.

use std::sync::Arc;

use waypost::memory::MemoryStore;
use waypost::record::Durability;
use waypost::store::Store;

use super::measure::{Bench, Bound, Demand, Measured, Topic, Unit, thread_time};
use super::part::RUN;
use super::program::{Row, runtime};

const NAME: &str = "engine alone, a step of 100 bytes state";

/// Enough steps that the creation of the run does not matter.
const STEPS: u32 = 10_000;
/// The size in the target.
const STATE_BYTES: usize = 100;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let steps = bench.count(STEPS);
    let subject = Measured::new(NAME, Unit::CpuMicroseconds, move || round(steps));
    let little = Demand {
        claim: "the engine adds little to a step",
        ours: NAME,
        limit: None,
        bound: Bound::AtMost(5.0),
    };
    Ok(Topic { name: "engine", subjects: vec![subject], demands: vec![little] })
}

fn round(steps: u32) -> anyhow::Result<f64> {
    let row = Row::new(steps, STATE_BYTES);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let runtime = runtime()?;

    let start = thread_time();
    runtime.block_on(row.run(Arc::clone(&store), RUN, Durability::Sync))?;
    let used = thread_time() - start;

    runtime.block_on(row.check(store.as_ref(), RUN))?;
    Ok(used.as_secs_f64() * 1e6 / f64::from(steps))
}
