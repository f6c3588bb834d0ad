//! The pure plan, on the cases that break naive designs.
//!
//! A case is text in, text out; only [`plan_of`] calls the API. A graph has a line per step, `id: need need`,
//! with marks: `!` not idempotent, `>target` a route, `~path` a subject of its evidence, `[a b]` the steps of its
//! children. A position has a line per scope, `SCOPE@SEQ | frontier | ledger`. Evidence has a line per claim,
//! `SCOPE step path verdict-at-commit verdict-now [pinned] [live]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jiff::Timestamp;
use waypost::plan::{Effective, Verdicts, checks, plan};
use waypost::record::{
    Claim, FrontierEntry, Pack, Position, Settled, SettledAs, Status, Try, Verdict, Wait, WaitKind,
};
use waypost::shape::{Children, FailureLimits, OnChildFailure, Shape, Step};
use waypost::{Digest, ScopePath, StepId};

const NOW: &str = "2026-11-21T12:00:00Z";

fn plan_of(shape: &str, positions: &str, evidence: &str) -> String {
    let shape = shape_of(shape);
    let (packs, verdicts) = evidence_of(evidence);
    let mut effective: Vec<Effective> = positions.trim().lines().map(position_of).collect();
    for scope in &mut effective {
        scope.evidence = packs.get(&scope.scope).cloned().unwrap_or_default();
    }
    let plan = plan(&shape, &effective, &verdicts, NOW.parse().unwrap());
    let mut text = String::new();
    for decision in &plan.decisions {
        let scope = if decision.scope.is_main() { String::new() } else { format!("{}/", decision.scope) };
        writeln!(text, "{} {scope}{}: {}", decision.action.name(), decision.step, decision.cause).unwrap();
    }
    text
}

fn checks_of(shape: &str, positions: &str, evidence: &str) -> String {
    let (packs, _) = evidence_of(evidence);
    let mut effective: Vec<Effective> = positions.trim().lines().map(position_of).collect();
    for scope in &mut effective {
        scope.evidence = packs.get(&scope.scope).cloned().unwrap_or_default();
    }
    let found = checks(&shape_of(shape), &effective);
    found.iter().map(|check| format!("{} {}", check.step, check.claim.subject)).collect::<Vec<_>>().join("\n")
}

fn shape_of(text: &str) -> Shape {
    let mut steps = Vec::new();
    for line in text.trim().lines() {
        let (head, rest) = line.trim().split_once(':').unwrap_or((line.trim(), ""));
        let (rest, children) = match rest.split_once('[') {
            Some((rest, children)) => (rest, Some(children.trim_end_matches([']', ' ']).replace(", ", "\n"))),
            None => (rest, None),
        };
        let id = StepId::new(head.trim_end_matches('!')).unwrap();
        let marked = |mark: char| rest.split_whitespace().filter_map(move |word| word.strip_prefix(mark));
        let needs = rest.split_whitespace().filter(|word| !word.starts_with(['>', '~', '?']));
        let needs = needs.map(|need| StepId::new(need).unwrap()).collect();
        let mut step = Step::new(id, needs, Digest::of(line.as_bytes()));
        step.skipped_with = marked('?').map(|need| StepId::new(need).unwrap()).collect();
        step.needs.extend(step.skipped_with.iter().cloned());
        step.idempotent = !head.ends_with('!');
        step.routes = marked('>').map(|target| StepId::new(target).unwrap()).collect();
        step.subjects = marked('~').map(str::to_owned).collect();
        step.children = children.map(|text| Children {
            name: step.id.clone(),
            shape: Box::new(shape_of(&text)),
            named: Vec::new(),
            parallel_max: 1,
            on_failure: OnChildFailure::Stop,
            by_work: false,
            limits: FailureLimits::default(),
            passes: false,
            whole: false,
        });
        steps.push(step);
    }
    Shape::new(steps, 4).unwrap()
}

/// `main@5 | b started 2, c ready | a=3 x=skipped:4`; `main@5+2` has lost two records after that
fn position_of(line: &str) -> Effective {
    let parts: Vec<&str> = line.trim().split('|').map(str::trim).collect();
    let (scope, seq) = parts[0].split_once('@').unwrap();
    let (seq, lost) = seq.split_once('+').unwrap_or((seq, "0"));
    let entries = parts[1].split(',').filter(|entry| !entry.trim().is_empty());
    let settled = parts.get(2).into_iter().flat_map(|ledger| ledger.split_whitespace()).map(|entry| {
        let (step, at) = entry.split_once('=').unwrap();
        let settled = match at.split_once(':') {
            Some(("skipped", seq)) => Settled::new(SettledAs::Skipped, seq.parse().unwrap()),
            Some(("tolerated", seq)) => Settled::new(SettledAs::Tolerated, seq.parse().unwrap()),
            _ => Settled::completed(at.parse().unwrap()),
        };
        (StepId::new(step).unwrap(), settled)
    });
    Effective {
        reusable: BTreeMap::new(),
        passes: BTreeMap::new(),
        in_flux: BTreeSet::new(),
        scope: ScopePath::new(scope).unwrap(),
        seq: seq.parse().unwrap(),
        lost: lost.parse().unwrap(),
        position: Position {
            frontier: entries.map(entry_of).collect(),
            ledger: settled.collect(),
            ..Position::default()
        },
        evidence: BTreeMap::new(),
        stopped_by: None,
        rolled_back: None,
    }
}

/// `step status [attempt] [iN] [eN] [f] [at TIME] [asks KEY]`
fn entry_of(text: &str) -> FrontierEntry {
    let words: Vec<&str> = text.split_whitespace().collect();
    let after = |word: &str| words.iter().position(|w| *w == word).map(|at| words[at + 1]);
    let marked =
        |mark: char| words[2..].iter().filter_map(|w| w.strip_prefix(mark)).find_map(|n| n.parse().ok());
    let status = match words[1] {
        "ready" => Status::Ready,
        "started" => Status::Started,
        "waiting" => Status::Waiting,
        "failed" => Status::Failed,
        other => panic!("no status {other}"),
    };
    let wait = |key: &str| Wait {
        id: key.to_owned(),
        key: key.to_owned(),
        on: WaitKind::Answer,
        question: None,
        until: None,
    };
    FrontierEntry {
        status,
        at: Try {
            attempt: words.get(2).and_then(|n| n.parse().ok()).unwrap_or(1),
            iteration: marked('i').into_iter().collect(),
            epoch: marked('e').unwrap_or(0),
        },
        failures: u32::from(words.contains(&"f")),
        since: 1,
        wake_at: after("at").map(|time| time.parse::<Timestamp>().unwrap()),
        waits: after("asks").map(wait).into_iter().collect(),
        ..FrontierEntry::ready(StepId::new(words[0]).unwrap())
    }
}

fn evidence_of(text: &str) -> (BTreeMap<ScopePath, BTreeMap<StepId, Pack>>, Verdicts) {
    let mut packs: BTreeMap<ScopePath, BTreeMap<StepId, Pack>> = BTreeMap::new();
    let mut verdicts = Verdicts::new();
    for line in text.trim().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let verdict = |word: &str| match word {
            "ok" => Verdict::Ok,
            "failed" => Verdict::Failed,
            "unknown" => Verdict::Unknown,
            other => panic!("no verdict {other}"),
        };
        let (scope, step) = (ScopePath::new(words[0]).unwrap(), StepId::new(words[1]).unwrap());
        let empty = || Pack { at_least: None, claims: Vec::new() };
        let pack = packs.entry(scope.clone()).or_default().entry(step.clone()).or_insert_with(empty);
        verdicts.insert((scope, step, pack.claims.len()), verdict(words[4]));
        pack.claims.push(Claim {
            pinned: words.contains(&"pinned"),
            live: words.contains(&"live"),
            verdict: verdict(words[3]),
            ..Claim::new("file_sha256", words[2])
        });
    }
    (packs, verdicts)
}

/// Formats a text as a block, so that a case reads like the output for a person.
macro_rules! expect {
    ($actual:expr, $expect:expr) => {
        let expect: String = $expect.trim().lines().map(|line| format!("{}\n", line.trim())).collect();
        assert_eq!($actual, expect);
    };
}

const LINE: &str = "a\nb: a\nc: b";

#[test]
fn a_crash_between_steps_starts_the_next_one() {
    expect!(
        plan_of(LINE, "main@2 | b started | a=2", ""),
        "reuse a: completed at @2
         run b: attempt 1 was cut: it started and its end is not recorded
         run c: after `b`"
    );
}

#[test]
fn a_failed_step_is_tried_again_and_nothing_after_it_is_skipped() {
    expect!(
        plan_of(LINE, "main@4 | b failed 2 f |", ""),
        "reuse a: completed
         retry b: attempt 2 failed
         run c: after `b`"
    );
}

#[test]
fn a_graph_with_two_steps_in_flight_is_planned_from_one_record() {
    expect!(
        plan_of("a\nb\nc: a\nd: a b", "main@2 | b started, c started | a=2", ""),
        "reuse a: completed at @2
         run b: attempt 1 was cut: it started and its end is not recorded
         run c: attempt 1 was cut: it started and its end is not recorded
         run d: after `b`"
    );
}

#[test]
fn what_needs_a_skipped_step_will_be_skipped() {
    let shape = "a\nb: ?a\nc: ?b\nd: b\ne: ?c";

    expect!(
        plan_of(shape, "main@2 | b ready 0, d waiting asks ok | a=skipped:2", ""),
        "skip a: skipped at @2
         skip b: upstream `a` is skipped
         skip c: upstream `b` is skipped
         wait d: waiting for an answer to `ok`
         skip e: upstream `c` is skipped"
    );
    expect!(
        plan_of(shape, "main@2 | b ready | a=skipped:2", ""),
        "skip a: skipped at @2
         run b: every need is finished
         run c: after `b`
         run d: after `b`
         run e: after `c`"
    );
}

#[test]
fn a_delayed_try_waits_until_it_is_due() {
    let later = "main@3 | b ready 1 f at 2026-11-21T12:00:05Z |";
    let earlier = "main@3 | b ready 1 f at 2026-11-21T11:59:59Z |";

    expect!(
        plan_of(LINE, later, ""),
        "reuse a: completed
         wait b: the next attempt is due at 2026-11-21T12:00:05Z
         run c: after `b`"
    );
    expect!(
        plan_of(LINE, earlier, ""),
        "reuse a: completed
         retry b: attempt 1 failed
         run c: after `b`"
    );
}

#[test]
fn skipped_and_tolerated_steps_stay_decided() {
    expect!(
        plan_of("a\nb: a\nc: b\nd: c", "main@5 | d started | a=2 b=skipped:3 c=tolerated:4", ""),
        "reuse a: completed at @2
         skip b: skipped at @3
         reuse c: failed at @4, tolerated by the workflow
         run d: attempt 1 was cut: it started and its end is not recorded"
    );
}

#[test]
fn cut_is_known() {
    expect!(
        plan_of("a\nb!: a\nc: b", "main@3 | b started | a=2", ""),
        "reuse a: completed at @2
         ask b: attempt 1 was cut and the step is not idempotent: whether it took effect is unknown
         run c: after `b`"
    );
}

// Bug: the record of a start was damaged, the run resumed from the record before, and a non-idempotent step ran
// twice. Cause: in the older record the step was ready. Fix: the plan considers the possible content of lost
// records.
#[test]
fn a_step_that_lost_records_may_have_started_is_in_doubt() {
    let shape = "a\nb!: a\nc: b\nd!: c";
    let doubt =
        |count: &str| format!("{count} lost and the step is not idempotent: whether it started is unknown");
    let asked = |position: &str| -> Vec<String> {
        let plan = plan_of(shape, position, "");
        plan.lines().filter_map(|line| line.strip_prefix("ask ").map(str::to_owned)).collect()
    };
    let (one, two, three) =
        (doubt("1 newer record is"), doubt("2 newer records are"), doubt("3 newer records are"));

    assert_eq!(asked("main@2 | b ready 0 | a=2"), [""; 0], "nothing is lost");
    assert_eq!(asked("main@2+1 | b ready 0 | a=2"), [format!("b: {one}")], "its start");
    assert_eq!(asked("main@1+1 | a started |"), [""; 0], "the end of `a`, at most");
    assert_eq!(
        asked("main@1+2 | a started |"),
        [format!("b: {two}")],
        "the end of `a`, and the start of `b`"
    );
    assert_eq!(asked("main@2+2 | b ready 0 | a=2"), [format!("b: {two}")], "its start and its end");
    let both = [format!("b: {three}"), format!("d: {three}")];
    assert_eq!(asked("main@2+3 | b ready 0 | a=2"), both, "the ends of `b` and `c`, and a start");
    let cut = asked("main@3+1 | b started | a=2");
    assert_eq!(cut.len(), 1);
    assert!(cut[0].starts_with("b: attempt 1 was cut"), "that it was started is known: {cut:?}");
}

#[test]
fn lost_records_may_have_opened_scopes_or_taken_a_loop() {
    let asks = |shape: &str, position: &str| {
        plan_of(shape, position, "").lines().filter(|line| line.starts_with("ask ")).count()
    };

    assert_eq!(asks("a\ne: a [w!]\nz: e", "main@2+1 | e ready 0 | a=2"), 1, "its scopes may have begun");
    assert_eq!(asks("a\ne: a [w]\nz: e", "main@2+1 | e ready 0 | a=2"), 0);
    assert_eq!(asks("a!: >b\nb: >a >z\nz:", "main@4+2 | b started | a=2"), 1, "the route may have led back");
    assert_eq!(asks("a!: >b\nb: >a >z\nz:", "main@4+1 | b started | a=2"), 0);
}

#[test]
fn only_unpinned_evidence_that_holds_settles_a_cut_step() {
    let shape = "a!: ~out\nb: a";
    let cut = "main@1 | a started |";

    let held = plan_of(shape, cut, "main a out unknown ok");
    let pinned = plan_of(shape, cut, "main a out ok ok pinned");
    let failed = plan_of(shape, cut, "main a out unknown failed");
    let unknown = plan_of(shape, cut, "main a out unknown unknown");

    assert!(held.starts_with("reuse a: its end was unknown, and its evidence holds"), "{held}");
    for asked in [pinned, failed, unknown] {
        assert!(asked.starts_with("ask a: attempt 1 was cut"), "{asked}");
    }
}

#[test]
fn a_foreach_is_planned_scope_by_scope() {
    let shape = "list\nsummarise: list [ask, check: ask]\npublish: summarise";
    let positions = "main@9 | summarise waiting asks scopes | list=2
        summarise:17@2 | ask started 2 |
        summarise:eu%2Fwest@3 | check failed 1 f | ask=2";

    expect!(
        plan_of(shape, positions, ""),
        "reuse list: completed at @2
         wait summarise: waiting for an answer to `scopes`
         run publish: after `summarise`
         run summarise:17/ask: attempt 2 was cut: it started and its end is not recorded
         run summarise:17/check: after `ask`
         reuse summarise:eu%2Fwest/ask: completed at @2
         retry summarise:eu%2Fwest/check: attempt 1 failed"
    );
}

#[test]
fn in_a_loop_only_what_lies_before_it_is_finished() {
    expect!(
        plan_of("start\nx: start\ny: x >x >end\nend", "main@28 | y failed 1 i7 f | start=2", ""),
        "reuse start: completed at @2
         run x: after `y`
         retry y: attempt 1 failed
         run end: after `y`"
    );
}

#[test]
fn a_rollback_is_planned_from_the_restored_position_alone() {
    // @34 restored @12: iteration 3 again, in a new epoch. Iterations 4 to 7 are ignored.
    expect!(
        plan_of("start\nx: start\ny: x >x >end\nend", "main@34 | x ready 0 i4 e1 | start=2 y=12", ""),
        "reuse start: completed at @2
         run x: every need is finished
         run y: after `x`
         run end: after `y`"
    );
}

#[test]
fn two_scopes_ask_at_once_each_with_its_own_question() {
    let shape = "split: [ask]\njoin: split";
    let positions = "main@3 | split waiting asks children |
        split:a@2 | ask waiting 1 asks first |
        split:b@2 | ask waiting 1 asks second |";

    expect!(
        plan_of(shape, positions, ""),
        "wait split: waiting for an answer to `children`
         run join: after `split`
         wait split:a/ask: waiting for an answer to `first`
         wait split:b/ask: waiting for an answer to `second`"
    );
}

#[test]
fn a_claim_binds_to_the_newest_step_that_makes_it() {
    let shape = "a: ~f\nb: a\nc: b ~f";
    let position = "main@6 | | a=2 c=5";
    let evidence = "main a f ok failed pinned\nmain c f ok ok pinned";

    assert_eq!(checks_of(shape, position, evidence), "c f");
    expect!(
        plan_of(shape, position, evidence),
        "reuse a: completed at @2
         reuse b: completed
         reuse c: completed at @5"
    );
}

#[test]
fn a_subject_that_a_cut_step_is_rewriting_is_not_judged() {
    let shape = "a: ~f\nd: a ~f";
    let cut = "main@3 | d started | a=2";

    assert_eq!(checks_of(shape, cut, "main a f ok failed pinned"), "");
    assert!(plan_of(shape, cut, "main a f ok failed pinned").starts_with("reuse a: completed at @2"));
}

#[test]
fn failed_evidence_reruns_the_step_and_rechecks_downstream() {
    expect!(
        plan_of("a: ~f\nb: a\nc: b\nx", "main@5 | | a=2 b=3 c=4", "main a f ok failed"),
        "run a: evidence no longer holds: file_sha256 f
         recheck b: upstream `a` reruns
         recheck c: upstream `a` reruns
         reuse x: completed"
    );
}

#[test]
fn verdicts_are_earned() {
    let shape = "a: ~f";
    let done = "main@2 | | a=2";

    let unknown = plan_of(shape, done, "main a f ok unknown");
    let failed_not_idempotent = plan_of("a!: ~f", done, "main a f ok failed");
    let live = plan_of(shape, done, "main a f ok failed live");

    expect!(unknown, "ask a: evidence could not be checked: file_sha256 f");
    expect!(failed_not_idempotent, "ask a: evidence no longer holds: file_sha256 f");
    expect!(live, "restart a: evidence no longer holds: file_sha256 f");
}

#[test]
fn a_check_without_a_verdict_counts_as_unknown() {
    let shape = shape_of("a: ~f");
    let mut done = position_of("main@2 | | a=2");
    done.evidence = evidence_of("main a f ok ok").0.remove(&ScopePath::main()).unwrap();

    let plan = plan(&shape, &[done], &Verdicts::new(), NOW.parse().unwrap());

    assert_eq!(plan.questions().count(), 1);
}
