//! Evidence about files: hashing many files against SHA-256 on all cores, and rechecking many unchanged files
//! against a plain `stat` per file.
//!
//! A reader cannot reach nine tenths of pure SHA-256: the kernel copies a file at six to seven times that
//! rate. A plain loop of reading and hashing has the same cost and is measured for comparison. Mapping a file
//! avoids the copy, but page faults cost as much, and a concurrent truncation kills the process.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use waypost::evidence::{FILE_SHA256, Limits, Sha256Probe, Site, Verifier};
use waypost::record::{Claim, Pack, Terms, Verdict};

use super::hash;
use super::measure::{self, Bench, Bound, Demand, Measured, Topic, Unit};
use super::program::runtime;

const CORES: &str = "SHA-256 on all cores at once";
const LOOP: &str = "files of 1 MiB, read and hashed in a plain loop on all cores";
const TREE: &str = "evidence: a folder of files of 1 MiB, hashed";
const EACH: &str = "evidence: files of 1 MiB, each a claim, hashed";
const STAT: &str = "a plain stat, of each file";
const AGAIN_TREE: &str = "evidence: a folder of small files, looked at again";
const AGAIN_EACH: &str = "evidence: small files, each a claim, looked at again";

/// Enough files that cores do not wait long for the last file; a third of a second on two cores.
const LARGE_FILES: u32 = 512;
const LARGE_BYTES: usize = 1 << 20;
/// About a quarter of a second.
const BUFFERS: u32 = 50;
/// The counts in the target.
const SMALL_FILES: u32 = 10_000;
const SMALL_BYTES: usize = 16;

pub(super) fn topic(bench: &Bench) -> anyhow::Result<Topic> {
    let (large, small) = (bench.count(LARGE_FILES), bench.count(SMALL_FILES));
    let world = EvidenceWorld { folder: bench.folder("evidence")?, large, small, claims: OnceCell::new() };
    let world = Rc::new(world);
    let per_byte = |name, claims: fn(&Claims) -> &Vec<Claim>| {
        let world = Rc::clone(&world);
        Measured::new(name, Unit::BytesPerSecond, move || {
            let duration = world.verify(claims(world.claims()?), u64::from(large))?;
            Ok(f64::from(large) * LARGE_BYTES as f64 / duration.as_secs_f64())
        })
    };
    let per_file = |name, claims: fn(&Claims) -> &Vec<Claim>| {
        let world = Rc::clone(&world);
        Measured::new(name, Unit::PerSecond, move || {
            let duration = world.verify(claims(world.claims()?), 0)?;
            Ok(f64::from(small) / duration.as_secs_f64())
        })
    };
    let buffers = bench.count(BUFFERS);
    let (looked_at, read) = (Rc::clone(&world), Rc::clone(&world));
    let subjects = vec![
        Measured::new(CORES, Unit::BytesPerSecond, move || hash::on_all_cores(buffers)),
        Measured::new(LOOP, Unit::BytesPerSecond, move || read.read()),
        per_byte(TREE, |claims| &claims.tree),
        per_byte(EACH, |claims| &claims.each),
        Measured::new(STAT, Unit::PerSecond, move || looked_at.stat()),
        per_file(AGAIN_TREE, |claims| &claims.again_tree),
        per_file(AGAIN_EACH, |claims| &claims.again_each),
    ];
    let at_least =
        |claim, ours, limit, least| Demand { claim, ours, limit: Some(limit), bound: Bound::AtLeast(least) };
    let demands = vec![
        at_least("a folder is hashed by all cores", TREE, CORES, 0.9),
        at_least("so are files, each a claim", EACH, CORES, 0.9),
        at_least("a folder is hashed as fast as it can be read", TREE, LOOP, 0.9),
        at_least("so are files, each a claim, as fast as they can be read", EACH, LOOP, 0.9),
        at_least("the check of an unchanged folder costs little more than `stat`", AGAIN_TREE, STAT, 0.5),
        at_least("so are files, each a claim of a step, before a resume", AGAIN_EACH, STAT, 0.33),
    ];
    Ok(Topic { name: "evidence", subjects, demands })
}

/// The files and the claims about them.
struct EvidenceWorld {
    folder: PathBuf,
    large: u32,
    small: u32,
    claims: OnceCell<Claims>,
}

struct Claims {
    tree: Vec<Claim>,
    each: Vec<Claim>,
    again_tree: Vec<Claim>,
    again_each: Vec<Claim>,
}

impl EvidenceWorld {
    /// Returns the claims, pinned as by a committing step. The first call creates the files.
    fn claims(&self) -> anyhow::Result<&Claims> {
        if let Some(claims) = self.claims.get() {
            return Ok(claims);
        }
        write(&self.folder.join("large"), self.large, LARGE_BYTES)?;
        write(&self.folder.join("small"), self.small, SMALL_BYTES)?;
        let (slow, fast) = (Terms::default(), Terms { fast: true, ..Terms::default() });
        let each = |name: &str, count, terms: &Terms| {
            self.pinned((0..count).map(|file| claim(&format!("{name}/{file}"), terms)).collect())
        };
        let claims = Claims {
            tree: self.pinned(vec![claim("large", &slow)])?,
            each: each("large", self.large, &slow)?,
            again_tree: self.pinned(vec![claim("small", &fast)])?,
            again_each: each("small", self.small, &fast)?,
        };
        Ok(self.claims.get_or_init(|| claims))
    }

    fn pinned(&self, claims: Vec<Claim>) -> anyhow::Result<Vec<Claim>> {
        let hour = Duration::from_secs(3_600);
        let verifier = Verifier::new().with_limits(Limits { claim: hour, pack: hour, ..Limits::default() });
        let pack = Pack { at_least: None, claims };
        let pack = runtime()?.block_on(verifier.pin(&pack, &Site::beneath(&self.folder)));
        ensure!(pack.claims.iter().all(|claim| !claim.expect.is_null()), "something could not be pinned");
        Ok(pack.claims)
    }

    /// Checks claims as a resume does and returns the duration; `reads` is the expected number of files read.
    fn verify(&self, claims: &[Claim], reads: u64) -> anyhow::Result<Duration> {
        let probe = Sha256Probe::new();
        let verifier = Verifier::new().with_probe(Arc::new(probe.clone()));
        let site = Site::beneath(&self.folder);
        let asked: Vec<(Claim, Site)> = claims.iter().map(|claim| (claim.clone(), site.clone())).collect();
        let runtime = runtime()?;

        let start = Instant::now();
        let checked = runtime.block_on(verifier.verify_all(&asked));
        let duration = start.elapsed();

        ensure!(
            checked.iter().all(|claim| claim.verdict == Verdict::Ok),
            "the evidence of unchanged files does not hold"
        );
        ensure!(probe.files_read() == reads, "{} files were read, not {reads}", probe.files_read());
        Ok(duration)
    }

    fn read(&self) -> anyhow::Result<f64> {
        self.claims()?;
        let paths: Vec<_> =
            (0..self.large).map(|name| self.folder.join("large").join(name.to_string())).collect();
        let bytes = hash::files_on_all_cores(&paths)?;
        ensure!(bytes.0 == u64::from(self.large) * LARGE_BYTES as u64, "{} bytes were read", bytes.0);
        Ok(bytes.0 as f64 / bytes.1.as_secs_f64())
    }

    fn stat(&self) -> anyhow::Result<f64> {
        self.claims()?;
        let folder = self.folder.join("small");
        let paths: Vec<_> = (0..self.small).map(|name| folder.join(name.to_string())).collect();
        let start = Instant::now();
        for path in &paths {
            ensure!(fs::metadata(path)?.len() == SMALL_BYTES as u64, "{} is another file", path.display());
        }
        Ok(measure::per_second(self.small, start))
    }
}

fn write(folder: &Path, count: u32, bytes: usize) -> anyhow::Result<()> {
    fs::create_dir(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let noise = measure::noise(bytes);
    for name in 0..count {
        fs::write(folder.join(name.to_string()), &noise)?;
    }
    Ok(())
}

fn claim(subject: &str, terms: &Terms) -> Claim {
    Claim { pinned: true, terms: terms.clone(), ..Claim::new(FILE_SHA256, subject) }
}
