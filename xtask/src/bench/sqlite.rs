//! Raw limit of the SQLite store: a row of 1 KB per transaction, in WAL mode with `synchronous=FULL`.

use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use rusqlite::Connection;

use super::append::{self, RECORD_BYTES};
use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit};

/// Name of the subject, for demands of other topics.
pub(super) const NAME: &str = "SQLite, WAL FULL, 1 KB row a transaction";

/// About half a second on a fast disk.
const COUNT: u32 = 2_000;

/// The page size of the store in `waypost-sqlite`.
const PAGE_BYTES: i64 = 8192;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("sqlite")?;
    let count = bench.count(COUNT);
    let record = measure::noise(RECORD_BYTES);
    let subject = Measured::new(NAME, Unit::PerSecond, move || round(&folder, &record, count));
    // A commit writes at least the row and waits for the disk once. If it were much faster than an append
    // with the same work, either did not wait, and every ratio of this run would be invalid.
    let waits = Demand {
        claim: "SQLite waits for the disk as an append does",
        ours: NAME,
        limit: Some(append::NAME),
        bound: Bound::AtMost(1.5),
    };
    Ok(Topic { name: "sqlite", subjects: vec![subject], demands: vec![waits] })
}

fn round(folder: &Path, record: &[u8], count: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let db = open(&folder.path().join("raw.db"))?;
    let mut begin = db.prepare("BEGIN IMMEDIATE")?;
    let mut insert = db.prepare("INSERT INTO record (seq, body) VALUES (?1, ?2)")?;
    let mut commit = db.prepare("COMMIT")?;

    let start = Instant::now();
    for seq in 1..=count {
        begin.execute([])?;
        insert.execute((seq, record))?;
        commit.execute([])?;
    }
    let figure = measure::per_second(count, start);

    let equal: u32 =
        db.query_row("SELECT count(*) FROM record WHERE body = ?1", [record], |row| row.get(0))?;
    ensure!(equal == count, "{equal} rows of {count} hold what was written");
    Ok(figure)
}

fn open(path: &Path) -> anyhow::Result<Connection> {
    let db = Connection::open(path)?;
    db.pragma_update(None, "page_size", PAGE_BYTES)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "FULL")?;
    let text = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, String>(0));
    let number = |name: &str| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    ensure!(text("journal_mode")? == "wal", "the database is not in WAL mode");
    ensure!(number("synchronous")? == 2, "the database does not run at synchronous=FULL");
    ensure!(number("page_size")? == PAGE_BYTES, "the database does not have pages of {PAGE_BYTES} bytes");
    db.execute_batch("CREATE TABLE record (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)")?;
    Ok(db)
}
