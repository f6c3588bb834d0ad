//! Graphs of Rust functions: their ways, branches, waits, and what is left of them after a crash.

use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use waypost::engine::{Engine, Outcome, RunError};
use waypost::graph::{BranchEnd, Branches, ItemEnds};
use waypost::memory::MemoryStore;
use waypost::record::{FailureKind, Phase, RunStatus};
use waypost::store::{Scan, Store as _};
use waypost::{Context, END, Graph, GraphError, Retry, RunId, StepError};

/// What steps say that they did, and a place to stop at.
#[derive(Debug, Clone, Default)]
struct Trace {
    said: Arc<Mutex<Vec<String>>>,
    hangs: Arc<Mutex<Vec<String>>>,
}

impl Trace {
    fn say(&self, text: &str) {
        self.said.lock().unwrap().push(text.to_owned());
    }

    fn text(&self) -> String {
        self.said.lock().unwrap().join(" ")
    }

    fn clear(&self) {
        self.said.lock().unwrap().clear();
    }

    /// Lets whoever passes there hang for ever, until it is let go.
    fn hang_at(&self, text: &str) {
        self.hangs.lock().unwrap().push(text.to_owned());
    }

    fn let_go(&self) {
        self.hangs.lock().unwrap().clear();
    }

    async fn pass(&self, text: &str) {
        self.say(text);
        if self.hangs.lock().unwrap().iter().any(|hang| hang == text) {
            pending::<()>().await;
        }
    }
}

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Notes {
    done: Vec<String>,
    count: u32,
}

impl Notes {
    fn and(mut self, text: &str) -> Self {
        self.done.push(text.to_owned());
        self
    }
}

/// A step that notes its own name.
fn note(
    trace: &Trace,
) -> impl Fn(Notes, Context) -> futures_util::future::BoxFuture<'static, Result<Notes, StepError>> + use<> {
    let trace = trace.clone();
    move |state, context| {
        let trace = trace.clone();
        Box::pin(async move {
            let name = context.step().to_string();
            trace.pass(&name).await;
            Ok(state.and(&name))
        })
    }
}

struct Rig {
    store: Arc<MemoryStore>,
    engine: Engine,
    trace: Trace,
}

impl Rig {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        Self { engine: Engine::new(store.clone()), store, trace: Trace::default() }
    }

    /// Runs until somebody hangs, and then crashes.
    async fn crash_at(&self, session: impl Future<Output = Result<Outcome<Notes>, RunError>>, at: &str) {
        self.trace.hang_at(at);
        let hanging = async {
            while !self.trace.said.lock().unwrap().iter().any(|said| said == at) {
                tokio::task::yield_now().await;
            }
            // What was to be committed by others is.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            outcome = session => panic!("it ended by itself: {outcome:?}"),
            () = hanging => {}
        }
        self.trace.let_go();
        self.store.drop_holder(&run_id());
    }

    /// The records of the run, one a line: `branch@seq phase step`.
    async fn records(&self) -> String {
        let found = self.store.scan(&Scan::of(&run_id())).await.unwrap();
        let line = |record: &waypost::record::Record| {
            let header = record.header();
            let step = header.step.as_ref().map(|step| format!(" {step}")).unwrap_or_default();
            let started: Vec<_> = header.started.iter().map(|start| start.step.to_string()).collect();
            let started =
                if started.is_empty() { String::new() } else { format!(" -> {}", started.join(" ")) };
            let iteration = header.at.iteration.iter().map(|i| format!(" i{i}")).collect::<String>();
            format!("{}@{} {}{step}{iteration}{started}", header.branch, header.seq, header.phase.name())
        };
        found.records.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

fn run_id() -> RunId {
    RunId::new("r").unwrap()
}

fn line(trace: &Trace) -> Graph<Notes> {
    Graph::builder("line")
        .step("a", note(trace))
        .step("b", note(trace))
        .step("c", note(trace))
        .edge("a", "b")
        .edge("b", "c")
        .build()
        .unwrap()
}

#[tokio::test]
async fn steps_follow_their_edges_and_hand_on_the_state() {
    let rig = Rig::new();

    let outcome = rig.engine.run(&line(&rig.trace), "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
    assert_eq!(
        rig.records().await,
        "main@1 started a -> a\nmain@2 completed a -> b\nmain@3 completed b -> c\nmain@4 completed c"
    );
}

#[tokio::test]
async fn a_crash_in_b_resumes_with_b_and_c_however_often() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "b").await;
    rig.trace.clear();
    rig.crash_at(rig.engine.resume(&graph, "r").into_future(), "b").await;
    assert_eq!(rig.trace.text(), "b");
    rig.trace.clear();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(rig.trace.text(), "b c");
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_loop_goes_round_until_its_route_leads_out_and_counts_its_passes() {
    let rig = Rig::new();
    let graph = Graph::builder("loop")
        .step("a", |state: Notes, context: Context| async move {
            Ok::<_, StepError>(state.and(&format!("a{}", context.iteration()[0])))
        })
        .step("b", |mut state: Notes, _| async move {
            state.count += 1;
            Ok::<_, StepError>(state)
        })
        .edge("a", "b")
        .route("b", ["a", END], |state| if state.count < 3 { "a" } else { END })
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.state.done, ["a1", "a2", "a3"]);
    let completed: Vec<_> =
        rig.records().await.lines().filter(|line| line.contains("completed a")).map(str::to_owned).collect();
    assert_eq!(completed.len(), 3, "each pass has its own record: {completed:?}");
}

#[tokio::test]
async fn the_step_limit_counts_across_crashes() {
    let rig = Rig::new();
    let graph = Graph::builder("endless")
        .step("a", note(&rig.trace))
        .route("a", ["a", END], |_: &Notes| "a")
        .build()
        .unwrap();
    let run = rig.engine.run(&graph, "r", Notes::default()).step_limit(5);
    let outcome = run.await.unwrap();
    assert_eq!(outcome.status, RunStatus::Failed);
    assert_eq!(outcome.failed.as_ref().unwrap().1.kind, FailureKind::Limit);

    let again = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(again.status, RunStatus::Failed, "the limit is kept with the run");
    assert_eq!(rig.trace.text(), "a a a a a");
    let more = rig.engine.resume(&graph, "r").step_limit(7).await.unwrap();
    assert_eq!(more.state.done.len(), 7);
}

fn fork(trace: &Trace, collect: bool) -> Graph<Notes> {
    let join_trace = trace.clone();
    let builder = Graph::builder("fork")
        .step("plan", note(trace))
        .step("a", note(trace))
        .step("a2", note(trace))
        .step("b", note(trace))
        .edge("a", "a2");
    let fork = builder.fork("plan", ["a", "b"]);
    let fork = if collect { fork.collect() } else { fork };
    fork.join("merge", move |mut state: Notes, branches: Branches<Notes>, _| {
        let trace = join_trace.clone();
        async move {
            trace.say("merge");
            for BranchEnd { key, result } in branches {
                match result {
                    Ok(branch) => state.done.push(format!("{key}={}", branch.done.join("+"))),
                    Err(failure) => state.done.push(format!("{key}!{}", failure.error[0])),
                }
            }
            Ok::<_, StepError>(state)
        }
    })
    .step("after", note(trace))
    .edge("merge", "after")
    .build()
    .unwrap()
}

#[tokio::test]
async fn a_fork_runs_its_branches_and_the_join_sees_each_under_the_state_before() {
    let rig = Rig::new();

    let outcome = rig.engine.run(&fork(&rig.trace, false), "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(outcome.state.done, ["plan", "a=plan+a+a2", "b=plan+b", "after"]);
    insta::assert_snapshot!(rig.records().await);
}

#[tokio::test]
async fn after_a_crash_in_a_fork_only_unfinished_branches_run() {
    let rig = Rig::new();
    let graph = fork(&rig.trace, false);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "a2").await;
    assert_eq!(rig.trace.text(), "plan a b a2");
    rig.trace.clear();
    rig.crash_at(rig.engine.resume(&graph, "r").into_future(), "a2").await;
    rig.trace.clear();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(rig.trace.text(), "a2 merge after");
    assert_eq!(outcome.state.done, ["plan", "a=plan+a+a2", "b=plan+b", "after"]);
}

/// A fork whose branch `a` fails in its second step as long as `broken` says so, and whose `b` never ends by itself.
fn failing_fork(trace: &Trace, broken: &Arc<Mutex<bool>>, collect: bool) -> Graph<Notes> {
    let (fails, hangs, joins) = (trace.clone(), trace.clone(), trace.clone());
    let (broken, is_broken) = (Arc::clone(broken), Arc::clone(broken));
    let builder = Graph::builder("fork")
        .step("plan", note(trace))
        .step("a", move |state: Notes, _| {
            let (trace, broken) = (fails.clone(), *broken.lock().unwrap());
            async move {
                trace.say("a");
                if broken { Err(io::Error::other("a is broken")) } else { Ok(state.and("a")) }
            }
        })
        .step("b", move |state: Notes, _| {
            let (trace, hang) = (hangs.clone(), *is_broken.lock().unwrap() && !collect);
            async move {
                trace.say("b");
                if hang {
                    pending::<()>().await;
                }
                Ok::<_, StepError>(state.and("b"))
            }
        });
    let fork = builder.fork("plan", ["a", "b"]);
    let fork = if collect { fork.collect() } else { fork };
    fork.join("merge", move |mut state: Notes, branches: Branches<Notes>, _| {
        joins.say("merge");
        for branch in branches {
            let told =
                branch.result.map_or_else(|failure| failure.error.join(": "), |state| state.done.join("+"));
            state.done.push(format!("{}={told}", branch.key));
        }
        async move { Ok::<_, StepError>(state) }
    })
    .build()
    .unwrap()
}

#[tokio::test]
async fn a_failed_branch_cancels_its_siblings_and_a_resume_takes_up_both() {
    let rig = Rig::new();
    let broken = Arc::new(Mutex::new(true));
    let graph = failing_fork(&rig.trace, &broken, false);

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
    assert_eq!(outcome.failed.as_ref().unwrap().1.error, ["a is broken"]);
    insta::assert_snapshot!(rig.records().await);
    *broken.lock().unwrap() = false;
    rig.trace.clear();
    let outcome = rig.engine.resume(&graph, "r").await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(rig.trace.text(), "a b merge");
    assert_eq!(outcome.state.done, ["plan", "a=plan+a", "b=plan+b"]);
}

#[tokio::test]
async fn a_collecting_fork_goes_on_and_the_join_sees_the_error() {
    let rig = Rig::new();
    let broken = Arc::new(Mutex::new(true));
    let graph = failing_fork(&rig.trace, &broken, true);

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
    assert_eq!(outcome.state.done, ["plan", "a=a is broken", "b=plan+b"]);
}

fn each(trace: &Trace, count: u32, parallel: usize) -> Graph<Notes> {
    let work = trace.clone();
    Graph::builder("each")
        .each(
            "square",
            move |_: &Notes| (0..count).collect(),
            |n: &u32| format!("n{n}"),
            move |n: u32, _| {
                let trace = work.clone();
                async move {
                    trace.pass(&format!("n{n}")).await;
                    if n == 13 { Err(io::Error::other("unlucky")) } else { Ok(n % 7) }
                }
            },
        )
        .max_parallel(parallel)
        .collect()
        .join(|mut state: Notes, mut ends: ItemEnds<u32, u32>, _| async move {
            while let Some(end) = ends.next().await? {
                state.count += end.result.as_ref().copied().unwrap_or(0);
                state.done.push(end.key);
            }
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap()
}

#[tokio::test]
async fn each_item_has_a_branch_and_the_join_reads_them_in_order() {
    let rig = Rig::new();

    let outcome = rig.engine.run(&each(&rig.trace, 20, 3), "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
    assert_eq!(outcome.state.count, (0..20).map(|n| n % 7).sum::<u32>() - 13 % 7);
    assert_eq!(outcome.state.done, (0..20).map(|n| format!("n{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn after_a_crash_no_finished_item_is_worked_on_again() {
    let rig = Rig::new();
    let graph = each(&rig.trace, 2_500, 4);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "n1500").await;
    let before = rig.trace.said.lock().unwrap().clone();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.state.done.len(), 2_500);
    let all = rig.trace.said.lock().unwrap().clone();
    let again: Vec<_> = all[before.len()..].iter().filter(|said| before.contains(said)).collect();
    assert!(again.len() <= 4 && again.contains(&&"n1500".to_owned()), "only what was cut: {again:?}");
    assert_eq!(all.len() - again.len(), 2_500, "nothing is left out");
}

#[tokio::test]
async fn no_items_join_at_once() {
    let rig = Rig::new();

    let outcome = rig.engine.run(&each(&rig.trace, 0, 3), "r", Notes::default()).await.unwrap();

    assert_eq!((outcome.status, outcome.state.count), (RunStatus::Completed, 0));
}

#[tokio::test]
async fn two_items_of_one_key_are_refused_before_any_work() {
    let rig = Rig::new();
    let graph = Graph::builder("twice")
        .each(
            "e",
            |_: &Notes| vec![1, 2],
            |_| "same".to_owned(),
            |n: u32, _| async move { Ok::<_, StepError>(n) },
        )
        .join(|state: Notes, _: ItemEnds<u32, u32>, _| async move { Ok::<_, StepError>(state) })
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
    assert!(outcome.failed.unwrap().1.error[0].contains("`same`"));
}

#[tokio::test]
async fn interrupts_before_and_after_hold_the_run_once_each() {
    let rig = Rig::new();
    let graph = line(&rig.trace);

    let run = rig.engine.run(&graph, "r", Notes::default()).interrupt_before(["b"]).interrupt_after(["b"]);
    let first = run.await.unwrap();
    let after_first = rig.trace.text();
    let second = rig.engine.resume(&graph, "r").await.unwrap();
    let after_second = rig.trace.text();
    let third = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!((first.status, after_first.as_str()), (RunStatus::Interrupted, "a"));
    assert_eq!((second.status, after_second.as_str()), (RunStatus::Interrupted, "a b"));
    assert_eq!((third.status, rig.trace.text().as_str()), (RunStatus::Completed, "a b c"));
}

#[tokio::test]
async fn a_hold_after_the_last_step_is_a_hold() {
    let rig = Rig::new();
    let graph = line(&rig.trace);

    let first = rig.engine.run(&graph, "r", Notes::default()).interrupt_after(["c"]).await.unwrap();
    let second = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(first.status, RunStatus::Interrupted);
    assert_eq!(second.status, RunStatus::Completed);
    assert_eq!(rig.trace.text(), "a b c");
    assert_eq!(second.state.done, ["a", "b", "c"]);
}

#[tokio::test]
async fn questions_of_several_branches_have_their_own_answers() {
    let rig = Rig::new();
    let ask = |state: Notes, context: Context| async move {
        let answer: String = context.interrupt("ok", json!({ "may": context.step() })).await?;
        Ok::<_, StepError>(state.and(&answer))
    };
    let graph = Graph::builder("ask")
        .step("plan", note(&rig.trace))
        .step("a", ask)
        .step("b", ask)
        .fork("plan", ["a", "b"])
        .join("merge", |mut state: Notes, branches: Branches<Notes>, _| async move {
            state.done = branches.iter().map(|b| b.result.as_ref().unwrap().done.join("+")).collect();
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Waiting);
    let waiting = outcome.waiting;
    assert_eq!(waiting.iter().map(|w| w.branch.to_string()).collect::<Vec<_>>(), ["plan:a", "plan:b"]);
    assert_ne!(waiting[0].wait.id, waiting[1].wait.id);
    assert_eq!(waiting[1].wait.question, Some(json!({ "may": "b" })));
    rig.engine.answer("r", &waiting[1].wait.id, json!("no")).await.unwrap();
    let half = rig.engine.resume(&graph, "r").await.unwrap();
    assert_eq!(half.status, RunStatus::Waiting);
    assert_eq!(half.waiting.len(), 1);
    rig.engine.answer("r", &waiting[0].wait.id, json!("yes")).await.unwrap();
    let end = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(end.status, RunStatus::Completed);
    assert_eq!(end.state.done, ["plan+yes", "plan+no"]);
    assert!(matches!(
        rig.engine.answer("r", &waiting[0].wait.id, json!("again")).await,
        Err(RunError::Answered { .. })
    ));
    assert!(matches!(rig.engine.answer("r", "nobody", json!(1)).await, Err(RunError::NoSuchWait { .. })));
}

#[tokio::test]
async fn what_was_done_once_is_not_done_again_after_a_crash() {
    let rig = Rig::new();
    let trace = rig.trace.clone();
    let graph = Graph::builder("once")
        .step("a", move |state: Notes, context: Context| {
            let trace = trace.clone();
            async move {
                let work = async {
                    trace.say("paid");
                    Ok::<_, StepError>(42)
                };
                let value: u32 = context.once("pay", work).await?;
                trace.pass("after").await;
                Ok::<_, StepError>(state.and(&value.to_string()))
            }
        })
        .build()
        .unwrap();
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "after").await;

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.state.done, ["42"]);
    assert_eq!(rig.trace.text(), "paid after after");
}

#[tokio::test]
async fn a_signal_left_before_or_after_is_taken_once() {
    let rig = Rig::new();
    let graph = Graph::builder("signal")
        .step("a", |state: Notes, context: Context| async move {
            let value: String = context.signal("go", "go").await?;
            Ok::<_, StepError>(state.and(&value))
        })
        .build()
        .unwrap();
    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Waiting);

    rig.engine.signal("r", "go", json!("now")).await.unwrap();
    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!((outcome.status, outcome.state.done), (RunStatus::Completed, vec!["now".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_failing_step_is_tried_again_and_a_fatal_error_is_not() {
    let rig = Rig::new();
    let trace = rig.trace.clone();
    let graph = Graph::builder("retry")
        .step("a", move |state: Notes, context: Context| {
            trace.say("a");
            async move {
                match context.attempt() {
                    1 | 2 => Err(StepError::from(io::Error::other("busy"))),
                    _ => Ok(state.and("a")),
                }
            }
        })
        .retry(Retry::exponential(3))
        .step("b", |_: Notes, _| async move { Err::<Notes, _>(StepError::fatal("broken for good")) })
        .retry(Retry::exponential(3))
        .edge("a", "b")
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!(rig.trace.text(), "a a a");
    let (step, failure) = outcome.failed.unwrap();
    assert_eq!((step.as_str(), failure.kind), ("b", FailureKind::Fatal));
    assert_eq!(failure.error, ["broken for good"]);
}

#[tokio::test]
async fn a_step_that_takes_too_long_or_panics_fails_with_its_reason() {
    let rig = Rig::new();
    let slow = Graph::builder("slow")
        .step("a", |state: Notes, _| async move {
            pending::<()>().await;
            Ok::<_, StepError>(state)
        })
        .timeout(Duration::from_millis(5))
        .build()
        .unwrap();
    let panics = Graph::builder("panics")
        .step("a", |state: Notes, _| async move {
            assert!(state.done.len() > 7, "too few");
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap();

    let timeout = rig.engine.run(&slow, "r", Notes::default()).await.unwrap().failed.unwrap().1;
    let panic = rig.engine.run(&panics, "p", Notes::default()).await.unwrap().failed.unwrap().1;

    assert_eq!((timeout.kind, timeout.error[0].as_str()), (FailureKind::Timeout, "it took longer than 5ms"));
    assert_eq!(panic.error, ["the step panicked: too few"]);
}

#[tokio::test]
async fn a_graph_inside_a_graph_has_a_state_of_its_own() {
    let rig = Rig::new();
    let inner = Graph::<u32>::builder("inner")
        .step("double", |n: u32, _| async move { Ok::<_, StepError>(n * 2) })
        .build()
        .unwrap();
    let graph = Graph::builder("outer")
        .step("a", note(&rig.trace))
        .subgraph("sub", &inner, |_: &Notes| 21, |state, n| state.count = n)
        .edge("a", "sub")
        .build()
        .unwrap();

    let outcome = rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    assert_eq!((outcome.state.count, outcome.status), (42, RunStatus::Completed));
}

fn problem(builder: waypost::graph::Builder<Notes>) -> String {
    builder.build().unwrap_err().to_string()
}

#[test]
fn a_graph_that_cannot_be_is_refused_by_the_names_of_steps_and_edges() {
    let trace = Trace::default();
    let two = || Graph::builder("g").step("a", note(&trace)).step("b", note(&trace));

    assert_eq!(Graph::<Notes>::builder("g").build().unwrap_err(), GraphError::Empty);
    insta::assert_snapshot!(
        [
            problem(two().edge("a", "c")),
            problem(two().edge("c", "a")),
            problem(two()),
            problem(two().edge("a", "b").edge("a", "b")),
            problem(two().edge("a", "b").route("b", ["a"], |_| "a")),
            problem(two().step("a", note(&trace))),
            problem(two().step("end", note(&trace))),
            problem(two().step("../x", note(&trace))),
            problem(two().route("a", Vec::<String>::new(), |_| "a")),
            problem(Graph::builder("g").retry(Retry::exponential(1)).step("a", note(&trace))),
            problem(
                two()
                    .edge("a", "b")
                    .fork("a", ["b"])
                    .join("m", |s: Notes, _, _| async { Ok::<_, StepError>(s) })
            ),
            problem(
                two()
                    .step("c", note(&trace))
                    .edge("b", "c")
                    .edge("c", "m")
                    .fork("a", ["b", "c"])
                    .join("m", |s: Notes, _, _| async { Ok::<_, StepError>(s) })
                    .step("d", note(&trace))
                    .edge("m", "c")
            ),
        ]
        .join("\n")
    );
}

#[test]
fn a_graph_is_drawn() {
    let trace = Trace::default();
    let graph = fork(&trace, false);

    insta::assert_snapshot!(graph.mermaid() + "\n" + &graph.dot());
}

#[tokio::test]
async fn progress_records_carry_what_was_said() {
    let rig = Rig::new();
    let graph = Graph::builder("said")
        .step("a", |state: Notes, context: Context| async move {
            context.emit("found", json!({ "n": 1 }));
            context.checkpoint().await?;
            context.report("## Found");
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap();

    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    let records = rig.store.scan(&Scan::of(&run_id())).await.unwrap().records;
    let notes: Vec<usize> = records.iter().map(|record| record.header().notes.len()).collect();
    assert_eq!(notes, [0, 1, 1]);
    assert!(matches!(records[1].header().phase, Phase::Progress { .. }));
}

#[tokio::test]
async fn a_resume_from_a_step_runs_it_again_with_the_state_of_then() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    rig.trace.clear();

    let outcome = rig
        .engine
        .resume(&graph, "r")
        .from_step("b")
        .edit_state(|state| state.done.push("fixed".to_owned()))
        .validate_state(|state| if state.done.len() == 2 { Ok(()) } else { Err("not then".to_owned()) })
        .await
        .unwrap();

    assert_eq!(rig.trace.text(), "b c");
    assert_eq!(outcome.state.done, ["a", "fixed", "b", "c"]);
    let unknown = rig.engine.resume(&graph, "r").from_step("nope").await.unwrap_err();
    assert_eq!(unknown.to_string(), "the graph has no step `nope`");
    let rejected = rig.engine.resume(&graph, "r").from_step("b").validate_state(|_| Err("no".to_owned()));
    assert!(matches!(rejected.await.unwrap_err(), RunError::Rejected { .. }));
}

#[tokio::test]
async fn a_rollback_appends_and_what_was_after_it_stays_visible() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    let back = rig.engine.resume(&graph, "r").from_checkpoint(2).without_running().await.unwrap();
    assert_eq!((back.status, back.state.done.as_slice()), (RunStatus::Interrupted, &["a".to_owned()][..]));
    rig.trace.clear();
    rig.crash_at(rig.engine.resume(&graph, "r").into_future(), "c").await;
    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(rig.trace.text(), "b c c");
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
    insta::assert_snapshot!(rig.records().await);
}

#[tokio::test]
async fn a_fork_in_time_is_a_run_of_its_own() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    rig.trace.clear();
    let from = "r@2".parse().unwrap();

    let forked = rig.engine.fork(&graph, &from, "r2").edit_state(|state| state.count = 7).await.unwrap();
    rig.store.delete(&run_id()).await.unwrap();
    let again = rig.engine.resume(&graph, "r2").await.unwrap();

    assert_eq!(rig.trace.text(), "b c");
    assert_eq!((forked.state.done.len(), forked.state.count), (3, 7));
    assert!(again.idle);
    let parent = rig.store.run(&RunId::new("r2").unwrap()).await.unwrap().record.record().parent.clone();
    assert_eq!(parent.unwrap().seq, 2);
}

#[tokio::test]
async fn a_checkpoint_shows_its_state() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();

    let then = rig.engine.inspect(&graph, &"r@3".parse().unwrap()).await.unwrap();

    assert_eq!(then.state.done, ["a", "b"]);
    assert_eq!(then.position.frontier[0].step.as_str(), "c");
}

#[tokio::test]
async fn a_changed_graph_is_told_step_by_step_and_adopted_only_on_request() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "b").await;
    let changed = Graph::builder("line")
        .step("a", note(&rig.trace))
        .step("b", note(&rig.trace))
        .revision(2)
        .step("d", note(&rig.trace))
        .edge("a", "b")
        .edge("b", "d")
        .build()
        .unwrap();

    let refused = rig.engine.resume(&changed, "r").await.unwrap_err();
    rig.trace.clear();
    let adopted = rig.engine.resume(&changed, "r").on_change(waypost::engine::OnChange::Adopt).await.unwrap();

    assert_eq!(
        refused.to_string(),
        "the definition does not fit run r: step `b` now leads to `d`, and led to `c`, step `d` is new, step `c` is gone, and nobody said to go on with that"
    );
    assert_eq!((adopted.status, rig.trace.text().as_str()), (RunStatus::Completed, "b d"));
}

#[tokio::test]
async fn a_stream_tells_events_and_then_the_end() {
    use futures_util::StreamExt as _;
    let rig = Rig::new();
    let graph = line(&rig.trace);

    let mut stream = rig.engine.run(&graph, "r", Notes::default()).stream();
    let (mut events, mut ended) = (0, false);
    while let Some(update) = stream.next().await {
        match update.unwrap() {
            waypost::graph::Update::Event(_) => events += 1,
            waypost::graph::Update::Ended(outcome) => ended = outcome.status == RunStatus::Completed,
        }
    }

    assert!(events > 6 && ended);
}

#[tokio::test]
async fn configuration_is_merged_deep_and_stays() {
    let rig = Rig::new();
    let graph = Graph::builder("config")
        .step("a", |state: Notes, context: Context| async move {
            Ok::<_, StepError>(state.and(&serde_json::to_string(context.config()).unwrap()))
        })
        .build()
        .unwrap();
    let map = |value: serde_json::Value| value.as_object().unwrap().clone();
    let run = rig.engine.run(&graph, "r", Notes::default()).config(map(json!({"m": {"a": 1, "b": 2}})));
    run.interrupt_before(["a"]).await.unwrap();
    let held = rig.engine.resume(&graph, "r").config(map(json!({"m": {"b": 3}, "n": 4}))).without_running();
    held.await.unwrap();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(outcome.state.done, [r#"{"m":{"a":1,"b":3},"n":4}"#]);
}

#[tokio::test]
async fn a_run_starts_from_a_file_and_a_file_of_another_graph_is_refused() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    rig.engine.run(&graph, "r", Notes::default()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.json");
    let exported =
        waypost::portable::Portable::of(rig.store.as_ref(), &"r@2".parse().unwrap()).await.unwrap();
    exported.save(&file, waypost::portable::SaveMode::New).unwrap();
    let elsewhere = Rig::new();
    let loaded = waypost::portable::Portable::load(&file).unwrap();
    rig.trace.clear();

    let outcome = elsewhere.engine.import(&graph, &loaded, "r").await.unwrap();
    let other = fork(&rig.trace, false);
    let refused = elsewhere.engine.import(&other, &loaded, "x").await.unwrap_err();

    assert_eq!((outcome.status, rig.trace.text().as_str()), (RunStatus::Completed, "b c"));
    assert!(matches!(refused, RunError::Changed { .. }), "{refused}");
}

#[tokio::test]
async fn a_state_that_json_would_change_is_refused_by_its_field_before_anything_is_lost() {
    #[derive(Debug, Clone, Serialize, Deserialize)]
    struct Price {
        items: Vec<f64>,
    }
    let rig = Rig::new();
    let graph = Graph::builder("nan")
        .step("a", |mut state: Price, _| async move {
            state.items.push(1.0);
            Ok::<_, StepError>(state)
        })
        .step("b", |mut state: Price, _| async move {
            state.items.push(f64::NAN);
            Ok::<_, StepError>(state)
        })
        .edge("a", "b")
        .build()
        .unwrap();

    let error = rig.engine.run(&graph, "r", Price { items: Vec::new() }).await.unwrap_err();

    let chain = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(chain.contains("items[1]"), "{chain}");
    let kept = rig.engine.inspect(&graph, &"r@2".parse().unwrap()).await.unwrap();
    assert_eq!(kept.state.items, [1.0]);
}

#[tokio::test]
async fn an_old_state_is_brought_up_to_date_and_a_newer_one_refused() {
    use waypost::schema::Migrations;
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Old {
        name: String,
    }
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct New {
        name: String,
        tries: u32,
    }
    let rig = Rig::new();
    let old = Graph::builder("g")
        .step("a", |state: Old, _| async move { Ok::<_, StepError>(state) })
        .step("b", |state: Old, _| async move { Ok::<_, StepError>(state) })
        .edge("a", "b")
        .build()
        .unwrap();
    let migrations = Migrations::builder().add(0, |state| {
        state["tries"] = json!(7);
        Ok(())
    });
    let new = Graph::builder("g")
        .step("a", |state: New, _| async move { Ok::<_, StepError>(state) })
        .step("b", |state: New, _| async move { Ok::<_, StepError>(state) })
        .edge("a", "b")
        .migrations(migrations.build().unwrap())
        .build()
        .unwrap();
    let state = Old { name: "x".to_owned() };
    rig.engine.run(&old, "r", state).interrupt_before(["b"]).await.unwrap();

    let outcome = rig.engine.resume(&new, "r").await.unwrap();
    let back = rig.engine.resume(&old, "r").from_step("b").await.unwrap_err();

    assert_eq!(outcome.state, New { name: "x".to_owned(), tries: 7 });
    assert_eq!(rig.engine.inspect(&old, &"r@2".parse().unwrap()).await.unwrap().state.name, "x");
    assert!(matches!(back, RunError::Version { found: 1, supported: 0, .. }), "{back:?}");
}

#[test]
fn a_made_id_is_always_a_run_id() {
    for name in ["nightly report", "../x", "--", "", "grün", "a..b", &"x".repeat(500), "1 %&/ 2"] {
        let id = RunId::random(name);
        assert!(RunId::new(id.as_str()).is_ok(), "{name}: {id}");
    }
    assert!(RunId::random("nightly report!").as_str().starts_with("nightly-report-"));
}

#[tokio::test]
async fn a_program_that_is_simply_started_again_goes_on() {
    let rig = Rig::new();
    let graph = line(&rig.trace);
    let start = || rig.engine.run(&graph, "r", Notes::default()).or_resume();
    rig.crash_at(start().into_future(), "b").await;
    rig.trace.clear();

    let outcome = start().await.unwrap();
    let again = start().await.unwrap();

    assert_eq!(rig.trace.text(), "b c");
    assert_eq!(outcome.state.done, ["a", "b", "c"]);
    assert!(again.idle);
}

#[tokio::test]
async fn a_fan_out_begun_again_works_on_every_item_anew_and_repeats_none_after_a_crash() {
    // Given a fan-out of two pages that crashed in its second one, was begun again from before it, and crashed again.
    let rig = Rig::new();
    let graph = each(&rig.trace, 1_500, 4);
    rig.crash_at(rig.engine.run(&graph, "r", Notes::default()).into_future(), "n1005").await;
    rig.trace.clear();
    let back = rig.engine.resume(&graph, "r").from_checkpoint(1);
    rig.crash_at(back.into_future(), "n3").await;
    let before = rig.trace.said.lock().unwrap().clone();

    let outcome = rig.engine.resume(&graph, "r").await.unwrap();

    let all = rig.trace.said.lock().unwrap().clone();
    let again = all[before.len()..].iter().filter(|said| before.contains(said)).count();
    assert_eq!(outcome.state.done.len(), 1_500);
    assert!(again <= 4, "only what was cut: {again}");
    assert_eq!(all.len() - again, 1_500, "each item is worked on in the new pass");
}
