//! `run --detach` and `resume --detach`: the run continues in a separate process, without a wait.
//!
//! The new process sends JSON output to this process. The first line is an event if the new process created
//! the run, else an error. The existence of a run with this name does not prove its creator.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use serde::Deserialize;
use waypost::RunId;
use waypost::store::{Store, StoreError};

use super::Context;
use crate::error::Error;
use crate::exit::Exit;
use crate::session;
use crate::store_location;
use crate::view::{DetachedView, VERSION};

/// The internal option of a detached process.
pub(super) const OPTION: &str = "--detached";
/// How long to wait for a run being created by another process, and the poll interval.
const MADE_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);
/// Most bytes read of the first line: far more than an error has.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Most bytes shown from a process that failed to start.
const SAID_BYTES_MAX: u64 = 4 << 10;

/// The first output line of the new process: an event, an error, or the reason to do nothing.
#[derive(Debug, Default, Deserialize)]
struct FirstLine {
    error: Option<ErrorLine>,
    nothing_to_do: Option<String>,
}

/// The error in the line.
#[derive(Debug, Default, Deserialize)]
struct ErrorLine {
    code: String,
    message: String,
    causes: Vec<String>,
}

/// Leaves the terminal's session, so that neither its end nor Ctrl-C reaches the run.
pub(super) fn leave_terminal() {
    // Fails if the process already leads a group.
    let _ = rustix::process::setsid();
}

/// Starts the process of a run, waits until the run is recorded, and prints how to follow it. `words` are added to
/// the command line, to name the run.
///
/// # Errors
/// The process cannot be started, or ended before the run existed.
pub(super) async fn begin(
    context: &Context,
    store: &dyn Store,
    run: &RunId,
    words: &[&str],
    resumes: bool,
) -> Result<Exit, Error> {
    if store_location::is_memory(context.store_given().0) {
        let message = "cannot detach a run of a store in memory: the store ends with its process";
        return Err(Error::usage(message.to_owned(), "use a store on disk"));
    }
    // The later output has no reader; the store has its content.
    let said = rustix::fs::memfd_create("waypost", MemfdFlags::CLOEXEC);
    let said = File::from(said.map_err(|error| Error::Runtime(error.into()))?);
    let mut child = start(words, &said).map_err(Error::Runtime)?;
    let first = first_line(&mut child).map_err(Error::Runtime)?;
    if let Some(why) = first.error {
        return Err(not_begun(store, run, why, said, resumes).await);
    }
    if let Some(why) = first.nothing_to_do {
        let status = store.run(run).await?.summary.status;
        session::report_nothing(context, run, status, &why)?;
        return Ok(Exit::Done);
    }
    let pid = child.id();
    if context.output.json {
        context.output.document(&DetachedView { v: VERSION, run: run.to_string(), pid })?;
        return Ok(Exit::Done);
    }
    let words = context.store_words();
    context.output.done(&format!(
        "Run {run} continues in process {pid}.\n\
         Watch with: waypost watch {run}{words}\n\
         Stop with: waypost stop {run}{words}"
    ))?;
    Ok(Exit::Done)
}

/// Waits until the process has begun its run, or has failed.
fn first_line(child: &mut Child) -> std::io::Result<FirstLine> {
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    }
    if line.is_empty() {
        return Ok(FirstLine { error: Some(ErrorLine::default()), nothing_to_do: None });
    }
    // Any other line is an event of the run.
    Ok(serde_json::from_str(&line).unwrap_or_default())
}

/// Returns why the process did not begin the run.
async fn not_begun(store: &dyn Store, run: &RunId, why: ErrorLine, mut said: File, resumes: bool) -> Error {
    let begun = Instant::now();
    // Another process may be creating the run.
    while why.code == "locked" && store.run(run).await.is_err() && begun.elapsed() < MADE_WITHIN {
        tokio::time::sleep(LOOK).await;
    }
    match (why.code.as_str(), store.run(run).await) {
        ("locked", Ok(entry)) if resumes => {
            return StoreError::Held { run: run.clone(), holder: entry.summary.holder, until: None }.into();
        }
        ("exists" | "locked", Ok(_)) => return StoreError::Exists { run: run.clone() }.into(),
        _ => {}
    }
    let mut text = [vec![why.message], why.causes].concat().join(": ");
    if text.is_empty() {
        // Unreadable output is omitted.
        let _ =
            said.seek(SeekFrom::Start(0)).and_then(|_| said.take(SAID_BYTES_MAX).read_to_string(&mut text));
    }
    let hint = match store.run(run).await {
        Ok(_) if resumes => format!("`waypost resume {run}` shows details"),
        Ok(_) => format!("`waypost show {run}` shows the existing run of this name"),
        Err(_) => format!("run without `--detach` for details; run {run} was not created"),
    };
    Error::usage(format!("the process of run {run} exited before the run started: {}", text.trim()), hint)
}

fn start(added: &[&str], said: &File) -> std::io::Result<Child> {
    let given = std::env::args_os().skip(1).map(|word| match word.to_str() {
        // Words after `--` are not options, but a file of this name can only be given there.
        Some("--detach") => OsString::from(OPTION),
        _ => word,
    });
    // Output options apply to this process only.
    let said_by = ["-q", "--quiet", "-v", "--verbose", "--json"];
    let says = |word: &OsString| said_by.iter().any(|option| word == option);
    let mut words: Vec<OsString> = given.filter(|word| !says(word)).collect();
    let options = words.iter().position(|word| word == OPTION).unwrap_or(words.len());
    let more = ["-q", "--json"].into_iter().map(OsString::from);
    words.splice(options..options, more.chain(added.iter().map(OsString::from)));
    Command::new(std::env::current_exe()?)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::from(said.try_clone()?))
        .spawn()
}
