//! YAML document outside the workflow language, for programs that read files of other tools: tree, lines, and
//! errors with snippets.

use std::path::Path;

use super::node::{self, Kind, Node};
use super::params::ParamProblem;
use super::problem::{FileError, Problems, SourceText};

/// YAML file with the place of each value, under the limits of a workflow file.
#[derive(Debug)]
pub struct Document {
    source: SourceText,
    root: Node,
}

impl Document {
    /// Reads the bytes of a file; `path` is used in messages only.
    ///
    /// # Errors
    /// All violations of the YAML subset of workflow files: not text, too large, a duplicate key in a map, a
    /// tag.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, FileError> {
        let source = super::source(bytes, path)?;
        let (root, problems) =
            node::read(&source).map_err(|problem| FileError::new(&source, Problems::from(*problem)))?;
        match problems.is_empty() {
            true => Ok(Self { source, root }),
            false => Err(FileError::new(&source, problems)),
        }
    }

    /// Returns the root value.
    #[must_use]
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Returns the first line of a value, from 1.
    #[must_use]
    pub fn line(&self, node: &Node) -> usize {
        self.source.position(node.span.start.min(self.source.text.len())).0
    }

    /// Returns an error about a value, with the correction.
    #[must_use]
    pub fn wrong(&self, node: &Node, message: impl Into<String>, help: impl Into<String>) -> FileError {
        let problem = self.source.problem(&node.span, message).help(help);
        FileError::new(&self.source, Problems::from(problem))
    }

    /// Returns an error about params in the root map. `None` if none of them exists there.
    #[must_use]
    pub fn wrong_params(&self, wrong: &[ParamProblem]) -> Option<FileError> {
        let mut problems = Problems::default();
        for ParamProblem { name, message, hint } in wrong {
            let Some(node) = self.root.get(name) else { continue };
            let problem = self.source.problem(&node.span, message);
            problems.push(match hint {
                Some(hint) => problem.help(hint),
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

    /// Returns the entries of a map, in order.
    #[must_use]
    pub fn entries(&self) -> Option<&[(Node, Node)]> {
        match &self.kind {
            Kind::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// Returns the value of a key in a map.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries()?.iter().find(|(name, _)| name.key_text() == key).map(|(_, value)| value)
    }

    /// Returns whether the value is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Returns the value of a boolean.
    #[must_use]
    pub fn truth(&self) -> Option<bool> {
        match self.kind {
            Kind::Bool(truth) => Some(truth),
            _ => None,
        }
    }
}
