//! Translates Prodigy variables to expressions over steps, items and params, or to shell variables.

use std::collections::BTreeSet;

/// The format of a captured output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
    Lines,
    Number,
    Truth,
}

/// A variable that holds the output of a step.
#[derive(Debug, Clone)]
pub(crate) struct Captured {
    pub(crate) name: String,
    pub(crate) format: Format,
    /// The path within the output, such as `.rows[0]`.
    pub(crate) below: String,
}

/// A step with outputs for later steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Done {
    /// The id in the made file.
    pub(crate) id: String,
    /// The id in the source.
    pub(crate) own: Option<String>,
    pub(crate) is_agent: bool,
    pub(crate) captured: Vec<Captured>,
    /// Names of `file_pattern` outputs, and the steps that find the files.
    pub(crate) files: Vec<(String, String)>,
    /// True if the step may be skipped.
    pub(crate) may_skip: bool,
    /// True if the step may be skipped or fail.
    pub(crate) may_lack: bool,
    /// True if the reader runs after a failure of the step.
    pub(crate) has_failed: bool,
}

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemVariable {
    /// A text, such as a line.
    Text,
    /// A value of JSON.
    Json,
}

/// The names visible to a text.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    pub(crate) done: Vec<Done>,
    pub(crate) item: Option<ItemVariable>,
    /// The depth of nested items.
    pub(crate) item_depth: usize,
    /// The number of items, if known.
    pub(crate) item_total: Option<usize>,
    /// The id of the step of the map phase, for later steps.
    pub(crate) map: Option<String>,
    /// Variables that the file declares.
    pub(crate) env: BTreeSet<String>,
    pub(crate) secrets: BTreeSet<String>,
    pub(crate) workflow: String,
    /// Steps with output that is read after a failure.
    pub(crate) read_after_failure: BTreeSet<String>,
    /// The report of a validation as an expression, for the repair steps.
    pub(crate) validation: Option<String>,
    /// True if a text reads the results of all items.
    pub(crate) reads_results: bool,
    /// The default of a missing value, as an expression.
    pub(crate) otherwise: Option<String>,
}

/// The meaning of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The value of an expression.
    Value(String, Format),
    Constant(String),
    /// A variable of the environment, from the file or the caller.
    Variable(String),
    /// The output of a command.
    Command(String),
    /// An argument of Prodigy's command line.
    Param(&'static str),
    /// A variable of Prodigy without an equivalent.
    Absent,
    /// A variable of the shell, or plain text.
    Foreign,
}

/// Variables for arguments of Prodigy's command line, and their params.
const ARGUMENTS: [(&str, &str); 4] =
    [("ARG", "arg"), ("ARGUMENT", "arg"), ("FILE", "file"), ("FILE_PATH", "file")];

impl Scope {
    /// Returns the meaning of `${inner}`, and the part of `inner` that is lost.
    pub(crate) fn meaning(&mut self, inner: &str) -> (Meaning, Option<String>) {
        let computed = |prefix: &str| inner.strip_prefix(prefix).map(str::trim);
        if let Some(command) = computed("cmd:") {
            return (Meaning::Command(command.to_owned()), None);
        }
        if let Some(path) = computed("file:") {
            return (Meaning::Command(format!("cat -- {}", quoted(path))), None);
        }
        if let Some(format) = computed("date:") {
            return (Meaning::Command(format!("date {}", quoted(&format!("+{format}")))), None);
        }
        if let Some(name) = computed("env:").or_else(|| computed("env."))
            && is_name(name.split(":-").next().unwrap_or_default())
        {
            return (Meaning::Variable(name.to_owned()), None);
        }
        if inner == "uuid" || inner.starts_with("json:") {
            return (Meaning::Absent, None);
        }
        let (name, default) = with_default(inner);
        let (name, rest) = match name.split_once('|') {
            Some((name, rest)) => (name, Some(format!("`|{rest}`"))),
            None => (name, None),
        };
        let name = name.trim();
        self.otherwise = default.map(text_literal);
        let value = self.value(name);
        self.otherwise = None;
        let meaning = match value {
            Some((value, format)) => Meaning::Value(value, format),
            None => self.no_value(name, inner, default),
        };
        let rest = match (&meaning, default) {
            (Meaning::Param(_), Some(text)) => Some(format!("`:-{text}`")),
            _ => rest,
        };
        (meaning, rest)
    }

    fn no_value(&self, name: &str, inner: &str, default: Option<&str>) -> Meaning {
        if name == "workflow.name" {
            return Meaning::Constant(self.workflow.clone());
        }
        if self.env.contains(name) || self.secrets.contains(name) {
            return Meaning::Variable(inner.to_owned());
        }
        if let Some((_, param)) = ARGUMENTS.iter().find(|(argument, _)| *argument == name) {
            return Meaning::Param(param);
        }
        // A dot never follows the name of a shell variable.
        if let Some(total) = self.item_total.filter(|_| matches!(name, "total" | "foreach.total")) {
            return Meaning::Constant(total.to_string());
        }
        let part = name.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap_or_default();
        let is_theirs = is_name(part) && name[part.len()..].starts_with('.')
            || self.item.is_some() && name == "item_total"
            || self.item == Some(ItemVariable::Text) && name == "total";
        match (is_theirs, default) {
            (true, Some(text)) => Meaning::Constant(text.to_owned()),
            (true, None) => Meaning::Absent,
            (false, _) => Meaning::Foreign,
        }
    }

    fn value(&mut self, name: &str) -> Option<(String, Format)> {
        if let Some(found) = self.of_item(name) {
            return Some(found);
        }
        if let Some(found) = self.of_map(name) {
            return Some(found);
        }
        if let Some(found) = self.captured(name).or_else(|| self.of_validation(name)) {
            return Some(found);
        }
        let count = self.done.len();
        match name {
            "shell.output" => self.last(count, |done| !done.is_agent, Self::printed),
            "claude.output" => self.last(count, |done| done.is_agent, Self::printed),
            "last.output" | "handler.output" => self.last(count, |_| true, Self::printed),
            "last.exit_code" | "shell.exit_code" => {
                let code = self.last(count, |_| true, |scope, done| scope.exit_code(done))?;
                return Some((code, Format::Number));
            }
            "workflow.id" => Some("run.id".to_owned()),
            _ => return self.by_id(name),
        }
        .map(|value| (value, Format::Text))
    }

    /// Reads from the last step of a kind before a position, or from an earlier step if that step was skipped.
    fn last(
        &mut self,
        before: usize,
        is: fn(&Done) -> bool,
        read: fn(&mut Self, &Done) -> String,
    ) -> Option<String> {
        let at = self.done[..before].iter().rposition(is)?;
        let done = self.done[at].clone();
        let value = read(self, &done);
        let earlier = if done.may_skip && !done.has_failed { self.last(at, is, read) } else { None };
        Some(match earlier {
            Some(earlier) => format!("({earlier}) if steps.{}.status == 'skipped' else ({value})", done.id),
            None => value,
        })
    }

    fn of_item(&self, name: &str) -> Option<(String, Format)> {
        let kind = self.item?;
        let name = name.strip_prefix("foreach.").unwrap_or(name);
        let format = if kind == ItemVariable::Text { Format::Text } else { Format::Json };
        let plain = |text: &str| (text.to_owned(), Format::Text);
        let item = item_name(self.item_depth);
        // A default applies to every part of the path, and to null.
        let may_lack = self.otherwise.is_some();
        match name {
            "item" if kind == ItemVariable::Json => {
                return Some((self.read(&item, "", format, may_lack), format));
            }
            "item" => return Some((item, format)),
            "item_index" | "index" => return Some(("item_index".to_owned(), Format::Number)),
            "item_id" => return Some(plain("'item_' ~ item_index")),
            _ => {}
        }
        let below = name.strip_prefix("item.")?;
        let path = format!(".{below}");
        match kind {
            ItemVariable::Text if matches!(below, "item" | "value" | "path" | "name") => Some(plain(&item)),
            ItemVariable::Json if is_path(&path) => {
                let end = path[1..].find(['.', '[']).map_or(path.len(), |end| end + 1);
                let value = format!("{item}{}", &path[..end]);
                Some((self.read(&value, &path[end..], Format::Json, may_lack), Format::Json))
            }
            _ => None,
        }
    }

    fn of_map(&mut self, name: &str) -> Option<(String, Format)> {
        let map = self.map.as_ref()?;
        let part = match name.strip_prefix("map.")? {
            "total" => "total",
            "successful" => "succeeded",
            "failed" => "failed",
            "results" | "results_json" => {
                self.reads_results = true;
                return Some((format!("steps.{map}.items"), Format::Json));
            }
            _ => return None,
        };
        Some((format!("steps.{map}.{part}"), Format::Number))
    }

    fn of_validation(&self, name: &str) -> Option<(String, Format)> {
        let report = self.validation.as_ref()?;
        let field = match name.strip_prefix("validation.")? {
            "attempt_number" => return Some(("iteration".to_owned(), Format::Number)),
            "missing_count" => {
                let list = parts(report, ".missing");
                return Some((format!("({list} | default([], true)) | length"), Format::Number));
            }
            "completion" => ".completion_percentage".to_owned(),
            field => format!(".{field}"),
        };
        is_path(&field).then(|| (self.read(report, &field, Format::Text, true), Format::Text))
    }

    fn captured(&mut self, name: &str) -> Option<(String, Format)> {
        for at in (0..self.done.len()).rev() {
            let found = self.done[at].captured.iter().rev().find_map(|captured| {
                let rest = name.strip_prefix(captured.name.as_str())?;
                (rest.is_empty() || rest.starts_with(['.', '['])).then(|| (captured.clone(), rest.to_owned()))
            });
            let Some((captured, rest)) = found else { continue };
            let done = self.done[at].clone();
            match rest.as_str() {
                ".success" => return Some((succeeded(&done), Format::Truth)),
                ".exit_code" => return Some((self.exit_code(&done), Format::Number)),
                ".stderr" | ".duration" => return None,
                "" if done.has_failed => return Some((self.printed(&done), Format::Text)),
                _ => {}
            }
            let below = format!("{}{rest}", captured.below);
            let is_whole = below.is_empty();
            if !(is_whole || captured.format == Format::Json && is_path(&below)) {
                return None;
            }
            let whole = format!("steps.{}.outputs.result", done.id);
            let value = self.read(&whole, &below, captured.format, done.may_lack);
            return Some((value, captured.format));
        }
        None
    }

    fn by_id(&mut self, name: &str) -> Option<(String, Format)> {
        let name = name.strip_prefix("steps.").or_else(|| name.strip_prefix("step.")).unwrap_or(name);
        let (own, part) = name.split_once('.')?;
        let is_it = |done: &&Done| done.own.as_deref() == Some(own);
        let done = self.done.iter().rev().find(is_it).cloned()?;
        if let Some((_, finder)) = done.files.iter().find(|(file, _)| file == part) {
            let value = format!("steps.{finder}.outputs.result");
            return Some((self.read(&value, "", Format::Text, done.may_lack), Format::Text));
        }
        match part {
            "output" | "stdout" | "result" => Some((self.printed(&done), Format::Text)),
            "exit_code" => Some((self.exit_code(&done), Format::Number)),
            "success" => Some((succeeded(&done), Format::Truth)),
            _ => None,
        }
    }

    /// Returns the output of a step; after a failure, the copy kept by the command.
    fn printed(&mut self, done: &Done) -> String {
        let id = &done.id;
        let (value, may_lack) = match (done.is_agent, done.has_failed) {
            (true, has_failed) => (format!("steps.{id}.outputs.result"), has_failed || done.may_lack),
            (false, true) => {
                self.read_after_failure.insert(id.clone());
                (format!("steps.{id}.outputs.printed"), true)
            }
            (false, false) => (format!("steps.{id}.stdout"), done.may_lack),
        };
        self.read(&value, "", Format::Text, may_lack)
    }

    fn exit_code(&self, done: &Done) -> String {
        self.read(&format!("steps.{}.exit_code", done.id), "", Format::Number, done.may_lack)
    }

    /// Returns the expression of a path below a possibly missing value.
    fn read(&self, value: &str, below: &str, format: Format, may_lack: bool) -> String {
        match (&self.otherwise, may_lack) {
            (None, false) => format!("{value}{below}"),
            (None, true) if format == Format::Text => format!("{} | default('', true)", parts(value, below)),
            (otherwise, _) => {
                // `default` with `true` would replace 0 and false.
                let otherwise = otherwise.as_deref().unwrap_or("''");
                format!("[{} | default(none), {otherwise}] | reject('none') | first", parts(value, below))
            }
        }
    }
}

/// Splits a variable into its name and its default.
fn with_default(inner: &str) -> (&str, Option<&str>) {
    let found = inner.split_once("|default:").or_else(|| inner.split_once(":-"));
    found.map_or((inner, None), |(name, text)| (name, Some(text)))
}

/// Returns the default of a variable.
pub(crate) fn default_of(inner: &str) -> Option<&str> {
    with_default(inner).1
}

/// Returns the name of the item variable, distinct at each depth.
pub(crate) fn item_name(depth: usize) -> String {
    match depth {
        0 | 1 => "item".to_owned(),
        depth => format!("item_{depth}"),
    }
}

/// Returns the expression of a path with an optional last part.
pub(crate) fn parts(value: &str, below: &str) -> String {
    let mut value = value.to_owned();
    let mut rest = below;
    while !rest.is_empty() {
        let end = rest[1..].find(['.', '[']).map_or(rest.len(), |end| end + 1);
        value = format!("({value} | default({{}}, true)){}", &rest[..end]);
        rest = &rest[end..];
    }
    value
}

fn succeeded(done: &Done) -> String {
    format!("(steps.{}.status == 'completed')", done.id)
}

/// Returns true if a text is a path in the expression syntax.
pub(crate) fn is_path(path: &str) -> bool {
    let mut names = path.split(['.', '[']).skip(1);
    let is_part = |part: &str| {
        let number = part.strip_suffix(']');
        match number {
            Some(number) => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
            None => is_name(&part.replace('-', "_")),
        }
    };
    path.starts_with(['.', '[']) && names.all(is_part)
}

/// Returns a text as a literal of an expression.
pub(crate) fn text_literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n"))
}

/// Quotes a text as a single shell word.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns true if a name is valid for a variable of a step.
pub(crate) fn is_variable(name: &str) -> bool {
    is_name(name) && !name.starts_with("WAYPOST_")
}

/// Returns true if a text is a valid name of a shell variable.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
