//! `validate` of steps.

use crate::{made, notes};

#[test]
fn a_validation_is_repeated_until_its_threshold_is_reached() {
    let source = "- id: build\n  claude: /build\n  validate:\n    shell: ./check.sh\n    threshold: 80\n    timeout: 30\n    \
                  on_incomplete: {claude: '/fill ${validation.gaps} ${validation.missing_count}', max_attempts: 4}\n";
    let made = made(source);

    let steps: Vec<&str> = made.lines().filter_map(|line| line.trim().strip_prefix("- id: ")).collect();
    assert_eq!(steps, ["build", "build-validate", "build-check", "fill"], "{made}");
    let complete = "steps.build-check.status == 'completed' && (steps.build-check.outputs.result.completion_percentage | default(0)) >= 80";
    assert!(made.contains(&format!("    repeat:\n      until: \"{complete}\"\n      max: 5\n")), "{made}");
    assert!(made.contains(&format!("        if: \"!({complete}) && iteration <= 4\"\n")), "{made}");
    assert!(made.contains("        timeout: 30s\n"), "{made}");
    assert_eq!(notes(source).len(), 1, "only that of the agent: {:?}", notes(source));
}

#[test]
fn a_validation_that_may_stay_incomplete_ends_after_its_passes() {
    let made = made(
        "- id: a\n  shell: a\n  validate: {shell: c, on_incomplete: {shell: d, fail_workflow: false}}\n",
    );

    assert!(made.contains(">= 100 || iteration > 2\"\n      max: 3\n"), "{made}");
}

#[test]
fn the_report_of_a_validation_is_read_from_its_file() {
    let made = made(
        "- id: a\n  claude: /a\n  validate:\n    commands: [{shell: first}, {shell: second}]\n    result_file: out/report.json\n    \
         on_incomplete: {commands: [{claude: '/more ${validation.missing}'}, {shell: z}]}\n",
    );

    let steps: Vec<&str> = made.lines().filter_map(|line| line.trim().strip_prefix("- id: ")).collect();
    assert_eq!(steps, ["a", "a-validate", "first", "second", "a-report", "a-repair", "more", "z"], "{made}");
    assert!(
        made.contains("          validation:\n            from: out/report.json\n            json: \"$\"\n"),
        "{made}"
    );
    assert!(made.contains("(steps.a-report.outputs.validation | default({}, true)).missing"), "{made}");
    assert!(
        made.contains("      - id: second\n        if: \"steps.first.status == 'completed'\"\n"),
        "{made}"
    );
}

#[test]
fn a_check_without_a_repair_changes_nothing() {
    let made = made("- id: a\n  shell: a\n  validate: ['./lint.sh', {shell: ./test.sh}]\n- shell: b\n");

    assert!(!made.contains("repeat:"), "{made}");
    assert_eq!(made.matches("continue_on_error: true").count(), 2, "{made}");
}

#[test]
fn a_step_that_may_be_skipped_is_validated_only_if_it_ran() {
    let made =
        made("- id: a\n  shell: a\n  when: $ARG == 'y'\n  validate: {shell: c, on_incomplete: {shell: d}}\n");

    assert!(made.contains("  - id: a-validate\n    if: \"steps.a.status == 'completed'\"\n"), "{made}");
}

#[test]
fn a_validation_without_a_step_is_a_group() {
    let made = made(
        "- shell: a\n- validate: {shell: ./check.sh, on_incomplete: {shell: ./mend.sh, max_attempts: 1}}\n",
    );

    let steps: Vec<&str> = made.lines().filter_map(|line| line.trim().strip_prefix("- id: ")).collect();
    assert_eq!(steps, ["a", "work-validate", "work-check", "mend"], "{made}");
}

#[test]
fn the_timeout_of_a_check_is_that_of_its_processes() {
    let made = made(
        "- shell: a\n  validate:\n    timeout: 9\n    commands:\n      - {shell: b}\n      - foreach: {input: [x], do: [{shell: c}]}\n",
    );

    assert_eq!(made.matches("timeout: 9s").count(), 1, "{made}");
}
