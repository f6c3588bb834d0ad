//! `command`: a shell command comes to what is expected, each time that it is checked.

use std::path::PathBuf;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use waypost::evidence::{Cost, Finding, Probe, Site};
use waypost::record::Claim;

use crate::environment::Environment;
use crate::group::{End, PRINTED_BYTES_MAX, Printed, Program};
use crate::{check, fits};

/// Recorded kind of claims about what a command comes to.
pub const COMMAND: &str = "command";
/// Exit codes by which a shell says that it could not run what it was to run: not executable, not there.
const NOT_RUN: [i32; 2] = [126, 127];
/// Most characters of what a program printed that are told.
const TOLD_CHARS_MAX: usize = 500;

/// Checks `command`: run by `sh -eu -c` in the base folder, the subject ends with the code `exit`, which is 0 if nothing else
/// is said, and prints what is expected of `stdout` and `stderr`, white space around it aside.
///
/// It is run again at each check, without input, with the variables of the [`Environment`] that are not withheld and those
/// that `env` names, and its process group is killed when it has ended and when the check is dropped. `dir` is where it runs
/// beneath the base folder.
///
/// - `ok`: it came to what is expected.
/// - `failed`: it ended with another code, printed something else, or died of its own fault, as by a segmentation fault;
///   the opposite does not hold of the last.
/// - `unknown`: it could not be started (codes 126 and 127 of the shell), did not end in time, was
///   killed by somebody, or printed more than 1 MiB where that is compared; a variable that it needs is not set.
#[derive(Debug, Clone)]
pub struct CommandProbe {
    environment: Environment,
}

impl CommandProbe {
    /// Makes a probe that gives commands these variables.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Probe for CommandProbe {
    fn kind(&self) -> &str {
        COMMAND
    }

    fn cost(&self) -> Cost {
        Cost::Waiting
    }

    fn is_live(&self) -> bool {
        false
    }

    fn is_local(&self, _: &Claim) -> bool {
        true
    }

    fn glance(&self, _: &Claim, _: &Site) -> Option<Finding> {
        None
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Finding {
        match self.run(claim, site).await {
            Ok(finding) | Err(finding) => finding,
        }
    }

    async fn pin(&self, _: &Claim, _: &Site) -> Finding {
        Finding::failed("what a command comes to is expected, not pinned")
    }
}

impl CommandProbe {
    async fn run(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let none = Map::new();
        let expect = match &claim.expect {
            Value::Null => &none,
            Value::Object(map) => map,
            other => return Err(Finding::failed(format!("`{other}` is no expectation of a command"))),
        };
        understood(expect, &["exit", "stdout", "stderr"])?;
        if claim.subject.trim().is_empty() || claim.subject.contains('\0') {
            return Err(Finding::failed("it names no command"));
        }
        let program = Program {
            words: ["/bin/sh", "-eu", "-c", "--", &claim.subject].map(Into::into).into(),
            folder: folder_of(expect, site)?,
            environment: self.environment.of_claim(expect.get("env"))?,
            input: None,
        };
        let ended = program.run().await?;
        let said = said(&ended.stderr, &self.environment);
        let code = match ended.end {
            End::Code(code) => code,
            End::Signal(signal) => return Ok(killed(signal, said)),
        };
        let mut found = json!({ "exit": code });
        let mut holds = fits(expect.get("exit").unwrap_or(&json!(0)), &json!(code)).map_err(wrong)?;
        if NOT_RUN.contains(&code) {
            let said = said.unwrap_or_else(|| format!("the shell ended with {code}"));
            return Err(Finding::unknown(format!("it could not be run: {said}")));
        }
        for (name, printed) in [("stdout", &ended.stdout), ("stderr", &ended.stderr)] {
            let Some(wanted) = expect.get(name) else { continue };
            let Some(text) = printed.whole() else {
                let why = format!(
                    "it printed more to {name} than the {PRINTED_BYTES_MAX} bytes that are looked at"
                );
                return Err(Finding::unknown(why));
            };
            let text = text.trim();
            holds &= fits(wanted, &json!(text)).map_err(wrong)?;
            found[name] = clipped(&self.environment.mask(text)).into();
        }
        Ok(match (holds, said) {
            (true, _) => Finding::ok(found),
            (false, Some(said)) if !expect.contains_key("stderr") => Finding::differs(found).because(said),
            (false, _) => Finding::differs(found),
        })
    }
}

/// Sees before anything is run that the values of all these keys can be compared with, and that there are no others than
/// those and what a program is given.
pub(crate) fn understood(expect: &Map<String, Value>, compared: &[&str]) -> Result<(), Finding> {
    for (name, wanted) in expect {
        if compared.contains(&name.as_str()) {
            check(wanted).map_err(|error| Finding::failed(format!("`{name}`: {error}")))?;
            if wanted.is_null() {
                return Err(Finding::failed(format!("`{name}` expects nothing")));
            }
        } else if !matches!(name.as_str(), "env" | "dir") {
            return Err(Finding::unknown(format!("the expectation `{name}` cannot be checked here")));
        }
    }
    Ok(())
}

/// Returns where a program runs: the base folder, or `dir` in it.
pub(crate) fn folder_of(expect: &Map<String, Value>, site: &Site) -> Result<PathBuf, Finding> {
    let base = site.base().ok_or_else(|| Finding::unknown("there is no base folder to run it in"))?;
    match expect.get("dir") {
        None => Ok(base.to_owned()),
        Some(Value::String(dir)) => Ok(base.join(dir)),
        Some(other) => Err(Finding::failed(format!("`{other}` is no folder"))),
    }
}

/// Says of a program that it was killed. A fault is its own; everything else came from somebody.
fn killed(signal: i32, said: Option<String>) -> Finding {
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
        return Finding::unknown(format!("it was killed by signal {signal} before it had ended"));
    };
    let finding = Finding::differs(json!({ "signal": name })).either_way();
    match said {
        Some(said) => finding.because(said),
        None => finding,
    }
}

/// Returns the last line that a program wrote to standard error, without secrets.
pub(crate) fn said(stderr: &Printed, environment: &Environment) -> Option<String> {
    let text = stderr.whole()?;
    let text = environment.mask(&text);
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    Some(clipped(line.trim()))
}

/// Shows no more of a text than a person reads.
pub(crate) fn clipped(text: &str) -> String {
    match text.char_indices().nth(TOLD_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn wrong(error: crate::InvalidExpectation) -> Finding {
    Finding::failed(error.to_string())
}
