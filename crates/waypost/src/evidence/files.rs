//! The probes for files: that one is there, and that its bytes have a digest.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rustix::fs::{FileType, Stat};
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::id::{Digest, Digester};
use crate::record::Claim;

use super::beneath::{LastLink, Lost, Place};
use super::expect::size_fits;
use super::{ARTIFACT_EXISTS, Cost, FILE_SHA256, Finding, Probe, Site};

/// How much of a file is read at once: a check needs this much memory, however long the file is.
const CHUNK_BYTES: usize = 64 << 10;

/// Most files whose digest is kept in mind: a few hundred bytes each.
const KNOWN_FILES_MAX: usize = 10_000;
/// How long a file must have been left alone before its digest is kept in mind: the coarsest times of a file system
/// are two seconds apart (FAT), and a write within them would not show.
const SETTLED_SECONDS: i64 = 3;

/// Checks `artifact_exists`: a file or folder is there, of the `type` (`file`, `directory`, `symlink`, `any`) and
/// `size` expected.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExistsProbe;

/// Checks `file_sha256`: the bytes of a regular file have the digest expected.
#[derive(Debug, Clone, Default)]
pub struct Sha256Probe {
    known: Option<Arc<Known>>,
    files_read: Arc<AtomicU64>,
}

impl Sha256Probe {
    /// Makes a probe that reads each file at every check.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a probe that does not read a file again while device, inode, size and times of it are the same.
    ///
    /// For large files that are checked often. What rots on the medium by itself is not seen then, nor what is written
    /// below the file system; files that changed a moment ago, by `clock`, are always read.
    pub fn remembering(clock: Arc<dyn Clock>) -> Self {
        let known = Known { clock, digests: Mutex::default() };
        Self { known: Some(Arc::new(known)), ..Self::default() }
    }

    /// Returns how many files were read until now.
    pub fn files_read(&self) -> u64 {
        self.files_read.load(Ordering::Relaxed)
    }
}

/// What tells a file that was written to from one that was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    #[expect(clippy::unnecessary_cast, reason = "the types of these members differ between systems")]
    fn of(stat: &Stat) -> Self {
        Self {
            bytes: stat.st_size as i64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }
}

/// Digests of files, by device and inode.
#[derive(Debug)]
struct Known {
    clock: Arc<dyn Clock>,
    digests: Mutex<HashMap<(u64, u64), (Stamp, Digest)>>,
}

impl Known {
    #[expect(clippy::unnecessary_cast, reason = "the types of these members differ between systems")]
    fn key(stat: &Stat) -> (u64, u64) {
        (stat.st_dev as u64, stat.st_ino as u64)
    }

    fn get(&self, stat: &Stat) -> Option<Digest> {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests
            .get(&Self::key(stat))
            .filter(|(stamp, _)| *stamp == Stamp::of(stat))
            .map(|(_, digest)| *digest)
    }

    /// Keeps a digest in mind, if the file had been left alone for long enough at `begun`.
    fn keep(&self, stat: &Stat, digest: Digest, begun: i64) {
        let stamp = Stamp::of(stat);
        if begun - stamp.modified.0.max(stamp.changed.0) < SETTLED_SECONDS {
            return;
        }
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if digests.len() >= KNOWN_FILES_MAX {
            digests.clear();
        }
        digests.insert(Self::key(stat), (stamp, digest));
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Probe for ExistsProbe {
    fn kind(&self) -> &str {
        ARTIFACT_EXISTS
    }

    fn cost(&self) -> Cost {
        Cost::Asking
    }

    fn is_live(&self) -> bool {
        false
    }

    fn is_local(&self, _: &Claim) -> bool {
        true
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Finding {
        let wanted = match Wanted::read(&claim.expect) {
            Ok(wanted) => wanted,
            Err(finding) => return finding,
        };
        let (subject, site) = (claim.subject.clone(), site.clone());
        blocking(move |_| wanted.check(&site, &subject)).await
    }

    async fn pin(&self, _: &Claim, _: &Site) -> Finding {
        Finding::failed("that a file is there is expected, not pinned")
    }
}

/// What `artifact_exists` expects.
#[derive(Debug, Clone)]
struct Wanted {
    kind: String,
    size: Value,
}

impl Wanted {
    fn read(expect: &Value) -> Result<Self, Finding> {
        let mut wanted = Self { kind: "any".to_owned(), size: Value::Null };
        let map = match expect {
            Value::Null => return Ok(wanted),
            Value::Object(map) => map,
            other => return Err(Finding::failed(format!("`{other}` is no expectation of a file"))),
        };
        for (name, value) in map {
            match (name.as_str(), value.as_str()) {
                ("type", Some(kind @ ("file" | "directory" | "symlink" | "any"))) => {
                    kind.clone_into(&mut wanted.kind)
                }
                ("type", _) => return Err(Finding::failed(format!("`{value}` is not a type of file"))),
                // A null would read as no expectation at all.
                ("size", _) if value.is_null() => return Err(Finding::failed("no size is expected")),
                ("size", _) => wanted.size = value.clone(),
                (other, _) => {
                    return Err(Finding::unknown(format!(
                        "the expectation `{other}` cannot be checked here"
                    )));
                }
            }
        }
        Ok(wanted)
    }

    fn check(&self, site: &Site, subject: &str) -> Finding {
        let last = if self.kind == "symlink" { LastLink::Keep } else { LastLink::Follow };
        let stat = match Place::find(site, subject, last).and_then(|place| place.stat()) {
            Ok(stat) => stat,
            Err(lost) => return finding_of(lost),
        };
        let (kind, bytes) = (kind_of(&stat), u64::try_from(stat.st_size).unwrap_or(0));
        let mut found = json!({ "type": kind });
        if kind == "file" {
            found["size"] = json!(bytes);
        }
        let fits = match self.kind.as_str() {
            "any" => matches!(kind, "file" | "directory"),
            wanted => wanted == kind,
        };
        if !fits {
            return Finding::differs(found);
        }
        match (&self.size, kind) {
            (Value::Null, _) => Finding::ok(found),
            (size, "file") => match size_fits(size, bytes) {
                Ok(true) => Finding::ok(found),
                Ok(false) => Finding::differs(found),
                Err(error) => Finding::failed(error.to_string()),
            },
            _ => Finding::differs(found),
        }
    }
}

fn kind_of(stat: &Stat) -> &'static str {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        _ => "other",
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Probe for Sha256Probe {
    fn kind(&self) -> &str {
        FILE_SHA256
    }

    fn cost(&self) -> Cost {
        Cost::Reading
    }

    fn is_live(&self) -> bool {
        false
    }

    fn is_local(&self, _: &Claim) -> bool {
        true
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Finding {
        let expect = match digest_of(&claim.expect) {
            Ok(digest) => digest,
            Err(why) => return Finding::failed(why),
        };
        match self.hash(claim, site).await {
            Ok(found) if found == expect => Finding::ok(found.to_string()),
            Ok(found) => Finding::differs(found.to_string()),
            Err(finding) => finding,
        }
    }

    async fn pin(&self, claim: &Claim, site: &Site) -> Finding {
        match self.hash(claim, site).await {
            Ok(found) => Finding::ok(found.to_string()),
            Err(finding) => finding,
        }
    }
}

impl Sha256Probe {
    async fn hash(&self, claim: &Claim, site: &Site) -> Result<Digest, Finding> {
        let (subject, site, probe) = (claim.subject.clone(), site.clone(), self.clone());
        let hashed = blocking(move |dropped| {
            let (file, before) = Place::find(&site, &subject, LastLink::Follow)?.open_regular()?;
            let known = probe.known.as_ref();
            if let Some(digest) = known.and_then(|known| known.get(&before)) {
                return Ok(digest);
            }
            let begun = known.map(|known| known.clock.now().as_second());
            probe.files_read.fetch_add(1, Ordering::Relaxed);
            let digest = hash_file(file, &before, dropped)?;
            if let (Some(known), Some(begun)) = (known, begun) {
                known.keep(&before, digest, begun);
            }
            Ok(digest)
        });
        hashed.await.map_err(finding_of)
    }
}

/// Reads a regular file that a claim is about, for probes of other crates: within the folders that `site` has, through no
/// link that leaves them.
///
/// # Errors
/// What is to be found of a claim about it: it is not there, may not be used, has more than `bytes_max` bytes, or cannot be
/// read.
pub async fn read_file(site: &Site, subject: &str, bytes_max: usize) -> Result<Vec<u8>, Finding> {
    let (site, subject) = (site.clone(), subject.to_owned());
    let read = blocking(move |_| -> Result<Vec<u8>, Lost> {
        let (file, _) = Place::find(&site, &subject, LastLink::Follow)?.open_regular()?;
        let mut bytes = Vec::new();
        let limit = (bytes_max as u64).saturating_add(1);
        let read = file.take(limit).read_to_end(&mut bytes);
        read.map_err(|error| Lost::Unclear(format!("cannot read it: {error}")))?;
        match bytes.len() > bytes_max {
            true => Err(Lost::Unclear(format!("it has more than the {bytes_max} bytes that are looked at"))),
            false => Ok(bytes),
        }
    });
    read.await.map_err(finding_of)
}

/// Returns where a regular file is that a claim is about, without links on the way, for probes that have others open it.
///
/// What somebody puts in its place before it is opened, is opened.
///
/// # Errors
/// As [`read_file`].
pub async fn find_file(site: &Site, subject: &str) -> Result<PathBuf, Finding> {
    let (site, subject) = (site.clone(), subject.to_owned());
    let found = blocking(move |_| -> Result<PathBuf, Lost> {
        let place = Place::find(&site, &subject, LastLink::Follow)?;
        place.open_regular()?;
        Ok(site.base().unwrap_or(Path::new("")).join(place.path()))
    });
    found.await.map_err(finding_of)
}

/// Reads an expected digest; people write it in either case.
fn digest_of(expect: &Value) -> Result<Digest, String> {
    match expect {
        Value::Null => Err("no digest is expected".to_owned()),
        Value::String(text) => text
            .to_ascii_lowercase()
            .parse()
            .map_err(|_| "what is expected is not a SHA-256 of 64 hexadecimal digits".to_owned()),
        other => Err(format!("`{other}` is not a SHA-256")),
    }
}

/// Hashes a file piece by piece, and sees that it was the same file all the time.
fn hash_file(mut file: File, before: &Stat, dropped: &AtomicBool) -> Result<Digest, Lost> {
    let mut hash = Digester::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        // Nobody waits any more; a thread that goes on would only be in the way.
        if dropped.load(Ordering::Relaxed) {
            return Err(Lost::Changing("it was given up".to_owned()));
        }
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => hash.update(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Lost::Unclear(format!("cannot read it: {error}"))),
        }
    }
    let after = rustix::fs::fstat(&file).map_err(super::beneath::lost)?;
    if Stamp::of(before) != Stamp::of(&after) {
        return Err(Lost::Changing("it was written to while it was read".to_owned()));
    }
    Ok(hash.finish())
}

fn finding_of(lost: Lost) -> Finding {
    match lost {
        Lost::Missing => Finding::absent("it is not there"),
        Lost::Refused(why) => Finding::failed(why),
        Lost::Unclear(why) => Finding::unknown(why),
        Lost::Changing(why) => Finding::unknown_yet(why),
    }
}

/// Does what may block on a thread for that, and tells it when nobody waits any more.
async fn blocking<T: Outcome>(work: impl FnOnce(&AtomicBool) -> T + Send + 'static) -> T {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let flag = Dropped(Arc::default());
    let seen = Arc::clone(&flag.0);
    match tokio::task::spawn_blocking(move || work(&seen)).await {
        Ok(outcome) => outcome,
        Err(_) => T::cut("the check was cut short"),
    }
}

/// What work on another thread comes to, also if that thread was taken away.
trait Outcome: Send + 'static {
    fn cut(why: &str) -> Self;
}

impl Outcome for Finding {
    fn cut(why: &str) -> Self {
        Self::unknown(why)
    }
}

impl<T: Send + 'static> Outcome for Result<T, Lost> {
    fn cut(why: &str) -> Self {
        Err(Lost::Unclear(why.to_owned()))
    }
}
