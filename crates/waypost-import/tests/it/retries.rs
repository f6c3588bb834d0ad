//! Retries of steps and of the whole file.

use crate::{made, notes};

/// The lines below `retry:` of the only step.
fn retry(keys: &str) -> String {
    let made = made(&format!("- shell: a\n  retry_config: {keys}\n"));
    let below = made.split_once("    retry:\n").map_or("", |(_, below)| below);
    below.lines().map(|line| format!("{} ", line.trim())).collect::<String>().trim_end().to_owned()
}

#[test]
fn every_spelling_of_a_retry_is_carried_over() {
    let cases = [
        ("{attempts: 5}", "max: 4 delay: 1s max_delay: 30s backoff: exponential jitter: false"),
        (
            "{max_attempts: 5, jitter: true}",
            "max: 4 delay: 1s max_delay: 30s backoff: exponential jitter: true",
        ),
        ("{backoff: {fixed: {delay: 5s}}}", "max: 2 delay: 5s max_delay: 30s backoff: fixed jitter: false"),
        (
            "{backoff: {type: fixed, delay: 5s}}",
            "max: 2 delay: 5s max_delay: 30s backoff: fixed jitter: false",
        ),
        (
            "{backoff: {linear: {initial: 2s, increment: 2s}}}",
            "max: 2 delay: 2s max_delay: 30s backoff: linear jitter: false",
        ),
        (
            "{backoff: exponential, initial_delay_ms: 1000, max_delay_ms: 9000}",
            "max: 2 delay: 1000ms max_delay: 9000ms backoff: exponential jitter: false",
        ),
        (
            "{backoff: {fixed: {delay: {secs: 7, nanos: 0}}}}",
            "max: 2 delay: 7s max_delay: 30s backoff: fixed jitter: false",
        ),
        (
            "{retry_on: [timeout]}",
            "max: 2 delay: 1s max_delay: 30s backoff: exponential jitter: false when: [timeout]",
        ),
    ];
    for (keys, expect) in cases {
        assert_eq!(retry(keys), expect, "{keys}");
        assert_eq!(notes(&format!("- shell: a\n  retry_config: {keys}\n")), [], "{keys}");
    }
    assert_eq!(retry("{attempts: 1}"), "", "one attempt is no retry");
}

#[test]
fn another_growth_of_delays_is_a_note() {
    for backoff in [
        "fibonacci",
        "{exponential: {base: 3}}",
        "{linear: {initial: 1s, increment: 5s}}",
        "{custom: {delays: [1s]}}",
    ] {
        let notes = notes(&format!("- shell: a\n  retry_config: {{backoff: {backoff}}}\n"));
        assert_eq!(notes.len(), 1, "{backoff}: {notes:?}");
        assert_eq!(notes[0].key, "backoff");
    }
}

#[test]
fn a_retry_of_the_file_becomes_the_default() {
    let spellings = [
        "retry_defaults: {attempts: 3, initial_delay: 2s}",
        "retry_config: {max_attempts: 3, initial_delay: 2s}",
        "error_policy: {retry_config: {max_attempts: 3, backoff: {exponential: {initial: 2s}}}}",
    ];
    for spelling in spellings {
        let source = format!("commands: [{{shell: a}}]\n{spelling}\n");
        let made = made(&source);
        assert!(
            made.contains("defaults:\n  shell: [sh, -c]\n  retry:\n    max: 2\n    delay: 2s\n"),
            "{spelling}\n{made}"
        );
        assert_eq!(notes(&source), [], "{spelling}");
    }
}
