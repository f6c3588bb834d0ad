//! Items: how many at once, where they come from, and how they are retried.

use crate::{made, notes};

/// A map-reduce workflow whose items are worked on by these steps.
fn map(steps: &str) -> String {
    format!(
        "mode: mapreduce\nmap:\n  input: items.json\n  json_path: $.items[*]\n  max_parallel: 7\n  agent_template: {steps}\n"
    )
}

#[test]
fn items_with_an_agent_or_git_run_one_at_a_time() {
    let together = [
        "[{claude: /fix}]",
        "[{shell: git commit -am x}]",
        "[{shell: 'cd a && /usr/bin/git push'}]",
        "[{shell: make, commit_required: true}]",
        "[{shell: make, on_failure: {claude: /fix}}]",
        "[{shell: make, validate: {claude: /check}}]",
        "[{foreach: {foreach: [a], do: [{claude: /fix}]}}]",
    ];
    for steps in together {
        let made = made(&map(steps));
        assert!(made.contains("      # In Prodigy: 7.\n      max_parallel: 1\n"), "{steps}\n{made}");
    }
}

#[test]
fn items_without_an_agent_or_git_keep_their_number() {
    for steps in ["[{shell: make}]", "[{shell: ./legit.sh digit}]", "[{write_file: {path: a, content: git}}]"]
    {
        let source = map(steps);
        assert!(made(&source).contains("      max_parallel: 7\n"), "{steps}");
        assert!(!notes(&source).iter().any(|note| note.key == "max_parallel"), "{steps}");
    }
}

#[test]
fn the_worktree_of_an_item_is_a_note() {
    let notes = notes(&map("[{shell: make}, {claude: /fix}]"));

    let worktrees: Vec<_> = notes.iter().filter(|note| note.message.contains("worktree")).collect();
    assert_eq!(worktrees.len(), 1, "{notes:?}");
    assert_eq!((worktrees[0].key.as_str(), worktrees[0].line), ("map", 3));
}

#[test]
fn every_spelling_of_a_foreach_gives_the_same_list() {
    let spellings = [
        "- foreach: {foreach: [a, b], do: [{shell: 'echo ${item}'}]}",
        "- foreach: {input: [a, b], do: [{shell: 'echo ${item}'}]}",
        "- foreach: {input: {list: [a, b]}, commands: [{shell: 'echo ${foreach.item}'}]}",
        "- foreach: {items: [a, b], do: [{shell: 'echo ${item}'}]}",
        "- foreach: [a, b]\n  do: [{shell: 'echo ${foreach.item}'}]",
        "- foreach: {list: [a, b]}\n  do: [{shell: 'echo ${item}'}]",
    ];
    let first = made(spellings[0]);
    assert!(first.contains("      items: [\"a\",\"b\"]\n      max_parallel: 1\n"), "{first}");
    for spelling in &spellings[1..] {
        let plain = |text: &str| text.replace("FOREACH_ITEM", "ITEM");
        assert_eq!(plain(&made(spelling)), first, "{spelling}");
        assert_eq!(notes(spelling), [], "{spelling}");
    }
}

#[test]
fn every_spelling_of_a_foreach_command_is_run() {
    let spellings = [
        "- foreach: {foreach: ls a, do: [{shell: 'echo ${item}'}], parallel: 3, max_items: 9, continue_on_error: true}",
        "- foreach: {input: ls a, do: [{shell: 'echo ${item}'}], parallel: 3, max_items: 9, continue_on_error: true}",
        "- foreach: {input: {command: ls a}, do: [{shell: 'echo ${item}'}], parallel: 3, max_items: 9, continue_on_error: true}",
        "- foreach: ls a\n  do: [{shell: 'echo ${item}'}]\n  parallel: 3\n  max_items: 9\n  continue_on_error: true",
    ];
    let first = made(spellings[0]);
    assert!(
        first.contains("      items:\n        run: ls a\n      max_items: 9\n      max_parallel: 3\n"),
        "{first}"
    );
    assert!(first.contains("      on_item_failure: dead_letter\n      failure_rate: 1\n"), "{first}");
    for spelling in &spellings[1..] {
        assert_eq!(made(spelling), first, "{spelling}");
    }
}

#[test]
fn fields_and_places_of_foreach_items_are_expressions() {
    let made = made(
        "- foreach:\n    - {version: '1.7', profile: debug}\n    - {version: '1.8', profile: release}\n  \
         do: [{shell: 'echo ${foreach.item.version} ${item.profile} ${foreach.index}/${total}'}]\n",
    );

    for value in
        ["${{ item.version }}", "${{ item.profile }}", "${{ item_index }}", "/\"$TOTAL\"", "TOTAL: \"2\""]
    {
        assert!(made.contains(value), "{value}\n{made}");
    }
}

#[test]
fn the_retry_of_items_becomes_that_of_their_steps() {
    let policies = [
        "error_policy: {on_item_failure: retry, retry_config: {max_attempts: 4, backoff: {exponential: {initial: 2s, multiplier: 2.0}}}}",
        "error_policy: {on_item_failure: retry, retry_config: {max_attempts: 4, backoff: {type: exponential, initial: 2s, multiplier: 2}}}",
    ];
    for policy in policies {
        let source =
            map("[{shell: a}, {shell: b, retry_config: {attempts: 2, initial_delay: 3s, backoff: fixed}}]")
                + policy;
        let made = made(&source);
        let [a, b] = [made.find("- id: a").unwrap(), made.find("- id: b").unwrap()];
        assert!(made[a..b].contains("retry:\n            max: 3\n            delay: 2s\n            max_delay: 30s\n            backoff: exponential\n"), "{made}");
        assert!(made[b..].contains("retry:\n            max: 1\n            delay: 3s\n            max_delay: 30s\n            backoff: fixed\n"), "{made}");
        let keys: Vec<_> = notes(&source).into_iter().map(|note| note.key).collect();
        assert_eq!(keys, ["map", "retry_config"], "{policy}");
    }
}
