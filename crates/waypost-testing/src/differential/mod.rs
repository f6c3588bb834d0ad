//! Makes random calls to two stores and compares the answers. The memory store is the model.
//!
//! A seed determines a sequence of calls: valid, refused and repeated calls, crashes, and damage. Each call
//! goes to both stores. Both answers are formatted as text, with errors by kind ([`crate::picture`]). At the
//! first difference, the test prints the seed, the calls so far, both answers, and the command that repeats
//! the test.
//!
//! The comparison leaves out store-specific values: byte sizes, place names and error texts. The summary of a
//! run is left out once a record is damaged, because a store may keep it in the damaged place.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::contract::StoreFixture;
use crate::memory::MemoryFixture;

mod call;
mod generator;

use call::{Operation, Side};
use generator::Generator;

/// Calls per sequence: enough for several crashes and repairs, and short enough to read.
const CALLS: usize = 150;
/// Calls between two full comparisons of the touched run.
const PICTURE_CALLS: usize = 3;
/// Sequences in the short form, limited by the time of a test.
const SEEDS: u64 = 10;
/// Variable that selects a single seed.
const SEED_VARIABLE: &str = "WAYPOST_TEST_SEED";
/// Variable with the number of seeds, for the long form.
const SEEDS_VARIABLE: &str = "WAYPOST_TEST_SEEDS";

/// Creates a test with this name that compares a store with the model.
///
/// The second argument is as in [`store_contract`](crate::store_contract). By default, the test runs a few
/// seeds. `WAYPOST_TEST_SEED` selects a single seed, and `WAYPOST_TEST_SEEDS` sets the number of seeds.
#[macro_export]
macro_rules! store_differential {
    ($name:ident, $fixture:expr) => {
        #[test]
        fn $name() {
            let name = $crate::differential::TestName {
                package: env!("CARGO_PKG_NAME"),
                test: concat!(module_path!(), "::", stringify!($name)),
            };
            $crate::contract::block_on(async {
                for seed in $crate::differential::seeds() {
                    $crate::differential::compare(&name, seed, $fixture).await;
                }
            });
        }
    };
}

/// Package and name of a test, for the command line of a repetition.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct TestName {
    pub package: &'static str,
    pub test: &'static str,
}

/// Returns the seeds to run, as set by the environment.
///
/// # Panics
/// If a variable is not a number.
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
/// At the first difference, with the command that repeats the test.
pub async fn compare(name: &TestName, seed: u64, subject: impl StoreFixture + 'static) {
    if let Err(difference) = find_difference(seed, CALLS, subject).await {
        // Test names do not contain the crate name.
        let test = name.test.split_once("::").map_or(name.test, |(_, test)| test);
        let command = format!("{SEED_VARIABLE}={seed} cargo test -p {} {test}", name.package);
        panic!("seed {seed}, repeated by: {command}\n{difference}");
    }
}

/// Per kind of call: how many were applied and how many refused.
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
    let mut generator = Generator::new(seed);
    let mut log = String::new();
    let mut tally = Tally::new();
    for step in 0..calls {
        let call = generator.next();
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
        generator.learn(&call, &expect);
        // Changes persist, so an occasional full comparison finds the same differences for less time.
        let look = step % PICTURE_CALLS == 0
            || matches!(call, Operation::Crash | Operation::Close | Operation::Damage(..));
        let touched = if look { generator.touched(&call) } else { Vec::new() };
        for (run, damaged) in touched {
            let expect = model.picture(&run, damaged).await;
            let actual = subject.picture(&run, damaged).await;
            if expect != actual {
                return Err(format!("{log}\nthen the model has:\n{expect}\n\nand the store has:\n{actual}"));
            }
        }
    }
    Ok(tally)
}
