//! A program that imitates `waypost` from outside and has a classic mistake inside, so that tests can check
//! the rig.
//!
//! The toy keeps its whole run in a JSON file. A missing sync is not among the mistakes, because a kill does
//! not lose written data. The tests of the simulated disk plant such mistakes.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::{output, repo};

/// The planted mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mistake {
    /// No mistake.
    None,
    /// The file is overwritten in place.
    InPlace,
    /// A checkpoint is printed before it is written.
    AcknowledgedFirst,
    /// A step is printed as completed, but recorded with the next step.
    RecordedLate,
    /// A step is recorded as completed before it runs.
    RecordedEarly,
    /// A process of a step ends with the run, but survives a kill of the run.
    Orphan,
}

impl Mistake {
    /// All real mistakes.
    pub(super) const ALL: [Self; 5] =
        [Self::InPlace, Self::AcknowledgedFirst, Self::RecordedLate, Self::RecordedEarly, Self::Orphan];
}

/// The toy's arguments: a subset of those of `waypost`.
#[derive(Debug, clap::Args)]
pub(crate) struct ToyOptions {
    /// The planted mistake
    mistake: Mistake,
    /// The command, such as `run` or `resume`
    command: String,
    /// The workflow file for `run`, else the run
    subject: PathBuf,
    /// The id of the run
    #[arg(long)]
    id: Option<String>,
    /// The location of the run: `toy:FOLDER`
    #[arg(long)]
    store: String,
    /// Print JSON, which is also the default
    #[arg(long)]
    json: bool,
}

/// The exit code of `waypost` for an unknown run.
const NO_SUCH_RUN: u8 = 5;

struct Toy {
    mistake: Mistake,
    file: PathBuf,
    /// The steps of the workflow: id and trace line.
    steps: Vec<(String, String)>,
    /// The steps recorded as completed.
    done: Vec<String>,
}

/// Runs the toy and returns its exit code.
pub(crate) fn run(options: &ToyOptions) -> anyhow::Result<u8> {
    let folder = options.store.strip_prefix("toy:").context("the store of a toy is `toy:FOLDER`")?;
    let file = Path::new(folder).join("run.json");
    if options.command == "run" {
        if file.exists() {
            bail!("there is such a run");
        }
        let workflow = fs::read_to_string(&options.subject)?;
        let mut toy = Toy { mistake: options.mistake, file, steps: steps(&workflow), done: Vec::new() };
        toy.save()?;
        return toy.go_on();
    }
    let Some(mut toy) = Toy::load(options.mistake, file)? else { return Ok(NO_SUCH_RUN) };
    match options.command.as_str() {
        "resume" => return toy.go_on(),
        "checkpoints" => output::say(toy.checkpoints()),
        "verify" => output::say(json!({ "v": 1, "sound": true, "checkpoints": [] })),
        "show" => output::say(toy.show()),
        other => bail!("a toy cannot {other}"),
    }
    Ok(0)
}

/// Parses the steps of a workflow in which each step appends a line to `trace`.
fn steps(workflow: &str) -> Vec<(String, String)> {
    let ids = workflow.lines().filter_map(|line| line.trim().strip_prefix("- id: "));
    let between =
        |line: &str| Some(line.split_once("echo \"")?.1.split_once("\" >> trace")?.0.replace("$VALUE", "42"));
    let lines = workflow.lines().filter_map(between);
    ids.map(ToOwned::to_owned).zip(lines).collect()
}

impl Toy {
    fn load(mistake: Mistake, file: PathBuf) -> anyhow::Result<Option<Self>> {
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            answer => answer?,
        };
        let value: Value = serde_json::from_str(&text)?;
        let steps = serde_json::from_value(value["steps"].clone())?;
        let done = serde_json::from_value(value["done"].clone())?;
        Ok(Some(Self { mistake, file, steps, done }))
    }

    fn save(&self) -> anyhow::Result<()> {
        let text = json!({ "steps": self.steps, "done": self.done }).to_string();
        if self.mistake == Mistake::InPlace {
            fs::write(&self.file, text)?;
            return Ok(());
        }
        let temporary = self.file.with_extension("tmp");
        let mut file = fs::File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&temporary, &self.file)?;
        fs::File::open(self.file.parent().context("a file is in a folder")?)?.sync_all()?;
        Ok(())
    }

    fn go_on(&mut self) -> anyhow::Result<u8> {
        let mut started = None;
        for (id, line) in self.steps.clone() {
            if self.done.contains(&id) {
                continue;
            }
            if self.mistake == Mistake::RecordedEarly {
                self.done.push(id.clone());
                self.save()?;
            }
            if self.mistake == Mistake::Orphan && self.done.len() == 1 {
                started = Some(
                    Command::new("sleep").arg("60").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?,
                );
            }
            let mut trace = OpenOptions::new().append(true).create(true).open("trace")?;
            trace.write_all(format!("{line}\n").as_bytes())?;
            self.completed(&id)?;
        }
        if let Some(mut started) = started {
            started.kill()?;
            started.wait()?;
        }
        self.save()?;
        Ok(0)
    }

    /// Records and prints the end of a step, in the order of the mistake.
    fn completed(&mut self, id: &str) -> anyhow::Result<()> {
        if self.mistake != Mistake::RecordedEarly {
            self.done.push(id.to_owned());
        }
        let seq = self.done.len();
        let written = json!({ "v": 1, "event": "checkpoint_written", "scope": "main", "seq": seq });
        let completed = json!({ "v": 1, "event": "step_completed", "scope": "main", "seq": seq, "step": id });
        match self.mistake {
            Mistake::AcknowledgedFirst => {
                output::say(written);
                self.save()?;
                output::say(completed);
            }
            Mistake::RecordedLate if seq % 2 == 1 => output::say(completed),
            _ => {
                self.save()?;
                output::say(written);
                output::say(completed);
            }
        }
        Ok(())
    }

    fn checkpoints(&self) -> Value {
        let each = (1..).zip(&self.done).map(|(seq, step)| {
            let digest = format!("{seq} {step}");
            json!({ "scope": "main", "seq": seq, "digest": digest, "phase": "completed", "step": step, "sound": true })
        });
        json!({ "v": 1, "checkpoints": each.collect::<Vec<_>>(), "next": null })
    }

    fn show(&self) -> Value {
        let steps = self.done.iter().map(|id| json!({ "id": id, "status": "completed", "exit_code": 0 }));
        json!({ "v": 1, "status": "completed", "params": {}, "steps": steps.collect::<Vec<_>>() })
    }
}

/// Returns the command line of a toy with this mistake.
pub(super) fn command(mistake: Mistake) -> anyhow::Result<Vec<OsString>> {
    let name = clap::ValueEnum::to_possible_value(&mistake).context("every mistake has a name")?;
    let this = repo::this_program()?;
    Ok(vec![this.into(), "toy".into(), name.get_name().into()])
}
