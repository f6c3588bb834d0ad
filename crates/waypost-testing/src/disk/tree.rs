//! Files and folders in memory, and the changes that are made to them one at a time.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::io::Errno;
use waypost::disk::Kind;

/// What stands for a file or folder while its names come and go, as an inode number does.
pub(super) type Node = u64;

/// The folder that everything is in.
pub(super) const ROOT: Node = 0;

/// A change, as small as a disk can lose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A folder has this name for that node from now on; with `from`, and in the same instant, that one is gone.
    Name { folder: Node, name: OsString, node: Node, kind: Kind, from: Option<(Node, OsString)> },
    /// A name is gone.
    Unname { folder: Node, name: OsString },
    /// Bytes of a file.
    Write { node: Node, offset: usize, bytes: Arc<[u8]> },
    /// A file ends here now.
    Cut { node: Node, len: usize },
}

/// Which part of a write reached the media: its bytes from `from` up to `to`, both counted in the file; the file
/// is then at least `end` long, with zeros where nothing ever stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) end: usize,
}

/// A file or a folder. Shared, so that a copy of a tree costs little and shares what was not changed since.
#[derive(Debug, Clone)]
pub(super) enum Content {
    File(Arc<Vec<u8>>),
    Folder(Arc<BTreeMap<OsString, Node>>),
}

/// All files and folders, with names or without.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    nodes: BTreeMap<Node, Content>,
}

impl Tree {
    /// Nothing but the root folder.
    pub(super) fn empty() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Content::Folder(Arc::default()))]) }
    }

    pub(super) fn content(&self, node: Node) -> Option<&Content> {
        self.nodes.get(&node)
    }

    /// The number behind the largest one in use.
    pub(super) fn next_node(&self) -> Node {
        self.nodes.last_key_value().map_or(ROOT, |(node, _)| *node) + 1
    }

    pub(super) fn kind(&self, node: Node) -> Kind {
        match self.content(node) {
            Some(Content::Folder(_)) => Kind::Folder,
            Some(Content::File(_)) => Kind::File,
            None => Kind::Other,
        }
    }

    /// Finds a node by its path; the path is taken from the root, whether it is absolute or not.
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

    /// Finds the folder that a path's last name is in, or would be in.
    pub(super) fn place<'a>(&self, path: &'a Path) -> io::Result<(Node, &'a OsStr)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let folder = self.find(path.parent().unwrap_or(Path::new("")))?;
        self.folder(folder)?;
        Ok((folder, name))
    }

    pub(super) fn folder(&self, node: Node) -> io::Result<&BTreeMap<OsString, Node>> {
        match self.content(node) {
            Some(Content::Folder(names)) => Ok(names),
            Some(Content::File(_)) => Err(Errno::NOTDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// The bytes of a file.
    pub(super) fn file(&self, node: Node) -> io::Result<&Arc<Vec<u8>>> {
        match self.content(node) {
            Some(Content::File(bytes)) => Ok(bytes),
            Some(Content::Folder(_)) => Err(Errno::ISDIR.into()),
            None => Err(Errno::NOENT.into()),
        }
    }

    pub(super) fn file_mut(&mut self, node: Node) -> &mut Vec<u8> {
        match self.nodes.entry(node).or_insert_with(|| Content::File(Arc::default())) {
            Content::File(bytes) => Arc::make_mut(bytes),
            Content::Folder(_) => unreachable!("bytes are only ever written to files"),
        }
    }

    fn folder_mut(&mut self, node: Node) -> &mut BTreeMap<OsString, Node> {
        match self.nodes.entry(node).or_insert_with(|| Content::Folder(Arc::default())) {
            Content::Folder(names) => Arc::make_mut(names),
            Content::File(_) => unreachable!("names are only ever kept in folders"),
        }
    }

    /// Makes a change; of a write, only the part of it that is given.
    ///
    /// Any subset of changes can be made as long as they come in their order: a node that was never named is made
    /// when something happens to it, and a name that is not there is gone already.
    pub(super) fn apply(&mut self, change: &Change, part: Option<Part>) {
        match change {
            Change::Name { folder, name, node, kind, from } => {
                match kind {
                    Kind::Folder => _ = self.folder_mut(*node),
                    Kind::File | Kind::Other => {
                        self.nodes.entry(*node).or_insert_with(|| Content::File(Arc::default()));
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

    /// Forgets every node that no path leads to.
    pub(super) fn forget_nameless(&mut self) {
        let mut kept = BTreeMap::new();
        let mut found = vec![ROOT];
        while let Some(node) = found.pop() {
            if kept.contains_key(&node) {
                continue;
            }
            let Some(content) = self.nodes.remove(&node) else { continue };
            if let Content::Folder(names) = &content {
                found.extend(names.values());
            }
            kept.insert(node, content);
        }
        self.nodes = kept;
    }

    /// A number that is equal for trees that differ from `base` in the same way, and practically never for others.
    pub(super) fn fingerprint(&self, base: &Self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        for (node, content) in &self.nodes {
            node.hash(&mut hasher);
            match (content, base.content(*node)) {
                (Content::File(ours), Some(Content::File(theirs)))
                    if Arc::ptr_eq(ours, theirs) || ours == theirs => {}
                (Content::Folder(ours), Some(Content::Folder(theirs)))
                    if Arc::ptr_eq(ours, theirs) || ours == theirs => {}
                (Content::File(bytes), _) => bytes.hash(&mut hasher),
                (Content::Folder(names), _) => names.hash(&mut hasher),
            }
        }
        hasher.finish()
    }
}
