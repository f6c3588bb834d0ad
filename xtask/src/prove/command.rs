//! Plays generated workflows through the built command, with `kill -9` at random moments of a resume.
//!
//! Each step of the workflow starts this program again ([`step`]). The world is a log of events, to which the
//! program appends an execution. The play without a kill is compared with the reference model and with the
//! printed plan.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use tempfile::TempDir;
use waypost_testing::reference::definition::StepPath;
use waypost_testing::reference::drive::{CommandScript, Effects, Event, Level};
use waypost_testing::seed::Seeded;

use crate::repo;

const RUN: &str = "r";
const WORKFLOW: &str = "flow.yaml";
const LOG: &str = "events.jsonl";
/// Most sessions per round; more is a defect.
const SESSIONS_MAX: usize = 20;
/// Latest time of a kill: a round takes about as long.
const KILL_MILLIS_MAX: u64 = 250;
const EXIT_NO_RUN: i32 = 5;
const EXIT_IN_DOUBT: i32 = 8;

/// Options of the hidden command for a step.
#[derive(Debug, clap::Args)]
pub(crate) struct StepOptions {
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    level: super::resume::Level,
    #[arg(long)]
    folder: PathBuf,
}

/// Executes a step of a generated workflow.
pub(crate) fn step(options: &StepOptions) -> anyhow::Result<()> {
    let (scope, step) = (env::var("WAYPOST_SCOPE")?, env::var("WAYPOST_STEP")?);
    let scope = if scope == "main" { scope } else { format!("main/{scope}") };
    let outputs: BTreeMap<String, i64> = env::vars()
        .filter_map(|(name, value)| Some((name.strip_prefix("P_")?.to_owned(), value.parse().ok()?)))
        .collect();
    let script = script(options.seed, options.level.to_drive())?;
    let mut log = Log::open(&options.folder)?;
    let events = log.read()?;
    let mut world = script.world(&events);
    let effects = world.execute(&scope, &step, &outputs);
    let Effects { output, file } = effects.with_context(|| format!("no step {step} in {scope}"))?;
    log.append(&Event::Executed { scope, step, outputs })?;
    if let Some((name, content)) = file {
        fs::write(options.folder.join("files").join(name), content.to_string())?;
    }
    let mut outputs = OpenOptions::new().append(true).create(true).open(env::var("WAYPOST_OUTPUT")?)?;
    writeln!(outputs, "v={output}")?;
    Ok(())
}

fn script(seed: u64, level: Level) -> anyhow::Result<CommandScript> {
    CommandScript::of(seed, level).map_err(|halt| anyhow::anyhow!("the model has no rest: {halt:?}"))
}

/// The log of events, locked.
struct Log(File);

impl Log {
    fn open(folder: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(folder.join(LOG))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }

    fn read(&mut self) -> anyhow::Result<Vec<Event>> {
        let mut text = String::new();
        self.0.read_to_string(&mut text)?;
        // A killed step leaves a line without an end.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        whole.lines().filter(|line| !line.is_empty()).map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    fn append(&mut self, event: &Event) -> anyhow::Result<()> {
        let line = serde_json::to_string(event)?;
        Ok(self.0.write_all(format!("\n{line}\n").as_bytes())?)
    }
}

/// Plays the workflow of a seed without a kill, then `kills` times with a kill in each round. Returns the
/// first defect.
pub(super) fn find(seed: u64, level: super::resume::Level, kills: u64) -> anyhow::Result<Option<String>> {
    let script = script(seed, level.to_drive())?;
    for number in 0..=kills {
        let play = Play::new(&script, seed, level)?;
        let mut random = Seeded::new(seed.wrapping_mul(31).wrapping_add(number));
        for round in 0..script.rounds() {
            let kill = (number > 0).then(|| Duration::from_millis(random.below(KILL_MILLIS_MAX)));
            let found = play.round(round, kill)?;
            if !found.is_empty() {
                let how =
                    kill.map_or_else(|| "undisturbed".to_owned(), |kill| format!("killed after {kill:?}"));
                let kept = play.folder.keep();
                return Ok(Some(format!("round {round}, {how}: {} ({})", found.join(", "), kept.display())));
            }
        }
    }
    Ok(None)
}

struct Play<'a> {
    script: &'a CommandScript,
    folder: TempDir,
    waypost: PathBuf,
}

impl<'a> Play<'a> {
    fn new(script: &'a CommandScript, seed: u64, level: super::resume::Level) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let waypost = env::current_exe()?.with_file_name("waypost");
        fs::create_dir(folder.path().join("files"))?;
        let execute = format!(
            "'{}' prove-step --seed {seed} --level {} --folder '{}'",
            repo::this_program()?.display(),
            level.name(),
            folder.path().display()
        );
        fs::write(folder.path().join(WORKFLOW), script.workflow(&execute))?;
        Ok(Self { script, folder, waypost })
    }

    fn events(&self) -> anyhow::Result<Vec<Event>> {
        Log::open(self.folder.path())?.read()
    }

    fn tell(&self, event: &Event) -> anyhow::Result<()> {
        Log::open(self.folder.path())?.append(event)
    }

    fn executed(&self) -> anyhow::Result<Vec<StepPath>> {
        Ok(self.script.world(&self.events()?).executed())
    }

    /// Plays a round to rest and returns the defects.
    fn round(&self, round: usize, kill: Option<Duration>) -> anyhow::Result<Vec<String>> {
        for event in self.script.before(round) {
            self.tell(&event)?;
        }
        self.write_files()?;
        let before = self.executed()?.len();
        let plan = if kill.is_none() && round > 0 { self.plan()? } else { BTreeMap::new() };
        if let Some(why) = self.rest(kill)? {
            return Ok(vec![why]);
        }
        let mut found = self.script.world(&self.events()?).check();
        let executed = self.executed()?;
        if kill.is_none() {
            found.extend(self.script.compare(round, &executed[before..]));
            found.extend(untrue(&plan, &executed[before..]));
        }
        if found.is_empty() {
            found.extend(self.rest(None)?);
            let again = self.executed()?;
            found.extend(
                again[executed.len()..].iter().map(|path| format!("{path:?} ran in a second resume")),
            );
        }
        Ok(found)
    }

    /// Resumes the run, session by session, until completion; returns a defect.
    fn rest(&self, mut kill: Option<Duration>) -> anyhow::Result<Option<String>> {
        let (mut is_made, mut retries) = (true, false);
        for _ in 0..SESSIONS_MAX {
            let mut args = match is_made {
                true => vec!["resume", RUN, "-q"],
                false => vec!["run", WORKFLOW, "--id", RUN, "-q"],
            };
            if retries && is_made {
                args.extend(["--treat-as", "retry"]);
            }
            let mut child = self.start(&args)?;
            if let Some(kill) = kill.take() {
                std::thread::sleep(kill);
                child.kill()?;
                child.wait()?;
                // A step may still be about to write.
                std::thread::sleep(Duration::from_millis(50));
                self.write_files()?;
                is_made = true;
                continue;
            }
            let output = child.wait_with_output()?;
            match output.status.code() {
                Some(0) => return Ok(None),
                Some(EXIT_NO_RUN) => is_made = false,
                Some(EXIT_IN_DOUBT) => {
                    (is_made, retries) = (true, true);
                    self.tell(&Event::Retries(true))?;
                }
                code => return Ok(Some(format!("{args:?} exits with {code:?}: {}", text_of(&output)))),
            }
        }
        Ok(Some("the run never completes".to_owned()))
    }

    /// Returns the planned action of each step.
    fn plan(&self) -> anyhow::Result<BTreeMap<StepPath, String>> {
        let output = self.start(&["plan", RUN, "--json"])?.wait_with_output()?;
        let plan: Value = serde_json::from_slice(&output.stdout).with_context(|| text_of(&output))?;
        let decisions = plan["decisions"].as_array().into_iter().flatten();
        let action = |decision: &Value| {
            let text = |key: &str| decision[key].as_str().unwrap_or_default().to_owned();
            let scope = text("scope");
            let scope = if scope == "main" { scope } else { format!("main/{scope}") };
            (StepPath::new(&scope, &text("step")), text("action"))
        };
        Ok(decisions.map(action).collect())
    }

    fn start(&self, args: &[&str]) -> anyhow::Result<Child> {
        let mut command = Command::new(&self.waypost);
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("HOME", self.folder.path()).env_remove("WAYPOST_STORE");
        Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// Writes the files of the world to disk and removes all others.
    fn write_files(&self) -> anyhow::Result<()> {
        let mut log = Log::open(self.folder.path())?;
        let files = self.script.world(&log.read()?).files();
        let folder = self.folder.path().join("files");
        for file in fs::read_dir(&folder)? {
            let file = file?;
            if !files.contains_key(&*file.file_name().to_string_lossy()) {
                fs::remove_file(file.path())?;
            }
        }
        for (name, content) in files {
            fs::write(folder.join(name), content.to_string())?;
        }
        Ok(())
    }
}

/// Returns the wrong decisions of a plan: a `reuse` with an execution, or a `run`, `rerun` or `retry`
/// without.
fn untrue(plan: &BTreeMap<StepPath, String>, executed: &[StepPath]) -> Vec<String> {
    let executed: BTreeSet<&StepPath> = executed.iter().collect();
    let is_opener = |path: &StepPath| {
        let part = format!("/{}", path.step);
        plan.keys().any(|other| other.scope.contains(&part))
    };
    let wrong = |(path, action): (&StepPath, &String)| match (action.as_str(), executed.contains(path)) {
        ("reuse", true) => Some(format!("the plan reuses {path:?}, which ran")),
        ("run" | "rerun" | "retry", false) if !is_opener(path) => {
            Some(format!("the plan runs {path:?}, which did not run"))
        }
        _ => None,
    };
    plan.iter().filter_map(wrong).collect()
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
