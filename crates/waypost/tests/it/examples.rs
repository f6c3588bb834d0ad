//! The examples, run as programs, killed, and started again.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use tempfile::TempDir;
use waypost::Digest;

/// Returns the program of an example. `cargo test` builds the program with this binary; a build of this binary
/// alone leaves an old program or none.
fn program(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let folder = here.parent().and_then(Path::parent).unwrap();
    let path = folder.join("examples").join(name);
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = changed(&package.join("src")).max(changed(&package.join(format!("examples/{name}.rs"))));
    if !path.exists() || changed(&path) < source {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "waypost", "--example", name]).current_dir(package);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
    }
    path
}

/// Returns the newest change time of a file in a folder.
fn changed(path: &Path) -> SystemTime {
    let metadata = fs::metadata(path).unwrap();
    if metadata.is_file() {
        return metadata.modified().unwrap();
    }
    let inside = fs::read_dir(path).unwrap().map(|entry| changed(&entry.unwrap().path()));
    inside.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A working folder for programs.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn command(&self, example: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program(example));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Runs an example to its end and returns its output.
    fn run(&self, example: &str, args: &[&str]) -> String {
        let output = self.command(example, args).stderr(Stdio::piped()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example} {args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, example: &str, args: &[&str]) -> String {
        let output = self.command(example, args).stderr(Stdio::piped()).output().unwrap();
        assert!(!output.status.success(), "{example} {args:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Kills a program as `kill -9` does and discards its unread output.
fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_first_graph_measures_once_although_it_is_killed() {
    let bench = Bench::new();

    let mut child = bench.command("first_graph", &[]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let begun = [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()];
    kill(child);

    assert_eq!(begun, ["measuring in Oslo", "advising"]);
    assert_eq!(bench.run("first_graph", &[]), "advising\nTake a coat.\n");
    assert_eq!(bench.run("first_graph", &[]), "Take a coat.\n");
}

#[test]
fn a_killed_job_goes_on_and_hashes_no_finished_file_again() {
    // Given more files than a pipe can hold the names of: until the kill, the job waits for its reader.
    let bench = Bench::new();
    let (count, deep) = (110, "a-folder-with-a-long-name/".repeat(36));
    for n in 0..count {
        bench.write(&format!("files/{deep}{n}.txt"), &format!("file {n}\n"));
    }

    // When the job is killed in the middle and run again.
    let mut child = bench.command("kill_and_run_again", &["files", "store"]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let (mut line, mut hashed) = (String::new(), 0);
    while hashed < 20 {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended before it was killed");
        hashed += usize::from(line.starts_with("hashed "));
    }
    kill(child);
    let finished = recorded_as_hashed(&bench.path("store/runs/index/events.jsonl"));
    assert!(!bench.path("store/index.txt").exists(), "it was finished before it was killed");
    let last = bench.run("kill_and_run_again", &["files", "store"]);
    let again = bench.run("kill_and_run_again", &["files", "store"]);

    // Then recorded files are not hashed again, and no file is left out.
    let now: BTreeSet<&str> = last.lines().filter_map(|line| line.strip_prefix("hashed ")).collect();
    assert!(finished.len() > 4, "{finished:?}");
    assert_eq!(now.iter().find(|path| finished.contains(**path)), None);
    let end = last.lines().last().unwrap();
    assert!(end.starts_with(&format!("{count} files, ")), "{end}");
    assert!(end.ends_with(&format!("{} hashed now, {} skipped", now.len(), count - now.len())), "{end}");
    let index = fs::read_to_string(bench.path("store/index.txt")).unwrap();
    assert_eq!(index.lines().count(), count);
    for line in index.lines() {
        let (digest, path) = line.split_once("  ").unwrap();
        let bytes = fs::read(bench.path("files").join(path)).unwrap();
        assert_eq!(digest, Digest::of(&bytes).to_string(), "{path}");
    }
    assert!(again.ends_with(&format!("0 hashed now, {count} skipped\n")), "{again}");
}

/// Returns the files whose hashing the run has recorded as completed, by scope key.
fn recorded_as_hashed(events: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(events).unwrap();
    // The kill may have torn the last line.
    let events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let completed = events.filter(|event| event["event"] == "step_completed" && event["step"] == "item");
    let scope = |event: serde_json::Value| {
        let scope: waypost::ScopePath = event["scope"].as_str()?.parse().ok()?;
        Some(scope.opened_by()?.1)
    };
    completed.filter_map(scope).collect()
}

#[test]
fn the_research_agent_writes_what_the_documents_say_and_where() {
    let bench = Bench::new();
    bench.write("notes/rights.md", "# A lease\n\nIt is wanted by all. A lease is the right to append.\n");
    bench.write("notes/words.md", "| word | meaning |\n|---|---|\n| **quarantine** | Where damage goes. |\n");
    bench.write("notes/bread.md", "Bread is made of flour.\n");

    let said = bench.run("research", &["store", "What is a lease, and what is quarantine?", "notes"]);
    let again = bench.run("research", &["store", "What is a lease, and what is quarantine?", "notes"]);

    assert_eq!(said, "2 notes, completed\nstore/runs/research/report.md\n");
    assert_eq!(said, again);
    let report = fs::read_to_string(bench.path("store/runs/research/report.md")).unwrap();
    for expect in [
        "### lease\n\nA lease is the right to append.\n\n- rights.md",
        "### quarantine\n\nquarantine     Where damage goes.\n\n- words.md",
        "# What is a lease, and what is quarantine?\n\n**lease.** A lease is the right to append.",
    ] {
        assert!(report.contains(expect), "`{expect}` is not in\n{report}");
    }
    let events = fs::read_to_string(bench.path("store/runs/research/events.jsonl")).unwrap();
    assert!(events.contains("first-sentence"), "what the model cost is recorded: {events}");
}

#[test]
fn the_research_agent_finds_text_in_the_project_documents() {
    let bench = Bench::new();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let store = bench.path("store");

    let mut command = bench.command("research", &[store.to_str().unwrap()]);
    let output = command.current_dir(project).output().unwrap();

    assert!(output.status.success());
    let report = fs::read_to_string(bench.path("store/runs/research/report.md")).unwrap();
    assert!(report.contains("### crash\n") && report.contains("### evidence\n"), "{report}");
}

#[test]
fn an_approval_is_repeated_until_given_and_publishes_once() {
    let bench = Bench::new();
    let outbox = bench.path("store/outbox.txt");

    let asked = bench.run("approval", &["store"]);
    let asked_again = bench.run("approval", &["store"]);
    let refused = bench.run("approval", &["store", "no", "say which"]);
    assert!(!outbox.exists());
    let published = bench.run("approval", &["store", "yes"]);
    let afterwards = bench.run("approval", &["store", "yes"]);

    assert!(asked.contains("Draft 1") && asked.ends_with("The run is waiting.\n"), "{asked}");
    assert_eq!(asked, asked_again);
    assert!(refused.contains("Draft 2: the new release is out. (say which: heeded.)"), "{refused}");
    assert_eq!(
        (published.as_str(), afterwards.as_str()),
        ("The run is completed.\n", "The run is completed.\n")
    );
    let text = fs::read_to_string(&outbox).unwrap();
    assert_eq!(text.matches("Draft 2").count(), 1, "{text}");
}

#[test]
fn a_killed_publication_is_in_doubt_and_not_repeated() {
    // Given an outbox that cannot be opened without a reader.
    let bench = Bench::new();
    bench.run("approval", &["store"]);
    let outbox = bench.path("store/outbox.txt");
    assert!(Command::new("mkfifo").arg(&outbox).status().unwrap().success());

    // When the program is killed while it publishes.
    let mut child = bench.command("approval", &["store", "yes"]).spawn().unwrap();
    let events = bench.path("store/runs/announcement/events.jsonl");
    let is_publishing = || {
        fs::read_to_string(&events)
            .unwrap()
            .lines()
            .any(|line| line.contains("step_started") && line.contains("publish"))
    };
    while !is_publishing() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it published");
        std::thread::yield_now();
    }
    kill(child);
    fs::remove_file(&outbox).unwrap();

    // Then every run of the program asks, until a decision.
    let doubt = bench.run("approval", &["store"]);
    assert!(doubt.starts_with("In doubt: "), "{doubt}");
    assert_eq!(bench.run("approval", &["store"]), doubt);
    assert!(!outbox.exists());
    assert_eq!(bench.run("approval", &["store", "again"]), "The run is completed.\n");
    assert_eq!(fs::read_to_string(&outbox).unwrap().lines().count(), 1);
}

#[test]
fn a_corrupt_file_is_reported_and_read_again_after_repair() {
    let bench = Bench::new();
    for (name, text) in [("a", "x,1\ny,2\n"), ("b", "x,ten\n"), ("c", "z,4\n")] {
        bench.write(&format!("files/{name}.csv"), text);
    }

    let first = bench.run("fork_over_files", &["files", "store"]);
    let unmended = bench.run("fork_over_files", &["files", "store"]);
    bench.write("files/b.csv", "x,10\n");
    let mended = bench.run("fork_over_files", &["files", "store"]);
    let after = bench.run("fork_over_files", &["files", "store"]);

    let mut read: Vec<_> = first.lines().filter(|line| line.starts_with("reading")).collect();
    read.sort_unstable();
    assert_eq!(read, ["reading a.csv", "reading b.csv", "reading c.csv"]);
    assert!(first.contains(r#"mend ["b.csv: line 1: `ten`: invalid digit found in string"]"#), "{first}");
    assert!(first.ends_with("\n2 files, sum 7, 1 to be mended\n"), "{first}");
    assert!(unmended.starts_with("reading b.csv\nmend "), "{unmended}");
    assert_eq!(mended, "reading b.csv\n3 files, sum 17, 0 to be mended\n");
    assert_eq!(after, "3 files, sum 17, 0 to be mended\n", "nothing is left to do");
}

#[test]
fn a_run_of_an_old_program_resumes_in_a_new_one_only() {
    let bench = Bench::new();

    let old = bench.run("migration", &["store", "old"]);
    let new = bench.run("migration", &["store", "new"]);
    let back = bench.fails("migration", &["store", "old"]);

    assert_eq!(old, "orders were taken; go on with `new`\n");
    assert_eq!(new, "Ada: 12 EUR\nGrace: 9 EUR\nbefore that: 2 orders, 0 bills\n");
    assert!(back.contains("Version") && back.contains("found: 1"), "{back}");
}
