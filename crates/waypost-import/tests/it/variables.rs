//! Variables that a command computes, and values that Prodigy masks.

use crate::{made, notes};

#[test]
fn a_computed_variable_reaches_every_step() {
    let made = made(
        "env: {CORES: {command: nproc}}\ncommands:\n  - {id: a, shell: ./a.sh}\n  - {id: b, claude: '/b ${CORES}'}\n  \
         - {id: c, shell: 'make -j$CORES', on_failure: {shell: ./d.sh}}\n  - foreach: {foreach: ls, do: [{shell: ./e.sh}]}\n  \
         - {id: f, shell: f, env: {CORES: '1'}}\n  - {id: g, shell: g, validate: {shell: ./h.sh, on_incomplete: {shell: ./i.sh}}}\n",
    );

    let value = "CORES: \"${{ steps.env-cores.outputs.result }}\"\n";
    // a, b, c and its hook, the list and its item, g, its check and its repair.
    assert_eq!(made.matches(value).count(), 9, "{made}");
    assert!(made.contains("run: make -j$CORES\n") || made.contains("run: \"make -j$CORES\"\n"), "{made}");
    assert!(made.contains("prompt: \"/b ${{ steps.env-cores.outputs.result }}\"\n"), "{made}");
    assert!(made.contains("      CORES: \"1\"\n"), "{made}");
}

// What happened: with a computed variable, items from a file were an internal error.
// Why: `env` beside `foreach` is for the command that lists the items, and there was none.
// What stops it now: the variable goes only to such a command.
#[test]
fn a_computed_variable_is_no_obstacle_to_items_from_a_file() {
    let source = "env: {MANY: {command: nproc}}\nmap: {input: INPUT, agent_template: [{shell: a}]}\n";
    let value = "MANY: \"${{ steps.env-many.outputs.result }}\"\n";

    assert_eq!(made(&source.replace("INPUT", "a.json")).matches(value).count(), 1);
    assert_eq!(made(&source.replace("INPUT", "./list.sh x")).matches(value).count(), 2);
}

#[test]
fn names_that_prodigy_masks_are_one_note() {
    let source = "env: {API_KEY: a, PLAIN: b}\nsecrets: {REAL_TOKEN: '${REAL_TOKEN}'}\ncommands:\n  \
                  - {shell: a, env: {DB_PASSWORD: x}}\n  - {shell: b, env: {DB_PASSWORD: y}, capture: auth}\n";

    let notes: Vec<_> = notes(source).into_iter().filter(|note| note.message.contains("masked")).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].message.ends_with("`API_KEY`, `DB_PASSWORD`, `auth`"), "{notes:?}");
    assert_eq!(notes[0].line, 1);
    assert!(!notes.iter().any(|note| note.message.contains("REAL_TOKEN")), "{notes:?}");
}

#[test]
fn a_lost_merge_is_one_note() {
    let notes = notes(
        "commands: [{shell: a}]\nmerge:\n  - {shell: git fetch}\n  - {claude: '/merge ${merge.source_branch}'}\n",
    );

    assert_eq!(notes.iter().map(|note| note.key.as_str()).collect::<Vec<_>>(), ["merge"], "{notes:?}");
    assert!(notes[0].message.starts_with("cannot carry over the merge"), "{notes:?}");
}

#[test]
fn the_same_difference_at_several_places_is_one_note() {
    let source = "- {shell: a, auto_commit: true}\n- {shell: b}\n- {shell: c, auto_commit: true}\n- {shell: d, auto_commit: true}\n";

    let notes = notes(source);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!((notes[0].line, notes[0].also.as_slice()), (1, &[3, 4][..]));
    assert_eq!(made(source).matches("# Line").count(), 1);
}

#[test]
fn a_condition_without_an_equivalent_becomes_a_param() {
    let source =
        "- shell: a\n- {shell: b, when: 'exists(${x})'}\n- {shell: c, when: \"${unknown} == 'y'\"}\n";

    let made = made(source);
    assert!(made.contains("params:\n  when_line_2:\n"), "{made}");
    assert!(made.contains("  - id: b\n    if: \"params.when_line_2 == 'true'\"\n"), "{made}");
    assert!(made.contains("  - id: c\n    if: \"params.when_line_3 == 'true'\"\n"), "{made}");
    assert_eq!(notes(source).len(), 2);
}

#[test]
fn a_condition_in_braces_is_an_expression() {
    let made = made("- {id: s, shell: a}\n- {shell: b, when: '${s.exit_code == 0 && s.success}'}\n");

    assert!(made.contains("if: \"steps.s.exit_code == 0 and (steps.s.status == 'completed')\"\n"), "{made}");
}

// What happened: the step of `/x${y:-z}` had the id `x--y-z`, which no expression can read.
// Why: each character that an id cannot have became a hyphen.
// What stops it now: hyphens in a row are one.
#[test]
fn an_id_can_be_read_by_expressions() {
    let made = made("- {claude: '/x${y:-z}', commit_required: true}\n- {claude: '/see ${claude.output}'}\n");

    assert!(made.contains("steps.x-y-z-head.outputs.result"), "{made}");
}

#[test]
fn a_variable_of_the_caller_in_a_text_is_printed_first() {
    let source = "secrets: [TOKEN]\ncommands:\n  - {id: a, shell: a, working_dir: '${env.DEPLOY_DIR}/x'}\n  \
                  - {id: b, claude: '/b ${env:DEPLOY_DIR} ${env.TOKEN}'}\n";

    let made = made(source);
    let step =
        "  - id: env-deploy_dir\n    run: 'printf %s \"${DEPLOY_DIR?}\"'\n    capture: text\n\n  - id: a\n";
    assert!(made.contains(step), "{made}");
    assert!(made.contains("dir: \"${{ steps.env-deploy_dir.outputs.result }}/x\""), "{made}");
    assert!(
        made.contains("prompt: \"/b ${{ steps.env-deploy_dir.outputs.result }} ${env.TOKEN}\""),
        "{made}"
    );
    assert!(!made.contains("\"${TOKEN?}\""), "a secret is never printed");
    assert!(notes(source).iter().any(|note| note.message.ends_with("only commands read `TOKEN`")));
    let with_default = crate::made("- {claude: '/x ${env.MODE:-fast}'}\n");
    assert!(with_default.contains("run: 'printf %s \"${MODE:-fast}\"'"), "{with_default}");
}
