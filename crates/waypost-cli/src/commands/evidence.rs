//! `waypost evidence`: suggests claims for a step, and accepts evidence on a person's word.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use waypost::engine::Snapshot;
use waypost::evidence::literal_path;
use waypost::record::{Phase, Record};
use waypost::store::{Store, StoreExt as _};
use waypost::{RunId, ScopePath, StepId};

use super::Context;
use crate::cli::{Evidence, EvidenceArgs};
use crate::error::Error;
use crate::exit::Exit;
use crate::format::size;
use crate::run::bases;
use crate::run::current_evidence;
use crate::run::definition::{Choice, Chosen, choose, names_of};
use crate::run::reference::{Default, StepRef, encoded, find, no_step, step_on};
use crate::store_location::{self, Access, StoreUrl};
use crate::view::step_names::StepNames;
use crate::view::{AcceptedView, SuggestedView, VERSION};

/// Most suggested files.
const SUGGESTED_MAX: usize = 20;
/// Most inspected files and folders.
const LOOKED_AT_MAX: usize = 100_000;
/// Tolerance for coarse file timestamps.
const TIMES_DIFFER: Duration = Duration::from_millis(5);

pub(crate) async fn evidence(context: &Context, command: Evidence) -> Result<Exit, Error> {
    match command {
        Evidence::Suggest(args) => suggest(context, args).await,
        Evidence::Accept(args) => accept(context, args).await,
    }
}

async fn accept(context: &Context, args: EvidenceArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Write)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    let snapshot = Snapshot::read(store.as_ref(), &run).await?;
    let chosen = choose(store.as_ref(), &snapshot, &Choice::for_inspection()).await?;
    let named = named(store.as_ref(), &run, (&args.step, &chosen)).await?;
    let accepted =
        current_evidence::accept(&store, &snapshot, &chosen, (named.scope.as_ref(), &named.step)).await?;
    let names = StepNames::of(&chosen.workflow);
    let step = match &named.scope {
        Some(scope) if !context.output.json => names.called(scope, named.step.as_str()),
        _ => named.to_string(),
    };
    if context.output.json {
        let run = run.to_string();
        context.output.document(&AcceptedView { v: VERSION, run, step, accepted })?;
        return Ok(Exit::Done);
    }
    context.output.done(&match accepted {
        0 => format!("Nothing to accept, because the evidence of step {step} holds, or does not exist."),
        1 => format!("Pinned the current evidence of step {step}."),
        count => format!("Pinned the current evidence of step {step}, {count} times."),
    })?;
    Ok(Exit::Done)
}

async fn suggest(context: &Context, args: EvidenceArgs) -> Result<Exit, Error> {
    let store = context.store(None, Access::Read)?;
    let run = find(store.as_ref(), Some(&args.run), Default::Newest).await?;
    let snapshot = Snapshot::read(store.as_ref(), &run).await?;
    let chosen = choose(store.as_ref(), &snapshot, &Choice::for_inspection()).await?;
    let named = named(store.as_ref(), &run, (&args.step, &chosen)).await?;
    let (begun, ended) = times(store.as_ref(), &run, &named).await?;
    let step = named.to_string();
    let frozen = snapshot.entry.record.record();
    let base = bases::folder_of(store.as_ref(), frozen);
    let mask = current_evidence::mask(&store, &snapshot, &chosen)?;
    let kept = kept_by(store.as_ref(), &run, &base);
    let written = written_between(&base, &kept, (begun, ended)).into_iter();
    // A claim would record the path, so paths with secrets are left out.
    let (secret, mut written): (Vec<_>, Vec<_>) =
        written.partition(|file| mask.contains(file.path.as_bytes()));
    let secret = secret.len();
    let more = written.len() > SUGGESTED_MAX;
    written.truncate(SUGGESTED_MAX);
    if context.output.json {
        let evidence = written.iter().map(Written::claim).collect();
        let run = run.to_string();
        context.output.document(&SuggestedView { v: VERSION, run, step, evidence, more, secret })?;
        return Ok(Exit::Done);
    }
    context.output.answer(&suggestion(&written, more, secret).unwrap_or_else(|| {
        let step = names_of(&snapshot).plain(&step);
        format!("Step {step} wrote no files below {}, or they changed since.", base.display())
    }))?;
    Ok(Exit::Done)
}

/// Formats claims in the syntax of the workflow file; `None` without files.
fn suggestion(written: &[Written], more: bool, secret: usize) -> Option<String> {
    let mut lines = Vec::new();
    for file in written {
        // JSON text is valid YAML.
        let path = json!(file.subject());
        lines.push(format!("  - {}: {path}  # {}", file.key(), size::shown(file.bytes)));
    }
    if more {
        lines.push(format!("  # and more: over {SUGGESTED_MAX} in all"));
    }
    if secret > 0 {
        lines.push(format!("  # omitted, path contains a secret: {secret}"));
    }
    (!lines.is_empty()).then(|| format!("evidence:\n{}", lines.join("\n")))
}

/// A step named by the user, in one scope or in any.
#[derive(Debug)]
struct Named {
    scope: Option<ScopePath>,
    step: StepId,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scope {
            Some(scope) => f.write_str(&step_on(scope, self.step.as_str())),
            None => write!(f, "{}", self.step),
        }
    }
}

/// Parses a step: `STEP`, or `SCOPE/STEP` of a scope of the run.
async fn named(store: &dyn Store, run: &RunId, (text, chosen): (&str, &Chosen)) -> Result<Named, Error> {
    let text = encoded(store, run, text).await?;
    let StepRef { scope, step } = StepRef::parse(&text);
    let Some(step) = step else {
        let hint = format!("name a step in the scope: {text}/STEP");
        return Err(Error::usage(format!("`{text}` is a scope, not a step"), hint));
    };
    let is_there = match &scope {
        Some(scope) if !store.scopes(run).await?.contains(scope) => false,
        _ => chosen.workflow.step(&step).is_some(),
    };
    match StepId::new(&step).ok().filter(|_| is_there) {
        Some(step) => Ok(Named { scope, step }),
        None => Err(no_step(store, run, &StepRef { scope, step: Some(step) }).await?),
    }
}

/// Returns the last begin and end of a step, in its scope or in any.
async fn times(store: &dyn Store, run: &RunId, named: &Named) -> Result<(SystemTime, SystemTime), Error> {
    let Named { scope, step } = named;
    let mut found = None;
    let scopes = match scope {
        Some(scope) => BTreeSet::from([scope.clone()]),
        None => store.scopes(run).await?,
    };
    for scope in scopes {
        let newest = store.newest(run, &scope).await?.header().seq;
        let ends = |record: &Record| {
            let header = record.header();
            header.step.as_ref() == Some(step) && matches!(header.phase, Phase::Completed(_))
        };
        let Some(end) = store.find_back(run, &scope, newest, &ends).await? else { continue };
        let starts = |record: &Record| record.header().started.iter().any(|start| start.step == *step);
        let Some(start) = store.find_back(run, &scope, end.header().seq, &starts).await? else { continue };
        let times = (start.header().created_at, end.header().created_at);
        if found.is_none_or(|(_, ended)| ended < times.1) {
            found = Some(times);
        }
    }
    let (begun, ended) = found.ok_or_else(|| {
        Error::usage(
            format!("cannot suggest evidence for step `{named}` of run {run}: it has not completed"),
            "`waypost resume` runs the step",
        )
    })?;
    Ok((SystemTime::from(begun) - TIMES_DIFFER, SystemTime::from(ended) + TIMES_DIFFER))
}

/// A file written by a step.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    path: String,
    bytes: u64,
}

impl Written {
    fn claim(&self) -> Value {
        json!({ (self.key()): self.subject() })
    }

    /// Escapes the path for a workflow file: neither a pattern nor an expression.
    fn subject(&self) -> String {
        literal_path(&self.path).replace("${{", "${{ '${{' }}")
    }

    fn key(&self) -> &'static str {
        if self.bytes == 0 { "file" } else { "sha256" }
    }
}

/// Returns the store's paths: its own folder, or its parts of a shared folder, and the database.
fn kept_by(store: &dyn Store, run: &RunId, base: &Path) -> Vec<PathBuf> {
    let mut kept = Vec::new();
    let folder = store.folder(run).map(|folder| store_location::from_home(Some(&folder), "../.."));
    if let Some(folder) = folder {
        match folder == base {
            true => kept.extend(["runs", "locks", "ordinal.json"].map(|name| folder.join(name))),
            false => kept.push(folder),
        }
    }
    if let Ok(StoreUrl::Sqlite(database)) = StoreUrl::parse(&store.to_string()) {
        let database = store_location::from_home(Some(&database), ".");
        let beside = |end: &str| PathBuf::from(format!("{}{end}", database.display()));
        kept.extend(["", "-wal", "-shm", "-journal"].map(beside));
    }
    kept
}

/// Returns the files below a folder last written in a time span, in order of path. Links are not followed.
/// The files of Waypost and Git, and paths that are not UTF-8, are skipped.
///
/// `kept`: further paths to skip.
fn written_between(base: &Path, kept: &[PathBuf], (begun, ended): (SystemTime, SystemTime)) -> Vec<Written> {
    let mut open: Vec<PathBuf> = vec![base.to_owned()];
    let (mut found, mut looked_at) = (Vec::new(), 0);
    while let Some(folder) = open.pop() {
        // An unreadable folder was not written by a step of this user.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            looked_at += 1;
            let name = entry.file_name();
            let Ok(kind) = entry.file_type() else { continue };
            if kept.contains(&entry.path()) {
                continue;
            }
            if looked_at > LOOKED_AT_MAX || name == ".waypost" || name == ".git" {
                continue;
            }
            if kind.is_dir() {
                open.push(entry.path());
                continue;
            }
            let Some(metadata) = entry.metadata().ok().filter(|_| kind.is_file()) else { continue };
            let is_within = metadata.modified().is_ok_and(|at| begun <= at && at <= ended);
            let path = entry.path();
            let path = path.strip_prefix(base).ok().and_then(Path::to_str).filter(|_| is_within);
            found.extend(path.map(|path| Written { path: path.to_owned(), bytes: metadata.len() }));
        }
    }
    found.sort();
    found
}
