//! The command `waypost`.
//!
//! This file decides the exit code, once. Options are in `cli`, errors in `error`, printing in `output`, one file for
//! each command in `commands`.

use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};

use crate::cli::{Cli, Command};
use crate::commands::Context;
use crate::error::Error;
use crate::exit::Exit;

mod among;
mod beside;
mod cli;
mod commands;
mod completion;
mod config;
mod dead;
mod definition;
mod drive;
mod error;
mod everywhere;
mod exit;
mod failed;
mod hooks;
mod ladder;
mod limits;
mod looking;
mod output;
mod params;
mod place;
mod reference;
mod size;
mod standing;
mod staying;
mod surroundings;
mod time;
mod view;

/// How many pairs of descriptors a runtime takes when it is made, at most: a poll and a copy of it, what wakes it, a pair for
/// signals with a copy (tokio 1.54), and as many more for what another version may need.
const RUNTIME_PAIRS: usize = 6;

/// Makes a write beyond the size that files may have here (`ulimit -f`) an error, which is told, and not a signal, which
/// ends the program without a word. Steps are not touched: the supervisor gives them every signal as it comes.
fn hear_of_limits() {
    #[expect(unsafe_code, reason = "neither std nor rustix ignores a signal")]
    // SAFETY: it sets how this process takes one signal, before there is a second thread; no handler is called.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Makes sure that there are descriptors for a runtime: it panics where it finds none for its signals.
fn room_for_runtime() -> std::io::Result<()> {
    let pairs: Vec<_> =
        std::iter::repeat_with(UnixStream::pair).take(RUNTIME_PAIRS).collect::<std::io::Result<_>>()?;
    drop(pairs);
    Ok(())
}

fn main() -> ExitCode {
    match completion::answered() {
        Ok(true) => return Exit::Done.into(),
        Ok(false) => {}
        Err(error) => return output::refused(&error).into(),
    }
    let parsed = Cli::command().try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
        Ok((cli, matches))
    });
    let (mut cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return output::refused(&error).into(),
    };
    if matches!(cli.command, Command::Supervise) {
        // Before there is a thread: the supervisor forks.
        return waypost_workflow::supervisor::main();
    }
    hear_of_limits();
    let descriptors = limits::raise_descriptors();
    waypost_workflow::supervisor::give_steps_descriptors(descriptors);
    let mut context = Context::new(&cli);
    if let Err(error) = context.configure(&mut cli, &matches)
        && !cli.command.bears_wrong_configuration()
    {
        return context.tell(&error).into();
    }
    let runtime =
        room_for_runtime().and_then(|()| tokio::runtime::Builder::new_current_thread().enable_all().build());
    let result = runtime
        .map_err(Error::Runtime)
        .and_then(|runtime| runtime.block_on(commands::dispatch(&context, cli.command)));
    let exit = match result {
        Ok(exit) => exit,
        // Whoever read the answer has seen enough.
        Err(error) if error.is_broken_pipe() => Exit::Done,
        Err(error) => context.tell(&error),
    };
    exit.into()
}
