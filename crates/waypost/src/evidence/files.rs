//! The probes for files: that one is there, and that its bytes have a digest.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use rustix::fs::{FileType, Stat};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::id::Digest;
use crate::record::Claim;

use super::beneath::{LastLink, Lost, Place};
use super::expect::size_fits;
use super::{ARTIFACT_EXISTS, Cost, FILE_SHA256, Finding, Probe, Site};

/// How much of a file is read at once: a check needs this much memory, however long the file is.
const CHUNK_BYTES: usize = 64 << 10;

/// Checks `artifact_exists`: a file or folder is there, of the `type` (`file`, `directory`, `symlink`, `any`) and
/// `size` expected.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExistsProbe;

/// Checks `file_sha256`: the bytes of a regular file have the digest expected.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sha256Probe;

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
        let (subject, site) = (claim.subject.clone(), site.clone());
        let hashed = blocking(move |dropped| {
            let (file, before) = Place::find(&site, &subject, LastLink::Follow)?.open_regular()?;
            hash_file(file, &before, dropped)
        });
        hashed.await.map_err(finding_of)
    }
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
    let mut hash = Sha256::new();
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
    let stamp =
        |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec);
    if stamp(before) != stamp(&after) {
        return Err(Lost::Changing("it was written to while it was read".to_owned()));
    }
    Ok(Digest::from_bytes(hash.finalize().into()))
}

fn finding_of(lost: Lost) -> Finding {
    match lost {
        Lost::Missing => Finding::failed("it is not there"),
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

impl Outcome for Result<Digest, Lost> {
    fn cut(why: &str) -> Self {
        Err(Lost::Unclear(why.to_owned()))
    }
}
