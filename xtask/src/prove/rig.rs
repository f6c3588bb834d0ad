//! Plays a run with repeated kills until a final undisturbed resume, and returns the broken promises.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::calls::Seen;
use super::promise::{Observed, Step, broken, final_state};
use super::tracer::{Kill, SEARCHED, Traceable, Traced, trace};

/// The id of the run.
const RUN: &str = "proof";

/// The workflow file in the folder of each play.
pub(super) const WORKFLOW: &str = "flow.yaml";

/// The exit code of a run that does not exist.
const NO_SUCH_RUN: i32 = 5;

/// Timeout of an untraced command, which normally takes milliseconds.
const COMMAND_SECONDS_MAX: u64 = 30;

/// A workflow to play.
#[derive(Debug, Clone)]
pub(crate) struct Workflow {
    pub(super) text: String,
    pub(super) steps: Vec<Step>,
}

impl Workflow {
    /// Returns a workflow of `step_count` steps, each of which appends its id to a file. The second step also
    /// starts a long-lived process, and its output is appended by the third step.
    ///
    /// `retention`: number of checkpoints that keep their state.
    pub(crate) fn new(step_count: usize, retention: Option<u32>) -> Self {
        let mut text = String::from("name: proof\n");
        if let Some(retention) = retention {
            text.push_str(&format!("checkpoints:\n  retention: {retention}\n"));
        }
        text.push_str("steps:\n");
        let mut steps = Vec::new();
        for number in 1..=step_count {
            let id = format!("s{number}");
            text.push_str(&format!("  - id: {id}\n"));
            let line = match number {
                2 => {
                    text.push_str(
                        "    run: |\n      (sleep 60 >/dev/null 2>&1 &)\n      echo \"s2\" >> trace\n",
                    );
                    text.push_str("      echo \"value=42\" >> \"$WAYPOST_OUTPUT\"\n");
                    id.clone()
                }
                3 => {
                    text.push_str("    env: { VALUE: \"${{ steps.s2.outputs.value }}\" }\n");
                    text.push_str("    run: |\n      echo \"s3:$VALUE\" >> trace\n");
                    format!("{id}:42")
                }
                _ => {
                    text.push_str(&format!("    run: |\n      echo \"{id}\" >> trace\n"));
                    id.clone()
                }
            };
            steps.push(Step { id, line });
        }
        Self { text, steps }
    }
}

/// The tested program and its store.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    /// The program, with arguments before the command.
    pub(crate) program: Vec<OsString>,
    /// The scheme and the rest of the store's URL, such as `sqlite:` and `waypost.db`; a folder is inserted
    /// between.
    pub(crate) store: (String, String),
}

/// The result of a play.
#[derive(Debug, Default)]
pub(crate) struct Played {
    /// The counted calls of each traced start.
    pub(crate) calls: Vec<Vec<Seen>>,
    /// The observations after each start.
    pub(crate) starts: Vec<Observed>,
    /// The calls at which the program was killed.
    pub(crate) kills: Vec<Seen>,
    /// Checkpoints acknowledged before a kill.
    pub(crate) acknowledged: usize,
    /// The broken promises.
    pub(crate) broken: Vec<String>,
    /// The final state.
    pub(crate) state: Value,
}

/// Plays a run: kills each start in turn as requested, then resumes to the end.
pub(crate) fn play(subject: &Subject, workflow: &Workflow, kills: &[Kill]) -> anyhow::Result<Played> {
    let folder = tempfile::Builder::new()
        .prefix("waypost-prove-")
        .tempdir_in(memory())
        .context("no folder to play in")?;
    fs::write(folder.path().join(WORKFLOW), &workflow.text)?;
    let mut stage = Stage { subject, folder: folder.path(), starts: Vec::new() };
    let mut played = Played::default();
    for kill in kills {
        let traced = stage.start(Some(*kill))?;
        played.calls.push(traced.calls);
        match traced.killed_at {
            Some(seen) => played.kills.push(seen),
            // The run ended before this call.
            None => break,
        }
        played.acknowledged += stage.starts.last().map_or(0, |start| start.acknowledged.len());
    }
    if kills.is_empty() {
        played.calls.push(stage.start(None)?.calls);
    } else {
        stage.finish()?;
    }
    played.broken = broken(&workflow.steps, &stage.starts);
    played.broken.extend(stage.verify()?);
    played.state = final_state(&stage.answer("show")?.context("the run is gone after its end")?);
    played.starts = stage.starts;
    Ok(played)
}

/// Returns a folder for temporary folders: in memory if available, where writes of a killed process also
/// persist and syncs are free.
fn memory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() }
}

/// A run in its own folder.
pub(super) struct Stage<'a> {
    pub(super) subject: &'a Subject,
    pub(super) folder: &'a Path,
    /// The observations after each start.
    pub(super) starts: Vec<Observed>,
}

impl Stage<'_> {
    /// Starts or resumes the run under the tracer.
    fn start(&mut self, kill: Option<Kill>) -> anyhow::Result<Traced> {
        let (stdout, stderr) = (self.at("stdout"), self.at("stderr"));
        let traceable = Traceable {
            command: self.next_command(),
            folder: self.folder,
            stdout: File::create(&stdout)?,
            stderr: File::create(&stderr)?,
        };
        let traced = trace(traceable, kill)?;
        if traced.killed_at.is_none() && traced.code != Some(0) {
            bail!("it ended by itself with code {:?}: {}", traced.code, fs::read_to_string(stderr)?);
        }
        self.observe(&fs::read_to_string(stdout)?, traced.left.clone())?;
        Ok(traced)
    }

    /// Resumes the run to its end.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        let (code, stdout, stderr) = self.run(&self.next_command())?;
        if code != Some(0) {
            bail!("it could not be resumed: code {code:?}: {stdout} {stderr}");
        }
        self.observe(&stdout, Vec::new())
    }

    /// Returns the command `run` for a new run, else `resume`.
    pub(super) fn next_command(&self) -> Vec<OsString> {
        let exists = self.starts.last().is_some_and(|start| start.checkpoints.is_some());
        if exists { self.command(&["resume", RUN]) } else { self.command(&["run", WORKFLOW, "--id", RUN]) }
    }

    fn command(&self, words: &[&str]) -> Vec<OsString> {
        let (scheme, rest) = &self.subject.store;
        let mut store = OsString::from(scheme);
        store.push(self.folder.join(rest));
        let words = words.iter().map(OsString::from);
        self.subject
            .program
            .iter()
            .cloned()
            .chain(words)
            .chain(["--json".into(), "--store".into(), store])
            .collect()
    }

    pub(super) fn observe(&mut self, stdout: &str, left: Vec<String>) -> anyhow::Result<()> {
        let trace = fs::read_to_string(self.at("trace")).unwrap_or_default();
        let trace = trace.lines().map(ToOwned::to_owned).collect();
        let mut observed = Observed { trace, left, ..Observed::default() };
        observed.read_events(stdout).map_err(anyhow::Error::msg)?;
        if let Some(document) = self.answer("checkpoints")? {
            observed.read_checkpoints(&document).map_err(anyhow::Error::msg)?;
        }
        self.starts.push(observed);
        Ok(())
    }

    /// Runs `verify` of the program and returns the damage.
    pub(super) fn verify(&self) -> anyhow::Result<Vec<String>> {
        let (code, stdout, stderr) = self.run(&self.command(&["verify", RUN]))?;
        let sound = serde_json::from_str::<Value>(&stdout).is_ok_and(|answer| answer["sound"] == true);
        if code == Some(0) && sound {
            return Ok(Vec::new());
        }
        Ok(vec![format!("`verify` ends with {code:?}: {stdout} {stderr}")])
    }

    /// Runs a query about the run; returns `None` if the run does not exist.
    pub(super) fn answer(&self, command: &str) -> anyhow::Result<Option<Value>> {
        let (code, stdout, stderr) = self.run(&self.command(&[command, RUN]))?;
        match code {
            Some(0) => {
                Ok(Some(serde_json::from_str(&stdout).with_context(|| format!("`{command}`: {stdout}"))?))
            }
            Some(NO_SUCH_RUN) => Ok(None),
            other => bail!("`{command}` ends with {other:?}: {stdout} {stderr}"),
        }
    }

    /// Runs an untraced command.
    pub(super) fn run(&self, command: &[OsString]) -> anyhow::Result<(Option<i32>, String, String)> {
        let (stdout, stderr) = (self.at("answer"), self.at("errors"));
        let (program, arguments) = command.split_first().context("no program was given")?;
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(self.folder)
            .env("PATH", SEARCHED)
            .env("TMPDIR", self.folder)
            .stdin(Stdio::null())
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()
            .with_context(|| format!("cannot start `{}`", program.display()))?;
        let deadline = Instant::now() + Duration::from_secs(COMMAND_SECONDS_MAX);
        let status: ExitStatus = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                bail!("{command:?} does not end: {}", fs::read_to_string(&stderr)?);
            }
            std::thread::sleep(Duration::from_micros(500));
        };
        Ok((status.code(), fs::read_to_string(stdout)?, fs::read_to_string(stderr)?))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
