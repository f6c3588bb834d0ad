//! Fan-outs: children opened page by page, and the input of the join.
//!
//! ```text
//!   step ready --> items stored --> waiting, children opened in pages --> all ended --> step starts, as the join
//!                                         ^ a crash here: each open child continues from its newest record
//! ```
//! The number of children is limited by the disk, not by memory. An open child that has not begun costs a few
//! words of memory. An ended child costs the seq and the digest of its last record. At most a page of unstarted
//! children is fully in memory, however many children end in a turn.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ScopeId;
use crate::engine::time_travel::source_scopes::CARRIED_ITEMS;
use crate::id::{Digest, Digester, RunId, ScopePath, StepId};
use crate::plan::shape::{Children, FailureLimits};
use crate::projection::events::RerunCause;
use crate::record::{End, EndDigests, Failure, FailureKind, Flaw, FrozenItems, Record};
use crate::store::{BLOB_CHUNK_BYTES, Damage, Lease, Scan, ScanOrder, Store, StoreError, StoreExt as _};

/// How many children a commit opens: enough for a low cost per child, few enough for a batch in memory.
pub const CHILD_PAGE: u64 = 1_000;

/// A child to open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// The key of the child, unique among its siblings.
    pub key: String,
    /// The value of the item.
    #[serde(default)]
    pub value: Value,
    /// The index among the siblings, from 0.
    #[serde(skip)]
    pub index: u64,
    /// The first step of the child; `None` for the first step of the shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StepId>,
}

/// An open child that has not begun.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) scope: ScopePath,
    pub(crate) index: u64,
    pub(crate) seq: u64,
}

/// An open fan-out.
#[derive(Debug)]
pub(crate) struct FanOut {
    /// The place of the opener.
    pub(crate) place: usize,
    pub(crate) source: Items,
    pub(crate) total: u64,
    pub(crate) opened: u64,
    /// The number of ended children.
    pub(crate) ended: u64,
    /// The number of children that ended in this session.
    pub(crate) ended_here: u64,
    /// The known number of failed children.
    pub(crate) failed: u64,
    /// The number of running children, or of children about to run.
    pub(crate) active: usize,
    /// True after the failure of a sibling: nothing more starts.
    pub(crate) stopped: bool,
    /// The number of children that failed in this session.
    failed_here: u64,
    /// The length of the last sequence of equal errors, and the error.
    equal_errors: (u32, String),
    /// True if children may have records from an earlier pass or from before a rerun.
    pub(crate) revisited: bool,
    /// The cause of the rerun of the opener, if its children may have run before.
    pub(crate) cause: Option<RerunCause>,
    /// True for the hooks of a failure, and of the success after a failure: no earlier result of a hook counts.
    pub(crate) after_failure: bool,
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) reader: Option<ItemReader>,
    /// The next seq of each scope that existed before, once read.
    pub(crate) next_seqs: Option<HashMap<ScopePath, u64>>,
    /// Scopes ready to continue, as soon as capacity permits.
    pub(crate) waiting_for_capacity: VecDeque<ScopeId>,
    /// Children with an interrupted step; these continue after all other children have started.
    pub(crate) interrupted: VecDeque<ScopeId>,
    /// Open scopes to remove from memory after the commit, unless capacity becomes free first.
    pub(crate) unloading: VecDeque<ScopeId>,
    /// The ends of children.
    pub(crate) ends: Arc<ChildEnds>,
    ended_in_session: Vec<bool>,
}

impl FanOut {
    /// Returns whether a child has not begun, or waits only for capacity.
    pub(crate) fn has_more(&self) -> bool {
        let (opened, known) =
            (self.opened < self.total, [&self.waiting_for_capacity, &self.unloading, &self.interrupted]);
        opened || !self.queue.is_empty() || known.iter().any(|scopes| !scopes.is_empty())
    }

    /// Returns whether the fan-out is unfinished and can progress only after an external event.
    pub(crate) fn rests(&self) -> bool {
        self.active == 0 && !self.has_more() && !self.is_complete()
    }

    pub(crate) fn new(place: usize, source: Items, total: u64, revisited: bool) -> Self {
        Self {
            place,
            source,
            total,
            opened: 0,
            ended: 0,
            ended_here: 0,
            failed: 0,
            active: 0,
            stopped: false,
            failed_here: 0,
            equal_errors: (0, String::new()),
            revisited,
            cause: None,
            after_failure: false,
            queue: VecDeque::new(),
            reader: None,
            next_seqs: None,
            waiting_for_capacity: VecDeque::new(),
            interrupted: VecDeque::new(),
            unloading: VecDeque::new(),
            ends: Arc::new(ChildEnds::new(total)),
            ended_in_session: vec![false; total as usize],
        }
    }

    /// Returns whether all children have ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.opened == self.total && self.ended == self.total
    }

    pub(crate) fn note_failure(&mut self, error: String) {
        self.failed_here += 1;
        let (count, last) = &mut self.equal_errors;
        *count = if *last == error { *count + 1 } else { 1 };
        *last = error;
    }

    pub(crate) fn note_success(&mut self) {
        self.equal_errors.0 = 0;
    }

    /// Returns the reason if a failure limit is exceeded.
    pub(crate) fn exceeded(&self, limits: &FailureLimits) -> Option<String> {
        let (equal_errors, error) = &self.equal_errors;
        if let Some(why) = limits.passed_by(self.failed_here, self.total) {
            return Some(why);
        }
        let max = limits.alike.filter(|max| *equal_errors >= *max)?;
        Some(format!("{max} consecutive items failed with the same error, no more were started: {error}"))
    }

    pub(crate) fn mark_ended_here(&mut self, index: u64) {
        self.ended_here += 1;
        self.ended_in_session[index as usize] = true;
    }

    pub(crate) fn is_ended_here(&self, index: u64) -> bool {
        self.ended_in_session[index as usize]
    }

    pub(crate) fn keep_end(&mut self, index: u64, last: &Record) {
        let ends = Arc::make_mut(&mut self.ends);
        let at = index as usize;
        ends.unknown -= u64::from(ends.seqs[at] == 0);
        (ends.seqs[at], ends.digests[at]) = (last.header().seq, last.digest());
        ends.nested[at] = nested_of(last);
        ends.outcomes[at] = outcome_of(last);
    }
}

/// The last records of the ended children, as far as known.
#[derive(Debug, Clone)]
pub(crate) struct ChildEnds {
    /// By index; 0 if unknown.
    seqs: Vec<u64>,
    /// By index; undefined if unknown.
    digests: Vec<Digest>,
    /// By index: the digests of the outputs of nested children and of the pins of the child.
    nested: Vec<EndDigests>,
    /// By index: the outcome, output and pins.
    outcomes: Vec<Digest>,
    unknown: u64,
}

/// Returns the digests of the nested children and of the pins of a child; without these, a unique digest.
fn nested_of(last: &Record) -> EndDigests {
    let unique = last.digest();
    last.header().scope_digests.unwrap_or(EndDigests { output: unique, pins: unique })
}

/// Returns the digest of the outcome, output and pins of a child; without these, a unique digest.
fn outcome_of(last: &Record) -> Digest {
    let header = last.header();
    match (header.end, header.digests, header.scope_digests) {
        (Some(End::Completed), Some(EndDigests { output, .. }), Some(EndDigests { pins, .. })) => {
            Digest::of_parts([&b"completed"[..], output.as_bytes(), pins.as_bytes()])
        }
        _ => last.digest(),
    }
}

/// The digests of joined children.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinedDigests {
    /// Merkle root of the last records.
    pub(crate) root: Digest,
    /// Merkle roots of the outputs of nested children, and of the pins.
    pub(crate) nested: EndDigests,
    /// Merkle root of outcomes, outputs and pins.
    pub(crate) outcomes: Digest,
}

impl JoinedDigests {
    fn of(records: &[Digest], nested: &[EndDigests], outcomes: &[Digest]) -> Self {
        let [root, outcomes] = [records, outcomes].map(Digest::merkle);
        Self { root, nested: EndDigests::together(nested), outcomes }
    }
}

impl ChildEnds {
    pub(crate) fn new(total: u64) -> Self {
        let (count, none) = (total as usize, Digest::from_bytes([0; 32]));
        let nested = vec![EndDigests { output: none, pins: none }; count];
        Self {
            seqs: vec![0; count],
            nested,
            outcomes: vec![none; count],
            digests: vec![none; count],
            unknown: total,
        }
    }

    fn get(&self, index: u64) -> Option<(u64, Digest)> {
        let seq = self.seqs.get(index as usize).copied().filter(|seq| *seq > 0)?;
        Some((seq, self.digests[index as usize]))
    }
}

/// The source of the items.
#[derive(Debug, Clone)]
pub(crate) enum Items {
    /// Named by the shape.
    Named(Arc<[Item]>),
    /// Stored in a blob.
    Stored { run: RunId, at: Arc<FrozenItems> },
}

impl Items {
    /// Returns the items of children named by a shape.
    pub(crate) fn named_by(named: &[(String, Option<StepId>)]) -> Arc<[Item]> {
        let item = |(index, (key, start)): (usize, &(String, Option<StepId>))| Item {
            key: key.clone(),
            value: Value::Null,
            index: index as u64,
            start: start.clone(),
        };
        named.iter().enumerate().map(item).collect()
    }

    /// Creates a reader that starts at the item `from`.
    pub(crate) async fn reader(&self, store: Arc<dyn Store>, from: u64) -> Result<ItemReader, StoreError> {
        let mut reader =
            ItemReader { store, items: self.clone(), offset: 0, buffer: Vec::new(), at: 0, index: 0 };
        match self {
            Self::Named(_) => reader.index = from,
            Self::Stored { run, at } => {
                check_items(reader.store.as_ref(), run, at).await?;
                while reader.index < from && reader.next().await?.is_some() {}
            }
        }
        Ok(reader)
    }
}

/// Returns the items of children named by the shape, or of a pass; `None` if the program names the items.
pub(crate) fn named_items(children: &Children, pass: u32) -> Option<Arc<[Item]>> {
    match children.passes {
        true => Some(Items::named_by(&[(pass.to_string(), None)])),
        false => (!children.named.is_empty()).then(|| Items::named_by(&children.named)),
    }
}

/// Writes the items to a new blob. Returns the name, size and digest of the blob.
pub(crate) async fn store_items(
    store: &dyn Store,
    lease: &Lease,
    name: String,
    items: &[Item],
) -> Result<FrozenItems, StoreError> {
    let (mut digester, mut bytes) = (Digester::default(), 0);
    // Memory holds at most a chunk of the text and an item.
    let mut text = Vec::with_capacity(BLOB_CHUNK_BYTES);
    let mut rest = items.iter().peekable();
    while let Some(item) = rest.next() {
        serde_json::to_writer(&mut text, item)
            .map_err(|error| StoreError::Invalid(format!("cannot record item `{}`: {error}", item.key)))?;
        text.push(b'\n');
        if text.len() < BLOB_CHUNK_BYTES && rest.peek().is_some() {
            continue;
        }
        for chunk in text.chunks(BLOB_CHUNK_BYTES) {
            store.blobs().append(lease, &name, chunk).await?;
        }
        digester.update(&text);
        bytes += text.len() as u64;
        text.clear();
    }
    // A blob without content does not exist; reading it returns no items.
    if bytes > 0 {
        store.blobs().sync(lease, &name).await?;
    }
    Ok(FrozenItems { blob: name, bytes, digest: digester.finish() })
}

/// Parses stored items.
///
/// # Errors
/// A line is not an item.
pub(crate) fn parse_items(text: &[u8]) -> Result<Arc<[Item]>, serde_json::Error> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let item = |(index, line)| Ok(Item { index: index as u64, ..serde_json::from_slice(line)? });
    lines.enumerate().map(item).collect()
}

/// Verifies the stored items, before the first item is used.
async fn check_items(store: &dyn Store, run: &RunId, at: &FrozenItems) -> Result<(), StoreError> {
    let mut digester = Digester::default();
    let mut offset = 0;
    while offset < at.bytes {
        let chunk = store.blobs().read(run, &at.blob, offset).await?;
        if chunk.is_empty() {
            break;
        }
        offset += chunk.len() as u64;
        digester.update(&chunk);
    }
    let actual = digester.finish();
    if offset == at.bytes && actual == at.digest {
        return Ok(());
    }
    let (blob, expect) = (&at.blob, at.digest);
    if offset == 0 && blob.starts_with(CARRIED_ITEMS) {
        return Err(StoreError::Invalid(format!(
            "run {run} lacks the items of its scopes: the process died during the copy; delete the run, \
             and fork or import again"
        )));
    }
    Err(items_mismatch(run, blob, (offset, actual), expect))
}

/// Returns the defects of the stored items of a scope's open fan-outs: missing or altered blobs. A resume
/// refuses such items.
///
/// # Errors
/// The store cannot be read.
pub async fn damaged_items(store: &dyn Store, newest: &Record) -> Result<Vec<String>, StoreError> {
    let position = newest.position().unwrap_or_default();
    let fans = position.open_entries().filter_map(|entry| entry.fans().next());
    let mut damaged = Vec::new();
    for items in fans.filter_map(|fan| fan.items.as_ref()) {
        match check_items(store, &newest.header().run, items).await {
            Ok(()) => {}
            Err(StoreError::Invalid(why)) => damaged.push(why),
            Err(StoreError::Io { action: USE, place, source }) => damaged.push(format!("{place}: {source}")),
            Err(error) => return Err(error),
        }
    }
    Ok(damaged)
}

/// The purpose of a read of stored items, for messages.
const USE: &str = "use";

/// Returns the error for missing or altered items, from the read size and digest.
pub(crate) fn items_mismatch(
    run: &RunId,
    blob: &str,
    (bytes, actual): (u64, Digest),
    expect: Digest,
) -> StoreError {
    let why = match bytes {
        0 => "the items are missing".to_owned(),
        _ => format!("the items have digest {actual}, expected {expect}"),
    };
    let place = format!("the recorded items `{blob}` of run {run}");
    StoreError::Io { action: USE, place, source: io::Error::new(io::ErrorKind::InvalidData, why) }
}

/// Reads items in order.
#[derive(Debug)]
pub(crate) struct ItemReader {
    store: Arc<dyn Store>,
    items: Items,
    offset: u64,
    buffer: Vec<u8>,
    at: usize,
    index: u64,
}

impl ItemReader {
    /// Returns the next item, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Item>, StoreError> {
        let (run, frozen) = match &self.items {
            Items::Named(items) => {
                let item = items.get(self.index as usize).cloned();
                self.index += 1;
                return Ok(item);
            }
            Items::Stored { run, at } => (run.clone(), Arc::clone(at)),
        };
        let missing = |what: &str| {
            StoreError::Invalid(format!(
                "the items of run {run} in blob `{}` are truncated: {what}",
                frozen.blob
            ))
        };
        loop {
            if let Some(end) = self.buffer[self.at..].iter().position(|byte| *byte == b'\n') {
                let line = &self.buffer[self.at..self.at + end];
                let mut item: Item =
                    serde_json::from_slice(line).map_err(|error| missing(&error.to_string()))?;
                item.index = self.index;
                self.at += end + 1;
                self.index += 1;
                return Ok(Some(item));
            }
            if self.offset >= frozen.bytes {
                let rest = self.buffer.len() - self.at;
                return if rest == 0 { Ok(None) } else { Err(missing("the last line is incomplete")) };
            }
            let chunk = self.store.blobs().read(&run, &frozen.blob, self.offset).await?;
            if chunk.is_empty() {
                return Err(missing("the blob is shorter than recorded"));
            }
            self.offset += chunk.len() as u64;
            self.buffer.drain(..self.at);
            self.at = 0;
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

/// The ends of a step's children, for its join.
#[derive(Debug, Clone)]
pub struct Joined {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) run: RunId,
    pub(crate) scope: ScopePath,
    /// The step that names the scopes.
    pub(crate) name: StepId,
    pub(crate) source: Items,
    pub(crate) total: u64,
    pub(crate) ends: Arc<ChildEnds>,
    pub(crate) is_after: bool,
    /// True for a pass, named by its number.
    pub(crate) passes: bool,
}

impl Joined {
    /// Returns whether the children are hooks, opened after the work of the step.
    pub fn is_after(&self) -> bool {
        self.is_after
    }

    /// Returns the number of children.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Reads the ends in item order, one at a time.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn outcomes(&self) -> Result<Outcomes, StoreError> {
        let reader = self.source.reader(Arc::clone(&self.store), 0).await?;
        Ok(Outcomes { joined: self.clone(), reader })
    }

    async fn last(&self, item: &Item) -> Result<Record, StoreError> {
        let scope = self.child(item)?;
        let Some((seq, expect)) = self.ends.get(item.index) else {
            return self.store.newest(&self.run, &scope).await;
        };
        let record = self.store.load(&self.run, &scope, seq).await?;
        if record.digest() == expect {
            return Ok(record);
        }
        let flaw = Flaw::Digest { part: "header", expect, actual: record.digest() };
        let (run, place) = (self.run.clone(), "the evidence of the join".to_owned());
        Err(StoreError::of_damage(Damage { run, scope, seq, place, flaw }, None))
    }

    fn child(&self, item: &Item) -> Result<ScopePath, StoreError> {
        let child = match item.key.parse().ok().filter(|_| self.passes) {
            Some(pass) => self.scope.pass(&self.name, pass),
            None => self.scope.child(&self.name, &item.key),
        };
        child.map_err(|error| StoreError::Invalid(error.to_string()))
    }

    /// Returns the digests of all children, and reads unknown digests from the store.
    pub(crate) async fn digests(&self) -> Result<JoinedDigests, StoreError> {
        if self.ends.unknown == 0 {
            let ChildEnds { digests, nested, outcomes, .. } = &*self.ends;
            return Ok(JoinedDigests::of(digests, nested, outcomes));
        }
        let mut leaves = Vec::with_capacity(self.total as usize);
        let mut nested = Vec::with_capacity(self.total as usize);
        let mut outcomes = Vec::with_capacity(self.total as usize);
        let mut reader = self.source.reader(Arc::clone(&self.store), 0).await?;
        while let Some(item) = reader.next().await? {
            let scope = self.child(&item)?;
            let order = ScanOrder::NewestFirst;
            let scan = Scan { scope: Some(scope.clone()), order, limit: 1, ..Scan::of(&self.run) };
            let found = self.store.scan(&scan).await?;
            let record = found.records.first().ok_or_else(|| StoreError::no_scope(&self.run, &scope))?;
            leaves.push(record.digest());
            nested.push(nested_of(record));
            outcomes.push(outcome_of(record));
        }
        Ok(JoinedDigests::of(&leaves, &nested, &outcomes))
    }
}

/// A reader of the ends of children.
#[derive(Debug)]
pub struct Outcomes {
    joined: Joined,
    reader: ItemReader,
}

/// The end of a child.
#[derive(Debug, Clone, PartialEq)]
pub struct ChildEnd {
    /// The item.
    pub item: Item,
    /// How the child ended.
    pub end: End,
    /// The last record, with its state.
    pub record: Record,
}

impl ChildEnd {
    /// Returns the failure, if the child failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.record.header().phase.failure()
    }
}

impl Outcomes {
    /// Returns the next end, or `None` after the last child.
    ///
    /// # Errors
    /// Those of the store; a damaged last record is [`StoreError::Damaged`].
    pub async fn next(&mut self) -> Result<Option<ChildEnd>, StoreError> {
        let Some(item) = self.reader.next().await? else { return Ok(None) };
        let record = self.joined.last(&item).await?;
        let end = record.header().end.unwrap_or(End::Cancelled);
        Ok(Some(ChildEnd { item, end, record }))
    }
}

/// Returns the failure of a join that cannot read its children.
pub(crate) fn unread(error: &StoreError) -> Failure {
    let mut chain = vec!["cannot read the results of the items".to_owned(), error.to_string()];
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        chain.push(cause.to_string());
        source = cause.source();
    }
    Failure::new(FailureKind::Error, chain)
}
