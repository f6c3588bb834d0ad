//! The report: its Markdown stays valid with any Markdown of steps.

use insta::assert_snapshot;
use serde_json::json;
use waypost::record::{
    Claim, Ending, Failure, FailureKind, Header, Note, Pack, Phase, Printed, RunStatus, SkipCause, Try,
    Usage, Verdict, Wait, WaitKind,
};
use waypost::report::{Section, contains, head, put, put_head, section};
use waypost::{Digest, ScopePath};
use waypost_testing::records::{Links, run_id, run_record, scope, step_id};

fn section_of(change: impl FnOnce(&mut Header)) -> Option<Section> {
    let mut links = Links::of(&run_id("r-1"));
    let mut header = links.header(&ScopePath::main());
    header.phase = Phase::Completed(Ending::default());
    change(&mut header);
    section(&links.seal_bare(header), None)
}

fn text_of(change: impl FnOnce(&mut Header)) -> String {
    section_of(change).unwrap().text
}

#[test]
fn a_head_names_the_run_and_how_it_stands() {
    let mut record = run_record(&run_id("r-1"));
    record.workflow = "night*ly* <b>".to_owned();
    record.params.insert("regions".to_owned(), json!(["eu", "u|s"]));
    assert_snapshot!(head(&record, RunStatus::Running), @r#"
    # night\*ly\* \<b\>

    |  |  |
    | --- | --- |
    | run | `r-1` |
    | status | **running** |
    | workflow | `waypost.yaml` |
    | created | 2026-09-21T14:13:20Z |

    | param | value |
    | --- | --- |
    | `regions` | `["eu","u\|s"]` |
    "#);
}

#[test]
fn a_completed_step_shows_what_it_gave() {
    assert_snapshot!(text_of(|header| {
        let log = Printed { bytes: 70_000, digest: Digest::of(b""), tail: "the end".to_owned() };
        let outputs = [
            ("rows".to_owned(), json!(3)),
            ("name".to_owned(), json!("a|b")),
            ("tick".to_owned(), json!("`` ` ``")),
            ("lines".to_owned(), json!("one\ntwo")),
            ("empty".to_owned(), json!("")),
            ("pattern".to_owned(), json!(r"a\|b")),
        ];
        header.phase = Phase::Completed(Ending {
            exit_code: Some(0),
            outputs: outputs.into(),
            outputs_bytes: Some(9_000),
            command: Some("cat a | wc -l\n".to_owned()),
            log: Some(log),
            stdout: None,
        });
        (header.at.attempt, header.at.epoch) = (2, 1);
        header.usage = Some(Usage { tokens_in: 5, tokens_out: 7, cost: 0.25, model: Some("m_1".to_owned()) });
        header.notes = vec![Note::Report("All **three** are there.".to_owned()), Note::Warning("slow <i>".to_owned())];
    }), @r#"
    <!-- section main work -->
    ## `work`: completed

    |  |  |
    | --- | --- |
    | checkpoint | `r-1@1` |
    | at | 2026-09-21T14:13:20Z |
    | attempt | 2 |
    | reruns | 1 |
    | command | `cat a \| wc -l ` |
    | exit code | 0 |
    | log | 70000 bytes |
    | usage | 5 tokens in, 7 out, cost 0.25, m\_1 |

    | output | value |
    | --- | --- |
    | `empty` | `""` |
    | `lines` | `"one\ntwo"` |
    | `name` | `a\|b` |
    | `pattern` | <code>a&#92;&#124;b</code> |
    | `rows` | `3` |
    | `tick` | ``` `` ` `` ``` |

    Outputs: 9000 bytes, in the checkpoint.

    All **three** are there.

    > **Warning:** slow \<i\>
    "#);
}

#[test]
fn a_failed_step_shows_its_error_and_the_end_of_its_log() {
    assert_snapshot!(text_of(|header| {
        let tail = "\u{1b}[31merror\u{1b}[0m: ``` in a log\r\n````\n50%\r100%\u{7}\n\n".to_owned();
        let log = Printed { bytes: 12, digest: Digest::of(b""), tail };
        header.phase = Phase::Failed(Failure {
            kind: FailureKind::Exit,
            error: vec!["it ended with 2".to_owned(), "because of *stars*\nand lines".to_owned()],
            retried: false,
            tolerated: false,
            ending: Ending { exit_code: Some(2), log: Some(log), ..Ending::default() },
        below: None,
        });
    }), @r#"
    <!-- section main work -->
    ## `work`: failed

    |  |  |
    | --- | --- |
    | checkpoint | `r-1@1` |
    | at | 2026-09-21T14:13:20Z |
    | exit code | 2 |
    | log | 12 bytes |

    - it ended with 2
      - because of \*stars\* and lines

    End of the log:

    `````text
    error: ``` in a log
    ````
    50%
    100%�
    `````
    "#);
}

#[test]
fn evidence_is_a_table() {
    let claim = |verdict: Verdict, error: Option<&str>| Claim {
        name: Some("the file".to_owned()),
        expect: json!({"is": "abc"}),
        verdict,
        found: json!("abd"),
        error: error.map(str::to_owned),
        ..Claim::new("file_sha256", "out|put.json")
    };
    assert_snapshot!(text_of(|header| {
        let claims = vec![claim(Verdict::Failed, None), claim(Verdict::Unknown, Some("permission denied"))];
        header.evidence = Some(Pack { at_least: Some(1), claims });
    }), @r#"
    <!-- section main work -->
    ## `work`: completed

    |  |  |
    | --- | --- |
    | checkpoint | `r-1@1` |
    | at | 2026-09-21T14:13:20Z |

    Evidence: 0 ok, at least 1 of 2 needed.

    | verdict | claim | expected | found |
    | --- | --- | --- | --- |
    | failed | the file: file\_sha256 `out\|put.json` | `{"is":"abc"}` | `abd` |
    | unknown | the file: file\_sha256 `out\|put.json` | `{"is":"abc"}` | permission denied |
    "#);
}

#[test]
fn skipped_waiting_and_interrupted_steps_have_sections_too() {
    let wait = Wait {
        id: "w".to_owned(),
        key: "ok".to_owned(),
        on: WaitKind::Answer,
        question: Some(json!("Go?")),
        until: None,
    };
    let phases = [
        Phase::Skipped(SkipCause::Condition("rows > 0".to_owned())),
        Phase::Skipped(SkipCause::Need(step_id("fetch"))),
        Phase::Waiting(vec![wait]),
        Phase::Interrupted { in_progress: true, by: "SIGINT".to_owned() },
    ];
    assert_snapshot!(phases.map(|phase| text_of(|header| header.phase = phase)).join(""), @r#"
    <!-- section main work -->
    ## `work`: skipped

    |  |  |
    | --- | --- |
    | checkpoint | `r-1@1` |
    | at | 2026-09-21T14:13:20Z |
    | because | `rows > 0` is false |

    <!-- section main work -->
    ## `work`: skipped

    |  |  |
    | --- | --- |
    | checkpoint | `r-1@1` |
    | at | 2026-09-21T14:13:20Z |
    | because | `fetch` was skipped |

    <!-- section main work -->
    ## `work`: waiting

    |  |  |
    | --- | --- |
    | checkpoint | `r-1@1` |
    | at | 2026-09-21T14:13:20Z |

    - `ok`: `Go?`

    <!-- section main work -->
    ## `work`: interrupted

    |  |  |
    | --- | --- |
    | checkpoint | `r-1@1` |
    | at | 2026-09-21T14:13:20Z |
    | by | SIGINT |
    "#);
}

#[test]
fn what_is_not_the_end_of_a_try_has_no_section() {
    assert_eq!(section_of(|header| header.phase = Phase::Started), None);
    assert_eq!(section_of(|header| header.phase = Phase::Restored), None);
    assert_eq!(section_of(|header| header.step = None), None);
    let not_begun = Phase::Interrupted { in_progress: false, by: "a person".to_owned() };
    assert_eq!(section_of(|header| header.phase = not_begun), None);
}

#[test]
fn a_section_is_replaced_and_never_stands_twice() {
    let with = |step: &str, iteration: &[u32], note: &str| {
        section_of(|header| {
            header.step = Some(step_id(step));
            header.at = Try { attempt: 1, iteration: iteration.into(), epoch: 0 };
            header.notes = vec![Note::Report(note.to_owned())];
        })
        .unwrap()
    };
    let mut report = head(&run_record(&run_id("r-1")), RunStatus::Running);
    let sections = [
        with("a", &[], "first a"),
        with("b", &[1], "first b"),
        with("b", &[1, 2], "inner b"),
        with("a-", &[], "a dash"),
    ];
    for section in &sections {
        assert!(!contains(&report, &section.key));
        let longer = put(&report, section);
        assert!(longer.starts_with(&report), "a new section goes to the end");
        report = longer;
    }

    for step in ["a", "a-"] {
        report = put(&report, &with(step, &[], "second time"));
    }
    report = put(&report, &with("b", &[1], "second b"));
    report = put_head(&report, "# another head\n\n");

    let headings: Vec<_> = report.lines().filter(|line| line.starts_with('#')).collect();
    let expect = [
        "# another head",
        "## `a`: completed",
        "## `b` [1]: completed",
        "## `b` [1.2]: completed",
        "## `a-`: completed",
    ];
    assert_eq!(headings, expect, "each once, in the order of their first time");
    for gone in ["first a", "first b", "a dash"] {
        assert!(!report.contains(gone), "{gone} was replaced");
    }
    assert!(report.contains("inner b") && report.contains("second b"));
}

#[test]
fn a_child_scope_has_sections_of_its_own() {
    let mut links = Links::of(&run_id("r-1"));
    let of_main = section(&links.record(&ScopePath::main()), None).unwrap();
    let of_item = section(&links.record(&scope("each:a--b%3E")), None).unwrap();
    assert_ne!(of_main.key, of_item.key);
    let report = put(&put("", &of_main), &of_item);
    assert_eq!(put(&report, &of_item), report);
    assert!(report.contains("`each:a--b%3E/work`"));
}

/// Returns the Markdown of a step as shown in the report, followed by another section.
fn told(markdown: &str) -> String {
    let first = section_of(|header| header.notes = vec![Note::Report(markdown.to_owned())]).unwrap();
    let (_, told) = first.text.split_once("Z |\n\n").unwrap();
    told.to_owned()
}

#[test]
fn open_blocks_of_a_step_are_closed() {
    let cases = ["```sh\nls", "~~~~\n~~~\nx", "   ````\n```", "<!-- open\n## x", "a <!-- b --> <!-- c"];
    assert_snapshot!(cases.map(told).join("---\n"), @r#"
    ```sh
    ls
    ```

    ---
    ~~~~
    ~~~
    x
    ~~~~

    ---
       ````
    ```
    ````

    ---
    <!-- open
    ## x
    -->

    ---
    a <!-- b --> <!-- c
    -->
    "#);
}

#[test]
fn closed_blocks_of_a_step_are_left_alone() {
    for whole in [
        "```\nls\n```",
        "~~~ ```\n~~~",
        "<!-- x -->",
        "    ``` indented",
        "``` not a fence ```",
        "`a`\n\n- b",
    ] {
        assert_eq!(told(whole), format!("{whole}\n\n"));
    }
}

#[test]
fn a_step_cannot_write_the_marker_of_a_section() {
    let real = section_of(|_| {}).unwrap();
    let forged = section_of(|header| {
        header.step = Some(step_id("liar"));
        header.notes = vec![Note::Report(format!("{}\n# mine now\n{0}", real.key.marker()))];
    });
    let report = put("", &forged.unwrap());

    assert!(!contains(&report, &real.key));
    let report = put(&report, &real);
    assert_eq!(report.lines().filter(|line| *line == real.key.marker()).count(), 1);
    assert!(report.contains("# mine now"), "what it said is kept");
}
