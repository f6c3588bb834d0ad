//! `--treat-as`: the decisions of a person about steps in doubt.

use std::fmt;

use waypost::TreatAs;

/// A decision, and the steps that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Treatment {
    pub(crate) treat_as: TreatAs,
    /// The named steps; no step for all that no other decision names.
    pub(crate) steps: Vec<String>,
}

impl Treatment {
    /// Parses `done`, `retry`, `done=STEP,...` or `retry=STEP,...`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (treat_as, steps) = text.split_once('=').map_or((text, None), |(word, rest)| (word, Some(rest)));
        let treat_as = match treat_as {
            "done" => TreatAs::Done,
            "retry" => TreatAs::Retry,
            _ => return Err("expected `done` or `retry`, or steps: `done=STEP,...`".to_owned()),
        };
        let steps: Vec<String> =
            steps.into_iter().flat_map(|steps| steps.split(',')).map(str::to_owned).collect();
        if steps.iter().any(String::is_empty) {
            return Err("a step has no name".to_owned());
        }
        if steps.iter().any(|step| step.contains('=')) {
            let options = ["done", "retry"].iter().fold(format!("--treat-as {text}"), |options, word| {
                options.replace(&format!(",{word}="), &format!(" --treat-as {word}="))
            });
            return Err(format!("an option has one decision: `{options}`"));
        }
        Ok(Self { treat_as, steps })
    }
}

impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(word(self.treat_as))?;
        if self.steps.is_empty() { Ok(()) } else { write!(f, "={}", self.steps.join(",")) }
    }
}

/// Returns the word of a decision.
pub(crate) fn word(treat_as: TreatAs) -> &'static str {
    match treat_as {
        TreatAs::Done => "done",
        TreatAs::Retry => "retry",
    }
}
