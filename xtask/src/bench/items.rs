//! The command line with many items: the cost per item of a `foreach` over a file.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Instant;

use anyhow::ensure;

use super::command::Waypost;
use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit};

const FEW: &str = "`waypost run`, an item of 1,000 from a file";
const MANY: &str = "`waypost run`, an item of 10,000 from a file";
const MOST: &str = "`waypost run`, an item of 100,000 from a file";

/// The counts in the target.
const FEW_COUNT: u32 = 1_000;
const MANY_COUNT: u32 = 10_000;
const MOST_COUNT: u32 = 100_000;
/// More items than run at once, and quick to finish.
const FEW_COUNT_SHORT: u32 = 5;
const MANY_COUNT_SHORT: u32 = 20;

/// A step per item that starts the cheapest possible process, and a step that reports the number of
/// successes.
const FLOW: &str = r#"defaults: { shell: sh }
steps:
  - id: each
    foreach: { items: { file: items.txt }, max_parallel: 2, steps: [{ id: work, run: ":" }] }
  - id: count
    run: echo "$OK of $ALL" > counted
    env: { OK: "${{ steps.each.succeeded }}", ALL: "${{ steps.each.total }}" }
"#;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("items")?;
    let program = Rc::new(Waypost::default());
    let subject = |name, count| {
        let (waypost, folder) = (Rc::clone(&program), folder.clone());
        Measured::new(name, Unit::Milliseconds, move || run(&waypost, &folder, count))
    };
    let among = |claim, ours| Demand { claim, ours, limit: Some(FEW), bound: Bound::AtMost(1.3) };
    let mut subjects = vec![
        subject(FEW, bench.count_or(FEW_COUNT, FEW_COUNT_SHORT)),
        subject(MANY, bench.count_or(MANY_COUNT, MANY_COUNT_SHORT)),
    ];
    let mut demands = vec![among("an item of the command costs no more among 10,000 than among 1,000", MANY)];
    if bench.is_long() {
        subjects.push(subject(MOST, MOST_COUNT));
        demands.push(among("nor among 100,000", MOST));
    }
    Ok(Topic { name: "items", subjects, demands })
}

/// Returns milliseconds per item, including the start of command and store, the list, and the join.
fn run(waypost: &Waypost, folder: &Path, count: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let mut items = String::new();
    for item in 1..=count {
        writeln!(items, "item-{item}")?;
    }
    std::fs::write(folder.path().join("items.txt"), items)?;
    std::fs::write(folder.path().join("waypost.yaml"), FLOW)?;
    let mut command = waypost.command(folder.path())?;
    command.args(["run", "-q"]).stdout(Stdio::null());

    let start = Instant::now();
    let status = command.status()?;
    let figure = measure::milliseconds(count, start);

    ensure!(status.success(), "`waypost run` ended with {status}");
    let counted = std::fs::read_to_string(folder.path().join("counted"))?;
    ensure!(counted == format!("{count} of {count}\n"), "of {count} items it counted {counted}");
    Ok(figure)
}
