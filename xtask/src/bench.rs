//! `cargo xtask bench`: measures Waypost against the raw limits of the same machine.
//!
//! A [`Topic`] has subjects, which do their work in rounds, and demands on the ratio of two subjects. Rounds of
//! all subjects alternate, so that a slow phase of the machine affects all of them. The report shows medians.
//! Nothing here is a timed test: `--short` runs everything once with small counts, and checks only the results.

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
mod postgres;
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
pub(crate) use part::{PartOptions, run as part};

/// Options of `cargo xtask bench`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct BenchOptions {
    /// Run everything once with small counts: checks the results, not the speed
    #[arg(long)]
    short: bool,
    /// Also measure topics with many minutes per round: a `foreach` over 100,000 items
    #[arg(long, conflicts_with = "short")]
    long: bool,
    /// Number of rounds; the median counts [default: 5]
    #[arg(long)]
    rounds: Option<usize>,
    /// Only the topics with this text in the name; several texts are separated by commas
    #[arg(long)]
    only: Option<String>,
    /// The folder for the files, on the disk to be measured [default: bench in the target folder]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Measure this build of xtask, even without optimisation
    #[arg(long)]
    any_build: bool,
}

impl BenchOptions {
    /// Returns the options of the short form.
    pub(crate) fn short() -> Self {
        Self { short: true, ..Self::default() }
    }
}

/// Enough rounds for a median that a single disturbed round cannot change.
const ROUNDS: usize = 5;

/// All topics, in the order of the table.
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
    postgres::topic,
];

/// Measures all topics, prints the tables, and writes `results.md` and `results.json` to the folder.
///
/// # Errors
/// If a benchmark cannot run or its result is wrong. A missed target is not an error.
pub(crate) fn run(options: &BenchOptions) -> anyhow::Result<()> {
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
    refuse_without_server(topics.iter().map(|topic| topic.name), waypost_testing::postgres::require)?;
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

/// Refuses topics that need a server, before the first round: a round takes minutes.
fn refuse_without_server<'t>(
    mut topics: impl Iterator<Item = &'t str>,
    require: impl FnOnce() -> Result<(), &'static str>,
) -> anyhow::Result<()> {
    match topics.any(|topic| topic == postgres::NAME) {
        true => require().map_err(anyhow::Error::msg),
        false => Ok(()),
    }
}

/// Returns the command for the same benchmarks in an optimised build.
fn optimised(options: &BenchOptions) -> std::process::Command {
    let mut command =
        repo::cargo(&["run", "--quiet", "--profile", "bench", "--package", "xtask", "--", "bench"]);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The benchmarks once panicked in the middle, without PostgreSQL.
    #[test]
    fn a_missing_server_is_an_error_before_the_first_round() {
        let refused = refuse_without_server(["items", "postgres"].into_iter(), || Err("missing"));
        assert_eq!(refused.unwrap_err().to_string(), "missing");
        refuse_without_server(["items"].into_iter(), || Err("missing")).unwrap();
    }
}
