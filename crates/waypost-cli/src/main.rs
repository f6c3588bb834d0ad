//! The command `waypost`.
//!
//! This file alone decides the exit code. Options are in `cli`, errors in `error`, printing in `output`, and
//! each command in a file of `commands`.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, FromArgMatches as _};
use rustix::fs::FileType;
use tokio::runtime::Runtime;

use crate::cli::Cli;
use crate::context::Context;
use crate::error::Error;
use crate::exit::Exit;

mod atomic_file;
mod cli;
mod commands;
mod completion;
mod config;
mod context;
mod error;
mod exit;
mod format;
mod output;
mod run;
mod session;
mod store_location;
mod view;

/// Most descriptor pairs of a new runtime: a poll with a copy, a waker, a signal pair with a copy (tokio
/// 1.54), plus a reserve for other versions.
const RUNTIME_PAIRS: usize = 6;

/// Turns a write beyond the file size limit (`ulimit -f`) into an error, which is reported; the signal would
/// silently end the program. Steps are not affected: the supervisor restores their signals.
fn ignore_file_size_signal() {
    #[expect(unsafe_code, reason = "neither std nor rustix ignores a signal")]
    // SAFETY: sets the disposition of a signal before a second thread exists; no handler is called.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Checks that descriptors for a runtime are left: without them, the runtime panics.
fn check_runtime_descriptors() -> std::io::Result<()> {
    let pairs: Vec<_> =
        std::iter::repeat_with(UnixStream::pair).take(RUNTIME_PAIRS).collect::<std::io::Result<_>>()?;
    drop(pairs);
    Ok(())
}

/// Returns a runtime with one thread for blocking work. Without a thread, the runtime panics if the system refuses one
/// later; with one, the work waits for the thread.
fn runtime() -> std::io::Result<Runtime> {
    check_runtime_descriptors()?;
    let refused = |_| std::io::Error::from_raw_os_error(libc::EAGAIN);
    std::thread::Builder::new().spawn(|| ())?.join().map_err(refused)?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().thread_keep_alive(Duration::MAX).build()?;
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// The stack of the command, whatever the soft limit of the caller (`ulimit -s`): that of a usual main thread.
const STACK_BYTES: usize = 8 * 1024 * 1024;

/// Returns whether a stream is a socket: the engine controls its supervisor by one.
fn is_socket(stream: impl AsFd) -> bool {
    rustix::fs::fstat(stream).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_socket())
}

fn main() -> ExitCode {
    // The supervisor forks: its process never has a second thread.
    if std::env::args_os().skip(1).eq([run::environment::SUPERVISE]) {
        return match is_socket(std::io::stdin()) {
            true => waypost_workflow::supervisor::main(),
            false => output::refused(&cli::internal(run::environment::SUPERVISE)).into(),
        };
    }
    let exit = match std::thread::Builder::new().stack_size(STACK_BYTES).spawn(command) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        // Without a second thread, the stack of this one has to do.
        Err(_) => command(),
    };
    exit.into()
}

/// Executes the command line; an error is reported.
fn command() -> Exit {
    match parsed() {
        Ok((cli, matches)) => executed(cli, &matches),
        Err(exit) => exit,
    }
}

/// Reads the command line; an error is reported.
fn parsed() -> Result<(Cli, ArgMatches), Exit> {
    match completion::answered() {
        Ok(true) => return Err(Exit::Done),
        Ok(false) => {}
        Err(error) => return Err(output::refused(&error)),
    }
    let parsed = cli::command().try_get_matches().and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut cli::command()))?;
        Ok((Cli { command: cli.command.expanded()?, ..cli }, matches))
    });
    parsed.map_err(|error| output::refused(&cli::explained(error)))
}

/// Executes a command; an error is reported.
fn executed(mut cli: Cli, matches: &ArgMatches) -> Exit {
    ignore_file_size_signal();
    let descriptors = run::limits::raise_descriptors();
    waypost_workflow::supervisor::give_steps_descriptors(descriptors);
    let mut context = Context::new(&cli);
    if let Err(error) = context.configure(&mut cli, matches)
        && !cli.command.bears_wrong_configuration()
    {
        return context.tell(&error);
    }
    let result = runtime().map_err(Error::Runtime).and_then(|runtime| {
        runtime.block_on(async {
            let done = commands::dispatch(&context, cli.command).await;
            if let Err(error) = &done {
                context.learn_names(error).await;
            }
            done
        })
    });
    match result {
        Ok(exit) => exit,
        // The reader of the answer is gone.
        Err(error) if error.is_broken_pipe() => Exit::Done,
        Err(error) => context.tell(&error),
    }
}
