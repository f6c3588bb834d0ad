//! The code of docs/guide/forks-and-items.md.

use std::sync::Arc;

use waypost::MemoryStore;

use serde::{Deserialize, Serialize};
use waypost::{Branches, Context, Engine, Graph, ItemEnds, RunStatus, StepError};

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Review {
    text: String,
    remarks: Vec<String>,
}

async fn check_spelling(mut review: Review, _: Context) -> Result<Review, StepError> {
    if review.text.contains("teh") {
        review.remarks.push("`teh` is not a word".to_owned());
    }
    Ok(review)
}

async fn check_links(review: Review, _: Context) -> Result<Review, StepError> {
    match review.text.contains("http") {
        true => Err(StepError::fatal("no network today")),
        false => Ok(review),
    }
}

/// Input: the state before the fork, and the end of each branch, in the order of the fork.
async fn gather(mut review: Review, branches: Branches<Review>, _: Context) -> Result<Review, StepError> {
    for branch in branches {
        match branch.result {
            Ok(end) => review.remarks.extend(end.remarks),
            Err(failure) => review.remarks.push(format!("{}: {}", branch.key, failure.error[0])),
        }
    }
    Ok(review)
}

async fn read(review: Review, _: Context) -> Result<Review, StepError> {
    Ok(review)
}

fn review() -> Graph<Review> {
    Graph::<Review>::builder("review")
        .step("read", read)
        .step("spelling", check_spelling)
        .step("links", check_links)
        .fork("read", ["spelling", "links"])
        .collect()
        .join("gather", gather)
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_join_sees_every_branch() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    let begin = Review { text: "teh page at http://localhost".to_owned(), ..Review::default() };
    let outcome = engine.run(&review(), "r", begin).await.unwrap();

    assert_eq!(outcome.status, RunStatus::CompletedWithFailures);
    assert_eq!(outcome.state.remarks, ["`teh` is not a word", "links: no network today"]);

    super::page_says("forks-and-items.md", &review().mermaid());
}

#[tokio::test]
async fn each_item_is_worked_on_in_a_scope_of_its_own() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    #[derive(Debug, Default, Clone, Serialize, Deserialize)]
    struct Lengths {
        words: Vec<String>,
        lengths: Vec<usize>,
        troubles: Vec<String>,
    }

    async fn measure(word: String, _: Context) -> Result<usize, StepError> {
        if word.is_empty() { Err(StepError::fatal("nothing to measure")) } else { Ok(word.len()) }
    }

    let graph = Graph::<Lengths>::builder("lengths")
        .each(
            "measure",
            |state| state.words.iter().cloned().enumerate().collect(),
            |(index, _)| format!("word-{index}"),
            |(_, word), context| measure(word, context),
        )
        .max_parallel(4)
        .collect()
        .join(|mut state: Lengths, mut ends: ItemEnds<_, usize>, _| async move {
            while let Some(end) = ends.next().await? {
                match end.result {
                    Ok(length) => state.lengths.push(length),
                    Err(failure) => state.troubles.push(format!("{}: {}", end.key, failure.error[0])),
                }
            }
            Ok::<_, StepError>(state)
        })
        .build()
        .unwrap();

    let words = ["checkpoint", "", "run"].map(str::to_owned).to_vec();
    let outcome = engine.run(&graph, "r", Lengths { words, ..Lengths::default() }).await.unwrap();

    assert_eq!(outcome.state.lengths, [10, 3]);
    assert_eq!(outcome.state.troubles, ["word-1: nothing to measure"]);
}

#[tokio::test]
async fn without_collect_one_failure_ends_all() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let graph = Graph::<Review>::builder("review")
        .step("read", read)
        .step("spelling", check_spelling)
        .step("links", check_links)
        .fork("read", ["spelling", "links"])
        .join("gather", gather)
        .build()
        .unwrap();
    let begin = Review { text: "http".to_owned(), ..Review::default() };

    let outcome = engine.run(&graph, "r", begin).await.unwrap();

    assert_eq!(outcome.status, RunStatus::Failed);
    assert_eq!(outcome.failed.unwrap().0.as_str(), "links");
}

#[tokio::test]
async fn a_graph_inside_a_graph_has_its_own_state() {
    let engine = Engine::new(Arc::new(MemoryStore::new()));

    async fn double(number: u32, _: Context) -> Result<u32, StepError> {
        Ok(number * 2)
    }
    let inner = Graph::<u32>::builder("double").step("double", double).build().unwrap();

    let graph = Graph::<Review>::builder("outer")
        .subgraph(
            "count",
            &inner,
            |review| review.text.len() as u32,
            |review, doubled| review.remarks.push(doubled.to_string()),
        )
        .build()
        .unwrap();

    let begin = Review { text: "four".to_owned(), ..Review::default() };
    let outcome = engine.run(&graph, "r", begin).await.unwrap();

    assert_eq!(outcome.state.remarks, ["8"]);
}
