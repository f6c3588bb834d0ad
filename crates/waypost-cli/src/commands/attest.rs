//! `waypost export --attest`: an in-toto statement about the results of a run: the files in the evidence of
//! its steps.
//!
//! The statement is version 1 of <https://github.com/in-toto/attestation/tree/main/spec>, with a link
//! predicate, version 0.3: subjects are the results, materials the inputs. The statement is not signed:
//! signing tools take it as is.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use waypost::engine::Snapshot;
use waypost::evidence::FILE_SHA256;
use waypost::record::{Claim, RunStatus, Verdict};
use waypost::store::{Store, StoreError};
use waypost::{CheckpointRef, Digest, ScopePath};
use waypost_workflow::file::{Work, Workflow, separated};

use super::{Context, show, verify};
use crate::atomic_file;
use crate::cli::ExportArgs;
use crate::error::Error;
use crate::exit::Exit;
use crate::format::size;
use crate::run::definition::workflow_in_force;
use crate::store_location;
use crate::view::{ExportedView, StepView, VERSION};

/// The type of the statement.
const STATEMENT: &str = "https://in-toto.io/Statement/v1";
/// The type of the predicate.
const PREDICATE: &str = "https://in-toto.io/attestation/link/v0.3";
/// The prefix of a tree digest in a claim.
const TREE: &str = "tree:";
/// The names of the two digests. In-toto allows custom names for unusual digests.
const DIGESTS: [&str; 2] = ["sha256", "waypostTree"];

/// A resource with its digest.
#[derive(Debug, Serialize)]
struct Descriptor {
    name: String,
    digest: BTreeMap<&'static str, String>,
}

/// Writes the statement about the present state of a run, after a full verification.
pub(super) async fn attest(
    context: &Context,
    store: &Arc<dyn Store>,
    at: &CheckpointRef,
    args: &ExportArgs,
) -> Result<Exit, Error> {
    let run = &at.run;
    let snapshot = Snapshot::read(store.as_ref(), run).await?;
    if let Some(holder) = &snapshot.entry.summary.holder {
        return Err(StoreError::Held { run: run.clone(), holder: Some(holder.clone()), until: None }.into());
    }
    let newest = snapshot.newest().header().reference();
    if *at != newest {
        return Err(Error::usage(
            format!("cannot attest {at}: only the newest checkpoint, {newest}, can be attested"),
            format!("`waypost export {run} FILE --attest`"),
        ));
    }
    if snapshot.status() != RunStatus::Completed {
        return Err(Error::usage(
            format!("cannot attest run {run}: it is not completed"),
            format!("`waypost resume {run}` resumes the run"),
        ));
    }
    let view = verify::look_at(store, run, None).await?;
    match verify::exit_of(&view) {
        Exit::Done => {}
        Exit::Damaged => return Err(Error::Unsound { run: run.clone() }),
        _ => {
            let why = "failed, or could not be checked".to_owned();
            let hint =
                format!("`waypost verify {run}` prints the expected and the found value of each claim");
            return Err(Error::Unverified { at: newest.to_string(), why, hint });
        }
    }
    let claims = view.checkpoints.iter().flat_map(|found| &found.checked);
    let subject = subjects(claims);
    if subject.is_empty() {
        return Err(Error::usage(
            format!("cannot attest run {run}: none of its steps has `sha256` evidence"),
            "add `evidence: [{ sha256: FILE }]` to the step that writes the file",
        ));
    }
    let shown = show::view_of(store.as_ref(), run).await?;
    // Paths are relative to the run's base folder, as for subjects.
    let base = snapshot.entry.record.record().base.as_deref().unwrap_or(".");
    let base = store_location::from_home(store.home(), base);
    let path = shown.path.clone().unwrap_or_else(|| shown.workflow.clone());
    let path = Path::new(&path).strip_prefix(&base).map_or(path.clone(), |path| path.display().to_string());
    let workflow = workflow_in_force(&snapshot);
    let statement = json!({
        "_type": STATEMENT,
        "subject": subject,
        "predicateType": PREDICATE,
        "predicate": {
            "name": shown.workflow,
            "command": ["waypost", "run", path],
            "materials": snapshot.definition.text.as_deref().map(|text| materials(Path::new(&path), text)),
            "byproducts": {
                "run": run,
                "checkpoint": newest.to_string(),
                "digest": sha256(snapshot.newest().digest().to_string()),
                "status": shown.status,
                "steps": shown.steps.iter().map(|found| step(found, workflow.as_ref())).collect::<Vec<_>>(),
            },
            "environment": {},
        },
    });
    let mut bytes = serde_json::to_vec_pretty(&statement).expect("plain JSON can be written");
    bytes.push(b'\n');
    write(&args.file, args.replace, &bytes)?;
    let (checkpoint, file, size) = (newest.to_string(), args.file.display().to_string(), bytes.len() as u64);
    if context.output.json {
        context.output.document(&ExportedView { v: VERSION, checkpoint, file, bytes: size })?;
        return Ok(Exit::Done);
    }
    let file = crate::output::shown(&file);
    context.output.done(&format!("Attested {checkpoint} in {file} ({})", size::shown(size)))?;
    Ok(Exit::Done)
}

/// Returns the subjects, without duplicates, with the digests found just now.
fn subjects<'c>(claims: impl Iterator<Item = &'c Claim>) -> Vec<Descriptor> {
    let mut found: BTreeMap<String, BTreeMap<&'static str, String>> = BTreeMap::new();
    let [of_file, of_tree] = DIGESTS;
    for claim in claims.filter(|claim| claim.kind == FILE_SHA256 && claim.verdict == Verdict::Ok) {
        // A sensitive claim has neither expectation nor finding.
        let Some(digest) = claim.expect.as_str().filter(|_| !claim.terms.not) else { continue };
        let (kind, digest) = match digest.strip_prefix(TREE) {
            Some(digest) => (of_tree, digest),
            None => (of_file, digest),
        };
        found.entry(claim.subject.clone()).or_default().insert(kind, digest.to_lowercase());
    }
    found.into_iter().map(|(name, digest)| Descriptor { name, digest }).collect()
}

/// Returns the workflow file and all included files, from the run's copy.
fn materials(path: &Path, text: &str) -> Vec<Descriptor> {
    let (own, others) = separated(text);
    let folder = path.parent().unwrap_or(Path::new(""));
    let others = others.into_iter().map(|(name, text)| (folder.join(name), text));
    let all = std::iter::once((path.to_owned(), own)).chain(others);
    let describe = |(path, text): (PathBuf, &str)| Descriptor {
        name: path.display().to_string(),
        digest: sha256(Digest::of(text.as_bytes()).to_string()),
    };
    all.map(describe).collect()
}

fn sha256(digest: String) -> BTreeMap<&'static str, String> {
    BTreeMap::from([(DIGESTS[0], digest)])
}

/// Returns the outcome and command of a step; the workflow's text unless the record differs.
fn step(step: &StepView, workflow: Option<&Workflow>) -> Value {
    let is_main = step.scope == ScopePath::main().to_string();
    let written = workflow.filter(|_| is_main).and_then(|workflow| workflow.step(&step.id));
    let written = written.and_then(|step| match &step.work {
        Work::Run(command) | Work::Service(command) => Some(command.as_str()),
        _ => None,
    });
    json!({
        "id": step.id,
        "branch": step.scope,
        "status": step.status,
        "exit_code": step.exit_code,
        "command": step.command.as_deref().or(written),
    })
}

/// Writes a file atomically.
fn write(path: &Path, replace: bool, bytes: &[u8]) -> Result<(), Error> {
    let failed =
        |source: io::Error| Error::from(StoreError::of_write("write", path.display().to_string(), source));
    let folder = atomic_file::folder_of(path);
    atomic_file::remove_left(&folder);
    let mut temp = atomic_file::unfinished(&folder)
        .map_err(|source| Error::Create { path: path.to_owned(), source: source.kind().into() })?;
    temp.write_all(bytes).map_err(failed)?;
    temp.as_file().sync_all().map_err(failed)?;
    atomic_file::finish(temp, path, replace).map(drop)
}
