//! `workflow`: a step with an included file, and the sources of the file's text.
//!
//! A run keeps one text as its definition: the main file, followed by all included files, each after a line
//! `--- # file: "NAME"`. In YAML a line that begins with `---` starts another document, also within a block
//! of text. Therefore no single file contains such a line. A name is the path from the folder of the main
//! file.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::body::holds_expression;
use super::checker::Checker;
use super::node::{Kind, Node};
use super::problem::{FileError, Problems, SourceText};
use super::work::Work;
use super::workflow::Workflow;
use super::{FILE_BYTES_MAX, read_regular};
use crate::expr::{ExprError, Scope, Template};
use crate::suggest::listed;

/// Prefix of the line before the text of another file.
const MARK: &str = "--- # file: ";
/// Extra bytes per included file in the copy of a run: the line, without the name.
const COPY_BYTES: usize = MARK.len() + 4;
/// Most bytes of JSON for one byte of text.
const ESCAPED_BYTES_MAX: usize = 6;
/// Deepest nesting of files: each level opens a scope.
const DEPTH_MAX: usize = 8;
/// Most steps that run another file, in all files together. Each step is a copy of the included file, so ten
/// files that include each other ten times would be 10^10 copies.
const CHILDREN_MAX: usize = 1_000;
/// Most bytes read for included files, counted once per include.
const CHILDREN_BYTES_MAX: usize = 4 * FILE_BYTES_MAX;

/// Included file of a step.
#[derive(Debug, Clone)]
pub struct ChildWorkflow {
    /// Path as written in the step.
    pub(super) file: String,
    /// Working folder of the included steps, relative to the folder of the run's file.
    pub(super) folder: PathBuf,
    pub(super) workflow: Workflow,
    /// Given params, in the order of the file.
    pub(super) params: Vec<(String, Given)>,
}

/// Value of a param for an included file.
#[derive(Debug, Clone)]
pub(super) enum Given {
    /// Literal value.
    Plain(Value),
    /// Result of the expressions.
    Filled(Template),
}

/// Param as written in the file.
pub(super) type GivenDraft<'n> = (String, Given, &'n Node);

impl ChildWorkflow {
    /// Returns the path as written in the step.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the working folder of the included steps, relative to the run's base folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the name of the file: the path from the folder of the main file.
    pub(super) fn name(&self) -> String {
        let file = Path::new(&self.file).file_name().unwrap_or_default();
        self.folder.join(file).to_string_lossy().into_owned()
    }

    /// Returns the included workflow.
    #[must_use]
    pub fn workflow(&self) -> &Workflow {
        &self.workflow
    }

    /// Evaluates the given params. A text result is converted to the declared type later.
    ///
    /// # Errors
    /// The expression that cannot be evaluated.
    pub(crate) fn given(&self, scope: &Scope) -> Result<super::GivenParams, ExprError> {
        let (mut file, mut text) = (Map::new(), Vec::new());
        for (name, given) in &self.params {
            match given {
                Given::Plain(value) => drop(file.insert(name.clone(), value.clone())),
                Given::Filled(template) => match template.evaluate(scope)? {
                    // Text mixed with expressions, or a text result: the type is not known yet.
                    Value::String(value) => text.push((name.clone(), value)),
                    value => drop(file.insert(name.clone(), value)),
                },
            }
        }
        Ok(super::GivenParams { file, text })
    }

    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.params.iter().filter_map(|(_, given)| match given {
            Given::Filled(template) => Some(template),
            Given::Plain(_) => None,
        })
    }
}

/// Included files of a file, and the files that are being read.
#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Length of the main file, which comes first in the copy of a run.
    pub(super) first: usize,
    /// Texts of all files found so far, by name.
    copies: BTreeMap<String, Arc<str>>,
    /// Folder of the main file, if files are read from the disk.
    disk: Option<PathBuf>,
    /// Names of the current file and its parents; empty for the main file.
    around: Vec<String>,
    /// Number of including steps so far, and bytes read for them.
    found: (usize, usize),
    /// Errors in included files.
    pub(super) wrong: Vec<FileError>,
}

/// Splits the text of a workflow, as returned by [`Workflow::text`], into the main file and the included
/// files.
///
/// Included files are named by the path from the folder of the main file. A file without a final newline may
/// have gained a newline, if another file follows.
#[must_use]
pub fn separated(text: &str) -> (&str, Vec<(String, &str)>) {
    let mut marks = text.match_indices(MARK).filter_map(|(at, _)| {
        let line = text[at..].lines().next()?;
        let name: String = serde_json::from_str(line.strip_prefix(MARK)?.trim_end()).ok()?;
        let begins = at == 0 || text.as_bytes()[at - 1] == b'\n';
        begins.then_some((at, (at + line.len() + 1).min(text.len()), name))
    });
    let Some((end, mut begin, mut name)) = marks.next() else { return (text, Vec::new()) };
    let mut copies = Vec::new();
    for (next, after, other) in marks {
        copies.push((name, &text[begin..next]));
        (begin, name) = (after, other);
    }
    copies.push((name, &text[begin..]));
    (&text[..end], copies)
}

impl Family {
    /// Reads included files from the disk, relative to the file at `path`, unless the text contains them.
    pub(super) fn on_disk(path: &Path) -> Self {
        Self { disk: Some(path.parent().unwrap_or(Path::new("")).to_owned()), ..Self::default() }
    }

    /// Returns the main file's text, and keeps the included files.
    pub(super) fn separate<'t>(&mut self, text: &'t str) -> &'t str {
        let (own, copies) = separated(text);
        self.copies.extend(copies.into_iter().map(|(name, text)| (name, text.into())));
        own
    }

    /// Keeps the text of an included file.
    pub(super) fn copy(&mut self, name: &str, text: String) {
        self.copies.insert(name.to_owned(), text.into());
    }

    /// Appends the texts of the included files to the main file's text.
    pub(super) fn together(&self, text: &Arc<str>) -> Arc<str> {
        if self.copies.is_empty() {
            return Arc::clone(text);
        }
        let mut whole = text.to_string();
        for (name, text) in &self.copies {
            if !whole.ends_with('\n') {
                whole.push('\n');
            }
            whole.push_str(MARK);
            whole.push_str(&Value::from(name.as_str()).to_string());
            whole.push('\n');
            whole.push_str(text);
        }
        whole.into()
    }

    /// Returns the name of a file included by the current file.
    fn name_of(&self, file: &str) -> String {
        let here = self.around.last().map_or(Path::new(""), |around| parent(around));
        let mut name = PathBuf::new();
        for part in here.join(file).components() {
            match part {
                Component::CurDir => {}
                Component::ParentDir
                    if matches!(name.components().next_back(), Some(Component::Normal(_))) =>
                {
                    name.pop();
                }
                part => name.push(part),
            }
        }
        name.to_string_lossy().into_owned()
    }

    fn bytes_of(&self, name: &str) -> Result<Vec<u8>, String> {
        if let Some(copy) = self.copies.get(name) {
            return Ok(copy.as_bytes().to_vec());
        }
        let Some(folder) = &self.disk else { return Err("the run has no copy of the file".to_owned()) };
        read_regular(&folder.join(name)).map_err(|error| match error {
            super::ReadError::Io { source, .. } => source.to_string(),
            super::ReadError::File(error) => error.to_string(),
        })
    }

    /// Returns an upper bound for the size of the copy of a run with one more file.
    fn bytes_with(&self, name: &str, bytes: usize) -> usize {
        let around = |name: &str| COPY_BYTES + ESCAPED_BYTES_MAX * name.len();
        let copies = self.copies.iter().map(|(name, text)| around(name) + text.len());
        self.first + copies.sum::<usize>() + around(name) + bytes
    }
}

fn parent(name: &str) -> &Path {
    Path::new(name).parent().unwrap_or(Path::new(""))
}

/// Reads the included file of a step.
pub(super) fn child(checker: &mut Checker<'_>, node: &Node) -> Option<ChildWorkflow> {
    let file = checker.filled_text(node, "workflow")?;
    let family = &checker.family;
    let name = family.name_of(&file);
    let own = checker.source.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_first = parent(&name) == Path::new("") && own.as_deref() == Some(name.as_str());
    if family.around.contains(&name) || (family.around.is_empty() && is_first) {
        let message = format!("`{file}` includes itself without end");
        checker.wrong(node, message, "repeat steps with `repeat: { until: …, max: N }`");
        return None;
    }
    if family.around.len() >= DEPTH_MAX {
        let message = format!("files are nested deeper than {DEPTH_MAX} levels");
        checker.wrong(node, message, "merge the steps of the inner file into the outer one");
        return None;
    }
    let bytes = match family.bytes_of(&name) {
        Ok(bytes) => bytes,
        Err(why) => {
            let help = "paths of included files are relative to the including file";
            checker.wrong(node, format!("cannot read `{file}`: {why}"), help);
            return None;
        }
    };
    if family.bytes_with(&name, bytes.len()) > FILE_BYTES_MAX {
        let message = format!(
            "this file and its included files exceed {} MiB in total",
            FILE_BYTES_MAX / (1024 * 1024)
        );
        checker.wrong(node, message, "move data into separate files, and reference their paths");
        return None;
    }
    let (count, read) = checker.family.found;
    checker.family.found = (count + 1, read + bytes.len());
    if count >= CHILDREN_MAX || read + bytes.len() > CHILDREN_BYTES_MAX {
        let mebibytes = CHILDREN_BYTES_MAX / (1024 * 1024);
        let message = format!("all included files together exceed {CHILDREN_MAX} steps or {mebibytes} MiB");
        checker.wrong(node, message, "process a list with `foreach`, with one such step inside");
        return None;
    }
    let workflow = parsed(checker, node, (&file, &name), &bytes)?;
    if let Some(service) = workflow.steps().iter().find(|step| matches!(step.work, Work::Service(_))) {
        let message = format!("step `{}` of `{file}` cannot start a service", service.id);
        let help = "start the service by a step of the outer file: it outlives the included steps";
        checker.wrong(node, message, help);
        return None;
    }
    Some(ChildWorkflow { file, folder: parent(&name).to_owned(), workflow, params: Vec::new() })
}

/// Parses an included file. Its errors are shown after the problem at the including step.
fn parsed(
    checker: &mut Checker<'_>,
    node: &Node,
    (file, name): (&str, &str),
    bytes: &[u8],
) -> Option<Workflow> {
    let path = match checker.family.around.last() {
        Some(around) => {
            checker.source.path.parent().unwrap_or(Path::new("")).join(below(parent(around), name))
        }
        None => checker.source.path.parent().unwrap_or(Path::new("")).join(name),
    };
    let source = super::source(bytes, &path);
    let read = source.and_then(|source| {
        let mut family = std::mem::take(&mut checker.family);
        family.copies.insert(name.to_owned(), Arc::clone(&source.text));
        family.around.push(name.to_owned());
        let (workflow, mut family) = super::checked(&source, family);
        family.around.pop();
        checker.family = family;
        workflow
    });
    match read {
        Ok(workflow) => Some(workflow),
        Err(error) => {
            checker.wrong(
                node,
                format!("`{file}` is invalid, see below"),
                "check the file with `waypost check`",
            );
            checker.family.wrong.push(error);
            None
        }
    }
}

/// Returns the path from `folder` to `name`, both relative to the same folder.
fn below(folder: &Path, name: &str) -> PathBuf {
    let mut way: PathBuf = folder.components().map(|_| "..").collect();
    match Path::new(name).strip_prefix(folder) {
        Ok(rest) => rest.to_owned(),
        Err(_) => {
            way.push(name);
            way
        }
    }
}

/// Reads the params for an included file; `None` if one has an error.
pub(super) fn params<'n>(checker: &mut Checker<'_>, node: &'n Node) -> Option<Vec<GivenDraft<'n>>> {
    let Kind::Map(entries) = &node.kind else {
        checker.mismatch(node, "params", "a map", "write `params: { date: \"${{ params.date }}\" }`");
        return None;
    };
    let (mut params, mut wrong) = (Vec::new(), false);
    for (key, value) in entries.iter().filter(|(key, _)| !matches!(key.kind, Kind::List(_) | Kind::Map(_))) {
        let given = match &value.kind {
            Kind::Text(text) if text.contains("${{") => {
                checker.template(value, key.key_text()).map(Given::Filled)
            }
            _ => Some(Given::Plain(value.to_json())),
        };
        if let Some(Given::Plain(plain)) = &given
            && holds_expression(plain)
        {
            let help = "pass the value as one expression, such as `${{ params.regions }}`";
            checker.wrong(value, "a list or map here cannot contain expressions", help);
            wrong = true;
        }
        wrong |= given.is_none();
        params.extend(given.map(|given| (key.key_text().to_owned(), given, value)));
    }
    (!wrong).then_some(params)
}

/// Checks the given params against the declared params, as far as known before the run.
pub(super) fn fit(checker: &mut Checker<'_>, node: &Node, child: &ChildWorkflow, given: &[GivenDraft<'_>]) {
    let declared = || child.workflow.params().iter().map(|param| param.name.as_str());
    for (name, value, place) in given {
        let Some(param) = child.workflow.params().iter().find(|param| param.name == *name) else {
            let hint = checker.nearest(name, declared());
            let message = format!("`{}` has no param `{name}`; params: {}", child.file, listed(declared()));
            checker.problems.push(checker.source.problem(&place.span, message).hint(hint));
            continue;
        };
        if let Given::Plain(value) = value
            && let Err(message) = param.check(value)
        {
            checker.wrong(place, message, "match the declared type of the param");
        }
    }
    for param in child.workflow.params().iter().filter(|param| param.required) {
        if !given.iter().any(|(name, ..)| *name == param.name) {
            let message = format!("`{}` needs its param `{}`", child.file, param.name);
            checker.wrong(node, message, &format!("add `params: {{ {}: … }}`", param.name));
        }
    }
}

/// Returns the error of a file, followed by the errors of its included files.
pub(super) fn error(source: &SourceText, problems: Problems, family: &mut Family) -> FileError {
    FileError::new(source, problems).with_below(std::mem::take(&mut family.wrong))
}
