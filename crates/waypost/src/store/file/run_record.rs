//! `run.json` and its copy. The run depends on this record, and the record is never rewritten.
//!
//! Both files exist before the run gets its name, so a crash leaves both or none. A sound file suffices. The next
//! writer of the run restores the other file and keeps the damaged bytes in quarantine.

use std::io;

use crate::id::{RunId, ScopePath};
use crate::record::{Flaw, SealedRun};
use crate::store::{Damage, StoreError};
use crate::system::disk::Disk;

use super::format::{self, FILE_BYTES_MAX};
use super::paths::{RUN_COPY_FILE, RUN_FILE, RunPaths};
use super::read::read_error;
use super::write::Writer;

/// The ordinal of a run, and its record or the flaw.
pub(super) type FoundRun = (u64, Result<SealedRun, Flaw>);

/// Reads the run record. Returns the ordinal (0 if unknown) and the record or its flaw; `None` without a file.
pub(super) fn read_run(
    disk: &dyn Disk,
    run: &RunId,
    paths: &RunPaths,
) -> Result<Option<FoundRun>, StoreError> {
    let flaw = match read(disk, run, paths, RUN_FILE)? {
        Some(Ok((ordinal, sealed))) => return Ok(Some((ordinal, Ok(sealed)))),
        // A newer program wrote this file. The copy may be outdated, so it is not used.
        Some(Err(flaw @ Flaw::Format { .. })) => return Ok(Some((0, Err(flaw)))),
        Some(Err(flaw)) => Some(flaw),
        None => None,
    };
    Ok(match (read(disk, run, paths, RUN_COPY_FILE)?, flaw) {
        (Some(Ok((ordinal, sealed))), _) => Some((ordinal, Ok(sealed))),
        (Some(Err(flaw @ Flaw::Format { .. })), _) => Some((0, Err(flaw))),
        (_, Some(flaw)) => Some((0, Err(flaw))),
        (Some(Err(_)), None) => Some((0, Err(Flaw::Missing))),
        (None, None) => None,
    })
}

/// Reports which of the two files is damaged, if the other file is sound.
pub(super) fn findings(disk: &dyn Disk, run: &RunId, paths: &RunPaths) -> Result<Vec<String>, StoreError> {
    let said =
        |name: &str, flaw: &Flaw| vec![format!("one of the two run records is damaged ({name}): {flaw}")];
    Ok(match flawed(disk, run, paths)? {
        Some((name, flaw, _)) => said(name, &flaw),
        None => Vec::new(),
    })
}

/// Refuses a run that a newer program has created or taken over.
///
/// # Errors
/// [`StoreError::Version`].
pub(super) fn refuse_newer(disk: &dyn Disk, run: &RunId, paths: &RunPaths) -> Result<(), StoreError> {
    flawed(disk, run, paths).map(drop)
}

/// The name of the flawed file, the flaw, and the text to restore.
type Flawed = (&'static str, Flaw, Vec<u8>);

/// Returns the flawed file of the two, if the other file is sound.
///
/// # Errors
/// [`StoreError::Version`]: a file has a newer format. This is not damage, and the file must not be overwritten.
fn flawed(disk: &dyn Disk, run: &RunId, paths: &RunPaths) -> Result<Option<Flawed>, StoreError> {
    let found = |name| read(disk, run, paths, name).map(|found| found.unwrap_or(Err(Flaw::Missing)));
    let text = |(ordinal, sealed): &(u64, SealedRun)| format::seal_run(sealed, *ordinal);
    Ok(match (found(RUN_FILE)?, found(RUN_COPY_FILE)?) {
        (Err(flaw @ Flaw::Format { .. }), _) => return Err(of_flaw(run, RUN_FILE, flaw)),
        (_, Err(flaw @ Flaw::Format { .. })) => return Err(of_flaw(run, RUN_COPY_FILE, flaw)),
        (Err(flaw), Ok(sound)) => Some((RUN_FILE, flaw, text(&sound))),
        (Ok(sound), Err(flaw)) => Some((RUN_COPY_FILE, flaw, text(&sound))),
        _ => None,
    })
}

fn of_flaw(run: &RunId, name: &str, flaw: Flaw) -> StoreError {
    let (run, scope, place) = (run.clone(), ScopePath::main(), name.to_owned());
    StoreError::of_damage(Damage { run, scope, seq: 0, place, flaw }, None)
}

type Read = Result<(u64, SealedRun), Flaw>;

fn read(disk: &dyn Disk, run: &RunId, paths: &RunPaths, name: &str) -> Result<Option<Read>, StoreError> {
    let path = paths.root.join(name);
    match disk.read(&path, FILE_BYTES_MAX) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(read_error(&path, source)),
        Ok(text) => Ok(Some(format::open_run(run, &text))),
    }
}

impl Writer {
    /// Restores the damaged file of the two from the sound file.
    pub(super) fn mend_run_record(&mut self) -> Result<(), StoreError> {
        let disk = self.disk.clone();
        let Some((name, flaw, text)) = flawed(disk.as_ref(), &self.run, &self.paths)? else { return Ok(()) };
        if flaw != Flaw::Missing {
            self.copy_aside(name);
        }
        let (root, path) = (self.paths.root.clone(), self.paths.root.join(name));
        self.replace_file(&root, &path, &text)
    }
}
