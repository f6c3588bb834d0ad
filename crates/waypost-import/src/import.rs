//! The state of one import: notes, comments, ids, and the names that expressions may read.

use std::collections::BTreeMap;

use waypost_workflow::file::{Document, Node};

use super::Note;
use super::draft::Ids;
use super::names::Scope;

/// What is known while a file is made.
#[derive(Debug)]
pub(super) struct Import<'d> {
    pub(super) document: &'d Document,
    pub(super) notes: Vec<Note>,
    /// Comments for what is being written, innermost last.
    pub(super) comments: Vec<Vec<String>>,
    pub(super) ids: Ids,
    pub(super) scope: Scope,
    /// What must be given by the command line, and why.
    pub(super) params: BTreeMap<String, String>,
    /// Values of variables of the file, for numbers that name one.
    pub(super) values: BTreeMap<String, String>,
    pub(super) is_map_reduce: bool,
    /// How long a step of an item may take: one of an agent, and one of a command.
    pub(super) item_timeouts: [Option<String>; 2],
    pub(super) has_agent: bool,
}

impl<'d> Import<'d> {
    pub(super) fn new(document: &'d Document, workflow: &str) -> Self {
        Self {
            document,
            notes: Vec::new(),
            comments: vec![Vec::new()],
            ids: Ids::default(),
            scope: Scope { workflow: workflow.to_owned(), ..Scope::default() },
            params: BTreeMap::new(),
            values: BTreeMap::new(),
            is_map_reduce: false,
            item_timeouts: [None, None],
            has_agent: false,
        }
    }

    pub(super) fn line(&self, node: &Node) -> usize {
        self.document.line(node)
    }

    /// Tells of something that is not as it was, in the list and as a comment.
    pub(super) fn note(
        &mut self,
        node: &Node,
        key: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.note_at(self.line(node), key, message, help);
    }

    pub(super) fn note_at(
        &mut self,
        line: usize,
        key: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let note = Note { line, key: key.to_owned(), message: message.into(), help: help.into() };
        if self.notes.contains(&note) {
            return;
        }
        let comments = self.comments.last_mut().expect("there is one for the file");
        comments.push(format!("Line {}, `{}`: {};", note.line, note.key, note.message));
        comments.push(format!("  {}", note.help));
        self.notes.push(note);
    }

    /// Does something, and returns the comments that came of it.
    pub(super) fn commented<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> (T, Vec<String>) {
        self.comments.push(Vec::new());
        let made = make(self);
        (made, self.comments.pop().unwrap_or_default())
    }

    /// Has a value given by the command line, since nothing here gives it.
    pub(super) fn param(&mut self, name: &str, why: &str) -> String {
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
}
