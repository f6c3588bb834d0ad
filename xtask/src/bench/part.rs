//! Parts of benchmarks in a separate process, so that another program can count its calls or kill it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use waypost::RunId;
use waypost::engine::{Engine, ResumeOptions, SessionOptions};
use waypost::memory::MemoryStore;
use waypost::record::Durability;
use waypost::store::Store;
use waypost_sqlite::{SqliteOptions, SqliteStore};

use super::append::RECORD_BYTES;
use super::forks::{self, Work};
use super::program::{Row, runtime};
use crate::repo;

/// The run of every part.
pub(super) const RUN: &str = "r-1";

/// Options of the hidden command.
#[derive(Debug, clap::Args)]
pub(crate) struct PartOptions {
    part: Part,
    /// The database, or `memory:`
    store: PathBuf,
    /// How many steps or checkpoints
    #[arg(default_value_t = 0)]
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// Print a byte and exit.
    Nothing,
    /// Run this number of steps.
    Steps,
    /// Create a run with this number of checkpoints, and crash during the next step.
    History,
    /// Resume that run, print a byte, and crash during the first step.
    Resume,
    /// Run a fork with this number of scopes, and print the peak memory.
    Fork,
    /// Run this number of items, each in a scope, and print the peak memory.
    Items,
    /// Run this number of loop iterations, and print the peak memory.
    Passes,
}

/// Returns the command that runs `part`.
///
/// # Errors
/// If the system does not report the path of this program.
pub(super) fn command(part: Part, store: &Path, count: u32) -> anyhow::Result<Command> {
    let mut command = Command::new(repo::this_program()?);
    let name = clap::ValueEnum::to_possible_value(&part).expect("no part is left out of the command line");
    command.args(["bench-part", name.get_name()]).arg(store).arg(count.to_string());
    Ok(command)
}

/// Runs a part.
///
/// # Errors
/// Errors of the store and the engine.
pub(crate) fn run(options: &PartOptions) -> anyhow::Result<()> {
    match options.part {
        Part::Nothing => report_and_die(),
        Part::Steps => steps(options)?,
        Part::History => history(options)?,
        Part::Resume => resume(options)?,
        Part::Fork => forks::print_memory(Work::Fork, store(options)?, options.count)?,
        Part::Items => forks::print_memory(Work::Items, store(options)?, options.count)?,
        Part::Passes => forks::print_memory(Work::Passes, store(options)?, options.count)?,
    }
    Ok(())
}

/// Opens the named store: `memory:`, or a database.
fn store(options: &PartOptions) -> anyhow::Result<Arc<dyn Store>> {
    if options.store == Path::new("memory:") {
        Ok(Arc::new(MemoryStore::new()))
    } else {
        Ok(open(&options.store)?)
    }
}

fn open(path: &Path) -> anyhow::Result<Arc<SqliteStore>> {
    Ok(Arc::new(SqliteStore::open(path, SqliteOptions::default())?))
}

fn steps(options: &PartOptions) -> anyhow::Result<()> {
    let row = Row::new(options.count, RECORD_BYTES);
    runtime()?.block_on(row.run(open(&options.store)?, RUN, Durability::Sync))
}

fn history(options: &PartOptions) -> anyhow::Result<()> {
    let again = Row::failing(options.count + 1, die);
    let engine = Engine::new(open(&options.store)?);
    let record = again.record(RUN, Durability::Async)?;
    let outcome = engine.run_program(&again, record, String::new(), SessionOptions::default());
    anyhow::bail!("the run was to be cut, and ended: {:?}", runtime()?.block_on(outcome)?)
}

fn resume(options: &PartOptions) -> anyhow::Result<()> {
    let again = Row::failing(0, report_and_die);
    let engine = Engine::new(open(&options.store)?);
    let run = RunId::new(RUN)?;
    let outcome = engine.resume_program(&again, &run, ResumeOptions::default());
    anyhow::bail!("the run was to be cut, and ended: {:?}", runtime()?.block_on(outcome)?)
}

/// Exits like a crash: without closing the store or releasing the lease.
fn die() {
    std::process::exit(0);
}

fn report_and_die() {
    // A closed pipe is not an error here.
    let _closed = std::io::stdout().write_all(b".");
    let _closed = std::io::stdout().flush();
    die();
}
