//! YAML that is no workflow of ours, for programs that read what others wrote: a tree, the lines of its parts, and
//! errors that show them.

use std::path::Path;

use super::node::{self, Kind, Node};
use super::problem::{FileError, Problems, Source};

/// A file of YAML with the place of each value, under the limits of a workflow file.
#[derive(Debug)]
pub struct Document {
    source: Source,
    root: Node,
}

impl Document {
    /// Reads the bytes of a file; `path` is only for messages.
    ///
    /// # Errors
    /// All that makes it no YAML as a workflow file is: no text, too large, a key that stands twice in a map, a tag.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, FileError> {
        let source = super::source(bytes, path)?;
        let (root, problems) =
            node::read(&source).map_err(|problem| FileError::new(&source, Problems::from(*problem)))?;
        match problems.is_empty() {
            true => Ok(Self { source, root }),
            false => Err(FileError::new(&source, problems)),
        }
    }

    /// Returns what the file is: its outermost value.
    #[must_use]
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Returns the line in which a value begins, from 1.
    #[must_use]
    pub fn line(&self, node: &Node) -> usize {
        self.source.position(node.span.start.min(self.source.text.len())).0
    }

    /// Says that something about a value is wrong, and what would be right.
    #[must_use]
    pub fn wrong(&self, node: &Node, message: impl Into<String>, help: impl Into<String>) -> FileError {
        let problem = self.source.problem(&node.span, message).help(help);
        FileError::new(&self.source, Problems::from(problem))
    }

    /// Says that values of keys of the outermost map are wrong, each with what is wrong and perhaps what would be right;
    /// none if none of these keys stands there.
    #[must_use]
    pub fn wrong_values<'k>(
        &self,
        wrong: impl IntoIterator<Item = (&'k str, &'k str, Option<&'k str>)>,
    ) -> Option<FileError> {
        let mut problems = Problems::default();
        for (key, message, help) in wrong {
            let Some(node) = self.root.get(key) else { continue };
            let problem = self.source.problem(&node.span, message);
            problems.push(match help {
                Some(help) => problem.help(help),
                None => problem,
            });
        }
        (!problems.is_empty()).then(|| FileError::new(&self.source, problems))
    }
}

impl Node {
    /// Returns the items of a list.
    #[must_use]
    pub fn items(&self) -> Option<&[Node]> {
        match &self.kind {
            Kind::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the entries of a map, in their order.
    #[must_use]
    pub fn entries(&self) -> Option<&[(Node, Node)]> {
        match &self.kind {
            Kind::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns what stands under a key of a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries()?.iter().find(|(name, _)| name.key_text() == key).map(|(_, value)| value)
    }

    /// Says whether nothing stands there.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Returns a truth value.
    #[must_use]
    pub fn truth(&self) -> Option<bool> {
        match self.kind {
            Kind::Bool(truth) => Some(truth),
            _ => None,
        }
    }
}
