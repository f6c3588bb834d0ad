//! `cargo xtask bench`: our figures beside the raw limits of the same machine, from the same run.
//!
//! A [`Topic`] has subjects, of which each does its work once a round, and demands, each a ratio of two subjects.
//! The rounds of all subjects take turns, so that a disk or a processor that slows down for a while slows all of
//! them; what is reported is the median. Nothing here is a timed test: `--short` runs everything once, small, for
//! its assertions only, and misses no target.

mod append;
mod command;
mod economy;
mod engine;
mod evidence;
mod files;
mod forks;
mod hash;
mod items;
mod measure;
mod part;
mod program;
mod recovery;
mod rename;
mod resume;
mod runs;
mod spawn;
mod sqlite;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::{output, repo};
use measure::{Bench, Form, Topic};
pub(crate) use part::{Options as PartOptions, run as part};

/// What to measure, and how well.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Run everything once with small counts: shows that it works, not how fast
    #[arg(long)]
    short: bool,
    /// Measure also what takes many minutes a round: a `foreach` over 100,000 items
    #[arg(long, conflicts_with = "short")]
    long: bool,
    /// Rounds, of which the median counts [default: 5]
    #[arg(long)]
    rounds: Option<usize>,
    /// Only the topics whose name contains this text, or one of several with commas between them
    #[arg(long)]
    only: Option<String>,
    /// The folder to write in, on the disk to be measured [default: bench in the target folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Measure this build of xtask, even if it is not an optimised one
    #[arg(long)]
    any_build: bool,
}

impl Options {
    /// Everything once, for its assertions only.
    pub(crate) fn short() -> Self {
        Self { short: true, ..Self::default() }
    }
}

/// Enough for a median that one disturbed round cannot move.
const ROUNDS: usize = 5;

/// Every topic, in the order of the table.
const TOPICS: &[fn(&Bench) -> anyhow::Result<Topic>] = &[
    append::topic,
    sqlite::topic,
    runs::topic,
    rename::topic,
    files::topic,
    hash::topic,
    evidence::topic,
    engine::topic,
    forks::topic,
    economy::topic,
    economy::large_topic,
    economy::results_topic,
    recovery::topic,
    resume::topic,
    spawn::topic,
    command::topic,
    items::topic,
];

/// Measures, prints the tables, and leaves them as `results.md` and `results.json` in the folder.
///
/// # Errors
/// When a benchmark cannot run, or an assertion about its result does not hold. A missed target is no error.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if cfg!(debug_assertions) && !options.short && !options.any_build {
        return repo::run(&mut optimised(options));
    }
    let dir = options.dir.clone().unwrap_or_else(|| repo::target_dir().join("bench"));
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let form = match (options.short, options.long) {
        (true, _) => Form::Short,
        (false, true) => Form::Long,
        (false, false) => Form::Usual,
    };
    let bench = Bench::new(&dir, form)?;
    let mut topics = Vec::new();
    for topic in TOPICS {
        topics.push(topic(&bench)?);
    }
    if let Some(only) = &options.only {
        topics.retain(|topic| only.split(',').any(|part| topic.name.contains(part)));
        ensure!(!topics.is_empty(), "there is no topic `{only}`");
    }
    let rounds = if options.short { 1 } else { options.rounds.unwrap_or(ROUNDS).max(1) };
    for round in 1..=rounds {
        output::note(format!("round {round} of {rounds}"));
        for topic in &mut topics {
            topic.measure().with_context(|| format!("benchmark `{}`", topic.name))?;
        }
    }
    if options.short {
        output::say(format!("All {} benchmarks ran, and their results were right.", topics.len()));
        return Ok(());
    }
    report(&dir, &topics)
}

/// The same benchmarks by an optimised build.
fn optimised(options: &Options) -> std::process::Command {
    let mut command = repo::cargo(&["run", "--quiet", "--release", "--package", "xtask", "--", "bench"]);
    if let Some(rounds) = options.rounds {
        command.arg("--rounds").arg(rounds.to_string());
    }
    if options.long {
        command.arg("--long");
    }
    if let Some(only) = &options.only {
        command.arg("--only").arg(only);
    }
    if let Some(dir) = &options.dir {
        command.arg("--dir").arg(std::path::absolute(dir).as_ref().unwrap_or(dir));
    }
    command
}

fn report(dir: &Path, topics: &[Topic]) -> anyhow::Result<()> {
    let tables = table::tables(topics);
    for table in &tables {
        output::say(table.to_text());
    }
    let markdown: Vec<String> = tables.iter().map(table::Table::to_markdown).collect();
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write("results.md", markdown.join("\n"))?;
    write("results.json", serde_json::to_string_pretty(&table::to_json(topics))?)?;
    output::note(format!("written: {}", dir.join("results.md").display()));
    Ok(())
}
