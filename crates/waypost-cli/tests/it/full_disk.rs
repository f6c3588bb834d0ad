//! Deletion from a store on a full disk: files whose removal needs no space go first.

use std::fs;
use std::process::Command;

use crate::rig::Rig;

/// Runs a script in a folder on an 8 MiB disk, with a file `flow.yaml`, and returns its output. `fill NAME`
/// leaves no space on the disk, and `$0` is the program. Returns `None` if no disk can be mounted.
#[expect(clippy::print_stderr, reason = "who reads the output of the tests is told what was not shown")]
fn on_a_small_disk(flow: &str, script: &str) -> Option<String> {
    const DISK: &str = r#"
        mount -t tmpfs -o size=8m,mode=0700 tmpfs disk && cp flow.yaml disk && cd disk && echo mounted || exit 0
        fill() { cat /dev/zero > $1 2> /dev/null; df -k . | tail -n 1 | awk '{print "room " $4}'; }
    "#;
    let rig = Rig::with(flow);
    fs::create_dir(rig.path("disk")).unwrap();
    // A separate mount, which ends with the shell.
    let mut shell = Command::new("unshare");
    shell.args(["-rm", "sh", "-c", &format!("{DISK}{script}"), env!("CARGO_BIN_EXE_waypost")]);
    shell.current_dir(rig.path("")).env("WAYPOST_STORE", "sqlite:kept/waypost.db");
    let output = shell.output().ok().map(|output| rig.told(&output)).unwrap_or_default();
    let printed = output.split_once("mounted\n").map(|(_, printed)| printed.to_owned());
    if printed.is_none() {
        eprintln!("no disk can be mounted here, so nothing is shown: {output}");
    }
    printed
}

// Bug: on a full disk `delete` and `prune` ended with 74, so no space could be freed. Cause: SQLite cannot even
// be opened for writing there. Fix: the logs of the deleted runs go first, and then the command tries again.
#[test]
fn runs_are_deleted_from_a_full_disk() {
    let printed = on_a_small_disk(
        "steps: [{id: a, run: seq 100000}]\n",
        r#"
        for run in r-1 r-2 r-3; do "$0" run flow.yaml --id $run -q > /dev/null; done
        fill one
        "$0" delete r-1 --yes; echo "delete $?"
        fill two
        "$0" prune --keep-runs 0 --yes > /dev/null; echo "prune $?"
        ls kept/runs | wc -l
        "$0" list -q; echo "list $?"
        "#,
    );
    let Some(printed) = printed else { return };

    assert_eq!(printed, "room 0\nDeleted run r-1\ndelete 0\nroom 0\nprune 0\n0\nlist 0\n--- stderr\n");
}

#[test]
fn a_full_disk_is_reported_with_files_to_remove_by_hand() {
    let printed = on_a_small_disk(
        "steps: [{id: a, run: seq 10}]\n",
        r#"
        "$0" run flow.yaml --id r-1 -q > /dev/null
        fill one
        "$0" delete r-1 --yes 2>&1; echo "delete $?"
        fill two
        "$0" prune --keep-runs 0 --yes 2>&1 | grep error
        ls kept/runs/r-1
        "$0" verify r-1 > /dev/null; echo "verify $?"
        rm one two
        "$0" delete r-1 --yes
        "#,
    );
    let Some(printed) = printed else { return };

    let (refused, then) = printed.split_once("delete 74\n").unwrap_or_else(|| panic!("{printed}"));
    assert!(refused.contains("cannot delete runs in "), "{printed}");
    let hint = "logs can be removed by hand: `rm -r ";
    assert!(refused.contains(hint) && refused.contains("kept/runs/*/logs`"), "{printed}");
    assert!(then.contains("cannot delete runs in"), "{printed}");
    assert!(then.contains("events.jsonl\n") && !then.contains("logs\n"), "the logs went first: {printed}");
    assert!(then.contains("verify 0\nDeleted run r-1\n"), "its records were sound: {printed}");
}

// Bug: a full disk failed the foreach. Cause: an error of its results file counted as a failure. Fix: the lack of space
// interrupts the run.
#[test]
fn results_of_items_without_space_interrupt_the_run() {
    let flow = "steps:
  - {id: each, foreach: {items: {run: seq 1200}, as: n, max_parallel: 8, steps: [{id: wait, sleep: 1ms}]}}
  - {id: last, run: 'wc -l < $FILE', env: {FILE: '${{ steps.each.items_file }}'}}
";
    let printed = on_a_small_disk(
        flow,
        r#"
        mkdir -p kept/runs/r/outcomes
        mount -t tmpfs -o size=64k,mode=0700 tmpfs kept/runs/r/outcomes
        "$0" run flow.yaml --id r --no-logs > /dev/null 2> said; echo "run $?"
        grep -c "space" said
        "$0" show r | head -n 1
        umount kept/runs/r/outcomes
        "$0" resume r --no-logs > /dev/null 2>&1; echo "resume $?"
        "$0" logs r last | tail -n 1
        "#,
    );
    let Some(printed) = printed else { return };

    assert_eq!(printed, "run 74\n1\nr  interrupted\nresume 0\n1200\n--- stderr\n");
}
