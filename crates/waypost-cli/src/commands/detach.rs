//! `waypost run --detach`: the run goes on in a process of its own, which this one does not wait for.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use waypost::RunId;
use waypost::store::{Store, StoreError};

use super::Context;
use crate::error::Error;
use crate::exit::Exit;
use crate::view::{DetachedView, VERSION};

/// Says to a process that it is that of a detached run.
pub(super) const OPTION: &str = "--detached";
/// How often is looked whether the run has begun.
const LOOK: Duration = Duration::from_millis(20);
/// What is told of a process that did not begin.
const SAID_BYTES_MAX: u64 = 4 << 10;

/// Leaves the session of the terminal, so that neither its end nor Ctrl-C reaches the run.
pub(super) fn leave_terminal() {
    // It leads a group already where somebody else saw to it.
    let _ = rustix::process::setsid();
}

/// Starts the process of a run, waits until the run is recorded, and says how it is looked at.
///
/// # Errors
/// The process cannot be started, or ended before there was a run.
pub(super) async fn begin(
    context: &Context,
    store: &dyn Store,
    run: &RunId,
    has_id: bool,
) -> Result<Exit, Error> {
    if store.home().is_none() {
        let message = "a store in memory ends with its process, so that nothing can be done beside it";
        return Err(Error::usage(message.to_owned(), "keep the run in a store on the disk"));
    }
    // Nobody reads what it says once it has begun; the store has all of that.
    let said = rustix::fs::memfd_create("waypost", MemfdFlags::CLOEXEC);
    let mut said = File::from(said.map_err(|error| Error::Runtime(error.into()))?);
    let mut child = start(run, has_id, &said).map_err(Error::Runtime)?;
    loop {
        match store.run(run).await {
            Ok(_) => break,
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if child.try_wait().map_err(Error::Runtime)?.is_some() && store.run(run).await.is_err() {
            let mut text = String::new();
            // What cannot be read is not told.
            let _ = said
                .seek(SeekFrom::Start(0))
                .and_then(|_| said.take(SAID_BYTES_MAX).read_to_string(&mut text));
            return Err(Error::usage(
                format!("the process of run {run} ended before the run began: {}", text.trim()),
                format!("without `--detach` it says more; no run {run} was made"),
            ));
        }
        tokio::time::sleep(LOOK).await;
    }
    let pid = child.id();
    if context.output.json {
        context.output.document(&DetachedView { v: VERSION, run: run.to_string(), pid })?;
        return Ok(Exit::Done);
    }
    let words = context.store_words();
    context.output.answer(&format!(
        "Run {run} goes on by itself, in process {pid}.\nFollow it with: waypost events {run} -f{words}\n\
         Stop it with: waypost stop {run}{words}"
    ))?;
    Ok(Exit::Done)
}

fn start(run: &RunId, has_id: bool, said: &File) -> std::io::Result<Child> {
    let given = std::env::args_os().skip(1).map(|word| match word.to_str() {
        // What follows `--` is no option, but a file may be called so only behind it.
        Some("--detach") => OsString::from(OPTION),
        _ => word,
    });
    // How much is said is for who listens.
    let says = |word: &OsString| ["-q", "--quiet", "-v", "--verbose"].iter().any(|option| word == option);
    let mut words: Vec<OsString> = given.filter(|word| !says(word)).collect();
    let options = words.iter().position(|word| word == OPTION).unwrap_or(words.len());
    let more = [OsString::from("-q")].into_iter();
    let id = ["--id", run.as_str()].into_iter().filter(|_| !has_id).map(OsString::from);
    words.splice(options..options, more.chain(id));
    Command::new(std::env::current_exe()?)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(said.try_clone()?))
        .spawn()
}
