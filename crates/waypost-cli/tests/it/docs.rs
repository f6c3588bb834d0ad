//! The commands of the documentation, run in the root of a copy of the repository.
//!
//! Each page is one script of `bash`, in the order of the page:
//!
//! | in the page | in the script |
//! |---|---|
//! | a block `sh` or `bash` | its lines |
//! | a block `console` | its lines behind `$ `, without this prefix; the other lines must be in the output, in order |
//! | a block `console screen` | the same, but other lines are what a terminal shows, and are not compared |
//! | a comment `<!-- sh` … `-->` | its lines: the assumed setup of the reader |
//! | a block `yaml` whose first line ends in `# FILE` | makes that file |
//! | a line that ends in `# exit N`, or has `# exit N:` and more | must exit with N, any other line with 0 |
//! | `no-run` behind the language of a block | nothing: it installs, builds or is for another shell |
//!
//! Two lines of output are equal if all words are, except times, durations and sizes. A line with `…` is
//! compared up to there. `/srv/etl` is the folder where the page runs, and the address of [`DATABASE`] is an empty
//! database.
//!
//! A block `text help:COMMAND` is the help of a command, without the options of all commands.
//! `WAYPOST_UPDATE_DOCS=1` writes these blocks, `WAYPOST_DOCS_PAGE=start` runs only pages with `start` in the path.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use waypost_testing::postgres::{USER, cluster};

use crate::postgres::address;
use crate::rig::Rig;

/// The maximum number of blocks with `no-run`, over all pages.
const NO_RUN_MAX: usize = 2;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the pages of `docs` without the list of the site, at any depth.
fn book(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let mut pages: Vec<_> = folders.iter().flat_map(|folder| book(folder)).collect();
    pages.extend(files.into_iter().filter(|path| path.extension().is_some_and(|end| end == "md")));
    pages.retain(|page| !page.ends_with("SUMMARY.md"));
    pages
}

/// Returns the pages for users.
fn pages() -> Vec<PathBuf> {
    let root = repository();
    let mut pages = vec![root.join("README.md")];
    pages.extend(book(&root.join("docs")));
    let examples = fs::read_dir(root.join("examples")).unwrap().map(|entry| entry.unwrap().path());
    pages.extend(examples.map(|example| example.join("README.md")));
    // A writer checks a page alone: the commands of all pages take minutes.
    let wanted = std::env::var("WAYPOST_DOCS_PAGE").unwrap_or_default();
    pages.retain(|page| page.to_string_lossy().contains(&wanted));
    pages.sort();
    pages
}

/// The folder of a page in its output.
const FOLDER: &str = "/srv/etl";

/// The database of a page.
const DATABASE: &str = "postgres://me@db.example/jobs";

/// Returns the address of a new database if the page uses one, else the address of the page.
fn database(path: &Path, page: &Page) -> String {
    match page.script.contains(DATABASE) {
        false => DATABASE.to_owned(),
        true => {
            let name = format!("docs_{}", path.file_stem().unwrap().to_string_lossy());
            cluster().database(&name, "SELECT 1");
            address(USER, &name)
        }
    }
}

/// The commands of a page.
#[derive(Debug, Default)]
struct Page {
    script: String,
    commands: usize,
    not_run: usize,
    /// The output of a command, by its number: the lines of the page.
    samples: BTreeMap<usize, Vec<String>>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let is_hidden = line.trim() == "<!-- sh";
            let Some(info) = line.trim().strip_prefix("```").or(is_hidden.then_some("sh")) else { continue };
            let end = if is_hidden { "-->" } else { "```" };
            let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != end).collect();
            let (language, attribute) = info.split_once(' ').unwrap_or((info, ""));
            match (language, attribute) {
                ("sh" | "bash" | "console", "no-run") => page.not_run += 1,
                ("sh" | "bash", "") => block.iter().for_each(|line| page.add(line)),
                ("console", "" | "screen") => page.add_session(&block, attribute.is_empty()),
                ("yaml", _) => page.add_file(&block),
                ("sh" | "bash" | "console", _) => panic!("`{info}` is not known"),
                _ => {}
            }
        }
        page
    }

    fn add(&mut self, line: &str) {
        match expected_code(line) {
            None => writeln!(self.script, "{line}").unwrap(),
            Some(code) => {
                // The command is on a line of its own, so that its comment ends there.
                let check =
                    format!("[ $code = {code} ] || {{ echo \"exit $code, not {code}\" >&2; exit 99; }}");
                writeln!(self.script, "code=0\n{{ {line}\n}} || code=$?\n{check}").unwrap();
            }
        }
        self.commands += 1;
    }

    /// Adds commands with their output.
    fn add_session(&mut self, block: &[&str], is_compared: bool) {
        for line in block {
            let Some(command) = line.strip_prefix("$ ") else {
                if is_compared && !line.trim().is_empty() {
                    self.samples.entry(self.commands).or_default().push((*line).to_owned());
                }
                continue;
            };
            self.commands += 1;
            let (number, code) = (self.commands, expected_code(command).unwrap_or("0"));
            let output = format!("\"$SAMPLES/{number}\"");
            let wrong = format!("{{ cat {output} >&2; echo \"exit $code, not {code}\" >&2; exit 99; }}");
            writeln!(
                self.script,
                "code=0\n{{ {command}\n}} > {output} 2>&1 || code=$?\n[ $code = {code} ] || {wrong}"
            )
            .unwrap();
        }
    }

    /// Returns the first line of each sample that is not in the output of its command.
    fn missing(&self, outputs: &Path, places: &[(&str, &str)]) -> Vec<String> {
        let mut missing = Vec::new();
        for (number, sample) in &self.samples {
            let output = fs::read_to_string(outputs.join(number.to_string())).unwrap_or_default();
            let output = places.iter().fold(output, |output, (actual, shown)| output.replace(actual, shown));
            let mut actual = output.lines().map(words);
            let lost = sample.iter().find(|line| match line.split_once('…') {
                Some((head, _)) => !actual.any(|actual| actual.starts_with(&words(head))),
                None => !actual.any(|actual| actual == words(line)),
            });
            missing
                .extend(lost.map(|line| format!("`{line}` is not in the output, or not there:\n{output}")));
        }
        missing
    }

    fn add_file(&mut self, block: &[&str]) {
        let name = block.first().and_then(|line| line.rsplit_once("# ")).map(|(_, name)| name.trim());
        let name = name.filter(|name| name.ends_with(".yaml") && !name.contains(' '));
        if let Some(name) = name {
            writeln!(self.script, "cat > {name} <<'END OF FILE'\n{}\nEND OF FILE", block.join("\n")).unwrap();
        }
    }
}

fn expected_code(line: &str) -> Option<&str> {
    line.split_once("# exit ").map(|(_, code)| code.split([':', ';']).next().unwrap().trim())
}

/// Returns the words of a line of output, without times, durations and sizes.
fn words(line: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_matches(['(', ')', ',', '.']);
        let is_number = bare.starts_with(|c: char| c.is_ascii_digit());
        let is_time = is_number && bare.ends_with(['s', 'm', 'h', 'd', 'Z']);
        match bare {
            "now" | "ago" => {}
            "B" | "KiB" | "MiB" => drop(words.pop()),
            _ if is_time => {}
            _ => words.push(word),
        }
    }
    words.join(" ")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (name, target) = (entry.file_name(), to.join(entry.file_name()));
        match entry.file_type().unwrap().is_dir() {
            // Skips build output, which cargo tags, inputs found by the fuzzer, and earlier runs.
            true if entry.path().join("CACHEDIR.TAG").exists() => {}
            true if [".git", "corpus", "out", "runs", "locks"].iter().any(|left| name == *left) => {}
            true => copy(&entry.path(), &target),
            false if name.to_string_lossy().starts_with("waypost.db") => {}
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Runs a page in a copy of the repository. Returns the failure.
fn played(path: &Path, page: &Page) -> Option<String> {
    let rig = Rig::new();
    copy(&repository(), &rig.path("clone"));
    fs::create_dir(rig.path("clone/.git")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_waypost")).parent().unwrap();
    let mut search = OsString::from(program);
    search.push(":");
    search.push(std::env::var_os("PATH").unwrap());
    let mut command = Command::new("bash");
    let database = database(path, page);
    let script = page.script.replace(DATABASE, &database);
    command.args(["-euo", "pipefail", "-c", &script]).current_dir(rig.path("clone"));
    command.env("PATH", search).env("XDG_STATE_HOME", rig.path("state")).env_remove("WAYPOST_STORE");
    // Variables that a step has.
    command.env("WAYPOST_OUTPUT", rig.path("output"));
    command.env("SAMPLES", rig.path("samples")).stdin(std::process::Stdio::null());
    fs::create_dir(rig.path("samples")).unwrap();
    let ended = command.output().unwrap();
    if !ended.status.success() {
        return Some(format!("{}: {}\n{}", path.display(), rig.told(&ended), page.script));
    }
    let folder = rig.path("clone").canonicalize().unwrap();
    let places = [(&*folder.display().to_string(), FOLDER), (&*database, DATABASE)];
    let missing = page.missing(&rig.path("samples"), &places);
    (!missing.is_empty()).then(|| format!("{}: {}", path.display(), missing.join("\n")))
}

// Bug: commands of the documentation failed for a reader. Cause: no test ran the commands. Fix: this test.
#[test]
fn the_commands_of_the_documentation_do_what_it_says() {
    let pages: Vec<(PathBuf, Page)> = pages()
        .into_iter()
        .map(|path| {
            let page = Page::read(&fs::read_to_string(&path).unwrap());
            (path, page)
        })
        .collect();
    let not_run: usize = pages.iter().map(|(_, page)| page.not_run).sum();
    assert!(not_run <= NO_RUN_MAX, "{not_run} blocks are not run");
    let with_commands: Vec<_> = pages.iter().filter(|(_, page)| page.commands > 0).collect();
    let is_whole = std::env::var_os("WAYPOST_DOCS_PAGE").is_none();
    assert!(!is_whole || with_commands.len() >= 20, "only {} pages have commands", with_commands.len());

    let failed: Vec<String> = std::thread::scope(|scope| {
        let playing = with_commands.iter().map(|(path, page)| scope.spawn(move || played(path, page)));
        let playing: Vec<_> = playing.collect();
        playing.into_iter().filter_map(|page| page.join().unwrap()).collect()
    });

    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn another_exit_code_or_output_is_seen() {
    for (text, is_right) in [
        ("```sh\ntrue\n```", true),
        ("```sh\nfalse\n```", false),
        ("```sh\nfalse # exit 1\n```", true),
        ("```sh\nfalse # exit 1: of course\n```", true),
        ("```console\n$ false # exit 2\noutput\n```", false),
        ("```console\n$ echo a 7 B, 2s\na 9 B, 4.1s\n```", true),
        ("```console\n$ seq 3\n1\n3\n```", true),
        ("```console\n$ seq 3\n3\n1\n```", false),
        ("```console\n$ echo a b\na …\n```", true),
        ("```console\n$ echo a b\nb …\n```", false),
        ("```console screen\n$ echo a\nb\n```", true),
        ("<!-- sh\nfalse\n-->", false),
        ("```sh no-run\nfalse\n```", true),
        ("```yaml\na: 1 # made.yaml\n```\n```sh\ntest -s made.yaml\n```", true),
    ] {
        let page = Page::read(text);
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &page.script]).current_dir(folder.path());
        command.env("SAMPLES", folder.path());
        let is_fine =
            command.output().unwrap().status.success() && page.missing(folder.path(), &[]).is_empty();
        assert_eq!(is_fine, is_right, "{text}: {}", page.script);
    }
}

/// Options of every command, described once.
const COMMON: &[&str] = &["--store ", "--json ", "--color ", "--quiet ", "--verbose ", "--help "];

fn waypost(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_waypost")).args(args).env_remove("WAYPOST_STORE").output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// Returns the short help of a command, without the common options.
fn help(command: &str) -> String {
    let mut args: Vec<&str> = command.split(' ').collect();
    args.push("-h");
    let text = waypost(&args);
    let mut is_common = false;
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim_end) {
        let option = line.trim_start();
        if option.starts_with('-') && line.len() - option.len() <= 6 {
            is_common = COMMON.iter().any(|common| format!("{option} ").contains(common));
        }
        if line.is_empty() {
            is_common = false;
        }
        if !is_common {
            lines.push(line);
        }
    }
    if lines.last() == Some(&"Options:") {
        lines.pop();
    }
    lines.join("\n").trim_end().to_owned() + "\n"
}

#[test]
fn the_reference_has_the_help_of_each_command() {
    let mut described = Vec::new();
    let mut outdated = Vec::new();
    for page in book(&repository().join("docs/reference")) {
        let text = fs::read_to_string(&page).unwrap();
        let mut actual = String::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            writeln!(actual, "{line}").unwrap();
            let Some(command) = line.strip_prefix("```text help:") else { continue };
            lines.by_ref().take_while(|line| *line != "```").for_each(drop);
            actual += &format!("{}```\n", help(command));
            described.push(command.to_owned());
        }
        if actual != text && std::env::var_os("WAYPOST_UPDATE_DOCS").is_some() {
            fs::write(&page, actual).unwrap();
        } else if actual != text {
            outdated.push(page.display().to_string());
        }
    }

    let list = waypost(&["help"]);
    let commands =
        list.lines().take_while(|line| *line != "Options:").filter_map(|line| line.strip_prefix("  "));
    for command in commands.filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()) {
        let is_described = described.iter().any(|name| name.split(' ').next() == Some(command));
        assert!(is_described, "no page of docs/reference has a block `text help:{command}`");
    }
    let command = "WAYPOST_UPDATE_DOCS=1 cargo test -p waypost-cli --test it docs::";
    assert!(outdated.is_empty(), "the help differs from {}; write it with `{command}`", outdated.join(", "));
}
