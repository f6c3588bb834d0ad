//! The workflow file of a script.

use std::fmt::Write as _;

use super::arguments::{self, Reading};
use super::itself::{ITSELF, Itself, remark_foreign, remark_quoted};
use super::mentions;
use super::scan::{Unit, units};
use super::split::{Part, Parts, Taken, parts};
use crate::draft::{END, Ids, Remark, fits_block, literal, plain, scalar};

/// A workflow file that was made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) text: String,
    /// What is not as it was.
    pub(crate) remarks: Vec<Remark>,
}

/// Makes a workflow of a script; `file` is where it was read from, and `itself` where it is to the steps.
pub(crate) fn make(script: &str, file: &str, itself: &Itself, name: &str) -> Made {
    let script = script.replace("\r\n", "\n");
    let (shebang, shell) = shell_of(&script);
    let body = match shebang {
        true => script.split_once('\n').map_or("", |(_, rest)| rest),
        false => script.as_str(),
    };
    let first = 1 + usize::from(shebang);
    let mut remarks = Vec::new();
    // In another language `$0` is something else.
    let body = &match &shell {
        Some(_) => itself.replace(body, &mut remarks),
        None => {
            remark_foreign(body, &mut remarks);
            body.to_owned()
        }
    };
    let found = match &shell {
        Some(_) => units(body),
        None => Err((1, "a script of another language")),
    };
    let (units, together) = match found {
        Ok(units) => (units, None),
        Err((line, what)) => (whole(body), Some((line, what))),
    };
    let Parts { mut parts, remarks: more } = match together {
        None => parts(&units, itself, script_exits(&units, shell.as_deref())),
        Some((line, what)) => {
            let text = format!("all of it is one step, because of {what}");
            remarks.push(Remark { line, text });
            Parts { parts: vec![one(body)], remarks: Vec::new() }
        }
    };
    remarks.extend(more);
    if parts.is_empty() {
        parts.push(Part { text: "true".to_owned(), word: "nothing".to_owned(), ..one("") });
        remarks.push(Remark { line: 1, text: "it has no command that does something".to_owned() });
    }
    // In another language `$1` is something else.
    let arguments = match &shell {
        Some(_) => arguments::params(&units, &mut remarks),
        None => Vec::new(),
    };
    let options = common_options(&units, &mut parts);
    if parts.len() > 1 {
        remark_failures(&units, shell.as_deref(), &mut remarks);
    }
    remark_quoted(&units, &mut remarks);
    remarks.iter_mut().for_each(|remark| remark.line += first - 1);
    parts.iter_mut().for_each(|part| part.line += first - 1);
    remarks.sort_by_key(|remark| remark.line);
    remarks.dedup();
    let shell_is_known = shell.is_some();
    let shell = match shell.as_deref() {
        Some(shell) => {
            let options: String = options.iter().map(|option| format!(", {option}")).collect();
            format!("[{shell}{options}, -c]")
        }
        None => interpreter(&script),
    };
    let is_read = |part: &Part| part.before.iter().chain([&part.text]).any(|text| mentions(text, ITSELF));
    let itself = (shell_is_known && parts.iter().any(is_read)).then(|| itself.path());
    let text =
        Writer { parts: &parts, remarks: &remarks, arguments: &arguments, itself, shell, file, name }.text();
    Made { text, remarks }
}

/// Says whether a script names its interpreter, and which shell that is; none for other languages.
fn shell_of(script: &str) -> (bool, Option<String>) {
    let Some(line) = script.lines().next().and_then(|line| line.strip_prefix("#!")) else {
        return (false, Some("bash".to_owned()));
    };
    let name = program_of(line);
    (true, matches!(name, "sh" | "bash" | "dash" | "ksh").then(|| name.to_owned()))
}

/// Returns the program that the first line of a script names.
fn program_of(line: &str) -> &str {
    let line = line.trim_start_matches("#!");
    let mut words = line.split_whitespace().filter(|word| !word.starts_with('-') && !word.ends_with("/env"));
    let program = words.next().unwrap_or("sh");
    program.rsplit('/').next().unwrap_or(program)
}

/// Returns the interpreter of a script in another language, which is given the script as its last argument.
fn interpreter(script: &str) -> String {
    let name = program_of(script.lines().next().unwrap_or_default());
    let option = if matches!(name, "perl" | "ruby" | "node") { "-e" } else { "-c" };
    format!("[{}, {option}]", scalar(name))
}

/// Says whether the script stops at the first command that fails.
fn script_exits(units: &[Unit], shell: Option<&str>) -> bool {
    let is_option = |word: &String| {
        word == "errexit" || (word.starts_with('-') && !word.starts_with("--") && word.contains('e'))
    };
    let sets = |command: &Vec<String>| command[0] == "set" && command[1..].iter().any(is_option);
    shell.is_none() || units.iter().flat_map(|unit| &unit.commands).any(sets)
}

/// Remarks from where on the script goes on after a command that fails.
fn remark_failures(units: &[Unit], shell: Option<&str>, remarks: &mut Vec<Remark>) {
    if !script_exits(units, shell) {
        let text =
            "the script goes on after a command that fails; the workflow stops there, and can be resumed";
        remarks.push(Remark { line: 1, text: text.to_owned() });
        return;
    }
    let is_lifted = |command: &Vec<String>| command.len() == 2 && command[0] == "set" && command[1] == "+e";
    for unit in units.iter().filter(|unit| unit.commands.iter().any(is_lifted)) {
        let text = "the script goes on from here after a command that fails; the workflow stops there";
        remarks.push(Remark { line: unit.line, text: text.to_owned() });
    }
}

fn whole(body: &str) -> Vec<Unit> {
    vec![Unit { line: 1, text: body.trim_end().to_owned(), compound: true, ..Unit::default() }]
}

fn one(body: &str) -> Part {
    Part {
        line: 1,
        comments: Vec::new(),
        text: body.trim().to_owned(),
        before: Vec::new(),
        reads_arguments: Reading::of_text(body).is_any(),
        gives: Vec::new(),
        takes: Default::default(),
        word: "script".to_owned(),
    }
}

/// Takes the options that the script sets once, at its top, out of its steps: they are the shell's.
fn common_options(units: &[Unit], parts: &mut [Part]) -> Vec<String> {
    let mut sets = units.iter().flat_map(|unit| &unit.commands).filter(|command| command[0] == "set");
    let (Some(set), None) = (sets.next(), sets.next()) else { return Vec::new() };
    let is_option = |word: &String| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let line = set.join(" ");
    let is_everywhere = parts.iter().all(|part| part.before.first() == Some(&line));
    if !is_everywhere || set.len() < 2 || !set[1].starts_with('-') || !set.iter().all(is_option) {
        return Vec::new();
    }
    parts.iter_mut().for_each(|part| drop(part.before.remove(0)));
    set[1..].to_vec()
}

struct Writer<'a> {
    parts: &'a [Part],
    remarks: &'a [Remark],
    arguments: &'a [String],
    /// The path of the script, if some step reads it.
    itself: Option<&'a str>,
    shell: String,
    file: &'a str,
    name: &'a str,
}

impl Writer<'_> {
    fn text(&self) -> String {
        let ids = self.ids();
        let mut text = format!(
            "# Made of {} by `waypost new --from`: each step is a shell of its own.\n",
            plain(self.file)
        );
        if !self.remarks.is_empty() {
            text.push_str("#\n# What is not as it was there, by its lines:\n");
        }
        for remark in self.remarks {
            let _ = writeln!(text, "#   {}: {}", remark.line, plain(&remark.text));
        }
        let _ = writeln!(text, "version: 1\nname: {}", scalar(self.name));
        if !self.arguments.is_empty() {
            text.push_str("\n# The arguments of the script, given by -p arg1=…\nparams:\n");
            for name in self.arguments {
                let _ = writeln!(text, "  {name}: {{ type: string, default: \"\" }}");
            }
        }
        if let Some(path) = self.itself {
            let _ = writeln!(
                text,
                "\n# The script, from the folder in which steps run: its `$0`\nenv:\n  {ITSELF}: {}",
                scalar(&literal(path))
            );
        }
        let _ = writeln!(text, "\ndefaults:\n  shell: {}", self.shell);
        text.push_str("\nsteps:\n");
        for (index, (part, id)) in self.parts.iter().zip(&ids).enumerate() {
            if index > 0 {
                text.push('\n');
            }
            self.step(&mut text, part, id, &ids);
        }
        text
    }

    fn ids(&self) -> Vec<String> {
        let mut ids = Ids::default();
        self.parts.iter().map(|part| ids.take(&part.word, part.line)).collect()
    }

    fn step(&self, text: &mut String, part: &Part, id: &str, ids: &[String]) {
        for comment in &part.comments {
            let _ = writeln!(text, "  # {}", plain(comment));
        }
        let _ = writeln!(text, "  - id: {id}");
        let mut command = String::new();
        let with_arguments = !self.arguments.is_empty() && part.reads_arguments;
        let mut env: Vec<(String, String)> = Vec::new();
        if with_arguments {
            let words: Vec<String> =
                self.arguments.iter().map(|name| format!("\"${}\"", name.to_uppercase())).collect();
            let _ = writeln!(command, "set -- {}", words.join(" "));
            env.extend(self.arguments.iter().map(|name| (name.to_uppercase(), format!("params.{name}"))));
        }
        for line in &part.before {
            command.push_str(line);
            command.push('\n');
        }
        command.push_str(&part.text);
        for name in &part.gives {
            let _ = write!(
                command,
                "\nprintf '%s<<{END}\\n%s\\n{END}\\n' {name} \"${name}\" >> \"$WAYPOST_OUTPUT\""
            );
        }
        let value = |taken: &Taken| format!("steps.{}.outputs.{}", ids[taken.part], taken.name);
        env.extend(part.takes.iter().map(|(name, taken)| (name.clone(), value(taken))));
        block(text, &command);
        if !env.is_empty() {
            text.push_str("    env:\n");
            for (name, expression) in env {
                let _ = writeln!(text, "      {name}: \"${{{{ {expression} }}}}\"");
            }
        }
    }
}

/// Writes a command as a block of YAML that reads the same.
fn block(text: &mut String, command: &str) {
    let command = literal(command);
    if !fits_block(&command) {
        let _ = writeln!(text, "    run: {}", scalar(&command));
        return;
    }
    // With its indentation said, since the first line may have one of its own.
    let indicator = if command.starts_with([' ', '\t', '\n']) { "2" } else { "" };
    let _ = writeln!(text, "    run: |{indicator}");
    for line in command.trim_end_matches('\n').split('\n') {
        if line.is_empty() {
            text.push('\n');
        } else {
            let _ = writeln!(text, "      {line}");
        }
    }
}
