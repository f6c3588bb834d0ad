//! Processes many files in parallel. A broken file does not stop the others, and the program asks a person to
//! fix the file.
//!
//! ```text
//! cargo run -p waypost --example fork_over_files -- FOLDER STORE
//! ```
//!
//! Adds up the numbers in every `.csv` file of FOLDER, with a `NAME,AMOUNT` per line. An unreadable file is
//! reported, and the run waits. Fix the file and give the same command again: only this file is read again.
//!
//! Shows: `each` that collects failures, a join, and a loop that retries the failed items.
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use waypost::file::FileStore;
use waypost::graph::ItemEnds;
use waypost::store::StoreError;
use waypost::{Context, END, Engine, Graph, GraphError, RunError, RunId, StepError};

const RUN: &str = "totals";

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Totals {
    folder: PathBuf,
    /// Files still to be read.
    todo: Vec<String>,
    done: BTreeMap<String, i64>,
    /// The errors of the files in `todo`.
    trouble: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(folder), Some(store)) = (args.next(), args.next()) else {
        return Err("usage: fork_over_files FOLDER STORE".into());
    };
    let folder = fs::canonicalize(folder)?;
    let engine = Engine::new(Arc::new(FileStore::open(&store)?));
    let graph = graph(&folder)?;

    let begin = Totals { folder, ..Totals::default() };
    let outcome = match engine.run(&graph, RUN, begin).await {
        Err(RunError::Store(StoreError::Exists { .. })) => {
            // A second start of the program means that the files are fixed.
            for question in engine.waiting(&RunId::new(RUN)?).await? {
                engine.answer(RUN, &question.wait.id, json!("mended")).await?;
            }
            engine.resume(&graph, RUN).await?
        }
        outcome => outcome?,
    };

    for waiting in &outcome.waiting {
        println!("mend {}", waiting.wait.question.clone().unwrap_or_default());
    }
    let Totals { todo, done, .. } = outcome.state;
    let sum: i64 = done.values().sum();
    println!("{} files, sum {sum}, {} to be mended", done.len(), todo.len());
    Ok(())
}

fn graph(folder: &Path) -> Result<Graph<Totals>, GraphError> {
    let folder = folder.to_owned();
    Graph::<Totals>::builder("totals")
        .step("list", list)
        .each(
            "add",
            |totals| totals.todo.clone(),
            String::clone,
            move |name, _| add_up(folder.join(&name), name),
        )
        .max_parallel(4)
        .collect()
        .join(sort_out)
        .step("mend", mend)
        .edge("list", "add")
        .route("add", ["mend", END], |totals| if totals.todo.is_empty() { END } else { "mend" })
        .edge("mend", "add")
        .build()
}

async fn list(mut totals: Totals, _: Context) -> Result<Totals, StepError> {
    for entry in fs::read_dir(&totals.folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".csv") {
            totals.todo.push(name);
        }
    }
    totals.todo.sort();
    Ok(totals)
}

/// Processes one file, on its own scope.
async fn add_up(file: PathBuf, name: String) -> Result<i64, StepError> {
    println!("reading {name}");
    let text = fs::read_to_string(file)?;
    let mut sum = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let amount = line.rsplit(',').next().unwrap_or_default();
        // A retry would read the same text: fail at once, for a person.
        sum += amount
            .trim()
            .parse::<i64>()
            .map_err(|error| StepError::fatal(format!("line {number}: `{amount}`: {error}")))?;
    }
    Ok(sum)
}

/// Collects the results, and leaves failed files in `todo`.
async fn sort_out(
    mut totals: Totals,
    mut ends: ItemEnds<String, i64>,
    _: Context,
) -> Result<Totals, StepError> {
    totals.todo.clear();
    totals.trouble.clear();
    while let Some(end) = ends.next().await? {
        match end.result {
            Ok(sum) => drop(totals.done.insert(end.item, sum)),
            Err(failure) => {
                totals.trouble.push(format!("{}: {}", end.item, failure.error.join(": ")));
                totals.todo.push(end.item);
            }
        }
    }
    Ok(totals)
}

/// Waits until a person confirms that the files are fixed.
async fn mend(totals: Totals, context: Context) -> Result<Totals, StepError> {
    context.interrupt::<Value>("mended", &totals.trouble).await?;
    Ok(totals)
}
