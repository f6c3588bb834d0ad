//! Raw limit of a file store: temporary file, fsync, rename and folder fsync per record of 1 KB.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::ensure;

use super::append::RECORD_BYTES;
use super::measure::{self, Bench, Measured, Topic, Unit};

/// Name of the subject, for demands of other topics.
pub(super) const NAME: &str = "temp + fsync + rename + folder fsync, 1 KB";

/// About half a second on a fast disk.
const COUNT: u32 = 1_000;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let folder = bench.folder("rename")?;
    let count = bench.count(COUNT);
    let record = measure::noise(RECORD_BYTES);
    let subject = Measured::new(NAME, Unit::PerSecond, move || round(&folder, &record, count));
    Ok(Topic { name: "rename", subjects: vec![subject], demands: Vec::new() })
}

fn round(folder: &Path, record: &[u8], count: u32) -> anyhow::Result<f64> {
    let history = tempfile::tempdir_in(folder)?;
    let handle = File::open(history.path())?;

    let start = Instant::now();
    for seq in 1..=count {
        let part = history.path().join(format!("{seq:010}.part"));
        let mut file = File::create_new(&part)?;
        file.write_all(record)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&part, part.with_extension("json"))?;
        handle.sync_all()?;
    }
    let figure = measure::per_second(count, start);

    let mut found = 0;
    for entry in fs::read_dir(history.path())? {
        let path = entry?.path();
        ensure!(fs::read(&path)? == record, "{} does not hold what was written", path.display());
        found += 1;
    }
    ensure!(found == count, "{found} files instead of {count}");
    Ok(figure)
}
