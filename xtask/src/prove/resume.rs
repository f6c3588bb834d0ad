//! `cargo xtask prove resume`: plays generated workflows on the engine and compares each resume with the
//! reference model of `waypost-testing`.
//!
//! Each workflow is played undisturbed, and then with crashes at store calls. A defect is printed with its
//! seed and the command that repeats it.

use std::ops::Range;
use std::str::FromStr;

use anyhow::bail;
use clap::ValueEnum;
use waypost_testing::reference::drive;

use crate::output;

/// The kinds of steps in a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Level {
    /// Steps with needs and evidence
    Leaves,
    /// Also fan-outs
    Items,
    /// Also groups with a single pass
    Groups,
    /// Also groups with several passes
    Passes,
    /// Chains: graphs with routes and a shared state
    Chains,
}

impl Level {
    pub(super) fn to_drive(self) -> drive::Level {
        match self {
            Self::Leaves => drive::Level::Leaves,
            Self::Items => drive::Level::Items,
            Self::Groups => drive::Level::Groups,
            Self::Passes => drive::Level::Passes,
            Self::Chains => drive::Level::Chains,
        }
    }

    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// The requests of a person between the rounds of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Requests {
    /// No requests
    None,
    /// Reruns from a step of the main scope, and edits of its steps
    Main,
    /// Also reruns from a step of a child scope
    Any,
}

impl Requests {
    fn to_drive(self) -> drive::Requests {
        match self {
            Self::None => drive::Requests::None,
            Self::Main => drive::Requests::Main,
            Self::Any => drive::Requests::Any,
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// A range of seeds, such as `0..100`.
#[derive(Debug, Clone)]
pub(crate) struct Seeds(Range<u64>);

impl Seeds {
    /// Returns the first `count` seeds.
    pub(super) fn first(count: u64) -> Self {
        Self(0..count)
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.0.clone()
    }
}

impl FromStr for Seeds {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a range of seeds such as `0..100`");
        let (from, to) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| wrong());
        let range = number(from)?..number(to)?;
        if range.is_empty() { Err(wrong()) } else { Ok(Self(range)) }
    }
}

/// Compare resumes of generated workflows with the reference model
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeProofOptions {
    /// Seeds of the workflows
    #[arg(long, default_value = "0..50")]
    seeds: Seeds,
    /// Only workflows of this level [default: all]
    #[arg(long)]
    level: Vec<Level>,
    /// Most crashes per round of a workflow, an even sample of its store calls
    #[arg(long, default_value_t = 12)]
    crashes: u64,
    /// Requests of a person between the rounds
    #[arg(long, default_value = "none")]
    requests: Requests,
    /// Stop after this number of defects per level
    #[arg(long, default_value_t = 10)]
    defects: usize,
}

/// Seeds per level in the short form: under a minute.
const SHORT_SEEDS: u64 = 60;
/// Seeds per level in the full form.
const FULL_SEEDS: u64 = 2_500;

impl ResumeProofOptions {
    /// Returns the seeds for `prove` without a subcommand.
    pub(super) fn of_proof(is_full: bool) -> Self {
        let seeds = Seeds(0..if is_full { FULL_SEEDS } else { SHORT_SEEDS });
        Self {
            seeds,
            level: Vec::new(),
            crashes: if is_full { 4 } else { 2 },
            requests: Requests::None,
            defects: 10,
        }
    }
}

/// Plays all workflows, and fails if there is a defect.
pub(super) fn run(options: &ResumeProofOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let levels = if options.level.is_empty() { Level::value_variants() } else { &options.level };
    let mut count = 0;
    for level in levels {
        let mut found: Vec<String> = Vec::new();
        let mut played = 0;
        for seed in options.seeds.0.clone() {
            if found.len() == options.defects {
                break;
            }
            played += 1;
            let requests = options.requests.to_drive();
            let defect = drive::find(seed, level.to_drive(), requests, options.crashes);
            let defect = runtime.block_on(defect).map(|defect| defect.to_string());
            if let Some(defect) = &defect {
                output::say(format!("{defect}\n  again: {}", again(options, *level, seed)));
            }
            found.extend(defect);
        }
        output::say(format!("{}: {} of {played} workflows have a defect", level.name(), found.len()));
        count += found.len();
    }
    if count > 0 {
        bail!("{count} workflows are not resumed as in the reference model");
    }
    Ok(())
}

/// Returns the command that replays a single workflow.
fn again(options: &ResumeProofOptions, level: Level, seed: u64) -> String {
    let (level, next, crashes, requests) = (level.name(), seed + 1, options.crashes, options.requests.name());
    format!(
        "cargo xtask prove resume --level {level} --seeds {seed}..{next} --crashes {crashes} --requests \
         {requests}"
    )
}
