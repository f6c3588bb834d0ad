//! Portable checkpoints: a file with everything that a new run needs to continue, without the original store.
//!
//! The file holds the exact committed bytes of:
//! - the checkpoint with its position and state,
//! - the run record (workflow, definition, config, settings),
//! - the headers referenced by the position (results, evidence, memos),
//! - during a fan-out: the newest checkpoint of each child scope, with its headers, and the frozen items,
//! - the files of the submission, if any,
//! - the names of the steps that have begun since the checkpoint.
//!
//! The file begins with its own hash; docs/concepts/format.md specifies each byte.
//!
//! ```text
//!   store --Portable::of--> Portable --save--> file --load--> Portable --> state, position, definition, config
//! ```
//!
//! Loading runs nothing: bytes are read, checked and decoded as JSON within limits. The hash detects damage,
//! not malice: an author of a file can compute its hash. Before a run, a person must therefore approve the
//! commands of a foreign definition. This module starts no run; the engine does.
//!
//! # Examples
//!
//! ```
//! use waypost::memory::MemoryStore;
//! use waypost::portable::{LoadError, Portable, SaveMode};
//! # use waypost_testing::records::{Links, holder, run_id, run_record, sealed};
//! # use waypost::store::Store;
//! # #[derive(serde::Deserialize)]
//! # struct State {}
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = MemoryStore::new();
//! # let run = run_id("r-1");
//! # let mut links = Links::of(&run);
//! # let batch = links.step();
//! # store.create(&sealed(run_record(&run)), batch, &holder("doc")).await?;
//! # let reference = links.header(&waypost::ScopePath::main()).reference();
//! # let reference = waypost::CheckpointRef { seq: reference.seq - 1, ..reference };
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("review.json");
//! # let migrations = waypost::schema::Migrations::default();
//! // On one machine:
//! Portable::of(&store, &reference).await?.save(&path, SaveMode::New)?;
//!
//! // On another:
//! let portable = Portable::load(&path)?;
//! let state: State = portable.state(&migrations)?;
//! assert_eq!(portable.reference(), reference);
//!
//! match Portable::load("elsewhere.json".as_ref()) {
//!     Err(LoadError::NotFound { .. }) => {}
//!     Err(LoadError::Corrupt { flaw, .. }) => eprintln!("get another copy: {flaw}"),
//!     Err(LoadError::Incompatible { supported, .. }) => eprintln!("this version reads up to {supported}"),
//!     other => drop(other?),
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::id::{CheckpointRef, Digest, ScopePath, StepId};
use crate::record::{Definition, Flaw, FrontierEntry, Header, Parent, Position, Reason, Record, SealedRun};
use crate::schema::{Migrations, SchemaError};
use crate::store::{StoreError, check_blob_name};
use crate::system::sealed::{
    RecordText, begin, check, finish, json_to_the_byte, member, parse, push_record_members,
};

mod disk;
mod export;

pub use disk::{LoadError, SaveError, SaveMode};
pub(crate) use export::{OnDamagedChild, begun_since, history_of};

/// The newest format of portable checkpoints, for reading and writing.
pub const PORTABLE_FORMAT: u32 = 4;
/// Largest file. A state of the largest size fits several times over, and a machine of 2 GB can still load
/// the file. A fan-out of more than some hundred thousand children is moved with its store instead.
pub const PORTABLE_BYTES_MAX: u64 = 512 << 20;

/// A checkpoint with all dependencies of a new run.
#[derive(Debug, Clone, PartialEq)]
pub struct Portable {
    run: SealedRun,
    checkpoint: Record,
    position: Position,
    history: Vec<Record>,
    children: Vec<Record>,
    blobs: BTreeMap<String, Vec<u8>>,
    begun_since: BTreeSet<StepId>,
}

/// Why a checkpoint cannot be exported. The store did not change.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store lacks the checkpoint, or has it damaged.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Retention dropped the state, or a later checkpoint of the same commit has it. Export another
    /// checkpoint.
    #[error("checkpoint {reference} has no state of its own")]
    Absent {
        /// The checkpoint.
        reference: CheckpointRef,
    },
    /// The checkpoint is not the newest, and its fan-out has continued since: the former state of the
    /// children is not known. Export the newest checkpoint, or one before `step`.
    #[error("the scopes of step `{step}` have newer records than checkpoint {reference}")]
    Amid {
        /// The checkpoint.
        reference: CheckpointRef,
        /// The step with the fan-out.
        step: String,
    },
    /// The run continued during the export. Export its newest checkpoint.
    #[error("checkpoint {reference} is no longer the newest")]
    Overtaken {
        /// The checkpoint.
        reference: CheckpointRef,
    },
    /// The frozen items of a fan-out are lost or damaged, so that the remaining scopes could not be opened.
    #[error("checkpoint {reference} lacks the recorded items `{name}` of its fan-out")]
    Items {
        /// The checkpoint.
        reference: CheckpointRef,
        /// The blob of the items.
        name: String,
    },
    /// The file would exceed [`PORTABLE_BYTES_MAX`]. Copy the store instead.
    #[error("checkpoint {reference} and its scopes exceed {PORTABLE_BYTES_MAX} bytes, the maximum of a file")]
    TooLarge {
        /// The checkpoint.
        reference: CheckpointRef,
    },
}

impl Portable {
    /// Returns the reference of the exported checkpoint.
    pub fn reference(&self) -> CheckpointRef {
        self.checkpoint.header().reference()
    }

    /// Returns the parent entry for a run that begins here.
    pub fn parent(&self) -> Parent {
        let CheckpointRef { run, scope, seq } = self.reference();
        Parent { run, scope, seq, digest: self.checkpoint.digest() }
    }

    /// Returns the run record.
    pub fn run(&self) -> &SealedRun {
        &self.run
    }

    /// Returns the config in force at the checkpoint: of the run record, or of a later change.
    pub fn config(&self) -> &Map<String, Value> {
        let changed = self.position.config.and_then(|seq| self.changed_at(&self.checkpoint, seq));
        changed.and_then(|changed| changed.config).unwrap_or(&self.run.record().config)
    }

    /// Returns the definition in force at the checkpoint: of the run record, or of a later change.
    pub fn definition(&self) -> &Definition {
        let changed = self.position.definition.and_then(|seq| self.changed_at(&self.checkpoint, seq));
        changed.and_then(|changed| changed.definition).unwrap_or(&self.run.record().definition)
    }

    /// Returns the checkpoint with its body.
    pub fn checkpoint(&self) -> &Record {
        &self.checkpoint
    }

    /// Returns the position: unfinished steps, and the seqs of finished steps' results in
    /// [`Portable::history`].
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Returns the headers referenced by the positions of the checkpoint and its children, by scope and seq.
    /// These are the effective records of finished steps with acceptances of their evidence, of definition and
    /// config, and the records of unfinished steps since their status began, with memos.
    pub fn history(&self) -> &[Record] {
        &self.history
    }

    /// Returns the newest checkpoint of each child scope of the checkpoint's fan-outs, with its body, in
    /// order of name. Includes ended children, and the children of open children.
    pub fn children(&self) -> &[Record] {
        &self.children
    }

    /// Returns the frozen items of fan-outs, and the files of the submission, by the name of their blob.
    pub fn blobs(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.blobs
    }

    /// Returns the steps of the scope that have begun between the checkpoint and the export. A run that begins here must not
    /// repeat their effects without a question.
    pub fn begun_since(&self) -> &BTreeSet<StepId> {
        &self.begun_since
    }

    /// Decodes the state, in the current version of its schema.
    ///
    /// # Errors
    /// Those of [`Migrations::state`].
    pub fn state<S: DeserializeOwned>(&self, migrations: &Migrations) -> Result<S, SchemaError> {
        migrations.state(&self.checkpoint)
    }

    /// Returns the text of the file, with its hash. The same checkpoint always has the same text.
    pub fn to_text(&self) -> Vec<u8> {
        let records = || [&self.checkpoint].into_iter().chain(&self.history).chain(&self.children);
        let mut text = begin(records().map(size_of).sum::<usize>() + self.run.bytes().len() + 1_024);
        member(&mut text, "format", &PORTABLE_FORMAT);
        member(&mut text, "portable_checkpoint", &self.reference().to_string());
        member(&mut text, "tool", &concat!("waypost ", env!("CARGO_PKG_VERSION")));
        member(&mut text, "config", self.config());
        member(&mut text, "run_digest", &self.run.digest());
        text.extend_from_slice(b",\n\"run\":");
        text.extend_from_slice(self.run.bytes());
        text.extend_from_slice(b",\n\"checkpoint\":{");
        push_record_members(&mut text, &self.checkpoint);
        text.push(b'}');
        push_records(&mut text, "history", &self.history);
        push_records(&mut text, "children", &self.children);
        let blobs: BTreeMap<_, _> =
            self.blobs.iter().map(|(name, bytes)| (name, BlobText::of(bytes))).collect();
        member(&mut text, "blobs", &blobs);
        member(&mut text, "begun_since", &self.begun_since);
        finish(text)
    }

    /// Parses the text of a file, after checking every byte.
    ///
    /// # Errors
    /// - [`Flaw::Digest`], [`Flaw::Malformed`]: the text is damaged, or not a portable checkpoint.
    /// - [`Flaw::Format`]: another version wrote the file.
    /// - [`Flaw::Limit`]: the text exceeds [`PORTABLE_BYTES_MAX`].
    pub fn from_text(text: &[u8]) -> Result<Self, Flaw> {
        #[derive(Deserialize)]
        struct File<'a> {
            portable_checkpoint: String,
            config: Map<String, Value>,
            run_digest: Digest,
            #[serde(borrow)]
            run: &'a RawValue,
            #[serde(borrow)]
            checkpoint: RecordText<'a>,
            #[serde(borrow)]
            history: Vec<RecordText<'a>>,
            #[serde(borrow)]
            children: Vec<RecordText<'a>>,
            #[serde(borrow)]
            blobs: BTreeMap<String, BlobText<'a>>,
            begun_since: BTreeSet<StepId>,
        }
        if text.len() as u64 > PORTABLE_BYTES_MAX {
            return Err(Flaw::Limit(format!(
                "the file has {} bytes, the maximum is {PORTABLE_BYTES_MAX}",
                text.len()
            )));
        }
        check(text, PORTABLE_FORMAT)?;
        let file: File<'_> = parse(text)?;
        let open = |records: Vec<RecordText<'_>>| {
            records.into_iter().map(RecordText::open).collect::<Result<_, _>>()
        };
        let run = SealedRun::open(file.run_digest, file.run.get().as_bytes().to_vec())?;
        let checkpoint = file.checkpoint.open()?;
        let position = checkpoint.position()?.with_failures_open();
        let (history, children) = (open(file.history)?, open(file.children)?);
        let blobs = file.blobs.into_iter().map(|(name, blob)| Ok((name, blob.bytes()?)));
        let blobs = blobs.collect::<Result<_, Flaw>>()?;
        let begun_since = file.begun_since;
        let portable = Self { run, checkpoint, position, history, children, blobs, begun_since };
        if file.portable_checkpoint != portable.reference().to_string() {
            return Err(Flaw::Malformed(format!(
                "the header belongs to {}",
                clipped(&file.portable_checkpoint)
            )));
        }
        portable.check()?;
        if file.config != *portable.config() {
            return Err(Flaw::Malformed("the config does not match its run".to_owned()));
        }
        Ok(portable)
    }

    /// Checks the consistency of all parts; users of the value need no further checks.
    fn check(&self) -> Result<(), Flaw> {
        let reference = self.reference();
        let mut records = [&self.checkpoint].into_iter().chain(&self.history).chain(&self.children);
        if let Some(foreign) = records.find(|record| record.header().run != self.run.record().run) {
            return malformed(format!("checkpoint {} belongs to another run", foreign.header().reference()));
        }
        let mut heads = BTreeMap::from([(&reference.scope, &self.checkpoint)]);
        let mut scopes = BTreeSet::new();
        for child in &self.children {
            let scope = &child.header().scope;
            if !is_within(scope, &reference.scope) || !scopes.insert(scope) || child.body_bytes().is_none() {
                return malformed(format!(
                    "checkpoint {} is not a child of the exported checkpoint",
                    child.header().reference()
                ));
            }
            heads.insert(scope, child);
        }
        let before = |record: &Record| {
            let header = record.header();
            let newest = heads.get(&header.scope);
            newest.is_some_and(|newest| header.seq < newest.header().seq || header.reason == Reason::Accept)
        };
        let rising = self.history.windows(2).all(|pair| place_of(&pair[0]) < place_of(&pair[1]));
        if !rising || !self.history.iter().all(before) {
            return malformed(format!("the history does not lead to {reference}"));
        }
        let open = self.children.iter().filter(|child| child.header().end.is_none());
        for newest in open.chain([&self.checkpoint]) {
            self.check_references(newest)?;
        }
        match self.blobs.keys().find(|name| check_blob_name(name).is_err()) {
            Some(name) => malformed(format!("`{}` is not the name of a blob", clipped(name))),
            None => Ok(()),
        }
    }

    /// Checks that all records and items required by a record's position are present.
    fn check_references(&self, newest: &Record) -> Result<(), Flaw> {
        let position = newest.position()?.with_failures_open();
        let CheckpointRef { run, scope, .. } = newest.header().reference();
        let is_repeated = |seq: u64| {
            let changes = position.definition == Some(seq) || position.config == Some(seq);
            changes && self.changed_at(newest, seq).is_some()
        };
        let is_lacking = |seq: &u64| self.referred(newest, *seq).is_none() && !is_repeated(*seq);
        if let Some(seq) = referred_to(&position).into_iter().find(is_lacking) {
            let lacking = CheckpointRef { run, scope, seq };
            return malformed(format!("missing header {lacking}, referenced by a position"));
        }
        let fans = position.open_entries().flat_map(FrontierEntry::fans);
        for items in fans.filter_map(|fan| fan.items.as_ref()) {
            let whole = |blob: &Vec<u8>| Digest::of(blob) == items.digest;
            if !self.blobs.get(&items.blob).is_some_and(whole) {
                return malformed(format!("missing items `{}`, referenced by a position", items.blob));
            }
        }
        Ok(())
    }

    /// Returns the definition and config changed by the record `seq` in the scope of `newest`: from the
    /// record, or from the copy in the next record.
    fn changed_at<'a>(&'a self, newest: &'a Record, seq: u64) -> Option<Changed<'a>> {
        if let Some(record) = self.referred(newest, seq) {
            let Header { definition, config, .. } = record.header();
            return Some(Changed { definition: definition.as_ref(), config: config.as_ref() });
        }
        let scope = &newest.header().scope;
        let mut own = self.history.iter().chain([newest]).filter(|record| record.header().scope == *scope);
        let again =
            own.find_map(|record| record.header().repeated.as_ref().filter(|again| again.of == seq))?;
        Some(Changed { definition: again.definition.as_ref(), config: again.config.as_ref() })
    }

    /// Returns the header with this seq in the scope of `newest`.
    fn referred<'a>(&'a self, newest: &'a Record, seq: u64) -> Option<&'a Record> {
        let scope = &newest.header().scope;
        if seq == newest.header().seq {
            return Some(newest);
        }
        let at = self.history.binary_search_by_key(&(scope, seq), place_of).ok()?;
        self.history.get(at)
    }
}

/// The lasting changes in a record.
struct Changed<'a> {
    definition: Option<&'a Definition>,
    config: Option<&'a Map<String, Value>>,
}

fn malformed(what: String) -> Result<(), Flaw> {
    Err(Flaw::Malformed(what))
}

/// Returns the sort key of a record in the history.
fn place_of(record: &Record) -> (&ScopePath, u64) {
    (&record.header().scope, record.header().seq)
}

/// Returns the seqs required by a position, in the same scope.
fn referred_to(position: &Position) -> BTreeSet<u64> {
    position.end_seqs().into_iter().chain(position.definition).chain(position.config).collect()
}

/// Returns whether `child` is a descendant of `scope`.
fn is_within(child: &ScopePath, scope: &ScopePath) -> bool {
    std::iter::successors(child.parent(), ScopePath::parent).any(|parent| parent == *scope)
}

fn size_of(record: &Record) -> usize {
    record.header_bytes().len() + record.body_bytes().map_or(0, |body| body.len()) + 256
}

fn push_records(text: &mut Vec<u8>, name: &str, records: &[Record]) {
    text.extend_from_slice(format!(",\n\"{name}\":[").as_bytes());
    for (index, record) in records.iter().enumerate() {
        text.extend_from_slice(if index == 0 { b"\n{" } else { b",\n{" });
        push_record_members(text, record);
        text.push(b'}');
    }
    text.push(b']');
}

/// Returns the beginning of a text, enough to identify it.
fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}

/// A blob in the text: raw if the bytes are lines of JSON, else in base64.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BlobText<'a> {
    Lines(#[serde(borrow)] Vec<&'a RawValue>),
    Base64(String),
}

impl<'a> BlobText<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let lines = bytes.strip_suffix(b"\n").map(|lines| lines.split(|byte| *byte == b'\n'));
        match lines.and_then(|lines| lines.map(json_to_the_byte).collect()) {
            Some(lines) => Self::Lines(lines),
            None => Self::Base64(BASE64.encode(bytes)),
        }
    }

    fn bytes(self) -> Result<Vec<u8>, Flaw> {
        match self {
            Self::Lines(lines) => {
                Ok(lines.iter().flat_map(|line| [line.get(), "\n"]).collect::<String>().into_bytes())
            }
            Self::Base64(text) => BASE64.decode(text).map_err(|error| Flaw::Malformed(error.to_string())),
        }
    }
}
