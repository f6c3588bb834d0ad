//! Rotation, trim and quarantine. Headers are never lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::id::ScopePath;
use crate::record::Flaw;
use crate::store::folder::create_temp;
use crate::store::retention::{self, Mark};
use crate::store::{Damage, StoreError, Trimmed};

use super::format::{CommitFile, FILE_BYTES_MAX, NoteFile, Small, journal_line};
use super::journal;
use super::lookup::IndexSource;
use super::paths::{HISTORY, JOURNAL_FILE, NOTE_SUFFIX, SIDECAR_SUFFIX, commit_name, commit_number};
use super::read::{Bodies, RunReader, read_error};
use super::signals;
use super::write::{Writer, no_links, seal, write_sidecar};

/// The prefix in quarantine for a commit file that was restored from a copy.
const REPLACED_PREFIX: &str = "replaced_";
/// The quarantine name of a note about missing records of an unknown file.
const MISSING_NAME: &str = "missing";
/// Limit of names tried for a file in quarantine: this many damages of the same file are not plausible.
const ASIDE_NAMES_MAX: u32 = 10_000;

/// Facts about bodies, collected in a walk.
#[derive(Default)]
struct Noted {
    /// The size of each body of a commit, with scope and seq.
    sizes: BTreeMap<u64, Vec<(ScopePath, u64, u64)>>,
    /// The input of retention, newest first.
    marks: BTreeMap<ScopePath, Vec<Mark>>,
}

impl Noted {
    fn note(&mut self, commit: &CommitFile) {
        let sizes = self.sizes.entry(commit.number).or_default();
        for (_, record) in commit.records.iter().rev() {
            let (header, Some(body)) = (record.header(), record.body_bytes()) else { continue };
            sizes.push((header.scope.clone(), header.seq, body.len() as u64));
            let marks = self.marks.entry(header.scope.clone()).or_default();
            marks.push(if marks.is_empty() { Mark::of_newest(record) } else { Mark::of(header) });
        }
    }
}

/// The states beyond the retention limit.
#[derive(Debug)]
pub(super) struct Surplus {
    pub(super) trimmed: Trimmed,
    /// Commits with removable files, oldest first.
    removed: Vec<CommitFile>,
    /// Numbers of commits that lose some of their bodies, oldest first.
    rewritten: Vec<u64>,
    /// The bodies to keep, by scope and seq.
    kept: Kept,
}

/// Seqs by scope.
type Kept = BTreeMap<ScopePath, BTreeSet<u64>>;

/// Returns true if a body is to be dropped. Unlisted bodies are newer or damaged, and stay.
fn goes(kept: &Kept, scope: &ScopePath, seq: u64) -> bool {
    kept.get(scope).is_some_and(|kept| !kept.contains(&seq))
}

impl Writer {
    /// Drops old states above the limit `keep`.
    pub(super) fn rotate(&mut self, keep: u32) -> Result<(), StoreError> {
        let rotated = self.trim_bodies(keep).map(|trimmed| {
            self.rotated.checkpoints += trimmed.checkpoints;
            self.rotated.bytes += trimmed.bytes;
        });
        self.plan_rotation();
        rotated
    }

    /// As [`trim_bodies`](Self::trim_bodies). The result includes earlier rotations since the last call.
    pub(super) fn trim(&mut self, keep: u32) -> Result<Trimmed, StoreError> {
        let Trimmed { checkpoints, bytes } = self.trim_bodies(keep)?;
        let before = std::mem::take(&mut self.rotated);
        Ok(Trimmed { checkpoints: before.checkpoints + checkpoints, bytes: before.bytes + bytes })
    }

    /// Drops the bodies of all sound records except those in [`retention::kept`].
    ///
    /// A commit file without a remaining body is removed, once its headers are durable in the journal. The newest
    /// sound file of each scope always stays, since it marks the end of the scope. Damaged files stay too.
    fn trim_bodies(&mut self, keep: u32) -> Result<Trimmed, StoreError> {
        self.check_unpoisoned()?;
        self.sync_all()?;
        let Surplus { trimmed, removed, rewritten, kept } = self.reader().surplus(keep)?;
        self.remove(&removed)?;
        self.rewrite(&rewritten, &|scope, seq| goes(&kept, scope, seq))?;
        Ok(trimmed)
    }

    /// Moves the headers of commits to the journal, and removes the commit files.
    fn remove(&mut self, commits: &[CommitFile]) -> Result<(), StoreError> {
        if commits.is_empty() {
            return Ok(());
        }
        let disk = self.disk.clone();
        let consumed: Vec<String> =
            commits.iter().flat_map(|commit| commit.consumed.iter().cloned()).collect();
        if !consumed.is_empty() {
            let signals = self.paths.signals();
            let marked = signals::mark(disk.as_ref(), &self.paths, &consumed);
            marked.map_err(|source| StoreError::of_write("write", signals.display().to_string(), source))?;
            disk.sync_dir(&signals).map_err(|source| self.poison(&signals, source))?;
        }
        let records = commits.iter().flat_map(|commit| &commit.records);
        let lines: Vec<u8> = records.flat_map(|(_, record)| journal_line(record)).collect();
        let journal = self.paths.journal();
        // The sync of the append may have failed, so the journal can no longer be trusted by this writer.
        journal::append(disk.as_ref(), &journal, &lines).map_err(|source| self.poison(&journal, source))?;
        let root = self.paths.root.clone();
        disk.sync_dir(&root).map_err(|source| self.poison(&root, source))?;
        for commit in commits {
            let path = self.paths.commit(commit.number);
            let removed = disk.remove(&path);
            removed.map_err(|source| StoreError::of_write("remove", path.display().to_string(), source))?;
            let _ = disk.remove(&self.paths.sidecar(commit.number));
            self.files = self.files.saturating_sub(1);
        }
        Ok(())
    }

    /// Rewrites commit files in place, without the dropped bodies.
    fn rewrite(&mut self, numbers: &[u64], goes: &dyn Fn(&ScopePath, u64) -> bool) -> Result<(), StoreError> {
        if numbers.is_empty() {
            return Ok(());
        }
        let (disk, history) = (self.disk.clone(), self.paths.history());
        for number in numbers {
            let path = self.paths.commit(*number);
            let failed = |source| StoreError::of_write("write", path.display().to_string(), source);
            let text = disk.read(&path, FILE_BYTES_MAX).map_err(|source| read_error(&path, source))?;
            let Ok(mut commit) = CommitFile::open(&self.run, *number, &text) else { continue };
            for (_, record) in &mut commit.records {
                if goes(&record.header().scope, record.header().seq) {
                    *record = record.without_body();
                }
            }
            let text = seal(&commit, &self.run)?;
            let (temp, mut file) = create_temp(disk.as_ref(), &history).map_err(failed)?;
            self.fill(file.as_mut(), &temp, &text, true)?;
            write_sidecar(disk.as_ref(), &self.paths, *number, &text);
            disk.rename(&temp, &path).map_err(failed)?;
        }
        disk.sync_dir(&history).map_err(|source| self.poison(&history, source))
    }

    /// Moves a damaged file to quarantine with a note about its records; copies a damaged journal line.
    pub(super) fn quarantine(&mut self, damage: &Damage, index: &IndexSource<'_>) -> Result<(), StoreError> {
        self.check_unpoisoned()?;
        if self.reader().gone()?.has(&damage.scope, damage.seq) {
            // The record shared a file with an earlier quarantined record.
            return Ok(());
        }
        match self.reader().load(&damage.scope, damage.seq, index) {
            Ok(_) => {
                let reference = format!("{}/{}@{}", self.run, damage.scope, damage.seq);
                return Err(StoreError::Invalid(format!("checkpoint {reference} is sound")));
            }
            Err(StoreError::Damaged { damage: found, .. }) if found.place == damage.place => {}
            Err(StoreError::Damaged { .. }) => {
                return Err(StoreError::Invalid(format!(
                    "there is no damage of checkpoint @{} in {}",
                    damage.seq, damage.place
                )));
            }
            Err(error) => return Err(error),
        }
        let moved = match number_of(&damage.place) {
            Some(number) if damage.flaw == Flaw::Missing => self.note_missing(number, damage, index),
            Some(number) => self.move_aside(number, damage, index),
            None if damage.flaw == Flaw::Missing && damage.place != JOURNAL_FILE => {
                self.note_unplaced(damage, index)
            }
            None => self.note_line(damage, index),
        };
        moved?;
        // The chain continues after the lost records.
        self.find_tails().map(|_| ())
    }

    fn move_aside(
        &mut self,
        number: u64,
        damage: &Damage,
        index: &IndexSource<'_>,
    ) -> Result<(), StoreError> {
        let records = self.reader().damaged_at(&damage.place, index)?;
        let name = commit_name(number);
        let target = self.write_note(&name, damage, records)?;
        let (disk, history, folder) = (self.disk.clone(), self.paths.history(), self.paths.quarantine());
        let path = history.join(&name);
        let failed = |source| StoreError::of_write("move", path.display().to_string(), source);
        disk.rename(&path, &folder.join(&target)).map_err(failed)?;
        let sidecar = self.paths.sidecar(number);
        let _ = disk.rename(&sidecar, &folder.join(format!("{target}{SIDECAR_SUFFIX}")));
        disk.sync_dir(&folder).map_err(|source| self.poison(&folder, source))?;
        disk.sync_dir(&history).map_err(|source| self.poison(&history, source))?;
        self.files = self.files.saturating_sub(1);
        Ok(())
    }

    /// Notes the records of a missing file, so that later checks do not report these.
    fn note_missing(
        &mut self,
        number: u64,
        damage: &Damage,
        index: &IndexSource<'_>,
    ) -> Result<(), StoreError> {
        let records = self.reader().damaged_at(&damage.place, index)?;
        let target = self.write_note(&commit_name(number), damage, records)?;
        let folder = self.paths.quarantine();
        let sidecar = self.paths.sidecar(number);
        let _ = self.disk.rename(&sidecar, &folder.join(format!("{target}{SIDECAR_SUFFIX}")));
        Ok(())
    }

    /// Notes missing records of an unknown file.
    fn note_unplaced(&mut self, damage: &Damage, index: &IndexSource<'_>) -> Result<(), StoreError> {
        let records = self.reader().damaged_at(&damage.place, index)?;
        self.write_note(MISSING_NAME, damage, records).map(|_| ())
    }

    fn note_line(&mut self, damage: &Damage, index: &IndexSource<'_>) -> Result<(), StoreError> {
        let line = self.reader().damaged_line(&damage.scope, damage.seq, index)?;
        let records = vec![(damage.scope.clone(), damage.seq)];
        let target = self.write_note(JOURNAL_FILE, damage, records)?;
        let path = self.paths.quarantine().join(target);
        let written = self.disk.create_new(&path).and_then(|mut file| {
            crate::system::disk::write_whole(file.as_mut(), &line)?;
            file.sync()
        });
        written.map_err(|source| self.poison(&path, source))?;
        let folder = self.paths.quarantine();
        self.disk.sync_dir(&folder).map_err(|source| self.poison(&folder, source))
    }

    /// Writes the note for a file before its move to quarantine. Returns the new name of the file.
    fn write_note(
        &mut self,
        name: &str,
        damage: &Damage,
        records: Vec<(ScopePath, u64)>,
    ) -> Result<String, StoreError> {
        let (disk, folder, root) = (self.disk.clone(), self.paths.quarantine(), self.paths.root.clone());
        let failed = |source| StoreError::of_write("write", folder.display().to_string(), source);
        disk.create_dir(&folder).map_err(failed)?;
        let taken: BTreeSet<String> =
            super::paths::files_in(disk.as_ref(), &folder).map_err(failed)?.into_iter().collect();
        let target = (0..ASIDE_NAMES_MAX)
            .map(|count| if count == 0 { name.to_owned() } else { format!("{name}.{count}") })
            .find(|target| !taken.contains(target) && !taken.contains(&format!("{target}{NOTE_SUFFIX}")))
            .ok_or_else(|| failed(io::ErrorKind::AlreadyExists.into()))?;
        let newest = self.reader().newest()?.map_or(0, |commit| commit.number);
        let counted = match number_of(&damage.place) {
            Some(number) => number < newest,
            None => damage.place == JOURNAL_FILE || damage.place == HISTORY,
        };
        let (file, flaw) = (name.to_owned(), damage.flaw.to_string());
        let note = NoteFile { file, flaw, records, counted: Some(counted) };
        self.replace_file(&folder, &folder.join(format!("{target}{NOTE_SUFFIX}")), &note.seal())?;
        disk.sync_dir(&root).map_err(|source| self.poison(&root, source))?;
        Ok(target)
    }

    /// Moves a damaged commit file to quarantine, before the file is restored from a sound copy. The new name is
    /// not that of a commit file, because no commit is lost.
    pub(super) fn move_replaced(&mut self, number: u64) -> Result<(), StoreError> {
        let (disk, folder, path) = (self.disk.clone(), self.paths.quarantine(), self.paths.commit(number));
        let failed = |source| StoreError::of_write("move", path.display().to_string(), source);
        disk.create_dir(&folder).map_err(failed)?;
        let taken = super::paths::files_in(disk.as_ref(), &folder).map_err(failed)?;
        let target = (0..ASIDE_NAMES_MAX)
            .map(|count| format!("{REPLACED_PREFIX}{count}_{}", commit_name(number)))
            .find(|target| !taken.contains(target))
            .ok_or_else(|| failed(io::ErrorKind::AlreadyExists.into()))?;
        disk.rename(&path, &folder.join(target)).map_err(failed)?;
        disk.sync_dir(&folder).map_err(|source| self.poison(&folder, source))
    }

    /// Copies a damaged file to quarantine before it is replaced, best effort.
    pub(super) fn copy_aside(&self, name: &str) {
        let folder = self.paths.quarantine();
        let _ = self.disk.create_dir(&folder);
        for count in 0..ASIDE_NAMES_MAX {
            let target = if count == 0 { name.to_owned() } else { format!("{name}.{count}") };
            match self.disk.hard_link(&self.paths.root.join(name), &folder.join(target)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !no_links(&error) => {}
                _ => return,
            }
        }
    }
}

impl RunReader<'_> {
    /// Returns what a trim would drop.
    pub(super) fn surplus(&self, keep: u32) -> Result<Surplus, StoreError> {
        let note = |noted: &mut Noted, commit: &CommitFile| {
            noted.note(commit);
            false
        };
        let (walk, Noted { sizes, marks }) = self.walk(Bodies::Drop, note)?;
        let stays = |(scope, marks): (ScopePath, Vec<Mark>)| (scope, retention::kept(&marks, keep));
        let kept: Kept = marks.into_iter().map(stays).collect();
        let mut trimmed = Trimmed::default();
        let (mut removed, mut rewritten) = (Vec::new(), Vec::new());
        let ends = ends_of_scopes(&walk.sound);
        for commit in walk.sound.into_iter().skip(1).rev() {
            let bodies = &sizes[&commit.number];
            let (gone, stay): (Vec<_>, Vec<_>) =
                bodies.iter().partition(|(scope, seq, _)| goes(&kept, scope, *seq));
            trimmed.checkpoints += gone.len() as u64;
            trimmed.bytes += gone.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
            if stay.is_empty() && !ends.contains(&commit.number) {
                removed.push(commit);
            } else if !gone.is_empty() {
                rewritten.push(commit.number);
            }
        }
        Ok(Surplus { trimmed, removed, rewritten, kept })
    }
}

/// Returns the number of the commit file at a place; `None` for other places.
pub(super) fn number_of(place: &str) -> Option<u64> {
    commit_number(place.strip_prefix(HISTORY)?.strip_prefix('/')?)
}

/// Returns the numbers of the commits with the newest record of a scope. `commits` are newest first.
fn ends_of_scopes(commits: &[CommitFile]) -> BTreeSet<u64> {
    let mut seen = BTreeSet::new();
    let is_end = |commit: &&CommitFile| {
        // Mark all scopes of the commit as seen, not only the first new scope.
        let new = commit.records.iter().filter(|(opened, _)| seen.insert(*opened)).count();
        new > 0
    };
    commits.iter().filter(is_end).map(|commit| commit.number).collect()
}
