//! Which commands of a script may be steps of their own, and what each needs of those before it.

use std::collections::{BTreeMap, BTreeSet};

use super::arguments::Reading;
use super::folder::{drop_first_cd, goes_or_fails, said_again, standing, target};
use super::itself::{self, Itself};
use super::names::{
    assigned, is_assignment, is_declaration, is_exported, is_gone_by, name_set, sets_unknown,
};
use super::scan::Unit;
use super::{Remark, mentions, verb};

/// A step that is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) line: usize,
    pub(super) comments: Vec<String>,
    /// The commands, as they stand.
    pub(super) text: String,
    /// What is said again before them, from the lines above.
    pub(super) before: Vec<String>,
    /// It reads arguments of the script, itself or in what is said again before it.
    pub(super) reads_arguments: bool,
    /// Variables that later steps read of it.
    pub(super) gives: Vec<String>,
    /// Variables that it reads of earlier steps, by the name under which it is given them.
    pub(super) takes: BTreeMap<String, Taken>,
    /// By which it is named.
    pub(super) word: String,
}

/// A variable of an earlier step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    /// The place of the step.
    pub(super) part: usize,
    pub(super) name: String,
}

/// What became of a script.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) parts: Vec<Part>,
    pub(super) remarks: Vec<Remark>,
}

/// What a command is to those after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// It may be said again in every later step: it has no other effect, and the same one each time.
    Again,
    /// A function.
    Function(String),
    /// It sets these variables to what only it knows.
    Sets(Vec<String>),
    /// It leaves these variables behind, which cannot be handed over.
    Work(BTreeSet<String>),
    /// It changes the shell in a way that cannot be handed over: what follows stays with it.
    Last(&'static str),
    /// It means nothing to a workflow.
    Dropped(&'static str),
}

/// Words after which the shell itself is another one, so that what follows cannot be a shell of its own.
const ENDS: [(&str, &str); 8] = [
    ("exec", "`exec` changes the shell or its streams"),
    ("eval", "`eval` may do anything to the shell"),
    ("exit", "`exit` ends the script, and of a workflow only its step"),
    ("return", "`return` ends the script, and of a workflow only its step"),
    ("pushd", "`pushd` changes the folder"),
    ("popd", "`popd` changes the folder"),
    ("shift", "`shift` changes the arguments"),
    ("getopts", "`getopts` reads the arguments"),
];

/// Variables that are never the same twice.
const FLEETING: [&str; 12] = [
    "$RANDOM",
    "$SECONDS",
    "$EPOCHSECONDS",
    "$EPOCHREALTIME",
    "$SRANDOM",
    "$LINENO",
    "$BASHPID",
    "$$",
    "$?",
    "$!",
    "$_",
    "$PIPESTATUS",
];

/// Decides about the commands of a script, which `exits` at the first that fails or not.
pub(super) fn parts(units: &[Unit], script: &Itself, exits: bool) -> Parts {
    let functions: BTreeMap<&str, &Unit> =
        units.iter().filter_map(|unit| Some((unit.function.as_deref()?, unit))).collect();
    let mut kinds: Vec<Kind> = units.iter().map(|unit| kind(unit, &functions)).collect();
    if script.is_beside() {
        drop_first_cd(units, &mut kinds);
    }
    let mut parts = Parts::default();
    let kinds = one_setter_each(units, kinds);
    let needed = needed(units, &kinds);
    let mut at = 0;
    // What is said again: the place of the unit.
    let mut again: Vec<usize> = Vec::new();
    // In how many steps a command is said.
    let mut count = vec![0; units.len()];
    // Which part sets a variable, and in which command.
    let mut set: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    while at < units.len() {
        let unit = &units[at];
        match &kinds[at] {
            Kind::Again | Kind::Function(_) => again.push(at),
            Kind::Dropped(why) => {
                let text = format!("`{}` was left out: {why}", original(unit));
                parts.remarks.push(Remark { line: unit.line, text });
            }
            _ => {
                let end = end_of_part(units, &kinds, &needed, at, &mut parts.remarks);
                let text = joined(&units[at..end]);
                let gives = match &kinds[at] {
                    Kind::Sets(names) if end == at + 1 => names.clone(),
                    _ => Vec::new(),
                };
                let (said, needed_text) = said_before(units, &kinds, &standing(units, &again), &text);
                let is_read = |name: &str| mentions(&needed_text, name) || is_exported(units, name);
                let set_here = set.iter().filter(|(name, _)| is_read(name));
                let (before, takes) = with_taken(units, &said, set_here, exits);
                said.iter().copied().chain(at..end).for_each(|place| count[place] += 1);
                let reads_arguments =
                    said.into_iter().chain(at..end).any(|place| Reading::of(&units[place]).is_any());
                for name in &gives {
                    set.insert(name.clone(), (parts.parts.len(), at));
                }
                let word = word_of(unit, &gives);
                let comments = unit.comments.clone();
                let line = unit.line;
                let part = Part { line, comments, text, before, reads_arguments, gives, takes, word };
                parts.parts.push(part);
                // What stayed together may have said what is said again later.
                again.extend(
                    (at..end).filter(|place| matches!(kinds[*place], Kind::Again | Kind::Function(_))),
                );
                at = end;
                continue;
            }
        }
        at += 1;
    }
    for (unit, count) in units.iter().zip(count).filter(|(unit, count)| *count > 1 && reads_file(unit)) {
        let text = format!(
            "is said again in {count} steps: what it does beside setting names is done each time, \
             and what its functions change in the shell ends with the step"
        );
        parts.remarks.push(Remark { line: unit.line, text: format!("`{}` {text}", original(unit)) });
    }
    parts
}

/// Returns what is said before a step, and what it takes of earlier ones.
///
/// A file that is read before a variable is set may set it too, and must not have the last word here.
fn with_taken<'a>(
    units: &[Unit],
    said: &[usize],
    set: impl Iterator<Item = (&'a String, &'a (usize, usize))>,
    exits: bool,
) -> (Vec<String>, BTreeMap<String, Taken>) {
    let mut before: Vec<(usize, String)> =
        said.iter().map(|place| (*place, said_again(&units[*place], exits))).collect();
    let mut takes = BTreeMap::new();
    for (name, (part, place)) in set {
        let is_beneath = said.iter().any(|said| said < place && reads_file(&units[*said]));
        let given = if is_beneath { format!("{name}_TAKEN") } else { name.clone() };
        if is_beneath {
            let export = if is_exported(units, name) { "export " } else { "" };
            before.push((*place, format!("{export}{name}=\"${given}\"")));
        }
        takes.insert(given, Taken { part: *part, name: name.clone() });
    }
    before.sort_by_key(|(place, _)| *place);
    (before.into_iter().map(|(_, text)| text).collect(), takes)
}

/// Says whether a command reads a file into the shell.
fn reads_file(unit: &Unit) -> bool {
    unit.function.is_none()
        && unit.commands.iter().any(|command| matches!(command[0].as_str(), "source" | "."))
}

/// Returns the first line of a command as a script has it.
fn original(unit: &Unit) -> String {
    let first = unit.text.lines().next().unwrap_or_default();
    first.replace(&format!("${{{}}}", itself::ITSELF), "$0")
}

/// Says what a command is to those after it.
fn kind(unit: &Unit, functions: &BTreeMap<&str, &Unit>) -> Kind {
    if let Some(name) = &unit.function {
        // What it does counts where it is called.
        return Kind::Function(name.clone());
    }
    let inner = called(unit, functions);
    let mut commands = inner.iter().flat_map(|unit| &unit.commands).chain(&unit.commands);
    if commands.any(|command| sets_unknown(command)) {
        return match unit.commands.as_slice() {
            [command] if !unit.compound && command.iter().all(|word| is_pure(word)) => Kind::Again,
            _ => Kind::Last("it sets variables whose names are known only when it runs"),
        };
    }
    if let [command] = unit.commands.as_slice()
        && !unit.compound
        && let Some(kind) = kind_of_simple(command, unit)
    {
        return kind;
    }
    if goes_or_fails(unit) {
        return Kind::Again;
    }
    if let Some(why) = ends(unit, functions) {
        return Kind::Last(why);
    }
    let mut commands = inner.iter().flat_map(|unit| &unit.commands).chain(&unit.commands);
    let first = |command: &Vec<String>| verb(command).first().cloned().unwrap_or_default();
    if commands.clone().any(|command| matches!(first(command).as_str(), "source" | ".")) {
        return Kind::Last("it reads a file into the shell amid other commands");
    }
    if commands.any(|command| matches!(first(command).as_str(), "cd" | "umask" | "set" | "shopt" | "trap")) {
        return Kind::Last("it changes the folder or an option of the shell amid other commands");
    }
    if unit.background {
        return Kind::Last("it leaves something running, which a later command may wait for");
    }
    let mut left = assigned(unit);
    for function in inner {
        left.extend(assigned(function));
    }
    Kind::Work(left)
}

/// Says what one simple command is, if it is about the shell itself.
fn kind_of_simple(command: &[String], unit: &Unit) -> Option<Kind> {
    let is_cd = verb(command).first().is_some_and(|word| word == "cd");
    let command = if is_cd { verb(command) } else { command };
    let word = command[0].as_str();
    let arguments = &command[1..];
    let pure = arguments.iter().all(|argument| is_pure(argument));
    match word {
        "cd" if pure && target(command).is_some() => Some(Kind::Again),
        "cd" => Some(Kind::Last("the folder is known only when it runs")),
        "trap" => Some(Kind::Dropped("a trap belongs to one shell, and each step has its own")),
        "wait" if arguments.is_empty() => Some(Kind::Dropped("each step is waited for")),
        ":" | "true" if arguments.is_empty() => Some(Kind::Dropped("it does nothing")),
        "exit" => Some(match arguments {
            [code] if code.parse::<u8>().is_ok_and(|code| code > 0) => Kind::Work(BTreeSet::new()),
            _ => Kind::Last("`exit` ends the script, and of a workflow only its step"),
        }),
        ":" if arguments.iter().all(|word| is_pure(&word.replace(":=", ":-"))) => Some(Kind::Again),
        "set" | "shopt" | "umask" | "unset" | "alias" | "unalias" | "ulimit" if pure => Some(Kind::Again),
        "source" | "." if pure => Some(Kind::Again),
        _ if is_assignment(word) || is_declaration(word) => {
            let words = if is_declaration(word) { arguments } else { command };
            let assigning = words.iter().filter(|word| is_assignment(word)).collect::<Vec<_>>();
            // A variable for one command only.
            if !is_declaration(word) && assigning.len() < words.len() {
                return None;
            }
            if words.iter().all(|word| is_pure(word)) && !unit.text.contains("<<") {
                return Some(Kind::Again);
            }
            let names: Vec<String> = assigning.iter().filter_map(|word| name_set(word)).collect();
            let is_list =
                assigning.iter().any(|word| word.contains("=(") || word.contains("+=") || word.contains('['));
            let flags = words.iter().any(|word| word.starts_with('-') && word.contains(['a', 'A', 'n']));
            if is_list || flags {
                return Some(Kind::Work(names.into_iter().collect()));
            }
            Some(Kind::Sets(names))
        }
        _ => None,
    }
}

/// Says whether a word is the same each time, as long as the variables in it are.
pub(super) fn is_pure(word: &str) -> bool {
    let word = &itself::without(word);
    let quoted = word.starts_with('\'') && word.ends_with('\'');
    let fleeting =
        FLEETING.iter().any(|name| word.contains(name) || word.contains(&name.replacen('$', "${", 1)));
    quoted
        || !(word.contains(['`', '*', '?'])
            || word.contains("$(")
            || word.contains("<(")
            || word.contains(":=")
            || fleeting)
}

/// Says why nothing may be apart from a command that comes after this one, if that is so.
fn ends(unit: &Unit, functions: &BTreeMap<&str, &Unit>) -> Option<&'static str> {
    let units = called(unit, functions);
    let mut commands = units.iter().flat_map(|unit| &unit.commands).chain(&unit.commands);
    commands.find_map(|command| {
        let first = verb(command).first()?;
        let (_, why) = ENDS.iter().find(|(word, _)| first == *word)?;
        // A step that fails ends the run, too.
        let fails = matches!(command.as_slice(), [exit, code] if exit == "exit" && code.parse::<u8>().is_ok_and(|code| code > 0));
        // That of a function is its own.
        let own = command[0] == "return" && !unit.commands.contains(command);
        (!fails && !own).then_some(*why)
    })
}

/// Returns the functions that a command calls, and those that they call.
fn called<'a>(unit: &Unit, functions: &BTreeMap<&str, &'a Unit>) -> Vec<&'a Unit> {
    let mut found: BTreeMap<&str, &'a Unit> = BTreeMap::new();
    let mut texts = vec![unit.text.as_str()];
    while let Some(text) = texts.pop() {
        for (name, function) in functions {
            if !found.contains_key(*name) && mentions(text, name) {
                found.insert(name, function);
                texts.push(&function.text);
            }
        }
    }
    found.into_values().collect()
}

/// What is set twice, and not to the same each time, cannot be handed over.
fn one_setter_each(units: &[Unit], kinds: Vec<Kind>) -> Vec<Kind> {
    let set_by = |place: usize| -> BTreeSet<String> {
        match &kinds[place] {
            Kind::Sets(names) => names.iter().cloned().collect(),
            Kind::Work(names) => names.clone(),
            Kind::Again => assigned(&units[place]),
            _ => BTreeSet::new(),
        }
    };
    let mut count: BTreeMap<String, (usize, bool)> = BTreeMap::new();
    for (place, kind) in kinds.iter().enumerate() {
        for name in set_by(place) {
            let entry = count.entry(name).or_default();
            entry.0 += 1;
            entry.1 |= !matches!(kind, Kind::Again);
        }
    }
    let is_shared = |name: &String| count.get(name).is_some_and(|(count, fleeting)| *count > 1 && *fleeting);
    let decide = |(place, kind): (usize, Kind)| {
        let names = set_by(place);
        match kind {
            Kind::Sets(_) | Kind::Again if names.iter().any(is_shared) => Kind::Work(names),
            kind => kind,
        }
    };
    kinds.clone().into_iter().enumerate().map(decide).collect()
}

/// Returns where the step that begins with a command ends: behind the last command that must stay with it.
fn end_of_part(
    units: &[Unit],
    kinds: &[Kind],
    needed: &[String],
    begin: usize,
    remarks: &mut Vec<Remark>,
) -> usize {
    let mut end = begin + 1;
    let mut at = begin;
    // What another program may read of the environment is read to the end.
    let last_reader = |at: usize, name: &String| {
        let reads = |place: &usize| mentions(&needed[*place], name) || is_exported(units, name);
        (at + 1..units.len()).rev().find(reads)
    };
    while at < end {
        match &kinds[at] {
            Kind::Last(why) if end < units.len() => {
                let text = format!("what follows stays in one step, since {why}");
                remarks.push(Remark { line: units[at].line, text });
                end = units.len();
            }
            Kind::Work(names) => {
                for name in names {
                    if let Some(last) = last_reader(at, name).filter(|last| *last >= end) {
                        let text =
                            format!("stays together up to line {}, which reads `{name}`", units[last].line);
                        remarks.push(Remark { line: units[at].line, text });
                        end = last + 1;
                    }
                }
            }
            // Within a step they are handed over by the shell; later ones read them, too.
            Kind::Sets(names) if end > begin + 1 => {
                for name in names {
                    end = end.max(last_reader(at, name).map_or(end, |last| last + 1));
                }
            }
            _ => {}
        }
        // The number of the shell is another one in each step.
        if units[at].text.contains("$$")
            && let Some(last) = (at + 1..units.len()).rev().find(|place| needed[*place].contains("$$"))
            && last >= end
        {
            let text = format!("stays together up to line {}, which reads `$$`", units[last].line);
            remarks.push(Remark { line: units[at].line, text });
            end = last + 1;
        }
        // What depends on the end of the command before it stays with it.
        let hangs_on =
            |unit: &Unit| ["$?", "${?", "$!", "PIPESTATUS"].iter().any(|mark| unit.text.contains(mark));
        if end < units.len() && at + 1 == end && hangs_on(&units[end]) && units[end].function.is_none() {
            end += 1;
        }
        at += 1;
    }
    end
}

/// Returns for each command all that it would say as a step, with what is said again before it.
fn needed(units: &[Unit], kinds: &[Kind]) -> Vec<String> {
    let mut again = Vec::new();
    let mut needed = Vec::new();
    for (place, unit) in units.iter().enumerate() {
        needed.push(match &kinds[place] {
            // It counts where it is said again.
            Kind::Again | Kind::Function(_) => {
                again.push(place);
                unit.text.clone()
            }
            Kind::Dropped(_) => String::new(),
            _ => said_before(units, kinds, &standing(units, &again), &unit.text).1,
        });
    }
    needed
}

/// Returns the commands that are said again before a text, and all of what the step then says.
fn said_before(units: &[Unit], kinds: &[Kind], again: &[usize], text: &str) -> (Vec<usize>, String) {
    let mut wanted = vec![false; again.len()];
    let mut all = text.to_owned();
    loop {
        let mut grew = false;
        for (index, place) in again.iter().enumerate().rev() {
            let unit = &units[*place];
            let is_wanted = match &kinds[*place] {
                Kind::Function(name) => mentions(&all, name),
                _ => {
                    let names = assigned(unit);
                    let exported = unit
                        .commands
                        .iter()
                        .any(|command| matches!(command[0].as_str(), "export" | "declare"));
                    names.is_empty()
                        || exported
                        || names.iter().any(|name| is_gone_by(name) || mentions(&all, name))
                }
            };
            if is_wanted && !std::mem::replace(&mut wanted[index], true) {
                all.push('\n');
                all.push_str(&unit.text);
                grew = true;
            }
        }
        if !grew {
            break;
        }
    }
    let said = again.iter().zip(&wanted).filter(|(_, wanted)| **wanted);
    (said.map(|(place, _)| *place).collect(), all)
}

fn joined(units: &[Unit]) -> String {
    let mut text = String::new();
    for (index, unit) in units.iter().enumerate() {
        if index > 0 {
            text.push('\n');
            for comment in &unit.comments {
                text.push_str(&format!("# {comment}\n"));
            }
        }
        text.push_str(&unit.text);
    }
    text
}

/// Names a step by its first command.
fn word_of(unit: &Unit, gives: &[String]) -> String {
    if let [name, ..] = gives {
        return name.to_lowercase();
    }
    let command = unit
        .commands
        .iter()
        .find(|command| !matches!(command[0].as_str(), "set" | "cd" | "case" | "for" | "["));
    let Some(command) = command else { return String::new() };
    let mut words = command
        .iter()
        .skip_while(|word| is_assignment(word) || matches!(word.as_str(), "sudo" | "env" | "nice" | "time"));
    let first =
        words.next().map(|word| word.rsplit('/').next().unwrap_or(word).trim_end_matches(".sh").to_owned());
    let second = words
        .next()
        .filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-'));
    [first, second.cloned()].into_iter().flatten().collect::<Vec<_>>().join("-")
}
