//! Graphs of Rust functions: routes, branches, waits, and their records after a crash.

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

mod failures;
mod forks;
mod invalid_graphs;
mod rollback_fork;
mod states;
mod waits;

/// The log of the steps, and the points to hang at.
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

    /// Makes the step with this text hang until its release.
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

/// Returns a step that notes its own name.
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

    /// Runs until a step hangs at `at`, then crashes.
    async fn crash_at(&self, session: impl Future<Output = Result<Outcome<Notes>, RunError>>, at: &str) {
        self.trace.hang_at(at);
        let hanging = async {
            while !self.trace.said.lock().unwrap().iter().any(|said| said == at) {
                tokio::task::yield_now().await;
            }
            // Lets concurrent steps commit first.
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

    /// Returns the records of the run, one per line: `scope@seq phase step`.
    async fn records(&self) -> String {
        let found = self.store.scan(&Scan::of(&run_id())).await.unwrap();
        let line = |record: &waypost::record::Record| {
            let header = record.header();
            let step = header.step.as_ref().map(|step| format!(" {step}")).unwrap_or_default();
            let started: Vec<_> = header.started.iter().map(|start| start.step.to_string()).collect();
            let started =
                if started.is_empty() { String::new() } else { format!(" -> {}", started.join(" ")) };
            let iteration = header.at.iteration.iter().map(|i| format!(" i{i}")).collect::<String>();
            format!("{}@{} {}{step}{iteration}{started}", header.scope, header.seq, header.phase.name())
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
async fn a_loop_counts_passes_until_its_route_leaves() {
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
