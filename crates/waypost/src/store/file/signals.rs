//! Signals as files: `signals/HASH.json` is a message; `signals/HASH.done` replaces a consumed message.
//!
//! The name is a hash of the signal id, so an id has the same file forever. A signal is consumed as soon as its
//! id is in a commit file. The `.done` mark follows that commit, and is made again before the commit file is
//! removed. The message file is removed at the same time: it may hold a secret, and only the consuming session
//! knows and masks that secret.

use std::collections::BTreeSet;
use std::io;

use crate::id::Digest;
use crate::record::Flaw;
use crate::store::folder::{create_temp, remove_leftovers};
use crate::store::{Damage, Signal, Signalled, StoreError};
use crate::system::disk::{Disk, write_whole};

use super::format::{CommitFile, FILE_BYTES_MAX, SignalFile, Small};
use super::paths::{RunPaths, SIGNALS, files_in};
use super::read::{Bodies, RunReader, read_error};

const MESSAGE_SUFFIX: &str = ".json";
const DONE_SUFFIX: &str = ".done";

fn stem(id: &str) -> String {
    Digest::of(id.as_bytes()).to_string()[..32].to_owned()
}

/// Writes a signal. The caller holds the store lock, so no other sender is active.
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
    // Each signal leaves a message or a mark, so this count always increases.
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

/// Marks signals as consumed, and removes the messages. Not synced.
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

/// Returns the ids with an existing message: only an existing signal can be consumed.
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

/// Returns the unconsumed signals, oldest first. `consumed` are signals that the caller knows as consumed.
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
            // A writer skips an unreadable message; other callers get the error.
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
            let taken = |taken: &mut BTreeSet<String>, commit: &CommitFile| {
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
        scope: crate::id::ScopePath::main(),
        seq: 0,
        place: format!("{SIGNALS}/{name}"),
        flaw,
    };
    StoreError::of_damage(damage, None)
}
