//! The printed text of steps during a run: lines on stderr, and the live region of a terminal.

use std::io::Read as _;
use std::process::Stdio;

use crate::rig::{Rig, Running, check, expect};
use crate::terminal::Terminal;

/// Runs the workflow as run `r`, and returns stderr.
fn printed(rig: &Rig, args: &[&str]) -> String {
    let output = rig.call(&[&["run", "flow.yaml", "--id", "r"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", rig.told(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the lines of steps.
fn lines_of_steps(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.contains(" | ")).collect()
}

#[test]
fn each_line_of_a_step_precedes_its_end() {
    let rig = Rig::with(
        r"secrets: [TOKEN]
steps:
  - id: one
    run: 'echo hello; printf ''\033[31mred\033[0m\a\r\n''; echo $TOKEN >&2; printf ''no line end'''
  - id: wide
    run: head -c 5000 /dev/zero | tr '\0' x
  - id: each
    foreach:
      items: [a]
      as: x
      steps: [{ id: ask, run: echo deep }]
",
    );
    let mut command = rig.command(&["run", "flow.yaml", "--id", "r"]);
    let output = command.env("TOKEN", "s3cr3t-value-42").output().unwrap();

    let told = String::from_utf8(output.stderr).unwrap();
    let wide = format!("wide | {} [waypost: 904 bytes of this line omitted]", "x".repeat(4096));
    assert_eq!(
        lines_of_steps(&told),
        ["one | hello", "one | red", "one | ***", "one | no line end", &wide, "each:a/ask | deep"]
    );
    let place = |words: &str| told.find(words).unwrap_or_else(|| panic!("no `{words}`: {told}"));
    assert!(place("step_started one") < place("one | hello"));
    assert!(place("one | no line end") < place("step_completed one"));
    assert!(place("each:a/ask | deep") < place("step_completed ask"));
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout, "Run r is completed: 3 of 3 steps are done.\n");
    // The name of a line is a name for `logs`.
    expect(&rig, &["logs", "r", "each:a/ask"], 0, &["deep\n"]);
}

// The join of items and hooks continues the attempt of the step, with the same log.
#[test]
fn each_line_is_printed_once_around_a_join() {
    let rig = Rig::with(
        r"steps:
  - id: each
    foreach:
      items: { run: 'echo listing >&2; echo a' }
      as: x
      steps: [{ id: ask, run: echo deep }]
  - id: hooked
    run: echo work
    on_success: [{ run: echo hook }]
",
    );

    let told = printed(&rig, &[]);

    let mut lines = lines_of_steps(&told);
    // The order of stdout and stderr of a process is not known.
    lines[..2].sort_unstable();
    let hook = "hooked:on_success/hooked-on_success-1 | hook";
    assert_eq!(lines, ["each | a", "each | listing", "each:a/ask | deep", "hooked | work", hook]);
}

#[test]
fn lines_of_parallel_steps_never_mix() {
    let step = |n: u32| {
        format!(
            "  - {{id: s{n}, needs: [], run: 'for i in $(seq 300); do printf s{n}-$i-; echo {n}{n}; done'}}\n"
        )
    };
    let steps: String = (0..8).map(step).collect();
    let rig = Rig::with(&format!("max_parallel: 8\nsteps:\n{steps}"));

    let told = printed(&rig, &[]);

    for n in 0..8 {
        let own: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix(&format!("s{n} | "))).collect();
        let expected: Vec<String> = (1..=300).map(|i| format!("s{n}-{i}-{n}{n}")).collect();
        assert_eq!(own, expected);
    }
    assert_eq!(lines_of_steps(&told).len(), 8 * 300);
}

#[test]
fn lines_are_printed_where_they_are_wanted() {
    const FLOW: &str = "steps:\n  - {id: a, run: echo hello}\n";
    for (args, is_wanted) in [
        (&["--logs"][..], true),
        (&["--no-logs", "--logs"], true),
        (&["--no-logs"], false),
        (&["--logs", "--no-logs"], false),
        (&["-q"], false),
        (&["--logs", "-q"], false),
        (&["--json"], false),
        (&["--logs", "--json"], false),
    ] {
        assert_eq!(printed(&Rig::with(FLOW), args).contains("a | hello\n"), is_wanted, "{args:?}");
    }
    let rig = Rig::with("steps:\n  - {id: a, run: 'echo hello; test -e ok'}\n");
    expect(&rig, &["run", "flow.yaml", "--id", "r", "-q"], 1, &[]);
    rig.write("ok", "");
    let output = rig.call(&["resume", "r"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("\na | hello\n"), "{}", rig.told(&output));
}

#[test]
fn a_job_of_github_has_each_line_once() {
    let rig = Rig::with("steps:\n  - {id: a, run: echo hello}\n");
    let call = |id: &str, args: &[&str]| {
        let mut command = rig.command(&[&["run", "flow.yaml", "--id", id], args].concat());
        rig.told(&command.env("GITHUB_ACTIONS", "true").output().unwrap())
    };

    let (with, without) = (call("r-1", &[]), call("r-2", &["--no-logs"]));

    assert_eq!(with.matches("hello").count(), 1, "{with}");
    assert!(with.contains("\n  | hello\n::endgroup::"), "{with}");
    assert!(!without.contains("hello") && without.contains("step_completed a"), "{without}");
}

// A pipe that nobody reads holds 64 KiB.
#[test]
fn a_slow_reader_holds_up_no_step() {
    let rig = Rig::with(
        "steps:\n  - {id: a, run: seq 50000}\n  - {id: b, run: seq 50000}\n  - {id: c, run: touch done}\n",
    );
    let mut command = rig.command(&["run", "flow.yaml", "--id", "r"]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let running = Running::of(command.stderr(writer).stdin(Stdio::null()));
    drop(command);

    rig.wait_for("done", |_| true);
    let mut told = String::new();
    reader.read_to_string(&mut told).unwrap();

    assert_eq!(lines_of_steps(&told).len(), 100_000);
    assert!(told.ends_with("run_completed\n"));
    drop(running);
}

#[test]
fn the_last_lines_are_the_conclusion() {
    let rig =
        Rig::with("steps:\n  - {id: a, run: seq 1000}\n  - {id: b, needs: [], run: seq 1000; exit 3}\n");
    let program = env!("CARGO_BIN_EXE_waypost");
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "\"$0\" run flow.yaml --id r 2>&1 | tail -n 2", program]).current_dir(rig.path(""));

    let told = String::from_utf8(shell.output().unwrap().stdout).unwrap();

    assert_eq!(told, "Run r failed at step b: 1 of 2 steps are done.\nResume with: waypost resume r\n");
}

/// Three steps that print a last line and wait for a file `go`, items, and a retry.
const LIVE: &str = r#"
max_parallel: 8
steps:
  - { id: compile-everything, needs: [], run: 'echo first; printf "10%%\r20%% 日本語 of a line that is longer than forty columns"; while ! test -e go; do sleep 0.05; done' }
  - { id: quiet, needs: [], run: 'while ! test -e go; do sleep 0.05; done' }
  - { id: flaky, needs: [], retry: { max: 1, delay: 1h }, run: test -e go }
  - id: each
    needs: []
    foreach:
      items: [a, b]
      as: x
      max_parallel: 2
      steps:
        - { id: ask, run: 'echo "item $X"; while ! test -e go; do sleep 0.05; done', env: { X: "${{ x }}" } }
"#;

#[test]
fn the_live_region_fits_every_width() {
    let mut texts = Vec::new();
    for columns in [40, 80, 120] {
        let rig = Rig::with(LIVE);
        let terminal = Terminal::new(columns, 24);
        let running = Running::of(&mut terminal.command(&rig, &["run", "flow.yaml", "--id", "r"]));
        for words in ["| item a", "| item b", "| 20%", "retry flaky attempt 2 in", "quiet "] {
            terminal.wait_for(words);
        }
        texts.push(format!("{columns} columns\n{}", terminal.screen()));
        rig.write("go", "");
        running.signal(libc::SIGINT);
        terminal.wait_for("Resume with: waypost resume r");
        assert!(!terminal.screen().contains("Ctrl-C stops"), "{}", terminal.screen());
    }
    let settled = |line: &str| without_checkpoint(&without_seconds(&line.replace(['/', '-', '\\'], "|")));
    check("live_region", &texts.join("\n\n").lines().map(settled).collect::<Vec<_>>().join("\n"));
}

/// The items begin in one commit or in several, by the load of the machine.
fn without_checkpoint(line: &str) -> String {
    let Some((before, after)) = line.split_once("checkpoint @") else { return line.to_owned() };
    format!("{before}checkpoint @N{}", after.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

fn without_seconds(line: &str) -> String {
    let is_time = |word: &str| word.strip_suffix('s').is_some_and(|count| count.parse::<u32>().is_ok());
    line.split(' ').map(|word| if is_time(word) { "0s" } else { word }).collect::<Vec<_>>().join(" ")
}

#[test]
fn more_running_steps_than_rows_are_counted() {
    let step = |n: u32| {
        format!(
            "  - {{id: s{n:02}, needs: [], run: 'echo line {n}; while ! test -e go; do sleep 0.05; done'}}\n"
        )
    };
    let rig = Rig::with(&format!("max_parallel: 20\nsteps:\n{}", (1..=20).map(step).collect::<String>()));
    let terminal = Terminal::new(80, 10);

    let running = Running::of(&mut terminal.command(&rig, &["run", "flow.yaml", "--id", "r"]));

    terminal.wait_for("s20 ");
    terminal.wait_for("| line 20");
    terminal.wait_for("+17 more");
    rig.write("go", "");
    terminal.wait_for("Run r is completed: 20 of 20 steps are done.");
    drop(running);
}

#[test]
fn a_terminal_shows_each_line_with_logs() {
    let rig = Rig::with("steps:\n  - {id: a, run: 'echo one; echo two'}\n");
    let terminal = Terminal::new(80, 24);

    let running = Running::of(&mut terminal.command(&rig, &["run", "flow.yaml", "--id", "r", "--logs"]));

    terminal.wait_for("Run r is completed");
    let shown = terminal.screen();
    assert!(shown.contains("a | one\na | two\n   done a ("), "{shown}");
    drop(running);
}

#[test]
fn a_progress_bar_prints_its_last_text() {
    let rig = Rig::with(
        "steps: [{id: a, run: 'for i in $(seq 2000); do printf \"\\rat %d%%\" $i; done; echo; printf \"one\\r\\ntwo\\r\"'}]\n",
    );

    assert_eq!(lines_of_steps(&printed(&rig, &[])), ["a | at 2000%", "a | one", "a | two"]);
}
