//! `cargo xtask prove command`: plays generated workflows through the built command, in lockstep with the
//! reference model, and then with a `kill -9` at a random moment of each round.
//!
//! Each step starts this program again ([`step`]), which notes its execution in a log. The play without a kill
//! is compared with the executions of the model and with the printed plan; each play with its files, outputs
//! and exit code.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tempfile::TempDir;
use waypost_testing::reference::definition::StepPath;
use waypost_testing::reference::generate::Features;
use waypost_testing::reference::lockstep::{self, HALF, Lockstep, RoundOutcome, StepInputs};
use waypost_testing::seed::Seeded;

use super::resume::Seeds;
use crate::{output, repo};

const RUN: &str = "r";
const WORKFLOW: &str = "flow.yaml";
const LOG: &str = "executed.log";
const INPUTS: &str = "inputs.json";
const FILES: &str = "files";
const SCRIPT: &str = "play.sh";
/// Most sessions per round; more is a defect.
const SESSIONS_MAX: usize = 20;
/// Latest time of a kill: a round takes about as long.
const KILL_MILLIS_MAX: u64 = 250;
/// Time for the steps of a killed session to end.
const STEPS_END: Duration = Duration::from_millis(50);
/// The executions that a kill can repeat: `max_parallel` steps of the workflow, each with a hook.
const INTERRUPTED_MAX: usize = 4;
const EXITS_FAILED: [i32; 2] = [1, 4];
const EXIT_DEAD_LETTERS: i32 = 3;
const EXIT_NO_RUN: i32 = 5;
const EXIT_IN_DOUBT: i32 = 8;

/// Sets of features, such as `failures+hooks`. Without `inplace`: the engine reruns an edit in place
/// with the result of the base, the model reuses the result.
const MIXES: [&str; 10] = [
    "base",
    "hooks",
    "failures+letters",
    "edits",
    "from",
    "failures+hooks+edits",
    "letters+from+hooks",
    "failures+scopes",
    "failures+scopes+rollback",
    "letters+from+hooks+rollback",
];

/// Compare the built command with the reference model, with a kill in each round
#[derive(Debug, clap::Args)]
pub(crate) struct CommandProofOptions {
    /// Seeds of the workflows
    #[arg(long, default_value = "0..10")]
    seeds: Seeds,
    /// Only workflows with these features, joined by `+` [default: several sets]
    #[arg(long)]
    features: Vec<String>,
    /// Plays of each workflow with a kill in each round
    #[arg(long, default_value_t = 1)]
    kills: u64,
    /// Stop after this number of defects per set of features
    #[arg(long, default_value_t = 10)]
    defects: usize,
}

/// Seeds per set of features.
const SEEDS: (u64, u64) = (2, 125);

impl CommandProofOptions {
    /// Returns the seeds for `prove` without a subcommand.
    pub(super) fn of_proof(is_full: bool) -> Self {
        let (short, full) = SEEDS;
        let seeds = Seeds::first(if is_full { full } else { short });
        Self { seeds, features: Vec::new(), kills: 1, defects: 10 }
    }
}

/// Plays all workflows, and fails if there is a defect.
pub(super) fn run(options: &CommandProofOptions) -> anyhow::Result<()> {
    super::built_waypost()?;
    let mixes: Vec<String> = match options.features.is_empty() {
        true => MIXES.map(str::to_owned).to_vec(),
        false => options.features.clone(),
    };
    let mut count = 0;
    for mix in mixes {
        let features = lockstep::features(&mix).map_err(anyhow::Error::msg)?;
        let (mut found, mut played) = (0, 0);
        for seed in options.seeds.range() {
            if found == options.defects {
                break;
            }
            played += 1;
            if let Some(defect) = find(seed, &features, options.kills)? {
                found += 1;
                let (next, kills) = (seed + 1, options.kills);
                output::say(format!(
                    "seed {seed}, {defect}\n  again: cargo xtask prove command --features {mix} --seeds \
                     {seed}..{next} --kills {kills}"
                ));
            }
        }
        output::say(format!("{mix}: {found} of {played} workflows have a defect"));
        count += found;
    }
    if count > 0 {
        bail!("{count} workflows are not resumed as in the reference model");
    }
    Ok(())
}

/// Options of the hidden command for a step.
#[derive(Debug, clap::Args)]
pub(crate) struct StepOptions {
    #[arg(long)]
    id: String,
    #[arg(long)]
    version: i64,
    #[arg(long)]
    output_modulus: i64,
    #[arg(long)]
    file_modulus: i64,
    /// The written file
    #[arg(long)]
    file: Option<String>,
    /// Whether the content of the file before is an input
    #[arg(long)]
    edits: bool,
}

/// Executes a step of a generated workflow.
pub(crate) fn step(options: &StepOptions) -> anyhow::Result<()> {
    let scope = env::var("WAYPOST_SCOPE")?;
    let scope = in_model(&scope);
    let inputs: StepInputs = serde_json::from_slice(&fs::read(INPUTS)?)?;
    let read = env::vars().filter(|(name, _)| name.starts_with("P_"));
    let read: i64 = read.filter_map(|(_, value)| value.parse::<i64>().ok()).sum();
    let mut value = options.version + read + inputs.hidden.get(&options.id).copied().unwrap_or(0);
    let file = options.file.as_ref().map(|file| PathBuf::from(FILES).join(file));
    if let Some(file) = file.as_ref().filter(|_| options.edits) {
        let before = fs::read_to_string(file).unwrap_or_default();
        value += before.parse::<i64>().unwrap_or(0);
    }
    let is_failed = inputs.fails(&scope, &options.id);
    let output = value.rem_euclid(options.output_modulus);
    let mut log = OpenOptions::new().append(true).create(true).open(LOG)?;
    log.write_all(format!("{scope} {} {output}\n", options.id).as_bytes())?;
    if let Some(file) = file {
        let content = value.rem_euclid(options.file_modulus).to_string();
        fs::write(file, if is_failed { HALF } else { &content })?;
    }
    if is_failed {
        bail!("this step fails in this round");
    }
    let mut outputs = OpenOptions::new().append(true).create(true).open(env::var("WAYPOST_OUTPUT")?)?;
    writeln!(outputs, "v={output}")?;
    Ok(())
}

/// Returns a scope path in the form of the model. The scope of hooks has two forms, for leaves and for openers.
fn in_model(scope: &str) -> String {
    if scope == "main" { scope.to_owned() } else { format!("main/{}", scope.replace("-hooks:", ":")) }
}

/// Plays the workflow of a seed without a kill, then `kills` times with a kill in each round. Returns the
/// first defect.
fn find(seed: u64, features: &Features, kills: u64) -> anyhow::Result<Option<String>> {
    let execute = format!("'{}' prove-step", repo::this_program()?.display());
    for number in 0..=kills {
        let mut model = Lockstep::new(seed, features, &execute);
        let mut random = Seeded::new(seed.wrapping_mul(31).wrapping_add(number));
        let play = Play::new()?;
        play.note(&format!("mkdir {FILES}"))?;
        let mut at = 0;
        let no_rest = |halt| anyhow::anyhow!("seed {seed}: the model has no rest: {halt:?}");
        while let Some(round) = model.next_round().map_err(no_rest)? {
            let kill = (number > 0).then(|| Duration::from_millis(random.below(KILL_MILLIS_MAX)));
            let found = play.round(&round, at, kill)?;
            if !found.is_empty() {
                let how =
                    kill.map_or_else(|| "undisturbed".to_owned(), |kill| format!("killed after {kill:?}"));
                let back = round.rollback.map(|target| format!("rollback to round {target}"));
                let args = [back.into_iter().collect(), round.args.clone()].concat().join(" ");
                let folder = play.folder.keep();
                return Ok(Some(format!(
                    "round {at} {args}, {how}: {} ({})",
                    found.join(", "),
                    folder.display()
                )));
            }
            at += 1;
        }
    }
    Ok(None)
}

struct Play {
    folder: TempDir,
    waypost: PathBuf,
}

/// The end of the sessions of a round.
struct Rest {
    /// The exit code of the last session.
    code: i32,
    /// Whether a session ended with a question, answered by `--treat-as retry`.
    was_asked: bool,
}

/// An execution in the log.
struct Executed {
    path: StepPath,
    output: i64,
}

impl Play {
    fn new() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join(FILES))?;
        Ok(Self { folder, waypost: env::current_exe()?.with_file_name("waypost") })
    }

    fn executed(&self) -> anyhow::Result<Vec<Executed>> {
        let log = self.folder.path().join(LOG);
        let text = if log.exists() { fs::read_to_string(log)? } else { String::new() };
        let parse = |line: &str| {
            let mut words = line.split(' ');
            let path = StepPath::new(words.next()?, words.next()?);
            Some(Executed { path, output: words.next()?.parse().ok()? })
        };
        text.lines().map(|line| parse(line).with_context(|| format!("the log has `{line}`"))).collect()
    }

    fn files(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let entries = fs::read_dir(self.folder.path().join(FILES))?;
        let read = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Ok((name, fs::read_to_string(entry.path())?))
        };
        entries.map(read).collect()
    }

    /// Prepares the folder for a round.
    fn prepare(&self, round: &RoundOutcome) -> anyhow::Result<()> {
        for (name, text) in
            [(WORKFLOW, round.workflow.clone()), (INPUTS, serde_json::to_string(&round.inputs)?)]
        {
            fs::write(self.folder.path().join(name), &text)?;
            self.note(&format!("cat > {name} <<'END'\n{text}\nEND"))?;
        }
        for name in self.files()?.keys().filter(|name| !round.files_before.contains_key(*name)) {
            fs::remove_file(self.folder.path().join(FILES).join(name))?;
            self.note(&format!("rm {FILES}/{name}"))?;
        }
        Ok(())
    }

    /// Notes a command in the script that repeats the play in another folder, without kills.
    fn note(&self, command: &str) -> anyhow::Result<()> {
        let mut script =
            OpenOptions::new().append(true).create(true).open(self.folder.path().join(SCRIPT))?;
        Ok(writeln!(script, "{command}")?)
    }

    /// Plays a round to rest and returns the defects.
    fn round(&self, round: &RoundOutcome, at: usize, kill: Option<Duration>) -> anyhow::Result<Vec<String>> {
        let is_first = at == 0;
        self.prepare(round)?;
        let before = self.executed()?.len();
        if let Some(target) = round.rollback {
            let target = format!("{RUN}@{}", label(target));
            let args = ["rollback", &target, "--redo"];
            if let Some(kill) = kill {
                self.killed(&args, kill)?;
            }
            self.answered(&args)?;
        }
        let plan = if kill.is_none() && !is_first { self.plan(&round.args)? } else { BTreeMap::new() };
        let Rest { code, was_asked } = match self.rest(&round.args, is_first, kill)? {
            Ok(rest) => rest,
            Err(why) => return Ok(vec![why]),
        };
        let executed = self.executed()?;
        let now: Vec<&StepPath> = executed[before..].iter().map(|executed| &executed.path).collect();
        let (mut needless, missing) = difference(&now, &round.executed);
        if was_asked && !round.inputs.failing.is_empty() {
            // The session after the answer retries the failed steps; the model plays a single session.
            needless.retain(|path| !round.executed.contains(path));
        }
        let mut found: Vec<String> = missing.iter().map(|path| format!("{path:?} did not run")).collect();
        let may_repeat = kill.is_some() && (!round.is_calm || needless.len() <= INTERRUPTED_MAX);
        if !may_repeat {
            found.extend(needless.iter().map(|path| format!("{path:?} ran needlessly")));
        }
        if kill.is_none() && round.is_calm {
            found.extend(untrue(&plan, &now, &round.leaves));
        }
        if EXITS_FAILED.contains(&code) != round.has_failed {
            found.push(format!(
                "exit {code}, and the model {}",
                if round.has_failed { "failed" } else { "completed" }
            ));
        }
        found.extend(self.differing(round, &executed)?);
        self.answered(&["checkpoint", RUN, "--label", &label(at)])?;
        if found.is_empty() && code == 0 {
            let again = self.rest(&[], false, None)?.err();
            found.extend(again);
            let more = self.executed()?;
            found.extend(
                more[executed.len()..].iter().map(|more| format!("{:?} ran in a second resume", more.path)),
            );
        }
        Ok(found)
    }

    /// Returns the files and outputs that differ from the model.
    fn differing(&self, round: &RoundOutcome, executed: &[Executed]) -> anyhow::Result<Vec<String>> {
        let last: BTreeMap<&StepPath, i64> =
            executed.iter().map(|executed| (&executed.path, executed.output)).collect();
        let outputs = round.outputs.iter().filter(|(path, output)| last.get(path) != Some(output));
        let mut found: Vec<String> = outputs
            .map(|(path, output)| format!("{path:?} gave {:?}, and in the model {output}", last.get(path)))
            .collect();
        let files = self.files()?;
        let names: BTreeSet<&String> = files.keys().chain(round.files_after.keys()).collect();
        for name in names {
            let (here, model) = (files.get(name), round.files_after.get(name));
            if here != model {
                found.push(format!("file {name} has {here:?}, and in the model {model:?}"));
            }
        }
        Ok(found)
    }

    /// Resumes the run, session by session, until rest. Returns a defect of the sessions.
    fn rest(
        &self,
        request: &[String],
        is_first: bool,
        mut kill: Option<Duration>,
    ) -> anyhow::Result<Result<Rest, String>> {
        let (mut is_made, mut retries, mut requests) = (!is_first, false, !request.is_empty());
        let before = self.executed()?.len();
        for _ in 0..SESSIONS_MAX {
            let mut args = match is_made {
                true => vec!["resume", RUN, "-q"],
                false => vec!["run", WORKFLOW, "--id", RUN, "-q"],
            };
            // A request is recorded before a step runs.
            requests &= self.executed()?.len() == before;
            if requests {
                args.extend(request.iter().map(String::as_str));
            }
            if retries && is_made {
                args.extend(["--treat-as", "retry"]);
            }
            if let Some(kill) = kill.take() {
                self.killed(&args, kill)?;
                is_made = true;
                continue;
            }
            let output = self.start(&args)?.wait_with_output()?;
            match output.status.code() {
                Some(code) if [0, EXIT_DEAD_LETTERS].contains(&code) || EXITS_FAILED.contains(&code) => {
                    return Ok(Ok(Rest { code, was_asked: retries }));
                }
                // A recorded request has opened the step: it is not finished, and cannot be requested again.
                Some(EXIT_NO_RUN) if requests => requests = false,
                Some(EXIT_NO_RUN) => is_made = false,
                Some(EXIT_IN_DOUBT) => (is_made, retries) = (true, true),
                code => return Ok(Err(format!("{args:?} exits with {code:?}: {}", text_of(&output)))),
            }
        }
        Ok(Err("the run never comes to rest".to_owned()))
    }

    /// Returns the planned action of each step.
    fn plan(&self, args: &[String]) -> anyhow::Result<BTreeMap<StepPath, String>> {
        let fixed = ["resume", RUN, "--dry-run", "--json"];
        let all: Vec<&str> = fixed.into_iter().chain(args.iter().map(String::as_str)).collect();
        let output = self.start(&all)?.wait_with_output()?;
        let plan: Value = serde_json::from_slice(&output.stdout).with_context(|| text_of(&output))?;
        let decisions = plan["decisions"].as_array().into_iter().flatten();
        let action = |decision: &Value| {
            let text = |key: &str| decision[key].as_str().unwrap_or_default().to_owned();
            (StepPath::new(&in_model(&text("scope")), &text("step")), text("action"))
        };
        Ok(decisions.map(action).collect())
    }

    /// Starts a command and kills it.
    fn killed(&self, args: &[&str], after: Duration) -> anyhow::Result<()> {
        let mut child = self.start(args)?;
        std::thread::sleep(after);
        child.kill()?;
        child.wait()?;
        std::thread::sleep(STEPS_END);
        Ok(())
    }

    /// Runs a command that must succeed.
    fn answered(&self, args: &[&str]) -> anyhow::Result<()> {
        let output = self.start(args)?.wait_with_output()?;
        if !output.status.success() {
            bail!("{args:?} exits with {:?}: {}", output.status.code(), text_of(&output));
        }
        Ok(())
    }

    fn start(&self, args: &[&str]) -> anyhow::Result<Child> {
        self.note(&format!("waypost {}", args.join(" ")))?;
        let mut command = Command::new(&self.waypost);
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("HOME", self.folder.path()).env_remove("WAYPOST_STORE");
        Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }
}

/// Returns the executions beyond the expected ones, and the missing ones.
fn difference(executed: &[&StepPath], expected: &[StepPath]) -> (Vec<StepPath>, Vec<StepPath>) {
    let mut missing = expected.to_vec();
    let mut needless = Vec::new();
    for path in executed {
        match missing.iter().position(|expected| expected == *path) {
            Some(at) => drop(missing.swap_remove(at)),
            None => needless.push((*path).clone()),
        }
    }
    (needless, missing)
}

/// Returns the wrong decisions of a plan: a `reuse` with an execution, or a `run`, `rerun` or `retry`
/// without.
fn untrue(
    plan: &BTreeMap<StepPath, String>,
    executed: &[&StepPath],
    leaves: &BTreeSet<String>,
) -> Vec<String> {
    let executed: BTreeSet<&StepPath> = executed.iter().copied().collect();
    let wrong = |(path, action): (&StepPath, &String)| match (action.as_str(), executed.contains(path)) {
        ("reuse", true) => Some(format!("the plan reuses {path:?}, which ran")),
        ("run" | "rerun" | "retry", false) if leaves.contains(&*path.step) => {
            Some(format!("the plan runs {path:?}, which did not run"))
        }
        _ => None,
    };
    plan.iter().filter_map(wrong).collect()
}

/// The label of the checkpoint at the end of a round.
fn label(round: usize) -> String {
    format!("round-{round}")
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
