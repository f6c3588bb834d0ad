//! `waypost archive`: everything of a run in one file, which can be read without Waypost and without its store.
//!
//! ```text
//!   RUN.tar.zst
//!     run.json                  the frozen record, to the byte
//!     checkpoints/000001.jsonl  every checkpoint, branch by branch, oldest first: digest, header, body
//!     checkpoint.json           the newest one, as `export` writes it: what `import` goes on from
//!     workflow.yaml             the definition in force
//!     files/                    events.jsonl, report.md, logs/, items/
//!     manifest.json             what the run is, and size and SHA-256 of all of these
//! ```
//!
//! It is written beside its name, read back and compared with its manifest, and only then named: what is there is whole.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use waypost::engine::Snapshot;
use waypost::folder::REPORT;
use waypost::portable::{ExportError, PORTABLE_BYTES_MAX, Portable};
use waypost::record::{Record, RunStatus};
use waypost::store::{Scan, Store, StoreError};
use waypost::{Digest, RunId};

use super::Context;
use super::verify::verify_run;
use crate::cli::ArchiveArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::place::Access;
use crate::reference::{Default, find};
use crate::size;
use crate::view::{ArchivedView, VERSION};

/// The version of the layout of an archive.
const ARCHIVE_FORMAT: u32 = 1;
/// How many bytes of checkpoints go into a file of them, about.
const CHUNK_BYTES: usize = 8 << 20;
/// What is taken of the folder of a run: what is for people, and what records rely on.
const FILES: [&str; 4] = ["events.jsonl", REPORT, "logs", "items"];
/// How hard is compressed: what makes logs small and costs little.
const LEVEL: i32 = 6;
/// With which bytes such a file begins (RFC 8878, 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The entry that a run can begin with.
const CHECKPOINT: &str = "checkpoint.json";
const MANIFEST: &str = "manifest.json";

pub(crate) async fn archive(context: &Context, args: ArchiveArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    let entry = store.run(&run).await?;
    if entry.summary.holder.is_some() {
        return Err(StoreError::Held { run, holder: entry.summary.holder }.into());
    }
    if !verify_run(store.as_ref(), &run).await?.sound {
        return Err(Error::Unsound { run });
    }
    if args.file.exists() && !args.replace {
        let message = format!("{} exists already", args.file.display());
        return Err(Error::usage(message, "`--replace` takes its place"));
    }
    let folder = match args.file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let failed = |source: io::Error| not_written(&args.file, source);
    let temp = tempfile::Builder::new()
        .prefix(".tmp-")
        .tempfile_in(&folder)
        .map_err(|source| Error::Create { path: args.file.clone(), source: source.kind().into() })?;
    let writer = Writer::new(temp.as_file().try_clone().map_err(failed)?).map_err(failed)?;
    let (manifest, why_not) = pack(store.as_ref(), &run, writer, context.now(), &args.file).await?;
    let after = store.run(&run).await?.summary;
    if after.holder.is_some() || after.checkpoints != entry.summary.checkpoints {
        // What was read is of several moments.
        return Err(StoreError::Held { run, holder: after.holder }.into());
    }
    temp.as_file().sync_all().map_err(failed)?;
    check(temp.path(), &manifest).map_err(failed)?;
    let named = match args.replace {
        true => temp.persist(&args.file),
        false => temp.persist_noclobber(&args.file),
    };
    let file = named.map_err(|error| failed(error.error))?;
    File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
    let bytes = file.metadata().map_or(0, |file| file.len());
    let (checkpoints, file) = (manifest.checkpoints, args.file.display().to_string());
    if let Some(why) = &why_not {
        context.output.warn(&format!("no run can begin with this archive: {why}"));
    }
    if context.output.json {
        let (v, run) = (VERSION, run.to_string());
        context.output.document(&ArchivedView { v, run, file, bytes, checkpoints })?;
        return Ok(Exit::Done);
    }
    let (file, bytes) = (crate::output::shown(&file), size::shown(bytes));
    context.output.answer(&format!("Archived run {run} in {file} ({checkpoints} checkpoints, {bytes})"))?;
    context.output.note(&format!(
        "It holds params, states, logs and commands as they are. `waypost delete {run}{}` frees the store.",
        context.store_words()
    ));
    Ok(Exit::Done)
}

fn not_written(path: &Path, source: io::Error) -> Error {
    StoreError::of_write("write", path.display().to_string(), source).into()
}

/// What an archive says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    v: u32,
    run: String,
    workflow: String,
    status: RunStatus,
    created_at: Timestamp,
    archived_at: Timestamp,
    tool: String,
    checkpoints: u64,
    files: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    sha256: String,
}

impl Entry {
    fn of(name: &str, bytes: &[u8]) -> Self {
        Self { name: name.to_owned(), bytes: bytes.len() as u64, sha256: Digest::of(bytes).to_string() }
    }
}

/// Puts files one behind the other, and remembers them.
struct Writer {
    tar: tar::Builder<zstd::Encoder<'static, io::BufWriter<File>>>,
    entries: Vec<Entry>,
}

impl Writer {
    fn new(file: File) -> io::Result<Self> {
        let encoder = zstd::Encoder::new(io::BufWriter::new(file), LEVEL)?;
        Ok(Self { tar: tar::Builder::new(encoder), entries: Vec::new() })
    }

    fn put(&mut self, name: &str, bytes: &[u8], time: Timestamp) -> io::Result<()> {
        self.entries.push(Entry::of(name, bytes));
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(time.as_second()).unwrap_or(0));
        self.tar.append_data(&mut header, name, bytes)
    }

    fn finish(self) -> io::Result<()> {
        self.tar.into_inner()?.finish()?.flush()
    }
}

/// Writes all of a run; returns what it said of it, and why no run can begin with it, if none can.
async fn pack(
    store: &dyn Store,
    run: &RunId,
    mut writer: Writer,
    now: Timestamp,
    file: &Path,
) -> Result<(Manifest, Option<String>), Error> {
    let failed = |source: io::Error| not_written(file, source);
    let snapshot = Snapshot::read(store, run).await?;
    let (frozen, summary) = (&snapshot.entry.record, &snapshot.entry.summary);
    let time = summary.updated_at;
    writer.put("run.json", frozen.bytes(), time).map_err(failed)?;
    let checkpoints = pack_checkpoints(store, run, &mut writer, (time, file)).await?;
    let newest = snapshot.newest().header().reference();
    let why_not = match Portable::of(store, &newest).await {
        Ok(portable) => {
            writer.put(CHECKPOINT, &portable.to_text(), time).map_err(failed)?;
            None
        }
        Err(ExportError::Store(error)) => return Err(error.into()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(text) = &snapshot.definition.text {
        writer.put("workflow.yaml", text.as_bytes(), time).map_err(failed)?;
    }
    if let Some(folder) = store.folder(run) {
        for name in FILES {
            pack_files(&folder.join(name), &format!("files/{name}"), &mut writer, time).map_err(failed)?;
        }
    }
    let record = frozen.record();
    let manifest = Manifest {
        v: ARCHIVE_FORMAT,
        run: run.to_string(),
        workflow: record.workflow.clone(),
        status: snapshot.status(),
        created_at: record.created_at,
        archived_at: now,
        tool: concat!("waypost ", env!("CARGO_PKG_VERSION")).to_owned(),
        checkpoints,
        files: std::mem::take(&mut writer.entries),
    };
    let mut text = serde_json::to_vec_pretty(&manifest).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    writer.put(MANIFEST, &text, now).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok((manifest, why_not))
}

async fn pack_checkpoints(
    store: &dyn Store,
    run: &RunId,
    writer: &mut Writer,
    (time, file): (Timestamp, &Path),
) -> Result<u64, Error> {
    let (mut scan, mut text, mut count, mut files) = (Scan::of(run), Vec::new(), 0_u64, 0_u32);
    let mut put = |text: &mut Vec<u8>| {
        files += 1;
        let written = writer.put(&format!("checkpoints/{files:06}.jsonl"), text, time);
        text.clear();
        written.map_err(|source| not_written(file, source))
    };
    loop {
        let page = store.scan(&scan).await?;
        for record in &page.records {
            let header = record.header();
            let whole = store.load(run, &header.branch, header.seq).await?;
            text.extend(line_of(&whole));
            text.push(b'\n');
            count += 1;
            if text.len() >= CHUNK_BYTES {
                put(&mut text)?;
            }
        }
        match page.next {
            Some(cursor) => scan.cursor = Some(cursor),
            None if text.is_empty() => return Ok(count),
            None => return put(&mut text).map(|()| count),
        }
    }
}

/// A checkpoint as a line of JSON: its header and, where it carries one, its body, which is position, newline, state. What
/// is no JSON on one line is in Base64, so that the digests can be checked on the very bytes.
fn line_of(record: &Record) -> Vec<u8> {
    let json = |bytes: &[u8]| -> Option<String> {
        let text = serde_json::from_slice::<&RawValue>(bytes).ok().filter(|_| !bytes.contains(&b'\n'))?;
        (text.get().len() == bytes.len()).then(|| text.get().to_owned())
    };
    let base64 = |bytes: &[u8]| json!({ "base64": BASE64.encode(bytes) }).to_string();
    let header = record.header_bytes();
    let header = json(header).unwrap_or_else(|| base64(header));
    let body = record.body_bytes().map_or_else(
        || "null".to_owned(),
        |body| {
            let at = record.header().body.as_ref().map_or(0, |body| body.position_bytes as usize);
            let parts = body.get(..at).zip(body.get(at..)).and_then(|(position, rest)| {
                let state = rest.strip_prefix(b"\n")?;
                Some(format!("{{\"position\":{},\"state\":{}}}", json(position)?, json(state)?))
            });
            parts.unwrap_or_else(|| base64(body))
        },
    );
    let digest = record.digest();
    format!("{{\"digest\":\"{digest}\",\"header\":{header},\"body\":{body}}}").into_bytes()
}

/// Takes a file, or all files below a folder, in the order of their names. What is neither is no part of a run.
fn pack_files(path: &Path, name: &str, writer: &mut Writer, time: Timestamp) -> io::Result<()> {
    let Ok(kind) = fs::symlink_metadata(path) else { return Ok(()) };
    if kind.is_file() {
        return writer.put(name, &fs::read(path)?, time);
    }
    if !kind.is_dir() {
        return Ok(());
    }
    let mut names: Vec<_> = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    names.sort_by_key(fs::DirEntry::file_name);
    for entry in names {
        let Ok(below) = entry.file_name().into_string() else { continue };
        pack_files(&entry.path(), &format!("{name}/{below}"), writer, time)?;
    }
    Ok(())
}

/// Reads an archive and compares it with its manifest.
fn check(path: &Path, manifest: &Manifest) -> io::Result<()> {
    let decoder = zstd::Decoder::new(File::open(path)?)?;
    let mut found = Vec::with_capacity(manifest.files.len());
    for entry in tar::Archive::new(decoder).entries()? {
        let mut entry = entry?;
        let name = entry.path()?.display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        if name != MANIFEST {
            found.push(Entry::of(&name, &bytes));
        }
    }
    match found == manifest.files {
        true => Ok(()),
        false => Err(io::Error::other("what was written is not what is there")),
    }
}

/// Reads the checkpoint that a run can begin with out of an archive; none if the file is no archive.
///
/// # Errors
/// The archive is not whole, or has no such checkpoint.
pub(super) fn checkpoint_in(path: &Path) -> Option<io::Result<Vec<u8>>> {
    let mut file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|file| file.is_file()))?;
    let mut begin = [0; MAGIC.len()];
    (file.read_exact(&mut begin).is_ok() && begin == MAGIC).then(|| read_checkpoint(path))
}

fn read_checkpoint(path: &Path) -> io::Result<Vec<u8>> {
    let decoder = zstd::Decoder::new(File::open(path)?)?;
    for entry in tar::Archive::new(decoder).entries()? {
        let entry = entry?;
        if entry.path()?.as_os_str() == CHECKPOINT {
            let mut text = Vec::new();
            entry.take(PORTABLE_BYTES_MAX).read_to_end(&mut text)?;
            return Ok(text);
        }
    }
    Err(io::Error::other("it has no checkpoint that a run can begin with"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(files: Vec<Entry>) -> Manifest {
        let (v, checkpoints, now) = (ARCHIVE_FORMAT, 0, Timestamp::UNIX_EPOCH);
        let (run, workflow, tool) = ("r".to_owned(), "w".to_owned(), "t".to_owned());
        let status = RunStatus::Completed;
        Manifest { v, run, workflow, status, created_at: now, archived_at: now, tool, checkpoints, files }
    }

    #[test]
    fn what_is_not_as_it_was_written_is_seen() {
        let file = tempfile::NamedTempFile::new().expect("a folder for temporary files");
        let mut writer = Writer::new(file.reopen().expect("it is there")).expect("zstd begins");
        for (name, bytes) in [("run.json", &b"one"[..]), ("files/log", b"two")] {
            writer.put(name, bytes, Timestamp::UNIX_EPOCH).expect("it is written");
        }
        let written = writer.entries.clone();
        writer.finish().expect("it is written");

        assert!(check(file.path(), &manifest(written.clone())).is_ok());
        let other = Entry::of("files/log", b"tow");
        for wrong in [vec![written[0].clone()], vec![written[0].clone(), other], Vec::new()] {
            assert!(check(file.path(), &manifest(wrong.clone())).is_err(), "{wrong:?}");
        }
        let whole = fs::read(file.path()).expect("it is there");
        fs::write(file.path(), &whole[..whole.len() / 2]).expect("it is written");
        assert!(check(file.path(), &manifest(written)).is_err(), "it was cut");
    }
}
