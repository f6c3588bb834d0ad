//! `exec`: a program of the user checks the claim.

use async_trait::async_trait;
use serde_json::{Value, json};
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site};
use waypost::record::Claim;

use crate::expectations::expected::Expected;
use crate::programs::command::{last_error_line, working_folder};
use crate::programs::environment::Environment;
use crate::programs::process_group::{Exit, Program, ProgramResult};

/// Recorded kind of claims that a program checks.
pub const EXEC: &str = "exec";
/// Version of the input format.
const VERSION: u32 = 1;
/// Largest input of a program. The shell before the program reads bytes individually; 64 KiB take 20 ms.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// Longest program output kept as the found value. A header keeps a tenth of that per claim, so 1,000 claims
/// fit.
const FOUND_BYTES_MAX: usize = 4 << 10;

/// Checks `exec`: runs the program that the subject names, by name or by a path from the base folder.
///
/// Standard input is a line of JSON: `v` (1), `kind`, `subject`, `with` (a map or null), and `name` and
/// `metadata` if the claim has them. The exit code decides:
///
/// - 0: `ok`. Printed JSON of at most 4 KiB becomes the found value.
/// - 1: `failed`, with the same found value.
/// - Other codes, signals and start errors: `unknown`, with the last line of standard error.
///
/// Working folder, variables and termination are those of [`CommandProbe`](crate::CommandProbe).
#[derive(Debug, Clone)]
pub struct ExecProbe {
    environment: Environment,
}

impl ExecProbe {
    /// Returns a probe that starts programs with the variables of `environment`.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment }
    }
}

#[async_trait]
impl Probe for ExecProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(EXEC, Cost::Waiting).local()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let expect = Expected::read(&claim.expect, "`exec`", &["with", "env", "dir"])?;
        let with = expect.get("with").cloned().unwrap_or_default();
        if !matches!(with, Value::Null | Value::Object(_)) {
            return Err(Finding::failed("`with` is a map"));
        }
        let subject = claim.subject.as_str();
        if subject.trim().is_empty() || subject.starts_with('-') || subject.contains('\0') {
            return Err(Finding::failed(format!("`{subject}` is not a program")));
        }
        let mut error_text = json!({ "v": VERSION, "kind": EXEC, "subject": subject, "with": with });
        if let Some(name) = &claim.name {
            error_text["name"] = name.as_str().into();
        }
        if !claim.terms.metadata.is_empty() {
            error_text["metadata"] = claim.terms.metadata.clone().into_iter().collect();
        }
        let error_text = error_text.to_string();
        if error_text.len() > INPUT_BYTES_MAX {
            let why = format!(
                "the input of the program has {} bytes, the maximum is {INPUT_BYTES_MAX}",
                error_text.len()
            );
            return Err(Finding::failed(why));
        }
        let program = Program {
            words: vec![subject.into()],
            folder: working_folder(expect, site)?,
            environment: self.environment.of_claim(expect.get("env"))?,
            input: Some(error_text),
        };
        let ended = program.run().await?;
        Ok(self.finding(&ended))
    }
}

impl ExecProbe {
    fn finding(&self, ended: &ProgramResult) -> Finding {
        let last_error_line = last_error_line(&ended.stderr, &self.environment);
        let found = || found_in(ended.stdout.whole(), &self.environment);
        match ended.end {
            Exit::Code(0) => Finding::ok(found()),
            Exit::Code(1) => match last_error_line {
                Some(last_error_line) => Finding::differs(found()).because(last_error_line),
                None if found().is_null() => {
                    Finding::differs(Value::Null).because("the program reported a failure")
                }
                None => Finding::differs(found()),
            },
            Exit::Code(code) => {
                let last_error_line =
                    last_error_line.unwrap_or_else(|| format!("the program exited with {code}"));
                Finding::unknown(last_error_line)
            }
            Exit::Signal(signal) => Finding::unknown(format!("the program was killed by signal {signal}")),
        }
    }
}

/// Parses the output of a program: null if not JSON, or only its size if longer than the limit.
fn found_in(printed: Option<String>, environment: &Environment) -> Value {
    let Some(text) = printed else { return Value::Null };
    match text.trim().len() {
        ..=FOUND_BYTES_MAX => {
            let mut found = serde_json::from_str(&text).unwrap_or_default();
            mask_values(&mut found, environment);
            found
        }
        bytes => json!({ "bytes": bytes }),
    }
}

/// Masks secrets in a JSON value, including its numbers and keys.
fn mask_values(value: &mut Value, environment: &Environment) {
    match value {
        Value::String(text) => *text = environment.mask(text).into_owned(),
        Value::Number(number) => {
            // A float is also compared without exponent.
            let plain = number.as_f64().filter(|_| number.is_f64()).map(|float| float.to_string());
            let masked = [Some(number.to_string()), plain].into_iter().flatten().find_map(|text| {
                let masked = environment.mask(&text);
                (*masked != *text).then(|| masked.into_owned())
            });
            if let Some(masked) = masked {
                *value = masked.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask_values(item, environment)),
        Value::Object(map) => {
            let entries = std::mem::take(map).into_iter();
            *map = entries
                .map(|(name, mut value)| {
                    mask_values(&mut value, environment);
                    (environment.mask(&name).into_owned(), value)
                })
                .collect();
        }
        Value::Null | Value::Bool(_) => {}
    }
}
