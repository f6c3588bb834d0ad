//! What a program says when it begins and commits a step.

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

/// Longest id that a caller may give to a commit: a path or a URL fits.
pub const EXTERNAL_BYTES_MAX: usize = 512;

/// A state in the bytes it will keep.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) json: Arc<RawValue>,
    pub(super) schema: u32,
}

/// A state that a program gave; its schema is the recorder's.
#[derive(Debug, Clone)]
pub(super) struct Given(Arc<RawValue>);

impl Given {
    pub(super) fn of<S: Serialize + ?Sized>(state: &S) -> Result<Self, Flaw> {
        let malformed = |error: &dyn std::fmt::Display| Flaw::Malformed(error.to_string());
        let mut bytes = Vec::new();
        encode(state, &mut bytes)?;
        let text = String::from_utf8(bytes).map_err(|error| malformed(&error))?;
        let json = RawValue::from_string(text).map_err(|error| malformed(&error))?;
        Ok(Self(json.into()))
    }

    pub(super) fn with_schema(self, schema: u32) -> State {
        State { json: self.0, schema }
    }
}

/// A step that is to begin.
#[derive(Debug, Clone)]
pub struct Begin {
    pub(super) step: StepId,
    pub(super) label: Label,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) state: Option<Result<Given, Flaw>>,
    pub(super) rewrites: Option<Pack>,
}

impl Begin {
    /// Begins `step`; its checkpoints are labelled as `label` says.
    pub fn new(step: StepId, label: Label) -> Self {
        Self { step, label, labels: BTreeMap::new(), state: None, rewrites: None }
    }

    /// Gives the state as it is before the step; without one, the state recorded last goes on.
    #[must_use]
    pub fn state<S: Serialize + ?Sized>(self, state: &S) -> Self {
        Self { state: Some(Given::of(state)), ..self }
    }

    /// Adds a label, to look the step's checkpoints up by.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Says what the step is about to write: should it be cut half-way, older checkpoints that claim the same are not
    /// judged by what it left.
    #[must_use]
    pub fn rewrites(self, claims: impl IntoIterator<Item = Claim>) -> Self {
        Self { rewrites: Some(Pack::all(claims)), ..self }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        label::check(&self.labels)?;
        // What will be written need not hold.
        Ok(self.rewrites.as_ref().map_or(Ok(()), Pack::check_size)?)
    }

    pub(super) fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.insert(LABEL_KEY.to_owned(), self.label.name().to_owned());
        labels
    }
}

/// A step that was begun: its start is durable. Its end is told by it.
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

    /// Returns which try it is: attempt, iteration and epoch.
    pub fn at(&self) -> &Try {
        &self.at
    }

    /// Returns the checkpoint that has its start.
    pub fn since(&self) -> &CheckpointRef {
        &self.since
    }

    /// Returns its label.
    pub fn label(&self) -> Option<Label> {
        Label::among(&self.labels)
    }

    /// Says whether its program ended before it did.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns a key that is the same over retries and crashes of this visit, and new after a rollback.
    pub fn idempotency_key(&self) -> String {
        key_of(&self.since.run, &self.since.branch, &self.step, &self.at)
    }

    /// Reads it from the record of its start; what is missing there was damaged.
    pub(super) fn cut(since: CheckpointRef, step: StepId, at: Try, header: Option<&Header>) -> Self {
        let labels = header.map(|header| header.labels.clone()).unwrap_or_default();
        Self { since, step, at, labels, cut: true }
    }
}

/// The engine's rule for such keys: hash of run, branch, step, iteration and epoch.
fn key_of(run: &RunId, branch: &crate::id::BranchPath, step: &StepId, at: &Try) -> String {
    let iteration: Vec<u8> = at.iteration.iter().flat_map(|count| count.to_le_bytes()).collect();
    let epoch = at.epoch.to_le_bytes();
    let names = [run.as_str(), branch.as_str(), step.as_str()].map(str::as_bytes);
    let digest = Digest::of_parts(names.into_iter().chain([iteration.as_slice(), &epoch]));
    digest.to_string()[..32].to_owned()
}

/// What a step came to.
#[derive(Debug, Clone)]
pub struct Commit {
    pub(super) pack: Option<Pack>,
    pub(super) auto_verify: Option<bool>,
    pub(super) state: Option<Result<Given, Flaw>>,
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
    /// Commits with evidence: if it does not hold, the step has failed.
    pub fn with(pack: Pack) -> Self {
        Self { pack: Some(pack), ..Self::without_evidence() }
    }

    /// Commits without evidence. Such a checkpoint is complete, but never verified: no rollback goes there.
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

    /// Gives the state as it is after the step; without one, the state recorded last goes on.
    #[must_use]
    pub fn state<S: Serialize + ?Sized>(self, state: &S) -> Self {
        Self { state: Some(Given::of(state)), ..self }
    }

    /// Adds a small output, kept in the header; large ones belong into the state or a file.
    #[must_use]
    pub fn output(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.outputs.insert(name.into(), value.into());
        self
    }

    /// Records the exit code of the command that the step ran; claims of kind `command_exit` are compared with it.
    #[must_use]
    pub fn exit_code(self, exit_code: i32) -> Self {
        Self { exit_code: Some(exit_code), ..self }
    }

    /// Records the command that the step ran, for people; like [`printed`](Self::printed), it is no part of what a commit
    /// under a caller's id is compared by.
    #[must_use]
    pub fn command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }

    /// Records what the step printed; the log itself is a blob of the run.
    #[must_use]
    pub fn printed(self, printed: Option<Printed>) -> Self {
        Self { printed, ..self }
    }

    /// Gives the commit an id of the caller's. The same commit under the same id is written once; one with other claims,
    /// on other terms, or checked now where that one was not, is another.
    #[must_use]
    pub fn external(self, id: impl Into<String>) -> Self {
        Self { external: Some(id.into()), ..self }
    }

    /// Labels the commit otherwise than the begin of its step.
    #[must_use]
    pub fn label(self, label: Label) -> Self {
        Self { label: Some(label), ..self }
    }

    /// Checks the evidence now, or leaves it `skipped` until somebody verifies; in place of the recorder's setting.
    #[must_use]
    pub fn auto_verify(self, auto_verify: bool) -> Self {
        Self { auto_verify: Some(auto_verify), ..self }
    }

    /// Records tokens and cost.
    #[must_use]
    pub fn usage(self, usage: Usage) -> Self {
        Self { usage: Some(usage), ..self }
    }

    /// Adds an event of the program's own, or text for the report.
    #[must_use]
    pub fn note(mut self, note: Note) -> Self {
        self.notes.push(note);
        self
    }

    /// Sees that it can be written, before anything is checked.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(pack) = &self.pack {
            pack.check()?;
        }
        if let Some(id) = &self.external
            && (id.is_empty() || id.len() > EXTERNAL_BYTES_MAX)
        {
            let id: String = id.chars().take(80).collect();
            return Err(Error::Invalid(format!("id `{id}` has not 1 to {EXTERNAL_BYTES_MAX} bytes")));
        }
        let bytes = serde_json::to_vec(&self.outputs).map_or(0, |bytes| bytes.len());
        if bytes > OUTPUTS_INLINE_BYTES_MAX && !self.outputs.is_empty() {
            return Err(Error::Invalid(format!(
                "the outputs have {bytes} bytes, {OUTPUTS_INLINE_BYTES_MAX} are allowed: put large ones into the state or a file"
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

    /// Returns the labels of the record: those of the start, with what the commit says otherwise.
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

    /// Returns a digest of all that is committed under a caller's id; none without such an id.
    ///
    /// The order of members does not matter, nor does which try of the step it is. `auto_verify` is what is done where the
    /// commit does not say.
    pub(super) fn content(&self, begun: &Begun, auto_verify: bool) -> Result<Option<Digest>, Flaw> {
        if self.external.is_none() {
            return Ok(None);
        }
        let auto_verify = self.auto_verify.unwrap_or(auto_verify);
        let malformed = |error: serde_json::Error| Flaw::Malformed(error.to_string());
        let state = match &self.state {
            None => None,
            Some(Err(flaw)) => return Err(flaw.clone()),
            Some(Ok(given)) => Some(serde_json::from_str::<Value>(given.0.get()).map_err(malformed)?),
        };
        let claim = |claim: &Claim| {
            let Claim { kind, subject, name, expect, pinned, terms, .. } = claim;
            // What is as always adds nothing: digests of commits that were written before they were looked at stay.
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

/// Puts the members of all objects in order, so that equal values have equal bytes.
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
