//! Texts with variables. Commands read values from shell variables; all other texts contain the values.

use waypost_workflow::file::Node;

use crate::import::context::Import;
use crate::variables::names::{self, Meaning, is_variable, text_literal};
use crate::variables::shell::{self, Found, Place};
use crate::yaml::scalar::literal;

/// Variables with a meaning for the shell or for most programs.
const TAKEN: [&str; 20] = [
    "PATH", "HOME", "IFS", "PWD", "OLDPWD", "SHELL", "USER", "LANG", "TERM", "ENV", "PS1", "PS2", "PS4",
    "UID", "PPID", "CDPATH", "TMPDIR", "EDITOR", "RANDOM", "OPTIND",
];

/// A command and its variables.
#[derive(Debug, Default)]
pub(crate) struct Command {
    pub(crate) text: String,
    pub(crate) env: Vec<(String, String)>,
}

impl Import<'_> {
    /// Converts a shell command. `taken` are variables of the step.
    pub(crate) fn command(
        &mut self,
        node: &Node,
        key: &str,
        text: &str,
        taken: &[(String, String)],
    ) -> Command {
        let found = shell::in_command(text);
        let own = self.own_part(node, key, text, &found);
        let mut command = Command::default();
        let mut at = 0;
        for found in &found {
            command.text.push_str(&literal(&text[at..found.range.start]));
            at = found.range.end;
            let before = &text[found.range.clone()];
            let meaning = match self.meaning(node, key, found) {
                // Every step has this variable.
                Meaning::Value(value, _)
                    if found.place != Place::Verbatim && self.is_computed(&found.inner, &value) =>
                {
                    Meaning::Variable(found.inner.clone())
                }
                meaning => meaning,
            };
            let template = match &meaning {
                Meaning::Value(expression, _) => Some(format!("${{{{ {expression} }}}}")),
                Meaning::Constant(text) => Some(literal(text)),
                Meaning::Param(name) => Some(format!("${{{{ params.{name} }}}}")),
                _ => None,
            };
            let Some(template) = template else {
                let written = self.of_shell(node, key, found, before, &meaning);
                at += put(&mut command.text, &written, text, found);
                continue;
            };
            if found.place != Place::Single
                && names::default_of(&found.inner).is_some_and(|text| text.contains('$'))
            {
                let message =
                    format!("the default of `{before}` is plain text: its variables are not expanded");
                self.note(
                    node,
                    key,
                    message,
                    "write `''` as the default, and `${NAME:-$OTHER}` in the command",
                );
            }
            if found.place == Place::Verbatim {
                let message = format!("the value of `{before}` is pasted into the command");
                let help = "remove the quotes of the here-document, and write `\"$NAME\"`";
                self.note(node, key, message, help);
                command.text.push_str(&template);
                continue;
            }
            let known = command.env.iter().find(|(_, value)| *value == template);
            let name = match known.map(|(name, _)| name.clone()) {
                Some(name) => name,
                None => {
                    let name = self.free_name(&found.inner, &own, taken, &command.env);
                    command.env.push((name.clone(), template));
                    name
                }
            };
            let written = in_place(&format!("${{{name}}}"), &format!("${name}"), found.place);
            at += put(&mut command.text, &written, text, found);
        }
        command.text.push_str(&literal(&text[at..]));
        command
    }

    /// Returns a command without the variables of Prodigy.
    fn own_part(&mut self, node: &Node, key: &str, text: &str, found: &[Found]) -> String {
        let mut own = String::new();
        let mut at = 0;
        for found in found {
            own.push_str(&text[at..found.range.start]);
            let is_own = matches!(self.meaning(node, key, found), Meaning::Foreign | Meaning::Command(_));
            own.push_str(if is_own { &text[found.range.clone()] } else { " " });
            at = found.range.end;
        }
        own.push_str(&text[at..]);
        own
    }

    /// Returns a variable name that the command does not use.
    fn free_name(
        &self,
        inner: &str,
        own: &str,
        taken: &[(String, String)],
        others: &[(String, String)],
    ) -> String {
        let is_taken = |name: &str| {
            TAKEN.contains(&name)
                || self.scope.env.contains(name)
                || self.scope.secrets.contains(name)
                || taken.iter().chain(others).any(|(taken, _)| taken == name)
                || uses(own, name)
        };
        variable_name(inner, is_taken)
    }

    /// Returns the spelling of a variable for the shell.
    fn of_shell(&mut self, node: &Node, key: &str, found: &Found, before: &str, meaning: &Meaning) -> String {
        match (meaning, found.place) {
            (Meaning::Variable(name), Place::Verbatim) if self.scope.env.contains(name) => {
                format!("${{{{ env.{name} }}}}")
            }
            (Meaning::Variable(_) | Meaning::Command(_), Place::Verbatim) => {
                let message = format!("`{before}` is plain text: the here-document is quoted");
                self.note(node, key, message, "remove the quotes of the here-document");
                before.to_owned()
            }
            (Meaning::Variable(name), Place::Single) => format!("'\"${{{name}}}\"'"),
            (Meaning::Variable(name), _)
                if before == format!("${{{name}}}") || before == format!("${name}") =>
            {
                before.to_owned()
            }
            (Meaning::Variable(name), place) => in_place(&format!("${{{name}}}"), &format!("${name}"), place),
            (Meaning::Command(command), place) => {
                let command = format!("$({})", literal(command));
                in_place(&command, &command, place)
            }
            _ => literal(before),
        }
    }

    /// Returns a text with expressions in place of variables: a prompt, a path, the value of a variable.
    pub(crate) fn pasted(&mut self, node: &Node, key: &str, text: &str) -> String {
        let mut pasted = String::new();
        let mut at = 0;
        for found in shell::in_text(text) {
            pasted.push_str(&literal(&text[at..found.range.start]));
            at = found.range.end;
            let before = &text[found.range.clone()];
            let value = match self.meaning(node, key, &found) {
                Meaning::Value(expression, _) => format!("${{{{ {expression} }}}}"),
                Meaning::Param(name) => format!("${{{{ params.{name} }}}}"),
                Meaning::Constant(text) => literal(&text),
                Meaning::Variable(name) if self.scope.env.contains(&name) => format!("${{{{ env.{name} }}}}"),
                Meaning::Variable(name) => match self.of_caller(&name) {
                    Some(expression) => format!("${{{{ {expression} }}}}"),
                    None => {
                        let help = "have a command read the variable: `\"$NAME\"`";
                        let message = format!("`{before}` is plain text: only commands read `{name}`");
                        self.note(node, key, message, help);
                        literal(before)
                    }
                },
                Meaning::Command(command) => {
                    let help =
                        "run the command in a step with `capture: text`, and read `steps.ID.outputs.result`";
                    let message = format!("`{before}` is plain text: `{command}` runs only within a command");
                    self.note(node, key, message, help);
                    literal(before)
                }
                Meaning::Foreign | Meaning::Absent => {
                    let help = "write an expression: `${{ steps.ID.outputs.result }}`";
                    self.note(node, key, format!("`{before}` is plain text: no step has this output"), help);
                    literal(before)
                }
            };
            pasted.push_str(&value);
        }
        pasted.push_str(&literal(&text[at..]));
        pasted
    }

    /// Returns the expression of a variable of the caller, possibly with a default. The first steps of the file
    /// print the value. Returns `None` for a secret.
    fn of_caller(&mut self, inner: &str) -> Option<String> {
        let name = inner.split(":-").next().unwrap_or_default();
        let is_plain = !inner.contains(['"', '$', '`', '\\', '}', '\n']);
        if !is_variable(name) || self.scope.secrets.contains(name) || !is_plain {
            return None;
        }
        let known = self.printed.iter().find(|(known, _)| known == inner).map(|(_, id)| id.clone());
        let id = known.unwrap_or_else(|| {
            let id = self.ids.take(&format!("env-{}", name.to_ascii_lowercase()), 0);
            self.printed.push((inner.to_owned(), id.clone()));
            id
        });
        Some(format!("steps.{id}.outputs.result"))
    }

    /// Returns the meaning of a variable; a variable without an equivalent becomes a param.
    pub(crate) fn meaning(&mut self, node: &Node, key: &str, found: &Found) -> Meaning {
        if let Some((value, format)) = self.changes(&found.inner) {
            return Meaning::Value(value, format);
        }
        let (meaning, lost) = self.scope.meaning(&found.inner);
        if let Some(lost) = lost {
            let message = format!("`${{{}}}` is read without {lost}", found.inner);
            let help = match meaning {
                Meaning::Param(_) => "give the param a `default`",
                _ => "write a filter of an expression",
            };
            self.note(node, key, message, help);
        }
        if self.scope.reads_results {
            self.scope.reads_results = false;
            let message =
                "each result of an item has `key`, `index`, `item`, `status`, `error` and `steps.ID.outputs`";
            let help = "the results of more than 1,000 items are in the file `steps.ID.items_file`";
            self.note(node, key, message, help);
        }
        match meaning {
            Meaning::Absent => {
                let name = self.param(&found.inner, &format!("Stands for ${{{}}} of Prodigy", found.inner));
                let message = format!(
                    "the param `{name}` takes the place of `${{{}}}`: no step has this output",
                    found.inner
                );
                let help =
                    format!("`waypost run FILE -p {name}=VALUE`, or add a step before with this output");
                self.note(node, key, message, help);
                Meaning::Value(format!("params.{name}"), names::Format::Text)
            }
            Meaning::Param(name) => {
                self.param(name, "An argument of Prodigy (--args, --map), one run for each");
                Meaning::Param(name)
            }
            meaning => meaning,
        }
    }

    /// Returns a variable as an operand of an expression; `None` for a shell variable.
    pub(crate) fn operand(&mut self, node: &Node, key: &str, inner: &str) -> Option<(String, names::Format)> {
        let found = Found { range: 0..0, inner: inner.to_owned(), place: Place::Bare };
        let text = names::Format::Text;
        match self.meaning(node, key, &found) {
            Meaning::Value(expression, format) => Some((expression, format)),
            Meaning::Constant(constant) => Some((text_literal(&constant), text)),
            Meaning::Param(name) => Some((format!("params.{name}"), text)),
            Meaning::Variable(name) if self.scope.env.contains(&name) => Some((format!("env.{name}"), text)),
            _ => None,
        }
    }
}

/// Returns a quoted shell variable, so that the value is a single word.
fn in_place(braced: &str, short: &str, place: Place) -> String {
    match place {
        Place::Bare => format!("\"{short}\""),
        Place::Double | Place::Inner | Place::Verbatim => braced.to_owned(),
        Place::Single => format!("'\"{short}\"'"),
    }
}

/// Appends a variable to a command. Returns the number of replaced characters after the variable.
///
/// Single quotes around the variable are closed and reopened, or dropped if the variable is their only content.
fn put(command: &mut String, written: &str, text: &str, found: &Found) -> usize {
    let is_split = found.place == Place::Single && written.starts_with("'\"") && written.ends_with("\"'");
    let opens = is_split && text[..found.range.start].ends_with('\'');
    let closes = is_split && text[found.range.end..].starts_with('\'');
    if opens {
        command.pop();
    }
    let written = if opens { &written[1..] } else { written };
    command.push_str(if closes { &written[..written.len() - 1] } else { written });
    usize::from(closes)
}

/// Returns a name for the shell variable for `inner`.
fn variable_name(inner: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let inner = inner.split(['|', ':']).next().unwrap_or_default().trim();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = inner.chars().map(plain).take(60).collect();
    let name = name.split('_').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("_");
    let name = match name.starts_with(|c: char| c.is_ascii_alphabetic()) && !name.starts_with("WAYPOST_") {
        true => name,
        false => format!("VALUE_{name}"),
    };
    let mut chosen = name.clone();
    let mut count = 1;
    while is_taken(&chosen) {
        chosen = if count == 1 { format!("{name}_VALUE") } else { format!("{name}_VALUE{count}") };
        count += 1;
    }
    chosen
}

/// Returns true if a command reads or sets the variable.
fn uses(command: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let uses = |(at, _): (usize, &str)| {
        let (before, after) = (&command[..at], &command[at + name.len()..]);
        let words = ["$", "${", "for ", "read ", "read -r ", "local ", "unset "];
        let by_word = words.iter().any(|word| before.ends_with(word));
        !before.ends_with(is_part) && !after.starts_with(is_part) && (after.starts_with('=') || by_word)
    };
    command.match_indices(name).any(uses)
}
