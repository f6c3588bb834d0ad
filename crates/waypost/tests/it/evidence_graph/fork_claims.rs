//! Evidence in forks: a failed claim reruns its step from a checkpoint of the source run.

use waypost::engine::Observer;
use waypost::file::FileStore;
use waypost::record::Position;
use waypost::store::{Progress, Store};
use waypost::{CheckpointRef, Portable};

use super::*;

/// Returns each kind of store, with a separate desk.
fn desks() -> [(Desk, Arc<dyn Store>); 2] {
    let (one, other) = (Desk::new(), Desk::new());
    let file = FileStore::open(other.path().join("store")).unwrap().with_retention(None);
    [(one.clone(), one.store.clone()), (other, Arc::new(file))]
}

fn over(desk: &Desk, store: &Arc<dyn Store>) -> Engine {
    Engine::new(store.clone()).with_base(desk.path())
}

fn at(text: &str) -> CheckpointRef {
    text.parse().unwrap()
}

fn run_id(name: &str) -> RunId {
    RunId::new(name).unwrap()
}

/// Returns the newest checkpoint of the main scope.
async fn newest(engine: &Engine, run: &str) -> CheckpointRef {
    engine.history(run).await.unwrap().last().unwrap().at()
}

/// Asserts that the engine refuses to rerun a step that ran in the source run.
async fn refuses(engine: &Engine, graph: &Graph<Work>, run: &str) {
    let refused = engine.resume(graph, run).await.unwrap_err();
    assert!(matches!(refused, RunError::NoState { .. }), "{refused}");
    let why = "it started in the parent run r: resume that run";
    assert!(refused.to_string().contains(why), "{refused}");
}

// The state of a graph is opaque: the fork has no input state for a step that ran in the source run.
#[tokio::test]
async fn work_before_a_fork_reruns_only_in_the_other_run() {
    for (desk, store) in desks() {
        let (engine, graph) = (over(&desk, &store), desk.line());
        engine.run(&graph, "r", Work::default()).await.unwrap();
        engine.fork(&graph, &at("r@2"), "f").await.unwrap();
        desk.said();

        desk.remove("b.txt");
        let outcome = engine.resume(&graph, "f").await.unwrap();
        assert_eq!((outcome.status, desk.said()), (RunStatus::Completed, vec!["b".to_owned()]));

        desk.remove("a.txt");
        refuses(&engine, &graph, "f").await;
        assert!(desk.said().is_empty());
        assert_eq!(engine.resume(&graph, "r").await.unwrap().status, RunStatus::Completed);
        assert_eq!(desk.said(), ["a"]);
        assert!(engine.resume(&graph, "f").await.unwrap().idle, "the file is there again");
    }
}

// Without the source run, the resume names the problem and two remedies. Both remedies work.
#[tokio::test]
async fn without_the_run_that_it_began_from_a_person_has_ways_on() {
    for imported in [false, true] {
        let desk = Desk::new();
        let (engine, graph) = (desk.engine(), desk.line());
        desk.run(&graph).await;
        if imported {
            let portable = Portable::of(desk.store.as_ref(), &at("r@3")).await.unwrap();
            desk.store.delete(&run_id("r")).await.unwrap();
            engine.import(&graph, &portable, "f").await.unwrap();
        } else {
            engine.fork(&graph, &at("r@3"), "f").await.unwrap();
            desk.store.delete(&run_id("r")).await.unwrap();
        }
        desk.said();
        desk.remove("a.txt");

        let refused = engine.resume(&graph, "f").await.unwrap_err();

        assert!(matches!(refused, RunError::NoState { .. }), "{refused}");
        let why = "step `a` must rerun, but it started in the parent run r: resume that run";
        let ways = "fix its evidence and accept it, or start the run over";
        assert_eq!(refused.to_string(), format!("cannot continue from f@1: {why}; {ways}"));
        desk.write("a.txt", "put right by hand");
        assert_eq!(engine.accept(&graph, "f", "a").await.unwrap(), 1);
        assert!(engine.resume(&graph, "f").await.unwrap().idle);
        desk.remove("a.txt");
        let over = engine.resume(&graph, "f").restart(Work::default()).await.unwrap();
        assert_eq!(
            (over.status, desk.said()),
            (RunStatus::Completed, ["a", "b", "c"].map(str::to_owned).to_vec())
        );
    }
}

// A newer run with the same name as the source is not used as the source.
#[tokio::test]
async fn another_run_of_the_same_name_is_not_asked() {
    let desk = Desk::new();
    let (engine, graph) = (desk.engine(), desk.line());
    desk.run(&graph).await;
    engine.fork(&graph, &at("r@3"), "f").await.unwrap();
    desk.store.delete(&run_id("r")).await.unwrap();
    engine.run(&graph, "r", Work { text: "another".to_owned(), ..Work::default() }).await.unwrap();
    desk.remove("a.txt");

    let refused = engine.resume(&graph, "f").await.unwrap_err();

    assert!(matches!(refused, RunError::NoState { .. }), "{refused}");
}

/// Builds `plan`, then the scopes `a` (`a`, `a2`) and `b`, then `merge` and `after`. All steps but `plan` have
/// evidence.
fn fork(desk: &Desk) -> Graph<Work> {
    let join = desk.clone();
    Graph::<Work>::builder("fork")
        .step("plan", desk.notes())
        .step("a", desk.writes("a.txt", "of a"))
        .evidence(|_| Pack::all([Claim::unchanged("a.txt")]))
        .step("a2", desk.writes("a2.txt", "of a2"))
        .evidence(|_| Pack::all([Claim::unchanged("a2.txt")]))
        .edge("a", "a2")
        .step("b", desk.writes("b.txt", "of b"))
        .evidence(|_| Pack::all([Claim::unchanged("b.txt")]))
        .step("after", desk.notes())
        .fork("plan", ["a", "b"])
        .join("merge", move |mut work: Work, ends: Branches<Work>, _: Context| {
            join.say("merge");
            for end in ends {
                work.done.push(format!("{}={}", end.key, end.result.unwrap().done.join("+")));
            }
            async move { Ok::<_, StepError>(work) }
        })
        .edge("merge", "after")
        .build()
        .unwrap()
}

/// Collects warnings.
#[derive(Debug, Default)]
struct Warnings(Mutex<Vec<String>>);

impl Observer for Warnings {
    fn committed(&self, _: &[Record], _: &Position, _: Progress) {}
    fn warned(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

impl Warnings {
    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn left_behind(joins: &str) -> Vec<String> {
    let checked = "the new run does not check it";
    vec![format!("the evidence of the joined scopes of {joins} stays in the parent run: {checked}")]
}

// Bug: a fork at a checkpoint after a join started although a file of a joined scope was missing. Cause: joined
// scopes are not copied, so their evidence was missing. Fix: the fork checks that evidence in the source run.
#[tokio::test]
async fn a_fork_checks_evidence_of_joined_scopes_and_leaves_it() {
    for (desk, store) in desks() {
        let (warnings, graph) = (Arc::new(Warnings::default()), fork(&desk));
        let engine = over(&desk, &store).with_observer(warnings.clone());
        engine.run(&graph, "r", Work::default()).interrupt_before(["after"]).await.unwrap();
        let from = newest(&engine, "r").await;
        desk.remove("a.txt");
        desk.said();

        let refused = engine.fork(&graph, &from, "f").await.unwrap_err();
        let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
        assert_eq!((questions.len(), questions[0].scope.as_str()), (1, "plan:a"), "{refused}");
        assert!(matches!(questions[0].cause, Cause::EvidenceFailed(_)), "{refused}");
        assert!(store.run(&run_id("f")).await.is_err(), "it was not made");
        engine.fork(&graph, &from, "left").without_evidence().await.unwrap();
        assert!(warnings.taken().is_empty(), "a person decided");

        desk.write("a.txt", "of a");
        engine.fork(&graph, &from, "f").await.unwrap();
        assert_eq!(warnings.taken(), left_behind("`merge`"));
        engine.fork(&graph, &newest(&engine, "f").await, "g").await.unwrap();
        assert_eq!(warnings.taken(), left_behind("`merge`"));
        desk.remove("a.txt");
        desk.said();
        for run in ["left", "f", "g"] {
            assert!(engine.resume(&graph, run).await.unwrap().idle, "{run}");
        }
        assert!(desk.said().is_empty());
        engine.resume(&graph, "r").await.unwrap();
        assert_eq!(desk.said()[0], "a", "the source run checks its scopes");
    }
}

// A portable checkpoint has no joined scopes: an import has the same warning.
#[tokio::test]
async fn an_import_warns_of_evidence_that_it_leaves() {
    let (desk, warnings) = (Desk::new(), Arc::new(Warnings::default()));
    let (engine, graph) = (desk.engine().with_observer(warnings.clone()), fork(&desk));
    engine.run(&graph, "r", Work::default()).interrupt_before(["after"]).await.unwrap();
    let portable = Portable::of(desk.store.as_ref(), &newest(&engine, "r").await).await.unwrap();

    engine.import(&graph, &portable, "f").await.unwrap();

    assert_eq!(warnings.taken(), left_behind("`merge`"));
}

/// Builds a graph that writes a file for each of three items, one of which fails. `told` receives the input of
/// the join.
fn items(desk: &Desk) -> Graph<Work> {
    let (work, join) = (desk.clone(), desk.clone());
    let each = Graph::<Work>::builder("items").step("plan", desk.notes()).each(
        "it",
        |_| vec![1_u32, 2, 3],
        |n| format!("n{n}"),
        move |n: u32, _: Context| {
            work.say(format!("n{n}"));
            let failed = n == 2;
            if !failed {
                work.write(&format!("{n}.txt"), &format!("of {n}"));
            }
            async move { if failed { Err(StepError::fatal("two")) } else { Ok(n * 10) } }
        },
    );
    each.evidence(|n, _| Pack::all([Claim::unchanged(format!("{n}.txt"))]))
        .collect()
        .join(move |mut work: Work, mut ends: ItemEnds<u32, u32>, _| {
            join.say("join");
            async move {
                while let Some(end) = ends.next().await? {
                    work.done.push(end.result.map_or_else(|_| "failed".to_owned(), |n| n.to_string()));
                }
                Ok::<_, StepError>(work)
            }
        })
        .step("after", desk.notes())
        .edge("plan", "it")
        .edge("it", "after")
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_fork_checks_evidence_of_joined_items_and_leaves_it() {
    for (desk, store) in desks() {
        let (warnings, graph) = (Arc::new(Warnings::default()), items(&desk));
        let engine = over(&desk, &store).with_observer(warnings.clone());
        engine.run(&graph, "r", Work::default()).interrupt_before(["after"]).await.unwrap();
        let from = newest(&engine, "r").await;
        desk.remove("3.txt");
        assert!(matches!(engine.fork(&graph, &from, "f").await, Err(RunError::InDoubt { .. })));
        desk.write("3.txt", "of 3");

        let forked = engine.fork(&graph, &from, "f").await.unwrap();

        assert_eq!(forked.status, RunStatus::CompletedWithFailures);
        assert_eq!(warnings.taken(), left_behind("`it`"));
        desk.remove("3.txt");
        assert!(engine.resume(&graph, "f").await.unwrap().idle);
    }
}

/// Returns a join that notes the end of each scope.
fn joins(
    desk: &Desk,
) -> impl Fn(Work, Branches<Work>, Context) -> std::future::Ready<Result<Work, StepError>> + Send + Sync + use<>
{
    let desk = desk.clone();
    move |mut work, ends, context| {
        desk.say(context.step().to_string());
        for end in ends {
            work.done.push(format!("{}={}", end.key, end.result.unwrap().done.join("+")));
        }
        std::future::ready(Ok(work))
    }
}

/// Builds `plan`, which opens `a` and `b`. Scope `a` opens `x`, with evidence, and `y`; `am` joins both before
/// `a2`.
fn nested(desk: &Desk) -> Graph<Work> {
    let mut builder = Graph::<Work>::builder("nested");
    for name in ["plan", "a", "y", "a2", "b"] {
        builder = builder.step(name, desk.notes());
    }
    builder
        .step("x", desk.writes("x.txt", "of x"))
        .evidence(|_| Pack::all([Claim::unchanged("x.txt")]))
        .edge("am", "a2")
        .fork("a", ["x", "y"])
        .join("am", joins(desk))
        .fork("plan", ["a", "b"])
        .join("merge", joins(desk))
        .step("after", desk.notes())
        .edge("merge", "after")
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_fork_checks_evidence_of_joined_scopes_of_scopes() {
    for (held, rest, joins) in [
        ("a2", &["a2", "merge", "after"][..], "`plan/am`"),
        ("merge", &["merge", "after"], "`plan/am`"),
        ("after", &["after"], "`merge`"),
    ] {
        for (desk, store) in desks() {
            let (warnings, graph) = (Arc::new(Warnings::default()), nested(&desk));
            let engine = over(&desk, &store).with_observer(warnings.clone());
            engine.run(&graph, "r", Work::default()).interrupt_before([held]).await.unwrap();
            let from = newest(&engine, "r").await;
            desk.remove("x.txt");
            let refused = engine.fork(&graph, &from, "f").await.unwrap_err();
            let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
            assert_eq!(questions[0].scope.as_str(), "plan:a/a:x", "{held}: {refused}");
            desk.write("x.txt", "of x");

            engine.fork(&graph, &from, "f").interrupt_before([held]).await.unwrap();

            assert_eq!(warnings.taken(), left_behind(joins), "{held}");
            desk.said();
            desk.remove("x.txt");
            engine.resume(&graph, "f").await.unwrap();
            assert_eq!(desk.said(), rest, "{held}");
        }
    }
}

// Bug: a fork of a run with accepted evidence was refused because the earlier claims failed. Cause: records were
// copied with the evidence of their commit. Fix: records are copied with the evidence in force.
#[tokio::test]
async fn what_was_accepted_in_a_run_is_accepted_in_its_forks() {
    for (desk, store) in desks() {
        let (engine, graph) = (over(&desk, &store), fork(&desk));
        engine.run(&graph, "r", Work::default()).interrupt_before(["b"]).await.unwrap();
        let amid = newest(&engine, "r").await;
        for file in ["a.txt", "a2.txt"] {
            desk.write(file, "mended by hand");
            engine.accept(&graph, "r", file.trim_end_matches(".txt")).await.unwrap();
        }
        engine.fork(&graph, &amid, "f").await.unwrap();
        engine.resume(&graph, "r").await.unwrap();
        desk.write("b.txt", "mended by hand");
        engine.accept(&graph, "r", "b").await.unwrap();
        engine.fork(&graph, &newest(&engine, "r").await, "g").await.unwrap();
        desk.said();

        assert!(engine.resume(&graph, "g").await.unwrap().idle);
        desk.write("b.txt", "of b");
        assert!(engine.resume(&graph, "f").await.unwrap().idle, "which did it by itself");
        assert!(desk.said().is_empty());
    }
}

// Bug: an import of a run with accepted evidence was refused because the earlier claims failed. Cause: a portable
// checkpoint had no acceptances, and only the last evidence of an ended scope. Fix: both are in its history.
#[tokio::test]
async fn what_was_accepted_in_a_run_is_accepted_in_its_imports() {
    let desk = Desk::new();
    let (engine, graph) = (desk.engine(), fork(&desk));
    engine.run(&graph, "r", Work::default()).interrupt_before(["b"]).await.unwrap();
    for file in ["a.txt", "a2.txt"] {
        desk.write(file, "mended by hand");
    }
    let refusing = Portable::of(desk.store.as_ref(), &newest(&engine, "r").await).await.unwrap();
    let refused = engine.import(&graph, &refusing, "f").await.unwrap_err();
    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    assert_eq!(questions.len(), 2, "of an ended scope with two steps: {refused}");
    engine.accept(&graph, "r", "a").await.unwrap();
    engine.accept(&graph, "r", "a2").await.unwrap();

    let portable = Portable::of(desk.store.as_ref(), &newest(&engine, "r").await).await.unwrap();
    let portable = Portable::from_text(&portable.to_text()).unwrap();
    engine.import(&graph, &portable, "f").await.unwrap();

    desk.said();
    assert!(engine.resume(&graph, "f").await.unwrap().idle);
    assert!(desk.said().is_empty());
}
