//! Raw limit of a log: records of 1 KB appended to a growing file, each followed by fdatasync.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::ensure;

use super::measure::{self, Bench, Measured, Topic, Unit};

/// Name of the subject, for demands of other topics.
pub(super) const NAME: &str = "append + fdatasync, 1 KB";

/// The size of a small checkpoint; all raw limits use this record size.
pub(super) const RECORD_BYTES: usize = 1024;

/// About half a second on a fast disk.
const COUNT: u32 = 2_000;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let path = bench.folder("append")?.join("log");
    let count = bench.count(COUNT);
    let record = measure::noise(RECORD_BYTES);
    let subject = Measured::new(NAME, Unit::PerSecond, move || round(&path, &record, count));
    Ok(Topic { name: "append", subjects: vec![subject], demands: Vec::new() })
}

fn round(path: &Path, record: &[u8], count: u32) -> anyhow::Result<f64> {
    let mut file = File::create(path)?;

    let start = Instant::now();
    for _ in 0..count {
        file.write_all(record)?;
        file.sync_data()?;
    }
    let figure = measure::per_second(count, start);

    let written = std::fs::read(path)?;
    ensure!(written.len() == record.len() * count as usize, "the log has {} bytes", written.len());
    ensure!(
        written.chunks(record.len()).all(|chunk| chunk == record),
        "the log does not hold what was appended"
    );
    Ok(figure)
}
