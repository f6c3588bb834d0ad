//! The archive file: members in sequence, and a manifest at the end with their hashes.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use waypost::id::Digester;
use waypost::portable::{LoadError, PORTABLE_BYTES_MAX};
use waypost::record::{Flaw, RunStatus};
use waypost::store::Signal;

/// The version of the layout of an archive.
pub(super) const ARCHIVE_FORMAT: u32 = 1;
/// The member for `import`.
pub(super) const CHECKPOINT: &str = "checkpoint.json";
/// The member with pending answers and signals, if any.
pub(super) const SIGNALS: &str = "signals.jsonl";
/// The last member.
pub(super) const MANIFEST: &str = "manifest.json";
/// Compression level: small logs at a low cost.
const LEVEL: i32 = 6;
/// The first bytes of such a file (RFC 8878, 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes per read.
const READ_BYTES: usize = 64 << 10;

/// The manifest of an archive.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) v: u32,
    pub(super) run: String,
    pub(super) workflow: String,
    pub(super) status: RunStatus,
    pub(super) created_at: Timestamp,
    pub(super) archived_at: Timestamp,
    pub(super) tool: String,
    pub(super) checkpoints: u64,
    pub(super) files: Vec<Entry>,
    /// Files named by records that are missing or different in the archive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) missing: Vec<Missing>,
}

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    name: String,
    bytes: u64,
    sha256: String,
}

/// A log or blob with a mismatch to its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Missing {
    /// The name in the archive.
    pub(super) name: String,
    /// The mismatch.
    pub(super) why: String,
}

/// Writes members, and collects their manifest entries.
pub(super) struct Writer {
    tar: tar::Builder<zstd::Encoder<'static, io::BufWriter<File>>>,
    pub(super) entries: Vec<Entry>,
}

impl Writer {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let mut encoder = zstd::Encoder::new(io::BufWriter::new(file), LEVEL)?;
        encoder.include_checksum(true)?;
        Ok(Self { tar: tar::Builder::new(encoder), entries: Vec::new() })
    }

    pub(super) fn put(&mut self, name: &str, bytes: &[u8], time: Timestamp) -> io::Result<()> {
        self.put_from(name, (bytes, bytes.len() as u64), time)
    }

    /// Writes `bytes` bytes from a reader.
    ///
    /// # Errors
    /// Those of both sides; [`io::ErrorKind::UnexpectedEof`]: the reader has fewer bytes.
    pub(super) fn put_from(
        &mut self,
        name: &str,
        (content, bytes): (impl Read, u64),
        time: Timestamp,
    ) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(time.as_second()).unwrap_or(0));
        let mut hashed = Hashed { content: content.take(bytes), digester: Digester::default(), bytes: 0 };
        self.tar.append_data(&mut header, name, &mut hashed)?;
        let Hashed { digester, bytes: found, .. } = hashed;
        if found != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.entries.push(Entry { name: name.to_owned(), bytes, sha256: digester.finish().to_string() });
        Ok(())
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.tar.into_inner()?.finish()?.flush()
    }
}

/// Hashes the bytes read through it.
struct Hashed<R> {
    content: R,
    digester: Digester,
    bytes: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.digester.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

/// The contents of a fully read archive.
struct Contents {
    /// All members but the manifest.
    entries: Vec<Entry>,
    manifest: Vec<u8>,
    checkpoint: Option<Vec<u8>>,
    signals: Option<Vec<u8>>,
}

/// The parts of an archive for a new run.
#[derive(Debug)]
pub(in crate::commands) struct Archived {
    /// The first checkpoint of the new run.
    pub(in crate::commands) checkpoint: Vec<u8>,
    /// Answers and signals given to the archived run, and not processed by its sessions.
    pub(in crate::commands) signals: Vec<Signal>,
}

impl Contents {
    /// Reads a whole archive; the checksum of the compressed data is compared at the end.
    fn read(path: &Path) -> io::Result<Self> {
        let mut tar = tar::Archive::new(zstd::Decoder::new(File::open(path)?)?);
        let mut contents =
            Self { entries: Vec::new(), manifest: Vec::new(), checkpoint: None, signals: None };
        for entry in tar.entries()? {
            contents.take(entry?)?;
        }
        io::copy(&mut tar.into_inner(), &mut io::sink())?;
        match contents.manifest.is_empty() {
            true => Err(io::Error::other("the archive has no manifest at its end")),
            false => Ok(contents),
        }
    }

    fn take(&mut self, mut entry: tar::Entry<'_, impl Read>) -> io::Result<()> {
        let name = entry.path()?.display().to_string();
        if !self.manifest.is_empty() {
            return Err(io::Error::other(format!("{name} follows the manifest")));
        }
        if name == MANIFEST {
            return entry.take(PORTABLE_BYTES_MAX).read_to_end(&mut self.manifest).map(drop);
        }
        let mut kept = [CHECKPOINT, SIGNALS].contains(&name.as_str()).then(Vec::new);
        let (mut digester, mut bytes, mut buffer) = (Digester::default(), 0, vec![0; READ_BYTES]);
        loop {
            let count = entry.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            bytes += count as u64;
            digester.update(&buffer[..count]);
            if let Some(kept) = kept.as_mut().filter(|_| bytes <= PORTABLE_BYTES_MAX) {
                kept.extend_from_slice(&buffer[..count]);
            }
        }
        match name == CHECKPOINT {
            true => self.checkpoint = kept,
            false => self.signals = kept.or(self.signals.take()),
        }
        self.entries.push(Entry { name, bytes, sha256: digester.finish().to_string() });
        Ok(())
    }
}

/// Reads an archive and compares it with its manifest.
pub(super) fn check(path: &Path, manifest: &Manifest) -> io::Result<()> {
    match Contents::read(path)?.entries == manifest.files {
        true => Ok(()),
        false => Err(io::Error::other("the file differs from the written bytes")),
    }
}

/// Reads the checkpoint for a new run from an archive, after checking the whole file; `None` if the file is
/// not an archive.
///
/// # Errors
/// [`LoadError::Corrupt`]: the archive is incomplete, or has no such checkpoint. [`LoadError::Incompatible`]: another
/// version wrote the archive.
pub(in crate::commands) fn checkpoint_in(path: &Path) -> Option<Result<Archived, LoadError>> {
    let mut file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|file| file.is_file()))?;
    let mut begin = [0; MAGIC.len()];
    (file.read_exact(&mut begin).is_ok() && begin == MAGIC).then(|| read_archived(path))
}

fn read_archived(path: &Path) -> Result<Archived, LoadError> {
    let corrupt = |what: String| LoadError::Corrupt { path: path.to_owned(), flaw: Flaw::Malformed(what) };
    let contents = Contents::read(path).map_err(|error| corrupt(error.to_string()))?;
    let (found, supported) = (version_of(&contents.manifest).map_err(corrupt)?, ARCHIVE_FORMAT);
    if found > supported {
        return Err(LoadError::Incompatible { path: path.to_owned(), found, supported });
    }
    let manifest: Manifest =
        serde_json::from_slice(&contents.manifest).map_err(|error| corrupt(error.to_string()))?;
    if let Some(what) = difference(&manifest.files, &contents.entries) {
        return Err(corrupt(what));
    }
    let signals = contents.signals.unwrap_or_default();
    let signals = serde_json::Deserializer::from_slice(&signals).into_iter().collect::<Result<_, _>>();
    let signals = signals.map_err(|error| corrupt(format!("cannot read {SIGNALS}: {error}")))?;
    let none = || corrupt("the archive has no checkpoint to start a run from".to_owned());
    Ok(Archived { checkpoint: contents.checkpoint.ok_or_else(none)?, signals })
}

/// Reads the layout version of a manifest.
fn version_of(manifest: &[u8]) -> Result<u32, String> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    serde_json::from_slice(manifest).map(|version: Version| version.v).map_err(|error| error.to_string())
}

/// Returns the difference between the members and the manifest, if any.
fn difference(told: &[Entry], found: &[Entry]) -> Option<String> {
    if let Some((told, _)) = told.iter().zip(found).find(|(told, found)| told != found) {
        return Some(format!("{} does not match the manifest", told.name));
    }
    (told.len() != found.len())
        .then(|| format!("the manifest lists {} files, the archive has {}", told.len(), found.len()))
}

#[cfg(test)]
mod tests {
    use waypost::Digest;

    use super::*;

    fn manifest(files: Vec<Entry>) -> Manifest {
        let (v, checkpoints, now) = (ARCHIVE_FORMAT, 0, Timestamp::UNIX_EPOCH);
        let (run, workflow, tool) = ("r".to_owned(), "w".to_owned(), "t".to_owned());
        let (status, missing) = (RunStatus::Completed, Vec::new());
        Manifest {
            v,
            run,
            workflow,
            status,
            created_at: now,
            archived_at: now,
            tool,
            checkpoints,
            files,
            missing,
        }
    }

    #[test]
    fn what_is_not_as_it_was_written_is_seen() {
        let file = tempfile::NamedTempFile::new().expect("a folder for temporary files");
        let mut writer = Writer::new(file.reopen().expect("it is there")).expect("zstd begins");
        for (name, bytes) in [("run.json", &b"one"[..]), ("files/log", b"two")] {
            writer.put(name, bytes, Timestamp::UNIX_EPOCH).expect("it is written");
        }
        let written = writer.entries.clone();
        writer.put(MANIFEST, b"{}", Timestamp::UNIX_EPOCH).expect("it is written");
        writer.finish().expect("it is written");

        assert!(check(file.path(), &manifest(written.clone())).is_ok());
        let other = Entry { sha256: Digest::of(b"tow").to_string(), ..written[1].clone() };
        for wrong in [vec![written[0].clone()], vec![written[0].clone(), other], Vec::new()] {
            assert!(check(file.path(), &manifest(wrong.clone())).is_err(), "{wrong:?}");
        }
        let whole = std::fs::read(file.path()).expect("it is there");
        std::fs::write(file.path(), &whole[..whole.len() / 2]).expect("it is written");
        assert!(check(file.path(), &manifest(written)).is_err(), "it was cut");
    }
}
