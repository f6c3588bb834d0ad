//! The probes for files: existence, and digests of contents.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::fs::{FileType, Stat};
use serde_json::{Value, json};

use crate::id::{Digest, Digester};
use crate::record::Claim;
use crate::system::clock::{Clock, SystemClock};

use super::blocking::{blocking, finding_of};
use super::expect::{InvalidExpectation, size_fits};
use super::pattern::is_pattern;
use super::safe_open::{LastFolder, LastLink, OpenError, OpenedPath, regular};
use super::walk::TreeListing;
use super::{ARTIFACT_EXISTS, Cost, FILE_SHA256, Finding, Probe, ProbeKind, Site};

/// Bytes per read: the memory of a check, whatever the size of the file.
const CHUNK_BYTES: usize = 64 << 10;

/// Most cached file digests: a few hundred bytes each.
const KNOWN_FILES_MAX: usize = 10_000;
/// Minimal age of a file's last change before its digest is cached. The coarsest timestamps of a file system
/// are two seconds apart (FAT), and a write within this time would not show.
const SETTLED_SECONDS: i64 = 3;
/// Longest wait until a change would show in the times of a file: timestamps in whole seconds, plus a tick.
const SETTLING_MAX: Duration = Duration::from_millis(3_050);
/// The prefix of a tree digest, which a file digest never has.
const TREE: &str = "tree:";

/// Checks `artifact_exists`: a file or folder exists with the expected `type` (`file`, `directory`,
/// `symlink`, `any`), `size` and `mode`.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExistsProbe;

/// Checks `file_sha256`: the digest of a regular file's bytes, or the tree digest (docs/concepts/format.md) of a
/// folder or of the files that match [a pattern](super::is_pattern).
///
/// - `failed`: the digest differs, the subject does not exist, or the pattern has no match.
/// - `unknown`: the subject cannot be read, changed during the read, or contains other types than files,
///   folders and links.
///
/// With [terms](crate::record::Terms::fast) that trust times, a pinned subject is not read again while size,
/// times and inodes are unchanged.
#[derive(Debug, Clone)]
pub struct Sha256Probe {
    clock: Arc<dyn Clock>,
    known: Option<Arc<CachedDigest>>,
    files_read: Arc<AtomicU64>,
}

impl Default for Sha256Probe {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), known: None, files_read: Arc::default() }
    }
}

impl Sha256Probe {
    /// Creates a probe that reads each file at every check.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a probe that caches digests while device, inode, size and times of a file are unchanged.
    ///
    /// For large files with frequent checks. Bit rot and writes below the file system go undetected. Files
    /// changed a moment ago, by `clock`, are always read.
    pub fn remembering(clock: Arc<dyn Clock>) -> Self {
        let known = CachedDigest { clock: Arc::clone(&clock), digests: Mutex::default() };
        Self { clock, known: Some(Arc::new(known)), ..Self::default() }
    }

    /// Returns how many files were read so far.
    pub fn files_read(&self) -> u64 {
        self.files_read.load(Ordering::Relaxed)
    }
}

/// Size and times of a file, to detect writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    bytes: i64,
    pub(super) modified: (i64, i64),
    pub(super) changed: (i64, i64),
}

impl Stamp {
    #[expect(clippy::unnecessary_cast, reason = "the types of these members differ between systems")]
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            bytes: stat.st_size as i64,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Returns the device and inode number of a file.
    #[expect(clippy::unnecessary_cast, reason = "the types of these members differ between systems")]
    pub(super) fn inode(stat: &Stat) -> (u64, u64) {
        (stat.st_dev as u64, stat.st_ino as u64)
    }
}

/// Digests of files, by device and inode.
#[derive(Debug)]
struct CachedDigest {
    clock: Arc<dyn Clock>,
    digests: Mutex<HashMap<(u64, u64), (Stamp, Digest)>>,
}

impl CachedDigest {
    fn get(&self, stat: &Stat) -> Option<Digest> {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests
            .get(&Stamp::inode(stat))
            .filter(|(stamp, _)| *stamp == Stamp::of(stat))
            .map(|(_, digest)| *digest)
    }

    /// Caches a digest, if the file had been unchanged for long enough at `begun`.
    fn keep(&self, stat: &Stat, digest: Digest, begun: i64) {
        let stamp = Stamp::of(stat);
        if begun - stamp.modified.0.max(stamp.changed.0) < SETTLED_SECONDS {
            return;
        }
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if digests.len() >= KNOWN_FILES_MAX {
            digests.clear();
        }
        digests.insert(Stamp::inode(stat), (stamp, digest));
    }
}

#[async_trait]
impl Probe for ExistsProbe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(ARTIFACT_EXISTS, Cost::Asking).local()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let wanted = FileExpectation::read(&claim.expect)?;
        let (subject, site) = (claim.subject.clone(), site.clone());
        Ok(blocking(move |_| wanted.check(&site, &subject)).await)
    }
}

/// The parsed expectation of `artifact_exists`.
#[derive(Debug, Clone)]
struct FileExpectation {
    kind: String,
    size: Value,
    modes: Vec<u32>,
}

impl FileExpectation {
    fn read(expect: &Value) -> Result<Self, Finding> {
        let mut wanted = Self { kind: "any".to_owned(), size: Value::Null, modes: Vec::new() };
        let map = match expect {
            Value::Null => return Ok(wanted),
            Value::Object(map) => map,
            other => return Err(Finding::failed(format!("unsupported expectation `{other}` of a file"))),
        };
        for (name, value) in map {
            match (name.as_str(), value.as_str()) {
                ("type", Some(kind @ ("file" | "directory" | "symlink" | "any"))) => {
                    kind.clone_into(&mut wanted.kind)
                }
                ("type", _) => return Err(Finding::failed(format!("`{value}` is not a file type"))),
                // A null would be read as "any size".
                ("size", _) if value.is_null() => return Err(Finding::failed("the claim has no size")),
                ("size", _) => wanted.size = value.clone(),
                ("mode", _) => wanted.modes = modes_of(value)?,
                (other, _) => {
                    return Err(Finding::unknown(format!("unsupported expectation `{other}`")));
                }
            }
        }
        Ok(wanted)
    }

    fn check(&self, site: &Site, subject: &str) -> Finding {
        let last = if self.kind == "symlink" { LastLink::Keep } else { LastLink::Follow };
        // With a size or mode expected, a missing or different object fails the negated claim, too.
        let is_only_there = self.size.is_null() && self.modes.is_empty();
        let none = |finding: Finding| if is_only_there { finding } else { finding.either_way() };
        let stat = match OpenedPath::find(site, subject, last).and_then(|place| place.stat()) {
            Ok(stat) => stat,
            Err(open_error) => return none(finding_of(open_error)),
        };
        let (kind, bytes) = (kind_of(&stat), u64::try_from(stat.st_size).unwrap_or(0));
        if kind == "file"
            && let Err(open_error) = regular(&stat)
        {
            return finding_of(open_error);
        }
        let mut found = json!({ "type": kind });
        if kind == "file" {
            found["size"] = json!(bytes);
        }
        let fits = match self.kind.as_str() {
            "any" => matches!(kind, "file" | "directory"),
            wanted => wanted == kind,
        };
        if !fits {
            // An object exists, but of another type.
            let finding = Finding::differs(found);
            return if self.kind == "any" { finding.either_way() } else { none(finding) };
        }
        if !self.modes.is_empty() {
            let mode = stat.st_mode & MODE_BITS;
            found["mode"] = json!(format!("{mode:04o}"));
            if !self.modes.contains(&mode) {
                return Finding::differs(found);
            }
        }
        match (&self.size, kind) {
            (Value::Null, _) => Finding::ok(found),
            (size, "file") => match size_fits(size, bytes) {
                Ok(holds) => Finding::compared(holds, found),
                Err(error) => error.into(),
            },
            _ => none(Finding::differs(found)),
        }
    }
}

/// The permission bits of a mode, and the three bits above.
const MODE_BITS: u32 = 0o7777;

/// Checks that an expectation of a file mode is valid: three or four octal digits as text, or a list of
/// these.
///
/// # Errors
/// [`InvalidExpectation`]: the value is not a mode.
pub fn check_mode(expect: &Value) -> Result<(), InvalidExpectation> {
    modes_of(expect).map(drop)
}

fn modes_of(expect: &Value) -> Result<Vec<u32>, InvalidExpectation> {
    let wrong = || InvalidExpectation::new(format!("`{expect}` is not a mode, such as \"0644\""));
    let mode = |value: &Value| {
        let text = value.as_str().filter(|text| matches!(text.len(), 3 | 4)).ok_or_else(wrong)?;
        if !text.bytes().all(|byte| (b'0'..=b'7').contains(&byte)) {
            return Err(wrong());
        }
        u32::from_str_radix(text, 8).map_err(|_| wrong())
    };
    match expect {
        Value::Array(list) if !list.is_empty() => list.iter().map(mode).collect(),
        one => Ok(vec![mode(one)?]),
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
impl Probe for Sha256Probe {
    fn kind(&self) -> ProbeKind {
        ProbeKind::new(FILE_SHA256, Cost::Reading).local()
    }

    fn glance(&self, claims: &[&Claim], site: &Site) -> Vec<Option<Finding>> {
        let mut folder = LastFolder::new(site);
        let glance = |claim: &Claim| {
            let stamp = claim.stamp.as_ref().filter(|_| claim.terms.fast)?;
            let expect = digest_of(&claim.expect).ok()?;
            if is_pattern(&claim.subject) {
                return None;
            }
            let stat = folder.look(&claim.subject).ok()?;
            // A folder needs a walk, which is not cheap.
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            (is_file && Observation::of(&stat).stamp == *stamp).then(|| Finding::ok(expect))
        };
        claims.iter().copied().map(glance).collect()
    }

    async fn check(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        let expect = digest_of(&claim.expect).map_err(Finding::failed)?;
        if let Some(stamp) = claim.stamp.as_ref().filter(|_| claim.terms.fast)
            && self.look(claim, site).await.is_ok_and(|look| look.stamp == *stamp)
        {
            return Ok(Finding::ok(expect));
        }
        // A missing file has no digest at all, so the negated claim fails, too.
        let found = self.hash(claim, site).await.map_err(Finding::either_way)?;
        Ok(Finding::compared(found == expect, found))
    }

    async fn pin(&self, claim: &Claim, site: &Site) -> Result<Finding, Finding> {
        if !claim.terms.fast {
            return self.hash(claim, site).await.map(Finding::ok);
        }
        let (digest, stamp) = self.pin_with_times(claim, site).await?;
        let finding = Finding::ok(digest);
        Ok(stamp.into_iter().fold(finding, Finding::stamped))
    }
}

/// The subject's appearance, taken without a read.
struct Observation {
    stamp: String,
    /// The time from which a further change would show in the stamp.
    settled: Option<Timestamp>,
}

impl Observation {
    /// Returns the sight of a subject other than a folder.
    fn of(stat: &Stat) -> Self {
        let stamp = Stamp::of(stat);
        let text = format!("{} {stamp:?} {:?}", kind_of(stat), Stamp::inode(stat));
        Self { stamp: Digest::of(text.as_bytes()).to_string(), settled: stamp.settled() }
    }
}

impl Sha256Probe {
    /// Hashes a subject and takes its stamp, if a later change must show in the stamp. After a recent write,
    /// waits until the timestamps can show the next write.
    async fn pin_with_times(&self, claim: &Claim, site: &Site) -> Result<(String, Option<String>), Finding> {
        let before = self.look(claim, site).await?;
        if let Some(settled) = before.settled
            && let Ok(pause) = Duration::try_from(settled.duration_since(self.clock.now()))
            && pause <= SETTLING_MAX
        {
            tokio::time::sleep(pause).await;
        }
        let begun = self.clock.now();
        let digest = self.hash(claim, site).await?;
        let after = self.look(claim, site).await?;
        let is_told = before.stamp == after.stamp && before.settled.is_some_and(|settled| settled <= begun);
        Ok((digest, is_told.then_some(after.stamp)))
    }

    /// Takes size, times and inodes of the subject.
    async fn look(&self, claim: &Claim, site: &Site) -> Result<Observation, Finding> {
        let (subject, site) = (claim.subject.clone(), site.clone());
        let looked = blocking(move |dropped| {
            if let Some(survey) = TreeListing::of(&site, &subject, dropped)? {
                return Ok(Observation { stamp: survey.stamp(), settled: survey.settled() });
            }
            Ok(Observation::of(&OpenedPath::look(&site, &subject)?))
        });
        looked.await.map_err(finding_of)
    }

    /// Returns the digest of a file, or the tree digest.
    async fn hash(&self, claim: &Claim, site: &Site) -> Result<String, Finding> {
        let (subject, site, probe) = (claim.subject.clone(), site.clone(), self.clone());
        let hashed = blocking(move |dropped| {
            if let Some(survey) = TreeListing::of(&site, &subject, dropped)? {
                let again = || TreeListing::of(&site, &subject, dropped);
                let count = || {
                    probe.files_read.fetch_add(1, Ordering::Relaxed);
                };
                return Ok(format!("{TREE}{}", survey.hash(again, count, dropped)?));
            }
            let (file, before) = OpenedPath::find(&site, &subject, LastLink::Follow)?.open_regular()?;
            let known = probe.known.as_ref();
            if let Some(digest) = known.and_then(|known| known.get(&before)) {
                return Ok(digest.to_string());
            }
            let begun = known.map(|known| known.clock.now().as_second());
            probe.files_read.fetch_add(1, Ordering::Relaxed);
            let digest = hash_file(file, &before, dropped)?;
            if let (Some(known), Some(begun)) = (known, begun) {
                known.keep(&before, digest, begun);
            }
            Ok(digest.to_string())
        });
        hashed.await.map_err(finding_of)
    }
}

/// Reads the regular file of a claim, for probes in other crates: within the folders of `site`, never through
/// a link that leaves them.
///
/// # Errors
/// A finding for the claim: the file does not exist, is not allowed, exceeds `bytes_max`, or cannot be read.
pub async fn read_file(site: &Site, subject: &str, bytes_max: usize) -> Result<Vec<u8>, Finding> {
    let (site, subject) = (site.clone(), subject.to_owned());
    let read = blocking(move |_| -> Result<Vec<u8>, OpenError> {
        let (file, before) = OpenedPath::find(&site, &subject, LastLink::Follow)?.open_regular()?;
        let bytes = read_whole(file, &before, bytes_max, || {})?;
        match bytes.len() > bytes_max {
            true => Err(OpenError::Unclear(format!("the file exceeds {bytes_max} bytes, the maximum"))),
            false => Ok(bytes),
        }
    });
    read.await.map_err(finding_of)
}

/// Returns the path without links of a claim's folder, for probes that run other programs in the folder.
///
/// # Errors
/// A finding for the claim: the folder does not exist, is another type, is not allowed, or cannot be
/// inspected.
pub async fn find_folder(site: &Site, subject: &str) -> Result<PathBuf, Finding> {
    let (site, subject) = (site.clone(), subject.to_owned());
    let found = blocking(move |_| -> Result<PathBuf, OpenError> {
        let place = OpenedPath::find(&site, &subject, LastLink::Follow)?;
        match kind_of(&place.stat()?) {
            "directory" => Ok(site.base().unwrap_or(Path::new("")).join(place.path())),
            _ => Err(OpenError::Refused("the path is not a folder".to_owned())),
        }
    });
    found.await.map_err(finding_of)
}

/// Returns the modification time of a claim's file or folder, for probes in other crates.
///
/// # Errors
/// As [`read_file`].
pub async fn modified(site: &Site, subject: &str) -> Result<Timestamp, Finding> {
    let (site, subject) = (site.clone(), subject.to_owned());
    let looked = blocking(move |_| -> Result<Timestamp, OpenError> {
        let stat = OpenedPath::find(&site, &subject, LastLink::Follow)?.stat()?;
        if !matches!(kind_of(&stat), "file" | "directory") {
            return Err(OpenError::Refused(
                "neither a file nor a folder, and its time is not reliable".to_owned(),
            ));
        }
        let (seconds, nanoseconds) = Stamp::of(&stat).modified;
        let time = i32::try_from(nanoseconds).ok().and_then(|part| Timestamp::new(seconds, part).ok());
        time.ok_or_else(|| OpenError::Unclear("the modification time is out of range".to_owned()))
    });
    looked.await.map_err(finding_of)
}

/// Returns the files and folders that match [a pattern](super::is_pattern), sorted, [as
/// subjects](super::literal_path), for probes in other crates; empty without a match. A link counts as its
/// target; the search does not descend through links.
///
/// # Errors
/// As [`read_file`], if an entry cannot be inspected, or if a name is not UTF-8.
pub async fn find_all(site: &Site, pattern: &str) -> Result<Vec<String>, Finding> {
    let (site, pattern) = (site.clone(), pattern.to_owned());
    let found = blocking(move |dropped| super::walk::all_existing(&site, &pattern, dropped));
    found.await.map_err(finding_of)
}

/// Returns all entries that match a pattern, of any type: also links themselves, pipes and devices.
///
/// # Errors
/// As [`find_all`].
pub async fn find_names(site: &Site, pattern: &str) -> Result<Vec<String>, Finding> {
    let (site, pattern) = (site.clone(), pattern.to_owned());
    let found = blocking(move |dropped| super::walk::all(&site, &pattern, dropped));
    found.await.map_err(finding_of)
}

/// Parses an expected digest, in either case.
fn digest_of(expect: &Value) -> Result<String, String> {
    let is_digest = |text: &str| text.strip_prefix(TREE).unwrap_or(text).parse::<Digest>().is_ok();
    match expect.as_str().map(str::to_ascii_lowercase) {
        None if expect.is_null() => Err("the claim has no digest".to_owned()),
        None => Err(format!("`{expect}` is not a SHA-256")),
        Some(text) if is_digest(&text) => Ok(text),
        Some(_) => Err("the expected value is not a SHA-256 of 64 hexadecimal digits".to_owned()),
    }
}

/// Reads a file up to a byte over the limit, and checks that the file did not change meanwhile.
fn read_whole(
    mut file: File,
    before: &Stat,
    bytes_max: usize,
    meanwhile: impl FnOnce(),
) -> Result<Vec<u8>, OpenError> {
    let mut bytes = Vec::new();
    let limit = (bytes_max as u64).saturating_add(1);
    let read = (&mut file).take(limit).read_to_end(&mut bytes);
    read.map_err(|error| OpenError::Unclear(format!("cannot read the file: {error}")))?;
    meanwhile();
    is_unchanged(&file, before)?;
    Ok(bytes)
}

/// Checks that a file did not change since the open.
fn is_unchanged(file: &File, before: &Stat) -> Result<(), OpenError> {
    let after = rustix::fs::fstat(file).map_err(super::safe_open::open_error)?;
    match Stamp::of(before) == Stamp::of(&after) {
        true => Ok(()),
        false => Err(OpenError::Changing("the file changed during the read".to_owned())),
    }
}

/// Hashes a file piece by piece, and checks that the file did not change meanwhile.
pub(super) fn hash_file(mut file: File, before: &Stat, dropped: &AtomicBool) -> Result<Digest, OpenError> {
    let mut hash = Digester::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        // The caller stopped waiting: end the thread.
        if dropped.load(Ordering::Relaxed) {
            return Err(OpenError::Changing("the check was cancelled".to_owned()));
        }
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => hash.update(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(OpenError::Unclear(format!("cannot read the file: {error}"))),
        }
    }
    is_unchanged(&file, before)?;
    Ok(hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_while_it_is_read_is_not_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let read = |meanwhile: &dyn Fn()| {
            std::fs::write(&path, "one").expect("a file");
            let file = File::open(&path).expect("it is there");
            let before = rustix::fs::fstat(&file).expect("it is open");
            read_whole(file, &before, 9, meanwhile)
        };

        assert_eq!(read(&|| {}), Ok(b"one".to_vec()));
        let changed = read(&|| std::fs::write(&path, "three").expect("a file"));
        assert!(matches!(changed, Err(OpenError::Changing(_))), "{changed:?}");
    }
}
