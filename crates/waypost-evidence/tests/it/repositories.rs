//! Repositories of git.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use waypost::evidence::Site;
use waypost::record::{Claim, Pack, Terms, Verdict};
use waypost_evidence::{Environment, GIT, verifier};

use crate::runtime;

fn git(folder: &Path, words: &[&str]) -> String {
    let settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"];
    let output = Command::new("git").args(settings).args(words).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Makes a repository `r` with one commit, a folder in it, an empty repository `empty`, and a bare one.
fn world(folder: &Path) -> String {
    let repository = folder.join("r");
    fs::create_dir_all(repository.join("inner")).unwrap();
    git(&repository, &["init", "-q"]);
    fs::write(repository.join("a.txt"), "one").unwrap();
    git(&repository, &["add", "."]);
    git(&repository, &["commit", "-qm", "one"]);
    git(folder, &["init", "-q", "empty"]);
    git(folder, &["init", "-q", "--bare", "bare"]);
    fs::write(folder.join("file"), "").unwrap();
    fs::create_dir(folder.join("plain")).unwrap();
    git(&repository, &["rev-parse", "HEAD"])
}

fn found(environment: Environment, claim: Claim, folder: &Path) -> Claim {
    let (pack, site) = (Pack::all([claim]), Site::beneath(folder));
    runtime().block_on(verifier(environment).verify(&pack, &site)).claims.remove(0)
}

fn claim(subject: &str, expect: Value) -> Claim {
    Claim { expect, ..Claim::new(GIT, subject) }
}

#[test]
fn a_repository_is_as_it_is_expected() {
    let folder = tempfile::tempdir().unwrap();
    let head = world(folder.path());
    let cases = [
        (claim("r", json!({ "head": "main" })), Verdict::Ok),
        (claim("r", json!({ "head": head })), Verdict::Ok),
        (claim("r", json!(head)), Verdict::Ok),
        (claim("r", json!({ "head": head[..7].to_uppercase() })), Verdict::Ok),
        (claim("r", json!({ "head": head[..6] })), Verdict::Failed),
        (claim("r", json!({ "head": "0000000" })), Verdict::Failed),
        (claim("r", json!({ "head": "mai" })), Verdict::Failed),
        (claim("r", json!({ "head": "other", "clean": true })), Verdict::Failed),
        (claim("r", json!({ "clean": true })), Verdict::Ok),
        (claim("r", json!({ "clean": false })), Verdict::Failed),
        (claim("r", json!({ "clean": "yes" })), Verdict::Failed),
        (claim("r", json!({ "head": "" })), Verdict::Failed),
        (claim("r", json!({ "head": null })), Verdict::Failed),
        (claim("r", json!({ "branch": "main" })), Verdict::Unknown),
        (claim("r", json!({})), Verdict::Failed),
        (claim("r", json!(null)), Verdict::Failed),
        (claim("r/inner", json!({ "head": "main" })), Verdict::Failed),
        (claim("plain", json!({ "clean": true })), Verdict::Failed),
        (claim("gone", json!({ "clean": true })), Verdict::Failed),
        (claim("file", json!({ "clean": true })), Verdict::Failed),
        (claim("../r", json!({ "clean": true })), Verdict::Failed),
        (claim("empty", json!({ "head": "main" })), Verdict::Ok),
        (claim("empty", json!({ "head": head })), Verdict::Failed),
        (claim("bare", json!({ "clean": true })), Verdict::Unknown),
    ];

    for (claim, wanted) in cases {
        let checked = found(Environment::inherited(), claim.clone(), folder.path());
        assert_eq!(checked.verdict, wanted, "{checked:?}");
        let not = claim.on_terms(Terms { not: true, ..Terms::default() });
        let other = found(Environment::inherited(), not, folder.path());
        let is_told = !checked.found.is_null();
        match wanted {
            Verdict::Failed if is_told => assert_eq!(other.verdict, Verdict::Ok, "{other:?}"),
            Verdict::Ok => assert_eq!(other.verdict, Verdict::Failed, "{other:?}"),
            _ => assert_eq!(other.verdict, wanted, "of what is no repository nothing holds: {other:?}"),
        }
    }
}

#[test]
fn what_is_changed_staged_or_untracked_is_not_clean() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    let repository = folder.path().join("r");
    let clean = || found(Environment::inherited(), claim("r", json!({ "clean": true })), folder.path()).found;

    fs::write(repository.join("b.txt"), "").unwrap();
    assert_eq!(clean(), json!({ "clean": false, "changes": 1 }));
    git(&repository, &["mv", "a.txt", "c.txt"]);
    assert_eq!(clean(), json!({ "clean": false, "changes": 2 }));
    fs::remove_file(repository.join("b.txt")).unwrap();
    git(&repository, &["commit", "-qm", "two"]);
    assert_eq!(clean(), json!({ "clean": true }));
    fs::write(repository.join("c.txt"), "two").unwrap();
    assert_eq!(clean(), json!({ "clean": false, "changes": 1 }));
}

#[test]
fn the_commit_is_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let head = world(folder.path());
    let site = Site::beneath(folder.path());
    let commit = |subject: &str| {
        let pack = Pack::all([Claim::new(GIT, subject).pinning()]);
        runtime().block_on(verifier(Environment::inherited()).commit(&pack, &site)).claims.remove(0)
    };

    let pinned = commit("r");

    assert_eq!((pinned.verdict, &pinned.expect), (Verdict::Ok, &json!(head)), "{pinned:?}");
    let again = || found(Environment::inherited(), pinned.clone(), folder.path()).verdict;
    fs::write(folder.path().join("r/b.txt"), "").unwrap();
    assert_eq!(again(), Verdict::Ok);
    git(&folder.path().join("r"), &["add", "."]);
    git(&folder.path().join("r"), &["commit", "-qm", "two"]);
    assert_eq!(again(), Verdict::Failed);
    assert_eq!(commit("empty").verdict, Verdict::Failed, "it has no commit");
}

#[test]
fn git_writes_nothing_and_ignores_the_caller_environment() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    let repository = folder.path().join("r");
    let hook = format!("#!/bin/sh\ntouch {}\n", folder.path().join("ran").display());
    let path = repository.join(".git/hooks/post-index-change");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    for path in [&path, &folder.path().join("monitor")] {
        fs::write(path, &hook).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    git(&repository, &["config", "core.fsmonitor", folder.path().join("monitor").to_str().unwrap()]);
    // The time of a file differs from that in the index, which git would write down.
    fs::write(repository.join("a.txt"), "one").unwrap();
    let _ = fs::remove_file(folder.path().join("ran"));
    let index = || fs::read(repository.join(".git/index")).unwrap();
    let before = index();
    let variables = [("GIT_DIR", "/nowhere"), ("GIT_WORK_TREE", "/"), ("GIT_INDEX_FILE", "/dev/null")];
    let variables = variables.map(|(name, value)| (name.into(), value.into()));
    let environment = Environment::of(std::env::vars_os().chain(variables));

    let checked = found(environment, claim("r", json!({ "clean": true })), folder.path());

    assert_eq!(checked.verdict, Verdict::Ok, "{checked:?}");
    assert_eq!(index(), before);
    assert!(!folder.path().join("ran").exists());
}

#[test]
fn without_git_nothing_is_known() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    let environment = Environment::of([("PATH".into(), folder.path().into())]);

    let checked = found(environment, claim("r", json!({ "clean": true })), folder.path());

    assert_eq!(checked.verdict, Verdict::Unknown, "{checked:?}");
}

#[test]
fn what_may_not_be_read_may_be_a_repository() {
    let folder = tempfile::tempdir().unwrap();
    world(folder.path());
    let not = || claim("r", json!({ "head": "other" })).on_terms(Terms { not: true, ..Terms::default() });
    let verdict = |claim: Claim| found(Environment::inherited(), claim, folder.path()).verdict;
    let git = folder.path().join("r/.git");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    // Root reads everything.
    let unread = if rustix::process::geteuid().is_root() { Verdict::Ok } else { Verdict::Unknown };
    for path in [git.clone(), git.join("HEAD"), git.join("objects")] {
        mode(&path, 0o000);
        assert_eq!(verdict(not()), unread, "{}", path.display());
        mode(&path, 0o700);
    }

    fs::rename(&git, folder.path().join("r/.other")).unwrap();
    std::os::unix::fs::symlink(".git", &git).unwrap();

    assert_eq!(verdict(not()), Verdict::Unknown, "where the link leads cannot be told");
    assert_eq!(verdict(claim("r", json!({ "clean": true }))), Verdict::Unknown);
}
