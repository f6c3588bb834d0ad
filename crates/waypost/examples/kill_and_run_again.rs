//! A long job over files, safe to kill at any moment: hashes every file of a folder into an index.
//!
//! ```text
//! cargo run -p waypost --example kill_and_run_again -- FOLDER STORE
//! ```
//!
//! Kill the job with Ctrl-C or `kill -9`, and give the same command again: hashed files are not read again.
//! At the end STORE has `index.txt`, in the format of `sha256sum -c`.
//!
//! Shows: `each` over items, a store on disk, and "run, or resume the existing run".
#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use waypost::file::FileStore;
use waypost::graph::ItemEnds;
use waypost::id::Digester;
use waypost::store::StoreError;
use waypost::{Context, Engine, Graph, GraphError, RunError, StepError};

/// The state of the run. The results of each file are in the file's own scope.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
struct Index {
    folder: PathBuf,
    paths: Vec<String>,
    files: u64,
    bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Hashed {
    sha256: String,
    bytes: u64,
}

/// How many files this process hashed. Not part of the state, as it counts the work of this process only.
static HASHED_NOW: AtomicU64 = AtomicU64::new(0);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(folder), Some(store)) = (args.next(), args.next()) else {
        return Err("usage: kill_and_run_again FOLDER STORE".into());
    };
    let folder = fs::canonicalize(folder)?;
    let graph = graph(&folder, Path::new(&store).join("index.txt"))?;
    let engine = Engine::new(Arc::new(FileStore::open(&store)?));

    let begin = Index { folder, ..Index::default() };
    let outcome = match engine.run(&graph, "index", begin).await {
        Err(RunError::Store(StoreError::Exists { .. })) => {
            println!("going on with the run in {store}");
            engine.resume(&graph, "index").await?
        }
        outcome => outcome?,
    };

    if let Some((step, failure)) = &outcome.failed {
        return Err(format!("step `{step}` failed: {}", failure.error.join(": ")).into());
    }
    let Index { files, bytes, .. } = outcome.state;
    let now = HASHED_NOW.load(Ordering::Relaxed);
    println!("{files} files, {bytes} bytes: {now} hashed now, {} skipped", files - now);
    Ok(())
}

fn graph(folder: &Path, target: PathBuf) -> Result<Graph<Index>, GraphError> {
    let folder = folder.to_owned();
    Graph::<Index>::builder("index")
        .step("list", list)
        .each(
            "hash",
            |index| index.paths.clone(),
            String::clone,
            move |path, _| hash(folder.join(&path), path),
        )
        .max_parallel(4)
        .join(move |index, ends, _| write(index, ends, target.clone()))
        .edge("list", "hash")
        .build()
}

/// Lists the files. The list is part of the state: later files are not in this index.
async fn list(mut index: Index, _: Context) -> Result<Index, StepError> {
    let mut folders = vec![index.folder.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.file_type()?.is_file() {
                let path = entry.path();
                let path = path.strip_prefix(&index.folder).map_err(StepError::fatal)?;
                let path = path.to_str().ok_or_else(|| StepError::fatal(format!("{path:?} is not UTF-8")))?;
                index.paths.push(path.to_owned());
            }
        }
    }
    index.paths.sort();
    Ok(index)
}

/// Hashes a file. After a crash the file is read again, which is harmless.
async fn hash(file: PathBuf, path: String) -> Result<Hashed, StepError> {
    let hashed = tokio::task::spawn_blocking(move || -> io::Result<Hashed> {
        let (mut file, mut digest, mut bytes) = (File::open(file)?, Digester::default(), 0);
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                return Ok(Hashed { sha256: digest.finish().to_string(), bytes });
            }
            digest.update(&buffer[..count]);
            bytes += count as u64;
        }
    });
    let hashed = hashed.await??;
    HASHED_NOW.fetch_add(1, Ordering::Relaxed);
    println!("hashed {path}");
    Ok(hashed)
}

/// Writes the index to a temporary file and renames it, so that readers never see a partial index.
async fn write(
    mut index: Index,
    mut ends: ItemEnds<String, Hashed>,
    target: PathBuf,
) -> Result<Index, StepError> {
    let temp = target.with_extension("part");
    let mut out = io::BufWriter::new(File::create(&temp)?);
    (index.files, index.bytes) = (0, 0);
    while let Some(end) = ends.next().await? {
        let hashed = end.result.map_err(|failure| StepError::fatal(failure.error.join(": ")))?;
        writeln!(out, "{}  {}", hashed.sha256, end.item)?;
        index.files += 1;
        index.bytes += hashed.bytes;
    }
    out.into_inner()?.sync_all()?;
    fs::rename(&temp, &target)?;
    Ok(index)
}
