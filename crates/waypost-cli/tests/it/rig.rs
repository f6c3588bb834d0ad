//! A temporary folder with the program, and snapshots without volatile parts.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Four steps: an output, prints to both streams, a failure until the file `ok` exists, and a last step.
pub(crate) const FLOW: &str = r#"version: 1
name: flow
params:
  who: { type: string, default: world }
labels: { team: sales }
steps:
  - id: one
    run: echo "n=1" >> "$WAYPOST_OUTPUT"; echo hello
  - id: two
    run: echo out; echo err >&2
  - id: three
    run: test -e ok || { echo "no ok here" >&2; exit 3; }
  - id: four
    run: echo "$WHO" > four.txt
    env: { WHO: "${{ params.who }}" }
"#;

/// The time limit for expected events, far above the usual time.
const PATIENCE: Duration = Duration::from_secs(180);

/// A folder for calls of `waypost`.
pub(crate) struct Rig {
    folder: TempDir,
    /// Words before the arguments of every call.
    store: Vec<String>,
}

impl Rig {
    /// Makes an empty folder, with the default store.
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), store: Vec::new() }
    }

    /// Makes a folder with a workflow file `flow.yaml`.
    pub(crate) fn with(flow: &str) -> Self {
        let rig = Self::new();
        rig.write("flow.yaml", flow);
        rig
    }

    /// Makes a folder with run `r-1` of [`FLOW`], failed at step three.
    pub(crate) fn failed() -> Self {
        let rig = Self::with(FLOW);
        assert_eq!(rig.call(&["run", "flow.yaml", "--id", "r-1", "-q"]).status.code(), Some(1));
        rig
    }

    /// Uses another store.
    pub(crate) fn at(mut self, url: &str) -> Self {
        self.store = vec!["--store".to_owned(), url.to_owned()];
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waypost"));
        command.args(&self.store).args(args).current_dir(self.folder.path()).env_clear();
        for name in ["PATH", "HOME", "TMPDIR"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        heed_signals(&mut command);
        command
    }

    pub(crate) fn call(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs the program; returns exit code, stdout and stderr as a text.
    pub(crate) fn waypost(&self, args: &[&str]) -> String {
        self.told(&self.call(args))
    }

    /// Runs the program, and parses its JSON answer.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let output = self.call(args);
        let text = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Starts the program in the background.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::of(&mut self.command(args))
    }

    pub(crate) fn told(&self, output: &Output) -> String {
        let code = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
        let text = format!(
            "exit {code}\n--- stdout\n{}--- stderr\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        let here = self.folder.path();
        let real = here.canonicalize().unwrap();
        text.replace(&*real.to_string_lossy(), "[DIR]").replace(&*here.to_string_lossy(), "[DIR]")
    }

    /// Waits until a file exists and its complete lines satisfy `is`.
    pub(crate) fn wait_for(&self, name: &str, is: impl Fn(&str) -> bool) {
        wait_until(&format!("file {name}"), || {
            fs::read_to_string(self.path(name)).is_ok_and(|text| is(&text))
        });
    }
}

/// A started program; killed at the end of its test.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    pub(crate) fn signal(&self, number: libc::c_int) {
        send(self.pid(), number);
    }

    /// Waits for a line on stderr; removes the line from the result of [`Running::end`].
    pub(crate) fn wait_for_line(&mut self, words: &str) {
        let stderr = self.0.stderr.as_mut().unwrap();
        let mut said = Vec::new();
        while !String::from_utf8_lossy(&said).contains(words) || said.last() != Some(&b'\n') {
            let mut byte = [0];
            assert_eq!(stderr.read(&mut byte).unwrap(), 1, "it ended: {}", String::from_utf8_lossy(&said));
            said.extend(byte);
        }
    }

    /// Waits for the end of the program, and fails after the time limit.
    pub(crate) fn end_soon(mut self) -> Output {
        let begin = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "it hangs");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.end()
    }

    /// Waits for the end of a program without pipes, and returns the exit code.
    pub(crate) fn end_soon_on_terminal(mut self) -> Option<i32> {
        let begin = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "it hangs");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.code()
    }

    /// Returns the exit code of the program, if the program has ended.
    pub(crate) fn ended(&mut self) -> Option<Option<i32>> {
        self.0.try_wait().unwrap().map(|status| status.code())
    }

    /// Waits for the end of the program, not of its streams, and returns the exit code.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }

    /// Waits for the end of the program and of all holders of its streams.
    pub(crate) fn end(mut self) -> Output {
        let mut stdout = self.0.stdout.take().unwrap();
        let mut stderr = self.0.stderr.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let mut errors = Vec::new();
        stderr.read_to_end(&mut errors).unwrap();
        let status = self.0.wait().unwrap();
        Output { status, stdout: reader.join().unwrap(), stderr: errors }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Resets signals to their defaults, since the caller of the tests may ignore these, as `nohup` and `&` in a
/// script do.
#[expect(unsafe_code, reason = "neither the standard library nor rustix sets a signal to its default")]
fn heed_signals(command: &mut Command) {
    let heed = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            // SAFETY: `signal` may be called between fork and exec, and no handler is set.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: only these calls happen between fork and exec.
    unsafe { command.pre_exec(heed) };
}

/// Sends a signal to a process.
pub(crate) fn send(pid: i32, number: libc::c_int) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let signal = rustix::process::Signal::from_named_raw(number).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Runs the program, and returns its exit code.
pub(crate) fn code_of(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

/// Runs the program; checks its exit code and its output on stderr or stdout.
pub(crate) fn expect(rig: &Rig, args: &[&str], code: i32, said: &[&str]) {
    let output = rig.call(args);
    let told = rig.told(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
    for words in said {
        assert!(told.contains(words), "{args:?} does not say `{words}`: {told}");
    }
}

/// Runs the workflow as run `r`.
pub(crate) fn run(rig: &Rig) -> Option<i32> {
    code_of(rig, &["run", "flow.yaml", "--id", "r", "-q"])
}

/// Resumes run `r`.
pub(crate) fn resume(rig: &Rig, args: &[&str]) -> Option<i32> {
    code_of(rig, &[&["resume", "r", "-q"], args].concat())
}

/// Returns the words of the trace since the last call.
pub(crate) fn ran(rig: &Rig) -> String {
    let words = rig.read("trace").split_whitespace().collect::<Vec<_>>().join(" ");
    rig.write("trace", "");
    words
}

pub(crate) fn remove(rig: &Rig, name: &str) {
    fs::remove_file(rig.path(name)).unwrap();
}

/// Waits until a condition is true, with a time limit far above the usual time.
pub(crate) fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether a process exists and is not a zombie.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

/// Compares a text with a snapshot, without times, durations, digests, sizes and generated names.
pub(crate) fn check(name: &str, text: &str) {
    let filters = [
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "[TIME]"),
        (r"\b(\d+ms|\d+\.\ds|\d+m\d\ds)\b", "[TOOK]"),
        (r"\b[0-9a-f]{64}\b", "[DIGEST]"),
        (r#""bytes": \d+"#, r#""bytes": [BYTES]"#),
        (r#""bytes":\d+"#, r#""bytes":[BYTES]"#),
        (r#""duration_ms": \d+"#, r#""duration_ms": [MILLIS]"#),
        (r"\bbytes=\d+", "bytes=[BYTES]"),
        (r"\n  bytes \d+\n", "\n  bytes [BYTES]\n"),
        (r"\(\d+ bytes\)", "([BYTES] bytes)"),
        (r"\b\d+(\.\d)? (B|KiB|MiB|GiB)\b", "[SIZE]"),
        (r"\d+ +(sound|DAMAGED)\n", "[BYTES]  $1\n"),
        (r"\b(flow|demo)-[0-9a-z]{4}\b", "$1-[ID]"),
        (r"(\d+[smhd] ago|\bnow\b)", "[AGO]"),
        (r"process \d+ \(waypost\) on `[^`]*`", "process [PID] (waypost) on `[HOST]`"),
        (r"(\S) {2,}", "$1  "),
        (r" +\n", "\n"),
    ];
    insta::with_settings!({ filters => filters, omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, text);
    });
}
