//! Keys of one map: read by name; unknown keys are always reported.

use super::checker::Checker;
use super::node::{Kind, Node};
use crate::suggest::{listed, nearest};

/// Keys of other tools, with the key used here.
const FROM_ELSEWHERE: &[(&str, &str)] = &[
    ("args", "run"),
    ("continue-on-error", "continue_on_error"),
    ("attempts", "retry"),
    ("attempts", "max"),
    ("cmd", "run"),
    ("command", "run"),
    ("commands", "run"),
    ("condition", "if"),
    ("continueOn", "continue_on_error"),
    ("continue_on", "continue_on_error"),
    ("count", "max"),
    ("cwd", "dir"),
    ("dependencies", "needs"),
    ("depends", "needs"),
    ("depends_on", "needs"),
    ("environment", "env"),
    ("after", "needs"),
    ("do", "steps"),
    ("forEach", "foreach"),
    ("for_each", "foreach"),
    ("ignore_error", "continue_on_error"),
    ("allow_failure", "continue_on_error"),
    ("in", "items"),
    ("input", "stdin"),
    ("inputs", "params"),
    ("interval", "delay"),
    ("intervalSec", "delay"),
    ("interval_sec", "delay"),
    ("items", "foreach"),
    ("limit", "max"),
    ("loop", "foreach"),
    ("maxAttempts", "max"),
    ("max_attempts", "max"),
    ("maxActiveSteps", "max_parallel"),
    ("max_active_steps", "max_parallel"),
    ("max_concurrency", "max_parallel"),
    ("max_retries", "retry"),
    ("onError", "on_failure"),
    ("on_error", "on_failure"),
    ("onExit", "on_finish"),
    ("on_exit", "on_finish"),
    ("parallel", "max_parallel"),
    ("parameters", "params"),
    ("precondition", "if"),
    ("preconditions", "if"),
    ("register", "capture"),
    ("repeatPolicy", "repeat"),
    ("repeat_policy", "repeat"),
    ("retries", "retry"),
    ("retryPolicy", "retry"),
    ("retryStrategy", "retry"),
    ("retry_policy", "retry"),
    ("script", "run"),
    ("stages", "steps"),
    ("tasks", "steps"),
    ("vars", "env"),
    ("variables", "env"),
    ("withItems", "foreach"),
    ("with_items", "foreach"),
    ("when", "if"),
    ("workdir", "dir"),
    ("workingDir", "dir"),
    ("working-directory", "dir"),
    ("working_dir", "dir"),
    ("working_directory", "dir"),
];

/// Keys of other tools with another form here: for a map with the second key, the help.
const REWRITTEN: &[(&str, &str, &str)] = &[
    (
        "jobs",
        "steps",
        "write each job as a step of `steps`: `- { id: build, needs: [test], steps: [{ run: make }] }`",
    ),
    ("strategy", "foreach", COMBINATIONS),
    ("strategy", "version", COMBINATIONS),
    ("matrix", "foreach", COMBINATIONS),
    ("matrix", "version", COMBINATIONS),
    ("strategy", "items", VALUES),
    ("matrix", "items", VALUES),
    ("parallel", "foreach", "write a list of items as `foreach`, and steps side by side with `needs`"),
    ("include", "items", MATRIX_ENTRIES),
    ("exclude", "items", MATRIX_ENTRIES),
    ("include", "steps", "call another file in a step: `- workflow: FILE`"),
    ("imports", "steps", "call another file in a step: `- workflow: FILE`"),
    ("notify", "on_finish", NOTIFY),
    ("notifications", "on_finish", NOTIFY),
    ("mailOn", "on_finish", NOTIFY),
    ("mail_on", "on_finish", NOTIFY),
    ("dotenv", "steps", ENV_FILE),
    ("env_file", "steps", ENV_FILE),
    ("container", "run", CONTAINER),
    ("image", "run", CONTAINER),
    ("container", "steps", CONTAINER),
    ("image", "steps", CONTAINER),
    ("container", "dir", CONTAINER),
    ("image", "dir", CONTAINER),
    ("handlerOn", "on_finish", HANDLERS),
    ("handler_on", "on_finish", HANDLERS),
    ("handlerOn", "on_exit_code", HANDLERS_OF_STEP),
    ("handler_on", "on_exit_code", HANDLERS_OF_STEP),
    ("handlerOn", "items", HANDLERS_OF_STEP),
    ("handler_on", "items", HANDLERS_OF_STEP),
    ("finally", "on_finish", "write the steps in `on_finish`, or a last step with `if: always()`"),
    ("finally", "steps", "write a last step with `if: always()`"),
    ("on", "version", SCHEDULE),
    ("on", "on_exit_code", HANDLERS_OF_STEP),
    ("schedule", "steps", SCHEDULE),
    ("cron", "steps", SCHEDULE),
    ("concurrency", "items", "limit the items with `max_parallel`"),
    (
        "concurrency",
        "steps",
        "limit the steps with `max_parallel`; `waypost run FILE --or-resume` starts no second run",
    ),
    ("timeout-minutes", "timeout", TIMEOUT),
    ("timeout_minutes", "timeout", TIMEOUT),
    ("timeout_seconds", "timeout", TIMEOUT),
    (
        "while",
        "repeat",
        "write the loop with the opposite condition: `repeat: { until: CONDITION, max: 10 }`",
    ),
    ("while", "until", "write the opposite condition: `until: CONDITION`"),
    ("uses", "steps", "write the commands of a step in `run`, or call another file with `workflow`"),
    ("with", "steps", "write values for a command in `env`, and values for a `workflow` in `params`"),
    ("runs-on", "steps", "remove the key: every step runs on this machine"),
];
const TIMEOUT: &str = "write a duration with its unit: `timeout: 5m`";
const COMBINATIONS: &str = "write the values as items: `foreach: { items: { matrix: { os: [linux, mac] } }, as: matrix, steps: [...] }`";
const VALUES: &str = "write the values below `items`: `items: { matrix: { os: [linux, mac] } }`";
const MATRIX_ENTRIES: &str =
    "write the entries beside `matrix`: `items: { matrix: { os: [linux, mac] }, exclude: [{ os: mac }] }`";
const HANDLERS: &str = "write the steps in `on_success`, `on_failure`, `on_waiting` or `on_finish`";
const HANDLERS_OF_STEP: &str = "write the steps in `on_success` or `on_failure` of a step";
const CONTAINER: &str = "start the container in a command: `run: docker run --rm IMAGE COMMAND`";
const NOTIFY: &str = "send the message in a hook: `on_failure: [{ run: ./notify.sh }]`, or `on_finish`";
const ENV_FILE: &str = "load the file before the run: `set -a; . ./.env; set +a; waypost run FILE`";
const SCHEDULE: &str = "start the run from cron or a systemd timer: `waypost run FILE --or-resume`";

/// Keys of a map.
#[derive(Debug)]
pub(crate) struct KeySet {
    /// Name of the map in a sentence: "a step".
    pub(crate) what: &'static str,
    /// Known keys.
    pub(crate) keys: &'static [&'static str],
    /// Keys of the language not supported by this version.
    pub(crate) later: &'static [&'static str],
    /// Keys of other maps, and their place.
    pub(crate) elsewhere: &'static [(&'static str, &'static str)],
}

/// Entries of a map.
#[derive(Debug)]
pub(crate) struct Fields<'n> {
    set: &'static KeySet,
    entries: &'n [(Node, Node)],
    /// Probable intended keys of unknown keys.
    meant: Vec<String>,
}

impl<'n> Fields<'n> {
    /// Returns the entries of `node`, or `None` if `node` is not a map.
    ///
    /// Reports keys that are not in the set.
    pub(crate) fn of(checker: &mut Checker<'_>, node: &'n Node, set: &'static KeySet) -> Option<Self> {
        let Kind::Map(entries) = &node.kind else {
            let help = format!("write a map with {}", listed(set.keys.iter().copied()));
            let message = format!("{} must be a map, not {}", set.what, node.described());
            checker.wrong(node, message, &help);
            return None;
        };
        let mut meant = Vec::new();
        for (key, _) in entries.iter().filter(|(key, _)| !matches!(key.kind, Kind::List(_) | Kind::Map(_))) {
            let name = key.key_text();
            if !set.keys.contains(&name) {
                meant.extend(unknown(checker, key, name, set));
            }
        }
        Some(Self { set, entries, meant })
    }

    /// Returns the value of `key`; of duplicate keys the first.
    pub(crate) fn get(&self, key: &str) -> Option<&'n Node> {
        debug_assert!(self.set.keys.contains(&key), "unknown key `{key}` of {}", self.set.what);
        self.entries.iter().find(|(name, _)| name.key_text() == key).map(|(_, value)| value)
    }

    /// Returns whether one of `keys` is present, valid or not, or was probably misspelled.
    ///
    /// A key that is missing because of a misspelling is then not reported twice.
    pub(crate) fn has_any(&self, keys: &[&str]) -> bool {
        let written = self.entries.iter().map(|(name, _)| name.key_text());
        written.chain(self.meant.iter().map(String::as_str)).any(|name| keys.contains(&name))
    }
}

/// Reports an unknown key; returns the probable intended key.
fn unknown(checker: &mut Checker<'_>, key: &Node, name: &str, set: &KeySet) -> Option<String> {
    if checker.problems.is_full() {
        return None;
    }
    if set.later.contains(&name) {
        let message = format!("`{name}` is not supported by this version of waypost");
        checker.wrong(key, message, "remove the key, or use a newer version");
        return None;
    }
    if let Some((_, place)) = set.elsewhere.iter().find(|(other, _)| *other == name) {
        checker.wrong(
            key,
            format!("`{name}` is not allowed in {}", set.what),
            &format!("use the key in {place}"),
        );
        return None;
    }
    let message = format!("{} has no key `{name}`", set.what);
    let is_rewritten = |(other, here, _): &&(&str, &str, &str)| *other == name && set.keys.contains(here);
    let known = || set.keys.iter().chain(set.later).copied();
    let from_elsewhere =
        FROM_ELSEWHERE.iter().find(|(other, word)| *other == name && known().any(|key| key == *word));
    if let Some((_, here, help)) = REWRITTEN.iter().find(is_rewritten).filter(|_| from_elsewhere.is_none()) {
        checker.wrong(key, message, help);
        return Some((*here).to_owned());
    }
    let place_of = |word: &str| set.elsewhere.iter().find(|(key, _)| *key == word).map(|(_, place)| place);
    let folded = name.replace('-', "_");
    let words = FROM_ELSEWHERE.iter().filter(|(other, _)| *other == name).map(|(_, word)| *word);
    let placed = words.chain([folded.as_str()]).find_map(|word| Some((word, place_of(word)?)));
    if let Some((word, place)) = placed.filter(|_| from_elsewhere.is_none()) {
        checker.wrong(key, message, &format!("write `{word}` in {place}"));
        return None;
    }
    let hint = match from_elsewhere {
        Some((_, word)) => Some((*word).to_owned()),
        None => nearest(&folded, known()),
    };
    let mut problem = checker.source.problem(&key.span, message);
    if hint.is_none() {
        problem = problem.help(format!("supported keys: {}", listed(set.keys.iter().copied())));
    }
    checker.problems.push(problem.hint(hint.clone()));
    hint
}
