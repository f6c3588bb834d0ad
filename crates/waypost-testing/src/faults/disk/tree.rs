//! Files and folders in memory, and atomic changes to them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::io::Errno;
use waypost::disk::Kind;

/// Identity of a file or folder independent of its names, like an inode number.
pub(super) type Node = u64;

/// The root folder.
pub(super) const ROOT: Node = 0;

/// An atomic change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Adds a name for a node to a folder; `from` is removed in the same change.
    Name { folder: Node, name: OsString, node: Node, kind: Kind, from: Option<(Node, OsString)> },
    /// Removes a name.
    Unname { folder: Node, name: OsString },
    /// Writes bytes to a file.
    Write { node: Node, offset: usize, bytes: Arc<[u8]> },
    /// Truncates a file.
    Cut { node: Node, len: usize },
}

/// The part of a write that reached the media: bytes `from..to` of the file. The file is then at least `end`
/// bytes long, with zeros in gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) end: usize,
}

/// A file or a folder. The content is shared, so copies of a tree are cheap.
#[derive(Debug, Clone)]
pub(super) enum Inode {
    File(Arc<Vec<u8>>),
    Folder(Arc<BTreeMap<OsString, Node>>),
}

/// All files and folders, with or without names.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    nodes: BTreeMap<Node, Inode>,
}

impl Tree {
    /// Returns a tree with only the root folder.
    pub(super) fn empty() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Inode::Folder(Arc::default()))]) }
    }

    pub(super) fn content(&self, node: Node) -> Option<&Inode> {
        self.nodes.get(&node)
    }

    /// Returns the next unused node number.
    pub(super) fn next_node(&self) -> Node {
        self.nodes.last_key_value().map_or(ROOT, |(node, _)| *node) + 1
    }

    pub(super) fn kind(&self, node: Node) -> Kind {
        match self.content(node) {
            Some(Inode::Folder(_)) => Kind::Folder,
            Some(Inode::File(_)) => Kind::File,
            None => Kind::Other,
        }
    }

    /// Returns the node of a path. Relative paths start at the root too.
    pub(super) fn find(&self, path: &Path) -> io::Result<Node> {
        let mut node = ROOT;
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => node = *self.folder(node)?.get(name).ok_or(Errno::NOENT)?,
                Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL.into()),
            }
        }
        Ok(node)
    }

    /// Returns the parent folder and the last name of a path.
    pub(super) fn place<'a>(&self, path: &'a Path) -> io::Result<(Node, &'a OsStr)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let folder = self.find(path.parent().unwrap_or(Path::new("")))?;
        self.folder(folder)?;
        Ok((folder, name))
    }

    pub(super) fn folder(&self, node: Node) -> io::Result<&BTreeMap<OsString, Node>> {
        match self.content(node) {
            Some(Inode::Folder(names)) => Ok(names),
            Some(Inode::File(_)) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// Returns the bytes of a file.
    pub(super) fn file(&self, node: Node) -> io::Result<&Arc<Vec<u8>>> {
        match self.content(node) {
            Some(Inode::File(bytes)) => Ok(bytes),
            Some(Inode::Folder(_)) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn file_mut(&mut self, node: Node) -> &mut Vec<u8> {
        match self.nodes.entry(node).or_insert_with(|| Inode::File(Arc::default())) {
            Inode::File(bytes) => Arc::make_mut(bytes),
            Inode::Folder(_) => unreachable!("bytes are only ever written to files"),
        }
    }

    fn folder_mut(&mut self, node: Node) -> &mut BTreeMap<OsString, Node> {
        match self.nodes.entry(node).or_insert_with(|| Inode::Folder(Arc::default())) {
            Inode::Folder(names) => Arc::make_mut(names),
            Inode::File(_) => unreachable!("names are only ever kept in folders"),
        }
    }

    /// Applies a change, or the given part of a write.
    ///
    /// Any ordered subset of changes can be applied: a missing node is created on first use, and removing a
    /// missing name does nothing.
    pub(super) fn apply(&mut self, change: &Change, part: Option<Part>) {
        match change {
            Change::Name { folder, name, node, kind, from } => {
                match kind {
                    Kind::Folder => _ = self.folder_mut(*node),
                    Kind::File | Kind::Other => {
                        self.nodes.entry(*node).or_insert_with(|| Inode::File(Arc::default()));
                    }
                }
                if let Some((folder, name)) = from {
                    self.folder_mut(*folder).remove(name);
                }
                self.folder_mut(*folder).insert(name.clone(), *node);
            }
            Change::Unname { folder, name } => _ = self.folder_mut(*folder).remove(name),
            Change::Write { node, offset, bytes } => {
                let end = offset + bytes.len();
                let part = part.unwrap_or(Part { from: *offset, to: end, end });
                let file = self.file_mut(*node);
                if file.len() < part.end.max(part.to) {
                    file.resize(part.end.max(part.to), 0);
                }
                file[part.from..part.to].copy_from_slice(&bytes[part.from - offset..part.to - offset]);
            }
            Change::Cut { node, len } => self.file_mut(*node).truncate(*len),
        }
    }

    /// Removes every node that is not reachable by a path.
    pub(super) fn forget_nameless(&mut self) {
        let mut kept = BTreeMap::new();
        let mut found = vec![ROOT];
        while let Some(node) = found.pop() {
            if kept.contains_key(&node) {
                continue;
            }
            let Some(content) = self.nodes.remove(&node) else { continue };
            if let Inode::Folder(names) = &content {
                found.extend(names.values());
            }
            kept.insert(node, content);
        }
        self.nodes = kept;
    }

    /// Returns a hash of the differences from `base`: equal for equal trees, and distinct for others in
    /// practice.
    pub(super) fn fingerprint(&self, base: &Self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        for (node, content) in &self.nodes {
            node.hash(&mut hasher);
            match (content, base.content(*node)) {
                (Inode::File(ours), Some(Inode::File(theirs)))
                    if Arc::ptr_eq(ours, theirs) || ours == theirs => {}
                (Inode::Folder(ours), Some(Inode::Folder(theirs)))
                    if Arc::ptr_eq(ours, theirs) || ours == theirs => {}
                (Inode::File(bytes), _) => bytes.hash(&mut hasher),
                (Inode::Folder(names), _) => names.hash(&mut hasher),
            }
        }
        hasher.finish()
    }
}
