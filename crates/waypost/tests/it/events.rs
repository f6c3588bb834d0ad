//! Events: the content of a record, line by line.

use insta::assert_snapshot;
use jiff::Timestamp;
use serde_json::json;
use waypost::events::{Cursor, Event, of};
use waypost::record::{
    Claim, Definition, End, Ending, Failure, FailureKind, Header, Note, Pack, Phase, Printed, Reason, Record,
    RunStatus, SkipCause, Start, Try, Usage, Verdict, Wait, WaitKind,
};
use waypost::{Digest, ScopePath};
use waypost_testing::records::{Links, run_id, scope, step_id};

/// Returns the events of a record of `scope`, one JSON line each, without `checkpoint_written` and without the
/// members common to all events.
fn events_of(path: &str, change: impl FnOnce(&mut Header)) -> String {
    let path = scope(path);
    let mut links = Links::of(&run_id("r-1"));
    links.continue_after(&path, 4, Some(Digest::of(b"4")));
    let mut header = links.header(&path);
    header.phase = Phase::Started;
    (header.step, header.at) = (None, Try::default());
    change(&mut header);
    let record = links.seal_bare(header);
    let told = lines(&record);
    let told = told.lines().filter(|line| !line.contains(r#""event":"checkpoint_written""#));
    told.collect::<Vec<_>>().join("\n")
}

/// Returns the same events with `checkpoint_written`, without its digest and size.
fn lines(record: &Record) -> String {
    let short = |event: Event| {
        let mut line = serde_json::to_value(&event).unwrap();
        let members = line.as_object_mut().unwrap();
        for same in ["v", "ts", "run", "scope", "seq"] {
            assert!(members.shift_remove(same).is_some(), "{same} stands in every event");
        }
        if members["event"] == "checkpoint_written" {
            for own in ["digest", "bytes"] {
                assert!(members.shift_remove(own).is_some(), "{own}");
            }
        }
        let null: Vec<_> =
            members.iter().filter(|(_, value)| value.is_null()).map(|(name, _)| name.clone()).collect();
        null.iter().for_each(|name| drop(members.shift_remove(name)));
        line.to_string()
    };
    of(record).into_iter().map(short).collect::<Vec<_>>().join("\n")
}

fn start(step: &str, attempt: u32) -> Start {
    Start { step: step_id(step), at: Try { attempt, ..Try::default() }, joins: false, needs: Vec::new() }
}

fn of_step(header: &mut Header, step: &str, attempt: u32, phase: Phase) {
    (header.step, header.at.attempt, header.phase) = (Some(step_id(step)), attempt, phase);
}

fn failure(retried: bool) -> Failure {
    let log = Printed { bytes: 12, digest: Digest::of(b"log"), tail: "no such file".to_owned() };
    Failure {
        kind: FailureKind::Exit,
        error: vec!["it ended with 2".to_owned()],
        retried,
        tolerated: false,
        ending: Ending { exit_code: Some(2), log: Some(log), ..Ending::default() },
        below: None,
    }
}

#[test]
fn an_event_line_has_its_members_in_the_promised_order() {
    let mut links = Links::of(&run_id("r-1"));
    links.record(&ScopePath::main());
    let mut header = links.header(&ScopePath::main());
    header.started = vec![start("load", 1)];
    let event = of(&links.seal(header, &json!({}))).remove(0);

    let line = serde_json::to_string(&event).unwrap();

    assert_snapshot!(line, @r#"{"v":1,"cursor":"main@2.0","ts":"2026-09-21T14:13:21Z","run":"r-1","scope":"main","seq":2,"parents":[],"step":"work","attempt":1,"event":"step_completed","exit_code":0,"outputs":{"result":2}}"#);
    assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event, "it can be read back");
}

#[test]
fn a_run_begins() {
    let mut links = Links::of(&run_id("r-1"));
    let mut header = links.header(&ScopePath::main());
    header.phase = Phase::Started;
    (header.step, header.at) = (None, Try::default());
    header.started = vec![start("fetch", 1), start("scan", 1)];
    let record = links.seal(header, &json!({}));
    assert_snapshot!(lines(&record), @r#"
    {"cursor":"main@1.0","parents":[],"event":"run_started"}
    {"cursor":"main@1.1","parents":[],"step":"fetch","attempt":1,"event":"step_started"}
    {"cursor":"main@1.2","parents":[],"step":"scan","attempt":1,"event":"step_started"}
    {"cursor":"main@1.3","parents":[],"event":"checkpoint_written","reason":"start"}
    "#);
}

#[test]
fn a_step_ends_and_frees_others() {
    assert_snapshot!(events_of("main", |header| {
        let outputs = [("rows".to_owned(), json!(3))].into();
        of_step(header, "fetch", 2, Phase::Completed(Ending { exit_code: Some(0), outputs, ..Ending::default() }));
        header.started = vec![Start { needs: vec![step_id("fetch")], ..start("load", 1) }];
        header.usage = Some(Usage { tokens_in: 5, tokens_out: 7, cost: 0.25, model: Some("m".to_owned()) });
        header.notes = vec![
            Note::Event { name: "scraped".to_owned(), data: json!({"urls": 8}) },
            Note::Report("# not an event".to_owned()),
            Note::Warning("slow".to_owned()),
        ];
    }), @r#"
    {"cursor":"main@5.0","parents":[],"step":"fetch","attempt":2,"event":"step_completed","exit_code":0,"outputs":{"rows":3}}
    {"cursor":"main@5.1","parents":[],"step":"fetch","attempt":2,"event":"usage","tokens_in":5,"tokens_out":7,"cost":0.25,"model":"m"}
    {"cursor":"main@5.2","parents":[],"step":"fetch","attempt":2,"event":"custom","name":"scraped","data":{"urls":8}}
    {"cursor":"main@5.3","parents":[],"step":"fetch","attempt":2,"event":"custom","name":"warning","data":"slow"}
    {"cursor":"main@5.4","parents":["fetch"],"step":"load","attempt":1,"event":"step_started"}
    "#);
}

#[test]
fn a_try_fails_and_is_made_again() {
    assert_snapshot!(events_of("main", |header| {
        of_step(header, "fetch", 1, Phase::Failed(failure(true)));
        header.started = vec![start("fetch", 2)];
    }), @r#"
    {"cursor":"main@5.0","parents":[],"step":"fetch","attempt":1,"event":"step_retried","kind":"exit","error":["it ended with 2"],"tolerated":false,"exit_code":2,"log_bytes":12}
    {"cursor":"main@5.1","parents":[],"step":"fetch","attempt":2,"event":"step_started"}
    "#);
}

#[test]
fn a_step_fails_for_good_and_the_run_with_it() {
    assert_snapshot!(events_of("main", |header| {
        of_step(header, "fetch", 3, Phase::Failed(failure(false)));
        header.at.iteration = vec![2, 1];
        header.at.epoch = 1;
        header.status = Some(RunStatus::Failed);
    }), @r#"
    {"cursor":"main@5.0","parents":[],"step":"fetch","attempt":3,"event":"step_failed","kind":"exit","error":["it ended with 2"],"tolerated":false,"exit_code":2,"log_bytes":12,"iteration":[2,1],"epoch":1}
    {"cursor":"main@5.2","parents":[],"step":"fetch","event":"run_failed","error":["it ended with 2"]}
    "#);
}

#[test]
fn evidence_is_counted() {
    let claim = |verdict: Verdict| Claim { verdict, ..Claim::new("file_sha256", "out.json") };
    assert_snapshot!(events_of("main", |header| {
        of_step(header, "fetch", 1, Phase::Completed(Ending::default()));
        let claims = [Verdict::Ok, Verdict::Ok, Verdict::Failed, Verdict::Unknown].map(claim).into();
        header.evidence = Some(Pack { at_least: Some(2), claims });
    }), @r#"
    {"cursor":"main@5.0","parents":[],"step":"fetch","attempt":1,"event":"step_completed"}
    {"cursor":"main@5.1","parents":[],"step":"fetch","attempt":1,"event":"evidence_checked","total":4,"ok":2,"failed":1,"unknown":1,"skipped":0}
    "#);
}

#[test]
fn skips_waits_answers_and_progress() {
    let wait = Wait {
        id: "w".to_owned(),
        key: "ok".to_owned(),
        on: WaitKind::Answer,
        question: Some(json!("Go?")),
        until: None,
    };
    let phases = [
        (Reason::Step, Phase::Skipped(SkipCause::Condition("rows > 0".to_owned())), None),
        (Reason::Step, Phase::Skipped(SkipCause::Need(step_id("fetch"))), None),
        (Reason::Interrupt, Phase::Waiting(vec![wait]), Some(RunStatus::Waiting)),
        (Reason::Answer, Phase::Progress { key: "ok".to_owned(), value: json!("yes") }, None),
        (Reason::Interval, Phase::Progress { key: "elapsed".to_owned(), value: json!(60) }, None),
        (
            Reason::Stopped,
            Phase::Interrupted { in_progress: true, by: "SIGINT".to_owned() },
            Some(RunStatus::Interrupted),
        ),
    ];
    let told = phases.map(|(reason, phase, status)| {
        events_of("main", |header| {
            of_step(header, "load", 1, phase);
            (header.reason, header.status) = (reason, status);
        })
    });
    assert_snapshot!(told.join("\n"), @r#"
    {"cursor":"main@5.0","parents":[],"step":"load","attempt":1,"event":"step_skipped","cause":{"condition":"rows > 0"}}
    {"cursor":"main@5.0","parents":[],"step":"load","attempt":1,"event":"step_skipped","cause":{"need":"fetch"}}
    {"cursor":"main@5.0","parents":[],"step":"load","attempt":1,"event":"interrupted","in_progress":true,"waits":[{"id":"w","key":"ok","on":"answer","question":"Go?"}]}
    {"cursor":"main@5.2","parents":[],"event":"run_waiting"}
    {"cursor":"main@5.0","parents":[],"step":"load","attempt":1,"event":"answered","key":"ok","value":"yes"}
    {"cursor":"main@5.0","parents":[],"step":"load","attempt":1,"event":"progress","key":"elapsed","value":60}
    {"cursor":"main@5.0","parents":[],"step":"load","attempt":1,"event":"interrupted","by":"SIGINT","in_progress":true}
    {"cursor":"main@5.2","parents":[],"event":"run_interrupted","status":"interrupted"}
    "#);
}

#[test]
fn a_run_goes_on_after_damage_rollback_and_restart() {
    let resumed = events_of("main", |header| {
        (header.seq, header.basis, header.reason) = (7, Some(4), Reason::Repair);
        header.idle_since = Some(Timestamp::UNIX_EPOCH);
        header.started = vec![start("load", 2)];
    });
    let rolled_back = events_of("main", |header| {
        (header.reason, header.basis, header.phase) = (Reason::Rollback, Some(2), Phase::Restored);
    });
    let restarted = events_of("main", |header| {
        (header.reason, header.basis) = (Reason::Redo, Some(0));
        header.idle_since = Some(Timestamp::UNIX_EPOCH);
        header.definition =
            Some(Definition { text: None, path: None, steps: Vec::new(), accepted: Default::default() });
    });
    assert_snapshot!([resumed, rolled_back, restarted].join("\n\n"), @r#"
    {"cursor":"main@7.0","parents":[],"event":"run_resumed","idle_since":"1970-01-01T00:00:00Z"}
    {"cursor":"main@7.1","parents":[],"event":"quarantined","from":5,"to":6}
    {"cursor":"main@7.2","parents":[],"step":"load","attempt":2,"event":"step_started"}

    {"cursor":"main@5.0","parents":[],"event":"run_rolled_back","to":2}

    {"cursor":"main@5.0","parents":[],"event":"run_resumed","idle_since":"1970-01-01T00:00:00Z"}
    {"cursor":"main@5.1","parents":[],"event":"custom","name":"definition_adopted","data":{"steps":0}}
    "#);
}

#[test]
fn a_run_ends() {
    let statuses = [
        RunStatus::Completed,
        RunStatus::CompletedWithFailures,
        RunStatus::InDoubt,
        RunStatus::Cancelled,
        RunStatus::Running,
    ];
    let told = statuses.map(|status| events_of("main", |header| header.status = Some(status)));
    assert_snapshot!(told.join("\n"), @r#"
    {"cursor":"main@5.1","parents":[],"event":"run_completed","status":"completed"}
    {"cursor":"main@5.1","parents":[],"event":"run_completed","status":"completed_with_failures"}
    {"cursor":"main@5.1","parents":[],"event":"run_interrupted","status":"in_doubt"}
    {"cursor":"main@5.1","parents":[],"event":"run_cancelled"}
    "#);
}

#[test]
fn an_item_begins_and_ends() {
    let mut links = Links::of(&run_id("r-1"));
    let path = scope("each:a%2Fb/in:eu");
    let record = links.record(&path);
    let begun = lines(&record);
    let ended = [End::Completed, End::Skipped, End::Failed, End::Cancelled].map(|end| {
        events_of("each:a%2Fb", |header| {
            of_step(header, "ask", 1, Phase::Completed(Ending::default()));
            header.end = Some(end);
        })
    });
    assert_snapshot!(format!("{begun}\n\n{}", ended.join("\n")), @r#"
    {"cursor":"each:a%2Fb/in:eu@1.0","parents":["each:a%2Fb/in"],"step":"in","event":"item_started","key":"eu"}
    {"cursor":"each:a%2Fb/in:eu@1.1","parents":[],"step":"work","attempt":1,"event":"step_completed","exit_code":0,"outputs":{"result":1}}
    {"cursor":"each:a%2Fb/in:eu@1.2","parents":[],"step":"work","attempt":1,"event":"checkpoint_written","reason":"start"}

    {"cursor":"each:a%2Fb@5.0","parents":[],"step":"ask","attempt":1,"event":"step_completed"}
    {"cursor":"each:a%2Fb@5.2","parents":[],"step":"each","event":"item_completed","key":"a/b","end":"completed"}
    {"cursor":"each:a%2Fb@5.0","parents":[],"step":"ask","attempt":1,"event":"step_completed"}
    {"cursor":"each:a%2Fb@5.2","parents":[],"step":"each","event":"item_completed","key":"a/b","end":"skipped"}
    {"cursor":"each:a%2Fb@5.0","parents":[],"step":"ask","attempt":1,"event":"step_completed"}
    {"cursor":"each:a%2Fb@5.2","parents":[],"step":"each","event":"item_dead","key":"a/b","end":"failed"}
    {"cursor":"each:a%2Fb@5.0","parents":[],"step":"ask","attempt":1,"event":"step_completed"}
    {"cursor":"each:a%2Fb@5.2","parents":[],"step":"each","event":"item_dead","key":"a/b","end":"cancelled"}
    "#);
}

#[test]
fn cursors_are_stable_ordered_and_read_back() {
    let cursor = |text: &str| text.parse::<Cursor>().unwrap();
    let in_order = ["each:a@1.0", "main@2.1", "main@2.10", "main@10.0", "main@10.1"];
    assert!(in_order.is_sorted_by_key(|text| cursor(text)), "by number, not by text");
    for text in in_order {
        assert_eq!(cursor(text).to_string(), text);
    }
    for wrong in [
        "",
        "main",
        "main@1",
        "main@1.",
        "main@a.0",
        "@1.0",
        "a b@1.0",
        "main@1.0.0",
        "main@-1.0",
        "main@+1.0",
        "main@01.0",
    ] {
        assert!(wrong.parse::<Cursor>().is_err(), "{wrong}");
    }
}
