//! `store`: address of the store for the runs of a workflow. Read before the file is checked, and from files
//! with other errors too.

use std::path::Path;

use super::checker::Checker;
use super::config::Setting;
use super::node::Node;
use super::problem::{FileError, Problems, SourceText};
use super::workflow::Workflow;
use super::{ReadError, node, read_regular, source};

/// `store` of a workflow file, independent of the rest of the file.
#[derive(Debug)]
pub struct NamedStore {
    source: SourceText,
    setting: Setting<String>,
}

impl NamedStore {
    /// Reads the `store` of the file at `path`; `None` if absent or not a text.
    ///
    /// # Errors
    /// - [`ReadError::Io`]: the file cannot be read.
    /// - [`ReadError::File`]: the file is not valid YAML.
    pub fn read(path: &Path) -> Result<Option<Self>, ReadError> {
        Self::parse(&read_regular(path)?, path).map_err(ReadError::File)
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Option<Self>, FileError> {
        let source = source(bytes, path)?;
        let (root, problems) =
            node::read(&source).map_err(|problem| FileError::new(&source, Problems::from(*problem)))?;
        let mut checker = Checker::new(&source, problems);
        let setting = root.get("store").and_then(|node| store(&mut checker, node));
        Ok(setting.map(|setting| Self { source, setting }))
    }

    /// Returns the path of the file, as given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// Returns the address, as written.
    #[must_use]
    pub fn setting(&self) -> &Setting<String> {
        &self.setting
    }

    /// Returns the error of an invalid address.
    #[must_use]
    pub fn wrong(&self, message: impl Into<String>, help: &str) -> FileError {
        let problem = self.source.problem(self.setting.span(), message).help(help);
        FileError::new(&self.source, Problems::from(problem))
    }
}

impl Workflow {
    /// Returns the address of the store for the workflow's runs, as written.
    #[must_use]
    pub fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }
}

/// Reads an address; the kinds of stores are not known here.
pub(super) fn store(checker: &mut Checker<'_>, node: &Node) -> Option<Setting<String>> {
    let value = checker.filled_text(node, "store")?;
    if value.contains("${{") {
        let help = "the store is opened before the run exists: write a literal address, or give one with \
                    `--store`";
        checker.wrong(node, "`store` does not support expressions", help);
        return None;
    }
    Some(Setting::of(checker, node, value))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::NamedStore;

    fn named(text: &str) -> Option<String> {
        let read = NamedStore::parse(text.as_bytes(), Path::new("waypost.yaml"));
        read.ok().flatten().map(|named| format!("{} {}", named.setting.line, named.setting.value))
    }

    #[test]
    fn a_store_is_read_whatever_else_is_wrong() {
        assert_eq!(named("name: x\nstore: sqlite:runs.db\nstesp: []\n").as_deref(), Some("2 sqlite:runs.db"));
        assert_eq!(named("{\"store\": \"file:a\"}").as_deref(), Some("1 file:a"));
        for none in
            ["", "[]", "- run: a", "store:", "store: [a]", "store: 'file:${{ params.x }}'", "store: ["]
        {
            assert_eq!(named(none), None, "{none}");
        }
    }
}
