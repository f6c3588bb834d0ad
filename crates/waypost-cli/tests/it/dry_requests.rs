//! `waypost resume --dry-run` with requests: the decisions of the dry run are those of the resume that follows.

use std::collections::BTreeSet;

use serde_json::Value;
use waypost_testing::seed::Seeded;

use crate::rig::{Rig, ran, remove, run, wait_until};

/// The work of each step: notes the execution, and fails, is cut or loses its reaper as the files say.
const DO: &str = r#"echo "$WAYPOST_SCOPE/$WAYPOST_STEP" >> trace
has() { test -e "$1" && grep -qx "$WAYPOST_STEP" "$1"; }
if has cut; then kill -9 $$; fi
if has lost; then kill -9 $PPID; fi
touch "made-$WAYPOST_STEP"
if has bad; then exit 1; fi
exit 0
"#;

/// A resume with requests: its dry run, then the resume.
struct Both {
    /// The exit codes.
    dry: Option<i32>,
    real: Option<i32>,
    /// The decisions of the dry run: the step with its scope, and the action.
    planned: Vec<(String, String)>,
    /// The executed steps.
    executed: BTreeSet<String>,
    /// The messages.
    told: String,
}

impl Both {
    fn of(rig: &Rig, args: &[&str]) -> Self {
        let dry = rig.call(&[&["resume", "r", "--dry-run", "--json"], args].concat());
        rig.write("trace", "");
        let real = rig.call(&[&["resume", "r", "-q"], args].concat());
        let plan: Value = serde_json::from_slice(&dry.stdout).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let decision =
            |one: &Value| (format!("{}/{}", text(&one["scope"]), text(&one["step"])), text(&one["action"]));
        let planned = plan["decisions"].as_array().into_iter().flatten().map(decision).collect();
        let executed = ran(rig).split_whitespace().map(str::to_owned).collect();
        let told = format!("{}\n{}", rig.told(&dry), rig.told(&real));
        Self { dry: dry.status.code(), real: real.status.code(), planned, executed, told }
    }

    fn action(&self, step: &str) -> Option<&str> {
        self.planned.iter().find(|(planned, _)| planned == step).map(|(_, action)| action.as_str())
    }

    /// Returns the decisions that the resume did not follow. A plan counts on the success of each step.
    fn differences(&self, leaves: &BTreeSet<String>) -> Vec<String> {
        let is_open = |exit| matches!(exit, Some(0 | 1 | 3 | 4 | 8));
        if self.dry != Some(0) || !is_open(self.real) {
            let differs = self.dry != self.real;
            return differs
                .then(|| format!("dry: {:?}, real: {:?}", self.dry, self.real))
                .into_iter()
                .collect();
        }
        let is_run = |action| matches!(action, Some("run" | "rerun" | "retry" | "recheck"));
        // The items of a step with an unknown input have no decisions.
        let opener = |step: &str| format!("main/{}", step.split([':', '~']).next().unwrap());
        let is_planned = |step: &str| is_run(self.action(step).or_else(|| self.action(&opener(step))));
        let unplanned = self.executed.iter().filter(|step| !is_planned(step));
        let mut found: Vec<String> =
            unplanned.map(|step| format!("{step} ran, planned: {:?}", self.action(step))).collect();
        let asks = self.planned.iter().any(|(_, action)| action == "ask");
        if asks && self.real == Some(0) {
            found.push("no question was asked".to_owned());
        }
        let runs =
            self.planned.iter().filter(|(_, action)| matches!(action.as_str(), "run" | "rerun" | "retry"));
        let idle = runs.map(|(step, _)| step).filter(|step| !self.executed.contains(*step));
        let is_leaf = |step: &&String| step.rsplit('/').next().is_some_and(|step| leaves.contains(step));
        if self.real == Some(0) {
            found.extend(idle.filter(is_leaf).map(|step| format!("{step} did not run")));
        }
        found
    }
}

/// A random workflow, and the state of its world.
struct Flow {
    random: Seeded,
    steps: Vec<String>,
    leaves: BTreeSet<String>,
}

impl Flow {
    fn new(seed: u64) -> Self {
        let leaves = BTreeSet::from(["none".to_owned()]);
        let mut flow = Self { random: Seeded::new(seed), steps: Vec::new(), leaves };
        let count = 3 + flow.random.below(2);
        let is_graph = flow.random.below(2) == 0;
        for number in 0..count {
            let mut step = match flow.random.below(6) {
                0 => {
                    let body = flow.body(number);
                    format!("id: g{number}, steps: [{body}]")
                }
                1 | 2 => {
                    let (body, limit) = (flow.body(number), flow.random.below(3));
                    format!(
                        "id: e{number}, foreach: {{items: [x, y], max_failures: {limit}, steps: [{body}]}}"
                    )
                }
                3 => format!("{}, evidence: [{{file: made-s{number}}}]", flow.leaf(&format!("s{number}"))),
                _ => flow.leaf(&format!("s{number}")),
            };
            if is_graph {
                let needs = (0..number).filter(|_| flow.random.below(2) == 0);
                let needs: Vec<&str> =
                    needs.map(|at| id_of(&flow.steps[usize::try_from(at).unwrap()])).collect();
                step = format!("{step}, needs: [{}]", needs.join(", "));
            }
            flow.steps.push(step);
        }
        flow
    }

    fn leaf(&mut self, id: &str) -> String {
        let more = match self.random.below(8) {
            0 | 1 => ", idempotent: false",
            2 => ", if: 'false'",
            3 => ", if: always()",
            _ => "",
        };
        // Within a step with an unknown input, a condition counts as true.
        if !more.contains("if: 'false'") {
            self.leaves.insert(id.to_owned());
        }
        format!("id: {id}, run: exec sh do{more}")
    }

    fn body(&mut self, number: u64) -> String {
        let steps = [self.leaf(&format!("a{number}")), self.leaf(&format!("b{number}"))];
        steps.map(|step| format!("{{{step}}}")).join(", ")
    }

    fn text(&self) -> String {
        let steps: Vec<String> = self.steps.iter().map(|step| format!("  - {{{step}}}\n")).collect();
        format!("steps:\n{}", steps.concat())
    }

    fn one<'a>(&mut self, all: &'a [String]) -> &'a str {
        &all[usize::try_from(self.random.below(all.len() as u64)).unwrap()]
    }

    /// Changes which steps fail or are cut.
    fn upset(&mut self, rig: &Rig) {
        let leaves: Vec<String> = self.leaves.iter().cloned().collect();
        for file in ["bad", "cut", "lost"] {
            let is_set = self.random.below(5) < 2;
            rig.write(file, if is_set { self.one(&leaves) } else { "" });
        }
        let made = format!("made-{}", self.one(&leaves));
        if self.random.below(2) == 0 && rig.path(&made).exists() {
            remove(rig, &made);
        }
    }

    /// Returns the arguments of a request about these steps; may edit the file.
    fn request(&mut self, rig: &Rig, known: &[String]) -> Vec<String> {
        let step = self.one(known).to_owned();
        let step = step.strip_prefix("main/").unwrap_or(&step).to_owned();
        let other = step.clone();
        let args: Vec<String> = match self.random.below(10) {
            0 | 1 => vec!["--from".to_owned(), step],
            2 => vec!["--restart".to_owned()],
            3 => vec!["--retry-failed".to_owned()],
            4 => vec!["--skip".to_owned(), step],
            5 => vec!["--treat-as".to_owned(), format!("done={step}")],
            6 => vec!["--from".to_owned(), step.clone(), "--treat-as".to_owned(), format!("done={step}")],
            7 => {
                let leaf = self.one(&self.leaves.iter().cloned().collect::<Vec<_>>()).to_owned();
                let edited = format!("id: {leaf}, run: exec sh do edited");
                let plain = format!("id: {leaf}, run: exec sh do");
                self.steps.iter_mut().for_each(|step| *step = step.replace(&plain, &edited));
                rig.write("flow.yaml", &self.text());
                let choice = ["--keep-finished", "--rerun-changed"].map(str::to_owned);
                vec![self.one(&choice).to_owned()]
            }
            _ => Vec::new(),
        };
        let answers =
            ["done", "retry", &format!("done={other}"), &format!("retry={other}")].map(str::to_owned);
        match self.random.below(4) {
            0 if !args.iter().any(|arg| ["--restart", "--treat-as"].contains(&arg.as_str())) => {
                let answer = self.one(&answers).to_owned();
                [args, vec!["--treat-as".to_owned(), answer]].concat()
            }
            _ => args,
        }
    }
}

fn id_of(step: &str) -> &str {
    step["id: ".len()..].split(',').next().unwrap()
}

/// The variable with the range of seeds, such as `0..100`, in place of the default.
const SEEDS: &str = "WAYPOST_SEEDS";

fn seeds() -> std::ops::Range<u64> {
    let range = std::env::var(SEEDS).unwrap_or_else(|_| "0..8".to_owned());
    let (from, to) = range.split_once("..").unwrap();
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn a_dry_run_is_what_the_resume_does() {
    let mut found = Vec::new();
    for seed in seeds() {
        let mut flow = Flow::new(seed);
        let rig = Rig::with(&flow.text());
        rig.write("do", DO);
        rig.write("trace", "");
        flow.upset(&rig);
        run(&rig);
        let mut known: BTreeSet<String> = BTreeSet::new();
        for round in 0..4 {
            let before = known.clone();
            let plan = rig.json(&["plan", "r", "--json"]);
            let row =
                |one: &Value| format!("{}/{}", one["scope"].as_str().unwrap(), one["step"].as_str().unwrap());
            known.extend(plan["decisions"].as_array().unwrap().iter().map(row));
            known.extend(before);
            flow.upset(&rig);
            let steps: Vec<String> = known.iter().cloned().collect();
            let args = flow.request(&rig, &steps);

            let both = Both::of(&rig, &args.iter().map(String::as_str).collect::<Vec<_>>());

            let differences = both.differences(&flow.leaves);
            if !differences.is_empty() {
                let (flow, told) = (flow.text(), &both.told);
                let again =
                    format!("again: {SEEDS}={seed}..{} cargo test -p waypost-cli -- dry_requests", seed + 1);
                let what = format!("seed {seed}, round {round}, {args:?}: {differences:?}");
                found.push(format!("{what}\n{again}\n{flow}{told}"));
                break;
            }
        }
    }
    assert!(found.is_empty(), "{} workflows:\n{}", found.len(), found.join("\n\n"));
}

/// Starts run `r` with a step that hangs until the file `go` exists, and kills the run.
fn killed(flow: &str) -> Rig {
    let rig = Rig::with(flow);
    rig.write("do", DO);
    let running = rig.start(&["run", "flow.yaml", "--id", "r", "-q"]);
    wait_until("the step that hangs", || rig.path("hangs").exists());
    running.signal(libc::SIGKILL);
    drop(running.end());
    rig.write("go", "");
    rig
}

const CAREFUL: &str = "steps: [{id: a, run: exec sh do}, {id: z, run: exec sh do, idempotent: false}, {id: e, run: exec sh do}]\n";

/// A run with step `z` in doubt.
fn in_doubt() -> Rig {
    let rig = Rig::with(CAREFUL);
    rig.write("do", DO);
    rig.write("cut", "z");
    assert_eq!(run(&rig), Some(8));
    rig.write("cut", "");
    rig
}

// Bug: `--from z --treat-as done=z` reran the step that a person counts as done, and its dry run said `reuse`. Cause: the answer
// was recorded, and the request dropped it. Fix: the contradiction is refused, with both commands.
#[test]
fn a_step_is_not_both_rerun_and_done() {
    let rig = in_doubt();

    let both = Both::of(&rig, &["--from", "z", "--treat-as", "done=z"]);

    assert_eq!((both.dry, both.real), (Some(2), Some(2)), "{}", both.told);
    assert!(both.told.contains("`--from` reruns step `z`, and `--treat-as done` keeps it"), "{}", both.told);
    assert!(both.told.contains("`waypost resume r --treat-as done=z` keeps the step"), "{}", both.told);
    let again = Both::of(&rig, &["--from", "z", "--treat-as", "retry=z"]);
    assert_eq!((again.dry, again.real), (Some(0), Some(0)), "{}", again.told);
}

// Bug: with an added `idempotent: false`, the dry run of `--rerun-changed --treat-as done=G/S` settled a step that the resume
// refuses to settle, exit 2. Cause: the resume records answers in the definition in force first, the dry run did not. Fix: the
// dry run takes the path of the resume.
#[test]
fn an_answer_before_a_changed_file_is_the_same_in_a_dry_run() {
    let flow = |a: &str, s: &str| {
        format!(
            "steps:\n  - {{id: a, run: {a}}}\n  - {{id: g, steps: [{{id: s{s}, run: 'touch hangs; test -e go || sleep 100'}}]}}\n"
        )
    };
    for answer in ["done", "done=g/s", "retry=g/s"] {
        let rig = killed(&flow("echo", ""));
        rig.write("flow.yaml", &flow("echo other", ", idempotent: false"));

        let both = Both::of(&rig, &["--rerun-changed", "--treat-as", answer]);

        assert_eq!((both.dry, both.real), (Some(2), Some(2)), "{answer} {}", both.told);
    }
}

// Bug: a dry run of `--from z` asked about `z`, and the resume ran the step. Cause: questions of the records were kept. Fix: a
// question is one of the dry run itself.
#[test]
fn a_dry_run_from_a_step_in_doubt_reruns_it() {
    let rig = in_doubt();

    let both = Both::of(&rig, &["--from", "z"]);

    assert_eq!(both.action("main/z"), Some("rerun"), "{}", both.told);
    assert_eq!(both.real, Some(0));
}

// Bug: amid items, a group or hooks, a dry run with a request said `wait` and `reuse`, and the resume reran the steps. Cause: a
// waiting opener kept its decision. Fix: an opener that opens its children again does not wait.
#[test]
fn a_dry_run_amid_children_reruns_them() {
    const HANGS: &str = "id: l, run: 'sh do; touch hangs; test -e go || sleep 100'";
    for (opener, child) in [
        (
            format!("id: o, foreach: {{items: [x], steps: [{{id: k, run: exec sh do}}, {{{HANGS}}}]}}"),
            "o:x/k",
        ),
        (format!("id: o, steps: [{{id: k, run: exec sh do}}, {{{HANGS}}}]"), "o~1/k"),
        (format!("id: o, run: exec sh do, on_success: [{{id: k, run: exec sh do}}, {{{HANGS}}}]"), "main/o"),
    ] {
        for args in [&["--from", "o"][..], &["--from", "a"], &["--restart"]] {
            let rig = killed(&format!(
                "steps: [{{id: a, run: exec sh do}}, {{{opener}}}, {{id: e, run: exec sh do}}]\n"
            ));

            let both = Both::of(&rig, args);

            assert_eq!(both.action("main/o"), Some("rerun"), "{args:?} {}", both.told);
            assert_eq!(both.action(child), Some("rerun"), "{args:?} {}", both.told);
            assert!(both.executed.contains(child), "{args:?} {}", both.told);
        }
    }
}

// Bug: a dry run with `--keep-finished` said `reuse` for a failed `foreach` whose failed item is retried. Cause: the note about a
// kept result counted as a settled step. Fix: a kept result is as recorded.
#[test]
fn a_dry_run_retries_the_failed_items_of_a_kept_step() {
    let flow = |word: &str| {
        format!(
            "steps: [{{id: each, foreach: {{items: [x, y], steps: [{{id: k, run: '{word} $I; sh do; test -e ok || test $I = x', env: {{I: \"${{{{ item }}}}\"}}}}]}}}}]\n"
        )
    };
    let rig = Rig::with(&flow("echo"));
    rig.write("do", DO);
    assert_eq!(run(&rig), Some(1));
    rig.write("flow.yaml", &flow("builtin echo"));
    rig.write("ok", "");

    let both = Both::of(&rig, &["--keep-finished"]);

    assert_eq!(
        both.planned,
        [("main/each", "retry"), ("each:y/k", "retry")]
            .map(|(step, action)| (step.to_owned(), action.to_owned()))
    );
    assert_eq!(both.real, Some(0));
}

// Bug: `--from a --only --dry-run` promised a rerun of all steps downstream.
#[test]
fn a_dry_run_of_one_step_names_no_steps_downstream() {
    let rig = Rig::with("steps: [{id: a, run: 'true'}, {id: b, run: 'true'}]\n");
    assert_eq!(run(&rig), Some(0));

    let said = rig.waypost(&["resume", "r", "--from", "a", "--only", "--dry-run"]);

    assert!(said.contains("\nStep a would rerun.\n"), "{said}");
    assert!(!said.contains("downstream"), "{said}");
}
