//! The Ctrl-C ladder: the first signal stops with grace, the second kills the steps, the third leaves.
//!
//! It has a thread and a runtime of its own, so that a signal counts even while the engine is waiting for a disk.
//! Whatever is left when the third signal ends this process, the run's supervisor kills.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use waypost::engine::{StopHandle, StopLevel};
use waypost_workflow::program::{BUDGET, LOSS, NO_RESOURCES, NO_ROOM};

use crate::exit::Exit;
use crate::output::progress::Progress;

/// Who stops a run that has used up its time.
pub(crate) const TIMEOUT: &str = "its own timeout";

/// Listens from now on, until the process ends.
pub(crate) fn listen(stop: StopHandle, progress: Arc<Progress>) -> io::Result<()> {
    // `nohup` asks for this by ignoring the signal before the program starts.
    let hears_hangup = !is_ignored(libc::SIGHUP);
    let (ready, listens) = std::sync::mpsc::channel();
    // The runtime is made in there: it may not be dropped in another one, which is where the caller is.
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let heard = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            let signals = runtime.block_on(async { Signals::listen(hears_hangup) })?;
            Ok((runtime, signals))
        });
        match heard {
            Ok((runtime, signals)) => {
                // The caller waits for it.
                let _ = ready.send(Ok(()));
                runtime.block_on(climb(signals, &stop, &progress));
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    })?;
    listens.recv().expect("the thread says whether it listens")
}

/// The signals of the ladder.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    fn listen(hears_hangup: bool) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: hears_hangup.then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    async fn next(&mut self) -> &'static str {
        let Self { interrupt, terminate, hangup } = self;
        let hangup = async {
            match hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            () = hangup => "SIGHUP",
        }
    }
}

/// Takes one rung a signal, and ends the process at the third.
async fn climb(mut signals: Signals, stop: &StopHandle, progress: &Progress) {
    for level in [StopLevel::Graceful, StopLevel::Kill] {
        let by = signals.next().await;
        stop.stop(level, by);
        progress.stopping(level, by);
    }
    std::process::exit(i32::from(exit_of(signals.next().await).code()));
}

/// Returns the exit code of a run that was stopped by this: a signal, its timeout or budget, somebody from afar, or what nobody
/// asked for: the loss of what ran a step, or a full disk.
pub(crate) fn exit_of(by: &str) -> Exit {
    match by {
        by if by.starts_with(LOSS) => Exit::StepFailed,
        by if by.starts_with(NO_ROOM) => Exit::CannotWrite,
        by if by.starts_with(NO_RESOURCES) => Exit::NoResources,
        "SIGTERM" => Exit::Terminate,
        "SIGHUP" => Exit::Hangup,
        TIMEOUT => Exit::Timeout,
        by if by.starts_with(BUDGET) => Exit::Timeout,
        _ => Exit::Interrupt,
    }
}

/// Ends this process by the signal of that name, if it is one that the ladder hears; else it returns.
///
/// # Source
/// <https://www.cons.org/cracauer/sigint.html>: a shell goes on with a script whose command exits by itself after Ctrl-C.
pub(crate) fn die_of(by: &str) {
    let number = match by {
        "SIGINT" => libc::SIGINT,
        "SIGTERM" => libc::SIGTERM,
        "SIGHUP" => libc::SIGHUP,
        _ => return,
    };
    #[expect(unsafe_code, reason = "neither std nor rustix sets how a signal is taken")]
    // SAFETY: it sets that the signal ends this process, and sends it; no handler of ours is called.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
}

fn is_ignored(number: libc::c_int) -> bool {
    #[expect(unsafe_code, reason = "neither std nor rustix tells what becomes of a signal")]
    // SAFETY: `sigaction` is plain integers and pointers, for which all zeros is a value; the call only fills it in.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}
