//! Random calls to two stores, which must give the same answers: the store in memory is the model.
//!
//! A seed decides a sequence of calls: sound ones, refused ones, repeated ones, crashes, damage. Each call is made to
//! both stores, and both answers are drawn as text, errors by their kind ([`crate::picture`]). At the first difference
//! the test prints the seed, the calls so far, both answers, and the one command that repeats it.
//!
//! What stores may do in their own way is left out: sizes in bytes, names of places, the words of errors, and, once a
//! record of a run is damaged, its summary, since a store may keep that in the very place that is damaged.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::contract::StoreFixture;
use crate::memory::MemoryFixture;

mod call;
mod script;

use call::Side;
use script::Script;

/// Calls in one sequence: long enough for several crashes and repairs in a row, short enough to read.
const CALLS: usize = 150;
/// Sequences in the short form, which must not take longer than a test may.
const SEEDS: u64 = 10;
/// Set to repeat one seed.
const SEED_VARIABLE: &str = "WAYPOST_TEST_SEED";
/// Set to the number of seeds to go through, for the long form.
const SEEDS_VARIABLE: &str = "WAYPOST_TEST_SEEDS";

/// Makes a test of this name that compares a store with the model.
///
/// The second argument is as in [`store_contract`](crate::store_contract). The test goes through a few dozen seeds;
/// `WAYPOST_TEST_SEED` names one, `WAYPOST_TEST_SEEDS` how many.
#[macro_export]
macro_rules! store_differential {
    ($name:ident, $fixture:expr) => {
        #[test]
        fn $name() {
            let place = $crate::differential::Place {
                package: env!("CARGO_PKG_NAME"),
                test: concat!(module_path!(), "::", stringify!($name)),
            };
            $crate::contract::block_on(async {
                for seed in $crate::differential::seeds() {
                    $crate::differential::compare(&place, seed, $fixture).await;
                }
            });
        }
    };
}

/// Where a test stands, for the command that repeats it.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub package: &'static str,
    pub test: &'static str,
}

/// Returns the seeds to go through, as the environment says.
///
/// # Panics
/// If a variable holds no number.
#[doc(hidden)]
pub fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number, not `{text}`")))
    };
    match number(SEED_VARIABLE) {
        Some(seed) => seed..seed + 1,
        None => 0..number(SEEDS_VARIABLE).unwrap_or(SEEDS),
    }
}

/// Makes the calls of a seed to the model and to a fresh store.
///
/// # Panics
/// At the first difference, with what repeats it.
pub async fn compare(place: &Place, seed: u64, subject: impl StoreFixture + 'static) {
    if let Err(difference) = find_difference(seed, CALLS, subject).await {
        // The crate's name is not part of a test's name.
        let test = place.test.split_once("::").map_or(place.test, |(_, test)| test);
        let command = format!("{SEED_VARIABLE}={seed} cargo test -p {} {test}", place.package);
        panic!("seed {seed}, repeated by: {command}\n{difference}");
    }
}

/// How often each kind of call was carried out, and how often refused.
pub type Tally = BTreeMap<&'static str, [u64; 2]>;

/// Makes `calls` calls of a seed to the model and to a fresh store, and counts them.
///
/// # Errors
/// The first difference, as text.
pub async fn find_difference(
    seed: u64,
    calls: usize,
    subject: impl StoreFixture + 'static,
) -> Result<Tally, String> {
    let mut sides = [Side::new(Box::new(MemoryFixture::fresh())), Side::new(Box::new(subject))];
    let mut script = Script::new(seed);
    let mut log = String::new();
    let mut tally = Tally::new();
    for step in 0..calls {
        let call = script.next();
        let _ = writeln!(log, "{step:4}  {call}");
        let [model, subject] = &mut sides;
        let expect = model.perform(&call).await;
        let actual = subject.perform(&call).await;
        if expect.text != actual.text {
            return Err(format!(
                "{log}\nthe model answers:\n{}\n\nthe store answers:\n{}",
                expect.text, actual.text
            ));
        }
        let _ = writeln!(log, "      -> {}", expect.text.lines().next().unwrap_or_default());
        tally.entry(call.name()).or_default()[usize::from(!expect.done)] += 1;
        script.learn(&call, &expect);
        for (run, damaged) in script.touched(&call) {
            let expect = model.picture(&run, damaged).await;
            let actual = subject.picture(&run, damaged).await;
            if expect != actual {
                return Err(format!(
                    "{log}\nthen the model tells:\n{expect}\n\nand the store tells:\n{actual}"
                ));
            }
        }
    }
    Ok(tally)
}
