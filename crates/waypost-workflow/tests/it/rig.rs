//! What the tests of processes share: steps to start, and a look at `/proc` that does not use the code under test.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt;
use waypost_workflow::supervisor::{Child, Exit, Output, Stdin, StepProcess, Supervisor, SupervisorProgram};

/// The program with the modes `supervise` and `engine`.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_waypost-supervise-test");

/// The variable by which a test knows its processes.
pub(crate) const MARK: &str = "WAYPOST_TEST_MARK";

/// How long anything may take before a test gives up: long, as machines may be busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// A step that ends only by KILL: double-forked processes, in sessions of their own and in the group, deaf to TERM.
pub(crate) fn stubborn_tree(count: usize) -> String {
    let deaf = r#"trap "" TERM HUP INT; while :; do sleep 1000; done"#;
    format!(
        "trap '' TERM; i=0; while [ $i -lt {count} ]; do i=$((i+1)); \
         case $((i%3)) in \
         0) (setsid sh -c '{deaf}' &) & ;; \
         1) (sh -c '{deaf}' &) & ;; \
         2) setsid sh -c '(sh -c '\\''{deaf}'\\'' &)' & ;; \
         esac; done; while :; do sleep 1000; done"
    )
}

/// A mark that no other test, now or before, has.
pub(crate) fn new_mark() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn start(lock: Option<OwnedFd>) -> Supervisor {
    let program = SupervisorProgram { path: PROGRAM.into(), arg0: None, args: vec!["supervise".into()] };
    Supervisor::start(program, lock).await.unwrap()
}

/// A step that runs `script` in a shell, with this process's `PATH` and a mark.
pub(crate) fn shell(script: &str, mark: &str) -> StepProcess {
    StepProcess {
        argv: ["sh", "-c", script].map(OsString::from).to_vec(),
        env: vec![("PATH".into(), std::env::var_os("PATH").unwrap()), (MARK.into(), mark.into())],
        dir: PathBuf::from("/"),
        stdin: Stdin::Empty,
        output: Output::Separate,
    }
}

pub(crate) fn script(script: &str) -> StepProcess {
    shell(script, "none")
}

/// Waits for the end of a step that leaves nothing in the background, and returns all it wrote.
pub(crate) async fn output(mut child: Child) -> (Exit, String, String) {
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let mut from_stdout = child.stdout.take().unwrap();
    from_stdout.read_to_string(&mut stdout).await.unwrap();
    if let Some(mut from_stderr) = child.stderr.take() {
        from_stderr.read_to_string(&mut stderr).await.unwrap();
    }
    (child.wait().await.unwrap(), stdout, stderr)
}

/// Reads one line that a step writes.
pub(crate) async fn line(child: &mut Child) -> String {
    let stdout = child.stdout.as_mut().unwrap();
    let mut line = Vec::new();
    loop {
        match stdout.read_u8().await.unwrap() {
            b'\n' => return String::from_utf8(line).unwrap(),
            byte => line.push(byte),
        }
    }
}

/// The living processes that were started with a mark.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    pids().filter(|pid| has_mark(*pid, mark)).collect()
}

/// Says whether a process lives that was started with the mark.
pub(crate) fn has_mark(pid: u32, mark: &str) -> bool {
    let wanted = format!("{MARK}={mark}");
    environment(pid).split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
}

/// The processes, zombies left out, whose parent is this one.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    pids().filter(|pid| stat(*pid).is_some_and(|(state, of)| state != 'Z' && of == parent)).collect()
}

/// Says whether a process lives, not only its zombie.
pub(crate) fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

pub(crate) fn kill_9(pid: u32) {
    signal(pid, Signal::KILL);
}

pub(crate) fn stop(pid: u32) {
    signal(pid, Signal::STOP);
}

pub(crate) fn go_on(pid: u32) {
    signal(pid, Signal::CONT);
}

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Waits until something holds that no event announces.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn environment(pid: u32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
