//! The program that the tests of the supervisor run: the supervisor itself, or an engine that can be killed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use waypost::lock::{Holder, RunLock};
use waypost_workflow::supervisor::{self, Output, Stdin, StepProcess, Supervisor, SupervisorProgram};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|mode| mode.to_str()) {
        Some("supervise") => supervisor::main(),
        Some("engine") => engine(Path::new(&args[1]), &args[2..]),
        _ => ExitCode::from(2),
    }
}

/// Takes the lock, starts each script as a step under a supervisor, says so, and waits to be killed.
fn engine(lock: &Path, scripts: &[OsString]) -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let holder = Holder::here(jiff::Timestamp::UNIX_EPOCH).expect("this process can be read");
        let lock = RunLock::take(lock, &holder, false).expect("the lock is free");
        let duplicate = lock.try_clone_fd().expect("there are descriptors left");
        let program = SupervisorProgram::this_program(["supervise"]).expect("this program has a path");
        let supervisor = Supervisor::start(program, Some(duplicate)).await.expect("the supervisor starts");
        let mut children = Vec::new();
        for script in scripts {
            let step = StepProcess {
                argv: vec!["sh".into(), "-c".into(), script.clone()],
                env: std::env::vars_os().collect(),
                dir: PathBuf::from("/"),
                stdin: Stdin::Empty,
                output: Output::Merged,
            };
            children.push(supervisor.spawn(step).await.expect("the step starts"));
        }
        let pid = supervisor.pid().expect("the supervisor lives");
        std::fs::write("/dev/stdout", format!("{pid}\n")).expect("somebody listens");
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}
