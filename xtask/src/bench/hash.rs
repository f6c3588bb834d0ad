//! Raw limit of digests: SHA-256 over a large buffer, and over records of 1 KB.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use sha2::{Digest as _, Sha256};

use super::append::RECORD_BYTES;
use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit};

const LARGE: &str = "SHA-256, 8 MiB";
const SMALL: &str = "SHA-256, 1 KB";

/// Larger than the caches of a core, so that memory speed counts too.
const BUFFER_BYTES: usize = 8 << 20;

/// Read size for files: the fastest from 8 KiB to 1 MiB on our machine.
const CHUNK_BYTES: usize = 64 << 10;

/// About a third of a second each.
const COUNT_BUFFERS: u32 = 60;
const COUNT_RECORDS: u32 = 400_000;

/// SHA-256 of "abc": the one-block example of FIPS 180-2, appendix B.1.
const ABC: [u8; 4] = [0xba, 0x78, 0x16, 0xbf];

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let (buffers, records) = (bench.count(COUNT_BUFFERS), bench.count(COUNT_RECORDS));
    let buffer = measure::noise(BUFFER_BYTES);
    let record = measure::noise(RECORD_BYTES);
    let subjects = vec![
        Measured::new(LARGE, Unit::BytesPerSecond, move || round(&buffer, buffers)),
        Measured::new(SMALL, Unit::BytesPerSecond, move || round(&record, records)),
    ];
    // Every record is digested separately. If the start of a digest were expensive, records would need
    // batching.
    let small = Demand {
        claim: "digesting record by record costs little more",
        ours: SMALL,
        limit: Some(LARGE),
        bound: Bound::AtLeast(0.5),
    };
    Ok(Topic { name: "hash", subjects, demands: vec![small] })
}

/// Returns the bytes per second of all cores together, each hashing `buffers` buffers.
pub(super) fn on_all_cores(buffers: u32) -> anyhow::Result<f64> {
    ensure!(Sha256::digest(b"abc")[..4] == ABC, "SHA-256 is wrong");
    let cores = std::thread::available_parallelism()?.get();
    let buffer = measure::noise(BUFFER_BYTES);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                for _ in 0..buffers {
                    std::hint::black_box(Sha256::digest(std::hint::black_box(&buffer)));
                }
            });
        }
    });
    Ok(measure::per_second(buffers, start) * (cores * buffer.len()) as f64)
}

/// Reads and hashes files on all cores; returns their total size and the duration.
pub(super) fn files_on_all_cores(paths: &[PathBuf]) -> anyhow::Result<(u64, Duration)> {
    let cores = std::thread::available_parallelism()?.get();
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<u64> {
        let (mut chunk, mut bytes) = (vec![0; CHUNK_BYTES], 0);
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (mut file, mut hash) = (File::open(path)?, Sha256::new());
            loop {
                let count = file.read(&mut chunk)?;
                if count == 0 {
                    break;
                }
                hash.update(&chunk[..count]);
                bytes += count as u64;
            }
            std::hint::black_box(hash.finalize());
        }
        Ok(bytes)
    };
    let start = Instant::now();
    let bytes = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum::<io::Result<u64>>()
    });
    Ok((bytes?, start.elapsed()))
}

fn round(bytes: &[u8], count: u32) -> anyhow::Result<f64> {
    ensure!(Sha256::digest(b"abc")[..4] == ABC, "SHA-256 is wrong");
    let start = Instant::now();
    for _ in 0..count {
        std::hint::black_box(Sha256::digest(std::hint::black_box(bytes)));
    }
    Ok(measure::per_second(count, start) * bytes.len() as f64)
}
