//! Kinds for which programs are run: `command`, `exec`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use waypost::evidence::Site;
use waypost::record::{Claim, Pack, Terms, Verdict};
use waypost_evidence::{COMMAND, EXEC, Environment, verifier};

use crate::{Case, FAILED, OK, UNKNOWN, runtime};

/// Commands, what they are expected to come to, and what comes of it.
pub(crate) fn cases() -> Vec<Case> {
    let command = |code: &str, expect: Value, verdict| (COMMAND, code.to_owned(), expect, verdict);
    let exec = |program: &str, expect: Value, verdict| (EXEC, program.to_owned(), expect, verdict);
    vec![
        command("true", json!(null), OK),
        command("false", json!(null), FAILED),
        command("test -e a.txt", json!(null), OK),
        command("test -e gone.txt", json!({ "exit": 0 }), FAILED),
        command("exit 3", json!({ "exit": 3 }), OK),
        command("exit 3", json!({ "exit": [0, 3] }), OK),
        command("exit 3", json!({ "exit": "> 3" }), FAILED),
        command("exit 3", json!({ "exit": "!= 0" }), OK),
        command("exit 3", json!({ "exit": null }), FAILED),
        command("exit 3", json!({ "exit": [] }), FAILED),
        command("exit 3", json!({ "exit": "~ (" }), FAILED),
        command("exit 3", json!({ "exit": {} }), FAILED),
        command("false; true", json!(null), FAILED),
        command("echo $no_such_variable", json!(null), FAILED),
        command("echo ok", json!({ "stdout": "ok" }), OK),
        command("printf '\\n ok \\n\\n'", json!({ "stdout": "ok" }), OK),
        command("echo ok", json!({ "stdout": "okay" }), FAILED),
        command("echo 12", json!({ "stdout": 12 }), OK),
        command("echo 12", json!({ "stdout": "> 12" }), FAILED),
        command("echo 12", json!({ "stdout": ["~ ^1.$", "no"] }), OK),
        command("true", json!({ "stdout": "" }), OK),
        command("true", json!({ "stdout": null }), FAILED),
        command("echo ok; exit 1", json!({ "stdout": "ok" }), FAILED),
        command("echo ok; exit 1", json!({ "stdout": "ok", "exit": 1 }), OK),
        command("echo oh >&2", json!({ "stderr": "oh", "stdout": "" }), OK),
        command("echo oh >&2", json!({ "stderr": "" }), FAILED),
        command("cat", json!({ "stdout": "" }), OK),
        command("wc -l < a.txt", json!({ "stdout": 3 }), OK),
        command("true", json!({ "colour": "red" }), UNKNOWN),
        command("true", json!("true"), FAILED),
        command(" ", json!(null), FAILED),
        command("no-such-program", json!(null), UNKNOWN),
        command("no-such-program", json!({ "exit": 127 }), UNKNOWN),
        command("no-such-program", json!({ "exit": "> 0" }), UNKNOWN),
        command("no-such-program", json!({ "exit": "!= 0" }), UNKNOWN),
        command("./a.txt", json!(null), UNKNOWN),
        command("kill -KILL $$", json!(null), UNKNOWN),
        command("kill -TERM $$", json!(null), UNKNOWN),
        command("kill -SEGV $$", json!(null), FAILED),
        command("yes | head -c 2000000", json!({ "stdout": "~ y" }), UNKNOWN),
        command("yes | head -c 2000000", json!({ "exit": 0 }), OK),
        command("-n x", json!(null), UNKNOWN),
        command("echo $GIVEN", json!({ "stdout": "x", "env": { "GIVEN": "x" } }), OK),
        command("true", json!({ "env": ["NO_SUCH_VARIABLE"] }), UNKNOWN),
        command("true", json!({ "env": { "NO_SUCH_VARIABLE": null } }), UNKNOWN),
        command("true", json!({ "env": [1] }), FAILED),
        command("true", json!({ "env": "PATH" }), FAILED),
        command("pwd", json!({ "dir": "folder", "stdout": "~ /folder$" }), OK),
        command("pwd", json!({ "dir": "none" }), UNKNOWN),
        exec("./says", json!({ "with": { "code": 0 } }), OK),
        exec("./says", json!({ "with": { "code": 1 } }), FAILED),
        exec("./says", json!({ "with": { "code": 2 } }), UNKNOWN),
        exec("./says", json!({ "with": { "code": 3 } }), UNKNOWN),
        exec("./says", json!({ "with": [0] }), FAILED),
        exec("./says", json!({ "exit": 0 }), UNKNOWN),
        exec("./says", json!("x"), FAILED),
        exec("true", json!(null), OK),
        exec("false", json!(null), FAILED),
        exec("./none", json!(null), UNKNOWN),
        exec("./a.txt", json!(null), UNKNOWN),
        exec("-x", json!(null), FAILED),
        exec("", json!(null), FAILED),
        exec("true", json!({ "with": { "long": "x".repeat(70_000) } }), FAILED),
        exec("true", json!({ "with": { "long": "x".repeat(60_000) } }), OK),
    ]
}

/// Makes a program that ends with the code that it is told.
pub(crate) fn world(folder: &Path) {
    script(
        folder,
        "says",
        "read -r told; code=${told##*\\\"code\\\":}; echo \"$told\"; exit \"${code%%\\}*}\"",
    );
}

fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn found(claim: Claim, folder: &Path) -> Claim {
    found_in(Environment::inherited(), claim, folder)
}

fn found_in(environment: Environment, claim: Claim, folder: &Path) -> Claim {
    let (pack, site) = (Pack::all([claim]), Site::beneath(folder));
    runtime().block_on(verifier(environment).verify(&pack, &site)).claims.remove(0)
}

fn command(code: &str, expect: Value) -> Claim {
    Claim { expect, ..Claim::new(COMMAND, code) }
}

/// Waits until a process is gone, which was killed already.
fn is_gone(pid: &str) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        if !stat.is_ok_and(|stat| !stat.contains(") Z ")) {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn a_program_gets_the_claim_and_its_answer_is_found() {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "echoes", "cat");
    let mut claim = Claim::new(EXEC, "./echoes");
    claim.name = Some("a \"name\" \\n $HOME `x`".to_owned());
    claim.expect = json!({ "with": { "min": 3, "text": "ä\n\t\\" } });
    claim.terms.metadata.insert("ticket".to_owned(), json!("OPS-7"));

    let checked = found(claim.clone(), folder.path());

    assert_eq!(checked.verdict, Verdict::Ok, "{checked:?}");
    let told = json!({
        "v": 1, "kind": "exec", "subject": "./echoes", "with": claim.expect["with"],
        "name": claim.name, "metadata": { "ticket": "OPS-7" },
    });
    assert_eq!(checked.found, told);
}

#[test]
fn who_does_not_listen_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    script(folder.path(), "deaf", "exec <&-; exit 1");
    let mut claim = Claim::new(EXEC, "./deaf");
    claim.expect = json!({ "with": { "long": "x".repeat(60_000) } });

    assert_eq!(found(claim, folder.path()).verdict, Verdict::Failed);
}

#[test]
fn nothing_that_a_command_started_outlives_it() {
    let folder = tempfile::tempdir().unwrap();

    let after = found(command("sleep 600 & echo $! > pid", json!(null)), folder.path());

    assert_eq!(after.verdict, Verdict::Ok, "{after:?}");
    assert!(is_gone(&fs::read_to_string(folder.path().join("pid")).unwrap()));
}

#[test]
fn a_command_after_its_timeout_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let code = "trap '' TERM; sleep 600 & echo $! > child; echo $$ > self; wait";
    let terms = Terms { timeout_ms: Some(500), ..Terms::default() };

    let late = found(command(code, json!(null)).on_terms(terms), folder.path());

    assert_eq!(late.verdict, Verdict::Unknown, "{late:?}");
    for name in ["child", "self"] {
        assert!(is_gone(&fs::read_to_string(folder.path().join(name)).unwrap()), "{name}");
    }
}

#[test]
fn a_check_that_is_dropped_ends_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let pack = Pack::all([command("echo $$ > self; exec sleep 600", json!(null))]);
    let site = Site::beneath(folder.path());
    let pid = || fs::read_to_string(folder.path().join("self")).unwrap_or_default();

    runtime().block_on(async {
        let verifier = verifier(Environment::inherited());
        let begun = async {
            while !pid().ends_with('\n') {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            checked = verifier.verify(&pack, &site) => panic!("{checked:?}"),
            () = begun => {}
        }
    });

    assert!(is_gone(&pid()));
}

#[test]
fn what_left_its_group_with_the_output_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let code = "setsid sh -c 'echo $$ > pid; exec sleep 600' & while [ ! -s pid ]; do :; done; echo ok";

    let checked = found(command(code, json!({ "stdout": "ok" })), folder.path());

    let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(std::process::Command::new("kill").arg(pid.trim()).status().unwrap().success());
    assert_eq!(checked.verdict, Verdict::Ok, "{checked:?}");
}

#[test]
fn secrets_are_passed_by_name_and_masked_before_clipping() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("PATH", "/usr/bin:/bin"), ("TOKEN", "open-sesame"), ("PLAIN", "p")];
    let environment = Environment::of(variables.map(|(name, value)| (name.into(), value.into())))
        .withholding(["TOKEN".into()])
        .masked_by(|text| text.replace("open-sesame", "***"));
    let run = |code: &str, expect: Value| found_in(environment.clone(), command(code, expect), folder.path());

    let without = run("echo \"${TOKEN-none} $PLAIN\"", json!({ "stdout": "none p" }));
    let with = run("printf '%0495d' 0; echo \"$TOKEN\"", json!({ "stdout": "x", "env": ["TOKEN"] }));
    let told = run("echo \"no $TOKEN\" >&2; false", json!({ "env": { "TOKEN": null } }));

    let environment =
        environment.clone().masked_by(|text| text.replace("open-sesame", "***").replace("8442", "***"));
    let says = r#"echo '{"t": ["open-sesame"], "n": 8442, "open-sesame": 1}'"#;
    fs::write(folder.path().join("says"), format!("#!/bin/sh\n{says}\n")).unwrap();
    fs::set_permissions(folder.path().join("says"), fs::Permissions::from_mode(0o755)).unwrap();
    let said = found_in(environment.clone(), Claim::new(EXEC, "./says"), folder.path());

    assert_eq!(said.found, json!({ "t": ["***"], "n": "***", "***": 1 }), "{said:?}");
    assert_eq!(without.verdict, Verdict::Ok, "{without:?}");
    assert_eq!(with.found["stdout"], format!("{}***", "0".repeat(495)));
    assert_eq!(told.error.as_deref(), Some("no ***"), "{told:?}");
    assert!(!format!("{environment:?}").contains("sesame"));
}

#[test]
fn the_opposite_of_a_command_that_died_does_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let not = || Terms { not: true, ..Terms::default() };
    let verdict = |code: &str| found(command(code, json!(null)).on_terms(not()), folder.path()).verdict;

    assert_eq!(verdict("false"), Verdict::Ok);
    assert_eq!(verdict("kill -SEGV $$"), Verdict::Failed);
    assert_eq!(verdict("no-such-program"), Verdict::Unknown);
}
