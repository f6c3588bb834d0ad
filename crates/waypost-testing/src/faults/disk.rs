//! A simulated disk in memory that can lose power, with every state that a real disk could keep.
//!
//! [`SimDisk`] is a [`Disk`]. A test can cut the power before any call, and let any call fail with a
//! realistic error. [`SimDisk::crash_states`] lists every state of the media after a power cut.
//! [`first_loss`] applies all of this to a program and searches for a state that breaks its promises. This
//! file owns the disk; `tree` holds the files, `crash` the states after a power cut, `fault` the errors, and
//! `survey` the search.
//!
//! # The model
//!
//! Programs see a cache, in which every call takes effect at once and in order. The media follow later. Each
//! call that modifies the disk is a **change**. A change reaches the media at any later time, before or after
//! any other change. Only a sync guarantees durability:
//!
//! - A write or truncation waits for [`sync`](waypost::disk::DiskFile::sync) of the file.
//! - An added or removed name waits for [`sync_dir`](Disk::sync_dir) of its folder, and only for that. A sync
//!   of a file does not save its name, and a sync of a folder does not save the bytes of its files.
//! - A rename is a single change. Between two folders it waits for a sync of both.
//!
//! After a power cut, the media hold all durable changes in order, and **any subset** of the others. A write
//! of the subset may be partial: cut at a multiple of 512 bytes or 4 KiB of the file, with either half
//! present. The new length of the file may arrive before the bytes; zeros then fill the gap.
//!
//! The model assumes the following; where an assumption does not hold, other tests are needed:
//!
//! 1. A successful sync is durable. A drive with a lying cache loses data.
//! 2. Durable data stays intact: a power cut affects only bytes being written, even within a sector. For
//!    decay of media see [`crate::faults::damage`].
//! 3. A sector of 512 bytes is written atomically.
//! 4. The file system recovers its own structures, and a rename is atomic (journal or copy-on-write). Bytes
//!    of other files never appear in ours.
//!
//! The model is stricter than any single file system. For example, ext4 saves the name of a new file with its
//! bytes, and every journal keeps the order of names. A safe program relies on neither.
//!
//! After a **failed sync**, the cache keeps the bytes as clean, and they are never written. Reads return them
//! until the power cut, and a second sync succeeds without effect. Linux behaves this way, so a program must
//! not retry a failed sync.

mod crash;
mod fault;
mod file;
mod survey;
mod tree;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use waypost::disk::{Disk, DiskFile, Entry, Kind, Metadata};

pub use crash::{CrashStates, EXHAUSTIVE_MAX, Sampling};
pub use fault::{Action, DiskFault, Refusal};
pub use survey::{Loss, Survey, first_loss};

use crash::Logged;
use tree::{Change, Inode, Node, ROOT, Tree};

/// A call to the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCall {
    /// The action.
    pub action: Action,
    /// The path argument: the source of a rename or link; for an open file, the path at open.
    pub path: PathBuf,
}

/// A disk in memory. A clone is a handle to the same disk; [`SimDisk::fork`] copies the disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Clone)]
struct DiskState {
    /// The durable state.
    media: Tree,
    /// Changes after that state, from the first change that may be lost.
    log: Vec<Logged>,
    /// The state that programs see.
    cache: Tree,
    next_node: Node,
    calls: Vec<DiskCall>,
    dies_at: Option<u64>,
    faults: Vec<(std::ops::RangeInclusive<u64>, DiskFault)>,
    /// The power cut from which this disk resulted, if any.
    origin: Option<crash::Origin>,
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// Returns an empty disk without planned faults.
    #[must_use]
    pub fn new() -> Self {
        Self::mounted(Tree::empty(), None)
    }

    /// Returns a disk with a durable empty folder in its root.
    ///
    /// # Panics
    /// If `name` is not a single folder name.
    #[must_use]
    pub fn with_folder(name: &str) -> Self {
        let disk = Self::new();
        disk.create_dir(Path::new(name)).expect("one name in an empty root");
        disk.settle();
        disk
    }

    /// Returns a disk with this tree on the media, as after power-on.
    fn mounted(media: Tree, origin: Option<crash::Origin>) -> Self {
        let state = DiskState {
            cache: media.clone(),
            next_node: media.next_node(),
            media,
            log: Vec::new(),
            calls: Vec::new(),
            dies_at: None,
            faults: Vec::new(),
            origin,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        // Every change is atomic, so a panic of another test thread leaves a valid disk.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an independent copy of the disk, including unsynced changes, calls and faults.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.state().clone())) }
    }

    /// Cuts the power right before call number `call`, counted from 0 since creation. This call and all later
    /// calls fail without effect.
    pub fn die_at(&self, call: u64) {
        self.state().dies_at = Some(call);
    }

    /// Plans a fault for call number `call`. A call that cannot have the fault is unaffected.
    pub fn fail(&self, call: u64, fault: DiskFault) {
        self.state().faults.push((call..=call, fault));
    }

    /// Plans a fault for all calls from number `call` on that can have the fault.
    pub fn fail_from(&self, call: u64, fault: DiskFault) {
        self.state().faults.push((call..=u64::MAX, fault));
    }

    /// Removes all faults: space is free again, and the disk is writable.
    pub fn heal(&self) {
        self.state().faults.clear();
    }

    /// Writes all cached changes to the media, except changes dropped by a failed sync. A kernel does so
    /// after some time.
    pub fn settle(&self) {
        let mut state = self.state();
        for logged in &mut state.log {
            logged.settle();
        }
        state.absorb();
    }

    /// Returns all calls before the power cut, including failed calls.
    #[must_use]
    pub fn calls(&self) -> Vec<DiskCall> {
        self.state().calls.clone()
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn call_count(&self) -> u64 {
        self.state().calls.len() as u64
    }

    /// Returns whether the power is cut, so that every call fails.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let state = self.state();
        state.dies_at.is_some_and(|call| state.calls.len() as u64 >= call)
    }

    /// Returns the number of changes that a power cut could lose now.
    #[must_use]
    pub fn unsynced_count(&self) -> usize {
        self.state().log.iter().filter(|logged| logged.may_be_lost()).count()
    }

    /// Returns every state of the media after a power cut now, each as a freshly mounted disk. States with
    /// equal files are returned once.
    ///
    /// Up to [`EXHAUSTIVE_MAX`] unsynced changes the list is complete, beyond that a sample; see
    /// [`Sampling`].
    pub fn crash_states(&self) -> CrashStates {
        self.crash_states_with(Sampling::default())
    }

    /// As [`SimDisk::crash_states`], with another seed or sample size.
    pub fn crash_states_with(&self, sampling: Sampling) -> CrashStates {
        let state = self.state();
        CrashStates::new(state.media.clone(), &state.log, sampling)
    }

    /// Returns all files with their bytes, sorted by path. This method does not count as a call.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let state = self.state();
        let mut files = Vec::new();
        let mut rest = vec![(PathBuf::new(), ROOT)];
        while let Some((path, node)) = rest.pop() {
            match state.cache.content(node) {
                Some(Inode::File(bytes)) => files.push((path, bytes.to_vec())),
                Some(Inode::Folder(names)) => {
                    rest.extend(names.iter().map(|(name, node)| (path.join(name), *node)));
                }
                None => {}
            }
        }
        files.sort();
        files
    }

    /// Changes the bytes of a file in the cache and on the media, as decay of the media does. This method
    /// does not count as a call.
    ///
    /// # Errors
    /// If the file does not exist.
    ///
    /// # Panics
    /// If the disk has unsynced changes: only bytes on the media decay.
    pub fn spoil(&self, path: &Path, spoil: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut state = self.state();
        assert!(
            state.log.is_empty(),
            "only a disk without unsynced changes can be spoiled: call `settle` first"
        );
        let node = state.cache.find(path)?;
        state.cache.file(node)?;
        spoil(state.cache.file_mut(node));
        state.media = state.cache.clone();
        Ok(())
    }

    /// Counts a call and checks for a power cut or a planned fault. Returns the fault if the call itself must
    /// apply part of it.
    fn enter(
        &self,
        action: Action,
        path: &Path,
    ) -> io::Result<(MutexGuard<'_, DiskState>, Option<DiskFault>)> {
        let mut state = self.state();
        let number = state.calls.len() as u64;
        if state.dies_at.is_some_and(|call| number >= call) {
            return Err(io::Error::other("the disk is switched off"));
        }
        state.calls.push(DiskCall { action, path: path.to_path_buf() });
        let set =
            state.faults.iter().filter(|(calls, _)| calls.contains(&number)).find_map(
                |(_, fault)| match fault {
                    DiskFault::Refuse(refusal) => refusal.applies_to(action).then_some(*fault),
                    DiskFault::ShortWrite(_) => matches!(action, Action::Write).then_some(*fault),
                },
            );
        match set {
            // The sync itself applies the effect of a failed sync.
            Some(DiskFault::Refuse(refusal)) if !matches!(action, Action::Sync | Action::SyncDir) => {
                Err(refusal.error())
            }
            other => Ok((state, other)),
        }
    }

    fn open(&self, path: &Path, node: Node) -> Box<dyn DiskFile> {
        Box::new(file::SimFile::new(self.clone(), path, node))
    }
}

impl DiskState {
    /// Applies a change to the cache. The change may be lost until all of `waits_for` are synced.
    fn change(&mut self, change: Change, waits_for: Vec<Node>) {
        self.cache.apply(&change, None);
        let what =
            self.calls.last().map(|DiskCall { action, path }| format!("{action:?} of `{}`", path.display()));
        self.log.push(Logged::new(change, waits_for, what.unwrap_or_default().into()));
    }

    /// Makes the changes that wait for a node durable, or drops them if the sync fails.
    fn sync(&mut self, node: Node, fault: Option<DiskFault>) -> io::Result<()> {
        if let Some(DiskFault::Refuse(refusal)) = fault {
            self.log.iter_mut().for_each(|logged| logged.drop_from_cache(node));
            return Err(refusal.error());
        }
        self.log.iter_mut().for_each(|logged| logged.synced(node));
        self.absorb();
        Ok(())
    }

    /// Moves durable changes from the log to the media, up to the first change that may be lost.
    fn absorb(&mut self) {
        let count = self.log.iter().take_while(|logged| !logged.may_be_lost()).count();
        for logged in self.log.drain(..count) {
            self.media.apply(&logged.change, None);
        }
    }

    /// Adds a name for a node, unless the name exists.
    fn name(&mut self, path: &Path, node: Node, kind: Kind) -> io::Result<()> {
        let (folder, name) = self.cache.place(path)?;
        if self.cache.folder(folder)?.contains_key(name) {
            return Err(Errno::EXIST.into());
        }
        let name = name.to_owned();
        self.change(Change::Name { folder, name, node, kind, from: None }, vec![folder]);
        Ok(())
    }

    fn new_node(&mut self) -> Node {
        self.next_node += 1;
        self.next_node - 1
    }

    /// Checks that a node of this kind may replace another node.
    fn may_replace(&self, kind: Kind, target: Node) -> io::Result<()> {
        match (kind, self.cache.kind(target)) {
            (Kind::Folder, Kind::Folder) if self.cache.folder(target)?.is_empty() => Ok(()),
            (Kind::Folder, Kind::Folder) => Err(Errno::NOTEMPTY.into()),
            (Kind::Folder, _) => Err(Errno::NOTDIR.into()),
            (_, Kind::Folder) => Err(Errno::ISDIR.into()),
            (_, _) => Ok(()),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Disk for SimDisk {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let (mut state, _) = self.enter(Action::CreateNew, path)?;
        let node = state.new_node();
        state.name(path, node, Kind::File)?;
        drop(state);
        Ok(self.open(path, node))
    }

    fn open_append(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let (state, _) = self.enter(Action::OpenAppend, path)?;
        let node = state.cache.find(path)?;
        state.cache.file(node)?;
        drop(state);
        Ok(self.open(path, node))
    }

    fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
        let (state, _) = self.enter(Action::Read, path)?;
        let bytes = state.readable(path)?;
        if bytes.len() as u64 > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes.to_vec())
    }

    fn read_at(&self, path: &Path, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let (state, _) = self.enter(Action::Read, path)?;
        let bytes = state.readable(path)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Ok(bytes[from..from.saturating_add(bytes_max).min(bytes.len())].to_vec())
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        let (mut state, _) = self.enter(Action::Rename, source)?;
        let (source_folder, source_name) = state.cache.place(source)?;
        let (folder, name) = state.cache.place(target)?;
        let node = *state.cache.folder(source_folder)?.get(source_name).ok_or(Errno::NOENT)?;
        let kind = state.cache.kind(node);
        if kind == Kind::Folder && target.starts_with(source) && target != source {
            return Err(Errno::INVAL.into());
        }
        if source.starts_with(target) && target != source {
            return Err(Errno::NOTEMPTY.into());
        }
        if let Some(replaced) = state.cache.folder(folder)?.get(name).copied() {
            if replaced == node {
                return Ok(());
            }
            state.may_replace(kind, replaced)?;
        }
        let mut waits_for = vec![folder, source_folder];
        waits_for.dedup();
        let from = Some((source_folder, source_name.to_owned()));
        let name = name.to_owned();
        state.change(Change::Name { folder, name, node, kind, from }, waits_for);
        Ok(())
    }

    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()> {
        let (mut state, _) = self.enter(Action::HardLink, source)?;
        let node = state.cache.find(source)?;
        let (folder, name) = state.cache.place(target)?;
        if state.cache.kind(node) == Kind::Folder && !state.cache.folder(folder)?.contains_key(name) {
            return Err(Errno::PERM.into());
        }
        state.name(target, node, Kind::File)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (mut state, _) = self.enter(Action::Remove, path)?;
        state.cache.file(state.cache.find(path)?)?;
        state.unname(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let (mut state, _) = self.enter(Action::CreateDir, path)?;
        if state.cache.find(path).is_ok_and(|node| state.cache.kind(node) == Kind::Folder) {
            return Ok(());
        }
        let node = state.new_node();
        state.name(path, node, Kind::Folder)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let (mut state, _) = self.enter(Action::RemoveDir, path)?;
        let node = state.cache.find(path)?;
        if !state.cache.folder(node)?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        state.unname(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let (mut state, fault) = self.enter(Action::SyncDir, path)?;
        let node = state.cache.find(path)?;
        state.cache.folder(node)?;
        state.sync(node, fault)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let (state, _) = self.enter(Action::List, path)?;
        let names = state.cache.folder(state.cache.find(path)?)?;
        Ok(names
            .iter()
            .map(|(name, node)| Entry { name: name.clone(), kind: state.cache.kind(*node) })
            .collect())
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        let (state, _) = self.enter(Action::Metadata, path)?;
        let node = state.cache.find(path)?;
        let kind = state.cache.kind(node);
        let len = state.cache.file(node).map_or(0, |bytes| bytes.len() as u64);
        Ok(Metadata { kind, len })
    }
}

impl DiskState {
    fn readable(&self, path: &Path) -> io::Result<&Arc<Vec<u8>>> {
        let node = self.cache.find(path)?;
        match self.cache.kind(node) {
            Kind::File => self.cache.file(node),
            Kind::Folder | Kind::Other => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn unname(&mut self, path: &Path) -> io::Result<()> {
        let (folder, name) = self.cache.place(path)?;
        let name = name.to_owned();
        self.change(Change::Unname { folder, name }, vec![folder]);
        Ok(())
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("SimDisk")
            .field("calls", &state.calls.len())
            .field("unsynced", &state.log.len())
            .field("dies_at", &state.dies_at)
            .finish_non_exhaustive()
    }
}

/// Shows the lost changes after a power cut.
impl fmt::Display for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state().origin {
            None => f.write_str("a simulated disk"),
            Some(origin) => origin.fmt(f),
        }
    }
}
