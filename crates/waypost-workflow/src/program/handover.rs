//! What a step hands over when it has ended: read from its files and its standard output, checked for secrets.
//!
//! A step can put anything in place of those files: a pipe that nobody writes to, a device, a file on a disk that does
//! not answer. So nothing but regular files is opened, and they are read by a thread of their own, which is left alone
//! when the step's time is over.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use waypost::engine::Ended;
use waypost::record::{Failure, FailureKind, Note, Usage};

use crate::expr::exact_number;
use crate::file::OutputSource;
use crate::log::Captured;
use crate::mask::Mask;
use crate::output::{Capture, OUTPUT_BYTES_MAX, Written, parse_output_file};

use super::agent::{self, Said};
use super::announced::{self, EVENTS_BYTES_MAX};
use super::failure;
use super::state::StepOutput;

/// Longest text that a step may add to the report: a page or two, not a log.
const SUMMARY_BYTES_MAX: u64 = 64 * 1024;
/// Longest file that an output is read from.
const OUTPUT_SOURCE_BYTES_MAX: u64 = 16 << 20;
/// What stands in place of an error that could quote a secret.
const NOT_SHOWN: &str =
    "its outputs cannot be read, and what is wrong with them is not shown: a secret is among them";

/// Which outputs of a step are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All: it ended well, and what it promised must be there.
    All,
    /// What it wrote to `$WAYPOST_OUTPUT`: it failed, and the run goes on.
    Written,
    /// None: it failed.
    Nothing,
}

/// Where the things that a step hands over are, and what is wanted of them.
#[derive(Debug)]
pub(super) struct Handover {
    /// The file in `$WAYPOST_OUTPUT`.
    pub(super) output: PathBuf,
    /// The file in `$WAYPOST_SUMMARY`.
    pub(super) summary: PathBuf,
    /// The file in `$WAYPOST_EVENTS`.
    pub(super) events: PathBuf,
    /// Files that outputs are read from, by output.
    pub(super) sources: Vec<(String, PathBuf, OutputSource)>,
    /// What it printed, where that is wanted.
    pub(super) captured: Option<Captured>,
    /// What that becomes.
    pub(super) capture: Option<Capture>,
    /// It is what an agent says.
    pub(super) is_agent: bool,
    /// How much of that is taken.
    pub(super) capture_max: usize,
    /// Whether expressions read what it printed.
    pub(super) keeps_stdout: bool,
    /// Whether items are made of it: then it must be text, byte by byte.
    pub(super) makes_items: bool,
    /// Which of them count.
    pub(super) wanted: Wanted,
    /// The secrets.
    pub(super) mask: Mask,
}

/// What a step handed over.
#[derive(Debug)]
pub(super) struct Taken {
    /// Its outputs, as far as they were wanted.
    pub(super) output: Result<StepOutput, Failure>,
    /// What it printed before it failed, where expressions read that.
    pub(super) printed: Result<Option<String>, Failure>,
    /// What it adds to the report, masked.
    pub(super) summary: io::Result<Option<String>>,
    /// The events that it adds, without secrets, whatever became of it.
    pub(super) events: Vec<Note>,
    /// Tokens and cost, as far as it says, whatever became of it.
    pub(super) usage: Option<Usage>,
}

impl Handover {
    /// Takes what there is, unless the step must end before.
    ///
    /// `ended` resolves when it must; what was to be read is then left.
    pub(super) async fn take(self, ended: impl Future<Output = Ended>) -> Result<Taken, Ended> {
        if self.is_at_hand() {
            return Ok(self.read());
        }
        let (sender, taken) = oneshot::channel();
        // Not the runtime's own pool: that is waited for at the end, and a read may never return.
        let spawned = std::thread::Builder::new().name("waypost-outputs".to_owned()).spawn(move || {
            // Nobody listens any more when the step's time is over.
            let _ = sender.send(self.read());
        });
        if let Err(error) = spawned {
            let output = Err(not_read("its outputs", error));
            let printed = Ok(None);
            return Ok(Taken { output, printed, summary: Ok(None), events: Vec::new(), usage: None });
        }
        tokio::select! {
            taken = taken => Ok(taken.expect("reading what a step handed over does not panic")),
            ended = ended => Err(ended),
        }
    }

    /// Says whether nothing must be read from a disk.
    fn is_at_hand(&self) -> bool {
        let has_nothing = |path: &Path| match std::fs::symlink_metadata(path) {
            Ok(found) => found.is_file() && found.len() == 0,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        let reads_files = self.wanted == Wanted::All && !self.sources.is_empty();
        !reads_files
            && !self.is_agent
            && [&self.output, &self.summary, &self.events].into_iter().all(|path| has_nothing(path))
    }

    fn read(self) -> Taken {
        let summary = match read_own(&self.summary, SUMMARY_BYTES_MAX) {
            Ok(bytes) if bytes.is_empty() => Ok(None),
            Ok(bytes) => Ok(Some(self.mask.mask_str(&String::from_utf8_lossy(&bytes)).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let events = announced::notes(read_own(&self.events, EVENTS_BYTES_MAX), &self.mask);
        let written = self.written();
        let mut usage = written.as_ref().ok().and_then(|written| written.usage.clone());
        let said = self.said();
        if let Some(said) = said.as_ref().and_then(|said| said.usage.clone()) {
            usage = Some(match usage {
                Some(own) => sum(own, &said),
                None => said,
            });
        }
        let usage = usage
            .filter(|usage| !usage.model.as_ref().is_some_and(|model| self.mask.contains(model.as_bytes())));
        let outputs = written.map(|written| written.outputs);
        let failed = said.as_ref().and_then(|said| said.failed.as_deref()).map(agent_failed);
        let output = match (self.wanted, failed) {
            (Wanted::All, Some(failure)) => Err(failure),
            (Wanted::All, None) => outputs.and_then(|outputs| self.outputs(outputs, said)),
            (Wanted::Written, _) => outputs.and_then(|outputs| self.unless_leaking(outputs, None)),
            (Wanted::Nothing, _) => Ok(StepOutput::default()),
        };
        let output = output.map_err(|mut failure| {
            failure.error.iter_mut().for_each(|text| *text = self.mask.mask_str(text).into_owned());
            failure
        });
        let printed = match &output {
            Ok(_) if self.wanted == Wanted::All => Ok(None),
            _ => self.printed(),
        };
        Taken { output, printed, summary, events, usage }
    }

    /// Returns what a step printed that failed, where expressions read that.
    fn printed(&self) -> Result<Option<String>, Failure> {
        let Some(captured) = self.captured.as_ref().filter(|_| self.keeps_stdout) else { return Ok(None) };
        self.refuse_part_of(captured)?;
        if self.mask.contains(&captured.bytes) {
            return Err(secret_printed());
        }
        Ok(Some(text_of(captured)))
    }

    /// Reads its output file.
    fn written(&self) -> Result<Written, Failure> {
        match read_own(&self.output, OUTPUT_BYTES_MAX as u64) {
            Ok(bytes) => {
                let outputs = parse_output_file(&bytes).map_err(|error| {
                    let mut failure = failure(FailureKind::Outputs, error);
                    failure.error.insert(0, "cannot take outputs from $WAYPOST_OUTPUT".to_owned());
                    failure
                });
                self.unless_secret(&bytes, outputs)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Written::default()),
            Err(error) => Err(not_read("$WAYPOST_OUTPUT", error)),
        }
    }

    /// Makes one of which only the declared files are read.
    pub(super) fn of_files(sources: Vec<(String, PathBuf, OutputSource)>, mask: Mask) -> Self {
        let (output, summary, events) = (PathBuf::new(), PathBuf::new(), PathBuf::new());
        Self {
            output,
            summary,
            events,
            sources,
            captured: None,
            capture: None,
            is_agent: false,
            capture_max: 0,
            keeps_stdout: false,
            makes_items: false,
            wanted: Wanted::All,
            mask,
        }
    }

    /// Reads its output file, the files it declared, what it printed.
    pub(super) fn outputs(
        &self,
        mut outputs: Map<String, Value>,
        said: Option<Said>,
    ) -> Result<StepOutput, Failure> {
        for (name, path, source) in &self.sources {
            let bytes = read_at_most(path, OUTPUT_SOURCE_BYTES_MAX, OFlags::empty())
                .map_err(|error| not_read(&format!("output `{name}` from {}", path.display()), error))?;
            // Before it is read: what a number was written as is not seen any more afterwards.
            if self.mask.contains(&bytes) {
                let place = self.mask.mask_str(&path.display().to_string()).into_owned();
                return Err(outputs_failure(vec![format!(
                    "output `{name}` is read from {place}, which contains a secret, and a secret must not be recorded"
                )]));
            }
            let value = source.read(&bytes).map_err(|error| {
                let mut failure = failure(FailureKind::Outputs, error);
                failure.error.insert(0, format!("cannot take output `{name}` from {}", path.display()));
                failure
            });
            outputs.insert(name.clone(), value?);
        }
        let mut stdout = None;
        if let Some(captured) = &self.captured {
            if let Some(value) = self.captured_value(captured, said)? {
                outputs.insert("result".to_owned(), value);
            }
            if self.makes_items {
                refuse_other_than_text(&captured.bytes)?;
            }
            if self.keeps_stdout {
                stdout = Some(text_of(captured));
            }
        }
        self.unless_leaking(outputs, stdout)
    }

    /// Reads what an agent said.
    fn said(&self) -> Option<Said> {
        let captured = self.captured.as_ref().filter(|captured| self.is_agent && captured.is_whole())?;
        Some(agent::said(&String::from_utf8_lossy(&captured.bytes)))
    }

    /// Refuses outputs of which one holds a secret.
    fn unless_leaking(
        &self,
        outputs: Map<String, Value>,
        stdout: Option<String>,
    ) -> Result<StepOutput, Failure> {
        let leaks =
            |name: &String, value: &Value| self.mask.contains(name.as_bytes()) || self.mask.is_within(value);
        match outputs.iter().find(|(name, value)| leaks(name, value)) {
            Some((name, _)) => Err(secret_in(name)),
            None => Ok(StepOutput { outputs, stdout, ..StepOutput::default() }),
        }
    }

    /// Makes an output of what it printed.
    fn captured_value(&self, captured: &Captured, said: Option<Said>) -> Result<Option<Value>, Failure> {
        self.refuse_part_of(captured)?;
        let is_secret = self.mask.contains(&captured.bytes);
        match self.capture {
            Some(_) if is_secret => Err(secret_in("result")),
            // Refused or not: the error would quote a number that is a secret written in another way.
            Some(Capture::Number) if self.is_secret_number(&captured.bytes) => Err(secret_in("result")),
            Some(capture) => capture
                .convert(said.as_ref().map_or(&captured.bytes, |said| said.text.as_bytes()))
                .map(Some)
                .map_err(|error| failure(FailureKind::Outputs, error)),
            None if is_secret => Err(secret_printed()),
            None => Ok(None),
        }
    }

    /// Says whether a text is a number that is a secret, in whatever way it is written.
    fn is_secret_number(&self, bytes: &[u8]) -> bool {
        let number = std::str::from_utf8(bytes).ok().and_then(|text| exact_number(text.trim()).ok());
        number.is_some_and(|number| self.mask.is_within(&Value::Number(number)))
    }

    /// Refuses what a step printed if there was more of it than is taken.
    fn refuse_part_of(&self, captured: &Captured) -> Result<(), Failure> {
        if captured.is_whole() {
            return Ok(());
        }
        let text = format!(
            "the step printed {} bytes, of which {} can be captured; write the rest to a file",
            captured.bytes_total, self.capture_max
        );
        Err(outputs_failure(vec![text]))
    }

    /// Replaces an error about `bytes` that could quote a secret, whole or clipped.
    fn unless_secret<T>(&self, bytes: &[u8], read: Result<T, Failure>) -> Result<T, Failure> {
        match read {
            Err(_) if self.mask.contains(bytes) => Err(outputs_failure(vec![NOT_SHOWN.to_owned()])),
            read => read,
        }
    }
}

fn sum(own: Usage, more: &Usage) -> Usage {
    Usage {
        tokens_in: own.tokens_in.saturating_add(more.tokens_in),
        tokens_out: own.tokens_out.saturating_add(more.tokens_out),
        cost: own.cost + more.cost,
        model: own.model.or_else(|| more.model.clone()),
    }
}

/// Says that an agent has failed, by its own word: its exit code told nothing of it.
fn agent_failed(told: &str) -> Failure {
    Failure::new(FailureKind::Error, vec!["the agent says that it failed".to_owned(), told.to_owned()])
}

fn secret_in(name: &str) -> Failure {
    outputs_failure(vec![format!("output `{name}` contains a secret, which must not be recorded")])
}

fn secret_printed() -> Failure {
    let text = "standard output is read by an expression and contains a secret, which must not be recorded";
    outputs_failure(vec![text.to_owned()])
}

/// Returns what a step printed as expressions read it.
fn text_of(captured: &Captured) -> String {
    String::from_utf8_lossy(&captured.bytes).trim_end_matches('\n').to_owned()
}

/// Refuses bytes that are no text: an item made of them would not be what the command printed.
fn refuse_other_than_text(bytes: &[u8]) -> Result<(), Failure> {
    std::str::from_utf8(bytes).map(drop).map_err(|error| {
        let valid = error.valid_up_to();
        outputs_failure(vec![format!(
            "items cannot be made of what the command printed: it is not valid UTF-8 after byte {valid}"
        )])
    })
}

fn outputs_failure(error: Vec<String>) -> Failure {
    Failure { error, ..Failure::new(FailureKind::Outputs, Vec::new()) }
}

fn not_read(what: &str, error: io::Error) -> Failure {
    outputs_failure(vec![format!("cannot read {what}"), error.to_string()])
}

/// Reads a file that we named to the step. A link in its place leads elsewhere, and is not followed.
fn read_own(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let metadata = std::fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Err(io::Error::other("it is a symbolic link"));
    }
    read_at_most(path, limit, OFlags::NOFOLLOW)
}

/// Reads a file that items are made of.
pub(super) fn read_items_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_at_most(path, limit, OFlags::empty())
}

/// Reads a regular file of at most `limit` bytes; anything else is not even opened, or at least not waited for.
fn read_at_most(path: &Path, limit: u64, flags: OFlags) -> io::Result<Vec<u8>> {
    let regular = |metadata: std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("it is not a regular file")),
    };
    regular(std::fs::metadata(path)?)?;
    // It may have become something else in between: opening a pipe waits for its other end, without this.
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    regular(file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::{Captured, Handover, Wanted};
    use crate::mask::Mask;
    use crate::output::Capture;

    /// What a program could print that knows `secret`.
    fn print(secret: &str, form: u8, before: &str) -> String {
        let unicode: String = secret.chars().map(|char| format!("\\u{:04x}", u32::from(char))).collect();
        let (first, rest) = secret.split_at(1);
        let exponent = rest.len();
        match form {
            0 => secret.to_owned(),
            1 => format!("{secret}.0"),
            2 => format!("{first}.{rest}e{exponent}"),
            3 => format!("{secret}0e-1"),
            4 => format!("{{\"{before}\": [{secret}]}}"),
            5 => format!("{{\"{before}\": {{\"{secret}\": null}}}}"),
            6 => format!("[\"{unicode}\"]"),
            7 => format!("[\"{before}{}\"]", STANDARD.encode(secret)),
            8 => format!("\"{before}{secret}\""),
            9 => format!("[-{secret}]"),
            _ => format!("{before}\n{secret}\n"),
        }
    }

    proptest! {
        #[test]
        fn no_output_and_no_error_holds_a_secret(secret in "[1-9][0-9]{7,14}", form in 0..11_u8, kind in 0..4_usize, before in "[a-z ]{0,6}") {
            let mask = Mask::new([("S", secret.as_bytes())]).expect("it is long enough");
            let bytes = print(&secret, form, &before).into_bytes();
            let captured = Captured { bytes_total: bytes.len() as u64, bytes };
            let none = std::path::PathBuf::from("/nonexistent/file");
            let handover = Handover {
                output: none.clone(),
                summary: none.clone(),
                events: none,
                sources: Vec::new(),
                captured: Some(captured),
                capture: Some(Capture::ALL[kind]),
                is_agent: false,
                capture_max: crate::log::CAPTURE_BYTES_MAX,
                keeps_stdout: true,
                makes_items: false,
                wanted: Wanted::All,
                mask: mask.clone(),
            };

            let text = match handover.read().output {
                Ok(output) => serde_json::to_string(&output.outputs).expect("it is JSON") + &output.stdout.unwrap_or_default(),
                Err(failure) => failure.error.join("\n"),
            };

            prop_assert!(!mask.contains(text.as_bytes()), "{text}");
            prop_assert!(!text.contains(&secret), "{text}");
        }
    }
}
