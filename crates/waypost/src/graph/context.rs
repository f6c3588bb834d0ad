//! What a step can ask and say while it runs.

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
use crate::id::{BranchPath, RunId, StepId};
use crate::path::FieldPath;
use crate::record::{Flaw, HEADER_BYTES_MAX, Note, Usage, encode};

/// Most bytes of events and report text that a step may say for one checkpoint, as they are written: they stand in its
/// header, beside a result that is kept, or a chain of errors, and what the engine writes there.
pub const SAID_BYTES_MAX: usize = 512 << 10;

/// What is left in a header for all else: a pack of evidence, keys, labels, names.
const HEADER_REST_BYTES: usize = 512 << 10;
const _: () = assert!(SAID_BYTES_MAX + MEMO_BYTES_MAX + HEADER_REST_BYTES <= HEADER_BYTES_MAX);

/// A step's view of its run: who it is, what it kept, and what it has to say. Clones are one.
///
/// What is kept under a key is there again when the step starts anew in the same iteration and epoch: after a crash, a
/// retry, or a wait. So a step that asks, sleeps or calls something costly runs again from its top and comes back to
/// where it was without doing it twice. Keys are the step's own; each kind of call has its own keys.
#[derive(Debug, Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    attempt: Attempt,
    told: Mutex<StepReport>,
    /// Kept in this attempt.
    kept: Mutex<HashMap<String, Value>>,
    heeds_stop: AtomicBool,
    exit_code: Mutex<Option<i32>>,
    /// Of events and report text that are not written yet.
    said_bytes: AtomicUsize,
    refused: Mutex<Option<String>>,
    waits: Waits,
}

impl Context {
    pub(super) fn new(attempt: Attempt) -> Self {
        let inner = Inner {
            attempt,
            told: Mutex::default(),
            kept: Mutex::default(),
            heeds_stop: AtomicBool::new(false),
            exit_code: Mutex::default(),
            said_bytes: AtomicUsize::new(0),
            refused: Mutex::default(),
            waits: Waits::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the run.
    pub fn run(&self) -> &RunId {
        &self.inner.attempt.run
    }

    /// Returns the branch.
    pub fn branch(&self) -> &BranchPath {
        &self.inner.attempt.branch
    }

    /// Returns the step.
    pub fn step(&self) -> &StepId {
        &self.inner.attempt.step
    }

    /// Returns which attempt of the step this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt.at.attempt
    }

    /// Returns the place in the loops around the step, outermost first, each from 1; empty outside loops.
    pub fn iteration(&self) -> &[u32] {
        &self.inner.attempt.at.iteration
    }

    /// Returns how often the step was deliberately redone.
    pub fn epoch(&self) -> u32 {
        self.inner.attempt.at.epoch
    }

    /// Returns a key for services that must not do a thing twice: the same over retries and crashes, new after a
    /// deliberate redo.
    pub fn idempotency_key(&self) -> String {
        self.inner.attempt.idempotency_key()
    }

    /// Returns what the run was configured with.
    pub fn config(&self) -> &Map<String, Value> {
        self.inner.attempt.config()
    }

    /// Does `work` at most once as far as its result was kept: a result kept under `key` is returned instead.
    ///
    /// A crash after the work and before its result is on disk lets it be done again: at least once, for its effect.
    ///
    /// # Errors
    /// - That of `work`; nothing is kept.
    /// - What cannot be kept, as it would not come back as it is: NaN, `Some(None)`, and what else
    ///   [`encode`](crate::record::encode) refuses, by field; or its type does not read what it has written. `work` has
    ///   had its effect by then, and the step fails for good: such a type is found out by the first run.
    /// - More than [`MEMO_BYTES_MAX`](crate::engine::MEMO_BYTES_MAX), more results than
    ///   [`MEMOS_MAX`](crate::engine::MEMOS_MAX).
    /// - A second call with `key` in this attempt, while the first is under way or after it has returned a result.
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
        // Now as after a crash: what does not come back as it went in is seen at once, and not only then.
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

    /// Counts tokens and cost. Several calls add up; the model named last is kept. A cost that is no finite number fails
    /// the step when it ends.
    pub fn usage(&self, usage: &Usage) {
        let mut told = self.told();
        let sum = told.usage.get_or_insert_with(Usage::default);
        if !(sum.cost + usage.cost).is_finite() {
            return self.refuse(format!("a cost of {} cannot be added", usage.cost));
        }
        *sum += usage;
        if usage.model.is_some() {
            sum.model.clone_from(&usage.model);
        }
    }

    /// Adds an event of the step's own to the audit log. More than [`SAID_BYTES_MAX`] of events and report text for one
    /// checkpoint fails the step when it ends, and so does data that comes back from JSON as something else.
    ///
    /// A `Value` has no NaN: a float that is none is `null` before it gets here. `json!` and `Value::from` do that.
    pub fn emit(&self, name: &str, data: impl Into<Value>) {
        let data = data.into();
        if let Err(error) = keepable(name, &data) {
            return self.refuse(format!("an event cannot be written: {error}"));
        }
        self.say(Note::Event { name: name.to_owned(), data });
    }

    fn say(&self, note: Note) {
        let bytes = written_bytes(&note);
        let said = self.inner.said_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if said > SAID_BYTES_MAX {
            return self.refuse(format!(
                "it has said {said} bytes since its last checkpoint, {SAID_BYTES_MAX} are allowed"
            ));
        }
        self.told().notes.push(note);
    }

    /// Notes that something cannot be written: the step fails for that when it ends, or when it next keeps something.
    fn refuse(&self, why: String) {
        let mut refused = self.inner.refused.lock().expect("no code panics while it holds this lock");
        refused.get_or_insert(why);
    }

    /// Returns what the step said that cannot be written, if there is such.
    pub(super) fn refused(&self) -> Option<String> {
        self.inner.refused.lock().expect("no code panics while it holds this lock").clone()
    }

    /// Records the exit code of the command that the step ran: for people, and for evidence that asks for it
    /// ([`Claim::exited`](crate::record::Claim::exited)). The code named last counts.
    pub fn exited(&self, code: i32) {
        *self.inner.exit_code.lock().expect("no code panics while it holds this lock") = Some(code);
    }

    /// Returns the exit code that the step recorded.
    pub(super) fn exit_code(&self) -> Option<i32> {
        *self.inner.exit_code.lock().expect("no code panics while it holds this lock")
    }

    /// Adds Markdown to the section of this step in the report, which is written when the step ends.
    pub fn report(&self, markdown: &str) {
        self.say(Note::Report(markdown.to_owned()));
    }

    /// Makes durable now what was said so far: usage and events. Report text is written when the step ends.
    ///
    /// # Errors
    /// What cannot be kept, as for [`once`](Self::once).
    pub async fn checkpoint(&self) -> Result<(), StepError> {
        let now = self.inner.attempt.clock().now();
        self.keep("checkpoint", serde_json::to_value(now).map_err(StepError::fatal)?).await
    }

    /// Says whether the step is to end: the run is stopped, or a sibling failed.
    ///
    /// A step that asks is not dropped at once then, but has [`STOP_GRACE`](super::STOP_GRACE) to end by itself.
    pub fn is_cancelled(&self) -> bool {
        self.inner.heeds_stop.store(true, Ordering::Relaxed);
        self.inner.attempt.is_stopped()
    }

    /// Resolves when the step is to end; as for [`is_cancelled`](Self::is_cancelled), it then has time to do so.
    pub async fn cancelled(&self) {
        if !self.is_cancelled() {
            self.inner.waits.pause(None, None).await;
        }
    }

    pub(super) fn heeds_stop(&self) -> bool {
        self.inner.heeds_stop.load(Ordering::Relaxed)
    }

    /// Takes what is written with a result that is kept. Report text stays for the end of the step: a step that starts
    /// again says it again, and its section in the report is that of its end.
    pub(super) fn take_said_now(&self) -> StepReport {
        let mut told = self.told();
        let notes = std::mem::take(&mut told.notes);
        let (report, now): (Vec<_>, Vec<_>) =
            notes.into_iter().partition(|note| matches!(note, Note::Report(_)));
        self.inner.said_bytes.store(report.iter().map(written_bytes).sum(), Ordering::Relaxed);
        told.notes = report;
        StepReport { notes: now, usage: told.usage.take(), evidence: None }
    }

    /// Takes what was said and not yet written.
    pub(super) fn take_told(&self) -> StepReport {
        std::mem::take(&mut *self.told())
    }

    fn told(&self) -> std::sync::MutexGuard<'_, StepReport> {
        self.inner.told.lock().expect("no code panics while it holds this lock")
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
        let told = self.take_said_now();
        self.inner.attempt.keep(key, value.clone(), told).await.map_err(StepError::fatal)?;
        self.inner
            .kept
            .lock()
            .expect("no code panics while it holds this lock")
            .insert(key.to_owned(), value);
        Ok(())
    }
}

/// Makes JSON of what comes back as it went in, and is not too large to be kept under `key`.
pub(super) fn keepable<T: Serialize + ?Sized>(key: &str, value: &T) -> Result<Value, StepError> {
    let mut bytes = Vec::new();
    encode(value, &mut bytes).map_err(|flaw| {
        let why = match flaw {
            Flaw::Unkept { path, why } if path == FieldPath::default() => why,
            flaw => flaw.to_string(),
        };
        StepError::fatal(format!("`{key}` cannot be kept: {why}"))
    })?;
    if bytes.len() > MEMO_BYTES_MAX {
        return Err(StepError::fatal(MemoError::Large { key: key.to_owned(), bytes: bytes.len() }));
    }
    // What was written just now can be read again, but for what a `RawValue` brought along.
    serde_json::from_slice(&bytes).map_err(StepError::fatal)
}

pub(super) fn decode<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, StepError> {
    serde_json::from_value(value)
        .map_err(|error| StepError::fatal(format!("what was kept as `{key}` is of another kind: {error}")))
}

/// Returns how many bytes a note takes in a header, with the comma behind it: many small ones are more than their texts.
fn written_bytes(note: &Note) -> usize {
    serde_json::to_vec(note).map_or(usize::MAX, |text| text.len() + 1)
}
