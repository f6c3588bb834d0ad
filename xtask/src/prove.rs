//! `cargo xtask prove`: kills the real `waypost` before and after every system call, and again during
//! recovery. Checks that nothing is lost, repeated, skipped or left over.
//!
//! The rig is tested first on a toy with planted mistakes, each of which must be found. Kills cannot show a
//! missing sync; the simulated disk in `waypost-testing` does.

mod calls;
mod command;
mod full;
mod mutants;
mod promise;
mod resume;
mod rig;
mod sys;
mod toy;
mod tracer;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use crate::{output, repo};
use rig::{Played, Subject, Workflow, play};
use tracer::{Kill, Victim, When};

pub(crate) use command::{StepOptions, step};
pub(crate) use toy::{ToyOptions, run as toy};
pub(crate) use tracer::trace_me;

/// The operation to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// A run from its creation to its end.
    Save,
    /// A run with a retention of 2, which prunes states.
    Rotation,
    /// A resume of a run that was killed half-way.
    Resume,
    /// A run and then its resume.
    Twice,
    /// Runs on disks that are too small, and resumes after the disk grows, without kills.
    Full,
}

/// The store to test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    Sqlite,
    File,
    /// The store of the toy, which tests the rig.
    Toy,
}

impl Store {
    /// Returns the KiB of a disk that holds a complete run.
    fn kib(self) -> u64 {
        match self {
            Self::Sqlite => 640,
            Self::File | Self::Toy => 256,
        }
    }

    /// The stores of `waypost`.
    const REAL: [Self; 2] = [Self::Sqlite, Self::File];

    /// Returns the parts of the store URL before and after a folder.
    fn url(self) -> (String, String) {
        let (scheme, rest) = match self {
            Self::Sqlite => ("sqlite:", "waypost.db"),
            Self::File => ("file:", "store"),
            Self::Toy => ("toy:", ""),
        };
        (scheme.to_owned(), rest.to_owned())
    }
}

/// A rig with its own options.
#[derive(Debug, clap::Subcommand)]
enum Rig {
    /// Compare resumes of generated workflows with the reference model
    Resume(resume::ResumeProofOptions),
    /// Compare the built command with the reference model, with a kill in each round
    Command(command::CommandProofOptions),
    /// Switch off the rules of the engine in turn: the plays of `resume` must find a defect each time
    Mutants(mutants::MutantOptions),
}

/// Kill `waypost` at every system call and check its promises
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ProofOptions {
    #[command(subcommand)]
    rig: Option<Rig>,
    /// Kill at few calls, evenly spread: under three minutes (default)
    #[arg(long, conflicts_with = "full")]
    short: bool,
    /// Kill before and after every call
    #[arg(long)]
    full: bool,
    /// Only check that planted mistakes are found
    #[arg(long = "self")]
    itself: bool,
    /// Only this store
    #[arg(long)]
    store: Vec<Store>,
    /// Only this operation
    #[arg(long = "op")]
    operation: Vec<Operation>,
    /// Only kill at this call, such as `12:before` or `7:after` (counted from 1); the second kills the resume
    #[arg(long, requires = "store", requires = "operation")]
    kill: Vec<Moment>,
    /// The process to kill [default: the engine, and in full form also everything at once]
    #[arg(long)]
    victim: Option<Victim>,
    /// The planted mistake of the toy, for `--store toy`
    #[arg(long, default_value = "none")]
    mistake: toy::Mistake,
    /// The `waypost` program to test instead of this workspace's
    #[arg(long)]
    program: Option<PathBuf>,
}

impl ProofOptions {
    fn victims(&self) -> Vec<Victim> {
        match self.victim {
            Some(victim) => vec![victim],
            None if self.full => vec![Victim::Engine, Victim::All],
            None => vec![Victim::Engine],
        }
    }
}

/// A moment of a run, as on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    at: u64,
    when: When,
}

impl FromStr for Moment {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (at, when) = text.split_once(':')?;
            let at = at.parse().ok().filter(|at| *at > 0)?;
            Some(Self { at, when: When::from_str(when, false).ok()? })
        };
        parse().ok_or_else(|| "a moment looks like `12:before` or `7:after`".to_owned())
    }
}

/// Number of kills per start, spread evenly.
#[derive(Debug, Clone, Copy)]
struct Counts {
    once: u64,
    /// Number of first kills that are followed by a second kill.
    twice: u64,
}

/// Under three minutes on two cores, for all stores and the test of the rig.
const SHORT: Counts = Counts { once: 36, twice: 4 };

/// Every call: a trace of the longest run has far fewer.
const FULL: Counts = Counts { once: u64::MAX, twice: 40 };

/// Fewest checkpoints that an operation must acknowledge before its kills; fewer prove nothing.
const ACKNOWLEDGED_MIN: usize = 10;

/// The size unit of a small disk: a memory page.
const FULL_KIB: u64 = 4;

/// Units between two disk sizes in the short form.
const FULL_STEPS: u64 = 4;

/// Steps of a run: enough to pass an output on, with steps before and after.
const STEPS: usize = 4;

/// With a retention of 2, some states are pruned.
const STEPS_OF_ROTATION: usize = 6;

/// The rigs that are tests, by package: the tests try a sample, the full form everything.
const RIGS: [(&str, &str); 3] =
    [("waypost", "file_rig::"), ("waypost", "recorder::crash"), ("waypost-sqlite", "damage::")];

/// Runs the rig.
pub(crate) fn run(options: &ProofOptions) -> anyhow::Result<()> {
    match &options.rig {
        Some(Rig::Resume(options)) => return resume::run(options),
        Some(Rig::Command(options)) => return command::run(options),
        Some(Rig::Mutants(options)) => return mutants::run(options),
        None => {}
    }
    let counts = if options.full { FULL } else { SHORT };
    if options.kill.is_empty() {
        prove_rig(counts)?;
    }
    if options.itself {
        return Ok(());
    }
    let is_all = options.kill.is_empty() && options.store.is_empty() && options.operation.is_empty();
    if is_all {
        resume::run(&resume::ResumeProofOptions::of_proof(options.full))?;
        command::run(&command::CommandProofOptions::of_proof(options.full))?;
    }
    if options.full && is_all {
        for (package, rig) in RIGS {
            let test = ["test", "--package", package, "--test", "it", rig];
            repo::run(repo::cargo(&test).env("WAYPOST_RIG_SHARE", "1"))?;
        }
    }
    let stores = if options.store.is_empty() { &Store::REAL[..] } else { &options.store };
    let operations =
        if options.operation.is_empty() { Operation::value_variants() } else { &options.operation };
    for store in stores {
        let program = match store {
            Store::Sqlite | Store::File => waypost(options)?,
            Store::Toy => toy::command(options.mistake)?,
        };
        for operation in operations {
            let subject = Subject { program: program.clone(), store: store.url() };
            let (operation, mistake) = (*operation, options.mistake);
            if operation == Operation::Full {
                if *store != Store::Toy {
                    let proof = Proof { subject, operation, victim: Victim::Engine, mistake };
                    output::say(proof.fill(*store, counts)?);
                }
                continue;
            }
            for victim in options.victims() {
                let proof = Proof { subject: subject.clone(), operation, victim, mistake };
                if options.kill.is_empty() {
                    output::say(proof.run(counts)?);
                } else {
                    proof.repeat(&options.kill)?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the program to test, and builds it unless given.
fn waypost(options: &ProofOptions) -> anyhow::Result<Vec<OsString>> {
    if let Some(program) = &options.program {
        return Ok(vec![program.canonicalize().context("no such program")?.into()]);
    }
    Ok(vec![built_waypost()?.into()])
}

/// Builds `waypost` and returns the path of the program.
fn built_waypost() -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo).args(["build", "--quiet", "--package", "waypost-cli"]).status()?;
    if !built.success() {
        bail!("`waypost` could not be built");
    }
    let this = std::env::current_exe().context("cannot tell which program this is")?;
    Ok(this.with_file_name("waypost"))
}

/// Checks that the rig finds each planted mistake, and nothing in the toy without a mistake.
fn prove_rig(counts: Counts) -> anyhow::Result<()> {
    let of = |mistake| -> anyhow::Result<Proof> {
        let subject = Subject { program: toy::command(mistake)?, store: Store::Toy.url() };
        Ok(Proof { subject, operation: Operation::Save, victim: Victim::Engine, mistake })
    };
    output::say(of(toy::Mistake::None)?.run(counts)?);
    for mistake in toy::Mistake::ALL {
        match of(mistake)?.run(FULL) {
            Ok(tally) => bail!("the rig is blind: it lets the mistake {mistake:?} pass: {tally}"),
            Err(error) => output::say(format!("planted, and seen: {mistake:?}: {error:#}")),
        }
    }
    Ok(())
}

/// An operation of a program.
struct Proof {
    subject: Subject,
    operation: Operation,
    victim: Victim,
    /// The planted mistake, if the subject is the toy.
    mistake: toy::Mistake,
}

/// The coverage of a proof.
#[derive(Debug, Default)]
struct Tally {
    what: String,
    calls: usize,
    kills: usize,
    acknowledged: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, calls, kills, acknowledged } = self;
        write!(
            f,
            "{what}: {calls} calls, {kills} kills, {acknowledged} acknowledged checkpoints, nothing lost"
        )
    }
}

impl Proof {
    fn workflow(&self) -> Workflow {
        match self.operation {
            Operation::Save | Operation::Resume | Operation::Twice | Operation::Full => {
                Workflow::new(STEPS, None)
            }
            Operation::Rotation => Workflow::new(STEPS_OF_ROTATION, Some(2)),
        }
    }

    fn kill(&self, at: u64, when: When) -> Kill {
        Kill { at, when, victim: self.victim }
    }

    /// Kills at the requested number of calls.
    fn run(&self, counts: Counts) -> anyhow::Result<Tally> {
        let workflow = self.workflow();
        let whole = play(&self.subject, &workflow, &[]).context("it does not even run unharmed")?;
        if let Some(broken) = whole.broken.first() {
            bail!("{broken}, without any kill");
        }
        let total = whole.calls[0].len() as u64;
        let half = self.kill(total / 2, When::After);
        let mut tally = Tally { what: self.to_string(), calls: whole.calls[0].len(), ..Tally::default() };
        let firsts = match self.operation {
            Operation::Save | Operation::Rotation | Operation::Full => self.kills(total, counts.once),
            Operation::Resume => vec![half],
            Operation::Twice => self.kills(total, counts.twice),
        };
        let seconds = match self.operation {
            Operation::Save | Operation::Rotation | Operation::Full => 0,
            Operation::Resume => counts.once,
            Operation::Twice => counts.twice,
        };
        for first in firsts {
            if seconds == 0 {
                self.one(&workflow, &whole, &[first], &mut tally)?;
                continue;
            }
            // A resume makes at most as many calls as the run; if it makes fewer, the last kills do not
            // happen.
            let length =
                self.one(&workflow, &whole, &[first, self.kill(u64::MAX, When::Before)], &mut tally)?;
            for second in self.kills(length, seconds) {
                self.one(&workflow, &whole, &[first, second], &mut tally)?;
            }
        }
        if tally.acknowledged < ACKNOWLEDGED_MIN {
            bail!("{tally}: that is too little to have shown anything");
        }
        Ok(tally)
    }

    /// Runs on disks of increasing size, from too small for anything to large enough for everything.
    fn fill(&self, store: Store, counts: Counts) -> anyhow::Result<String> {
        let step = if counts.once == u64::MAX { 1 } else { FULL_STEPS };
        let sizes = (1..=store.kib()).filter(|kib| kib.is_multiple_of(FULL_KIB * step));
        let scheme = &self.subject.store.0;
        let rest = Path::new(full::MOUNTED).join(&self.subject.store.1);
        let rest = rest.into_os_string().into_string().ok().context("names of ours are text")?;
        let subject = Subject { program: self.subject.program.clone(), store: (scheme.clone(), rest) };
        let Some(tally) = full::fill(&subject, &self.workflow(), sizes)? else {
            return Ok(format!("{scheme} Full: SKIPPED, nothing is shown: no disk can be mounted here"));
        };
        let full::FullTally { roomy, refused_at_once, refused_later } = tally;
        let what = format!(
            "{scheme} Full: {roomy} runs had room, {refused_at_once} were refused at once, {refused_later} later"
        );
        if roomy == 0 || refused_at_once == 0 || refused_later == 0 {
            bail!("{what}: that shows too little");
        }
        Ok(format!("{what}, nothing lost"))
    }

    /// Plays a run and returns the number of calls in its last traced start.
    fn one(
        &self,
        workflow: &Workflow,
        whole: &Played,
        kills: &[Kill],
        tally: &mut Tally,
    ) -> anyhow::Result<u64> {
        let played = play(&self.subject, workflow, kills).with_context(|| self.command(kills))?;
        if let Some(broken) = played.broken.first() {
            let at = played.kills.iter().map(ToString::to_string).collect::<Vec<_>>().join(", then ");
            bail!("{broken} (killed at {at})\n  again: {}", self.command(kills));
        }
        if played.state != whole.state {
            bail!(
                "it ended with {} instead of {}\n  again: {}",
                played.state,
                whole.state,
                self.command(kills)
            );
        }
        tally.kills += played.kills.len();
        tally.acknowledged += played.acknowledged;
        Ok(played.calls.last().map_or(0, Vec::len) as u64)
    }

    /// Replays a run that broke a promise, and prints its story.
    fn repeat(&self, moments: &[Moment]) -> anyhow::Result<()> {
        let kills: Vec<Kill> = moments.iter().map(|moment| self.kill(moment.at, moment.when)).collect();
        let whole = play(&self.subject, &self.workflow(), &[])?;
        let played = play(&self.subject, &self.workflow(), &kills)?;
        output::say(story(&played, &kills));
        if !played.broken.is_empty() || played.state != whole.state {
            bail!("promises were broken, or the state is not {}", whole.state);
        }
        Ok(())
    }

    /// Returns `count` kills spread evenly over `total` calls, alternating before and after. Returns all
    /// kills, before and after each call, if `count` suffices.
    fn kills(&self, total: u64, count: u64) -> Vec<Kill> {
        if total * 2 <= count {
            return (1..=total)
                .flat_map(|at| [self.kill(at, When::Before), self.kill(at, When::After)])
                .collect();
        }
        let at = |index: u64| 1 + index * total.saturating_sub(1) / count.saturating_sub(1).max(1);
        let when = |index: u64| if index.is_multiple_of(2) { When::Before } else { When::After };
        (0..count).map(|index| self.kill(at(index), when(index))).collect()
    }

    /// Returns the command that replays a run.
    fn command(&self, kills: &[Kill]) -> String {
        let name =
            |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        let mut words = vec!["cargo xtask prove".to_owned()];
        words.extend(self.subject.store.0.strip_suffix(':').map(|store| format!("--store {store}")));
        words.extend(name(self.operation.to_possible_value()).map(|operation| format!("--op {operation}")));
        words.extend(name(self.victim.to_possible_value()).map(|victim| format!("--victim {victim}")));
        if self.mistake != toy::Mistake::None {
            words
                .extend(name(self.mistake.to_possible_value()).map(|mistake| format!("--mistake {mistake}")));
        }
        for kill in kills {
            words
                .extend(name(kill.when.to_possible_value()).map(|when| format!("--kill {}:{when}", kill.at)));
        }
        words.join(" ")
    }
}

/// Formats a replayed run: every counted call, the kills, and the observations after each start.
fn story(played: &Played, kills: &[Kill]) -> String {
    let mut text = String::new();
    for (index, start) in played.starts.iter().enumerate() {
        text.push_str(&format!("start {index}\n"));
        for (number, call) in (1..).zip(played.calls.get(index).into_iter().flatten()) {
            let kill = kills.get(index).filter(|kill| kill.at == number && played.kills.len() > index);
            let mark = kill.map(|kill| format!("   <- killed {:?}", kill.when)).unwrap_or_default();
            text.push_str(&format!("{number:>5} {call}{mark}\n"));
        }
        text.push_str(&format!("  acknowledged {:?}\n", start.acknowledged));
        text.push_str(&format!("  printed as completed {:?}\n", start.completed));
        text.push_str(&format!("  trace {:?}\n", start.trace));
        for checkpoint in start.checkpoints.iter().flatten() {
            text.push_str(&format!("  {checkpoint:?}\n"));
        }
    }
    text.push_str(&format!("state {}\nbroken: {:#?}", played.state, played.broken));
    text
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} (kills {:?})", self.subject.store.0, self.operation, self.victim)
    }
}
