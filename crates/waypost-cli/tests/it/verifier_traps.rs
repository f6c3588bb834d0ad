//! Known wrong verdicts of checkpoint verifiers, each as a test through the command.

use rusqlite::Connection;

use crate::rig::{Rig, code_of};

const STORES: [&str; 2] = ["sqlite:kept/waypost.db", "file:kept"];
const RUN: [&str; 5] = ["run", "flow.yaml", "--id", "r", "-q"];

/// Runs one step with this evidence. Returns the rig and the exit code.
fn run_with(evidence: &str, command: &str) -> (Rig, Option<i32>) {
    let rig = Rig::with(&format!("steps: [{{id: a, run: '{command}', evidence: {evidence}}}]\n"));
    let code = code_of(&rig, &RUN);
    (rig, code)
}

/// Makes a database with a row whose `note` is NULL.
fn with_rows(rig: &Rig) -> Connection {
    let rows = Connection::open(rig.path("rows.db")).unwrap();
    rows.execute_batch("CREATE TABLE t (id INTEGER, note TEXT); INSERT INTO t VALUES (1, NULL), (2, 'x');")
        .unwrap();
    rows
}

#[test]
fn an_exit_code_is_compared_and_not_only_there() {
    let (rig, code) = run_with("[{exit: 0}]", "echo done >> trace; exit 3");
    assert_ne!(code, Some(0));
    assert_eq!(rig.read("trace"), "done\n", "it ran, and was not believed");
}

#[test]
fn an_empty_pack_is_no_evidence() {
    for evidence in
        ["[]", "{}", "{at_least: 1, of: []}", "{any: true, of: []}", "{of: [{file: a.txt}], at_least: 0}"]
    {
        let (rig, code) = run_with(evidence, "echo done >> trace");
        assert_eq!(code, Some(78), "{evidence}");
        assert!(!rig.path("trace").exists(), "{evidence}: nothing runs");
    }
}

#[test]
fn at_least_is_above_zero_and_at_most_the_claims() {
    let two = "of: [{file: a.txt}, {file: b.txt}]";
    assert_eq!(run_with(&format!("{{at_least: 3, {two}}}"), "true").1, Some(78));
    assert_eq!(run_with(&format!("{{at_least: 1, {two}}}"), "true").1, Some(4), "none of them is there");
    assert_eq!(run_with(&format!("{{at_least: 1, {two}}}"), "echo > b.txt").1, Some(0));
    assert_eq!(run_with(&format!("{{at_least: 2, {two}}}"), "echo > b.txt").1, Some(4));
}

#[test]
fn names_of_tables_and_columns_are_never_part_of_a_statement() {
    for evidence in [
        "[{sqlite: rows.db, table: \"t; DROP TABLE t; --\", where: {id: 1}}]",
        "[{sqlite: rows.db, table: t, where: {\"id = 1 OR 1 --\": 7}}]",
        "[{sqlite: rows.db, query: \"DELETE FROM t\", equals: 1}]",
    ] {
        let rig = Rig::with(&format!("steps: [{{id: a, run: 'true', evidence: {evidence}}}]\n"));
        let rows = with_rows(&rig);
        assert_ne!(code_of(&rig, &RUN), Some(0), "{evidence}");
        let left: i64 = rows.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 2, "{evidence}");
    }
    let rig = Rig::with(
        "steps: [{id: a, run: 'true', evidence: [{sqlite: rows.db, table: t, where: {note: \"' OR ''='\"}}]}]\n",
    );
    with_rows(&rig);
    assert_eq!(code_of(&rig, &RUN), Some(4), "a value is a value");
}

#[test]
fn a_null_is_found_by_null_and_by_nothing_else() {
    for (evidence, code) in [
        ("[{sqlite: rows.db, table: t, where: {note: null}, count: 1}]", 0),
        ("[{sqlite: rows.db, table: t, where: {id: 1}, values: {note: null}}]", 0),
        ("[{sqlite: rows.db, table: t, where: {id: 2}, values: {note: null}}]", 4),
        ("[{sqlite: rows.db, table: t, where: {id: 1}, values: {note: \"\"}}]", 4),
    ] {
        let rig = Rig::with(&format!("steps: [{{id: a, run: 'true', evidence: {evidence}}}]\n"));
        with_rows(&rig);
        assert_eq!(code_of(&rig, &RUN), Some(code), "{evidence}");
    }
}

/// Three steps; the last rewrites the file of the first.
const REWRITES: &str = "steps:
  - {id: a, run: 'echo a >> trace; echo 1 > a.txt; echo n=1 >> $WAYPOST_OUTPUT', evidence: [{sha256: a.txt}]}
  - {id: b, run: 'echo b >> trace; echo 1 > b.txt', evidence: [{sha256: b.txt}]}
  - {id: c, run: 'echo c$N >> trace; echo 2 > a.txt', env: {N: '${{ steps.a.outputs.n }}'}, evidence: [{sha256: a.txt}]}
";

#[test]
fn a_flag_of_then_is_not_believed_where_the_file_is_gone() {
    for store in STORES {
        let rig = Rig::with(REWRITES).at(store);
        assert_eq!(code_of(&rig, &RUN), Some(0));
        std::fs::remove_file(rig.path("b.txt")).unwrap();

        assert_eq!(code_of(&rig, &["rollback", "r@3", "-q"]), Some(4), "{store}");

        assert_eq!(rig.json(&["show", "r", "--json"])["status"], "completed", "{store}: nothing was changed");
    }
}

#[test]
fn a_file_rewritten_downstream_does_not_break_its_first_step() {
    for store in STORES {
        let rig = Rig::with(REWRITES).at(store);
        assert_eq!(code_of(&rig, &RUN), Some(0));
        assert_eq!(code_of(&rig, &["verify", "r", "-q"]), Some(0), "{store}");
        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0), "{store}");
        assert_eq!(rig.read("trace"), "a\nb\nc1\n", "{store}: nothing ran again");
    }
}

#[test]
fn going_back_gives_back_the_state_of_then() {
    for store in STORES {
        let rig = Rig::with(REWRITES).at(store);
        assert_eq!(code_of(&rig, &RUN), Some(0));
        rig.write("a.txt", "1\n");

        assert_eq!(code_of(&rig, &["rollback", "r@3", "-q"]), Some(0), "{store}");
        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(0), "{store}");

        assert_eq!(rig.read("trace"), "a\nb\nc1\nc1\n", "{store}: with what `a` had given");
    }
}

#[test]
fn paths_are_those_of_the_run_wherever_somebody_stands() {
    let rig = Rig::with(REWRITES);
    assert_eq!(code_of(&rig, &RUN), Some(0));
    let elsewhere = rig.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    // Another file of the same name in the verifier's working folder.
    std::fs::write(elsewhere.join("b.txt"), "other\n").unwrap();
    let code = |args: &[&str]| rig.command(args).current_dir(&elsewhere).output().unwrap().status.code();

    assert_eq!(code(&["verify", "r"]), Some(0));
    std::fs::remove_file(rig.path("b.txt")).unwrap();
    assert_eq!(code(&["verify", "r"]), Some(4));
}

#[test]
fn a_step_that_has_begun_is_known_after_a_kill() {
    for store in STORES {
        let rig = Rig::with("steps: [{id: a, idempotent: false, run: 'echo a >> trace; until test -s pid; do sleep 0.01; done; kill -9 $(cat pid); sleep 30'}]\n")
            .at(store);
        let running = rig.start(&RUN);
        rig.write("pid.new", &running.pid().to_string());
        std::fs::rename(rig.path("pid.new"), rig.path("pid")).unwrap();
        running.end_soon();

        assert_eq!(code_of(&rig, &["resume", "r", "-q"]), Some(8), "{store}: it may have been done");
        assert_eq!(rig.read("trace"), "a\n", "{store}");
    }
}

#[test]
fn many_verifiers_of_one_run_agree_and_disturb_nobody() {
    let rig = Rig::with(REWRITES);
    assert_eq!(code_of(&rig, &RUN), Some(0));
    let before = rig.json(&["checkpoints", "r", "--json"]);
    let look = || {
        let verified = rig.call(&["verify", "r", "--json"]);
        let view: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
        let verdicts = view["checkpoints"].as_array().into_iter().flatten().map(|one| one["verdict"].clone());
        (verified.status.code(), verdicts.collect::<Vec<_>>())
    };
    let all = || -> Vec<_> {
        std::thread::scope(|scope| {
            let verifiers: Vec<_> = (0..16).map(|_| scope.spawn(look)).collect();
            verifiers.into_iter().map(|verifier| verifier.join().unwrap()).collect()
        })
    };

    let holds = all();
    assert!(holds.iter().all(|found| *found == holds[0] && found.0 == Some(0)), "{holds:?}");
    rig.write("b.txt", "other\n");
    let fails = all();
    assert!(fails.iter().all(|found| *found == fails[0] && found.0 == Some(4)), "{fails:?}");
    assert_eq!(rig.json(&["checkpoints", "r", "--json"]), before, "whoever looks changes nothing");
}

#[test]
fn what_an_expression_gives_is_no_pattern() {
    let each = |evidence: &str| {
        format!(
            "steps: [{{id: each, foreach: {{failure_rate: 1, items: [a1, 'a?', 'a*'], as: x, max_parallel: 1, steps: [{{id: mk, run: 'test $X != a1 || echo 1 > f-$X.csv', env: {{X: '${{{{ x }}}}'}}, evidence: [{evidence}]}}]}}}}]\n"
        )
    };
    for evidence in ["{file: 'f-${{ x }}.csv', size: '> 0'}", "{sha256: 'f-${{ x }}.csv'}"] {
        let rig = Rig::with(&each(evidence));
        assert_eq!(code_of(&rig, &RUN), Some(3), "{evidence}: the file of one item is not that of another");
        let letters = rig.json(&["dead-letters", "list", "r", "--json"]);
        assert_eq!(letters["items"].as_array().map(Vec::len), Some(2), "{letters}");
    }
    let rig = Rig::with(
        &each("{file: '*-${{ x }}.c?v', count: 1}")
            .replace("test $X != a1 || ", "")
            .replace("f-$X.csv", "\"f-$X.csv\""),
    );
    assert_eq!(code_of(&rig, &RUN), Some(0), "what is written is a pattern");
}

#[test]
fn what_an_expression_gives_is_no_comparison() {
    let evidence = |claim: &str, given: &str| {
        let flow = format!(
            "steps: [{{id: a, run: 'echo \"v={given}\" >> $WAYPOST_OUTPUT; echo 77 > out; echo \"{{\\\"id\\\": 77}}\" > j', evidence: [{claim}]}}]\n"
        );
        code_of(&Rig::with(&flow), &RUN)
    };
    for given in ["!= x", "~ .", "> 5", "=~ .", "[1, 77]"] {
        for claim in [
            "{json: j, path: $.id, value: '${{ steps.a.outputs.v }}'}",
            "{json: j, path: $.id, value: [1, '${{ steps.a.outputs.v }}']}",
            "{file: j, json: {$.id: '${{ steps.a.outputs.v }}'}}",
            "{file: out, size: ' ${{ steps.a.outputs.v }}'}",
            "{file: out, lines: '${{ steps.a.outputs.v }}'}",
            "{file: out, matches: '^${{ steps.a.outputs.v }}'}",
            "{command: cat out, stdout: '~ ^${{ steps.a.outputs.v }}'}",
        ] {
            assert_eq!(evidence(claim, given), Some(4), "{claim} with `{given}`");
        }
    }
    for (claim, given) in [
        ("{json: j, path: $.id, value: '> ${{ steps.a.outputs.v }}'}", "76"),
        ("{json: j, path: $.id, value: '!= ${{ steps.a.outputs.v }}'}", "~ ."),
        ("{json: j, path: $.id, value: '~ ^${{ steps.a.outputs.v }}.$'}", "7"),
        ("{json: j, path: $.id, value: '${{ steps.a.outputs.v }}'}", "77"),
        ("{file: out, size: '< ${{ steps.a.outputs.v }}'}", "1 KiB"),
        ("{command: 'echo \"> 5\"', stdout: '${{ steps.a.outputs.v }}'}", "> 5"),
    ] {
        assert_eq!(evidence(claim, given), Some(0), "{claim} with `{given}`");
    }
}

#[test]
fn one_file_counts_once_however_it_is_spelled() {
    let step = "echo \"v=./x\" >> $WAYPOST_OUTPUT; touch x; ln -s x y";
    for other in ["'${{ steps.a.outputs.v }}'", "'.//${{ steps.a.outputs.v }}'", "y"] {
        let evidence = format!("{{at_least: 2, of: [{{file: x}}, {{file: {other}}}, {{file: none}}]}}");
        assert_eq!(run_with(&evidence, step).1, Some(4), "{other}");
    }
    let (_, code) = run_with("{at_least: 2, of: [{file: x}, {file: x, type: file}, {file: none}]}", step);
    assert_eq!(code, Some(0), "what says more is another claim");
}

#[test]
fn a_claim_that_cannot_be_made_is_evidence_that_does_not_hold() {
    for text in ["${{ steps.a.outputs.none }}", "${{ steps.a.outputs.v | int + 1 }}"] {
        let (rig, code) = run_with(&format!("[{{file: '{text}'}}]"), "echo v=x >> $WAYPOST_OUTPUT");
        assert_eq!(code, Some(4), "{text}: {}", rig.told(&rig.call(&["why", "r", "a"])));
    }
}

// Bug: a folder with the runs themselves changed with each checkpoint, and hashing it closed the database under
// SQLite's locks.
#[test]
fn runs_are_no_evidence_of_themselves() {
    let (rig, code) = run_with("[{sha256: .}]", "echo x > x");
    assert_eq!(code, Some(0));
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(0), "what Waypost writes is no part of it");
    rig.write("x", "y");
    assert_eq!(code_of(&rig, &["verify", "r"]), Some(4));

    for (evidence, why) in [
        ("[{sha256: .waypost/waypost.db}]", "the path is the database of this run"),
        ("[{file: .waypost/waypost.db, contains: r}]", "the path is the database of this run"),
        ("[{sqlite: .waypost/waypost.db, table: runs}]", "the path is the database of this run"),
    ] {
        let rig = Rig::with(&format!("steps: [{{id: a, run: 'true', evidence: {evidence}}}]\n"));
        let told = rig.waypost(&RUN);
        assert!(told.starts_with("exit 4\n") && told.contains(why), "{evidence}: {told}");
    }
    let rig = Rig::with("steps: [{id: a, run: 'true', evidence: [{sha256: kept}]}]\n").at(STORES[0]);
    let told = rig.waypost(&RUN);
    assert!(told.contains("`waypost.db` in the folder is the database of this run"), "{told}");
}
