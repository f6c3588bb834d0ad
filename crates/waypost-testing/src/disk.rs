//! A disk in memory that can die, and that knows everything a real one could then have kept.
//!
//! [`SimDisk`] is a [`Disk`]. It can be switched off before any call, it can answer any call with an error that a
//! real disk gives, and it lists every state in which its media can be found when the power comes back
//! ([`SimDisk::crash_states`]). [`first_loss`] does all of this to a program and looks for one state that breaks
//! its promises. This file owns the disk itself; `tree` holds its files, `crash` the states after a power cut,
//! `fault` the errors, `survey` the search.
//!
//! # The model
//!
//! Programs see a cache, in which every call is done at once and in order. The media are behind it. Each call that
//! changes something is one **change**, and a change reaches the media at any later moment, before or after any
//! other one; all that a program knows is what it has synced:
//!
//! - A write, and a cut of the length, waits for [`sync`](waypost::disk::DiskFile::sync) of that file.
//! - A name that comes or goes waits for [`sync_dir`](Disk::sync_dir) of its folder, and for nothing else: syncing a
//!   file does not save its name, syncing a folder does not save the bytes of its files.
//! - A rename is one change. Between two folders it waits for both to be synced.
//!
//! So after a power cut the media hold all changes that wait for nothing, in their order, and of the others **any
//! subset**. Of a write that is in the subset, there may be only a part: cut at a multiple of 512 bytes or 4 KiB
//! in the file, either half of it, and the length of the file with it or ahead of it (zeros then fill the gap).
//!
//! What is assumed of the media, and would have to be shown by other means where it does not hold:
//!
//! 1. A sync that answers well has made it durable. A drive that lies about its cache loses what it lied about.
//! 2. What is durable stays as it is: a power cut spoils nothing that is not being written, not even in the same
//!    sector. Decay of media is the business of [`crate::damage`].
//! 3. A sector of 512 bytes is written whole or not at all.
//! 4. The file system restores itself, and a rename is atomic in it (it keeps a journal, or copies on write). Bytes
//!    that another file once had never appear in ours.
//!
//! The model is harsher than any one file system: ext4 saves a new file's name along with its bytes, and every
//! journal keeps the order of names. A program that is safe here relies on none of that.
//!
//! After a **failed sync** the cache keeps the bytes, clean, and nothing ever writes them: they are read back until the
//! power goes, and a second sync answers well without having done anything. That is what Linux does, and why a
//! failed sync must not be tried again.

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
pub use fault::{Action, Fault, Refusal};
pub use survey::{Loss, Survey, first_loss};

use crash::Logged;
use tree::{Change, Content, Node, ROOT, Tree};

/// One call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub action: Action,
    /// The path it was given, of a rename or a link the source; of a file that is open, the path it was opened by.
    pub path: PathBuf,
}

/// A disk in memory. A clone is another handle on the same disk; [`SimDisk::fork`] makes a disk of its own.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone)]
struct State {
    /// What has certainly reached the media.
    media: Tree,
    /// All changes behind that, from the first one on that may still be lost.
    log: Vec<Logged>,
    /// What programs see.
    cache: Tree,
    next_node: Node,
    calls: Vec<Call>,
    dies_at: Option<u64>,
    faults: Vec<(std::ops::RangeInclusive<u64>, Fault)>,
    /// How this disk came out of another one, if it did.
    origin: Option<crash::Origin>,
}

impl Default for SimDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl SimDisk {
    /// Makes an empty disk that never dies and never fails.
    #[must_use]
    pub fn new() -> Self {
        Self::mounted(Tree::empty(), None)
    }

    /// Makes a disk that has one empty folder in its root, durably.
    ///
    /// # Panics
    /// If `name` is not the name of one folder.
    #[must_use]
    pub fn with_folder(name: &str) -> Self {
        let disk = Self::new();
        disk.create_dir(Path::new(name)).expect("one name in an empty root");
        disk.settle();
        disk
    }

    /// A disk whose media hold that tree, right after it was switched on.
    fn mounted(media: Tree, origin: Option<crash::Origin>) -> Self {
        let state = State {
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

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked elsewhere leaves the disk as sound as it was: every change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a disk of its own that is just like this one, with all that is not synced, its calls and its faults.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.state().clone())) }
    }

    /// Switches the disk off right before call number `call`, counted from 0 with the first call ever made: that
    /// call and all later ones fail and do nothing.
    pub fn die_at(&self, call: u64) {
        self.state().dies_at = Some(call);
    }

    /// Makes call number `call` meet a fault, if it is a call that can.
    pub fn fail(&self, call: u64, fault: Fault) {
        self.state().faults.push((call..=call, fault));
    }

    /// Makes all calls from number `call` on meet a fault, each one that can.
    pub fn fail_from(&self, call: u64, fault: Fault) {
        self.state().faults.push((call..=u64::MAX, fault));
    }

    /// Takes all faults away: space is free again, the disk is mounted writable.
    pub fn heal(&self) {
        self.state().faults.clear();
    }

    /// Writes everything to the media that no failed sync has dropped, as a kernel does by itself after some time.
    pub fn settle(&self) {
        let mut state = self.state();
        for logged in &mut state.log {
            logged.settle();
        }
        state.absorb();
    }

    /// All calls that were made, also those that failed, but none after the death.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// How many calls were made.
    #[must_use]
    pub fn call_count(&self) -> u64 {
        self.state().calls.len() as u64
    }

    /// Says whether the disk is switched off: every call fails from now on.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let state = self.state();
        state.dies_at.is_some_and(|call| state.calls.len() as u64 >= call)
    }

    /// How many changes a power cut could undo now.
    #[must_use]
    pub fn unsynced_count(&self) -> usize {
        self.state().log.iter().filter(|logged| logged.may_be_lost()).count()
    }

    /// Every state in which the media can be found if the power is cut now; each is a disk that was just switched
    /// on. Different choices that leave the same files are given once.
    ///
    /// With up to [`EXHAUSTIVE_MAX`] unsynced changes this is all of them, and beyond that a sample; see
    /// [`Sampling`].
    pub fn crash_states(&self) -> CrashStates {
        self.crash_states_with(Sampling::default())
    }

    /// [`SimDisk::crash_states`], with another seed or size of the sample.
    pub fn crash_states_with(&self, sampling: Sampling) -> CrashStates {
        let state = self.state();
        CrashStates::new(state.media.clone(), &state.log, sampling)
    }

    /// All files, with their bytes, sorted by path. This is no call: it is not counted and meets no fault.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let state = self.state();
        let mut files = Vec::new();
        let mut rest = vec![(PathBuf::new(), ROOT)];
        while let Some((path, node)) = rest.pop() {
            match state.cache.content(node) {
                Some(Content::File(bytes)) => files.push((path, bytes.to_vec())),
                Some(Content::Folder(names)) => {
                    rest.extend(names.iter().map(|(name, node)| (path.join(name), *node)));
                }
                None => {}
            }
        }
        files.sort();
        files
    }

    /// Changes the bytes of a file behind everyone's back, in the cache and on the media, as decay of the media
    /// does. This is no call.
    ///
    /// # Errors
    /// When there is no such file.
    ///
    /// # Panics
    /// If the disk has unsynced changes: what decays is what lies on the media.
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

    /// Counts a call, and lets it through unless the disk is dead or a fault is set for it. A fault that leaves the
    /// call to do a part of its work is returned.
    fn enter(&self, action: Action, path: &Path) -> io::Result<(MutexGuard<'_, State>, Option<Fault>)> {
        let mut state = self.state();
        let number = state.calls.len() as u64;
        if state.dies_at.is_some_and(|call| number >= call) {
            return Err(io::Error::other("the disk is switched off"));
        }
        state.calls.push(Call { action, path: path.to_path_buf() });
        let set =
            state.faults.iter().filter(|(calls, _)| calls.contains(&number)).find_map(
                |(_, fault)| match fault {
                    Fault::Refuse(refusal) => refusal.can_meet(action).then_some(*fault),
                    Fault::ShortWrite(_) => matches!(action, Action::Write).then_some(*fault),
                },
            );
        match set {
            // What a failed sync does, only the sync knows.
            Some(Fault::Refuse(refusal)) if !matches!(action, Action::Sync | Action::SyncDir) => {
                Err(refusal.error())
            }
            other => Ok((state, other)),
        }
    }

    fn open(&self, path: &Path, node: Node) -> Box<dyn DiskFile> {
        Box::new(file::SimFile::new(self.clone(), path, node))
    }
}

impl State {
    /// Makes a change in the cache; it can be lost until all of `waits_for` are synced.
    fn change(&mut self, change: Change, waits_for: Vec<Node>) {
        self.cache.apply(&change, None);
        let what =
            self.calls.last().map(|Call { action, path }| format!("{action:?} of `{}`", path.display()));
        self.log.push(Logged::new(change, waits_for, what.unwrap_or_default().into()));
    }

    /// Makes durable what waits for that node; if the sync fails, drops it instead.
    fn sync(&mut self, node: Node, fault: Option<Fault>) -> io::Result<()> {
        if let Some(Fault::Refuse(refusal)) = fault {
            self.log.iter_mut().for_each(|logged| logged.drop_from_cache(node));
            return Err(refusal.error());
        }
        self.log.iter_mut().for_each(|logged| logged.synced(node));
        self.absorb();
        Ok(())
    }

    /// Moves what waits for nothing from the log to the media, as far as no earlier change may still be lost.
    fn absorb(&mut self) {
        let count = self.log.iter().take_while(|logged| !logged.may_be_lost()).count();
        for logged in self.log.drain(..count) {
            self.media.apply(&logged.change, None);
        }
    }

    /// Gives a new name for a node, if the place is free.
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

    /// Checks that something of that kind may take the place of another node.
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

impl State {
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

/// After a power cut it says which changes were lost.
impl fmt::Display for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state().origin {
            None => f.write_str("a simulated disk"),
            Some(origin) => origin.fmt(f),
        }
    }
}
