//! Arguments of a recorder's begin and commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::id::{CheckpointRef, Digest, RunId, StepId};
use crate::record::{
    Claim, Ending, Flaw, Header, Note, OUTPUTS_INLINE_BYTES_MAX, Pack, Printed, Terms, Try, Usage, encode,
};

use super::Error;
use super::label::{self, CONTENT_KEY, LABEL_KEY, Label};

/// Longest external id of a commit: a path or a URL fits.
pub const EXTERNAL_BYTES_MAX: usize = 512;

/// A state in its final bytes.
#[derive(Debug, Clone)]
pub(super) struct EncodedState {
    pub(super) json: Arc<RawValue>,
    pub(super) schema: u32,
}

/// A state given by the program; the recorder adds the schema.
#[derive(Debug, Clone)]
pub(super) struct RawState(Arc<RawValue>);

impl RawState {
    pub(super) fn of<S: Serialize + ?Sized>(state: &S) -> Result<Self, Flaw> {
        let malformed = |error: &dyn std::fmt::Display| Flaw::Malformed(error.to_string());
        let mut bytes = Vec::new();
        encode(state, &mut bytes)?;
        let text = String::from_utf8(bytes).map_err(|error| malformed(&error))?;
        let json = RawValue::from_string(text).map_err(|error| malformed(&error))?;
        Ok(Self(json.into()))
    }

    pub(super) fn with_schema(self, schema: u32) -> EncodedState {
        EncodedState { json: self.0, schema }
    }
}

/// The arguments of a begin.
#[derive(Debug, Clone)]
pub struct Begin {
    pub(super) step: StepId,
    pub(super) label: Label,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) state: Option<Result<RawState, Flaw>>,
    pub(super) rewrites: Option<Pack>,
}

impl Begin {
    /// Creates a begin of `step`; its checkpoints get `label`.
    pub fn new(step: StepId, label: Label) -> Self {
        Self { step, label, labels: BTreeMap::new(), state: None, rewrites: None }
    }

    /// Sets the state before the step; by default, the last recorded state continues.
    #[must_use]
    pub fn state<S: Serialize + ?Sized>(self, state: &S) -> Self {
        Self { state: Some(RawState::of(state)), ..self }
    }

    /// Adds a label for lookups of the step's checkpoints.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Sets the claims about files that the step is going to write. If the step is interrupted, older
    /// checkpoints with the same subjects are not checked against partial files.
    #[must_use]
    pub fn rewrites(self, claims: impl IntoIterator<Item = Claim>) -> Self {
        Self { rewrites: Some(Pack::all(claims)), ..self }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        label::check(&self.labels)?;
        // Claims about future files need not hold.
        Ok(self.rewrites.as_ref().map_or(Ok(()), Pack::check_size)?)
    }

    pub(super) fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.insert(LABEL_KEY.to_owned(), self.label.name().to_owned());
        labels
    }
}

/// A begun step with a durable start; needed to end the step.
#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    pub(super) since: CheckpointRef,
    pub(super) step: StepId,
    pub(super) at: Try,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) cut: bool,
}

impl Begun {
    /// Returns the step.
    pub fn step(&self) -> &StepId {
        &self.step
    }

    /// Returns the attempt, iteration and epoch.
    pub fn at(&self) -> &Try {
        &self.at
    }

    /// Returns the checkpoint of the start.
    pub fn since(&self) -> &CheckpointRef {
        &self.since
    }

    /// Returns the label.
    pub fn label(&self) -> Option<Label> {
        Label::among(&self.labels)
    }

    /// Returns whether the program of the step ended before the step.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns a key that stays the same over retries and crashes of this visit, and is new after a rollback.
    pub fn idempotency_key(&self) -> String {
        key_of(&self.since.run, &self.since.scope, &self.step, &self.at)
    }

    /// Reads an interrupted step from the record of its start; without the record (damage), the labels are
    /// empty.
    pub(super) fn cut(since: CheckpointRef, step: StepId, at: Try, header: Option<&Header>) -> Self {
        let labels = header.map(|header| header.labels.clone()).unwrap_or_default();
        Self { since, step, at, labels, cut: true }
    }
}

/// The engine's rule for idempotency keys: hash of run, scope, step, iteration and epoch.
fn key_of(run: &RunId, scope: &crate::id::ScopePath, step: &StepId, at: &Try) -> String {
    let iteration: Vec<u8> = at.iteration.iter().flat_map(|count| count.to_le_bytes()).collect();
    let epoch = at.epoch.to_le_bytes();
    let names = [run.as_str(), scope.as_str(), step.as_str()].map(str::as_bytes);
    let digest = Digest::of_parts(names.into_iter().chain([iteration.as_slice(), &epoch]));
    digest.to_string()[..32].to_owned()
}

/// The arguments of a commit.
#[derive(Debug, Clone)]
pub struct Commit {
    pub(super) pack: Option<Pack>,
    pub(super) auto_verify: Option<bool>,
    pub(super) state: Option<Result<RawState, Flaw>>,
    pub(super) outputs: BTreeMap<String, Value>,
    pub(super) exit_code: Option<i32>,
    pub(super) command: Option<String>,
    pub(super) printed: Option<Printed>,
    pub(super) external: Option<String>,
    pub(super) label: Option<Label>,
    pub(super) usage: Option<Usage>,
    pub(super) notes: Vec<Note>,
}

impl Commit {
    /// Creates a commit with evidence: if the evidence does not hold, the step has failed.
    pub fn with(pack: Pack) -> Self {
        Self { pack: Some(pack), ..Self::without_evidence() }
    }

    /// Creates a commit without evidence. The checkpoint is complete, but never verified: a rollback to it is
    /// refused.
    pub fn without_evidence() -> Self {
        Self {
            pack: None,
            auto_verify: None,
            state: None,
            outputs: BTreeMap::new(),
            exit_code: None,
            command: None,
            printed: None,
            external: None,
            label: None,
            usage: None,
            notes: Vec::new(),
        }
    }

    /// Sets the state after the step; by default, the last recorded state continues.
    #[must_use]
    pub fn state<S: Serialize + ?Sized>(self, state: &S) -> Self {
        Self { state: Some(RawState::of(state)), ..self }
    }

    /// Adds a small output, kept in the header; large outputs belong into the state or a file.
    #[must_use]
    pub fn output(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.outputs.insert(name.into(), value.into());
        self
    }

    /// Sets the exit code of the step's command; claims of kind `command_exit` are compared with it.
    #[must_use]
    pub fn exit_code(self, exit_code: i32) -> Self {
        Self { exit_code: Some(exit_code), ..self }
    }

    /// Sets the executed command, for display. Like [`printed`](Self::printed), the command is not part of
    /// the compared content of a commit with an external id.
    #[must_use]
    pub fn command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }

    /// Sets the printed text; the log itself is a blob of the run.
    #[must_use]
    pub fn printed(self, printed: Option<Printed>) -> Self {
        Self { printed, ..self }
    }

    /// Sets an external id. The same commit under the same id is written once. A commit with other claims,
    /// other terms, or a check that the first one lacked, is a different commit.
    #[must_use]
    pub fn external(self, id: impl Into<String>) -> Self {
        Self { external: Some(id.into()), ..self }
    }

    /// Sets a label that differs from the begin's label.
    #[must_use]
    pub fn label(self, label: Label) -> Self {
        Self { label: Some(label), ..self }
    }

    /// Sets whether this commit checks evidence, in place of the recorder's setting.
    #[must_use]
    pub fn auto_verify(self, auto_verify: bool) -> Self {
        Self { auto_verify: Some(auto_verify), ..self }
    }

    /// Sets tokens and cost.
    #[must_use]
    pub fn usage(self, usage: Usage) -> Self {
        Self { usage: Some(usage), ..self }
    }

    /// Adds a custom event, or text for the report.
    #[must_use]
    pub fn note(mut self, note: Note) -> Self {
        self.notes.push(note);
        self
    }

    /// Checks that the commit can be written, before any evidence is checked.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(pack) = &self.pack {
            pack.check()?;
        }
        if let Some(id) = &self.external
            && (id.is_empty() || id.len() > EXTERNAL_BYTES_MAX)
        {
            let id: String = id.chars().take(80).collect();
            return Err(Error::Invalid(format!("id `{id}` must have 1 to {EXTERNAL_BYTES_MAX} bytes")));
        }
        let bytes = serde_json::to_vec(&self.outputs).map_or(0, |bytes| bytes.len());
        if bytes > OUTPUTS_INLINE_BYTES_MAX && !self.outputs.is_empty() {
            return Err(Error::Invalid(format!(
                "the outputs have {bytes} bytes, the maximum is {OUTPUTS_INLINE_BYTES_MAX}: put large \
                 values into the state or a file"
            )));
        }
        Ok(())
    }

    pub(super) fn ending(&self) -> Ending {
        Ending {
            exit_code: self.exit_code,
            outputs: self.outputs.clone(),
            command: self.command.clone(),
            log: self.printed.clone(),
            ..Ending::default()
        }
    }

    /// Returns the labels of the record: the labels of the start, with the changes of the commit.
    pub(super) fn all_labels(&self, begun: &Begun, content: Option<Digest>) -> BTreeMap<String, String> {
        let mut labels = begun.labels.clone();
        if let Some(label) = self.label {
            labels.insert(LABEL_KEY.to_owned(), label.name().to_owned());
        }
        if let Some(content) = content {
            labels.insert(CONTENT_KEY.to_owned(), content.to_string());
        }
        labels
    }

    /// Returns a digest of the content of a commit with an external id; `None` without an id.
    ///
    /// The order of members and the attempt number do not matter. `auto_verify` is the default if the commit
    /// does not set it.
    pub(super) fn content(&self, begun: &Begun, auto_verify: bool) -> Result<Option<Digest>, Flaw> {
        if self.external.is_none() {
            return Ok(None);
        }
        let auto_verify = self.auto_verify.unwrap_or(auto_verify);
        let malformed = |error: serde_json::Error| Flaw::Malformed(error.to_string());
        let state = match &self.state {
            None => None,
            Some(Err(flaw)) => return Err(flaw.clone()),
            Some(Ok(state)) => Some(serde_json::from_str::<Value>(state.0.get()).map_err(malformed)?),
        };
        let claim = |claim: &Claim| {
            let Claim { kind, subject, name, expect, pinned, terms, .. } = claim;
            // Default terms are left out, so that digests of older commits without terms stay equal.
            let terms = Some(terms).filter(|terms| **terms != Terms::default());
            let [said, more] = [json!([kind, subject, name, expect, pinned]), json!(terms)];
            if more.is_null() { said } else { json!([said, more]) }
        };
        let pack = self.pack.as_ref().map(|pack| {
            json!({ "at_least": pack.at_least, "claims": pack.claims.iter().map(claim).collect::<Vec<_>>() })
        });
        let mut content = json!({
            "step": begun.step, "labels": self.all_labels(begun, None), "pack": pack, "state": state,
            "outputs": self.outputs, "exit_code": self.exit_code, "usage": self.usage, "notes": self.notes,
        });
        if self.pack.is_some() && !auto_verify {
            content["auto_verify"] = false.into();
        }
        let bytes = serde_json::to_vec(&sorted(content)).map_err(malformed)?;
        Ok(Some(Digest::of(&bytes)))
    }
}

/// Sorts the members of all objects, so that equal values have equal bytes.
fn sorted(value: Value) -> Value {
    match value {
        Value::Array(list) => Value::Array(list.into_iter().map(sorted).collect()),
        Value::Object(map) => {
            let map: BTreeMap<String, Value> =
                map.into_iter().map(|(name, one)| (name, sorted(one))).collect();
            Value::Object(map.into_iter().collect::<Map<_, _>>())
        }
        other => other,
    }
}
