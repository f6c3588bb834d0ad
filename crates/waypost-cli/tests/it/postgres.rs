//! Runs in a PostgreSQL store, from the command line.

use waypost_testing::certificates::AUTHORITY;
use waypost_testing::postgres::{LOCKED, PASSWORD, USER, cluster};

use crate::rig::{Rig, expect, lives, wait_until};

/// Two steps, the second of which waits for the file `go`.
const FLOW: &str = "steps:
  - {id: a, run: 'echo a >> trace; echo said by a; echo n=1 >> $WAYPOST_OUTPUT'}
  - {id: b, run: 'echo b >> trace; echo $$ >> pids; until test -e go; do sleep 0.02; done; echo said by b'}
  - {id: c, run: 'echo c >> trace', env: {N: '${{ steps.a.outputs.n }}'}}
";

/// Returns the address of a database of the test cluster.
pub(crate) fn address(user: &str, database: &str) -> String {
    let cluster = cluster();
    let folder = cluster.folder().display().to_string().replace('/', "%2F");
    format!("postgres://{user}@{folder}:{}/{database}", cluster.port())
}

/// Makes a database with the tables of a store.
fn rig(database: &str) -> Rig {
    cluster().database(database, "SELECT 1");
    let rig = Rig::with(FLOW).at(&address(USER, database));
    expect(&rig, &["store", "init"], 0, &["Made store postgres://waypost@"]);
    rig
}

#[test]
fn a_killed_run_goes_on_where_it_stood() {
    let rig = rig("killed");
    let run = rig.start(&["run", "flow.yaml", "--id", "r"]);
    rig.wait_for("pids", |text| text.ends_with('\n'));
    expect(&rig, &["list"], 0, &["running", "1/3"]);
    expect(&rig, &["resume", "r"], 6, &["run r is held by process", ", until 20", " unless renewed"]);
    expect(&rig, &["delete", "r", "--yes"], 6, &["held by process"]);

    run.signal(libc::SIGKILL);
    run.end();
    wait_until("the end of its steps", || !lives(&rig.read("pids")));

    // The lease of a dead process of this machine does not have to run out.
    expect(&rig, &["list"], 0, &["interrupted", "1/3"]);
    rig.write("go", "");
    expect(&rig, &["resume", "r"], 0, &["said by b", "3 of 3 steps are done"]);
    assert_eq!(rig.read("trace"), "a\nb\nb\nc\n", "the cut step runs again, and no finished one");
    expect(&rig, &["show", "r"], 0, &["r  completed", "n=1"]);
    expect(&rig, &["logs", "r"], 0, &["said by a", "said by b"]);
    expect(&rig, &["events", "r"], 0, &["run_resumed", "run_completed"]);
    expect(&rig, &["verify", "--all"], 0, &["r: sound"]);
    expect(&rig, &["store", "check"], 0, &["version 6: the derived data of 1 run is consistent"]);
    expect(&rig, &["delete", "r", "--yes"], 0, &["Deleted run r"]);
    expect(&rig, &["show", "r"], 5, &[]);
}

#[test]
fn evidence_of_files_counts_without_a_folder_of_the_store() {
    let rig = rig("files");
    let flow = "steps: [{id: y, run: 'echo y >> trace; echo hi > out', evidence: [{sha256: out}]}]";
    rig.write("flow.yaml", flow);

    expect(&rig, &["run", "flow.yaml", "--id", "r"], 0, &["1 of 1 steps are done"]);
    expect(&rig, &["resume", "r"], 0, &[]);
    rig.write("out", "changed");
    expect(&rig, &["resume", "r"], 0, &["1 of 1 steps are done"]);
    assert_eq!((rig.read("trace"), rig.read("out")), ("y\ny\n".to_owned(), "hi\n".to_owned()));
}

#[test]
fn a_detached_run_is_stopped_and_resumed() {
    let rig = rig("detached");
    expect(&rig, &["run", "flow.yaml", "--id", "r", "--detach"], 0, &["Run r continues in process"]);
    rig.wait_for("pids", |text| text.ends_with('\n'));

    expect(&rig, &["stop", "r"], 0, &["Run r stopped"]);

    rig.write("go", "");
    expect(&rig, &["resume", "r"], 0, &["3 of 3 steps are done"]);
}

#[test]
fn items_of_a_list_are_kept_in_the_database() {
    let rig = rig("items");
    rig.write(
        "items.yaml",
        "steps:
  - id: each
    foreach:
      items: [eu, us, apac]
      as: region
      steps:
        - {id: work, run: 'echo $REGION >> trace', env: {REGION: '${{ region }}'}}
  - {id: long, run: 'seq 1 200000'}
",
    );

    expect(&rig, &["run", "items.yaml", "--id", "r"], 0, &["2 of 2 steps are done"]);

    let mut lines: Vec<String> = rig.read("trace").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["apac", "eu", "us"]);
    let log = rig.call(&["logs", "r", "long"]).stdout;
    assert!(
        log.len() < 300 << 10 && log.starts_with(b"1\n2\n") && log.ends_with(b"200000\n"),
        "{}",
        log.len()
    );
    let bytes = |args: &[&str], of: &str| rig.json(args).pointer(of).unwrap().as_u64().unwrap();
    let listed = bytes(&["list", "--json"], "/runs/0/bytes");
    assert!(listed > log.len() as u64, "the size counts logs: {listed}");
    assert_eq!(bytes(&["stats", "--json"], "/bytes"), listed);
}

#[test]
fn a_prune_drops_a_month_of_logs() {
    let rig = rig("months");
    rig.write("go", "");
    let past = "CREATE TABLE waypost.logs_2025_01 PARTITION OF waypost.logs FOR VALUES FROM ('2025-01') TO ('2025-02')";
    cluster().sql("months", past);
    let created =
        "UPDATE waypost.runs SET created_at = '2025-01' || substr(created_at, 8) WHERE name <> 'new';
        UPDATE waypost.logs SET month = '2025-01'";
    for run in ["old", "older"] {
        expect(&rig, &["run", "flow.yaml", "--id", run], 0, &["3 of 3 steps are done"]);
    }
    cluster().sql("months", created);
    expect(&rig, &["run", "flow.yaml", "--id", "new"], 0, &["3 of 3 steps are done"]);

    // Another run of the month keeps its logs.
    expect(&rig, &["prune", "--keep-runs", "2", "-y"], 0, &["Deleted run old"]);
    expect(&rig, &["logs", "older"], 0, &["said by a"]);
    expect(&rig, &["prune", "--keep-runs", "1", "--dry-run"], 0, &["Would delete run older"]);
    expect(
        &rig,
        &["prune", "--keep-runs", "1", "-y"],
        0,
        &["Dropped the log partitions of 2025-01.", "Deleted run older"],
    );
    expect(&rig, &["logs", "new"], 0, &["said by a", "said by b"]);
}

#[test]
fn logs_are_kept_in_a_folder_on_request() {
    let rig = rig("log_files");
    let logs = rig.path("kept logs");
    let rig = rig.at(&format!(
        "{}?logs={}",
        address(USER, "log_files"),
        logs.display().to_string().replace(' ', "%20")
    ));
    rig.write("long.yaml", "steps: [{id: long, run: 'seq 1 200000'}]\n");

    expect(&rig, &["run", "long.yaml", "--id", "r"], 0, &["1 of 1 steps are done"]);

    let printed: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(rig.call(&["logs", "r", "long"]).stdout, printed.as_bytes(), "a file has the whole log");
    assert_eq!(rig.read("kept logs/r/logs/long.1.log"), printed);
    let listed = rig.json(&["list", "--json"])["runs"][0]["bytes"].as_u64().unwrap();
    assert!(listed > printed.len() as u64, "the size counts logs: {listed}");
    expect(&rig, &["delete", "r", "--yes"], 0, &["Deleted run r"]);
    assert!(!logs.join("r").exists());
    let relative = format!("{}?logs=here", address(USER, "log_files"));
    expect(&rig, &["list", "--store", &relative], 2, &["`logs` is not an absolute path"]);
}

#[test]
fn a_connection_to_another_machine_is_encrypted() {
    let rig = rig("encrypted");
    rig.write("authority.pem", AUTHORITY);
    let store = |host: &str| {
        format!("postgres://{USER}:{PASSWORD}@{host}:{}/encrypted?sslmode=require", cluster().port())
    };
    let list = |host: &str, authority: &str| {
        let mut command = rig.command(&["list", "--store", &store(host)]);
        let output = command.env("SSL_CERT_FILE", rig.path(authority)).output().unwrap();
        let told = rig.told(&output);
        assert!(!told.contains(PASSWORD), "{told}");
        (output.status.code(), told)
    };

    assert_eq!(list("localhost", "authority.pem").0, Some(0));
    // The certificate is that of another name, and that of an unknown authority.
    for (host, authority) in [("127.0.0.2", "authority.pem"), ("localhost", "flow.yaml")] {
        let (code, told) = list(host, authority);
        assert_eq!(code, Some(69), "{told}");
    }
}

#[test]
fn each_lack_of_a_server_has_its_exit_code() {
    let rig = Rig::with(FLOW);
    cluster().database("lacking", "SELECT 1");
    let expect_at = |store: &str, code: i32, said: &[&str]| {
        let output = rig.call(&["list", "--store", store]);
        let told = rig.told(&output);
        assert_eq!(output.status.code(), Some(code), "{store}: {told}");
        for words in said {
            assert!(told.contains(words), "{store} does not say `{words}`: {told}");
        }
        assert!(!told.contains("hunter22"), "{told}");
    };

    let no_server =
        ["postgres://me@127.0.0.1:1/jobs cannot be", "pg_isready -d postgres://me@127.0.0.1:1/jobs"];
    expect_at("postgres://me:hunter22@127.0.0.1:1/jobs", 69, &no_server);
    expect_at(&address(USER, "missing"), 69, &["database \"missing\" does not exist", "createdb missing"]);
    let encrypted = format!("{}?sslmode=require", address(USER, "lacking"));
    expect_at(&encrypted, 69, &["?sslmode=disable"]);
    expect_at("postgres://me:x@hunter22@host/jobs", 2, &["%40"]);
    expect_at(&address(LOCKED, "lacking").replace(LOCKED, "locked:hunter22-wrong"), 77, &["does not permit"]);
    expect_at("postgres://me:hunter22@host/jobs?colour=red", 2, &["unknown option `colour`"]);
    expect_at(&address(USER, "lacking"), 5, &["has no tables of Waypost", "waypost store init --store"]);

    let store = address(USER, "lacking");
    let init = rig.call(&["store", "init", "--store", &store]);
    assert_eq!(init.status.code(), Some(0), "{}", rig.told(&init));
    cluster().sql("lacking", "ALTER DATABASE lacking SET default_transaction_read_only = on");
    let submit = rig.call(&["submit", "flow.yaml", "--store", &store]);
    assert!(rig.told(&submit).contains("refused the operation"), "{}", rig.told(&submit));
    assert!(rig.told(&submit).contains("target_session_attrs=read-write"), "{}", rig.told(&submit));
    cluster().sql("postgres", "ALTER DATABASE lacking RESET ALL");
    // A role that may do nothing.
    expect_at(
        &address(LOCKED, "lacking").replace(LOCKED, &format!("{LOCKED}:{PASSWORD}")),
        77,
        &["permission denied"],
    );
    cluster().sql("lacking", "UPDATE waypost.version SET version = 9");
    expect_at(&store, 76, &["has format 9, this version reads up to 6"]);
}

/// `config` once showed the whole address, if it could not be used.
#[test]
fn config_shows_no_password_of_a_wrong_address() {
    let rig = Rig::with(FLOW);
    for store in [
        "postgres://me:hunter22@host/jobs?bogus=x",
        "host=db password=hunter22",
        "postgres://me:x@hunter22@h/j",
    ] {
        let mut command = rig.command(&["config"]);
        let output = command.env("WAYPOST_STORE", store).output().unwrap();
        let told = rig.told(&output);
        assert!(told.contains("WAYPOST_STORE") && !told.contains("hunter22"), "{told}");
    }
}

// Bug: a foreach of more than 1,000 items failed at its end. Cause: its results need a file, and the run has no folder
// here. Fix: only an expression that reads the results fails.
#[test]
fn many_items_end_without_a_file_of_results() {
    let rig = rig("many_items");
    rig.write(
        "many.yaml",
        "steps:
  - id: each
    foreach: {items: {run: seq 1200}, as: n, max_parallel: 8, steps: [{id: wait, sleep: 1ms}]}
  - {id: counts, run: 'echo $N > counts', env: {N: '${{ steps.each.succeeded }}'}}
  - {id: results, run: 'cat $FILE', env: {FILE: '${{ steps.each.items_file }}'}}
",
    );

    let no_file = "step `each` has too many items for the state, and this store keeps no file of the items";
    expect(&rig, &["run", "many.yaml", "--id", "r"], 1, &[no_file]);
    assert_eq!(rig.read("counts"), "1200\n");
}
