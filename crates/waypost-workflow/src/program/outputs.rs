//! Outputs of an ended step: read from files and standard output, and checked for secrets.
//!
//! A step can replace these files by a pipe without a writer, a device, or a file on a stalled disk.
//! Therefore only regular files are opened. A separate thread reads the files, and is abandoned when the
//! step's time is over.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use waypost::engine::CancelCause;
use waypost::record::{Failure, FailureKind, Note, Usage};

use crate::expr::exact_number;
use crate::log::Captured;
use crate::mask::Mask;
use crate::output::{
    Capture, JsonPath, OUTPUT_BYTES_MAX, PathError, Written, file_text, parse_output_file, value_in,
};

use super::agent::{self, Said};
use super::failure;
use super::state::StepOutput;
use super::step_events::{self, EVENTS_BYTES_MAX};

/// Largest text of a step for the report: a page or two, not a log.
const SUMMARY_BYTES_MAX: u64 = 64 * 1024;
/// Largest file of an output.
const OUTPUT_SOURCE_BYTES_MAX: u64 = 16 << 20;
/// Replacement for errors with a possible secret.
const NOT_SHOWN: &str = "cannot read the outputs; the reason is hidden, because they contain a secret";

/// A file that a step declares as an output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct DeclaredFile {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Path in a JSON file; `None` for the text of the file.
    pub(super) json: Option<JsonPath>,
}

impl DeclaredFile {
    /// Returns the output in the bytes of the file.
    fn value(&self, bytes: &[u8]) -> Result<Value, PathError> {
        match &self.json {
            Some(path) => value_in(path, bytes),
            None => file_text(bytes),
        }
    }
}

/// Which outputs of a step are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputSources {
    /// All outputs: the step succeeded, and declared outputs must exist.
    All,
    /// Outputs in `$WAYPOST_OUTPUT`: the step failed, and its hooks and later steps may read these.
    Written,
}

/// Sources of a step's outputs, and how to read them.
#[derive(Debug)]
pub(super) struct OutputFiles {
    /// File `$WAYPOST_OUTPUT`.
    pub(super) output: PathBuf,
    /// File `$WAYPOST_SUMMARY`.
    pub(super) summary: PathBuf,
    /// File `$WAYPOST_EVENTS`.
    pub(super) events: PathBuf,
    /// Files of declared outputs: output name, path and format.
    pub(super) sources: Vec<DeclaredFile>,
    /// Captured standard output, if requested.
    pub(super) captured: Option<Captured>,
    /// Type of the `result` output made from standard output.
    pub(super) capture: Option<Capture>,
    /// Whether standard output is parsed as the output of an agent.
    pub(super) is_agent: bool,
    /// Limit of the captured standard output, in bytes.
    pub(super) capture_max: usize,
    /// Whether expressions read the standard output.
    pub(super) keeps_stdout: bool,
    /// Whether items are made from standard output, which must then be UTF-8.
    pub(super) makes_items: bool,
    /// Which outputs are read.
    pub(super) wanted: OutputSources,
    /// Secrets of the run.
    pub(super) mask: Mask,
}

/// Outputs of a step, as read.
#[derive(Debug)]
pub(super) struct StepOutputs {
    /// Outputs, as far as requested.
    pub(super) output: Result<StepOutput, Failure>,
    /// Standard output of a failed step, if expressions read it.
    pub(super) stdout_text: Result<Option<String>, Failure>,
    /// Text for the report, masked.
    pub(super) summary: io::Result<Option<String>>,
    /// Events of the step, masked, whatever the result of the step.
    pub(super) events: Vec<Note>,
    /// Tokens and cost, if reported, whatever the result of the step.
    pub(super) usage: Option<Usage>,
}

impl OutputFiles {
    /// Reads all sources, unless `ended` resolves first.
    ///
    /// `ended` resolves when the step must end; the reading thread is then abandoned.
    pub(super) async fn take(
        self,
        ended: impl Future<Output = CancelCause>,
    ) -> Result<StepOutputs, CancelCause> {
        if self.is_in_memory() {
            return Ok(self.read());
        }
        let (sender, taken) = oneshot::channel();
        // Not the pool of the runtime: shutdown waits for the pool, and a read may never return.
        let spawned = std::thread::Builder::new().name("waypost-outputs".to_owned()).spawn(move || {
            // The receiver is gone when the step's time is over.
            let _ = sender.send(self.read());
        });
        if let Err(error) = spawned {
            let output = Err(not_read("its outputs", error));
            let stdout_text = Ok(None);
            return Ok(StepOutputs {
                output,
                stdout_text,
                summary: Ok(None),
                events: Vec::new(),
                usage: None,
            });
        }
        tokio::select! {
            taken = taken => Ok(taken.expect("reading outputs does not panic")),
            ended = ended => Err(ended),
        }
    }

    /// Returns whether all files are absent or empty, so that no disk read is needed.
    fn is_in_memory(&self) -> bool {
        let has_nothing = |path: &Path| match std::fs::symlink_metadata(path) {
            Ok(found) => found.is_file() && found.len() == 0,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        let reads_files = self.wanted == OutputSources::All && !self.sources.is_empty();
        !reads_files
            && !self.is_agent
            && [&self.output, &self.summary, &self.events].into_iter().all(|path| has_nothing(path))
    }

    fn read(self) -> StepOutputs {
        let summary = match read_own(&self.summary, SUMMARY_BYTES_MAX) {
            Ok(bytes) if bytes.is_empty() => Ok(None),
            Ok(bytes) => Ok(Some(self.mask.mask_str(&String::from_utf8_lossy(&bytes)).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let events = step_events::notes(read_own(&self.events, EVENTS_BYTES_MAX), &self.mask);
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
            (OutputSources::All, Some(failure)) => Err(failure),
            (OutputSources::All, None) => outputs.and_then(|outputs| self.outputs(outputs, said)),
            (OutputSources::Written, _) => outputs.and_then(|outputs| self.unless_leaking(outputs, None)),
        };
        let output = output.map_err(|mut failure| {
            failure.error.iter_mut().for_each(|text| *text = self.mask.mask_str(text).into_owned());
            failure
        });
        let stdout_text = match &output {
            Ok(_) if self.wanted == OutputSources::All => Ok(None),
            _ => self.stdout_text(),
        };
        StepOutputs { output, stdout_text, summary, events, usage }
    }

    /// Returns the standard output of a failed step, if expressions read it.
    fn stdout_text(&self) -> Result<Option<String>, Failure> {
        let Some(captured) = self.captured.as_ref().filter(|_| self.keeps_stdout) else { return Ok(None) };
        self.refuse_part_of(captured)?;
        if self.mask.contains(&captured.bytes) {
            return Err(secret_printed());
        }
        Ok(Some(text_of(captured)))
    }

    /// Reads `$WAYPOST_OUTPUT`.
    fn written(&self) -> Result<Written, Failure> {
        match read_own(&self.output, OUTPUT_BYTES_MAX as u64) {
            Ok(bytes) => {
                let outputs = parse_output_file(&bytes).map_err(|error| {
                    let mut failure = failure(FailureKind::Outputs, error);
                    failure.error.insert(0, "cannot read outputs from $WAYPOST_OUTPUT".to_owned());
                    failure
                });
                self.unless_secret(&bytes, outputs)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Written::default()),
            Err(error) => Err(not_read("$WAYPOST_OUTPUT", error)),
        }
    }

    /// Makes a handover with the declared files only.
    pub(super) fn of_files(sources: Vec<DeclaredFile>, mask: Mask) -> Self {
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
            wanted: OutputSources::All,
            mask,
        }
    }

    /// Adds the declared files and the captured standard output to `outputs`.
    pub(super) fn outputs(
        &self,
        mut outputs: Map<String, Value>,
        said: Option<Said>,
    ) -> Result<StepOutput, Failure> {
        for file in &self.sources {
            let DeclaredFile { name, path, .. } = file;
            let bytes = read_at_most(path, OUTPUT_SOURCE_BYTES_MAX, OFlags::empty())
                .map_err(|error| not_read(&format!("output `{name}` from {}", path.display()), error))?;
            // Checked before parsing: a parsed number loses the original spelling.
            if self.mask.contains(&bytes) {
                let place = self.mask.mask_str(&path.display().to_string()).into_owned();
                return Err(outputs_failure(vec![format!(
                    "output `{name}` is read from {place}, which contains a secret, and secrets must not \
                     be recorded"
                )]));
            }
            let value = file.value(&bytes).map_err(|error| {
                let mut failure = failure(FailureKind::Outputs, error);
                failure.error.insert(0, format!("cannot read output `{name}` from {}", path.display()));
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

    /// Parses the output of an agent.
    fn said(&self) -> Option<Said> {
        let captured = self.captured.as_ref().filter(|captured| self.is_agent && captured.is_whole())?;
        Some(agent::said(&String::from_utf8_lossy(&captured.bytes)))
    }

    /// Returns the outputs, or a failure if an output contains a secret.
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

    /// Makes the `result` output from the captured standard output.
    fn captured_value(&self, captured: &Captured, said: Option<Said>) -> Result<Option<Value>, Failure> {
        self.refuse_part_of(captured)?;
        let is_secret = self.mask.contains(&captured.bytes);
        match self.capture {
            Some(_) if is_secret => Err(secret_in("result")),
            // Checked before conversion: the error would quote the number, a secret in another spelling.
            Some(Capture::Number) if self.is_secret_number(&captured.bytes) => Err(secret_in("result")),
            Some(capture) => capture
                .convert(said.as_ref().map_or(&captured.bytes, |said| said.text.as_bytes()))
                .map(Some)
                .map_err(|error| failure(FailureKind::Outputs, error)),
            None if is_secret => Err(secret_printed()),
            None => Ok(None),
        }
    }

    /// Returns whether a text is a secret number, in any spelling.
    fn is_secret_number(&self, bytes: &[u8]) -> bool {
        let number = std::str::from_utf8(bytes).ok().and_then(|text| exact_number(text.trim()).ok());
        number.is_some_and(|number| self.mask.is_within(&Value::Number(number)))
    }

    /// Fails if the step printed more than was captured.
    fn refuse_part_of(&self, captured: &Captured) -> Result<(), Failure> {
        if captured.is_whole() {
            return Ok(());
        }
        let text = format!(
            "the step printed {} bytes, the maximum for `capture` is {}; write large output to a file",
            captured.bytes_total, self.capture_max
        );
        Err(outputs_failure(vec![text]))
    }

    /// Replaces a read error by [`NOT_SHOWN`] if `bytes` contains a secret.
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

/// Returns the failure of an agent from the failure text in the output.
fn agent_failed(error: &str) -> Failure {
    Failure::new(FailureKind::Error, vec!["the agent reported a failure".to_owned(), error.to_owned()])
}

fn secret_in(name: &str) -> Failure {
    outputs_failure(vec![format!("output `{name}` contains a secret, which must not be recorded")])
}

fn secret_printed() -> Failure {
    let text = "an expression reads stdout, which contains a secret, and secrets must not be recorded";
    outputs_failure(vec![text.to_owned()])
}

/// Returns the captured standard output as expressions read it.
fn text_of(captured: &Captured) -> String {
    String::from_utf8_lossy(&captured.bytes).trim_end_matches('\n').to_owned()
}

/// Fails unless `bytes` is UTF-8: items from lossy text would differ from the printed bytes.
fn refuse_other_than_text(bytes: &[u8]) -> Result<(), Failure> {
    std::str::from_utf8(bytes).map(drop).map_err(|error| {
        let valid = error.valid_up_to();
        outputs_failure(vec![format!(
            "cannot read items from the command output: not valid UTF-8 after byte {valid}"
        )])
    })
}

fn outputs_failure(error: Vec<String>) -> Failure {
    Failure { error, ..Failure::new(FailureKind::Outputs, Vec::new()) }
}

fn not_read(what: &str, error: io::Error) -> Failure {
    outputs_failure(vec![format!("cannot read {what}"), error.to_string()])
}

/// Reads a file whose path was given to the step. A symbolic link is an error.
fn read_own(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let metadata = std::fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Err(io::Error::other("the path is a symbolic link"));
    }
    read_at_most(path, limit, OFlags::NOFOLLOW)
}

/// Reads a file as source of items.
pub(super) fn read_items_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_at_most(path, limit, OFlags::empty())
}

/// Reads a regular file of at most `limit` bytes. Other file types are not opened, or at least not waited
/// for.
fn read_at_most(path: &Path, limit: u64, flags: OFlags) -> io::Result<Vec<u8>> {
    let regular = |metadata: std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("the path is not a regular file")),
    };
    regular(std::fs::metadata(path)?)?;
    // The file may have been replaced since: without NONBLOCK, opening a pipe waits for the other end.
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    regular(file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("the file exceeds {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::{Captured, OutputFiles, OutputSources};
    use crate::mask::Mask;
    use crate::output::Capture;

    /// Returns the output of a program with access to `secret`.
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
            let output_files = OutputFiles {
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
                wanted: OutputSources::All,
                mask: mask.clone(),
            };

            let text = match output_files.read().output {
                Ok(output) => serde_json::to_string(&output.outputs).expect("it is JSON") + &output.stdout.unwrap_or_default(),
                Err(failure) => failure.error.join("\n"),
            };

            prop_assert!(!mask.contains(text.as_bytes()), "{text}");
            prop_assert!(!text.contains(&secret), "{text}");
        }
    }
}
