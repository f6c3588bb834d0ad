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
/// The longest key: a label of a record has it.
const KEY_BYTES_MAX: usize = waypost::recorder::LABEL_BYTES_MAX;
/// The most commands of one script: even with the largest inline output each, the state stays far below the limit of a
/// record.
pub(super) const MEMOS_MAX: usize = 5_000;
/// The largest output stored in the state of the run; larger output is stored in a blob, which keeps the state small.
const INLINE_BYTES_MAX: usize = 2 * 1024;
/// The largest stored output of one stream: the limit of the output of an item list. Larger results belong in a file.
pub(super) const OUTPUT_BYTES_MAX: u64 = 256 << 20;

/// The name of a command within its script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) text: String,
    /// The step with the key as its name, or with a similar name if the key is not a valid name.
    pub(super) step: StepId,
}

impl Key {
    /// Checks a key of the command line.
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

/// Returns a step name that resembles `text`, made unique by a digest of `text`.
fn similar(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '_' };
    let begin: String = text.chars().take(48).map(plain).collect();
    let first = if begin.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') { "" } else { "_" };
    let digest = Digest::of(text.as_bytes()).to_string();
    format!("{first}{begin}-{}", &digest[..8])
}

/// The state of a script's run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Memos {
    /// By key.
    #[serde(default)]
    pub(super) memos: BTreeMap<String, Memo>,
}

/// The result of a finished command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Memo {
    /// The digest of the command words.
    pub(super) command: Digest,
    pub(super) exit_code: u8,
    pub(super) stdout: StoredOutput,
    pub(super) stderr: StoredOutput,
}

/// The output of one stream: inline as text, or the name of its blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredOutput {
    pub(super) bytes: u64,
    sha256: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blob: Option<String>,
}

/// Returns the digest that detects a changed command.
pub(super) fn digest_of(command: &[OsString]) -> Digest {
    Digest::of_parts(command.iter().map(|word| word.as_encoded_bytes()))
}

/// Reads the state of a script's run; `None` if the run does not exist.
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

impl StoredOutput {
    /// Returns the blob of the output, with its size and SHA-256; `None` for inline output.
    pub(super) fn in_blob(&self) -> Option<(String, u64, Digest)> {
        Some((self.blob.clone()?, self.bytes, self.sha256))
    }

    /// Passes the output to `take` in chunks, after a check of its size and SHA-256.
    ///
    /// # Errors
    /// [`OnceError::Damaged`]: the check failed; `take` was not called.
    pub(super) async fn read(
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

/// Reads a chunk of a blob; `None` at the end.
async fn chunk(store: &dyn Store, run: &RunId, blob: &str, at: u64) -> Result<Option<Vec<u8>>, Error> {
    let chunk = store.blobs().read(run, blob, at).await?;
    Ok((!chunk.is_empty()).then_some(chunk))
}

/// Appends to a blob in the folder of a run. The lock of the key excludes other writers.
pub(super) fn append(folder: &Path, blob: &str, bytes: &[u8]) -> Result<(), StoreError> {
    bytes.chunks(BLOB_CHUNK_BYTES).try_for_each(|chunk| append_blob(&RealDisk, folder, blob, chunk))
}

/// Writes the output of one stream: in memory first, and into a blob once it is too large for the state.
pub(super) struct OutputWriter {
    /// The folder of the run.
    folder: PathBuf,
    /// The name of the blob.
    blob: String,
    head: Vec<u8>,
    spilled: bool,
    bytes: u64,
    digester: Digester,
}

impl OutputWriter {
    /// Creates an empty output. The blobs of earlier attempts stay, and the new blob gets another name.
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

    /// Returns the number of bytes pushed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends output.
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

    /// Syncs the blob, and returns the stored output.
    pub(super) fn finish(mut self) -> Result<StoredOutput, StoreError> {
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
        Ok(StoredOutput { bytes: self.bytes, sha256: self.digester.finish(), text, blob })
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
