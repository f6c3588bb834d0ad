//! The writer of a run: turns a batch into a commit file.
//!
//! ```text
//!   create temp   write   sync   (sidecar)   link as checkpoint_N.json   sync folder   rename temp to checkpoint.json
//!                           |                          |                     |
//!                  all bytes are durable     visible, if N is free     acknowledged
//! ```
//!
//! A hard link gives the name, because a link never replaces an existing file, unlike a rename. If two writers
//! both believe to hold the lease, the file system refuses the second writer. The temporary name then becomes
//! `checkpoint.json` at no further cost.
//!
//! A batch costs two syncs, the minimum for a separate file. The sidecar and `checkpoint.json` are conveniences
//! and are not waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::id::{Digest, RunId, ScopePath};
use crate::record::{Durability, Header, Reason, RunRecord};
use crate::store::folder::{RunFolder, create_temp};
use crate::store::{Batch, BatchId, StoreError, Summary, Trimmed};
use crate::system::disk::{Disk, DiskFile, write_whole};

use super::format::{CommitFile, FILE_BYTES_MAX};
use super::list::unknown;
use super::lookup::{IndexSource, LookupCache};
use super::paths::{NEWEST_FILE, RunPaths, commit_name};
use super::read::{RunReader, ScopeTail};
use super::replay::NewestFirst;
use super::signals;

/// Limit of the scopes of a run, main scope excluded. Each scope keeps a file or two, so a larger folder
/// would be unusable. The engine checks this limit before it opens scopes.
pub(super) const SCOPES_MAX: usize = 10_000;
/// How many unsynced commits an `async` run may have; a power cut loses at most these.
const UNSYNCED_MAX: usize = 16;
/// Minimum number of surplus files before a rotation. Each rotation costs a sync of the journal and a read of
/// every file.
const ROTATE_SLACK: usize = 4;

/// The in-memory state of the writer of a run.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) run: RunId,
    pub(super) paths: RunPaths,
    pub(super) token: u64,
    /// The number of the newest commit file, damaged and quarantined files included.
    pub(super) number: u64,
    pub(super) tails: BTreeMap<ScopePath, Tail>,
    pub(super) checkpoints: u64,
    pub(super) last_batch: Option<BatchId>,
    pub(super) summary: Option<Summary>,
    /// How many step boundaries keep their states; `None` for all.
    pub(super) retention: Option<u32>,
    pub(super) durability: Durability,
    /// `None` if the run record is damaged: then no report and no event log is written.
    pub(super) folder: Option<RunFolder>,
    /// Consumed signals whose mark may not exist yet.
    pub(super) consumed: BTreeSet<String>,
    /// The unsynced commits.
    unsynced: Vec<u64>,
    /// The number of commit files, and the number at which the next rotation is due.
    pub(super) files: usize,
    pub(super) rotate_at: usize,
    /// What rotation dropped since the last report.
    pub(super) rotated: Trimmed,
    /// The file or folder with a failed sync.
    poisoned: Option<String>,
}

/// The end of a scope, for the check of the next batch.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    opened: u64,
    /// The highest existing seq, sound or damaged.
    last: u64,
    /// Seq and digest of the newest sound record.
    link: Option<(u64, Digest)>,
    /// The highest seq ever used, plus one.
    next: u64,
}

impl From<&ScopeTail> for Tail {
    fn from(end: &ScopeTail) -> Self {
        let link = end.link();
        let sound = link.map_or(0, |(seq, _)| seq);
        let last = end.damaged.last().map_or(sound, |damage| damage.seq.max(sound));
        Self { opened: end.opened, last, link, next: end.next }
    }
}

impl Writer {
    /// Makes a writer without any knowledge of the run.
    pub(super) fn new(disk: Arc<dyn Disk>, run: RunId, paths: RunPaths, token: u64) -> Self {
        Self {
            disk,
            run,
            paths,
            token,
            number: 0,
            tails: BTreeMap::new(),
            checkpoints: 0,
            last_batch: None,
            summary: None,
            retention: None,
            durability: Durability::Sync,
            folder: None,
            consumed: BTreeSet::new(),
            unsynced: Vec::new(),
            files: 0,
            rotate_at: 0,
            rotated: Trimmed::default(),
            poisoned: None,
        }
    }

    /// Sets retention, durability and report of the run from its record.
    pub(super) fn configure(&mut self, record: &RunRecord, retention: Option<u32>) {
        self.retention = record.retention.or(retention);
        self.durability = record.durability;
        self.folder = Some(RunFolder::new(self.disk.clone(), self.paths.root.clone(), record));
        self.plan_rotation();
    }

    pub(super) fn reader(&self) -> RunReader<'_> {
        RunReader { disk: self.disk.as_ref(), run: &self.run, paths: self.paths.clone() }
    }

    /// Appends a batch. On return, the batch is as durable as the run requires.
    pub(super) fn append(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.check_unpoisoned()?;
        let commit = self.commit_of(batch)?;
        self.check_newest()?;
        self.write(&commit)?;
        self.take_in(&commit);
        if let Some(folder) = &self.folder {
            folder.committed(&batch.records);
        }
        self.settle(batch.release);
        Ok(())
    }

    /// Makes the commit for a batch.
    pub(super) fn commit_of(&self, batch: &Batch) -> Result<CommitFile, StoreError> {
        batch.check(&self.run, self.token)?;
        self.check_links(batch)?;
        let mut opened: BTreeMap<&ScopePath, u64> = BTreeMap::new();
        let mut records = Vec::with_capacity(batch.records.len());
        for record in &batch.records {
            let scope = &record.header().scope;
            let known = self.tails.get(scope).map(|tail| tail.opened).or_else(|| opened.get(scope).copied());
            let place = known.unwrap_or_else(|| (self.tails.len() + opened.len()) as u64);
            if known.is_none() {
                opened.insert(scope, place);
            }
            records.push((place, record.clone()));
        }
        let consumed = signals::known(self.disk.as_ref(), &self.paths, &batch.consumed)?;
        let scopes = self.tails.len() + opened.len();
        let children = scopes.saturating_sub(1);
        if children > SCOPES_MAX && !opened.is_empty() {
            return Err(StoreError::Invalid(format!(
                "cannot open scopes: run {} would have {children} besides the main one, the maximum of a \
                 file store is {SCOPES_MAX}: use a store `sqlite:PATH`",
                self.run
            )));
        }
        Ok(CommitFile {
            number: self.number + 1,
            token: self.token,
            batch: batch.id,
            release: batch.release,
            consumed,
            summary: batch.summary.as_ref().or(self.summary.as_ref()).cloned().unwrap_or_else(unknown),
            updated_at: batch.updated_at,
            checkpoints: self.checkpoints + records.len() as u64,
            scopes: scopes as u64,
            records,
        })
    }

    /// Checks that every record follows the previous record of its scope.
    fn check_links(&self, batch: &Batch) -> Result<(), StoreError> {
        let mut tips: BTreeMap<&ScopePath, (u64, Digest)> = BTreeMap::new();
        for record in &batch.records {
            let header = record.header();
            let refused = match (tips.get(&header.scope), self.tails.get(&header.scope)) {
                (Some((seq, digest)), _) => (header.seq != seq + 1 || header.prev != Some(*digest))
                    .then(|| format!("the batch has @{seq} after digest {digest}")),
                (None, None) => (header.seq != 1 || header.prev.is_some())
                    .then(|| "a scope begins with 1, without a previous record".to_owned()),
                (None, Some(tail)) if header.reason == Reason::Repair => self.misrepairs(header, tail)?,
                (None, Some(tail)) => misses(header, tail),
            };
            if let Some(why) = refused {
                let (run, scope, seq) = (header.run.clone(), header.scope.clone(), header.seq);
                return Err(StoreError::Conflict { run, scope, seq, why });
            }
            tips.insert(&header.scope, (header.seq, record.digest()));
        }
        Ok(())
    }

    /// Returns why a record cannot follow damage, or `None` if it can.
    fn misrepairs(&self, header: &Header, tail: &Tail) -> Result<Option<String>, StoreError> {
        if header.seq <= tail.last || header.seq > tail.next {
            let (last, next) = (tail.last, tail.next);
            return Ok(Some(format!("the scope ends at {last}, the next seq is at most {next}")));
        }
        let Some(prev) = header.prev else { return Ok(None) };
        if tail.link.is_some_and(|(_, digest)| digest == prev) {
            return Ok(None);
        }
        let remembered = LookupCache::default();
        let index = IndexSource(&remembered);
        for record in NewestFirst::new(self.reader(), &index) {
            let record = record?;
            if record.header().scope == header.scope && record.digest() == prev {
                return Ok(None);
            }
        }
        Ok(Some(format!("`prev` {prev} is not a sound record of the scope")))
    }

    /// Updates the state of the writer after a commit.
    pub(super) fn take_in(&mut self, commit: &CommitFile) {
        self.number = commit.number;
        self.checkpoints = commit.checkpoints;
        self.last_batch = Some(commit.batch);
        self.summary = Some(commit.summary.clone());
        self.files += 1;
        for (opened, record) in &commit.records {
            let header = record.header();
            let link = Some((header.seq, record.digest()));
            let tail = Tail { opened: *opened, last: header.seq, link, next: header.seq + 1 };
            self.tails.insert(header.scope.clone(), tail);
        }
        self.consumed.extend(commit.consumed.iter().cloned());
    }

    /// Does the work after an acknowledged batch: syncs, marks, rotation. A failure is harmless, since the next
    /// batch repeats the work.
    fn settle(&mut self, release: bool) {
        if self.durability == Durability::Async
            && (release || self.unsynced.len() >= UNSYNCED_MAX)
            && self.sync_all().is_err()
        {
            // The writer is now poisoned; the next append returns the error.
            return;
        }
        self.mark_consumed();
        let due = self.files >= self.rotate_at || release;
        if let Some(keep) = self.retention.filter(|_| due) {
            let _ = self.rotate(keep);
        }
    }

    /// Marks the signals of acknowledged commits as taken in. What fails is marked by the next commit or session.
    pub(super) fn mark_consumed(&mut self) {
        let consumed: Vec<String> = self.consumed.iter().cloned().collect();
        if signals::mark(self.disk.as_ref(), &self.paths, &consumed).is_ok() {
            self.consumed.clear();
        }
    }

    pub(super) fn plan_rotation(&mut self) {
        let keep = self.retention.map_or(0, |keep| keep.max(2) as usize);
        self.rotate_at = self.files.max(keep) + ROTATE_SLACK.max(keep / 2).max(self.files / 2);
        if self.files <= keep {
            self.rotate_at = keep + ROTATE_SLACK.max(keep / 2);
        }
    }

    /// Refuses a fenced writer: another writer has taken a lease, in spite of the lock.
    pub(super) fn check_newest(&self) -> Result<(), StoreError> {
        match self.reader().lease()? {
            Some(Ok(lease)) if lease.token > self.token => Err(self.fenced(lease.token)),
            _ => Ok(()),
        }
    }

    pub(super) fn fenced(&self, newest: u64) -> StoreError {
        StoreError::Fenced { run: self.run.clone(), token: self.token, newest }
    }

    pub(super) fn check_unpoisoned(&self) -> Result<(), StoreError> {
        match &self.poisoned {
            Some(place) => Err(StoreError::Poisoned { place: place.clone() }),
            None => Ok(()),
        }
    }

    /// Records a failed sync. The content of the disk is unknown from now on, so the writer refuses all further
    /// writes.
    pub(super) fn poison(&mut self, place: &Path, source: io::Error) -> StoreError {
        let place = place.display().to_string();
        self.poisoned = Some(place.clone());
        StoreError::of_write("sync", place, source)
    }

    fn write(&mut self, commit: &CommitFile) -> Result<(), StoreError> {
        let disk = self.disk.clone();
        let (disk, history) = (disk.as_ref(), self.paths.history());
        let text = seal(commit, &self.run)?;
        let path = self.paths.commit(commit.number);
        let failed = |source| StoreError::of_write("write", path.display().to_string(), source);
        let (temp, mut file) = create_temp(disk, &history).map_err(failed)?;
        let sync = self.durability == Durability::Sync;
        if let Err(error) = self.fill(file.as_mut(), &temp, &text, sync) {
            let _ = disk.remove(&temp);
            return Err(error);
        }
        drop(file);
        write_sidecar(disk, &self.paths, commit.number, &text);
        let temp_is_left = match place(disk, &temp, &path) {
            Ok(Placed::Linked) => true,
            Ok(Placed::Renamed) => false,
            Err(error) => {
                let _ = disk.remove(&temp);
                return Err(match error.kind() {
                    io::ErrorKind::AlreadyExists => self.fenced(self.token + 1),
                    _ => failed(error),
                });
            }
        };
        if sync {
            disk.sync_dir(&history).map_err(|source| self.poison(&history, source))?;
        } else {
            self.unsynced.push(commit.number);
        }
        if temp_is_left && disk.rename(&temp, &self.paths.root.join(NEWEST_FILE)).is_err() {
            let _ = disk.remove(&temp);
        }
        Ok(())
    }

    /// Writes a file by a temporary file in its folder and a rename, and syncs both.
    pub(super) fn replace_file(&mut self, folder: &Path, path: &Path, text: &[u8]) -> Result<(), StoreError> {
        let disk = self.disk.clone();
        let failed = |source| StoreError::of_write("write", path.display().to_string(), source);
        let (temp, mut file) = create_temp(disk.as_ref(), folder).map_err(failed)?;
        let placed = self
            .fill(file.as_mut(), &temp, text, true)
            .and_then(|()| disk.rename(&temp, path).map_err(failed));
        if let Err(error) = placed {
            let _ = disk.remove(&temp);
            return Err(error);
        }
        disk.sync_dir(folder).map_err(|source| self.poison(folder, source))
    }

    pub(super) fn fill(
        &mut self,
        file: &mut dyn DiskFile,
        path: &Path,
        text: &[u8],
        sync: bool,
    ) -> Result<(), StoreError> {
        write_whole(file, text)
            .map_err(|source| StoreError::of_write("write", path.display().to_string(), source))?;
        if sync {
            file.sync().map_err(|source| self.poison(path, source))?;
        }
        Ok(())
    }

    /// Syncs all unsynced commits.
    pub(super) fn sync_all(&mut self) -> Result<(), StoreError> {
        if self.unsynced.is_empty() {
            return Ok(());
        }
        for number in std::mem::take(&mut self.unsynced) {
            let path = self.paths.commit(number);
            let synced = self.disk.open_append(&path).and_then(|mut file| file.sync());
            synced.map_err(|source| self.poison(&path, source))?;
        }
        let history = self.paths.history();
        self.disk.sync_dir(&history).map_err(|source| self.poison(&history, source))
    }
}

/// Returns why a record does not follow the previous record, or `None` if it does.
fn misses(header: &Header, tail: &Tail) -> Option<String> {
    if header.seq != tail.next || tail.last + 1 != tail.next {
        return Some(format!("the scope ends at {}, the new record is {}", tail.last, tail.next));
    }
    let sound = tail.link.filter(|(seq, _)| *seq == tail.last).map(|(_, digest)| digest);
    match (sound, header.prev) {
        (Some(expect), Some(prev)) if expect == prev => None,
        (Some(expect), Some(prev)) => Some(format!("`prev` is {prev}, but the record before has {expect}")),
        (Some(expect), None) => Some(format!("`prev` is missing, the record before has {expect}")),
        (None, _) => Some("the record before is damaged".to_owned()),
    }
}

/// Returns the text of a commit file; an error if the text exceeds the size limit of a read.
pub(super) fn seal(commit: &CommitFile, run: &RunId) -> Result<Vec<u8>, StoreError> {
    let text = commit.seal(run);
    if text.len() as u64 > FILE_BYTES_MAX {
        let found = text.len();
        return Err(StoreError::Invalid(format!(
            "commit {} of run {run} has {found} bytes, the maximum is {FILE_BYTES_MAX}",
            commit.number
        )));
    }
    // Unreadable bytes must not be acknowledged.
    debug_assert!(CommitFile::open(run, commit.number, &text).is_ok_and(|read| read == *commit));
    Ok(text)
}

enum Placed {
    Linked,
    Renamed,
}

/// Gives a synced file its final name, unless the name is taken.
fn place(disk: &dyn Disk, temp: &Path, path: &Path) -> io::Result<Placed> {
    match disk.hard_link(temp, path) {
        Ok(()) => Ok(Placed::Linked),
        Err(error) if no_links(&error) => {
            // A file system without hard links: here only the lock excludes a second writer.
            match disk.metadata(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            }
            disk.rename(temp, path).map(|()| Placed::Renamed)
        }
        Err(error) => Err(error),
    }
}

pub(super) fn no_links(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK))
}

/// Writes the digest of a commit file next to the file, for `sha256sum -c`. Not synced, and a failure is
/// harmless: the commit file verifies itself, with or without a sidecar.
pub(super) fn write_sidecar(disk: &dyn Disk, paths: &RunPaths, number: u64, text: &[u8]) {
    let path = paths.sidecar(number);
    let line = format!("{}  {}\n", Digest::of(text), commit_name(number));
    let file = match disk.create_new(&path) {
        // A leftover of a writer that died before the commit file got its name.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.remove(&path).and_then(|()| disk.create_new(&path))
        }
        file => file,
    };
    let _ = file.and_then(|mut file| write_whole(file.as_mut(), line.as_bytes()));
}
