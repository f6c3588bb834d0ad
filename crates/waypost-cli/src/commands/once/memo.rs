//! What is remembered of the commands of a script: the state of its run, by key.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use waypost::disk::RealDisk;
use waypost::engine::Snapshot;
use waypost::folder::{append_blob, read_blob, sync_blob};
use waypost::id::Digester;
use waypost::store::{BLOB_CHUNK_BYTES, Store, StoreError};
use waypost::{Digest, RunId, StepId};

use crate::error::Error;
use crate::error::OnceError;
use crate::run::definition::SCRIPT;

/// The schema version of [`Memos`].
pub(super) const SCHEMA: u32 = 1;
/// Longest key: it stands among the labels of records, which are no longer.
const KEY_BYTES_MAX: usize = waypost::recorder::LABEL_BYTES_MAX;
/// Most commands of one script: their state stays far below what a record may carry, even if all print as much as is kept
/// in it.
pub(super) const MEMOS_MAX: usize = 5_000;
/// What a command prints is kept in the record up to this size, and else beside it: so that the state of many stays small.
const INLINE_BYTES_MAX: usize = 2 * 1024;
/// How much of one stream is kept: as much as a command that lists items may print. More is no result but a file.
pub(super) const OUTPUT_BYTES_MAX: u64 = 256 << 20;

/// The name of a command within its script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) text: String,
    /// The step of that name; where the key is no name of a step, one that is like it.
    pub(super) step: StepId,
}

impl Key {
    /// Takes a key as it was given.
    pub(super) fn new(text: &str) -> Result<Self, Error> {
        if text.is_empty() || text.len() > KEY_BYTES_MAX || text.contains(char::is_control) {
            let text: String = text.chars().take(80).collect();
            return Err(Error::usage(
                format!(
                    "invalid key {text:?}: a key has 1 to {KEY_BYTES_MAX} bytes, without control characters"
                ),
                "the key names the command in the script: `waypost once fetch -- curl …`",
            ));
        }
        let step = match StepId::new(text) {
            Ok(step) => step,
            Err(_) => StepId::new(&similar(text)).map_err(Error::from_name)?,
        };
        Ok(Self { text: text.to_owned(), step })
    }
}

/// Makes the name of a step that is like `text`, and of no other.
fn similar(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '_' };
    let begin: String = text.chars().take(48).map(plain).collect();
    let first = if begin.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') { "" } else { "_" };
    let digest = Digest::of(text.as_bytes()).to_string();
    format!("{first}{begin}-{}", &digest[..8])
}

/// The state of a run that a script makes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Memos {
    /// By key.
    #[serde(default)]
    pub(super) memos: BTreeMap<String, Memo>,
}

/// A command that is done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Memo {
    /// Of its words.
    pub(super) command: Digest,
    pub(super) exit_code: u8,
    pub(super) stdout: Kept,
    pub(super) stderr: Kept,
}

/// What was printed to one stream: itself, or where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) bytes: u64,
    sha256: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blob: Option<String>,
}

/// Returns the digest by which a changed command is noticed.
pub(super) fn digest_of(command: &[OsString]) -> Digest {
    Digest::of_parts(command.iter().map(|word| word.as_encoded_bytes()))
}

/// Reads what the run of a script remembers, if there is such a run.
pub(super) async fn read(store: &dyn Store, run: &RunId) -> Result<Option<Memos>, Error> {
    let snapshot = match Snapshot::read(store, run).await {
        Ok(snapshot) => snapshot,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !snapshot.entry.record.record().settings.contains_key(SCRIPT) {
        return Err(OnceError::OfAnother(run.clone()).into());
    }
    let newest = snapshot.newest();
    let unreadable = |why: String| OnceError::Unreadable { at: newest.header().reference().to_string(), why };
    if let Some(body) = newest.header().body.as_ref().filter(|body| body.schema > SCHEMA) {
        let what = format!("the state of {}", newest.header().reference());
        return Err(StoreError::Version { what, found: body.schema, supported: SCHEMA }.into());
    }
    let bytes = newest.state_bytes().ok_or_else(|| unreadable("the checkpoint has no state".to_owned()))?;
    let memos: Memos = serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
    Ok(Some(memos))
}

impl Kept {
    /// Returns the blob that it is in, with its size and SHA-256.
    pub(super) fn in_blob(&self) -> Option<(String, u64, Digest)> {
        Some((self.blob.clone()?, self.bytes, self.sha256))
    }

    /// Gives the stream to `take`, piece by piece, once it was seen to be what was printed.
    ///
    /// # Errors
    /// [`OnceError::Damaged`]: it is not; nothing was given.
    pub(super) async fn give(
        &self,
        store: &dyn Store,
        run: &RunId,
        mut take: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(text) = &self.text {
            return take(text.as_bytes());
        }
        let Some(blob) = &self.blob else { return Ok(()) };
        let mut digester = Digester::default();
        let mut at = 0;
        while let Some(chunk) = chunk(store, run, blob, at).await? {
            digester.update(&chunk);
            at += chunk.len() as u64;
        }
        if at != self.bytes || digester.finish() != self.sha256 {
            return Err(OnceError::Damaged { run: run.clone(), blob: blob.clone() }.into());
        }
        at = 0;
        while let Some(chunk) = chunk(store, run, blob, at).await? {
            at += chunk.len() as u64;
            take(&chunk)?;
        }
        Ok(())
    }
}

/// Reads a piece of a blob; none at its end.
async fn chunk(store: &dyn Store, run: &RunId, blob: &str, at: u64) -> Result<Option<Vec<u8>>, Error> {
    let chunk = store.blobs().read(run, blob, at).await?;
    Ok((!chunk.is_empty()).then_some(chunk))
}

/// Appends to a blob of the run with this folder. The lock of the key keeps others from it.
pub(super) fn append(folder: &Path, blob: &str, bytes: &[u8]) -> Result<(), StoreError> {
    bytes.chunks(BLOB_CHUNK_BYTES).try_for_each(|chunk| append_blob(&RealDisk, folder, blob, chunk))
}

/// A stream while it is printed.
pub(super) struct Keeping {
    /// That of the run.
    folder: PathBuf,
    /// Where it goes once it is too large for the record.
    blob: String,
    head: Vec<u8>,
    spilled: bool,
    bytes: u64,
    digester: Digester,
}

impl Keeping {
    /// Begins with nothing. A blob that an earlier try has left is not added to.
    pub(super) fn new(folder: PathBuf, name: &str) -> Result<Self, StoreError> {
        let mut blob = name.to_owned();
        let mut count = 1;
        while !read_blob(&RealDisk, &folder, &blob, 0)?.is_empty() {
            count += 1;
            blob = format!("{name}.{count}");
        }
        let (head, digester) = (Vec::new(), Digester::default());
        Ok(Self { folder, blob, head, spilled: false, bytes: 0, digester })
    }

    /// Says how much there was.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes what was printed next.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.digester.update(bytes);
        self.bytes += bytes.len() as u64;
        if !self.spilled && self.head.len() + bytes.len() <= INLINE_BYTES_MAX {
            self.head.extend_from_slice(bytes);
            return Ok(());
        }
        self.spill()?;
        append(&self.folder, &self.blob, bytes)
    }

    fn spill(&mut self) -> Result<(), StoreError> {
        let head = std::mem::take(&mut self.head);
        self.spilled = true;
        append(&self.folder, &self.blob, &head)
    }

    /// Ends it; what it returns can be relied on when this returns.
    pub(super) fn finish(mut self) -> Result<Kept, StoreError> {
        let mut text = None;
        if !self.spilled {
            match String::from_utf8(std::mem::take(&mut self.head)) {
                Ok(head) => text = Some(head),
                Err(error) => {
                    self.head = error.into_bytes();
                    self.spill()?;
                }
            }
        }
        if self.spilled {
            sync_blob(&RealDisk, &self.folder, &self.blob)?;
        }
        let blob = self.spilled.then_some(self.blob);
        Ok(Kept { bytes: self.bytes, sha256: self.digester.finish(), text, blob })
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn a_key_that_is_no_step_has_a_step_of_its_own() {
        let step = |text: &str| Key::new(text).unwrap().step.to_string();

        assert_eq!(step("fetch"), "fetch");
        let (one, other) = (step("load eu.csv"), step("load eu_csv"));
        assert!(one.starts_with("load_eu_csv-") && other.starts_with("load_eu_csv-"));
        assert_ne!(one, other);
        assert!(step("7").starts_with("_7-"));
        assert!(step(&"ä".repeat(100)).len() <= 64);
        for wrong in ["", "a\nb", &"x".repeat(257)] {
            assert!(Key::new(wrong).is_err(), "{wrong}");
        }
    }
}
