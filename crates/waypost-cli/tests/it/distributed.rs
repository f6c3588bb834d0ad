//! Steps of a run on several workers: `distribute` and `runs_on`, with workers as processes.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use waypost_testing::postgres::{USER, cluster};

use crate::postgres::address;
use crate::rig::{Rig, Running, expect, lives, wait_until};

/// Items that wait for the file `go`.
const ITEMS: &str = "distribute: true
steps:
  - {id: before, run: 'true'}
  - id: each
    foreach:
      items: [a, b, c, d]
      as: it
      max_parallel: 4
      steps:
        - {id: first, run: 'true'}
        - id: work
          run: 'echo $IT >> starts; echo $IT $$ >> pids; until test -e go; do sleep 0.02; done; echo said $IT; touch $IT.txt; echo $IT >> ends'
          env: {IT: '${{ it }}'}
          evidence: [{file: '${{ it }}.txt'}]
";

/// Makes a store, and submits a flow as run `r`.
fn submitted(database: &str, flow: &str) -> Rig {
    submitted_with(database, flow, "")
}

/// As [`submitted`], with another file beside the flow.
fn submitted_with(database: &str, flow: &str, child: &str) -> Rig {
    cluster().database(database, "SELECT 1");
    let rig = Rig::with(flow).at(&address(USER, database));
    rig.write("child.yaml", child);
    expect(&rig, &["store", "init"], 0, &["Made store"]);
    expect(&rig, &["submit", "flow.yaml", "--id", "r"], 0, &["Run r is queued"]);
    rig
}

fn worker(rig: &Rig, args: &[&str]) -> Running {
    rig.start(&[&["worker"], args].concat())
}

fn show(rig: &Rig) -> String {
    rig.waypost(&["show", "r"])
}

fn holds_run(rig: &Rig, worker: &Running) -> bool {
    let held = format!("held by     process {} ", worker.pid());
    show(rig).contains(&held)
}

fn lines(rig: &Rig, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(rig.path(name)).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn wait_for_status(rig: &Rig, status: &str) {
    wait_until(&format!("status {status}"), || rig.json(&["show", "r", "--json"])["status"] == status);
}

fn kill(worker: Running) {
    worker.signal(libc::SIGKILL);
    worker.end();
}

/// Returns the pids of the steps that live.
fn living(rig: &Rig) -> BTreeSet<String> {
    let pids = lines(rig, "pids");
    let pids = pids.iter().filter_map(|line| line.split(' ').next_back());
    pids.filter(|pid| lives(pid)).map(str::to_owned).collect()
}

/// Starts two workers with two slots each, and waits until all four items run. The first holds the run.
fn all_run(rig: &Rig) -> [Running; 2] {
    let first = worker(rig, &["-j", "2"]);
    rig.wait_for("starts", |text| text.lines().count() == 2);
    let second = worker(rig, &["-j", "2"]);
    rig.wait_for("starts", |text| text.lines().count() == 4);
    assert!(holds_run(rig, &first));
    [first, second]
}

#[test]
fn workers_share_the_items_of_a_run() {
    let rig = submitted("shared_items", ITEMS);
    let workers = all_run(&rig);

    let tasks = rig.json(&["show", "r", "--json"])["queue"]["tasks"].clone();
    let at: Vec<&str> =
        tasks.as_array().unwrap().iter().map(|task| task["worker"].as_str().unwrap()).collect();
    for worker in &workers {
        let process = format!("process {} ", worker.pid());
        assert_eq!(at.iter().filter(|at| at.starts_with(&process)).count(), 2, "{tasks}");
    }
    expect(&rig, &["show", "r"], 0, &["Step each:a/work: runs in process"]);
    rig.write("go", "");
    wait_for_status(&rig, "completed");

    assert_eq!(lines(&rig, "starts"), ["a", "b", "c", "d"]);
    expect(&rig, &["logs", "r"], 0, &["said a", "said d"]);
    expect(&rig, &["verify", "r"], 0, &["sound"]);
}

#[test]
fn a_killed_worker_loses_only_its_own_steps() {
    let rig = submitted("lost_items", ITEMS);
    let [first, second] = all_run(&rig);

    kill(second);
    wait_until("the items on the worker that is left", || {
        rig.waypost(&["show", "r"]).matches(&format!("runs in process {} ", first.pid())).count() == 2
    });
    rig.write("go", "");
    wait_for_status(&rig, "completed");

    assert_eq!(lines(&rig, "ends"), ["a", "b", "c", "d"]);
    let starts = lines(&rig, "starts");
    assert_eq!(starts.len(), 6, "the two steps of the lost worker ran again: {starts:?}");
    let items = rig.json(&["show", "r", "--step", "each", "--json"])["items"].clone();
    let attempts =
        |number: u32| items.as_array().unwrap().iter().filter(|item| item["attempts"] == number).count();
    assert_eq!((attempts(1), attempts(2)), (2, 2), "{items}");
}

#[test]
fn a_takeover_adopts_the_steps_of_other_workers() {
    let rig = submitted("adopted_items", ITEMS);
    let [first, second] = all_run(&rig);
    let before = living(&rig);

    kill(first);
    wait_until("the takeover", || holds_run(&rig, &second));
    wait_until("the adoption", || {
        rig.waypost(&["show", "r"]).matches(&format!("runs in process {} ", second.pid())).count() == 2
    });
    let kept = living(&rig);
    assert_eq!((before.len(), kept.len()), (4, 2), "the steps of the living worker go on");
    assert!(kept.is_subset(&before));
    rig.write("go", "");
    wait_for_status(&rig, "completed");

    assert_eq!(lines(&rig, "ends"), ["a", "b", "c", "d"]);
    assert_eq!(lines(&rig, "starts").len(), 6, "only the steps of the lost worker ran again");
    let log = rig.waypost(&["logs", "r"]);
    for item in ["a", "b", "c", "d"] {
        assert!(log.contains(&format!("said {item}\n")), "{log}");
    }
    assert!(!log.contains("missing"), "{log}");
    expect(&rig, &["events", "r"], 0, &["adopted"]);
    let why: Vec<String> =
        ["a", "b", "c", "d"].map(|item| rig.waypost(&["why", "r", &format!("each:{item}/work")])).into();
    let count = |text: &str| why.iter().filter(|why| why.contains(text)).count();
    assert_eq!((count("continued on its worker"), count("was cut")), (2, 2), "{why:?}");
}

#[test]
fn a_rerun_ends_the_steps_of_the_lost_holder() {
    let flow = "steps:
  - {id: a, run: 'echo a >> trace; cat in > a.txt', evidence: [{sha256: a.txt}]}
  - {id: b, run: 'echo b >> trace; echo x $$ >> pids; cat a.txt > read; until test -e go; do sleep 0.02; done; cat read > b.txt', runs_on: other}
";
    cluster().database("rerun_apart", "SELECT 1");
    let rig = Rig::with(flow).at(&address(USER, "rerun_apart"));
    rig.write("in", "old");
    expect(&rig, &["store", "init"], 0, &[]);
    expect(&rig, &["submit", "flow.yaml", "--id", "r"], 0, &[]);
    let holder = worker(&rig, &[]);
    rig.wait_for("trace", |text| text == "a\n");
    let _other = worker(&rig, &["--tags", "other"]);
    rig.wait_for("read", |text| text == "old");
    let first = living(&rig);

    rig.write("in", "new");
    std::fs::remove_file(rig.path("a.txt")).unwrap();
    kill(holder);
    rig.wait_for("read", |text| text == "new");

    assert!(living(&rig).is_disjoint(&first), "the step that read the old file has ended");
    rig.write("go", "");
    wait_for_status(&rig, "completed");
    assert_eq!((rig.read("b.txt").as_str(), rig.read("trace").as_str()), ("new", "a\nb\na\nb\n"));
}

// Bug: after SIGTERM, the only worker held a distributed run for ever. Cause: a worker that drained executed no step of any run,
// and waited for the end of its own. Fix: it executes the steps of its own runs.
#[test]
fn a_drained_worker_executes_the_steps_of_its_run() {
    let flow = "distribute: true
steps:
  - {id: a, run: 'echo a >> trace; until test -e go; do sleep 0.02; done'}
  - {id: b, run: 'echo b >> trace'}
";
    let rig = submitted("drained_apart", flow);
    let holder = worker(&rig, &[]);
    rig.wait_for("trace", |text| text == "a\n");
    rig.write("other.yaml", "distribute: true\nsteps: [{run: 'echo other >> trace'}]\n");

    holder.signal(libc::SIGTERM);
    expect(&rig, &["submit", "other.yaml", "--id", "other"], 0, &["is queued"]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    rig.write("go", "");

    let ended = rig.told(&holder.end_soon());
    assert!(ended.contains("exit 0") && ended.contains("The worker has ended."), "{ended}");
    expect(&rig, &["show", "r"], 0, &["r  completed"]);
    assert_eq!(rig.read("trace"), "a\nb\n");
    expect(&rig, &["show", "other"], 0, &["other  queued"]);
}

/// Two workers that lose their leases in turn, without the end of a process, once used up the cuts of the step.
#[test]
fn a_lost_lease_is_no_cut_of_a_distributed_step() {
    let flow = "distribute: true
max_cuts: 1
steps: [{id: a, run: 'echo x $$ >> pids; until test -e go; do sleep 0.02; done'}]
";
    cluster().database("loss_apart", "SELECT 1");
    let rig = Rig::with(flow).at(&format!("{}?lease=3", address(USER, "loss_apart")));
    expect(&rig, &["store", "init"], 0, &[]);
    expect(&rig, &["submit", "flow.yaml", "--id", "r"], 0, &[]);
    let first = worker(&rig, &[]);
    rig.wait_for("pids", |text| text.lines().count() == 1);
    let second = worker(&rig, &[]);

    for (frozen, starts) in [(&first, 2), (&second, 3)] {
        frozen.signal(libc::SIGSTOP);
        rig.wait_for("pids", |text| text.lines().count() == starts);
        frozen.signal(libc::SIGCONT);
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
    rig.write("go", "");
    wait_for_status(&rig, "completed");
}

#[test]
fn a_step_waits_for_a_worker_with_its_tags() {
    let flow = "steps:
  - {id: plain, run: 'echo plain >> trace'}
  - {id: train, run: 'echo train >> trace; echo n=1 >> $WAYPOST_OUTPUT', runs_on: [gpu, big], report: 'made ${{ steps.train.outputs.n }}'}
  - {id: last, run: 'echo last $N >> trace', env: {N: '${{ steps.train.outputs.n }}'}}
";
    let rig = submitted("tags", flow);
    expect(&rig, &["check", "flow.yaml"], 0, &["  train, on a worker with gpu, big\n"]);
    let plain = worker(&rig, &[]);
    rig.wait_for("trace", |text| text == "plain\n");
    wait_until("the report of the lack", || {
        show(&rig).contains("waits for a worker; the last one lacked tag `big`, tag `gpu`")
    });

    let tagged = worker(&rig, &["--tags", "gpu,big,more"]);
    wait_for_status(&rig, "completed");

    assert_eq!(rig.read("trace"), "plain\ntrain\nlast 1\n");
    expect(&rig, &["report", "r"], 0, &["made 1"]);
    drop((plain, tagged));
}

#[test]
fn only_the_worker_of_a_step_needs_its_program() {
    let flow = "steps:
  - {id: plain, run: 'echo plain >> trace'}
  - {id: special, run: 'echo special >> trace', shell: [only-there, -c], runs_on: special}
";
    let rig = submitted("programs", flow);
    let plain = worker(&rig, &["--tags", "special"]);
    wait_until("the report of the lack", || show(&rig).contains("the last one lacked program `only-there`"));

    std::fs::create_dir(rig.path("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", rig.path("bin/only-there")).unwrap();
    let mut command = rig.command(&["worker", "--tags", "special"]);
    let path = format!("{}:{}", rig.path("bin").display(), std::env::var("PATH").unwrap());
    let having = Running::of(command.env("PATH", path));
    wait_for_status(&rig, "completed");

    assert_eq!(rig.read("trace"), "plain\nspecial\n");
    drop((plain, having));
}

#[test]
fn a_stop_ends_the_steps_on_all_workers() {
    let rig = submitted("stopped_items", ITEMS);
    let _workers = all_run(&rig);

    expect(&rig, &["stop", "r"], 0, &["stopped"]);
    assert_eq!(living(&rig), BTreeSet::new());
    expect(&rig, &["show", "r"], 0, &["r  interrupted"]);

    rig.write("go", "");
    expect(&rig, &["resume", "r"], 0, &["2 of 2 steps are done"]);
    assert_eq!(lines(&rig, "ends"), ["a", "b", "c", "d"]);
}

#[test]
fn a_lost_worker_leaves_a_step_in_doubt() {
    let flow = "steps:
  - {id: pay, run: 'echo x $$ >> pids; until test -e go; do sleep 0.02; done', idempotent: false, runs_on: bank}
";
    let rig = submitted("doubt_apart", flow);
    let holder = worker(&rig, &[]);
    wait_until("the claim", || holds_run(&rig, &holder));
    let bank = worker(&rig, &["--tags", "bank"]);
    rig.wait_for("pids", |text| text.ends_with('\n'));

    kill(bank);
    let _next = worker(&rig, &["--tags", "bank"]);
    wait_for_status(&rig, "in_doubt");

    assert_eq!(lines(&rig, "pids").len(), 1, "the effect is not repeated");
    rig.write("go", "");
    expect(&rig, &["resume", "r", "--treat-as", "retry"], 0, &["1 of 1 steps are done"]);
}

// Bug: a started step was killed, and started again. Cause: a task that was submitted during a look at the tasks was not
// part of the answer, and counted as cancelled. Fix: the look asks for the tasks that were submitted before.
#[test]
fn each_item_starts_once_on_many_workers() {
    let flow = "distribute: true
max_parallel: 8
steps:
  - id: each
    foreach:
      items: {run: seq 80}
      as: n
      steps: [{id: work, run: 'echo $N >> starts; sleep 0.1; echo $N >> ends', env: {N: '${{ n }}'}, idempotent: false}]
";
    let rig = submitted("each_once", flow);
    let workers = [worker(&rig, &["-j", "4"]), worker(&rig, &["-j", "4"])];
    wait_for_status(&rig, "completed");

    let mut all: Vec<String> = (1..=80).map(|number| number.to_string()).collect();
    all.sort();
    assert_eq!(lines(&rig, "starts"), all);
    assert_eq!(lines(&rig, "ends"), all);
    drop(workers);
}

/// A step that ends each of its workers fails, and other steps of the run go on.
#[test]
fn a_step_that_ends_its_workers_fails() {
    let flow = "steps:
  - {id: bad, needs: [], run: 'echo x >> tries; kill -9 $POISONED; sleep 60', runs_on: poisoned}
  - {id: good, needs: [], run: 'echo good >> tries; until test -e go; do sleep 0.02; done', runs_on: calm}
";
    let rig = submitted("poison", flow);
    let calm = worker(&rig, &["--tags", "calm"]);
    wait_until("the claim", || holds_run(&rig, &calm));
    for tries in 1..=4 {
        // The pid of the shell becomes that of the worker.
        let mut command = Command::new("sh");
        command.args(["-c", "POISONED=$$ exec \"$0\" worker --tags poisoned", env!("CARGO_BIN_EXE_waypost")]);
        command.env("WAYPOST_STORE", address(USER, "poison")).current_dir(rig.path(""));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut poisoned = Running::of(&mut command);
        wait_until("the end of the worker", || poisoned.ended().is_some());
        wait_until("the try", || lines(&rig, "tries").iter().filter(|line| *line == "x").count() == tries);
    }
    rig.write("go", "");
    wait_for_status(&rig, "failed");

    expect(&rig, &["show", "r"], 0, &["cut 4 times: each time, the worker of the step was lost"]);
    assert_eq!(lines(&rig, "tries"), ["good", "x", "x", "x", "x"]);
}

/// A worker that sleeps past its lease ends its own steps only, not those of the workers that took over.
#[test]
fn a_sleeper_ends_no_steps_of_others() {
    let rig = {
        cluster().database("sleeper", "SELECT 1");
        let rig = Rig::with(ITEMS).at(&format!("{}?lease=5", address(USER, "sleeper")));
        expect(&rig, &["store", "init"], 0, &[]);
        expect(&rig, &["submit", "flow.yaml", "--id", "r"], 0, &[]);
        rig
    };
    let [first, second] = all_run(&rig);
    let third = worker(&rig, &["-j", "2"]);
    first.signal(libc::SIGSTOP);
    rig.wait_for("starts", |text| text.lines().count() == 6);
    let before = living(&rig);

    first.signal(libc::SIGCONT);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(living(&rig).is_subset(&before) && living(&rig).len() == 4, "{before:?}");
    rig.write("go", "");
    wait_for_status(&rig, "completed");
    assert_eq!(lines(&rig, "ends"), ["a", "b", "c", "d"]);
    drop((second, third));
}

/// The only step of a run once went on after a person had settled the step, and so the run.
#[test]
fn a_settled_step_ends_on_its_worker() {
    let flow = "steps:
  - {id: pay, run: 'echo x $$ >> pids; until test -e go; do sleep 0.02; done', idempotent: false, runs_on: bank}
";
    let rig = submitted("settled_alone", flow);
    let holder = worker(&rig, &[]);
    wait_until("the claim", || holds_run(&rig, &holder));
    let _bank = worker(&rig, &["--tags", "bank"]);
    rig.wait_for("pids", |text| text.ends_with('\n'));
    kill(holder);
    wait_for_status(&rig, "in_doubt");

    expect(&rig, &["resume", "r", "--treat-as", "done"], 0, &["is completed"]);

    wait_until("the end of the step", || living(&rig).is_empty());
}

/// A worker that the step itself ends is lost at most `max_cuts` times.
#[test]
fn max_cuts_limits_the_workers_of_a_step() {
    let bad = "max_cuts: 1
steps:
  - {id: bad, run: 'echo x >> starts; while test -e kill; do sleep 0.02; done; exit 5', runs_on: any}
";
    lose_workers(&submitted("cuts_apart", bad));
    // The limit is that of the file of the step.
    lose_workers(&submitted_with("cuts_included", "steps: [{id: sub, workflow: child.yaml}]\n", bad));
}

/// Kills two workers of a step, and waits for the failure of the step.
fn lose_workers(rig: &Rig) {
    rig.write("kill", "");
    let holder = worker(rig, &[]);
    wait_until("the claim", || holds_run(rig, &holder));
    for starts in 1..=2 {
        let lost = worker(rig, &["--tags", "any"]);
        rig.wait_for("starts", |text| text.lines().count() == starts);
        kill(lost);
    }
    let _next = worker(rig, &["--tags", "any"]);
    wait_for_status(rig, "failed");

    assert_eq!(lines(rig, "starts").len(), 2);
    expect(rig, &["show", "r"], 0, &["cut 2 times"]);
}

/// A step that must not be repeated goes on after the loss of the holder of its run, and a decision waits for its end.
#[test]
fn a_decision_waits_for_the_end_of_a_step() {
    let flow = "steps:
  - {id: pay, run: 'echo x $$ >> pids; until test -e go; do sleep 0.02; done; echo paid >> paid', idempotent: false, runs_on: bank}
  - {id: last, run: 'cat paid > last'}
";
    let rig = submitted("doubt_ends", flow);
    let holder = worker(&rig, &[]);
    wait_until("the claim", || holds_run(&rig, &holder));
    // The only other worker has no slot for the run.
    rig.write("busy.yaml", "steps: [{id: b, run: 'until test -e go; do sleep 0.02; done'}]");
    expect(&rig, &["submit", "busy.yaml", "--id", "busy", "--tag", "bank"], 0, &[]);
    let bank = worker(&rig, &["--tags", "bank"]);
    wait_until("the other run", || rig.waypost(&["show", "busy"]).contains("held by"));
    rig.wait_for("pids", |text| text.ends_with('\n'));

    kill(holder);
    wait_for_status(&rig, "in_doubt");
    assert_eq!(living(&rig).len(), 1, "the step goes on");
    expect(&rig, &["show", "r"], 0, &["Step pay: runs in process"]);
    for retry in ["retry", "retry=pay"] {
        let refused = "cannot repeat step `pay` of run r: a worker executes the step";
        expect(&rig, &["resume", "r", "--treat-as", retry], 2, &[refused]);
    }
    let mut resume = rig.start(&["resume", "r", "--treat-as", "done"]);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(resume.ended(), None, "the resume waits for the step");
    rig.write("go", "");

    let resumed = rig.told(&resume.end_soon());
    assert!(resumed.contains("exit 0"), "{resumed}");
    let said = "Waiting for the end of steps on workers: pay in process";
    assert_eq!(resumed.matches(said).count(), 1, "{resumed}");
    assert_eq!((rig.read("last").as_str(), lines(&rig, "pids").len()), ("paid\n", 1));
    drop(bank);
}

#[test]
fn failures_elsewhere_are_told_as_here() {
    let flow = "distribute: true
steps:
  - {id: slow, run: 'echo begun; sleep 60', timeout: 300ms, continue_on_error: true}
  - {id: again, run: 'echo x >> tries; test $(wc -l < tries) = 3', retry: {max: 2, delay: 10ms}}
  - {id: bad, run: 'echo wrong >&2; exit 7'}
";
    let rig = submitted("failures_apart", flow);
    let _worker = worker(&rig, &[]);
    wait_for_status(&rig, "failed");

    let shown = show(&rig);
    for part in ["slow", "timed out after 300ms", "failed: exit code 7", "wrong"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert_eq!(lines(&rig, "tries").len(), 3);
}

#[test]
fn a_secret_stays_with_its_workers() {
    let flow = "distribute: true
secrets: [TOKEN]
steps:
  - {id: use, run: 'echo \"$TOKEN\" | wc -c > bytes; echo \"got $TOKEN\"'}
";
    let rig = submitted("secret_apart", flow);
    let lacking = worker(&rig, &[]);
    wait_until("the report of the lack", || show(&rig).contains("no worker has secret `TOKEN`"));
    let mut command = rig.command(&["worker"]);
    let having = Running::of(command.env("TOKEN", "a-very-secret-value"));
    wait_for_status(&rig, "completed");

    assert_eq!(rig.read("bytes").trim(), "20");
    expect(&rig, &["logs", "r"], 0, &["got ***"]);
    drop((lacking, having));
}

#[test]
fn a_wait_for_other_workers_keeps_no_slot() {
    let flow = "steps:
  - {id: a, run: 'echo a >> trace'}
  - {id: train, run: 'echo train >> trace', runs_on: gpu, idempotent: false}
  - {id: last, run: 'echo last >> trace'}
";
    let rig = submitted("no_slot", flow);
    let plain = worker(&rig, &["-j", "1"]);
    rig.wait_for("trace", |text| text == "a\n");
    rig.write("plain.yaml", "steps: [{id: p, run: 'echo p >> trace'}]");
    expect(&rig, &["submit", "plain.yaml", "--id", "p"], 0, &[]);
    rig.wait_for("trace", |text| text == "a\np\n");
    wait_until("the return", || show(&rig).contains("no worker has tag `gpu`"));
    expect(&rig, &["show", "r"], 0, &["r  queued"]);

    // The worker with the tag executes the run. After its loss, any worker does.
    let tagged = worker(&rig, &["--tags", "gpu"]);
    wait_for_status(&rig, "completed");
    assert_eq!(rig.read("trace"), "a\np\ntrain\nlast\n");
    drop((plain, tagged));
}

#[test]
fn an_execution_after_a_lost_worker_is_shown() {
    let flow = "steps:
  - {id: a, run: 'echo $WAYPOST_ATTEMPT $$ >> pids; until test -e go; do sleep 0.02; done', runs_on: far}
";
    let rig = submitted("shown_again", flow);
    let holder = worker(&rig, &[]);
    wait_until("the claim", || holds_run(&rig, &holder));
    let far = worker(&rig, &["--tags", "far"]);
    rig.wait_for("pids", |text| text.lines().count() == 1);
    kill(far);
    let next = worker(&rig, &["--tags", "far"]);
    rig.wait_for("pids", |text| text.lines().count() == 2);
    rig.write("go", "");
    wait_for_status(&rig, "completed");

    let numbers: Vec<String> = rig.read("pids").lines().map(|line| line[..1].to_owned()).collect();
    assert_eq!(numbers, ["1", "2"]);
    assert_eq!(rig.json(&["show", "r", "--json"])["steps"][0]["attempts"], 2);
    expect(&rig, &["why", "r", "a"], 0, &["first execution", "the worker of the step was lost"]);
    expect(&rig, &["events", "r"], 0, &["worker_lost"]);
    drop((holder, next));
}

// Bug: each item cost as many statements as the run had items. Cause: the worker of a step read the newest record of each
// scope to find the definition. Fix: the definition is read once for each lease, from the main scope.
#[test]
fn the_cost_of_an_item_is_that_of_few_statements() {
    const ITEMS: u64 = 150;
    let flow = format!(
        "distribute: true
steps:
  - {{id: each, foreach: {{items: {{run: seq {ITEMS}}}, max_parallel: 4, steps: [{{id: work, run: 'true'}}]}}}}
"
    );
    let rig = submitted("cost_of_items", &flow);
    let workers = [worker(&rig, &["-j", "2"]), worker(&rig, &["-j", "2"])];
    wait_for_status(&rig, "completed");
    drop(workers);

    let transactions = || {
        let url = cluster().connection(USER, "cost_of_items");
        let count = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        let output = Command::new(cluster().psql()).args(["-Atc", count, &url]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap()
    };
    let found = transactions();
    assert!(found < 80 * ITEMS, "{found} transactions");
}

// Bug: after the loss of the holder, a step with `idempotent: false` was in doubt, although it ran on a living worker or waited
// for one. Fix: the next holder adopts its task, as those of other steps.
#[test]
fn a_task_that_must_not_be_repeated_is_adopted() {
    let flow = "distribute: true
steps:
  - {id: pay, needs: [], run: 'echo pay $$ >> pids; until test -e go; do sleep 0.02; done; echo n=1 >> $WAYPOST_OUTPUT', idempotent: false, runs_on: bank}
  - {id: wait, needs: [], run: 'echo wait >> trace', idempotent: false, runs_on: later}
  - {id: last, needs: [pay, wait], run: 'echo last $N >> trace', env: {N: '${{ steps.pay.outputs.n }}'}}
";
    let rig = submitted("adopted_doubt", flow);
    let holder = worker(&rig, &[]);
    wait_until("the claim", || holds_run(&rig, &holder));
    let bank = worker(&rig, &["--tags", "bank"]);
    rig.wait_for("pids", |text| text.ends_with('\n'));

    kill(holder);
    wait_until("the takeover", || holds_run(&rig, &bank));
    assert_eq!(living(&rig).len(), 1, "the step goes on");
    rig.write("go", "");
    let later = worker(&rig, &["--tags", "later"]);
    wait_for_status(&rig, "completed");

    assert_eq!((lines(&rig, "pids").len(), rig.read("trace").as_str()), (1, "wait\nlast 1\n"));
    drop((bank, later));
}

// Bug: a distributed step failed as cut too often, though only the holder of its run was lost, and the step waited for a worker.
#[test]
fn the_loss_of_the_holder_cuts_no_step_elsewhere() {
    let flow = "distribute: true
max_cuts: 1
steps:
  - {id: g, runs_on: gpu, run: 'echo g >> trace'}
";
    let rig = submitted("holder_lost", flow);
    let mut holder = worker(&rig, &[]);
    for _ in 0..3 {
        wait_until("the claim", || holds_run(&rig, &holder));
        wait_until("the task", || rig.waypost(&["show", "r"]).contains("Step g: waits for a worker"));
        kill(holder);
        holder = worker(&rig, &[]);
    }

    let gpu = worker(&rig, &["--tags", "gpu"]);
    wait_for_status(&rig, "completed");

    assert_eq!(rig.read("trace"), "g\n");
    drop((holder, gpu));
}

// Bug: a step of the lost holder was in doubt, and then the results of all steps on living workers were lost. Cause: the takeover
// asked before it adopted these steps, and removed their tasks. Fix: it adopts first, and asks when all of them have ended.
#[test]
fn one_step_in_doubt_loses_no_results_of_others() {
    let flow = "distribute: true
steps:
  - id: f
    foreach: {items: [x, y], as: i, max_parallel: 2, steps: [{id: s, idempotent: false, run: 'echo $I >> starts; until test -e go; do sleep 0.02; done; echo $I >> ends', env: {I: '${{ i }}'}}]}
";
    let rig = submitted("one_in_doubt", flow);
    let holder = worker(&rig, &["-j", "1"]);
    rig.wait_for("starts", |text| text.lines().count() == 1);
    let _other = worker(&rig, &["-j", "1"]);
    rig.wait_for("starts", |text| text.lines().count() == 2);
    let lost = rig.read("starts").lines().next().unwrap().to_owned();

    kill(holder);
    wait_until("the takeover", || rig.waypost(&["show", "r"]).contains("running"));
    rig.write("go", "");
    wait_for_status(&rig, "in_doubt");
    wait_until("the end of the other step", || lines(&rig, "ends").len() == 1);
    wait_until("the rest of the run", || !rig.waypost(&["show", "r"]).contains("held by"));

    let asked = rig.waypost(&["show", "r"]);
    assert_eq!(asked.matches("needs a decision").count(), 1, "{asked}");
    assert!(asked.contains(&format!("Step f:{lost}/s needs a decision")), "{asked}");
    expect(&rig, &["resume", "r", "--treat-as", "done"], 0, &["completed"]);
    assert_eq!((lines(&rig, "starts").len(), lines(&rig, "ends").len()), (2, 1));
}

// Bug: a second SIGTERM to the holder of a run killed the steps on other workers; a step with `idempotent: false` was in doubt.
// Fix: the run is left to the next holder, who adopts these steps.
#[test]
fn a_worker_that_ends_at_once_ends_no_steps_elsewhere() {
    let flow = "distribute: true
steps:
  - {id: pay, idempotent: false, runs_on: bank, run: 'echo pay $$ >> pids; until test -e go; do sleep 0.02; done; echo paid >> trace'}
";
    let rig = submitted("ended_at_once", flow);
    let holder = worker(&rig, &[]);
    wait_until("the claim", || holds_run(&rig, &holder));
    let bank = worker(&rig, &["--tags", "bank"]);
    rig.wait_for("pids", |text| text.ends_with('\n'));

    holder.signal(libc::SIGTERM);
    std::thread::sleep(std::time::Duration::from_millis(500));
    holder.signal(libc::SIGTERM);
    let ended = rig.told(&holder.end_soon());

    assert!(ended.contains("Run r returns to the queue."), "{ended}");
    wait_until("the takeover", || holds_run(&rig, &bank));
    rig.write("go", "");
    wait_for_status(&rig, "completed");
    assert_eq!((lines(&rig, "pids").len(), rig.read("trace").as_str()), (1, "paid\n"));
}
