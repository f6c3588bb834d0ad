//! Evidence about what a step under way may be about to rewrite: it is left alone until that has ended.

use super::*;

/// Three passes, each of which leaves a page; the first try of the last one hangs.
fn pages(desk: &Desk) -> Graph<Work> {
    let pages = desk.clone();
    Graph::<Work>::builder("pages")
        .step("page", move |mut work: Work, context: Context| {
            let pages = pages.clone();
            async move {
                let pass = context.iteration()[0];
                let name = format!("page-{pass}.txt");
                pages.say(&name);
                if (pass, context.attempt()) == (3, 1) && context.epoch() == 0 {
                    std::future::pending::<()>().await;
                }
                pages.write(&name, &name);
                work.done.push(name);
                Ok::<_, StepError>(work)
            }
        })
        .evidence(|work| Pack::all(work.done.last().map(Claim::unchanged)))
        .step("last", desk.notes())
        .route("page", ["page", "last"], |work| if work.done.len() < 3 { "page" } else { "last" })
        .build()
        .unwrap()
}

/// Runs until something is said, and no further.
async fn run_until(desk: &Desk, graph: &Graph<Work>, said: &str) {
    let engine = desk.engine();
    let run = engine.run(graph, "r", Work::default()).into_future();
    let is_said = || desk.said.lock().unwrap().iter().any(|found| found == said);
    tokio::select! {
        ended = run => panic!("it ended: {ended:?}"),
        () = async { while !is_said() { tokio::task::yield_now().await; } } => {}
    }
    desk.said();
}

// What happened: a resume completed a run, and the page of an earlier pass was lost; only the next resume noticed.
// Why: the last pass had been cut, and what it was about to write was not known; by the state that it was given, that was
// the page of the pass before, which was left alone, and never looked at again when the last pass had written its own.
// What stops it now: once the step has ended on whose account a claim was not checked, and has not made it itself, all is
// looked at again before anything else starts.
#[tokio::test]
async fn what_a_cut_step_might_have_written_is_looked_at_once_it_has_ended() {
    let desk = Desk::new();
    let graph = pages(&desk);
    run_until(&desk, &graph, "page-3.txt").await;
    desk.remove("page-2.txt");

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(
        desk.said(),
        ["page-3.txt", "page-2.txt", "last"],
        "each once, and the last after all of them"
    );
    assert_eq!(outcome.state.done, ["page-1.txt", "page-2.txt", "page-3.txt", "last"]);
    assert_eq!(desk.read("page-2.txt"), "page-2.txt");
    assert!(desk.resume(&graph).await.idle);
}

#[tokio::test]
async fn a_page_that_is_there_costs_nothing() {
    let desk = Desk::new();
    let graph = pages(&desk);
    run_until(&desk, &graph, "page-3.txt").await;
    let before = desk.records().await.len();

    let outcome = desk.resume(&graph).await;

    assert_eq!(outcome.status, RunStatus::Completed);
    assert_eq!(desk.said(), ["page-3.txt", "last"]);
    assert!(desk.records().await.len() <= before + 4, "{:?}", desk.told().await);
    assert!(desk.resume(&graph).await.idle);
}
