//! Files of a submission: a copy in the store, unpacked by each worker into a private folder.
//!
//! The copy is a compressed archive in a blob of the run. The setting of the run has its digest.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use waypost::evidence::{check_pattern, reaches};
use waypost::record::RunRecord;
use waypost::store::{FILES_BLOB, Store};
use waypost::{Digest, RunId};
use waypost_workflow::file::{Workflow, separated};
use waypost_workflow::mask::Mask;
use waypost_workflow::program::{Purpose, TemporaryFolder};

use crate::error::Error;

/// The run setting with the digest of the archive.
pub(crate) const FILES: &str = "files";
/// Most bytes of all files: the archive is in memory, and in a single statement.
const FILES_BYTES_MAX: u64 = 64 << 20;
/// Compression level: fast, as the archive is written once and read by each step.
const LEVEL: i32 = 3;

/// The packed files of a submission.
#[derive(Debug)]
pub(crate) struct IncludedFiles {
    pub(crate) archive: Vec<u8>,
    /// The number of files.
    pub(crate) count: usize,
}

impl IncludedFiles {
    /// Packs the files beneath a folder that patterns name, and the workflow files. A pattern of a folder names all
    /// files in the folder. Names with a leading dot must be named.
    ///
    /// # Errors
    /// [`Error::Usage`]: a pattern names no file, a link or a special file, the files are too large, or one has a secret.
    pub(crate) fn pack(
        (base, file): (&Path, &Path),
        patterns: &[String],
        workflow: &Workflow,
        mask: &Mask,
    ) -> Result<Self, Error> {
        let mut files = BTreeMap::new();
        for pattern in patterns {
            check_pattern(pattern).map_err(|why| refused(pattern, &why))?;
            let before = files.len();
            find(base, Path::new(""), pattern, &mut files)?;
            if files.len() == before && !files.keys().any(|name: &String| reaches(pattern, name)) {
                return Err(refused(pattern, "no file has such a path"));
            }
        }
        let (main, children) = separated(workflow.text());
        let main = (file.file_name().unwrap_or_default().to_string_lossy().into_owned(), main);
        let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), LEVEL).map_err(Error::Runtime)?);
        let mut bytes = 0;
        for (name, text) in children.into_iter().chain([main]) {
            files.remove(&name);
            put(&mut archive, &name, (text.as_bytes(), 0o644))
                .map_err(|error| refused(&name, &error.to_string()))?;
            bytes += text.len() as u64;
        }
        for (name, path) in &files {
            let unreadable = |source| Error::Unreadable { path: path.clone(), source };
            let mut content = Vec::new();
            let opened = fs::File::open(path).map_err(unreadable)?;
            let mode = opened.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
            opened.take(FILES_BYTES_MAX + 1).read_to_end(&mut content).map_err(unreadable)?;
            bytes += content.len() as u64;
            if bytes > FILES_BYTES_MAX {
                let why = format!("all files together exceed {} MiB", FILES_BYTES_MAX >> 20);
                return Err(refused(name, &why));
            }
            if mask.contains(&content) {
                return Err(refused(name, "the file contains a secret"));
            }
            put(&mut archive, name, (&content, mode)).map_err(|error| refused(name, &error.to_string()))?;
        }
        let archive = archive.into_inner().and_then(zstd::Encoder::finish).map_err(Error::Runtime)?;
        Ok(Self { archive, count: files.len() })
    }

    /// Returns the setting of the run.
    pub(crate) fn setting(&self) -> Value {
        json!(Digest::of(&self.archive).to_string())
    }
}

fn refused(name: &str, why: &str) -> Error {
    Error::usage(
        format!("cannot include `{name}`: {why}"),
        "`--include` names files and folders below the folder of the steps, with `*`, `?` and `**`",
    )
}

/// Adds the files in a folder that a pattern names, by their path from the base folder.
fn find(
    base: &Path,
    folder: &Path,
    pattern: &str,
    files: &mut BTreeMap<String, PathBuf>,
) -> Result<(), Error> {
    let place = base.join(folder);
    let unreadable = |source| Error::Unreadable { path: place.clone(), source };
    for entry in fs::read_dir(&place).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (kind, path) = (entry.file_type().map_err(unreadable)?, folder.join(entry.file_name()));
        let name = path.to_string_lossy().into_owned();
        if kind.is_dir() {
            find(base, &path, pattern, files)?;
        } else if reaches(pattern, &name) {
            if !kind.is_file() {
                return Err(refused(&name, "it is a link or a special file"));
            }
            files.insert(name, entry.path());
        }
    }
    Ok(())
}

/// Adds a file without owner and time, so that equal files make equal archives.
fn put<W: io::Write>(
    archive: &mut tar::Builder<W>,
    name: &str,
    (content, mode): (&[u8], u32),
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    archive.append_data(&mut header, name, content)
}

/// Unpacks the files of a run into a private folder; `None` for a run without files. The drop removes the folder.
///
/// # Errors
/// [`Error::NotUnpacked`]: the archive is damaged, or the disk is full.
pub(crate) async fn unpack(
    store: &dyn Store,
    run: &RunId,
    record: &RunRecord,
) -> Result<Option<TemporaryFolder>, Error> {
    let Some(digest) = record.settings.get(FILES).and_then(Value::as_str) else { return Ok(None) };
    let mut archive = Vec::new();
    loop {
        let chunk = store.blobs().read(run, FILES_BLOB, archive.len() as u64).await?;
        if chunk.is_empty() {
            break;
        }
        archive.extend(chunk);
    }
    let unpacked = match Digest::of(&archive).to_string() == digest {
        true => unpack_archive(&archive),
        false => Err(io::Error::other("the archive differs from its digest")),
    };
    unpacked.map(Some).map_err(|source| Error::NotUnpacked { run: run.clone(), source })
}

fn unpack_archive(archive: &[u8]) -> io::Result<TemporaryFolder> {
    let folder = TemporaryFolder::make(Purpose::Files)?;
    tar::Archive::new(zstd::Decoder::new(archive)?).unpack(folder.path())?;
    Ok(folder)
}
