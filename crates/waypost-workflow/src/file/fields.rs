//! Keys of one map: read by name; unknown keys are always reported.

use super::checker::Checker;
use super::node::{Kind, Node};
use crate::suggest::{listed, nearest};

/// Keys of other tools, with the key used here.
const FROM_ELSEWHERE: [(&str, &str); 25] = [
    ("args", "run"),
    ("attempts", "retry"),
    ("cmd", "run"),
    ("command", "run"),
    ("commands", "run"),
    ("condition", "if"),
    ("cwd", "dir"),
    ("depends", "needs"),
    ("depends_on", "needs"),
    ("environment", "env"),
    ("after", "needs"),
    ("ignore_error", "continue_on_error"),
    ("allow_failure", "continue_on_error"),
    ("input", "stdin"),
    ("inputs", "params"),
    ("parallel", "max_parallel"),
    ("parameters", "params"),
    ("retries", "retry"),
    ("script", "run"),
    ("tasks", "steps"),
    ("timeout-minutes", "timeout"),
    ("vars", "env"),
    ("variables", "env"),
    ("when", "if"),
    ("working-directory", "dir"),
];

/// Help for the `jobs` of a GitHub workflow: a job is a group.
const JOBS: &str =
    "write each job as a step of `steps`: `- { id: build, needs: [test], steps: [{ run: make }] }`";

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
    if name == "jobs" && set.keys.contains(&"steps") {
        checker.wrong(key, message, JOBS);
        return Some("steps".to_owned());
    }
    let known = || set.keys.iter().chain(set.later).copied();
    let from_elsewhere =
        FROM_ELSEWHERE.iter().find(|(other, word)| *other == name && known().any(|key| key == *word));
    let hint = match from_elsewhere {
        Some((_, word)) => Some((*word).to_owned()),
        None => nearest(&name.replace('-', "_"), known()),
    };
    let mut problem = checker.source.problem(&key.span, message);
    if hint.is_none() {
        problem = problem.help(format!("supported keys: {}", listed(set.keys.iter().copied())));
    }
    checker.problems.push(problem.hint(hint.clone()));
    hint
}
