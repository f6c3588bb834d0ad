//! The keys of a map, with a mark for each key that the import has read.

use std::cell::RefCell;
use std::collections::BTreeSet;

use waypost_workflow::file::Node;

/// The keys of a map.
#[derive(Debug)]
pub(crate) struct Fields<'n> {
    pub(crate) node: &'n Node,
    understood: RefCell<BTreeSet<&'n str>>,
}

impl<'n> Fields<'n> {
    pub(crate) fn new(node: &'n Node) -> Self {
        Self { node, understood: RefCell::default() }
    }

    /// Returns the value of a key and marks the key as read; `None` for null.
    pub(crate) fn take(&self, key: &str) -> Option<&'n Node> {
        let (name, value) = self.node.entries()?.iter().find(|(name, _)| name.key_text() == key)?;
        self.understood.borrow_mut().insert(name.key_text());
        (!value.is_null()).then_some(value)
    }

    /// Marks keys as read: another function reads them, or they have no effect.
    pub(crate) fn pass(&self, keys: &[&str]) {
        let names = self.node.entries().unwrap_or_default().iter().map(|(name, _)| name.key_text());
        self.understood.borrow_mut().extend(names.filter(|name| keys.contains(name)));
    }

    /// Marks all keys as read.
    pub(crate) fn pass_all(&self) {
        let names = self.node.entries().unwrap_or_default().iter().map(|(name, _)| name.key_text());
        self.understood.borrow_mut().extend(names);
    }

    /// Returns the text of a scalar.
    pub(crate) fn word(&self, key: &str) -> Option<&'n str> {
        self.take(key)?.spelled()
    }

    /// Returns the text of a scalar, unless the text is empty.
    pub(crate) fn filled(&self, key: &str) -> Option<&'n str> {
        self.word(key).filter(|text| !text.trim().is_empty())
    }

    /// Returns true if the value of a key is true.
    pub(crate) fn is_true(&self, key: &str) -> bool {
        self.take(key).and_then(Node::truth) == Some(true)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.node.get(key).is_some_and(|value| !value.is_null())
    }

    /// Returns the keys that are not marked as read.
    pub(crate) fn rest(&self) -> Vec<(&'n Node, &'n Node)> {
        let understood = self.understood.borrow();
        let entries = self.node.entries().unwrap_or_default().iter();
        let rest = entries.filter(|(name, _)| !understood.contains(name.key_text()));
        rest.map(|(name, value)| (name, value)).collect()
    }
}
