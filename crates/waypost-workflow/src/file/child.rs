//! `workflow`: a step that runs another file, and where the text of that file comes from.
//!
//! What a run keeps of its definition is one text: that of the file, and behind it those of all files that are named in it,
//! each after a line `--- # file: "NAME"`. In YAML a line that begins with `---` begins another document, also within a
//! block of text, so that no single file can have such a line in it. A name is the path from the folder of the first file.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::body::holds_expression;
use super::checker::Checker;
use super::node::{Kind, Node};
use super::problem::{FileError, Problems, Source};
use super::work::Work;
use super::workflow::Workflow;
use super::{FILE_BYTES_MAX, read_regular};
use crate::expr::{ExprError, Scope, Template};
use crate::suggest::listed;

/// How a line begins that stands before the text of another file.
const MARK: &str = "--- # file: ";
/// What stands around the name of a file and its text in the copy of a run.
const COPY_BYTES: usize = MARK.len() + 4;
/// Bytes that JSON needs at most for one of a text.
const ESCAPED_BYTES_MAX: usize = 6;
/// How many files one within another may be: a branch is opened for each.
const DEPTH_MAX: usize = 8;
/// Steps that run another file, in all files together: each is a copy of all that is in that file, so that ten files that
/// name one another ten times would be ten thousand million.
const CHILDREN_MAX: usize = 1_000;
/// Bytes that are read for them in all, as often as each is named.
const CHILDREN_BYTES_MAX: usize = 4 * FILE_BYTES_MAX;

/// Another file that a step runs.
#[derive(Debug, Clone)]
pub struct Child {
    /// Its path, as the step names it.
    pub(super) file: String,
    /// The folder in which its steps run, from that of the file of the run.
    pub(super) folder: PathBuf,
    pub(super) workflow: Workflow,
    /// The params that it is given, in the order of the file.
    pub(super) params: Vec<(String, Given)>,
}

/// A param that another file is given.
#[derive(Debug, Clone)]
pub(super) enum Given {
    /// As it stands.
    Plain(Value),
    /// What the expressions in it come to.
    Filled(Template),
}

/// A param as it stands in the file.
pub(super) type GivenDraft<'n> = (String, Given, &'n Node);

impl Child {
    /// Its path, as the step names it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The folder in which its steps run, from that of the run.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What is in it.
    #[must_use]
    pub fn workflow(&self) -> &Workflow {
        &self.workflow
    }

    /// What its params come to, of which some are texts that are still to be read as their types.
    ///
    /// # Errors
    /// The expression that could not be worked out.
    pub(crate) fn given(&self, scope: &Scope) -> Result<super::GivenParams, ExprError> {
        let (mut file, mut text) = (Map::new(), Vec::new());
        for (name, given) in &self.params {
            match given {
                Given::Plain(value) => drop(file.insert(name.clone(), value.clone())),
                Given::Filled(template) => match template.evaluate(scope)? {
                    // A text in which there is more than an expression is one whose type nobody knows.
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

/// Where the files that one names are, and which of them are being read.
#[derive(Debug, Default)]
pub(crate) struct Family {
    /// The length of the first file, which has the others behind it in the copy of a run.
    pub(super) first: usize,
    /// The texts of all that were found so far, by name.
    copies: BTreeMap<String, Arc<str>>,
    /// The folder of the first file, if others are read from the disk.
    disk: Option<PathBuf>,
    /// The names of those around the one that is read, and its own; none for the first.
    around: Vec<String>,
    /// How many steps that run one were found so far, and how much was read for them.
    found: (usize, usize),
    /// What is wrong with those within.
    pub(super) wrong: Vec<FileError>,
}

/// Separates the text of a workflow, as [`Workflow::text`] returns it, from those of the files that are named in it, by their
/// paths from its folder. One whose last line had no end has been given one if another stands behind it.
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
    /// Others are read from the disk, beside the file at `path`, unless they are in its text already.
    pub(super) fn on_disk(path: &Path) -> Self {
        Self { disk: Some(path.parent().unwrap_or(Path::new("")).to_owned()), ..Self::default() }
    }

    /// Separates a text from those of the files that it names.
    pub(super) fn separate<'t>(&mut self, text: &'t str) -> &'t str {
        let (own, copies) = separated(text);
        self.copies.extend(copies.into_iter().map(|(name, text)| (name, text.into())));
        own
    }

    /// Puts the texts of the files that one names behind its own.
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

    /// Returns the name of a file that is named in the one that is read.
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
        let Some(folder) = &self.disk else { return Err("there is no copy of it".to_owned()) };
        read_regular(&folder.join(name)).map_err(|error| match error {
            super::ReadError::Io { source, .. } => source.to_string(),
            super::ReadError::File(error) => error.to_string(),
        })
    }

    /// Returns how long the copy of a run is at most with one file more.
    fn bytes_with(&self, name: &str, bytes: usize) -> usize {
        let around = |name: &str| COPY_BYTES + ESCAPED_BYTES_MAX * name.len();
        let copies = self.copies.iter().map(|(name, text)| around(name) + text.len());
        self.first + copies.sum::<usize>() + around(name) + bytes
    }
}

fn parent(name: &str) -> &Path {
    Path::new(name).parent().unwrap_or(Path::new(""))
}

/// Reads the file that a step names.
pub(super) fn child(checker: &mut Checker<'_>, node: &Node) -> Option<Child> {
    let file = checker.filled_text(node, "workflow")?;
    let family = &checker.family;
    let name = family.name_of(&file);
    let own = checker.source.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_first = parent(&name) == Path::new("") && own.as_deref() == Some(name.as_str());
    if family.around.contains(&name) || (family.around.is_empty() && is_first) {
        let message = format!("`{file}` runs itself, and would never end");
        checker.wrong(node, message, "repeat steps with `repeat: { until: …, max: N }`");
        return None;
    }
    if family.around.len() >= DEPTH_MAX {
        let message = format!("more than {DEPTH_MAX} files within one another");
        checker.wrong(node, message, "put the steps of one into the other");
        return None;
    }
    let bytes = match family.bytes_of(&name) {
        Ok(bytes) => bytes,
        Err(why) => {
            let help = "a file is looked for in the folder of the one that names it";
            checker.wrong(node, format!("cannot read `{file}`: {why}"), help);
            return None;
        }
    };
    if family.bytes_with(&name, bytes.len()) > FILE_BYTES_MAX {
        let message = format!(
            "this file and those that it names are larger than {} MiB together",
            FILE_BYTES_MAX / (1024 * 1024)
        );
        checker.wrong(node, message, "a workflow names data files, it does not hold them");
        return None;
    }
    let (count, read) = checker.family.found;
    checker.family.found = (count + 1, read + bytes.len());
    if count >= CHILDREN_MAX || read + bytes.len() > CHILDREN_BYTES_MAX {
        let mebibytes = CHILDREN_BYTES_MAX / (1024 * 1024);
        let message = format!(
            "more than {CHILDREN_MAX} steps that run another file, or {mebibytes} MiB of them, in all files together"
        );
        checker.wrong(node, message, "work on a list with `foreach`, with one such step in it");
        return None;
    }
    let workflow = parsed(checker, node, (&file, &name), &bytes)?;
    if let Some(service) = workflow.steps().iter().find(|step| matches!(step.work, Work::Service(_))) {
        let message =
            format!("step `{}` of `{file}` starts a service, which cannot be started here", service.id);
        let help = "start it by a step of the outer file: it lives on beside all that comes after it";
        checker.wrong(node, message, help);
        return None;
    }
    Some(Child { file, folder: parent(&name).to_owned(), workflow, params: Vec::new() })
}

/// Reads the text of another file; what is wrong with it is told behind the problem that it is wrong.
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
                format!("`{file}` is wrong, as is shown below"),
                "run `waypost check` with it",
            );
            checker.family.wrong.push(error);
            None
        }
    }
}

/// The way to a name from a folder, both seen from the same place.
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

/// Reads the params that a file is given; `None` if one of them is wrong.
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
            let help = "give it as one expression, such as `${{ params.regions }}`";
            checker.wrong(value, "an expression cannot stand within a list or a map here", help);
            wrong = true;
        }
        wrong |= given.is_none();
        params.extend(given.map(|given| (key.key_text().to_owned(), given, value)));
    }
    (!wrong).then_some(params)
}

/// Checks that a file is given what it wants, as far as that is known before it runs.
pub(super) fn fit(checker: &mut Checker<'_>, node: &Node, child: &Child, given: &[GivenDraft<'_>]) {
    let declared = || child.workflow.params().iter().map(|param| param.name.as_str());
    for (name, value, place) in given {
        let Some(param) = child.workflow.params().iter().find(|param| param.name == *name) else {
            let hint = checker.nearest(name, declared());
            let message = format!("`{}` has no param `{name}`; it has {}", child.file, listed(declared()));
            checker.problems.push(checker.source.problem(&place.span, message).hint(hint));
            continue;
        };
        if let Given::Plain(value) = value
            && let Err(message) = param.check(value)
        {
            checker.wrong(place, message, "give it what it is declared as");
        }
    }
    for param in child.workflow.params().iter().filter(|param| param.required) {
        if !given.iter().any(|(name, ..)| *name == param.name) {
            let message = format!("`{}` is not given its param `{}`", child.file, param.name);
            checker.wrong(node, message, &format!("add `params: {{ {}: … }}`", param.name));
        }
    }
}

/// An error with what is wrong in the files that one names behind what is wrong with itself.
pub(super) fn error(source: &Source, problems: Problems, family: &mut Family) -> FileError {
    FileError::new(source, problems).with_below(std::mem::take(&mut family.wrong))
}
