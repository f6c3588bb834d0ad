//! A release with evidence for each step: rows of a database, and a tag, checked by a probe of this program.
//!
//! ```text
//! cargo run -p waypost-evidence --example releases -- FOLDER     loads the rows, publishes the tag, records the release
//! sqlite3 FOLDER/sales.db "DELETE FROM sales"                    removes the rows
//! cargo run -p waypost-evidence --example releases -- FOLDER     reruns the load only
//! ```
//!
//! Shows: claims, a custom probe, an engine and a recorder with the same verifier.
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::Connection;
use serde_json::json;
use waypost::engine::Outcome;
use waypost::evidence::{Cost, Finding, Probe, ProbeKind, Site, Verifier};
use waypost::file::FileStore;
use waypost::record::{Claim, Pack};
use waypost::recorder::{Begin, Commit, Label, Options, Recorder, run_record};
use waypost::store::{Store, StoreError};
use waypost::{Context, Engine, Graph, GraphError, RunError, RunId, StepError, StepId};
use waypost_evidence::{Environment, claims};

/// The recorded kind of claims about tags.
const TAG_PUBLISHED: &str = "tag_published";
const TAG: &str = "v1.0";

/// Checks whether a tag is published. Here a published tag is a file in a folder.
#[derive(Debug)]
struct TagProbe {
    published: PathBuf,
}

#[async_trait]
impl Probe for TagProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(TAG_PUBLISHED, Cost::Waiting)
    }

    async fn check(&self, claim: &Claim, _: &Site) -> Result<Finding, Finding> {
        if !claim.expect.is_null() {
            return Err(Finding::unknown("of a tag, only that it is published can be expected"));
        }
        match self.published.join(&claim.subject).try_exists() {
            Ok(true) => Ok(Finding::ok("published")),
            Ok(false) => Err(Finding::absent("there is no such tag")),
            Err(error) => Err(Finding::unknown_yet(format!("cannot look for it: {error}"))),
        }
    }
}

/// Returns the evidence for the rows.
fn loaded() -> Pack {
    claims::pack()
        .and(claims::sqlite("sales.db", "sales").whose("region", "eu").value("amount", "> 10"))
        .and(claims::sqlite("sales.db", "sales").count(2))
        .all()
}

/// Returns the evidence for the tag.
fn published() -> Pack {
    claims::pack().and(Claim::new(TAG_PUBLISHED, TAG).named("the tag")).all()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: releases FOLDER")?);
    let published = folder.join("published");
    std::fs::create_dir_all(&published)?;
    let store: Arc<dyn Store> = Arc::new(FileStore::open(folder.join("store"))?);
    let verifier = waypost_evidence::verifier(Environment::inherited())
        .with_probe(Arc::new(TagProbe { published: published.clone() }));

    let engine = Engine::new(Arc::clone(&store)).with_base(&folder).with_verifier(verifier.clone());
    let graph = release(&folder, published)?;
    let outcome = match engine.run(&graph, "release", 0).await {
        Err(RunError::Store(StoreError::Exists { .. })) => engine.resume(&graph, "release").await?,
        outcome => outcome?,
    };
    told(&outcome);
    note(store, &folder, verifier).await
}

fn release(folder: &Path, tags: PathBuf) -> Result<Graph<u32>, GraphError> {
    let database = folder.join("sales.db");
    Graph::<u32>::builder("release")
        .step("load", move |_: u32, _: Context| {
            let loaded = load(&database);
            async move { loaded }
        })
        .evidence(|_| loaded())
        .step("publish", move |rows: u32, _: Context| {
            println!("publishing {TAG}");
            let written = std::fs::write(tags.join(TAG), format!("{rows} rows\n"));
            async move { Ok::<_, StepError>(written.map(|()| rows)?) }
        })
        .evidence(|_| published())
        .edge("load", "publish")
        .build()
}

fn load(database: &Path) -> Result<u32, StepError> {
    println!("loading two rows");
    Connection::open(database)?.execute_batch(
        "DROP TABLE IF EXISTS sales;
         CREATE TABLE sales (region TEXT, amount INTEGER);
         INSERT INTO sales VALUES ('eu', 12), ('us', 30);",
    )?;
    Ok(2)
}

fn told(outcome: &Outcome<u32>) {
    match (outcome.idle, &outcome.failed) {
        (true, _) => println!("nothing to do"),
        (false, Some((step, failure))) => println!("step `{step}` failed: {}", failure.error.join(": ")),
        (false, None) => println!("the release is {}", outcome.status.name()),
    }
}

/// Records in a separate run that the release was seen. A recorder takes the same evidence as an engine.
async fn note(store: Arc<dyn Store>, folder: &Path, verifier: Verifier) -> Result<(), Box<dyn Error>> {
    let options = Options::new().with_base(folder).with_verifier(verifier);
    let record = run_record(RunId::new("notes")?, "notes");
    let recorder = Recorder::open_or_create(store, record, &json!({}), options).await?;
    let begun = recorder.begin_step(Begin::new(StepId::new("look")?, Label::ManualCheckpoint)).await?;
    let seen =
        claims::pack().and(Claim::new(TAG_PUBLISHED, TAG)).and(claims::sqlite("sales.db", "sales")).all();
    let checkpoint = recorder.commit_step(&begun, Commit::with(seen).state(&json!({ "seen": TAG }))).await?;
    println!("noted: {:?}", checkpoint.verdict());
    recorder.close().await?;
    Ok(())
}
