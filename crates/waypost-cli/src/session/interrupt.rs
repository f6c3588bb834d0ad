//! Escalation of Ctrl-C: the first signal stops gracefully, the second kills the steps, the third exits.
//!
//! Runs on a separate thread and runtime: a signal takes effect even while the engine waits for a disk. If
//! processes remain after the third signal, the run's supervisor kills them.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use waypost::engine::{StopHandle, StopLevel};

use crate::exit::exit_of;

/// Listens for signals from now on, until the process ends; `report` informs the user of each.
pub(crate) fn listen(stop: StopHandle, report: impl Fn(StopLevel, &str) + Send + 'static) -> io::Result<()> {
    // `nohup` ignores the signal before the program starts.
    let hears_hangup = !is_ignored(libc::SIGHUP);
    let (ready, listens) = std::sync::mpsc::channel();
    // Create the runtime in the thread: dropping it inside the caller's runtime would panic.
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let heard = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(|runtime| {
            let signals = runtime.block_on(async { Signals::listen(hears_hangup) })?;
            Ok((runtime, signals))
        });
        match heard {
            Ok((runtime, signals)) => {
                // The caller waits for this message.
                let _ = ready.send(Ok(()));
                runtime.block_on(escalate(signals, &stop, report));
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    })?;
    listens.recv().expect("the thread reports its state before it exits")
}

/// The handled signals.
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

/// Escalates by one level per signal, and exits at the third.
async fn escalate(mut signals: Signals, stop: &StopHandle, report: impl Fn(StopLevel, &str)) {
    for level in [StopLevel::Graceful, StopLevel::Kill] {
        let by = signals.next().await;
        stop.stop(level, by);
        report(level, by);
    }
    std::process::exit(i32::from(exit_of(signals.next().await).code()));
}

/// Ends this process by the signal of this name, if handled here; else returns.
///
/// # Source
/// <https://www.cons.org/cracauer/sigint.html>: a shell continues a script after Ctrl-C if the command exits
/// normally.
pub(crate) fn die_of(by: &str) {
    let number = match by {
        "SIGINT" => libc::SIGINT,
        "SIGTERM" => libc::SIGTERM,
        "SIGHUP" => libc::SIGHUP,
        _ => return,
    };
    #[expect(unsafe_code, reason = "neither std nor rustix sets a signal disposition")]
    // SAFETY: resets the signal to its default action and raises it; none of our handlers is called.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
}

fn is_ignored(number: libc::c_int) -> bool {
    #[expect(unsafe_code, reason = "neither std nor rustix reads a signal disposition")]
    // SAFETY: `sigaction` is plain integers and pointers, for which all zeros is a value; the call only fills
    // it in.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}
