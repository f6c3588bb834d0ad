//! The Ctrl-C ladder: the first signal stops with grace, the second kills the steps, the third leaves.
//!
//! It has a thread and a runtime of its own, so that a signal counts even while the engine is waiting for a disk.
//! Whatever is left when the third signal ends this process, the run's supervisor kills.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use waypost::engine::{StopHandle, StopLevel};
use waypost_workflow::program::LOSS;

use crate::exit::Exit;
use crate::output::progress::Progress;

/// Who stops a run that has used up its time.
pub(crate) const TIMEOUT: &str = "its own timeout";

/// Listens from now on, until the process ends.
pub(crate) fn listen(stop: StopHandle, progress: Arc<Progress>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // `nohup` asks for this by ignoring the signal before the program starts.
    let hears_hangup = !is_ignored(libc::SIGHUP);
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = hears_hangup.then(|| signal(SignalKind::hangup())).transpose()?;
    drop(guard);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async move {
            for level in [Some(StopLevel::Graceful), Some(StopLevel::Kill), None] {
                let by = tokio::select! {
                    _ = interrupt.recv() => "SIGINT",
                    _ = terminate.recv() => "SIGTERM",
                    _ = async { match &mut hangup { Some(hangup) => hangup.recv().await, None => std::future::pending().await } } => "SIGHUP",
                };
                match level {
                    Some(level) => {
                        stop.stop(level, by);
                        progress.stopping(level, by);
                    }
                    None => std::process::exit(i32::from(exit_of(by).code())),
                }
            }
        });
    })?;
    Ok(())
}

/// Returns the exit code of a run that was stopped by this: a signal, its timeout, somebody from afar, or the loss of what
/// ran a step, which nobody asked for.
pub(crate) fn exit_of(by: &str) -> Exit {
    match by {
        by if by.starts_with(LOSS) => Exit::StepFailed,
        "SIGTERM" => Exit::Terminate,
        "SIGHUP" => Exit::Hangup,
        TIMEOUT => Exit::Timeout,
        _ => Exit::Interrupt,
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
