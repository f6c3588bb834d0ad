//! `waypost new --from`: the workflow leaves behind what the script leaves behind, run by bash from the folder of the
//! workflow file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::rig::{Rig, check};

/// What a run left: its files and what is in them, and folders.
type Left = BTreeMap<String, String>;

/// What a script has to work with, in its own folder and in that of the workflow file.
const BESIDE: [(&str, &str); 3] = [
    ("cache/kept", "kept\n"),
    ("lib.sh", "hello() { echo \"hello $1 $NAME\" >> \"$HERE/log\"; }\nNAME=lib\n"),
    ("in", "b\na\n"),
];

fn left(root: &Path, under: &Path, left: &mut Left) {
    for entry in std::fs::read_dir(under).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        if name == ".waypost" || name == "waypost.yaml" {
            continue;
        }
        if path.is_dir() {
            self::left(root, &path, left);
            left.insert(name, "a folder".to_owned());
        } else {
            left.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
}

fn prepared(path: &str, script: &str) -> Rig {
    let rig = Rig::new();
    let folder = Path::new(path).parent().unwrap();
    for folder in [folder, Path::new("")] {
        for (name, text) in BESIDE {
            let name = folder.join(name);
            std::fs::create_dir_all(rig.path(&name.display().to_string()).parent().unwrap()).unwrap();
            rig.write(&name.display().to_string(), text);
        }
    }
    rig.write(path, script);
    rig
}

/// Runs a script by bash and as a workflow, and gives the workflow file and what was remarked.
fn compared(path: &str, script: &str) -> (String, String) {
    let (by_bash, rig) = (prepared(path, script), prepared(path, script));
    let is_bare = !path.contains('/');
    let named = if is_bare { format!("./{path}") } else { path.to_owned() };
    let shell = Command::new("bash").arg(named).current_dir(by_bash.path("")).output().unwrap();
    assert!(shell.status.success(), "{script}: {shell:?}");

    let remarks = rig.waypost(&["new", "--from", path]);
    let made = rig.read("waypost.yaml");
    let ran = rig.waypost(&["run", "--id", "r"]);

    assert!(ran.starts_with("exit 0\n"), "{script}: {ran}\n{made}");
    let [expect, actual] = [&by_bash, &rig].map(|rig| {
        let mut found = Left::new();
        let root = rig.path("");
        left(&root, &root, &mut found);
        // Each ran in a folder of its own.
        let here = root.canonicalize().unwrap().display().to_string();
        let here = here.trim_end_matches('/').to_owned();
        found.values_mut().for_each(|text| *text = text.replace(&here, "ROOT"));
        found
    });
    assert_eq!(actual, expect, "{script}\n{made}");
    (made, remarks)
}

// What happened: `cd "$(dirname "$0")"` was left out, and `rm -rf cache` removed that of another folder.
// Why: the folder of the script was taken to be that of the workflow file.
// What stops it now: it is left out only where both are one; the steps have the path of the script.
#[test]
fn steps_run_in_the_folder_to_which_the_script_goes() {
    let forms = [
        r#"cd "$(dirname "$0")""#,
        "cd $(dirname $0)",
        "cd `dirname \"$0\"`",
        r#"cd "${0%/*}""#,
        r#"cd "$(dirname "${BASH_SOURCE[0]}")""#,
        r#"cd -- "$(dirname -- "$BASH_SOURCE")" || exit 1"#,
        r#"CDPATH= cd -- "$(dirname -- "$0")""#,
        r#"cd -P "$(dirname "$0")" && pwd > at"#,
        r#"cd "$( cd -P "$( dirname "${BASH_SOURCE[0]:-$0}" )" >/dev/null 2>&1 && pwd )""#,
        "SCRIPT_DIR=\"$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\"\ncd \"$SCRIPT_DIR\"",
        "readonly D=$(dirname \"$(realpath \"$0\")\"); cd \"$D\" || { echo no >&2; exit 1; }",
        r#"pushd "$(dirname "$0")" > /dev/null"#,
        "mkdir -p a b; cd a; cd ..\ncd \"$(dirname \"$0\")/../$(basename \"$PWD\")\" 2>/dev/null || cd \"$(dirname \"$0\")\"",
        "cd \"$(dirname \"$0\")\"\nx=$(cat <<E\nhi\nE\n)",
        "x=$(cat <<E\nhi\nE\n)\ncd \"$(dirname \"$0\")\"",
    ];
    for form in forms {
        for path in ["s.sh", "scripts/s.sh"] {
            let script = format!("set -e\n{form}\nrm -rf cache\necho one > one\necho two >> one\n");
            compared(path, &script);
        }
    }
    for form in [r#"cd "$(dirname "$0")""#, r#"cd "$(dirname "${BASH_SOURCE[0]}")/in here""#] {
        let script =
            format!("set -e\nmkdir -p \"$(dirname \"$0\")/in here\"\n{form}\nrm -rf cache\necho one > one\n");
        compared("a folder/it's $x \"y\".sh", &script);
    }
    let (made, remarks) = compared("s.sh", "set -e\ncd \"$(dirname \"$0\")\"\nrm -rf cache\n");
    assert!(!made.contains("SCRIPT_ITSELF"), "{made}");
    assert!(remarks.contains("`cd \"$(dirname \"$0\")\"` was left out"), "{remarks}");
}

// What happened: `$0` and `BASH_SOURCE` were those of the shell of the step: `source "$HERE/lib.sh"` found nothing.
// Why: they were copied as they stood.
// What stops it now: a variable with the path takes their place, where the shell would have expanded them.
#[test]
fn the_script_calls_itself_as_it_did() {
    let scripts = [
        "HERE=\"$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\"; source \"$HERE/lib.sh\"\nhello a\nhello b\n",
        "HERE=`cd \"$(dirname $0)\" && pwd`\n[ -f \"$HERE/lib.sh\" ] && . \"$HERE/lib.sh\"\nhello a\nhello b\n",
        "echo \"$0 ${0##*/} $(basename \"$0\" .sh) \\$0\" > out\nf() { echo \"$0:$BASH_SOURCE\"; }\nf > f\n",
        "awk '{ print $0 \"!\" }' in > out\nawk \"{ print \\$0 }\" in >> out\n",
        "main() { echo main > out; }\nif [[ \"${BASH_SOURCE[0]}\" == \"${0}\" ]]; then\n  main\nfi\n",
        "cat > a <<'E'\n$0 ${BASH_SOURCE[0]} `date`\nE\ncat > b <<E\n'$0' \\$0 $(basename \"$0\") $(awk '{ print $0 }' in)\nE\n",
        "echo it\\'s $0 > a # isn't $0\necho \"it's $0\" > b\necho $'it\\'s $0' '$0' > c\n",
    ];
    for script in scripts {
        for path in ["s.sh", "scripts/s.sh", "a folder/it's.sh"] {
            if !(path.contains(' ') && script.contains(" $0)")) {
                compared(path, &format!("set -eu\n{script}"));
            }
        }
    }
}

#[test]
fn what_is_not_known_of_the_script_is_said() {
    let scripts = [
        "echo \"${BASH_SOURCE[1]:-} ${BASH_SOURCE[@]:-}\"\n",
        "echo \"$0\"\nSCRIPT_ITSELF=mine\n",
        "echo \"$0\"\nif true; then\n",
        "echo \"$0\"\necho 'it\necho $0\n",
        "eval 'echo $0'\ntrap 'echo $0' EXIT\n",
        "set -e\necho a\nset +e\nfalse\n",
        "#!/usr/bin/env python3\nprint(__file__)\n",
    ];
    let told = scripts.map(|script| {
        let rig = Rig::new();
        rig.write("s.sh", script);
        let said = rig.waypost(&["new", "--from", "s.sh"]);
        format!("{script}{said}{}", rig.read("waypost.yaml"))
    });
    check("scripts_unknown", &told.join("\n"));
}

// What happened: `source "$HERE/lib.sh"` was said again in steps that had no HERE.
// Why: only what a command itself reads was searched for a variable that stays together with its readers.
// What stops it now: what is said again before a command counts as read by it.
#[test]
fn what_is_said_again_has_what_it_reads() {
    let scripts = [
        "for d in \"$(dirname \"$0\")\"; do HERE=$(cd \"$d\" && pwd); done\nsource \"$HERE/lib.sh\"\nhello a\nhello b\n",
        "HERE=$(mktemp -d | sed 's/.*/./')\nsource \"$HERE/lib.sh\"\nhello a\nhello b\n",
        "read -r N < in\nDIR=\"$N/x\"\nmkdir -p \"$DIR\"\necho 1 > \"$DIR/1\"\n",
        "for i in 1 2; do n=$i; done\nshow() { echo \"$n\" >> out; }\nshow\necho then >> out\nshow\n",
        "show() { echo \"$n\" >> out; }\nfor i in 1 2; do n=$i; done\nshow\necho then >> out\nshow\n",
        "for i in 1 2; do n=$i; done; export n\nsh -c 'echo $n' >> out\nbash -c 'echo $n' >> out\n",
    ];
    for script in scripts {
        compared("s.sh", &format!("set -eu\n{script}"));
    }
}

// What happened: the steps had `v` of `lib.sh`, another `$$`, the usual IFS, and variables without a value.
// Why: the shell knew more than the names that a command reads.
// What stops it now: what only one shell knows stays together, is said again in every step, or has the last word.
#[test]
fn what_only_the_shell_knows_is_not_lost() {
    let scripts = [
        "HERE=.; source \"$HERE/lib.sh\"\nNAME=$(echo own)\nhello a\nhello b\nexport NAME\nsh -c 'echo $NAME' > out\n",
        "echo begin > log.$$\ncat log.$$ > out\nrm log.$$\necho end >> out\n",
        "IFS=,\nx=1,2\nfor i in $x; do echo $i >> out; done\nIFS=' '\nfor i in $x; do echo $i >> out; done\n",
        "echo K=1 > env\nwhile IFS== read -r k v; do\n  export \"$k=$v\"\ndone < env\nsh -c 'echo $K' > out\n",
        "export $(echo A=1 B=2)\nsh -c 'echo $A$B' > out\nsh -c 'echo $B$A' > two\n",
        ": \"${X:=x}\" \"${Y:=$(echo y)}\"\necho $X > out\necho $Y >> out\n",
        "set -a; source ./lib.sh; set +a\nsh -c 'echo $NAME' > out\nsh -c 'echo $NAME' > two\n",
        "if [ -f lib.sh ]; then . ./lib.sh; fi\necho $NAME > out\necho $NAME > two\n",
        "f() { echo f >> out; }; (f) > own; f\nf\ng() { echo g >> out; } && g\ng\n",
        "f() { echo f >> out; }; f; (f)\nf\ng () ( echo g >> out ); g\ng\n",
        "go() { builtin cd cache; }\ngo\npwd > at\nls > list\n",
    ];
    for script in scripts {
        compared("s.sh", &format!("set -eu\n{script}"));
    }
}

// What happened: after `rm -rf build` each step said `cd build` and `cd ..` again: it failed, or went to the folder above.
// Why: what changes the folder was said again in every later step.
// What stops it now: ways that led back are left out, and a step ends where a way that is left leads nowhere.
#[test]
fn a_folder_that_is_gone_is_not_gone_into() {
    let scripts = [
        "mkdir b\ncd b\ntouch x\ncd ..\nrm -rf b\nrm -rf cache\necho end > end\n",
        "mkdir -p b/c\ncd b/c\ntouch x\ncd ../..\nrm -rf b\necho end > end\n",
        "ROOT=$(cd \"$(dirname \"$0\")\" && pwd)\nmkdir b\ncd b\ntouch x\ncd \"$ROOT\"\nrm -rf b\necho end > end\n",
        "mkdir b\ncd b\nAT=$PWD\ncd ..\necho \"$AT\" > end\n",
    ];
    for script in scripts {
        for path in ["s.sh", "scripts/s.sh"] {
            compared(path, script);
            if !script.contains("$0") {
                compared(path, &format!("set -e\ncd \"$(dirname \"$0\")\"\n{script}"));
            }
        }
    }
    let rig = Rig::new();
    rig.write("s.sh", "mkdir b\ncd b || exit 1\ntouch x\nrm -rf ../b\necho end > ../end\n");
    rig.waypost(&["new", "--from", "s.sh"]);
    assert!(rig.waypost(&["run", "--id", "r"]).starts_with("exit 1\n"), "{}", rig.read("waypost.yaml"));
}

#[test]
fn that_a_file_is_read_in_every_step_is_said() {
    let script =
        "set -eu\nHERE=$(cd \"$(dirname \"$0\")\" && pwd)\nsource \"$HERE/lib.sh\"\nhello a\nhello b\n";

    let (made, remarks) = compared("scripts/s.sh", script);

    check("scripts_source", &format!("{remarks}{made}"));
}
