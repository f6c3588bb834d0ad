//! A workflow of Prodigy as one of ours: its steps, its items, its variables, and what of it has no place here.
//!
//! ```text
//!   Document -- top, map --> steps -- step, after --> YAML
//!                  \______ texts: names, shell, condition ______/
//! ```
//!
//! Nothing is left out without a word: every key that is not understood, and every one that has no equivalent, is a
//! [`Note`], which also stands as a comment at its place in the file that is made.
//!
//! # Source
//! The format: <https://github.com/iepathos/prodigy>.

mod after;
mod condition;
mod fields;
mod map;
mod names;
mod shell;
mod step;
mod texts;
mod top;
mod write;

use std::collections::BTreeMap;

use waypost_workflow::file::{Document, FileError, Node};

use crate::draft::Ids;
use names::Scope;

/// Something that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    /// The line of the file that was read, from 1.
    pub(crate) line: usize,
    pub(crate) key: String,
    /// What is left out, or is another thing here.
    pub(crate) message: String,
    /// What to do instead.
    pub(crate) help: String,
}

/// A workflow file that was made.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) text: String,
    pub(crate) notes: Vec<Note>,
}

/// Makes a workflow file of one of Prodigy; `from` is where it was read, `stem` the name of a workflow without one.
///
/// # Errors
/// The place where it is no workflow of Prodigy.
pub(crate) fn import(document: &Document, from: &str, stem: &str) -> Result<Imported, FileError> {
    top::import(document, from, stem)
}

/// What is known while a file is made.
#[derive(Debug)]
struct Import<'d> {
    document: &'d Document,
    notes: Vec<Note>,
    /// Comments for what is being written, innermost last.
    comments: Vec<Vec<String>>,
    ids: Ids,
    scope: Scope,
    /// What must be given by the command line, and why.
    params: BTreeMap<String, String>,
    /// Values of variables of the file, for numbers that name one.
    values: BTreeMap<String, String>,
    is_map_reduce: bool,
    /// How long a step of an item may take: one of an agent, and one of a command.
    item_timeouts: [Option<String>; 2],
    has_agent: bool,
}

impl<'d> Import<'d> {
    fn new(document: &'d Document, workflow: &str) -> Self {
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

    fn line(&self, node: &Node) -> usize {
        self.document.line(node)
    }

    /// Tells of something that is not as it was, in the list and as a comment.
    fn note(&mut self, node: &Node, key: &str, message: impl Into<String>, help: impl Into<String>) {
        self.note_at(self.line(node), key, message, help);
    }

    fn note_at(&mut self, line: usize, key: &str, message: impl Into<String>, help: impl Into<String>) {
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
    fn commented<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> (T, Vec<String>) {
        self.comments.push(Vec::new());
        let made = make(self);
        (made, self.comments.pop().unwrap_or_default())
    }

    /// Has a value given by the command line, since nothing here gives it.
    fn param(&mut self, name: &str, why: &str) -> String {
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
