//! The API of a running step: identity, memoized results, events, usage and report text.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::StepError;
use super::pending::Waits;
use crate::engine::{Attempt, MEMO_BYTES_MAX, MemoError, StepReport};
use crate::id::{RunId, ScopePath, StepId};
use crate::json::path::FieldPath;
use crate::record::{Flaw, HEADER_BYTES_MAX, Note, Usage, encode};

/// Upper limit for the events and report text of a checkpoint, in encoded bytes. The checkpoint header holds
/// these together with a memoized result or an error chain, and the engine's own fields.
pub const SAID_BYTES_MAX: usize = 512 << 10;

/// Room in the header for the other fields: evidence, keys, labels, names.
const HEADER_REST_BYTES: usize = 512 << 10;
const _: () = assert!(SAID_BYTES_MAX + MEMO_BYTES_MAX + HEADER_REST_BYTES <= HEADER_BYTES_MAX);

/// A step's view of its run: identity, memoized results, events and report text. Clones share their content.
///
/// A result stored under a key survives a restart of the step in the same iteration and epoch: after a crash, a
/// retry, or a wait. So a step that asks, sleeps or makes a costly call runs again from the top, and each
/// finished call returns its stored result. Keys are scoped to the step; each kind of call has a separate key
/// space.
#[derive(Debug, Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    attempt: Attempt,
    report: Mutex<StepReport>,
    /// Kept in this attempt.
    kept: Mutex<HashMap<String, Value>>,
    handles_stop: AtomicBool,
    exit_code: Mutex<Option<i32>>,
    /// Bytes of events and report text not yet written.
    said_bytes: AtomicUsize,
    refused: Mutex<Option<String>>,
    waits: Waits,
}

impl Context {
    pub(super) fn new(attempt: Attempt) -> Self {
        let inner = Inner {
            attempt,
            report: Mutex::default(),
            kept: Mutex::default(),
            handles_stop: AtomicBool::new(false),
            exit_code: Mutex::default(),
            said_bytes: AtomicUsize::new(0),
            refused: Mutex::default(),
            waits: Waits::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the id of the run.
    pub fn run(&self) -> &RunId {
        &self.inner.attempt.run
    }

    /// Returns the scope of the step.
    pub fn scope(&self) -> &ScopePath {
        &self.inner.attempt.scope
    }

    /// Returns the id of the step.
    pub fn step(&self) -> &StepId {
        &self.inner.attempt.step
    }

    /// Returns the number of this attempt of the step, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt.at.attempt
    }

    /// Returns the iterations of the loops around the step, outermost first, each from 1. Empty outside loops.
    pub fn iteration(&self) -> &[u32] {
        &self.inner.attempt.at.iteration
    }

    /// Returns how often the step was rerun on request. Retries and crashes do not count.
    pub fn epoch(&self) -> u32 {
        self.inner.attempt.at.epoch
    }

    /// Returns an idempotency key for external services: stable over retries and crashes, new for each rerun of the
    /// finished step.
    pub fn idempotency_key(&self) -> String {
        self.inner.attempt.idempotency_key()
    }

    /// Returns the configuration of the run.
    pub fn config(&self) -> &Map<String, Value> {
        self.inner.attempt.config()
    }

    /// Runs `work` and stores its result under `key`; returns the stored result if there is one.
    ///
    /// A crash between the end of `work` and the durable write of its result repeats `work`: the effect is at
    /// least once.
    ///
    /// # Errors
    /// - The error of `work`; nothing is stored.
    /// - A result that JSON cannot represent faithfully: NaN, `Some(None)`, and other values that
    ///   [`encode`](crate::record::encode) refuses, with the field; or a type that cannot read its own output.
    ///   `work` has had its effect, and the failure is fatal. The first run already finds such a type.
    /// - More than [`MEMO_BYTES_MAX`](crate::engine::MEMO_BYTES_MAX), or more results than
    ///   [`MEMOS_MAX`](crate::engine::MEMOS_MAX).
    /// - A second call with `key` in this attempt, during the first call or after its result.
    pub async fn once<T, E>(
        &self,
        key: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, StepError>
    where
        T: Serialize + DeserializeOwned,
        E: Into<StepError>,
    {
        let claim = self.claim("once", key)?;
        let key = format!("once/{key}");
        if let Some(value) = self.kept(&key).await? {
            claim.keep();
            return decode(&key, value);
        }
        let done = work.await.map_err(Into::into)?;
        let value = keepable(&key, &done)?;
        // Returns the decoded copy, as after a crash: a type that does not round-trip fails in the first run.
        let back = decode(&key, value.clone())?;
        self.keep(&key, value).await?;
        claim.keep();
        Ok(back)
    }

    pub(super) fn waits(&self) -> &Waits {
        &self.inner.waits
    }

    pub(super) fn attempt_of(&self) -> &Attempt {
        &self.inner.attempt
    }

    /// Adds tokens and cost to the usage of the step. Several calls add up; the last model name wins. A cost that
    /// is not finite fails the step when the step ends.
    pub fn usage(&self, usage: &Usage) {
        let mut report = self.pending_report();
        let sum = report.usage.get_or_insert_with(Usage::default);
        if !(sum.cost + usage.cost).is_finite() {
            return self.refuse(format!("cannot add a cost of {}", usage.cost));
        }
        *sum += usage;
        if usage.model.is_some() {
            sum.model.clone_from(&usage.model);
        }
    }

    /// Adds a custom event to the audit log.
    ///
    /// The step fails at its end if the events and report text of a checkpoint exceed [`SAID_BYTES_MAX`], or if
    /// `data` does not survive a round trip through JSON. A `Value` cannot hold NaN: `json!` and `Value::from`
    /// turn a non-finite float into `null`.
    pub fn emit(&self, name: &str, data: impl Into<Value>) {
        let data = data.into();
        if let Err(error) = keepable(name, &data) {
            return self.refuse(format!("cannot write an event: {error}"));
        }
        self.say(Note::Event { name: name.to_owned(), data });
    }

    fn say(&self, note: Note) {
        let bytes = written_bytes(&note);
        let said = self.inner.said_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if said > SAID_BYTES_MAX {
            return self.refuse(format!(
                "the step has {said} bytes of events and report since its last checkpoint, the maximum is \
                 {SAID_BYTES_MAX}"
            ));
        }
        self.pending_report().notes.push(note);
    }

    /// Records that something cannot be written. The step fails with `why` at its end, or at the next stored
    /// result.
    fn refuse(&self, why: String) {
        let mut refused = self.inner.refused.lock().expect("no code panics while it holds this lock");
        refused.get_or_insert(why);
    }

    /// Returns why an event, a cost or a report text cannot be written, if there is a reason.
    pub(super) fn refused(&self) -> Option<String> {
        self.inner.refused.lock().expect("no code panics while it holds this lock").clone()
    }

    /// Records the exit code of the command of the step, for people and for evidence
    /// ([`Claim::exited`](crate::record::Claim::exited)). The last call counts.
    pub fn exited(&self, code: i32) {
        *self.inner.exit_code.lock().expect("no code panics while it holds this lock") = Some(code);
    }

    /// Returns the recorded exit code.
    pub(super) fn exit_code(&self) -> Option<i32> {
        *self.inner.exit_code.lock().expect("no code panics while it holds this lock")
    }

    /// Appends Markdown to the section of this step in the report. The section is written when the step ends.
    pub fn report(&self, markdown: &str) {
        self.say(Note::Report(markdown.to_owned()));
    }

    /// Writes a checkpoint with the usage and events so far. Report text is written when the step ends.
    ///
    /// # Errors
    /// As for [`once`](Self::once): a value that cannot be stored.
    pub async fn checkpoint(&self) -> Result<(), StepError> {
        let now = self.inner.attempt.clock().now();
        self.keep("checkpoint", serde_json::to_value(now).map_err(StepError::fatal)?).await
    }

    /// Returns true if the step should end: the run is stopped, or a sibling failed.
    ///
    /// A step that calls this is not dropped at once; it has [`STOP_GRACE`](super::STOP_GRACE) to end.
    pub fn is_cancelled(&self) -> bool {
        self.inner.handles_stop.store(true, Ordering::Relaxed);
        self.inner.attempt.is_stopped()
    }

    /// Resolves when the step should end. The step then has the same grace as for
    /// [`is_cancelled`](Self::is_cancelled).
    pub async fn cancelled(&self) {
        if !self.is_cancelled() {
            self.inner.waits.pause(None, None).await;
        }
    }

    pub(super) fn handles_stop(&self) -> bool {
        self.inner.handles_stop.load(Ordering::Relaxed)
    }

    /// Takes the notes and the usage for the record of a kept result. Report text stays until the end of the step, because
    /// a restarted step adds its text again.
    pub(super) fn take_report_now(&self) -> StepReport {
        let mut report = self.pending_report();
        let notes = std::mem::take(&mut report.notes);
        let (texts, now): (Vec<_>, Vec<_>) =
            notes.into_iter().partition(|note| matches!(note, Note::Report(_)));
        self.inner.said_bytes.store(texts.iter().map(written_bytes).sum(), Ordering::Relaxed);
        report.notes = texts;
        StepReport { notes: now, usage: report.usage.take(), evidence: None }
    }

    /// Takes what was said and not yet written.
    pub(super) fn take_report(&self) -> StepReport {
        std::mem::take(&mut *self.pending_report())
    }

    fn pending_report(&self) -> std::sync::MutexGuard<'_, StepReport> {
        self.inner.report.lock().expect("no code panics while it holds this lock")
    }

    pub(super) async fn kept(&self, key: &str) -> Result<Option<Value>, StepError> {
        let here = self.inner.kept.lock().expect("no code panics while it holds this lock").get(key).cloned();
        match here {
            Some(value) => Ok(Some(value)),
            None => Ok(self.inner.attempt.kept(key).await?),
        }
    }

    pub(super) async fn keep(&self, key: &str, value: Value) -> Result<(), StepError> {
        if let Some(why) = self.refused() {
            return Err(StepError::fatal(why));
        }
        let report = self.take_report_now();
        self.inner.attempt.keep(key, value.clone(), report).await.map_err(StepError::fatal)?;
        self.inner
            .kept
            .lock()
            .expect("no code panics while it holds this lock")
            .insert(key.to_owned(), value);
        Ok(())
    }
}

/// Encodes a value as JSON. Fails if the value does not round-trip or is too large to store under `key`.
pub(super) fn keepable<T: Serialize + ?Sized>(key: &str, value: &T) -> Result<Value, StepError> {
    let mut bytes = Vec::new();
    encode(value, &mut bytes).map_err(|flaw| {
        let why = match flaw {
            Flaw::Unkept { path, why } if path == FieldPath::default() => why,
            flaw => flaw.to_string(),
        };
        StepError::fatal(format!("cannot keep `{key}`: {why}"))
    })?;
    if bytes.len() > MEMO_BYTES_MAX {
        return Err(StepError::fatal(MemoError::Large { key: key.to_owned(), bytes: bytes.len() }));
    }
    // The bytes were just encoded. Only the content of a `RawValue` can fail to parse.
    serde_json::from_slice(&bytes).map_err(StepError::fatal)
}

pub(super) fn decode<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, StepError> {
    serde_json::from_value(value)
        .map_err(|error| StepError::fatal(format!("the result kept as `{key}` has another type: {error}")))
}

/// Returns the size of a note in a header, with the comma after the note: the overhead of many small notes
/// counts.
fn written_bytes(note: &Note) -> usize {
    serde_json::to_vec(note).map_or(usize::MAX, |text| text.len() + 1)
}
