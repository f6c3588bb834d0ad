//! Steps that invalidate the evidence of each other: a resume ends, and names these steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use waypost::engine::OnUnknown;
use waypost::memory::MemoryStore;
use waypost::plan::Cause;
use waypost::record::{Claim, Pack, RunStatus};
use waypost::{Context, Engine, Graph, RunError, StepError};

use crate::test_graphs::{Notes, Stage};

/// The time limit of a resume with three reruns, against an endless loop.
const PATIENCE: Duration = Duration::from_secs(180);

/// A folder, and steps that write files there.
struct Desk {
    folder: tempfile::TempDir,
    stage: Stage,
    engine: Engine,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::new(Arc::new(MemoryStore::new())).with_base(folder.path());
        Self { folder, stage: Stage::default(), engine }
    }

    /// A step that logs its name and writes the name into files.
    fn writes(
        &self,
        files: &'static [&'static str],
    ) -> impl Fn(Notes, Context) -> std::future::Ready<Result<Notes, StepError>> + Send + Sync + use<> {
        let (stage, folder) = (self.stage.clone(), self.folder.path().to_owned());
        move |state, context| {
            let name = context.step().to_string();
            stage.say(&name);
            for file in files {
                std::fs::write(folder.join(file), format!("of {name}")).unwrap();
            }
            std::future::ready(Ok(state.and(name)))
        }
    }

    /// Each step writes and pins its own file, and writes the files of the others.
    fn rivals(&self) -> Graph<Notes> {
        let files: &[&str] = &["a.txt", "b.txt", "c.txt"];
        let pins = |file: &'static str| move |_: &Notes| Pack::all([Claim::unchanged(file)]);
        Graph::<Notes>::builder("rivals")
            .step("a", self.writes(files))
            .evidence(pins("a.txt"))
            .step("b", self.writes(files))
            .evidence(pins("b.txt"))
            .step("c", self.writes(&["c.txt"]))
            .evidence(pins("c.txt"))
            .edge("a", "b")
            .edge("b", "c")
            .build()
            .unwrap()
    }
}

// Bug: two steps overwrote the pinned files of each other. A resume reran a step, found the other broken, reran
// that step, found the first broken, and so on forever: the memory of reruns ended with a rejoin. Fix: all reruns
// under a lease are read from the records, and no step reruns twice.
#[tokio::test]
async fn steps_that_undo_each_other_rerun_once_and_then_ask() {
    let desk = Desk::new();
    let graph = desk.rivals();
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();

    for _ in 0..2 {
        let resumed = tokio::time::timeout(PATIENCE, desk.engine.resume(&graph, "r").into_future());
        let refused = resumed.await.unwrap().unwrap_err();

        let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
        let said = desk.stage.said();
        assert!(said.len() <= 3, "none of them twice: {said:?}");
        let [question] = &questions[..] else { panic!("{questions:?}") };
        assert_eq!(question.step.as_str(), "a");
        let Cause::EvidenceUndone { others, .. } = &question.cause else { panic!("{:?}", question.cause) };
        assert!(others.iter().any(|(step, _)| step.as_str() == "b"), "{others:?}");
        let told = refused.to_string() + &question.cause.to_string();
        assert!(told.contains("a.txt") && told.contains("`b` for") && told.contains("b.txt"), "{told}");
    }
    // A person may accept the current files.
    desk.engine.accept(&graph, "r", "a").await.unwrap();
    let outcome = tokio::time::timeout(PATIENCE, desk.engine.resume(&graph, "r").into_future());
    assert_eq!(outcome.await.unwrap().unwrap().status, RunStatus::Completed);
}

// A step that breaks once is rerun once, for any reason and with any number of others: no question is asked.
#[tokio::test]
async fn steps_that_break_one_after_the_other_are_all_done_again() {
    let desk = Desk::new();
    let pins = |file: &'static str| move |_: &Notes| Pack::all([Claim::unchanged(file)]);
    let graph = Graph::<Notes>::builder("line")
        .step("a", desk.writes(&["a.txt", "b.txt"]))
        .evidence(pins("a.txt"))
        .step("b", desk.writes(&["b.txt"]))
        .evidence(pins("b.txt"))
        .edge("a", "b")
        .build()
        .unwrap();
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();
    std::fs::write(desk.folder.path().join("a.txt"), "somebody was here").unwrap();

    let outcome = desk.engine.resume(&graph, "r").await.unwrap();

    assert_eq!((outcome.status, desk.stage.said()), (RunStatus::Completed, vec!["a".into(), "b".into()]));
    assert!(desk.engine.resume(&graph, "r").await.unwrap().idle);
}

/// `a` writes and pins a name, `b` another name; `c` follows.
fn two(desk: &Desk, names: [&'static str; 2]) -> Graph<Notes> {
    let pins = |file: &'static str| move |_: &Notes| Pack::all([Claim::file(file), Claim::unchanged(file)]);
    let [a, b]: [&'static [&'static str]; 2] = names.map(|name| &*vec![name].leak());
    Graph::<Notes>::builder("two")
        .step("a", desk.writes(a))
        .evidence(pins(names[0]))
        .step("b", desk.writes(b))
        .evidence(pins(names[1]))
        .step("c", desk.writes(&[]))
        .edge("a", "b")
        .edge("b", "c")
        .build()
        .unwrap()
}

/// Links a name to another name, in a folder.
type Link = fn(&std::path::Path);

const LINKS: [(Link, [&str; 2]); 5] = [
    (|folder| std::os::unix::fs::symlink("y", folder.join("x")).unwrap(), ["x", "y"]),
    (|folder| std::os::unix::fs::symlink("x", folder.join("y")).unwrap(), ["x", "y"]),
    (
        |folder| {
            std::fs::create_dir_all(folder.join("real/deep")).unwrap();
            std::os::unix::fs::symlink("real", folder.join("dir")).unwrap();
        },
        ["dir/deep/x", "./real//deep/x"],
    ),
    (
        |folder| {
            std::fs::create_dir_all(folder.join("one/two")).unwrap();
            std::os::unix::fs::symlink("../../x", folder.join("one/two/up")).unwrap();
        },
        ["x", "one/two/up"],
    ),
    (
        |folder| {
            std::fs::write(folder.join("x"), "").unwrap();
            std::fs::hard_link(folder.join("x"), folder.join("y")).unwrap();
        },
        ["x", "y"],
    ),
];

// Bug: two steps pinned a file under two names, a link and its target, and counted as steps with two files: the
// newer step had changed the file of the older step, and a resume of the unchanged run reran both. Fix: claims
// are bound to the file.
#[tokio::test]
async fn claims_about_one_file_under_two_names_are_about_one_thing() {
    for (link, names) in LINKS {
        let desk = Desk::new();
        link(desk.folder.path());
        let graph = two(&desk, names);
        desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
        desk.stage.said();

        let untouched = desk.engine.resume(&graph, "r").await.unwrap();
        assert!(untouched.idle, "{names:?}: {:?}", desk.stage.said());
        std::fs::write(desk.folder.path().join(names[0]), "somebody was here").unwrap();
        let touched = desk.engine.resume(&graph, "r").await.unwrap();

        assert_eq!((touched.status, desk.stage.said()), (RunStatus::Completed, vec!["b".to_owned()]));
        assert!(desk.engine.resume(&graph, "r").await.unwrap().idle);
    }
}

// A pinned file is replaced by a link to another file: the change is detected. A claim records its file when it
// is made.
#[tokio::test]
async fn a_link_that_was_put_in_the_place_of_a_file_is_seen() {
    let links: [Link; 2] = [
        |folder| std::os::unix::fs::symlink("y", folder.join("x")).unwrap(),
        |folder| std::fs::hard_link(folder.join("y"), folder.join("x")).unwrap(),
    ];
    for link in links {
        let desk = Desk::new();
        let graph = two(&desk, ["x", "y"]);
        desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
        desk.stage.said();
        std::fs::remove_file(desk.folder.path().join("x")).unwrap();
        link(desk.folder.path());

        let resumed = tokio::time::timeout(PATIENCE, desk.engine.resume(&graph, "r").into_future());
        let refused = resumed.await.unwrap().unwrap_err();

        assert_eq!(desk.stage.said(), ["a", "b"], "each writes over what the other one pinned");
        assert!(matches!(refused, RunError::InDoubt { .. }), "{refused}");
    }
    // A link is replaced by a file: the claim is verified by its path.
    let desk = Desk::new();
    LINKS[0].0(desk.folder.path());
    let graph = two(&desk, ["x", "y"]);
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();
    std::fs::remove_file(desk.folder.path().join("x")).unwrap();
    std::fs::write(desk.folder.path().join("x"), "somebody was here").unwrap();

    desk.engine.resume(&graph, "r").await.unwrap();

    assert_eq!(desk.stage.said(), ["a"]);
}

// Bug: a non-idempotent step with failed evidence was asked about, and the answer had no effect: after `retry`
// the same question was asked.
#[tokio::test]
async fn a_person_says_that_a_step_runs_again_whose_evidence_failed() {
    let desk = Desk::new();
    let graph = Graph::<Notes>::builder("once")
        .step("a", desk.writes(&["a.txt"]))
        .not_idempotent()
        .evidence(|_| Pack::all([Claim::unchanged("a.txt")]))
        .step("b", desk.writes(&["b.txt"]))
        .edge("a", "b")
        .build()
        .unwrap();
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();
    std::fs::remove_file(desk.folder.path().join("a.txt")).unwrap();

    let refused = desk.engine.resume(&graph, "r").on_unknown(OnUnknown::RunAgain).await.unwrap_err();
    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(questions[0].cause, Cause::EvidenceFailed(_)), "{refused}");
    assert!(desk.stage.said().is_empty());
    let outcome = desk.engine.resume(&graph, "r").retry_doubtful().await.unwrap();

    assert_eq!((outcome.status, desk.stage.said()), (RunStatus::Completed, vec!["a".to_owned()]));
    assert!(desk.engine.resume(&graph, "r").await.unwrap().idle);
}

/// `a` and `b` pin a file each, and `b` is the last step. Once `told` is set, `b` overwrites the file of `a`;
/// with `rivals`, `a` also overwrites the file of `b`.
fn last_one_undoes(desk: &Desk, told: &Arc<AtomicBool>, rivals: bool) -> Graph<Notes> {
    let pins = |file: &'static str| move |_: &Notes| Pack::all([Claim::unchanged(file)]);
    let writes = |own: &'static str, others: &'static str, undoes: bool| {
        let (stage, folder, told) = (desk.stage.clone(), desk.folder.path().to_owned(), Arc::clone(told));
        move |state: Notes, context: Context| {
            let name = context.step().to_string();
            stage.say(&name);
            std::fs::write(folder.join(own), format!("of {name}")).unwrap();
            if undoes && told.load(Ordering::Relaxed) {
                std::fs::write(folder.join(others), format!("of {name}")).unwrap();
            }
            std::future::ready(Ok::<_, StepError>(state.and(name)))
        }
    };
    Graph::<Notes>::builder("last")
        .step("a", writes("a.txt", "b.txt", rivals))
        .evidence(pins("a.txt"))
        .step("b", writes("b.txt", "a.txt", true))
        .evidence(pins("b.txt"))
        .edge("a", "b")
        .build()
        .unwrap()
}

// Bug: the last step was rerun for its evidence and invalidated the evidence of another step: the run completed,
// because no later step waited for another check. Fix: the evidence is verified again before the end of the run.
#[tokio::test]
async fn what_the_last_step_undoes_is_seen_before_the_run_ends() {
    let (desk, told) = (Desk::new(), Arc::new(AtomicBool::new(false)));
    let graph = last_one_undoes(&desk, &told, false);
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();
    std::fs::remove_file(desk.folder.path().join("b.txt")).unwrap();
    told.store(true, Ordering::Relaxed);

    let resumed = tokio::time::timeout(PATIENCE, desk.engine.resume(&graph, "r").into_future());
    let outcome = resumed.await.unwrap().unwrap();

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.stage.said(), ["b", "a"], "`a` is what `b` has undone, and nothing else is done again");
    assert_eq!(outcome.state.done, ["a", "b"]);
    assert!(desk.engine.resume(&graph, "r").await.unwrap().idle);
}

// Each step reruns once in a resume, and then a person is asked by name.
#[tokio::test]
async fn a_last_step_and_one_that_undo_each_other_are_asked_about() {
    let (desk, told) = (Desk::new(), Arc::new(AtomicBool::new(false)));
    let graph = last_one_undoes(&desk, &told, true);
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();
    std::fs::remove_file(desk.folder.path().join("b.txt")).unwrap();
    told.store(true, Ordering::Relaxed);

    let resumed = tokio::time::timeout(PATIENCE, desk.engine.resume(&graph, "r").into_future());
    let refused = resumed.await.unwrap().unwrap_err();

    assert_eq!(desk.stage.said(), ["b", "a"]);
    let RunError::InDoubt { questions, .. } = &refused else { panic!("{refused}") };
    let [question] = &questions[..] else { panic!("{questions:?}") };
    let Cause::EvidenceUndone { others, .. } = &question.cause else { panic!("{:?}", question.cause) };
    assert_eq!((question.step.as_str(), others[0].0.as_str()), ("b", "a"), "{refused}");
    // A person may accept the current files, and then the run is done.
    desk.engine.accept(&graph, "r", "b").await.unwrap();
    let outcome = desk.engine.resume(&graph, "r").await.unwrap();
    assert_eq!((outcome.status, desk.stage.said()), (RunStatus::Completed, Vec::new()));
}

// A step of a scope is rerun with a changed output, so the last step, a join, runs again too: evidence
// invalidated by the scope is detected before the end of the run.
#[tokio::test]
async fn what_a_scope_undoes_is_seen_before_the_run_ends() {
    let (desk, told) = (Desk::new(), Arc::new(AtomicBool::new(false)));
    let (folder, work, now) = (desk.folder.path().to_owned(), desk.stage.clone(), Arc::clone(&told));
    let pins = |file: &'static str| move |_: &Notes| Pack::all([Claim::unchanged(file)]);
    let graph = Graph::<Notes>::builder("fork")
        .step("plan", desk.writes(&["plan.txt"]))
        .evidence(pins("plan.txt"))
        .step("x", move |state: Notes, _: Context| {
            work.say("x");
            std::fs::write(folder.join("x.txt"), "of x").unwrap();
            let again = now.load(Ordering::Relaxed);
            if again {
                std::fs::write(folder.join("plan.txt"), "of x").unwrap();
            }
            std::future::ready(Ok::<_, StepError>(state.and(if again { "other" } else { "x" })))
        })
        .evidence(pins("x.txt"))
        .step("y", desk.writes(&[]))
        .fork("plan", ["x", "y"])
        .join("merge", desk.stage.merge())
        .build()
        .unwrap();
    desk.engine.run(&graph, "r", Notes::default()).await.unwrap();
    desk.stage.said();
    std::fs::remove_file(desk.folder.path().join("x.txt")).unwrap();
    told.store(true, Ordering::Relaxed);

    let resumed = tokio::time::timeout(PATIENCE, desk.engine.resume(&graph, "r").into_future());
    let outcome = resumed.await.unwrap().unwrap();

    assert_eq!(
        (outcome.status, &desk.stage.said()[..3]),
        (RunStatus::Completed, &["x", "merge", "plan"].map(String::from)[..])
    );
    assert_eq!(std::fs::read_to_string(desk.folder.path().join("plan.txt")).unwrap(), "of plan");
    assert_eq!(outcome.state.done, ["plan", "x=other", "y=y"]);
    assert!(desk.engine.resume(&graph, "r").await.unwrap().idle);
}
