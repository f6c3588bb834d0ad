//! `git`: commit, branch and work tree state of a repository.

use std::ffi::OsString;
use std::path::Path;

use async_trait::async_trait;
use rustix::fs::Access;
use rustix::io::Errno;
use serde_json::{Map, Value, json};
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site, find_folder};
use waypost::record::Claim;

use crate::expectations::expected::Expected;
use crate::programs::command::last_error_line;
use crate::programs::environment::Environment;
use crate::programs::process_group::{Exit, Program};

/// Recorded kind of claims about git repositories.
pub const GIT: &str = "git";
/// Fewest digits of a commit prefix, as in git's own short form.
const DIGITS_MIN: usize = 7;
/// Settings that keep git from running configured programs, writing, prompting and fetching.
const SETTINGS: [&str; 2] = ["core.fsmonitor=false", "core.hooksPath=/dev/null"];
const VARIABLES: [(&str, &str); 6] = [
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_PAGER", "cat"),
    ("LC_ALL", "C"),
    ("LANGUAGE", "C"),
];

/// Checks `git`: the subject is the top folder of a repository. `head` is the checked-out branch, or a commit
/// prefix of at least 7 digits. `clean: true` expects no changed, staged or untracked file; `clean: false`
/// expects at least one. Without an expectation, the commit is pinned.
///
/// The probe runs `git` without locks, writes and hooks. Filters that the repository configures may run.
/// `safe.directory` applies.
///
/// - `ok`: the expectations fit.
/// - `failed`: an expectation differs. A missing folder, or a folder that is not the top of a repository,
///   fails the opposite too.
/// - `unknown`: git is missing or refuses to answer, for example for a repository of another user or an
///   unreadable one.
#[derive(Debug, Clone)]
pub struct GitProbe {
    environment: Environment,
}

impl GitProbe {
    /// Returns a probe that starts git with the variables of `environment`.
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment }
    }
}

#[async_trait]
impl Probe for GitProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(GIT, Cost::Waiting).local()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let wanted = GitExpectation::read(&claim.expect)?;
        let repository = self.look(claim, site, wanted.clean.is_some()).await?;
        let mut found = Map::new();
        let mut holds = true;
        if let Some(head) = wanted.head {
            holds &= repository.is_at(head);
            found.insert("head".to_owned(), json!(repository.head));
            found.insert("branch".to_owned(), json!(repository.branch));
        }
        if let Some(clean) = wanted.clean {
            holds &= clean == (repository.changes == 0);
            found.insert("clean".to_owned(), json!(repository.changes == 0));
            if repository.changes > 0 {
                found.insert("changes".to_owned(), json!(repository.changes));
            }
        }
        let found = match claim.expect {
            Value::String(_) => json!(repository.head),
            _ => found.into(),
        };
        Ok(Finding::compared(holds, found))
    }

    async fn pin(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let repository = self.look(claim, site, false).await?;
        repository.head.map(Finding::ok).ok_or_else(|| Finding::failed("the repository has no commit yet"))
    }
}

/// The parsed expectation of a claim.
struct GitExpectation<'c> {
    head: Option<&'c str>,
    clean: Option<bool>,
}

impl<'c> GitExpectation<'c> {
    fn read(expect: &'c Value) -> Result<Self, Finding> {
        if let Value::String(head) = expect {
            return Ok(Self { head: Some(head), clean: None });
        }
        let map = Expected::read(expect, "a repository", &["head", "clean"])?;
        if map.is_empty() {
            return Err(Finding::failed("the claim needs `head` or `clean`"));
        }
        let head = |head: &'c Value| {
            let text = head.as_str().filter(|head| !head.trim().is_empty());
            text.ok_or_else(|| Finding::failed("`head` is a commit or a branch"))
        };
        Ok(Self { head: map.get("head").map(head).transpose()?, clean: map.flag("clean")? })
    }
}

/// State of a repository as reported by git.
#[derive(Debug, Default)]
struct Repository {
    /// The commit; `None` before the first commit.
    head: Option<String>,
    /// `None` if the head is detached.
    branch: Option<String>,
    changes: usize,
}

impl Repository {
    /// Parses the output of `git status --porcelain=v2 --branch -z`.
    fn read(printed: &str) -> Self {
        let mut repository = Self::default();
        let mut lines = printed.split_terminator('\0');
        while let Some(line) = lines.next() {
            if let Some(head) = line.strip_prefix("# branch.oid ") {
                repository.head = Some(head.to_owned()).filter(|head| head != "(initial)");
            } else if let Some(branch) = line.strip_prefix("# branch.head ") {
                repository.branch = Some(branch.to_owned()).filter(|branch| branch != "(detached)");
            } else if !line.starts_with("# ") {
                repository.changes += 1;
                if line.starts_with("2 ") {
                    // A renamed entry is followed by its old name.
                    lines.next();
                }
            }
        }
        repository
    }

    /// Returns whether `wanted` is the checked-out branch or a prefix of the commit.
    fn is_at(&self, wanted: &str) -> bool {
        let is_commit = wanted.len() >= DIGITS_MIN && wanted.bytes().all(|byte| byte.is_ascii_hexdigit());
        let wanted_commit = wanted.to_ascii_lowercase();
        self.branch.as_deref() == Some(wanted)
            || (is_commit && self.head.as_deref().is_some_and(|head| head.starts_with(&wanted_commit)))
    }
}

impl GitProbe {
    /// Runs `git status` in the folder of a claim.
    async fn look(&self, claim: &Claim, site: &Site, with_changes: bool) -> Result<Repository, Finding> {
        let folder = find_folder(site, &claim.subject).await.map_err(Finding::either_way)?;
        let unknown = |error| Finding::unknown(format!("cannot read the folder: {error}"));
        let folder = folder.canonicalize().map_err(unknown)?;
        let mut words: Vec<OsString> = ["git", "--no-pager"].map(Into::into).into();
        words.extend(SETTINGS.iter().flat_map(|setting| ["-c", setting]).map(OsString::from));
        words.extend(["status", "--porcelain=v2", "--branch", "-z"].map(OsString::from));
        let changes = match with_changes {
            true => ["--untracked-files=normal", "--ignore-submodules=none"],
            false => ["--untracked-files=no", "--ignore-submodules=all"],
        };
        words.extend(changes.map(OsString::from));
        let environment = self.variables(&folder)?;
        let top = folder.clone();
        let ended = Program { words, folder, environment, input: None }.run().await?;
        let last_error_line = last_error_line(&ended.stderr, &self.environment);
        match ended.end {
            Exit::Code(0) => {}
            Exit::Code(128)
                if last_error_line
                    .as_deref()
                    .is_some_and(|last_error_line| last_error_line.contains("not a git repository")) =>
            {
                // git reports an unreadable repository as missing.
                if let Some(why) = barred(&top) {
                    return Err(Finding::unknown(format!(
                        "cannot decide whether the folder is a git repository: {why}"
                    )));
                }
                return Err(Finding::failed("the folder is not the top of a git repository"));
            }
            Exit::Code(127) => return Err(Finding::unknown("git is not installed")),
            Exit::Code(code) => {
                let last_error_line = last_error_line.unwrap_or_else(|| format!("exit code {code}"));
                return Err(Finding::unknown(format!("git failed: {last_error_line}")));
            }
            Exit::Signal(signal) => {
                return Err(Finding::unknown(format!("git was killed by signal {signal}")));
            }
        }
        // Truncated output still proves that changes exist.
        let repository = Repository::read(&ended.stdout.text());
        let is_told = repository.head.is_some() || ended.stdout.text().contains("# branch.oid (initial)");
        if is_told {
            Ok(repository)
        } else {
            Err(Finding::unknown("git did not report the checked-out commit"))
        }
    }

    /// Returns the variables for git. Inherited git and locale variables are dropped, and git must not search
    /// parent folders.
    fn variables(&self, folder: &Path) -> Result<Vec<(OsString, OsString)>, Finding> {
        let mut variables = self.environment.of_claim(None)?;
        variables.retain(|(name, _)| {
            let name = name.to_string_lossy();
            !name.starts_with("GIT_") && !name.starts_with("LC_") && name != "LANGUAGE"
        });
        variables.extend(VARIABLES.map(|(name, value)| (name.into(), value.into())));
        let above = folder.parent().unwrap_or(folder).as_os_str().to_owned();
        variables.push(("GIT_CEILING_DIRECTORIES".into(), above));
        Ok(variables)
    }
}

/// Returns the reason why git cannot read the repository files of a folder, if any.
fn barred(top: &Path) -> Option<String> {
    let parts = [".git", ".git/HEAD", ".git/objects", ".git/refs"].into_iter();
    parts.map(|part| (part, top.join(part))).find_map(|(part, path)| {
        match rustix::fs::access(&path, Access::READ_OK) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(errno) => Some(format!("cannot read `{part}`: {errno}")),
        }
    })
}
