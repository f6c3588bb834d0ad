//! The commands of the documentation, run in the root of a copy of the repository.
//!
//! Each page is one script of `bash`, in the order of the page:
//!
//! | in the page | in the script |
//! |---|---|
//! | a block `sh` or `bash` | its lines |
//! | a block `console` | its lines behind `$ `, without this prefix; other lines are output |
//! | a comment `<!-- sh` … `-->` | its lines: the assumed setup of the reader |
//! | a block `yaml` whose first line ends in `# FILE` | makes that file |
//! | a line that ends in `# exit N`, or has `# exit N:` and more | must exit with N, any other line with 0 |
//! | `no-run` behind the language of a block | nothing: it installs, builds or is for another shell |

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rig::Rig;

/// The maximum number of blocks with `no-run`, over all pages.
const NO_RUN_MAX: usize = 3;

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
    pages.sort();
    pages
}

/// The commands of a page.
#[derive(Debug, Default)]
struct Page {
    script: String,
    commands: usize,
    not_run: usize,
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
                ("console", "") => {
                    block.iter().filter_map(|line| line.strip_prefix("$ ")).for_each(|line| page.add(line));
                }
                ("yaml", _) => page.add_file(&block),
                ("sh" | "bash" | "console", _) => panic!("`{info}` is not known"),
                _ => {}
            }
        }
        page
    }

    fn add(&mut self, line: &str) {
        let code = line.split_once("# exit ").map(|(_, code)| code.split([':', ';']).next().unwrap().trim());
        match code {
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

    fn add_file(&mut self, block: &[&str]) {
        let name = block.first().and_then(|line| line.rsplit_once("# ")).map(|(_, name)| name.trim());
        let name = name.filter(|name| name.ends_with(".yaml") && !name.contains(' '));
        if let Some(name) = name {
            writeln!(self.script, "cat > {name} <<'END OF FILE'\n{}\nEND OF FILE", block.join("\n")).unwrap();
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (name, target) = (entry.file_name(), to.join(entry.file_name()));
        match entry.file_type().unwrap().is_dir() {
            // Skips build output and earlier runs.
            true if ["target", ".git", "out", "runs", "locks"].iter().any(|left| name == *left) => {}
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
    command.args(["-euo", "pipefail", "-c", &page.script]).current_dir(rig.path("clone"));
    command.env("PATH", search).env("XDG_STATE_HOME", rig.path("state")).env_remove("WAYPOST_STORE");
    // Variables that a step has.
    command.env("WAYPOST_OUTPUT", rig.path("output"));
    command.stdin(std::process::Stdio::null());
    let ended = command.output().unwrap();
    (!ended.status.success()).then(|| format!("{}: {}\n{}", path.display(), rig.told(&ended), page.script))
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
    assert!(with_commands.len() >= 9, "only {} pages have commands", with_commands.len());

    let failed: Vec<String> = std::thread::scope(|scope| {
        let playing = with_commands.iter().map(|(path, page)| scope.spawn(move || played(path, page)));
        let playing: Vec<_> = playing.collect();
        playing.into_iter().filter_map(|page| page.join().unwrap()).collect()
    });

    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_command_with_another_exit_code_is_seen() {
    for (text, is_right) in [
        ("```sh\ntrue\n```", true),
        ("```sh\nfalse\n```", false),
        ("```sh\nfalse # exit 1\n```", true),
        ("```sh\nfalse # exit 1: of course\n```", true),
        ("```console\n$ false # exit 2\noutput\n```", false),
        ("```console\n$ true\nfalse\n```", true),
        ("<!-- sh\nfalse\n-->", false),
        ("```sh no-run\nfalse\n```", true),
        ("```yaml\na: 1 # made.yaml\n```\n```sh\ntest -s made.yaml\n```", true),
    ] {
        let page = Page::read(text);
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &page.script]).current_dir(folder.path());
        assert_eq!(command.output().unwrap().status.success(), is_right, "{text}: {}", page.script);
    }
}
