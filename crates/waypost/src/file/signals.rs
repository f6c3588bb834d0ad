//! Signals as files: `signals/HASH.json` is a message, `signals/HASH.done` in its place says that it was taken in.
//!
//! The name is a hash of the signal's id, so one id is one file for ever. That a signal was taken in stands first of
//! all in the commit file that did it; the mark is made after that commit, and again before that file is removed. The
//! message is removed with it: it may hold a secret, which only the session that took it in knows and masks.

use std::collections::BTreeSet;
use std::io;

use crate::disk::{Disk, write_whole};
use crate::folder::{create_temp, remove_leftovers};
use crate::id::Digest;
use crate::record::Flaw;
use crate::store::{Damage, Signal, Signalled, StoreError};

use super::format::{Commit, FILE_BYTES_MAX, SignalFile, Small};
use super::paths::{RunPaths, SIGNALS, files_in};
use super::read::{Bodies, RunReader, read_error};

const MESSAGE_SUFFIX: &str = ".json";
const DONE_SUFFIX: &str = ".done";

fn stem(id: &str) -> String {
    Digest::of(id.as_bytes()).to_string()[..32].to_owned()
}

/// Leaves a signal. The caller holds the lock of the store, so that no other sender is at it.
pub(super) fn leave(disk: &dyn Disk, paths: &RunPaths, signal: &Signal) -> Result<Signalled, StoreError> {
    let folder = paths.signals();
    let failed = |source| StoreError::of_write("write", folder.display().to_string(), source);
    disk.create_dir(&folder).map_err(failed)?;
    remove_leftovers(disk, &folder).map_err(failed)?;
    let names = files_in(disk, &folder).map_err(failed)?;
    let name = format!("{}{MESSAGE_SUFFIX}", stem(&signal.id));
    let stem_of = |name: &'_ str| name.split_once('.').map(|(stem, _)| stem.to_owned());
    let known: BTreeSet<String> = names.iter().filter_map(|name| stem_of(name)).collect();
    if known.contains(&stem(&signal.id)) {
        return Ok(Signalled::Before);
    }
    // A message or its mark stays, so their count goes up with each.
    let ordinal = known.len() as u64 + 1;
    let text = SignalFile { ordinal, signal: signal.clone() }.seal();
    let (temp, mut file) = create_temp(disk, &folder).map_err(failed)?;
    let written = write_whole(file.as_mut(), &text).and_then(|()| file.sync());
    let placed = written.and_then(|()| disk.rename(&temp, &folder.join(&name)));
    if let Err(source) = placed {
        let _ = disk.remove(&temp);
        return Err(failed(source));
    }
    disk.sync_dir(&folder).map_err(failed)?;
    disk.sync_dir(&paths.root).map_err(failed)?;
    Ok(Signalled::Now)
}

/// Marks signals as taken in, and removes the messages. Not synced.
pub(super) fn mark(disk: &dyn Disk, paths: &RunPaths, ids: &[String]) -> io::Result<()> {
    for id in ids {
        match disk.create_new(&paths.signals().join(format!("{}{DONE_SUFFIX}", stem(id)))) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => drop(file?),
        }
        match disk.remove(&paths.signals().join(format!("{}{MESSAGE_SUFFIX}", stem(id)))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Returns those of these ids that were left as signals: only what is there can be taken in.
pub(super) fn known(disk: &dyn Disk, paths: &RunPaths, ids: &[String]) -> Result<Vec<String>, StoreError> {
    let mut known = Vec::with_capacity(ids.len());
    for id in ids {
        let path = paths.signals().join(format!("{}{MESSAGE_SUFFIX}", stem(id)));
        match disk.metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(read_error(&path, source)),
            Ok(_) => known.push(id.clone()),
        }
    }
    Ok(known)
}

/// Returns the signals not taken in, oldest first. `consumed` are those that the caller knows to be.
pub(super) fn pending(
    reader: &RunReader<'_>,
    consumed: Option<&BTreeSet<String>>,
) -> Result<Vec<Signal>, StoreError> {
    let folder = reader.paths.signals();
    let names = files_in(reader.disk, &folder).map_err(|source| read_error(&folder, source))?;
    let done: BTreeSet<&str> = names.iter().filter_map(|name| name.strip_suffix(DONE_SUFFIX)).collect();
    let open = names.iter().filter_map(|name| name.strip_suffix(MESSAGE_SUFFIX));
    let mut found = Vec::new();
    for stem in open.filter(|stem| !done.contains(stem)) {
        let name = format!("{stem}{MESSAGE_SUFFIX}");
        let path = folder.join(&name);
        let text = reader.disk.read(&path, FILE_BYTES_MAX).map_err(|source| read_error(&path, source))?;
        match SignalFile::open(&text) {
            Ok(file) => found.push(file),
            // A writer goes on without a message that nobody can read; who asks for messages is told.
            Err(_) if consumed.is_some() => {}
            Err(flaw) => return Err(damaged(reader, &name, flaw)),
        }
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let read;
    let consumed = match consumed {
        Some(consumed) => consumed,
        None => {
            let taken = |taken: &mut BTreeSet<String>, commit: &Commit| {
                taken.extend(commit.consumed.iter().cloned());
                false
            };
            read = reader.walk(Bodies::Drop, taken)?.1;
            &read
        }
    };
    found.retain(|file| !consumed.contains(&file.signal.id));
    found.sort_by_key(|file| file.ordinal);
    Ok(found.into_iter().map(|file| file.signal).collect())
}

fn damaged(reader: &RunReader<'_>, name: &str, flaw: Flaw) -> StoreError {
    let damage = Damage {
        run: reader.run.clone(),
        branch: crate::id::BranchPath::main(),
        seq: 0,
        place: format!("{SIGNALS}/{name}"),
        flaw,
    };
    StoreError::of_damage(damage, None)
}
