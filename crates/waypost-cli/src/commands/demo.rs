//! `waypost demo`: kills and resumes a small workflow in a temporary folder, with the real program.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use waypost::RunId;

use super::Context;
use crate::cli::DemoArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::session::interrupt;
use crate::view::{DemoCommandView, DemoStepView, DemoView, VERSION};

/// The workflow file and its run.
const FILE: &str = "demo.yaml";
const RUN: &str = "demo";
/// The steps; the second is interrupted.
const STEPS: [&str; 4] = ["fetch", "load", "report", "publish"];
const CUT: &str = "load";
/// Duration of a step: slow enough for a person, or fast for tests.
const STEP_SECONDS: &str = "1.5";
const STEP_SECONDS_FAST: &str = "0.3";
/// The poll interval.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit of a command of the demo: far more than needed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time limit for a command to end after a signal, which a terminal sends to it, too.
const END_MAX: Duration = Duration::from_secs(15);

pub(crate) async fn demo(context: &Context, args: DemoArgs) -> Result<Exit, Error> {
    let stop = Stop::listen().map_err(Error::Runtime)?;
    let folder = make_folder()?;
    let mut demo = Demo { context, folder: folder.clone(), told: Vec::new(), stop };
    let shown = demo.show(&args).await;
    if !args.keep {
        // Leftovers are in the temporary folder, and the system removes them.
        let _ = fs::remove_dir_all(&folder);
    }
    match shown {
        Ok(exit) => Ok(exit),
        Err(Ended::Stopped(by)) => {
            context.output.note(&format!("Stopped by {by}; the folder of the demo is removed."));
            interrupt::die_of(by);
            Ok(crate::exit::exit_of(by))
        }
        Err(Ended::Error(error)) => Err(error),
    }
}

/// Why the demo ended early.
enum Ended {
    Stopped(&'static str),
    Error(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<std::io::Error> for Ended {
    fn from(error: std::io::Error) -> Self {
        Self::Error(error.into())
    }
}

/// The signals that end the demo.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stop {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}

struct Demo<'a> {
    context: &'a Context,
    folder: PathBuf,
    /// The commands so far.
    told: Vec<DemoCommandView>,
    stop: Stop,
}

impl Demo<'_> {
    async fn show(&mut self, args: &DemoArgs) -> Result<Exit, Ended> {
        let seconds = if args.fast { STEP_SECONDS_FAST } else { STEP_SECONDS };
        let text = workflow(seconds);
        let file = self.folder.join(FILE);
        fs::write(&file, &text).map_err(|source| Error::Create { path: file, source })?;
        self.say(&format!("A workflow of four steps of {seconds} s each, in {}:\n", self.folder.display()))?;
        self.say(&indented(&text))?;

        self.say("Run, and killed with `kill -9` during the second step:\n")?;
        let mut running = self.start(&["run", FILE, "--id", RUN])?;
        self.wait_for(&mut running, |trace| trace.lines().any(|line| line == CUT)).await?;
        self.kill(&mut running)?;

        self.say("\nThe record of the second step:\n")?;
        self.call(&["why", RUN, CUT]).await?;
        self.say("\nResumed:\n")?;
        let resumed = self.call(&["resume", RUN]).await?;
        self.say("\nThe final state:\n")?;
        self.call(&["show", RUN]).await?;

        let trace = fs::read_to_string(self.folder.join("trace")).unwrap_or_default();
        let begun = |step: &str| trace.lines().filter(|line| *line == step).count();
        let is_right = STEPS.iter().all(|step| begun(step) == if *step == CUT { 2 } else { 1 });
        let steps: Vec<DemoStepView> = STEPS
            .iter()
            .map(|step| DemoStepView { step: (*step).to_owned(), begun: begun(step), cut: *step == CUT })
            .collect();
        let kept = args.keep.then(|| self.folder.display().to_string());
        if self.context.output.json {
            let commands = std::mem::take(&mut self.told);
            let view = DemoView { v: VERSION, ok: is_right && resumed.success(), commands, steps, kept };
            self.context.output.document(&view)?;
        } else {
            self.tell(&steps, is_right, kept.as_deref())?;
        }
        Ok(if is_right && resumed.success() { Exit::Done } else { Exit::Internal })
    }

    fn tell(&self, steps: &[DemoStepView], is_right: bool, kept: Option<&str>) -> Result<(), Ended> {
        let counts: Vec<String> = steps
            .iter()
            .map(|step| {
                let times = if step.begun == 1 { "once".to_owned() } else { format!("{} times", step.begun) };
                format!("{} {times}", step.step)
            })
            .collect();
        self.say(&format!("\nStarts per step: {}.", counts.join(", ")))?;
        self.say(if is_right {
            "Finished steps did not run again; the interrupted step restarted."
        } else {
            "This result is wrong: a finished step must start once, and the interrupted step twice."
        })?;
        self.say(&match kept {
            Some(folder) => format!("Kept folder {folder}"),
            None => "Removed the folder. To create a workflow file of your own: waypost new".to_owned(),
        })
    }

    /// Prints text, unless the answer is a document.
    fn say(&self, text: &str) -> Result<(), Ended> {
        if !self.context.output.json {
            self.context.output.answer(text)?;
        }
        Ok(())
    }

    /// Starts the program as a user would, and prints the command line.
    fn start(&mut self, args: &[&str]) -> Result<Child, Ended> {
        let line = format!("waypost {}", args.join(" "));
        self.say(&self.context.output.paint.bold(&format!("$ {line}")))?;
        self.told.push(DemoCommandView { command: line, exit_code: None });
        let program =
            if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { this_program()? };
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.folder).stdin(Stdio::null());
        // The store is in the demo's folder, despite other stores in the environment or above.
        command.env("WAYPOST_STORE", "sqlite:demo.db");
        if self.context.output.json {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        Ok(command.spawn().map_err(Error::Runtime)?)
    }

    async fn call(&mut self, args: &[&str]) -> Result<ExitStatus, Ended> {
        let mut child = self.start(args)?;
        let status = self.wait_for(&mut child, |_| false).await?;
        let status = status.ok_or_else(|| Error::Runtime(std::io::ErrorKind::TimedOut.into()))?;
        if let Some(told) = self.told.last_mut() {
            told.exit_code = status.code();
        }
        Ok(status)
    }

    fn kill(&mut self, running: &mut Child) -> Result<(), Ended> {
        let line = format!("kill -9 {}", running.id());
        if self.context.output.live {
            // The killed process left the cursor in the middle of a line.
            self.say("\n")?;
        }
        self.say(&self.context.output.paint.bold(&format!("$ {line}")))?;
        self.told.push(DemoCommandView { command: "kill -9".to_owned(), exit_code: Some(0) });
        running.kill()?;
        running.wait()?;
        Ok(())
    }

    /// Waits until the trace satisfies `is`; if the program ends first, returns its exit status.
    async fn wait_for(
        &mut self,
        child: &mut Child,
        is: impl Fn(&str) -> bool,
    ) -> Result<Option<ExitStatus>, Ended> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            let trace = fs::read_to_string(self.folder.join("trace")).unwrap_or_default();
            if is(&trace) || Instant::now() >= end {
                return Ok(None);
            }
            tokio::select! {
                by = self.stop.next() => {
                    let end = Instant::now() + END_MAX;
                    while child.try_wait()?.is_none() && Instant::now() < end {
                        // A terminal has already sent the signal; another sender has not.
                        let pid = rustix::process::Pid::from_child(child);
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(Ended::Stopped(by));
                }
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }
}

fn this_program() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(Error::Runtime)
}

/// Creates a new folder.
fn make_folder() -> Result<PathBuf, Error> {
    let folder = std::env::temp_dir().join(RunId::random("waypost-demo").as_str());
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    made.map_err(|source| Error::Create { path: folder.clone(), source })?;
    Ok(folder)
}

/// Returns the workflow text.
fn workflow(seconds: &str) -> String {
    let steps = STEPS.map(|step| format!("  - id: {step}\n    run: echo {step} >> trace; sleep {seconds}\n"));
    format!("version: 1\nsteps:\n{}", steps.concat())
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use waypost_workflow::file::Workflow;

    #[test]
    fn the_workflow_of_the_demo_is_one() {
        let parsed = Workflow::parse(&super::workflow("1"), std::path::Path::new(super::FILE));

        assert_eq!(parsed.unwrap().steps().len(), super::STEPS.len());
    }
}
