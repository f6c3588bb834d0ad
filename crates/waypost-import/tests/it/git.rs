//! Commits that a step must make, and variables that list changes.

use crate::{made, notes};

#[test]
fn a_required_commit_is_evidence_of_the_step() {
    let made = made(
        "- {id: fix, claude: /fix, commit_required: true}\n- {id: b, shell: b, commit_required: false}\n",
    );

    assert!(made.contains("  - id: fix-head\n    run: git rev-parse HEAD\n    capture: text\n"), "{made}");
    let evidence = "    evidence:\n      - command: git rev-parse HEAD\n        \
                    stdout: \"!= ${{ steps.fix-head.outputs.result }}\"\n        name: a new commit\n        at: commit\n";
    assert!(made.contains(evidence), "{made}");
    assert!(!made.contains("b-head"), "{made}");
}

#[test]
fn the_commit_is_looked_for_in_the_folder_of_the_step() {
    let made = made("- {id: fix, shell: ./fix, working_dir: sub, commit_required: true}\n");

    assert!(made.contains("    run: git rev-parse HEAD\n    dir: sub\n"), "{made}");
    assert!(made.contains("command: 'git -C \"$COMMIT_DIR\" rev-parse HEAD'"), "{made}");
    assert!(made.contains("      COMMIT_DIR: sub\n"), "{made}");
}

#[test]
fn the_changes_of_a_step_are_listed_by_one_command() {
    let made = made(
        "- {id: fix, claude: /fix}\n- {id: show, shell: 'echo ${step.files_added} ${step.commit_count} ${step.files_added}'}\n",
    );

    let steps: Vec<&str> = made.lines().filter_map(|line| line.strip_prefix("  - id: ")).collect();
    assert_eq!(steps, ["step-head", "fix", "files-added", "commit-count", "show"], "{made}");
    for line in [
        "git diff --name-only --diff-filter=A \"$BEFORE\"",
        "git rev-list --count \"$BEFORE..HEAD\"",
        "BEFORE: \"${{ steps.step-head.outputs.result }}\"",
        "\"${{ steps.files-added.outputs.result | join(' ') }}\"",
        "\"${{ steps.commit-count.outputs.result[0] }}\"",
    ] {
        assert!(made.contains(line), "{line}\n{made}");
    }
}

#[test]
fn the_changes_of_the_run_begin_with_its_first_step() {
    let made = made(
        "- {id: fix, claude: /fix}\n- {id: show, claude: 'see ${workflow.files_modified:json} ${workflow.files_added:src/*.rs}'}\n",
    );

    let steps: Vec<&str> = made.lines().filter_map(|line| line.strip_prefix("  - id: ")).collect();
    assert_eq!(steps, ["workflow-head", "fix", "files-modified", "files-added", "show"], "{made}");
    assert!(made.contains("${{ steps.files-modified.outputs.result | tojson }}"), "{made}");
    assert!(made.contains("':(glob)src/*.rs'"), "{made}");
}

#[test]
fn changes_without_a_step_before_are_a_note() {
    let source = "- {id: first, shell: 'echo ${step.files_added}'}\n";

    let notes = notes(source);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].message.contains("`${step.files_added}`"), "{notes:?}");
    assert!(made(source).contains("params:\n  step_files_added:\n"));
}

#[test]
fn one_step_prints_the_commit_for_evidence_and_changes() {
    let made = made(
        "- {id: fix, claude: /fix, commit_required: true}\n- {id: show, shell: 'echo ${step.commits}'}\n",
    );

    let steps: Vec<&str> = made.lines().filter_map(|line| line.strip_prefix("  - id: ")).collect();
    assert_eq!(steps, ["step-head", "fix", "commits", "show"], "{made}");
    assert!(made.contains("stdout: \"!= ${{ steps.step-head.outputs.result }}\""), "{made}");
}
