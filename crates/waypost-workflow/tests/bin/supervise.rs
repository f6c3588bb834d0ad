//! The program that the tests of the supervisor run: the supervisor itself, or an engine that can be killed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use async_trait::async_trait;
use waypost::lock::{Holder, RunLock};
use waypost_workflow::log::{Log, LogLimits, LogSink, Streams, record};
use waypost_workflow::mask::Mask;
use waypost_workflow::supervisor::{self, Output, Stdin, StepProcess, Supervisor, SupervisorProgram};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|mode| mode.to_str()) {
        Some("supervise") => supervisor::main(),
        Some("engine") => engine(Path::new(&args[1]), &args[2..]),
        Some("record") => record_one(&args[1]),
        _ => ExitCode::from(2),
    }
}

/// Keeps the log of one script, masked, in no place; says how long it was, how long that took and the most memory
/// that this process ever had.
fn record_one(script: &OsString) -> ExitCode {
    struct Nowhere;
    #[async_trait]
    impl LogSink for Nowhere {
        async fn write(&mut self, _bytes: &[u8]) -> std::io::Result<()> {
            Ok(())
        }
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    let (summary, seconds) = runtime.block_on(async {
        let program = SupervisorProgram::this_program(["supervise"]).expect("this program has a path");
        let supervisor = Supervisor::start(program, None).await.expect("the supervisor starts");
        let mask = Mask::new([("TOKEN", &b"ghp_16C7e42F292c6912E7710c838347Ae178B4a"[..])])
            .expect("it is long enough");
        let mut child = supervisor.spawn(shell(script)).await.expect("the step starts");
        let mut log = Log::new(Nowhere, LogLimits::default());
        let streams = Streams { stdout: child.stdout.take(), stderr: child.stderr.take() };
        let began = std::time::Instant::now();
        let recorded = record(streams, &mask, &mut log, None, child.wait()).await;
        recorded.life.expect("the step ends");
        (log.finish().await.1, began.elapsed().as_secs_f64())
    });
    let status = std::fs::read_to_string("/proc/self/status").expect("this process can be read");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells it");
    let peak = peak.trim_end_matches("kB").trim();
    std::fs::write("/dev/stdout", format!("{} {seconds:.2} {peak}\n", summary.bytes))
        .expect("somebody listens");
    ExitCode::SUCCESS
}

fn shell(script: &OsString) -> StepProcess {
    StepProcess {
        argv: vec!["sh".into(), "-c".into(), script.clone()],
        env: std::env::vars_os().collect(),
        dir: PathBuf::from("/"),
        stdin: Stdin::Empty,
        output: Output::Merged,
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
            children.push(supervisor.spawn(shell(script)).await.expect("the step starts"));
        }
        let pid = supervisor.pid().expect("the supervisor lives");
        std::fs::write("/dev/stdout", format!("{pid}\n")).expect("somebody listens");
        std::future::pending::<()>().await;
    });
    ExitCode::SUCCESS
}
