//! What a script calls itself: `$0` and `BASH_SOURCE`, which in a step are those of the shell.
//!
//! Not the path takes their place, but a variable with it: that expands wherever they did, in quotes, in braces and in
//! here-documents, whatever characters the path has.
//!
//! # Source
//! POSIX.1-2024, "Shell Command Language", section 2.5.2 (`$0`); Bash reference manual, section 5.2 (`BASH_SOURCE`).

use std::path::{Component, Path, PathBuf};

use super::scan::{self, SelfMark, Unit};
use super::{Remark, mentions};

/// The variable of the steps that has the path of the script.
pub(super) const ITSELF: &str = "SCRIPT_ITSELF";

/// Where the script is, seen from where the steps run.
#[derive(Debug)]
pub(crate) struct Itself {
    path: Option<String>,
}

impl Itself {
    /// Finds the way from the folder of a workflow file to a script.
    pub(crate) fn between(script: &Path, workflow: &Path) -> Self {
        Self { path: way(script, workflow).and_then(|path| Some(path.to_str()?.to_owned())) }
    }

    /// Says whether steps run in the folder of the script.
    pub(super) fn is_beside(&self) -> bool {
        self.path.as_deref().and_then(|path| path.strip_prefix("./")).is_some_and(|name| !name.contains('/'))
    }

    /// Returns the path; what `replace` has replaced wants it.
    pub(super) fn path(&self) -> &str {
        self.path.as_deref().unwrap_or_default()
    }

    /// Puts the variable in place of what the script calls itself, and remarks what it cannot replace.
    pub(super) fn replace(&self, body: &str, remarks: &mut Vec<Remark>) -> String {
        let found = scan::self_marks(body);
        let mut remark = |at: usize, what: &str| {
            let line = 1 + body[..at].matches('\n').count();
            remarks.push(Remark { line, text: format!("{what} is not that of the script here") });
        };
        let can = self.path.is_some() && !mentions(body, ITSELF);
        let mut text = String::new();
        let mut end = 0;
        for mark in &found.marks {
            match mark {
                SelfMark::Name { begin, end: mark_end, braces } if can => {
                    text.push_str(&body[end..*begin]);
                    text.push_str(&if *braces { ITSELF.to_owned() } else { format!("${{{ITSELF}}}") });
                    end = *mark_end;
                }
                SelfMark::Name { begin, .. } | SelfMark::Other { begin } => {
                    let what = if body[*begin..].trim_start_matches('$').starts_with('0') {
                        "`$0`"
                    } else {
                        "`BASH_SOURCE`"
                    };
                    remark(*begin, what);
                }
            }
        }
        text.push_str(&body[end..]);
        // What was not read: behind what is not understood.
        for name in ["$0", "${0", "BASH_SOURCE"] {
            let shown = if name == "BASH_SOURCE" { "`BASH_SOURCE`" } else { "`$0`" };
            for (at, _) in body[found.end..].match_indices(name) {
                remark(found.end + at, shown);
            }
        }
        text
    }
}

/// Remarks what stands as text, for the shell to read later.
pub(super) fn remark_quoted(units: &[Unit], remarks: &mut Vec<Remark>) {
    let reads_later = |command: &Vec<String>| match super::verb(command).first() {
        Some(word) => matches!(word.as_str(), "eval" | "trap"),
        None => command.iter().any(|word| word.starts_with("PS4=")),
    };
    for unit in units.iter().filter(|unit| unit.commands.iter().any(reads_later)) {
        let asked = ["$0", "BASH_SOURCE"].into_iter().find(|name| unit.text.contains(name));
        remarks.extend(asked.map(|name| Remark {
            line: unit.line,
            text: format!("`{name}` is not that of the script here"),
        }));
    }
}

/// Remarks where a script of another language asks for its own path, which is not the path of a step.
pub(super) fn remark_foreign(body: &str, remarks: &mut Vec<Remark>) {
    const ASKS: [&str; 7] = ["$0", "${0", "__file__", "__FILE__", "__filename", "__dirname", "argv[0]"];
    for (index, line) in body.lines().enumerate() {
        let asked = ASKS.iter().find(|word| line.contains(**word));
        remarks.extend(asked.map(|word| Remark {
            line: index + 1,
            text: format!("`{}` is not that of the script here", word.replace("${0", "$0")),
        }));
    }
}

/// Returns the path of a script, from the folder of a workflow file: relative if that is sure to lead there.
fn way(script: &Path, workflow: &Path) -> Option<PathBuf> {
    let folder_of = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        Some((path.parent()?.to_owned(), path.file_name()?.to_owned()))
    };
    let (script_folder, name) = folder_of(script)?;
    let (said_folder, _) = folder_of(workflow)?;
    let to = script_folder.canonicalize().ok()?;
    let from = said_folder.canonicalize().ok()?;
    let common = to.components().zip(from.components()).take_while(|(to, from)| to == from).count();
    let up = from.components().count() - common;
    // A shell goes up from where it believes to be, and by a link that is somewhere else.
    let is_plain = !said_folder.components().any(|part| part == Component::ParentDir) && said_folder == from;
    if up > 0 && (script.is_absolute() || !is_plain) {
        return Some(to.join(name));
    }
    let mut way: PathBuf = std::iter::repeat_n(Component::ParentDir, up).collect();
    way.extend(to.components().skip(common));
    way.push(name);
    let is_bare = way.components().count() == 1 || way.to_string_lossy().starts_with('-');
    Some(if is_bare { Path::new(".").join(way) } else { way })
}

/// Says whether an argument of `cd` is the folder of the script, and nothing beneath or above it.
pub(super) fn is_folder(argument: &str) -> bool {
    let plain: String = dollars(argument).chars().filter(|c| *c != '"').collect();
    let plain = plain.replace(" -- ", " ").replace(" -P", "");
    let dirname = format!("$(dirname ${{{ITSELF}}})");
    [dirname.clone(), format!("${{{ITSELF}%/*}}"), format!("$(cd {dirname} && pwd)")].contains(&plain)
}

/// Writes a substitution in backticks as one with a dollar, where both are the same.
fn dollars(word: &str) -> String {
    match word.split('`').collect::<Vec<_>>().as_slice() {
        [before, commands, after] if !word.contains(['\\', '\'']) => format!("{before}$({commands}){after}"),
        _ => word.to_owned(),
    }
}

/// Leaves out of a word what gives the same each time, as it only asks where the script is.
pub(super) fn without(word: &str) -> String {
    let mut word = dollars(word);
    for operator in ["%/*", "##*/", "%.*", "%.sh"] {
        word = word.replace(&format!("${{{ITSELF}{operator}}}"), &format!("${{{ITSELF}}}"));
    }
    let mut from = 0;
    while let Some(begin) = word[from..].find("$(").map(|at| from + at) {
        match scan::end_of_substitution(&word, begin) {
            Some(end) if only_asks(&word[begin + 2..end - 1]) => word.replace_range(begin..end, ""),
            _ => from = begin + 2,
        }
    }
    word
}

/// Says whether commands only ask where the script is.
fn only_asks(commands: &str) -> bool {
    const ASKS: [&str; 6] = ["cd", "pwd", "dirname", "basename", "readlink", "realpath"];
    let mut rest: String = commands.chars().filter(|c| !c.is_whitespace()).collect();
    for silent in ["2>&1", "&>/dev/null", "2>/dev/null", ">/dev/null"] {
        rest = rest.replace(silent, "");
    }
    let is_read = |command: &Vec<String>| {
        let words = super::verb(command);
        words.first().is_some_and(|word| ASKS.contains(&word.as_str()))
            && words.iter().all(|word| super::split::is_pure(word))
    };
    match scan::units(commands).as_deref() {
        Ok([unit]) => {
            !rest.contains(['<', '>', '|', '`', '\\'])
                && !unit.background
                && mentions(commands, ITSELF)
                && unit.commands.iter().all(is_read)
        }
        _ => false,
    }
}
