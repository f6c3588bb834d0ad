//! Which variables the commands of a script set, and who may read them.

use std::collections::BTreeSet;

use super::scan::Unit;
use super::{is_name, verb};

/// Variables that the shell and its programs go by, though no command names them.
const GONE_BY: [&str; 14] = [
    "IFS",
    "PATH",
    "HOME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "CDPATH",
    "GLOBIGNORE",
    "PS4",
    "TIMEFORMAT",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "TERM",
];

/// Says whether a command sets a variable whose name only a run tells.
pub(super) fn sets_unknown(command: &[String]) -> bool {
    let Some((word, arguments)) = verb(command).split_first() else { return false };
    let is_unknown = |word: &String| {
        let name = word.split('=').next().unwrap_or(word);
        !word.starts_with('-') && name.contains(['$', '`']) && !name.contains('[')
    };
    (is_declaration(word) || word == "read") && arguments.iter().any(is_unknown)
}

pub(super) fn is_declaration(word: &str) -> bool {
    matches!(word, "export" | "readonly" | "declare" | "typeset")
}

pub(super) fn is_assignment(word: &str) -> bool {
    name_set(word).is_some()
}

/// Returns the variable that a word sets, if it does.
pub(super) fn name_set(word: &str) -> Option<String> {
    let (name, _) = word.split_once('=')?;
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split('[').next().unwrap_or(name);
    is_name(name).then(|| name.to_owned())
}

/// Returns the variables that a command may set.
pub(super) fn assigned(unit: &Unit) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for command in &unit.commands {
        let setting = command.iter().take_while(|word| is_assignment(word)).count();
        if setting == command.len() {
            names.extend(command.iter().filter_map(|word| name_set(word)));
        }
        let rest = &command[setting..];
        let Some(word) = rest.first() else { continue };
        match word.as_str() {
            "export" | "readonly" | "declare" | "typeset" => {
                names.extend(rest.iter().filter_map(|word| name_set(word)));
            }
            "read" | "mapfile" | "readarray" | "unset" | "for" | "select" | "printf" | "let" => {
                let plain = rest[1..].iter().map(|word| word.split('=').next().unwrap_or(word));
                names.extend(plain.filter(|word| is_name(word)).map(ToOwned::to_owned));
            }
            word if word.starts_with("((") => {
                let parts = word.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                names.extend(parts.filter(|part| is_name(part)).map(ToOwned::to_owned));
            }
            _ => {}
        }
    }
    names.remove("in");
    // `${NAME:=value}`
    for (at, _) in unit.text.match_indices("${") {
        let rest = &unit.text[at + 2..];
        let name = &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())];
        if is_name(name) && rest[name.len()..].trim_start_matches(':').starts_with('=') {
            names.insert(name.to_owned());
        }
    }
    names
}

/// Says whether the shell or its programs go by a variable.
pub(super) fn is_gone_by(name: &str) -> bool {
    GONE_BY.contains(&name) || name.starts_with("LC_")
}

/// Says whether some command exports a variable, so that other programs may read it, or they do so anyway.
pub(super) fn is_exported(units: &[Unit], name: &str) -> bool {
    if is_gone_by(name) {
        return true;
    }
    let exports = |command: &Vec<String>| {
        command[0] == "export"
            && command[1..].iter().any(|word| word == name || name_set(word).as_deref() == Some(name))
    };
    units.iter().flat_map(|unit| &unit.commands).any(exports)
}
