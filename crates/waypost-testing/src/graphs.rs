//! Random graphs, crashed at every call to their store and again: they end as the run that never crashed, each step has
//! had its effect as often, and no step that was recorded as finished runs again.
//!
//! A seed makes a graph (`make`): steps that note, fail once, keep, ask, or must not be repeated; sequences, loops,
//! forks in forks, items, graphs in graphs; failures for good, which are collected, or end the run until they are mended;
//! holds before and after steps. It is played once undisturbed, and then once for each call to the store, at which the
//! process dies (`play`). `WAYPOST_SEED=7 WAYPOST_GRAPHS=1` repeats one seed, `WAYPOST_GRAPHS=10000` is the long form.
//!
//! What a step did in the world outside is what counts: an effect under the same idempotency key is the same effect, and
//! what must not be repeated has happened once, and once more for each time that somebody decided so.

use crate::contract::StoreFixture;
use crate::faulty::Fault;
use crate::seed::Seeded;

#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod make;
#[expect(clippy::unwrap_used, reason = "these are tests, although other crates instantiate them")]
mod play;

use make::Made;
use play::{Disturbance, Played, play};

/// Calls at which a graph of the short form crashes, an even sample where there are more.
const CALLS_MAX: u64 = 16;
/// The same of the long form, where many graphs show more than many crashes of one.
const CALLS_MAX_OF_LONG: u64 = 5;
/// From so many graphs on, it is the long form.
const LONG: u64 = 100;

/// A kind of store that graphs are played on.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Makes an empty one.
    pub fresh: fn() -> Box<dyn StoreFixture>,
    /// One record of a batch can be damaged alone.
    pub damages: bool,
}

/// Plays random graphs on stores of these kinds, in turn.
///
/// `graphs`: how many, unless `WAYPOST_GRAPHS` says so. `again`: the command that repeats this test, behind the
/// variables for one seed.
///
/// # Panics
/// If a crash changes how a run ends or what it did.
pub async fn every_crash_ends_the_same(kinds: &[Kind], graphs: u64, again: &str) {
    let graphs = setting("WAYPOST_GRAPHS").unwrap_or(graphs);
    let first = setting("WAYPOST_SEED").unwrap_or(1);
    let calls_max = if graphs < LONG { CALLS_MAX } else { CALLS_MAX_OF_LONG };
    let (mut crashes, mut damaged) = (0, 0);
    for seed in first..first + graphs {
        // Shown by the harness only where the test fails.
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
