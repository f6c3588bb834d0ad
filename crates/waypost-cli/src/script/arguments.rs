//! What the commands of a script read of its arguments.
//!
//! # Source
//! POSIX.1-2024, "Shell Command Language", sections 2.5.1 (positional parameters), 2.5.2 (`$#`, `$@`, `$*`), 2.9.4.2
//! (a `for` without `in` goes over the arguments).

use super::Remark;
use super::scan::Unit;

/// How many arguments become params: those that a shell reads without braces.
const ARGUMENTS_MAX: u32 = 9;

/// What a text reads of the arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// The highest number that is read; 0 for none.
    highest: u32,
    /// How many there are, or all of them.
    all: bool,
    /// An argument that is not given is something else to it than an empty one.
    tells_unset: bool,
    /// One is read in a way that fails under `set -u` where it is not given.
    needs_given: bool,
}

impl Reading {
    /// Reads a command; what a function reads are its own arguments.
    pub(super) fn of(unit: &Unit) -> Self {
        if unit.function.is_some() {
            return Self::default();
        }
        let mut reading = Self::of_text(&unit.text);
        let is_implied = |command: &Vec<String>| match command[0].as_str() {
            "for" | "select" => command.len() == 2,
            "getopts" => command.len() == 3,
            _ => false,
        };
        reading.all |= unit.commands.iter().any(is_implied);
        reading
    }

    /// Reads a text in which nothing is known to be a function.
    pub(super) fn of_text(text: &str) -> Self {
        let mut reading = Self::default();
        for (at, _) in text.match_indices('$') {
            let rest = &text[at + 1..];
            match rest.strip_prefix('{') {
                Some(inner) => reading.take_braced(inner),
                None if rest.starts_with(['#', '@', '*']) => reading.all = true,
                None => {
                    let number = rest.chars().next().and_then(|c| c.to_digit(10)).unwrap_or(0);
                    reading.highest = reading.highest.max(number);
                    reading.needs_given |= number > 0;
                }
            }
        }
        reading
    }

    /// Takes what stands behind `${`.
    fn take_braced(&mut self, inner: &str) {
        const ALL: [&str; 6] = ["@", "*", "#}", "#@", "#*", "!#"];
        self.all |= ALL.iter().any(|mark| inner.starts_with(mark));
        let name = inner.strip_prefix(['#', '!']).unwrap_or(inner);
        let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
        let number: u32 = name[..digits].parse().unwrap_or(0);
        if number == 0 {
            return;
        }
        self.highest = self.highest.max(number);
        let operator = &name[digits..];
        let is_default = |text: &str| text.starts_with(['-', '+', '?', '=']);
        if is_default(operator) {
            self.tells_unset = true;
        } else {
            self.needs_given |= !operator.strip_prefix(':').is_some_and(is_default);
        }
    }

    /// Says whether it reads any.
    pub(super) fn is_any(self) -> bool {
        self.all || self.highest > 0
    }
}

/// Returns the names of the params that stand for the arguments of the script.
pub(super) fn params(units: &[Unit], remarks: &mut Vec<Remark>) -> Vec<String> {
    let is_strict = sets_nounset(units);
    let mut count = 0;
    for unit in units {
        let reading = Reading::of(unit);
        count = count.max(reading.highest.min(ARGUMENTS_MAX)).max(u32::from(reading.all));
        let mut remark = |text: &str| remarks.push(Remark { line: unit.line, text: text.to_owned() });
        if reading.all {
            remark("the number of arguments is that of the params here: add what is missing");
        }
        if reading.tells_unset || (is_strict && reading.needs_given) {
            remark("an argument that is not given is empty here, and not unset");
        }
        if reading.highest > ARGUMENTS_MAX {
            remark("only the first nine arguments are params here: add what is missing");
        }
    }
    (1..=count).map(|number| format!("arg{number}")).collect()
}

/// Says whether the script fails where it reads a variable that is not set.
fn sets_nounset(units: &[Unit]) -> bool {
    let is_option = |word: &String| {
        word == "nounset" || (word.starts_with('-') && !word.starts_with("--") && word.contains('u'))
    };
    let sets = |command: &Vec<String>| command[0] == "set" && command[1..].iter().any(is_option);
    units.iter().flat_map(|unit| &unit.commands).any(sets)
}
