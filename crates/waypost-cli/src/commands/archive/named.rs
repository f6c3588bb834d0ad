//! The files of a run, compared with its records.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use jiff::Timestamp;
use waypost::id::Digester;
use waypost::record::{FrontierEntry, Record};
use waypost::store::{FILES_BLOB, Store, StoreError};
use waypost::{Digest, RunId};
use waypost_workflow::log::{LOG_DATABASE_BYTES_MAX, LOG_HEAD_BYTES_MAX, LOG_TAIL_BYTES_MAX};
use waypost_workflow::program::log_name;

use super::contents::{Missing, Writer};
use super::not_written;
use crate::commands::once;
use crate::error::Error;

/// A file, as its record describes it.
#[derive(Debug, Clone, Copy)]
struct FileEntry {
    bytes: u64,
    digest: Digest,
    /// Of a log, the kept bytes: the middle may have been dropped, and the beginning may be from an earlier attempt.
    log_bytes_max: Option<u64>,
}

/// The files named by records, by their names in the run's folder.
#[derive(Debug, Default)]
pub(super) struct NamedFiles {
    told: BTreeMap<String, FileEntry>,
    /// Present files that do not match their record.
    other: BTreeMap<String, String>,
    /// Kept bytes of a log.
    log_bytes_max: u64,
}

impl NamedFiles {
    /// Makes an empty list for a run.
    pub(super) fn of(store: &dyn Store, run: &RunId) -> Self {
        let log_bytes_max = match store.blobs().log_folder(run) {
            Some(_) => LOG_HEAD_BYTES_MAX + LOG_TAIL_BYTES_MAX,
            None => LOG_DATABASE_BYTES_MAX,
        };
        Self { log_bytes_max: log_bytes_max as u64, ..Self::default() }
    }

    /// Adds the files named by a record: the log of the ended attempt, and frozen items.
    pub(super) fn take(&mut self, record: &Record) {
        let header = record.header();
        let printed = header.phase.ending().and_then(|ending| ending.log.as_ref());
        if let Some((printed, step)) = printed.zip(header.step.as_ref()) {
            let told = FileEntry {
                bytes: printed.bytes,
                digest: printed.digest,
                log_bytes_max: Some(self.log_bytes_max),
            };
            self.told.insert(log_name(&header.scope, step, &header.at), told);
        }
        // If retention dropped the position, its items are not needed any more.
        let position = record.position().unwrap_or_default();
        let fans = position.open_entries().flat_map(FrontierEntry::fans);
        for items in fans.filter_map(|fan| fan.items.as_ref()) {
            self.take_blob(&items.blob, items.bytes, items.digest);
        }
    }

    /// Adds the memoized outputs of a script's run.
    pub(super) async fn take_memos(&mut self, store: &dyn Store, run: &RunId) -> Result<(), Error> {
        for (blob, bytes, digest) in once::blobs(store, run).await? {
            self.take_blob(&blob, bytes, digest);
        }
        Ok(())
    }

    /// Adds the files of the submission.
    pub(super) async fn take_submitted(&mut self, store: &dyn Store, run: &RunId) -> Result<(), Error> {
        let files = whole_blob(store, run, FILES_BLOB).await?;
        if !files.is_empty() {
            self.take_blob(FILES_BLOB, files.len() as u64, Digest::of(&files));
        }
        Ok(())
    }

    fn take_blob(&mut self, blob: &str, bytes: u64, digest: Digest) {
        self.told.insert(format!("blobs/{blob}"), FileEntry { bytes, digest, log_bytes_max: None });
    }

    /// Returns the missing and different files, after all files were packed.
    pub(super) fn missing(self, folder: Option<&Path>) -> Vec<Missing> {
        let Self { told, mut other, .. } = self;
        for name in told.into_keys() {
            let is_there = folder.is_some_and(|folder| folder.join(&name).symlink_metadata().is_ok());
            let why = if is_there { "is not a regular file" } else { "is missing" };
            other.insert(name, why.to_owned());
        }
        other.into_iter().map(|(name, why)| Missing { name: format!("files/{name}"), why }).collect()
    }

    /// Notes a present file.
    fn found(&mut self, name: &str, seen: SeenFiles) {
        if let Some(why) = self.told.remove(name).and_then(|told| seen.differs_from(told)) {
            self.other.insert(name.to_owned(), why);
        }
    }
}

/// Packs the files of a run into its archive.
pub(super) struct Files<'a> {
    pub(super) writer: &'a mut Writer,
    pub(super) named: &'a mut NamedFiles,
    pub(super) time: Timestamp,
    /// The archive.
    pub(super) file: &'a Path,
}

impl Files<'_> {
    /// Packs the named logs and lists of a run in a database.
    pub(super) async fn pack_blobs(&mut self, store: &dyn Store, run: &RunId) -> Result<(), Error> {
        let names: Vec<String> = self.named.told.keys().cloned().collect();
        for name in names {
            let blob = whole_blob(store, run, name.strip_prefix("blobs/").unwrap_or(&name)).await?;
            if !blob.is_empty() {
                let written = self.writer.put(&format!("files/{name}"), &blob, self.time);
                written.map_err(|source| not_written(self.file, source))?;
                let told = self.named.told.get(&name).map_or(0, |told| told.bytes);
                let end = &blob[blob.len().saturating_sub(usize::try_from(told).unwrap_or(usize::MAX))..];
                self.named.found(&name, SeenFiles { bytes: blob.len() as u64, end: Digest::of(end) });
            } else if self.named.told.get(&name).is_some_and(|told| told.bytes == 0) {
                self.named.told.remove(&name);
            }
        }
        Ok(())
    }

    /// Packs a file, or all files below a folder, in order of name. Other types do not belong to a run.
    ///
    /// # Errors
    /// [`StoreError::Io`] names an unreadable file; other errors are about writing the archive.
    pub(super) fn pack(&mut self, path: &Path, name: &str) -> Result<(), Error> {
        let Ok(kind) = fs::symlink_metadata(path) else { return Ok(()) };
        if kind.is_file() {
            return self.put(path, name);
        }
        if !kind.is_dir() {
            return Ok(());
        }
        let entries = fs::read_dir(path).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let mut entries = entries.map_err(|source| not_read(path, source))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let Ok(below) = entry.file_name().into_string() else { continue };
            self.pack(&entry.path(), &format!("{name}/{below}"))?;
        }
        Ok(())
    }

    fn put(&mut self, path: &Path, name: &str) -> Result<(), Error> {
        let open = || {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, bytes) = open().map_err(|source| not_read(path, source))?;
        let told = self.named.told.get(name).map_or(0, |told| told.bytes);
        let skip = bytes.saturating_sub(told);
        let mut seen = Watched { file, skip, digester: Digester::default(), failure: None };
        let written = self.writer.put_from(&format!("files/{name}"), (&mut seen, bytes), self.time);
        match (seen.failure, written) {
            (Some(source), _) => return Err(not_read(path, source)),
            (None, written) => written.map_err(|source| not_written(self.file, source))?,
        }
        self.named.found(name, SeenFiles { bytes, end: seen.digester.finish() });
        Ok(())
    }
}

/// Reads a blob of a run; empty for a missing blob.
async fn whole_blob(store: &dyn Store, run: &RunId, name: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    loop {
        let chunk = store.blobs().read(run, name, bytes.len() as u64).await?;
        if chunk.is_empty() {
            return Ok(bytes);
        }
        bytes.extend(chunk);
    }
}

fn not_read(path: &Path, source: io::Error) -> Error {
    StoreError::Io { action: "read", place: path.display().to_string(), source }.into()
}

/// A file during its read: hashes its end, and separates read errors from errors of the archive.
struct Watched {
    file: File,
    /// Bytes left before the hashed end.
    skip: u64,
    digester: Digester,
    failure: Option<io::Error>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.file.read(buffer) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                let kind = error.kind();
                self.failure = Some(error);
                return Err(kind.into());
            }
            answer => answer?,
        };
        let skipped = count.min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        self.skip -= skipped as u64;
        self.digester.update(&buffer[skipped..count]);
        Ok(count)
    }
}

/// A file as found.
struct SeenFiles {
    bytes: u64,
    /// The digest of the last bytes, as many as the record names, if the file is long enough.
    end: Digest,
}

impl SeenFiles {
    /// Returns the difference from the record, if any.
    fn differs_from(&self, told: FileEntry) -> Option<String> {
        if let Some(kept) = told.log_bytes_max.filter(|kept| told.bytes > *kept) {
            // A line between the two parts counts the dropped bytes.
            let is_short = self.bytes <= kept;
            return is_short.then(|| format!("has {} bytes, but at least {kept} were kept", self.bytes));
        }
        if self.bytes < told.bytes || (told.log_bytes_max.is_none() && self.bytes != told.bytes) {
            return Some(format!("has {} bytes, but {} in the record", self.bytes, told.bytes));
        }
        (self.end != told.digest).then(|| "does not match the digest in the record".to_owned())
    }
}
