//! `command`: the exit code and output of a shell command, run at every check.

use std::path::PathBuf;

use async_trait::async_trait;
use serde_json::{Value, json};
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
use waypost::record::Claim;

use crate::expectations::expected::{Expected, holds};
use crate::programs::environment::Environment;
use crate::programs::process_group::{CapturedOutput, Exit, OUTPUT_BYTES_MAX, Program};

/// Recorded kind of claims about a command.
pub const COMMAND: &str = "command";
/// Exit codes of a shell for a command that is not executable or not found.
const NOT_RUN: [i32; 2] = [126, 127];
/// Longest program output in a finding, in characters.
const MESSAGE_CHARS_MAX: usize = 500;

/// Checks `command`: runs the subject with `sh -eu -c` in the base folder, and compares `exit` (default 0),
/// `stdout` and `stderr`. White space around the output is ignored.
///
/// Every check runs the command again, without input. The command gets the variables of the [`Environment`]
/// that are not withheld, plus those of `env`. `dir` sets a working folder below the base folder. The process
/// group is killed when the command ends, and when the check is dropped.
///
/// - `ok`: every expectation fits.
/// - `failed`: the exit code or output differs, or the command died of a fault such as SIGSEGV. A fault fails
///   the opposite too.
/// - `unknown`: the command could not be started (exit codes 126 and 127), timed out, was killed from
///   outside, or printed more than 1 MiB to a compared stream. A missing variable of `env` is `unknown` too.
#[derive(Debug, Clone)]
pub struct CommandProbe {
    environment: Environment,
}

impl CommandProbe {
    /// Returns a probe that starts commands with the variables of `environment`.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment }
    }
}

#[async_trait]
impl Probe for CommandProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(COMMAND, Cost::Waiting).local()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let known = ["exit", "stdout", "stderr", "env", "dir"];
        let expect = Expected::read(&claim.expect, "a command", &known)?;
        for name in ["exit", "stdout", "stderr"] {
            if expect.value(name)?.is_some_and(Value::is_null) {
                return Err(Finding::failed(format!("`{name}` has no value")));
            }
        }
        if claim.subject.trim().is_empty() || claim.subject.contains('\0') {
            return Err(Finding::failed("the command is empty"));
        }
        let program = Program {
            words: ["/bin/sh", "-eu", "-c", "--", &claim.subject].map(Into::into).into(),
            folder: working_folder(expect, site)?,
            environment: self.environment.of_claim(expect.get("env"))?,
            input: None,
        };
        let ended = program.run().await?;
        let last_error_line = last_error_line(&ended.stderr, &self.environment);
        let code = match ended.end {
            Exit::Code(code) => code,
            Exit::Signal(signal) => return Ok(killed(signal, last_error_line)),
        };
        let mut found = json!({ "exit": code });
        let mut holds_all = holds("exit", expect.get("exit").unwrap_or(&json!(0)), &json!(code))?;
        if NOT_RUN.contains(&code) {
            let last_error_line = last_error_line.unwrap_or_else(|| format!("the shell exited with {code}"));
            return Err(Finding::unknown(format!("cannot run the command: {last_error_line}")));
        }
        for (name, printed) in [("stdout", &ended.stdout), ("stderr", &ended.stderr)] {
            let Some(wanted) = expect.get(name) else { continue };
            let Some(text) = printed.whole() else {
                let why =
                    format!("the command wrote more than {OUTPUT_BYTES_MAX} bytes to {name}, the limit");
                return Err(Finding::unknown(why));
            };
            let text = text.trim();
            holds_all &= holds(name, wanted, &json!(text))?;
            found[name] = shortened(&self.environment.mask(text)).into();
        }
        let finding = Finding::compared(holds_all, found);
        Ok(match last_error_line {
            Some(line) if !holds_all && !expect.contains_key("stderr") => finding.because(line),
            _ => finding,
        })
    }
}

/// Returns the working folder of a program: the base folder, or `dir` below the base folder.
pub(crate) fn working_folder(expect: Expected<'_>, site: &Site) -> Result<PathBuf, Finding> {
    let base = site.base().ok_or_else(|| Finding::unknown("the command has no base folder"))?;
    match expect.get("dir") {
        None => Ok(base.to_owned()),
        Some(Value::String(dir)) => Ok(base.join(dir)),
        Some(other) => Err(Finding::failed(format!("`{other}` is not a folder"))),
    }
}

/// Returns the finding for a killed program. A fault signal fails the claim; any other signal came from
/// outside.
fn killed(signal: i32, last_error_line: Option<String>) -> Finding {
    use rustix::process::Signal;
    const FAULTS: [(Signal, &str); 7] = [
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::ILL, "SIGILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::SYS, "SIGSYS"),
        (Signal::PIPE, "SIGPIPE"),
    ];
    let Some((_, name)) = FAULTS.iter().find(|(fault, _)| fault.as_raw() == signal) else {
        return Finding::unknown(format!("the command was killed by signal {signal}"));
    };
    let finding = Finding::differs(json!({ "signal": name })).either_way();
    last_error_line.into_iter().fold(finding, Finding::because)
}

/// Returns the last line of standard error, with secrets masked.
pub(crate) fn last_error_line(stderr: &CapturedOutput, environment: &Environment) -> Option<String> {
    let text = stderr.whole()?;
    let text = environment.mask(&text);
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    Some(shortened(line.trim()))
}

/// Shortens a text for a message.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
