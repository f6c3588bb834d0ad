//! The state of an import: notes, comments, ids, and readable names.

use std::collections::BTreeMap;

use waypost_workflow::file::{Document, Node};

use super::changes::Changes;
use super::ids::Ids;
use crate::Note;
use crate::variables::names::Scope;
use crate::yaml::document::Map;

/// Substrings of variable names that Prodigy masks, without `_` and `-`.
///
/// # Source
/// `SensitivePatternConfig`, Prodigy 0.4.4.
const MASKED: [&str; 12] = [
    "password",
    "passwd",
    "pwd",
    "token",
    "apikey",
    "secret",
    "auth",
    "bearer",
    "privatekey",
    "sshkey",
    "accesskey",
    "clientsecret",
];

/// The state of the import of a file.
#[derive(Debug)]
pub(crate) struct Import<'d> {
    pub(crate) document: &'d Document,
    pub(crate) notes: Vec<Note>,
    /// Comments of the entries under construction, innermost last.
    pub(crate) comments: Vec<Vec<String>>,
    pub(crate) ids: Ids,
    pub(crate) scope: Scope,
    /// Params of the made file, with their descriptions.
    pub(crate) params: BTreeMap<String, String>,
    /// Values of the file's variables, for numbers given as a variable.
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) is_map_reduce: bool,
    /// The retry for steps of an item without their own retry.
    pub(crate) item_retry: Option<Map>,
    /// Variables that a command of the file computes: the name, and the id of the step that runs the command.
    pub(crate) computed: Vec<(String, String)>,
    /// Variables of the caller used in texts: the name, and the id of the step that prints the value.
    pub(crate) printed: Vec<(String, String)>,
    pub(crate) changes: Changes,
    /// Names of variables with values that Prodigy masks, and the line of the first use.
    pub(crate) masked: BTreeMap<String, usize>,
    /// The timeouts of an agent and of a command in the steps of an item.
    pub(crate) item_timeouts: [Option<String>; 2],
    pub(crate) has_agent: bool,
}

impl<'d> Import<'d> {
    pub(crate) fn new(document: &'d Document, workflow: &str) -> Self {
        Self {
            document,
            notes: Vec::new(),
            comments: vec![Vec::new()],
            ids: Ids::default(),
            scope: Scope { workflow: workflow.to_owned(), ..Scope::default() },
            params: BTreeMap::new(),
            values: BTreeMap::new(),
            is_map_reduce: false,
            item_retry: None,
            computed: Vec::new(),
            printed: Vec::new(),
            changes: Changes::default(),
            masked: BTreeMap::new(),
            item_timeouts: [None, None],
            has_agent: false,
        }
    }

    pub(crate) fn line(&self, node: &Node) -> usize {
        self.document.line(node)
    }

    /// Adds a note, and its comment in the made file.
    pub(crate) fn note(
        &mut self,
        node: &Node,
        key: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.note_at(self.line(node), key, message, help);
    }

    pub(crate) fn note_at(
        &mut self,
        line: usize,
        key: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let note =
            Note { line, also: Vec::new(), key: key.to_owned(), message: message.into(), help: help.into() };
        let is_same = |known: &&mut Note| {
            (&known.key, &known.message, &known.help) == (&note.key, &note.message, &note.help)
        };
        if let Some(known) = self.notes.iter_mut().find(is_same) {
            if line != known.line && !known.also.contains(&line) {
                known.also.push(line);
            }
            return;
        }
        let comments = self.comments.last_mut().expect("there is one for the file");
        comments.push(format!("Line {}, `{}`: {};", note.line, note.key, note.message));
        comments.push(format!("  {}", note.help));
        self.notes.push(note);
    }

    /// Returns the result of `make`, and the comments of its notes.
    pub(crate) fn commented<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> (T, Vec<String>) {
        self.comments.push(Vec::new());
        let made = make(self);
        (made, self.comments.pop().unwrap_or_default())
    }

    /// Declares a param, and returns its name.
    pub(crate) fn param(&mut self, name: &str, why: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = name.chars().map(plain).take(60).collect();
        let name = name.split('_').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("_");
        let name = match name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            true => name,
            false => format!("given_{name}"),
        };
        self.params.entry(name.clone()).or_insert_with(|| why.to_owned());
        name
    }

    /// Records a variable with a name that Prodigy masks.
    pub(crate) fn mask(&mut self, name: &str, line: usize) {
        let plain = name.to_ascii_lowercase().replace(['_', '-'], "");
        if MASKED.iter().any(|part| plain.contains(part)) {
            self.masked.entry(name.to_owned()).or_insert(line);
        }
    }

    /// Returns true if `value` is the expression of the computed variable `name`.
    pub(crate) fn is_computed(&self, name: &str, value: &str) -> bool {
        self.computed.iter().any(|(known, id)| known == name && value == format!("steps.{id}.outputs.result"))
    }

    /// Adds the computed variables of the file to the variables of a step; the step's variables take precedence.
    pub(crate) fn with_computed(&self, mut env: Vec<(String, String)>) -> Vec<(String, String)> {
        for (name, id) in &self.computed {
            if !env.iter().any(|(known, _)| known == name) {
                env.push((name.clone(), format!("${{{{ steps.{id}.outputs.result }}}}")));
            }
        }
        env
    }
}
