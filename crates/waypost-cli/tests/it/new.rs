//! `waypost new`: what it makes passes `check` and runs, and a script as a workflow does what the script did.

use std::process::Command;

use serde_json::json;

use crate::rig::{Rig, check};

fn code(rig: &Rig, args: &[&str]) -> Option<i32> {
    rig.call(args).status.code()
}

#[test]
fn a_file_to_begin_with_passes_check_and_runs() {
    let rig = Rig::new();

    check("new", &rig.waypost(&["new", "--name", "first"]));

    check("new_file", &rig.read("waypost.yaml"));
    assert_eq!(code(&rig, &["check"]), Some(0));
    assert_eq!(code(&rig, &["run", "-q", "--id", "r", "-p", "who=you"]), Some(0));
    assert_eq!(rig.read("out/greeting.txt"), "Hello, you\n");
    check("new_exists", &rig.waypost(&["new"]));
    let made = rig.json(&["new", "other.yaml", "--json"]);
    assert_eq!(made["v"], 1);
    assert_eq!(made["steps"], json!(["prepare", "greet", "publish"]));
}

#[test]
fn nothing_is_overwritten_and_nothing_wrong_is_made() {
    let rig = Rig::new();
    rig.write("bytes.sh", "echo ok\n");
    std::fs::write(rig.path("latin.sh"), b"echo \xe4\n").unwrap();
    std::os::unix::fs::symlink("nowhere", rig.path("link.yaml")).unwrap();

    let said = [
        &["new", "--from", "none.sh"][..],
        &["new", "--from", "latin.sh"],
        &["new", "link.yaml"],
        &["new", "no/such/folder.yaml"],
        &["new", "--from", "/dev/null"],
        &["new", "a.yaml", "b.yaml"],
    ]
    .map(|args| format!("$ waypost {}\n{}", args.join(" "), rig.waypost(args)));

    check("new_wrong", &said.join("\n"));
    assert!(!rig.path("waypost.yaml").exists());
    assert!(!rig.path("nowhere").exists());
}

/// A script with most of what scripts hold.
const SCRIPT: &str = r#"#!/usr/bin/env bash
# Builds and reports.
set -euo pipefail
cd "$(dirname "$0")"

export STAGE=prod
OUT=out
NOW=$(echo fixed-$((2 + 3)))

log() {
  echo "[$STAGE] $*" >> "$OUT/log"
}

# Make room.
mkdir -p "$OUT"; touch "$OUT/log"
log 'begin ${{ x }}' || true
for i in 1 2 3; do
  echo "$i" >> "$OUT/list"
done
count=0
while read -r line; do
  count=$((count + line))
done < "$OUT/list"
echo "counted $count" >> "$OUT/log"
cat <<EOF > "$OUT/report"
Report of $NOW with $(cat "$OUT/list" | tr '\n' ' ') # no comment
  indented ${STAGE} "quoted' \$HOME
EOF
sort -r "$OUT/list" | \
  head -2 |
  tail -1 >> "$OUT/log"
if [ -e "$OUT/report" ]; then log "there"; else exit 4; fi
case "$STAGE" in
  prod|live) log live ;;
  *) log other ;;
esac
[[ "$STAGE" == prod ]] && log "yes; no"
sh -c 'echo "$STAGE"' >> "$OUT/log" && cd out
pwd | sed 's|.*/||' >> log
echo "done ${1:-nobody}" >> log
"#;

#[test]
fn a_script_as_a_workflow_does_what_the_script_did() {
    let rig = Rig::new();
    for folder in ["script", "flow"] {
        std::fs::create_dir(rig.path(folder)).unwrap();
        rig.write(&format!("{folder}/build.sh"), SCRIPT);
    }
    // What a step of a workflow may not hold stands there as it is.
    let made = rig.waypost(&["new", "flow/build.yaml", "--from", "flow/build.sh"]);
    check("new_from", &made);
    check("new_from_file", &rig.read("flow/build.yaml"));
    assert_eq!(code(&rig, &["check", "flow/build.yaml"]), Some(0));
    let ran = rig.waypost(&["run", "flow/build.yaml", "--id", "r", "-p", "arg1=you"]);
    assert!(ran.starts_with("exit 0\n"), "{ran}");
    let shell =
        Command::new("bash").args(["script/build.sh", "you"]).current_dir(rig.path("")).output().unwrap();
    assert!(shell.status.success(), "{shell:?}");

    for file in ["log", "list", "report"] {
        assert_eq!(rig.read(&format!("flow/out/{file}")), rig.read(&format!("script/out/{file}")), "{file}");
    }
}

/// Makes a workflow of a script, and gives its steps as `check` sees them, and what was remarked.
fn steps_of(script: &str) -> String {
    let rig = Rig::new();
    rig.write("s.sh", script);
    let made = rig.json(&["new", "--from", "s.sh", "--json"]);
    assert!(made["error"].is_null(), "{script}: {made}");
    assert_eq!(code(&rig, &["check"]), Some(0), "{}", rig.read("waypost.yaml"));
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines: Vec<String> = made["steps"].as_array().unwrap().iter().map(text).collect();
    for remark in made["remarks"].as_array().unwrap() {
        lines.push(format!("{}: {}", remark["line"], text(&remark["message"])));
    }
    lines.join("\n")
}

#[test]
fn what_cannot_be_apart_stays_together() {
    let scripts = [
        ("a failure that is looked at", "set -e\nfalse || true\necho $?\necho end\n"),
        ("a job in the background", "set -e\nsleep 0 &\necho meanwhile\nwait $!\necho end\n"),
        ("an early end", "set -e\necho a\nif test -e x; then exit 0; fi\necho b\n"),
        ("an end in a function", "set -e\nquit() { exit 0; }\necho a\ntest -e x && quit\necho b\n"),
        ("streams", "set -e\necho a\nexec > log\necho b\n"),
        ("a folder that only it knows", "set -e\necho a\ncd \"$(mktemp -d)\"\necho b\n"),
        ("a folder within a function", "set -e\ngo() { cd /; }\necho a\ngo\npwd\n"),
        ("a list of values", "set -e\nfiles=($(ls))\necho ${files[0]}\necho end\n"),
        ("a variable that changes", "set -e\nn=$(echo 1)\necho $n\nn=$((n + 1))\necho $n\necho end\n"),
        ("a variable of a function", "set -e\nf() { x=$(date); }\nf\necho \"$x\"\necho end\n"),
        ("no end", "set -e\nif true; then\necho a\n"),
        ("a quote that does not end", "echo 'a\n"),
        ("a substitution with a here-document", "x=$(cat <<E\nhi\nE\n)\necho $x\n"),
        ("nothing", "# only words\n"),
        ("another language", "#!/usr/bin/env python3\nprint('hi')\n"),
        ("what carries on though it fails", "echo a\nfalse\necho b\n"),
        ("arguments", "set -e\necho \"$@\"\nshift\necho $1\n"),
        ("several on a line", "set -e\ncd /tmp; echo a\necho b; echo c # why\n"),
        ("lines that go on", "set -e\necho a &&\n  echo b |\n  cat \\\n  -n\necho c\r\n"),
        ("odd characters", "set -e\nprintf 'a\\tb\u{1}c'\n\t echo tab\n"),
    ];
    let told = scripts.map(|(what, script)| format!("# {what}\n{}\n", steps_of(script)));
    check("new_together", &told.join("\n"));
}

// What happened: `N=$1` was said again in each step that reads N, and was empty there.
// Why: only what a step itself says was searched for arguments, not what is said again before it.
// What stops it now: each form gives in the workflow what it gives in the script.
#[test]
fn arguments_are_the_same_in_what_is_said_again() {
    let forms = [
        "N=$1",
        "N=${1}",
        "N=\"$1\"",
        "export N=${1:-w}",
        "readonly N=${1:-w}",
        "declare N=${1-w}",
        "N=$2",
        "N=${9:-nine}-$1",
        "N=$#",
        "N=$@",
        "N=\"$*\"",
        "N=${1:?who}",
        "N=${#1}",
        "set -- \"$1\" more; N=$2",
        "N=$1; shift",
        "say() { echo \"$1$N\"; }\nN=$1",
        "N=; for one; do N=$N$one; done",
        "cd \"$1\"; N=$(basename \"$PWD\")",
    ];
    for form in forms {
        let rig = Rig::new();
        std::fs::create_dir(rig.path("bob")).unwrap();
        let out = rig.path("out").display().to_string();
        let script = format!("set -e\n{form}\necho \"a $N\" >> {out}\necho \"b $N\" >> {out}\n");
        rig.write("s.sh", &script);
        let shell = Command::new("bash").args(["s.sh", "bob"]).current_dir(rig.path("")).output().unwrap();
        assert!(shell.status.success(), "{form}: {shell:?}");
        let said = rig.read("out");
        std::fs::remove_file(rig.path("out")).unwrap();

        assert_eq!(code(&rig, &["new", "--from", "s.sh"]), Some(0), "{form}");
        let ran = rig.waypost(&["run", "-p", "arg1=bob"]);

        let made = rig.read("waypost.yaml");
        assert!(ran.starts_with("exit 0\n"), "{form}: {ran}\n{made}");
        assert_eq!(rig.read("out"), said, "{form}\n{made}");
    }
}

#[test]
fn what_is_not_as_it_was_with_arguments_is_said() {
    let scripts = [
        ("all of them", "set -e\nN=$*\necho $N\n"),
        ("how many", "set -e\nN=$#\necho $N\n"),
        ("without a list", "set -e\nfor one; do echo $one; done\n"),
        ("options", "set -e\nwhile getopts ab o; do echo $o; done\n"),
        ("one that may be unset", "set -e\nN=${1-none}\necho $N\n"),
        ("one that must be given", "set -eu\nN=$1\necho $N\n"),
        ("one that need not be given", "set -eu\nN=${1:-none}\necho $N\n"),
        ("the tenth", "set -e\nN=${10}\necho $N\n"),
        ("another language", "#!/usr/bin/env perl\nif (\"ab\" =~ /(a)/) { print $1 }\n"),
    ];
    let told = scripts.map(|(what, script)| format!("# {what}\n{}\n", steps_of(script)));
    check("new_arguments", &told.join("\n"));
}
