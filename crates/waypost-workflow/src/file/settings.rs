//! Settings of steps, `defaults` and the run: shell, retry, exit codes, checkpoints, `env`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::checker::Checker;
use super::fields::{Fields, KeySet};
use super::node::{Kind, Node};
use super::workflow::{Backoff, Retry, RetryCause, Shell, Tolerance};
use crate::expr::Template;

/// Most retries; a step that needs more should wait for its dependency instead.
const RETRY_MAX: u64 = 1_000;
/// Most arguments of a shell before the command.
const SHELL_WORDS_MAX: usize = 64;
/// Most step boundaries kept; the stores have far lower limits.
const RETENTION_MAX: u64 = 1_000_000;
/// Fewest step boundaries kept: if the newest is damaged, the previous one is needed.
const RETENTION_MIN: u64 = 2;
/// Shortest interval of checkpoints within a step: people read the progress.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Prefix of variables set by Waypost.
const RESERVED_PREFIX: &str = "WAYPOST_";

pub(super) static RETRY: KeySet = KeySet {
    what: "`retry`",
    keys: &["max", "delay", "backoff", "max_delay", "jitter", "when"],
    later: &[],
    elsewhere: &[],
};

pub(super) static CHECKPOINTS: KeySet = KeySet {
    what: "`checkpoints`",
    keys: &["retention", "durability", "on_failure", "interval"],
    later: &[],
    elsewhere: &[],
};

/// Reads `retry`: a number of retries, or a map with missing keys taken from `base`.
pub(super) fn retry(checker: &mut Checker<'_>, node: &Node, base: &Retry) -> Option<Retry> {
    let tries = |count: u64| u32::try_from(count).expect("RETRY_MAX fits in u32");
    if matches!(node.kind, Kind::Number(_)) {
        let max = checker.integer(node, "retry", 0..=RETRY_MAX)?;
        return Some(Retry { max: tries(max), ..base.clone() });
    }
    if !matches!(node.kind, Kind::Map(_)) {
        let help =
            "write `retry: 5`, or a map with `max`, `delay`, `backoff`, `max_delay`, `jitter` and `when`";
        checker.mismatch(node, "retry", "a number of tries or a map", help);
        return None;
    }
    let fields = Fields::of(checker, node, &RETRY)?;
    let mut retry = base.clone();
    match fields.get("max") {
        Some(node) => retry.max = checker.integer(node, "max", 0..=RETRY_MAX).map_or(retry.max, tries),
        None if retry.max == 0 && !fields.has_any(&["max"]) => {
            checker.wrong(
                node,
                "`retry` has no number of tries",
                "add `max`, the number of tries after the first",
            );
        }
        None => {}
    }
    if let Some(delay) = fields.get("delay").and_then(|node| checker.duration(node, "delay")) {
        retry.delay = delay;
    }
    if let Some(delay) = fields.get("max_delay").and_then(|node| checker.duration(node, "max_delay")) {
        retry.max_delay = delay;
    }
    if let Some(node) = fields.get("backoff") {
        retry.backoff = match checker.word(node, "backoff", &["fixed", "linear", "exponential"]) {
            Some("fixed") => Backoff::Fixed,
            Some("linear") => Backoff::Linear,
            _ => Backoff::Exponential,
        };
    }
    if let Some(jitter) = fields.get("jitter").and_then(|node| checker.truth(node, "jitter")) {
        retry.jitter = jitter;
    }
    if let Some(node) = fields.get("when") {
        retry.when = causes(checker, node);
    }
    let said = |key| fields.get(key).is_some();
    if retry.delay > retry.max_delay && (said("delay") || said("max_delay")) {
        match said("max_delay") {
            true => checker.wrong(node, "`delay` is longer than `max_delay`", "increase `max_delay`"),
            // Only the built-in limit conflicts; the file asks for the longer wait.
            false => retry.max_delay = retry.delay,
        }
    }
    Some(retry)
}

/// Reads `when`: the failures to retry; empty for any failure.
fn causes(checker: &mut Checker<'_>, node: &Node) -> Vec<RetryCause> {
    let help = "write `timeout`, `exit N`, `signal`, `evidence` or `any`, or a list of them";
    let items: Vec<&Node> = match &node.kind {
        Kind::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    if items.is_empty() {
        checker.wrong(node, "`when` is empty", help);
    }
    let (mut causes, mut any) = (Vec::new(), false);
    for item in items {
        let word = match &item.kind {
            Kind::Number(number) => {
                checker.wrong(
                    item,
                    format!("`when` does not support {number}"),
                    &format!("for an exit code write `exit {number}`"),
                );
                continue;
            }
            _ => checker.text(item, "when"),
        };
        match word.as_deref() {
            Some("timeout") => causes.push(RetryCause::Timeout),
            Some("any") => any = true,
            Some("evidence") => causes.push(RetryCause::Evidence),
            Some("signal") => causes.push(RetryCause::Signal),
            Some(word) => match word.strip_prefix("exit ").map(|code| code.trim().parse::<u8>()) {
                Some(Ok(code)) if code > 0 => causes.push(RetryCause::Exit(code)),
                Some(_) => checker.wrong(item, "an exit code is a number from 1 to 255", help),
                None => {
                    checker.word(item, "when", &["timeout", "exit N", "signal", "evidence", "any"]);
                }
            },
            None => {}
        }
    }
    if any {
        causes.clear();
    }
    causes
}

/// Reads `max_cuts`: cuts in a row before a step starts only alone.
pub(super) fn cuts_max(checker: &mut Checker<'_>, node: &Node) -> Option<u32> {
    let count = checker.integer(node, "max_cuts", 1..=RETRY_MAX)?;
    u32::try_from(count).ok()
}

/// Reads `shell`: `bash`, `sh`, or program and arguments.
pub(super) fn shell(checker: &mut Checker<'_>, node: &Node) -> Option<Shell> {
    let help = "write `bash`, `sh`, or the whole command as a list: `[python3, -c]`";
    let words = |words: &[&str]| Some(Shell::Command(words.iter().map(|word| (*word).to_owned()).collect()));
    match &node.kind {
        Kind::Text(name) if name == "bash" => words(&Shell::BASH),
        Kind::Text(name) if name == "sh" => words(&Shell::SH),
        Kind::Text(name) => {
            checker.wrong(node, format!("`{}` is not a known shell", crate::expr::shown(name)), help);
            None
        }
        Kind::List(items) if items.is_empty() => {
            checker.wrong(node, "`shell` is an empty list", help);
            None
        }
        Kind::List(items) if items.len() > SHELL_WORDS_MAX => {
            checker.wrong(node, format!("`shell` has more than {SHELL_WORDS_MAX} words"), help);
            None
        }
        Kind::List(items) => {
            let words: Vec<String> =
                items.iter().filter_map(|item| checker.filled_text(item, "shell")).collect();
            (words.len() == items.len()).then_some(Shell::Command(words))
        }
        _ => {
            checker.mismatch(node, "shell", "a shell's name or a list", help);
            None
        }
    }
}

/// Reads `continue_on_error`: a boolean, an exit code, or a list of exit codes.
pub(super) fn tolerance(checker: &mut Checker<'_>, node: &Node) -> Option<Tolerance> {
    let code = |checker: &mut Checker<'_>, node: &Node| {
        let code = checker.integer(node, "continue_on_error", 1..=255)?;
        Some(u8::try_from(code).expect("an exit code in range"))
    };
    match &node.kind {
        Kind::Bool(true) => Some(Tolerance::Everything),
        Kind::Bool(false) => Some(Tolerance::Nothing),
        Kind::Number(_) => code(checker, node).map(|code| Tolerance::ExitCodes(vec![code])),
        Kind::List(items) if !items.is_empty() => {
            let mut codes: Vec<u8> = items.iter().filter_map(|item| code(checker, item)).collect();
            codes.sort_unstable();
            codes.dedup();
            Some(Tolerance::ExitCodes(codes))
        }
        Kind::Text(_) => checker.truth(node, "continue_on_error").and(None),
        _ => {
            let help = "write `true`, or the tolerated exit codes: `[1, 3]`";
            checker.mismatch(node, "continue_on_error", "`true`, `false` or exit codes", help);
            None
        }
    }
}

/// Reads `checkpoints`.
pub(super) fn checkpoints(checker: &mut Checker<'_>, node: Option<&Node>) -> Checkpoints {
    let mut checkpoints = Checkpoints {
        retention: None,
        durability: Durability::Sync,
        on_failure: OnCheckpointFailure::Fail,
        interval: None,
    };
    let Some(fields) = node.and_then(|node| Fields::of(checker, node, &CHECKPOINTS)) else {
        return checkpoints;
    };
    checkpoints.retention = fields
        .get("retention")
        .and_then(|node| checker.integer(node, "retention", RETENTION_MIN..=RETENTION_MAX))
        .map(|count| u32::try_from(count).expect("RETENTION_MAX fits in u32"));
    if let Some(node) = fields.get("durability")
        && checker.word(node, "durability", &["sync", "async"]) == Some("async")
    {
        checkpoints.durability = Durability::Async;
    }
    if let Some(node) = fields.get("on_failure")
        && checker.word(node, "on_failure", &["fail", "tolerate"]) == Some("tolerate")
    {
        checkpoints.on_failure = OnCheckpointFailure::Tolerate;
    }
    if let Some(node) = fields.get("interval") {
        checkpoints.interval = checker.duration(node, "interval");
        if checkpoints.interval.is_some_and(|interval| interval < INTERVAL_MIN) {
            let message = format!("`interval` must be at least {INTERVAL_MIN:?}");
            checker.wrong(node, message, "each interval writes a checkpoint: write `60s`, or `5m`");
        }
    }
    checkpoints
}

/// Variable of an `env`: name, template, and place of the value.
pub(super) type Variable<'n> = (String, Template, &'n Node);

/// Reads `env`: names with templates, in the order of the file.
pub(super) fn env<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Vec<Variable<'n>> {
    let Kind::Map(entries) = &node.kind else {
        checker.mismatch(node, "env", "a map", "write `env: { NAME: value }`");
        return Vec::new();
    };
    let mut variables: Vec<Variable<'n>> = Vec::new();
    for (key, value) in entries.iter().filter(|(key, _)| !matches!(key.kind, Kind::List(_) | Kind::Map(_))) {
        let name = key.key_text();
        let sound = variable_name(checker, key, name);
        if let Kind::Null = value.kind {
            checker.wrong(value, format!("`{name}` has no value"), "for an empty value, write `\"\"`");
            continue;
        }
        let template = checker.template(value, name);
        if let Some(variable) = value.spelled().and_then(|text| super::evidence::variables_in(text).next()) {
            let message = format!("nothing expands `${variable}` here: `{name}` is taken as written");
            let help = format!(
                "read a variable of the file with `${{{{ env.{variable} }}}}`, or expand it in the command"
            );
            checker.warn(value, message, &help);
        }
        let first = !variables.iter().any(|(known, ..)| known == name);
        if let (true, true, Some(template)) = (sound, first, template) {
            variables.push((name.to_owned(), template, value));
        }
    }
    variables
}

/// Returns whether `name` is a valid variable name; reports an invalid name at `node`.
pub(super) fn variable_name(checker: &mut Checker<'_>, node: &Node, name: &str) -> bool {
    let mut letters = name.chars();
    let sound = letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if !sound {
        let message = format!("`{}` is not a valid variable name", crate::expr::shown(name));
        checker.wrong(node, message, "use letters, digits and `_`, without a leading digit");
    } else if name.starts_with(RESERVED_PREFIX) {
        let message = format!("`{name}`: the prefix `{RESERVED_PREFIX}` is reserved");
        checker.wrong(node, message, "choose another name");
    }
    sound && !name.starts_with(RESERVED_PREFIX)
}

/// Reads `labels`: names with plain values.
pub(super) fn labels(checker: &mut Checker<'_>, node: &Node) -> BTreeMap<String, String> {
    let Kind::Map(entries) = &node.kind else {
        checker.mismatch(node, "labels", "a map", "write `labels: { team: sales }`");
        return BTreeMap::new();
    };
    let mut labels = BTreeMap::new();
    for (key, value) in entries {
        let name = key.key_text();
        if name.is_empty() || name.contains('=') || name.contains(char::is_whitespace) {
            checker.wrong(
                key,
                "a label's name is one word without `=`",
                "choose a name that works with `--label name=value`",
            );
            continue;
        }
        match value.spelled() {
            Some(text) if !text.contains("${{") => {
                labels.insert(name.to_owned(), text.to_owned());
            }
            _ => {
                checker.text(value, name);
            }
        }
    }
    labels
}

/// Reads `runs_on`: a tag, or a list of tags.
pub(super) fn tags(checker: &mut Checker<'_>, node: &Node) -> Vec<String> {
    let mut tags = Vec::new();
    for (tag, place) in checker.texts(node, "runs_on") {
        if tag.contains(char::is_whitespace) || tag.contains([',', '$']) {
            let message = format!("`{}` in `runs_on` is not a tag", crate::expr::shown(&tag));
            checker.wrong(
                place,
                message,
                "write one word, as in `waypost worker --tags gpu`: `runs_on: gpu`",
            );
        } else if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    tags
}

/// Checkpoint settings of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoints {
    /// Step boundaries with a kept state, at least 2; `None` for the default of the store.
    pub retention: Option<u32>,
    /// Durability of a checkpoint.
    pub durability: Durability,
    /// Effect of a failed checkpoint write on the run.
    pub on_failure: OnCheckpointFailure,
    /// Interval of checkpoints during a long step; `None` for none.
    pub interval: Option<Duration>,
}

/// When a checkpoint counts as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Once on the disk.
    Sync,
    /// Once queued; a crash may lose the last moments.
    Async,
}

/// Effect of a failed checkpoint write on the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCheckpointFailure {
    /// The run stops.
    Fail,
    /// The run continues, with a warning.
    Tolerate,
}
