//! `waypost archive`: all data of a run in one file, readable without Waypost and without the store.
//!
//! ```text
//!   RUN.tar.zst
//!     run.json                  the run record, exact bytes
//!     checkpoints/000001.jsonl  every checkpoint, scope by scope, oldest first: digest, header, body
//!     checkpoint.json           the newest checkpoint, in the format of `export`: the input of `import`
//!     workflow.yaml             the definition in force
//!     signals.jsonl             pending answers and signals, if any
//!     files/                    events.jsonl, report.md, logs/, blobs/
//!     manifest.json             facts about the run, size and SHA-256 of each member, and missing files
//! ```
//!
//! The file is written under a temporary name, read back, compared with its manifest, and then renamed: an
//! existing archive is complete.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::json;
use serde_json::value::RawValue;
use waypost::RunId;
use waypost::engine::Snapshot;
use waypost::folder::REPORT;
use waypost::portable::{ExportError, Portable};
use waypost::record::Record;
use waypost::store::{Scan, Store, StoreError};

use self::contents::{ARCHIVE_FORMAT, CHECKPOINT, MANIFEST, Manifest, Missing, SIGNALS, Writer};
use self::named::{Files, NamedFiles};
use super::Context;
use super::from_checkpoint::pending;
use super::verify::verify_run;
use crate::atomic_file;
use crate::cli::ArchiveArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::size;
use crate::format::text::counted;
use crate::run::reference::{Default, find};
use crate::store_location::Access;
use crate::view::{ArchivedView, MissingView, VERSION};

mod contents;
mod named;

pub(super) use self::contents::{Archived, checkpoint_in};

/// Approximate bytes of checkpoints per member.
const CHUNK_BYTES: usize = 8 << 20;
/// The archived parts of a run's folder: files for people, and data that records refer to.
const FILES: [&str; 4] = ["events.jsonl", REPORT, "logs", "blobs"];

pub(crate) async fn archive(context: &Context, args: ArchiveArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    let entry = store.run(&run).await?;
    if entry.summary.holder.is_some() {
        return Err(StoreError::Held { run, holder: entry.summary.holder, until: None }.into());
    }
    if !verify_run(store.as_ref(), &run).await?.sound {
        return Err(Error::Unsound { run });
    }
    atomic_file::refuse_taken(&args.file, args.replace)?;
    let folder = atomic_file::folder_of(&args.file);
    atomic_file::remove_left(&folder);
    let failed = |source: io::Error| not_written(&args.file, source);
    let temp = atomic_file::unfinished(&folder)
        .map_err(|source| Error::Create { path: args.file.clone(), source: source.kind().into() })?;
    let writer = Writer::new(temp.as_file().try_clone().map_err(failed)?).map_err(failed)?;
    let (manifest, why_not) = pack(store.as_ref(), &run, writer, context.now(), &args.file).await?;
    let after = store.run(&run).await?.summary;
    if after.holder.is_some() || after.checkpoints != entry.summary.checkpoints {
        // The run changed during the read.
        return Err(StoreError::Held { run, holder: after.holder, until: None }.into());
    }
    temp.as_file().sync_all().map_err(failed)?;
    contents::check(temp.path(), &manifest).map_err(failed)?;
    let file = atomic_file::finish(temp, &args.file, args.replace)?;
    let bytes = file.metadata().map_or(0, |file| file.len());
    if let Some(why) = &why_not {
        context.output.warn(&format!("no run can start from this archive: {why}"));
    }
    tell(context, &args.file, manifest, bytes)
}

fn tell(context: &Context, file: &Path, manifest: Manifest, bytes: u64) -> Result<Exit, Error> {
    let Manifest { run, checkpoints, missing, .. } = manifest;
    for Missing { name, why } in &missing {
        context.output.warn(&format!("the archive is incomplete: {name} {why}"));
    }
    let file = file.display().to_string();
    if context.output.json {
        let v = VERSION;
        let missing = missing.into_iter().map(|Missing { name, why }| MissingView { name, why }).collect();
        context.output.document(&ArchivedView { v, run, file, bytes, checkpoints, missing })?;
        return Ok(Exit::Done);
    }
    let (file, bytes) = (crate::output::shown(&file), size::shown(bytes));
    context
        .output
        .done(&format!("Archived run {run} to {file} ({}, {bytes})", counted(checkpoints, "checkpoint")))?;
    let mut note = "The archive contains params, states, logs and commands unmasked.".to_owned();
    if missing.is_empty() {
        note =
            format!("{note} `waypost delete {run}{}` deletes the run from the store.", context.store_words());
    }
    context.output.note(&note);
    Ok(Exit::Done)
}

fn not_written(path: &Path, source: io::Error) -> Error {
    StoreError::of_write("write", path.display().to_string(), source).into()
}

/// Writes all data of a run; returns the manifest, and why the archive cannot be imported, if so.
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
    let mut named = NamedFiles::of(store, run);
    let checkpoints = pack_checkpoints(store, run, &mut writer, (time, file), &mut named).await?;
    if frozen.record().settings.contains_key(crate::run::definition::SCRIPT) {
        named.take_memos(store, run).await?;
    }
    named.take_submitted(store, run).await?;
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
    let given = pending(store, run).await?;
    if !given.is_empty() {
        let lines: Result<Vec<String>, _> = given.iter().map(serde_json::to_string).collect();
        let text = lines.map_err(|error| failed(error.into()))?.join("\n") + "\n";
        writer.put(SIGNALS, text.as_bytes(), time).map_err(failed)?;
    }
    let folder = store.folder(run);
    let mut files = Files { writer: &mut writer, named: &mut named, time, file };
    match &folder {
        Some(folder) => {
            for name in FILES {
                files.pack(&folder.join(name), name)?;
            }
        }
        None => files.pack_blobs(store, run).await?,
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
        missing: named.missing(folder.as_deref()),
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
    named: &mut NamedFiles,
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
            let whole = store.load(run, &header.scope, header.seq).await?;
            named.take(&whole);
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

/// Formats a checkpoint as a line of JSON: the header and, if present, the body, which is position, newline,
/// state. Other parts than JSON on a single line are in Base64, to keep the exact bytes for the digests.
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
