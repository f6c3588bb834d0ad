//! Random graphs with a crash at every store call, once or repeatedly. Every run must end like the run
//! without crashes, with the same effects per step, and must not rerun steps recorded as finished.
//!
//! A seed makes a graph (`make`). Its steps take notes, fail once, keep results, ask, or must not be
//! repeated. They form sequences, loops, nested forks, items and nested graphs. Permanent failures are
//! collected, or end the run until they are mended. Holds are set before and after steps. The graph runs once
//! without a crash, and then once per store call with a crash at that call (`play`). `WAYPOST_SEED=7
//! WAYPOST_GRAPHS=1` repeats a seed; `WAYPOST_GRAPHS=10000` is the long form.
//!
//! Only external effects count. Effects with the same idempotency key are a single effect. A non-idempotent
//! effect occurs once, plus once per decision to repeat the step.

use crate::contract::StoreFixture;
use crate::faults::faulty::Fault;
use crate::random::seed::Seeded;

#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod make;
#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod play;

use make::Made;
use play::{Disturbance, Played, play};

/// Most crash points per graph in the short form; an even sample if a graph has more calls.
const CALLS_MAX: u64 = 16;
/// Most crash points per graph in the long form, where many graphs find more than many crashes of a single
/// graph.
const CALLS_MAX_OF_LONG: u64 = 5;
/// Number of graphs from which the long form applies.
const LONG: u64 = 100;

/// A kind of store for the graphs.
#[derive(Debug, Clone, Copy)]
pub struct StoreKind {
    /// Creates an empty store.
    pub fresh: fn() -> Box<dyn StoreFixture>,
    /// Whether a single record of a batch can be damaged.
    pub damages: bool,
}

/// Runs random graphs on these kinds of store, in turn.
///
/// `graphs` is the number of graphs unless `WAYPOST_GRAPHS` is set. `again` is the command that repeats this
/// test, without the variables for the seed.
///
/// # Panics
/// If a crash changes the end or the effects of a run.
pub async fn every_crash_ends_the_same(kinds: &[StoreKind], graphs: u64, again: &str) {
    let graphs = setting("WAYPOST_GRAPHS").unwrap_or(graphs);
    let first = setting("WAYPOST_SEED").unwrap_or(1);
    let calls_max = if graphs < LONG { CALLS_MAX } else { CALLS_MAX_OF_LONG };
    let (mut crashes, mut damaged) = (0, 0);
    for seed in first..first + graphs {
        // The test harness prints it only on failure.
        #[expect(clippy::print_stdout, reason = "a random test says first how it is repeated")]
        {
            println!("repeat it with: WAYPOST_SEED={seed} WAYPOST_GRAPHS=1 {again} --nocapture");
        }
        let mut random = Seeded::new(seed ^ 0x5eed);
        let whole = play(kinds[0], &Made::of(seed), Disturbance::default()).await;
        let step = 1 + whole.calls / calls_max;
        let from = 1 + random.below(step);
        for nth in (from..=whole.calls).step_by(step as usize) {
            let kind = kinds[random.below(kinds.len() as u64) as usize];
            for fault in [Fault::DieBefore, Fault::DieAfter] {
                for deaths in [1, 3] {
                    let crash = Disturbance { nth, fault, deaths, damage: None };
                    let crashed = play(kind, &Made::of(seed), crash.clone()).await;
                    same(&whole, &crashed, &crash);
                    crashes += 1;
                }
                if kind.damages {
                    let damage = Some(Seeded::new(seed ^ nth));
                    let crash = Disturbance { nth, fault, deaths: 2, damage };
                    let mended = play(kind, &Made::of(seed), crash.clone()).await;
                    let ends = (mended.status, &mended.state) == (whole.status, &whole.state);
                    assert!(ends, "{crash:?}: {mended:#?}, not {whole:#?}");
                    damaged += 1;
                }
            }
        }
    }
    assert!(crashes > graphs && (damaged > 0 || kinds.iter().all(|kind| !kind.damages)));
}

fn same(whole: &Played, crashed: &Played, crash: &Disturbance) {
    let ends = (crashed.status, &crashed.state) == (whole.status, &whole.state);
    assert!(ends, "{crash:?}: {crashed:#?}, not {whole:#?}");
    assert_eq!(crashed.effects, whole.effects, "{crash:?}");
    let paid: Vec<_> = crashed.paid.keys().collect();
    assert_eq!(paid, whole.paid.keys().collect::<Vec<_>>(), "{crash:?}");
    for (name, times) in &crashed.paid {
        let of = |name: &str| crashed.decided.get(name).copied().unwrap_or(0);
        let decided = of(name) + name.split_once('[').map_or(0, |(step, _)| of(step));
        assert!(
            (1..=1 + decided).contains(times),
            "{crash:?}: {name} was done {times} times, decided {decided}"
        );
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("it is a number"))
}
