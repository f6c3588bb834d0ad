//! What a try leaves when it has ended: processes, doubt, outputs.

use waypost::record::RunStatus;

use super::{Bench, SECRET, error_of};
use crate::rig::lives;

// What happened: a try that had failed left a process in the background, which held a lock beside the next try.
// Why: only a try that was cancelled or timed out was cleared away.
// What stops it now: whatever a try that did not complete left is dead before the next one starts.
#[tokio::test]
async fn nothing_of_a_failed_try_lives_beside_the_next() {
    for failure in ["exit 1", "kill -9 $$", "echo 'no output' > \"$WAYPOST_OUTPUT\""] {
        let bench = Bench::new();

        let outcome = bench
            .run(&format!(
                r#"
steps:
  - id: a
    retry: {{ max: 1, delay: 1ms }}
    grace: 100ms
    run: |
      if [ "$WAYPOST_ATTEMPT" = 1 ]; then
        mkfifo ready
        (setsid sh -c 'trap "" TERM; echo $$ > pid; echo > ready; sleep 1000' > /dev/null 2>&1 &)
        read -r _ < ready
        {failure}
      else
        kill -0 "$(cat pid)" && echo lives > found || echo dead > found
      fi
"#
            ))
            .await;

        assert_eq!(outcome.status, RunStatus::Completed, "{failure}: {}", error_of(&outcome));
        assert_eq!(bench.file("found"), "dead\n", "{failure}");
    }
}

#[tokio::test]
async fn what_a_completed_step_left_lives_until_the_run_ends() {
    let bench = Bench::new();

    let outcome = bench
        .run(
            r#"
steps:
  - id: a
    run: |
      mkfifo ready
      (setsid sh -c 'echo $$ > pid; echo > ready; sleep 1000' > /dev/null 2>&1 &)
      read -r _ < ready
  - id: b
    run: kill -0 "$(cat pid)"
"#,
        )
        .await;

    assert_eq!(outcome.status, RunStatus::Completed, "{}", error_of(&outcome));
    let pid: u32 = bench.file("pid").trim().parse().expect("a number");
    assert!(!lives(pid));
}

// What happened: a step that must not be repeated was cut by its timeout, and tried again without a question.
// Why: running out of time was a failure like any other, for which `retry` and a resume try again.
// What stops it now: a try that did not end by itself with an exit code leaves such a step in doubt.
#[tokio::test]
async fn cut_is_known_when_a_step_that_must_not_be_repeated_is_killed() {
    let ends = [("timeout: 200ms", "sleep 1000"), ("stdin: x", "kill -9 $$")];
    let retries = ["0", "{ max: 3, delay: 1ms }", "{ max: 3, delay: 1ms, when: [timeout] }"];
    for ((key, end), retry) in ends.into_iter().flat_map(|end| retries.map(|retry| (end, retry))) {
        let bench = Bench::new();

        let text = format!(
            "steps:\n  - id: pay\n    idempotent: false\n    retry: {retry}\n    grace: 100ms\n    {key}\n    run: |\n      \
             echo paid >> trace\n      {end}\n"
        );
        let outcome = bench.run(&text).await;

        assert_eq!(outcome.status, RunStatus::InDoubt, "{end}, {retry}: {}", error_of(&outcome));
        assert_eq!(bench.file("trace"), "paid\n", "{end}, {retry}");
    }
}

#[tokio::test]
async fn a_step_that_ended_by_itself_was_not_cut() {
    let bench = Bench::new();

    let outcome = bench
        .run("steps:\n  - id: pay\n    idempotent: false\n    retry: { max: 1, delay: 1ms }\n    run: echo paid >> trace; exit $((2 - WAYPOST_ATTEMPT))\n")
        .await;

    assert_eq!(outcome.status, RunStatus::Completed, "{}", error_of(&outcome));
    assert_eq!(bench.file("trace"), "paid\npaid\n");
}

#[tokio::test]
async fn a_timeout_that_is_tolerated_and_not_retried_is_not_in_doubt() {
    let bench = Bench::new();

    let outcome = bench
        .run("steps:\n  - id: pay\n    idempotent: false\n    continue_on_error: true\n    timeout: 200ms\n    grace: 100ms\n    run: echo paid >> trace; sleep 1000\n")
        .await;

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures, "{}", error_of(&outcome));
    assert_eq!(bench.file("trace"), "paid\n");
}

#[tokio::test]
async fn the_files_for_a_step_are_there_and_empty_when_it_starts() {
    let bench = Bench::new();

    let outcome = bench
        .run(
            r#"
steps:
  - id: a
    retry: { max: 1, delay: 1ms }
    run: |
      for file in "$WAYPOST_OUTPUT" "$WAYPOST_SUMMARY"; do
        stat -c '%F %s %a' "$file" >> found; echo "x=1" >> "$file"
      done
      [ "$WAYPOST_ATTEMPT" = 2 ]
"#,
        )
        .await;

    assert_eq!(outcome.status, RunStatus::Completed, "{}", error_of(&outcome));
    assert_eq!(bench.file("found"), "regular empty file 0 600\n".repeat(4));
}

// What happened: outputs of a step whose failure was tolerated were dropped, and a step that read one failed the run.
// Why: only a step that ended well was asked for outputs.
// What stops it now: what it wrote to `$WAYPOST_OUTPUT` is kept where the run goes on.
#[tokio::test]
async fn outputs_of_a_tolerated_failure_are_kept() {
    let bench = Bench::new();

    let outcome = bench
        .run(
            r#"
secrets: [TOKEN]
steps:
  - id: a
    run: echo "x=7" >> "$WAYPOST_OUTPUT"; exit 3
    continue_on_error: [3]
  - id: b
    run: echo "x=$TOKEN" >> "$WAYPOST_OUTPUT"; exit 4
    continue_on_error: true
  - id: c
    run: echo "x=$(printf '%600s' y)" >> "$WAYPOST_OUTPUT"; exit 5
    continue_on_error: true
  - id: d
    run: echo "${{ steps.a.outputs.x }} ${{ steps.a.status }} ${{ steps.b.outputs.x | default('none') }} ${{ steps.c.outputs.x | trim }}" > out
"#,
        )
        .await;

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures, "{}", error_of(&outcome));
    assert_eq!(bench.file("out"), "7 failed none y\n");
    let notes: Vec<_> =
        bench.records().await.iter().flat_map(|record| record.header().notes.clone()).collect();
    let told = format!("{notes:?}");
    assert!(told.contains("the outputs are not kept: output `x` contains a secret"), "{told}");
    assert!(!bench.state().await.to_string().contains(SECRET));
}

#[tokio::test]
async fn outputs_that_make_the_state_large_are_told() {
    let bench = Bench::new();

    let outcome = bench
        .run("defaults: { shell: [sh, -c] }\nsteps:\n  - { id: a, capture: text, run: head -c 700000 /dev/zero | tr '\\0' x }\n  - { id: b, capture: text, run: head -c 700000 /dev/zero | tr '\\0' x }\n  - { id: c, run: 'true' }\n")
        .await;

    assert_eq!(outcome.status, RunStatus::Completed, "{}", error_of(&outcome));
    let mut told = Vec::new();
    for record in bench.records().await {
        for note in &record.header().notes {
            told.push(format!("{:?} {note:?}", record.header().step.as_ref().map(ToString::to_string)));
        }
    }
    // How large it is, the engine says beside it.
    let told: Vec<_> = told.into_iter().filter(|text| text.contains("output `")).collect();
    assert_eq!(
        told,
        ["Some(\"b\") Warning(\"output `result` has 700002 of the 1400067 bytes of the state\")"]
    );
}
