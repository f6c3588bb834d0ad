//! Records of a scope: ends, unfinished steps, and the position.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;

use super::definition::Name;

/// A digest of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(u64);

impl Digest {
    /// In a plan: the digest of a step that would run.
    pub const UNKNOWN: Self = Self(0);

    /// Returns the digest of a value.
    pub fn of(value: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        Self(hasher.finish().max(1))
    }
}

/// The content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// The content written by a completed step.
    Number(i64),
    /// The content left by a failed step.
    Half,
    /// In a plan: the content after a step that would run.
    Unknown,
}

/// Plain values for the oracles.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Truth {
    /// Nothing.
    #[default]
    Nothing,
    /// An output.
    Number(i64),
    /// A value equal only to itself.
    Unique(u64),
    /// A state.
    Digest(Digest),
    /// A name.
    Name(Name),
    /// A file and its content.
    Pin(Pin),
    /// The status of an end.
    How(How),
    /// Several values.
    List(Arc<[Truth]>),
}

impl Truth {
    /// Combines several values.
    pub fn list(values: impl IntoIterator<Item = Self>) -> Self {
        Self::List(values.into_iter().collect())
    }
}

/// The plain results of a step and its upstream steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Provenance {
    /// The outputs of the step.
    pub output: Truth,
    /// The pins of the step and of all upstream steps.
    pub pins: Truth,
}

impl Provenance {
    /// Combines output and pins.
    pub fn whole(&self) -> Truth {
        Truth::list([self.output.clone(), self.pins.clone()])
    }
}

/// Evidence: a file with its content at the end of the step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The file.
    pub file: Name,
    /// The content.
    pub content: Content,
}

/// The inputs of an end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trace {
    /// The input of the scope.
    pub input: Digest,
    /// The pass.
    pub pass: u32,
    /// Per need, its output digest and pin digest.
    pub needs: BTreeMap<Name, Digest>,
    /// Per step that is only read, its output digest.
    pub reads: BTreeMap<Name, Digest>,
    /// Both digests of the previous pass.
    pub previous_pass: Option<Digest>,
}

/// The status of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// The step completed.
    Completed,
    /// The step failed, and the failure is tolerated.
    Tolerated,
    /// The condition was false.
    Skipped,
    /// The step failed.
    Failed,
    /// The step was passed over because of a failure.
    PassedOver,
}

/// The record that finished a step.
#[derive(Debug, Clone)]
pub struct End {
    /// The number of the record.
    pub number: u64,
    /// The status.
    pub how: How,
    /// The pass.
    pub pass: u32,
    /// The version of the definition. It is not part of the trace, because other versions can be accepted.
    pub version: u32,
    /// The inputs.
    pub trace: Trace,
    /// The digest of outputs and status.
    pub output_digest: Digest,
    /// The digest of the pins of the step and of all upstream steps.
    pub pin_digest: Digest,
    /// The output.
    pub output: Option<i64>,
    /// The evidence.
    pub pins: Vec<Pin>,
    /// The end of the previous pass.
    pub before: Option<Arc<End>>,
    /// The frozen list of a fan-out.
    pub items: Vec<Name>,
    /// For an opener: the number of the opening, which is also stored in its children.
    pub opening: u64,
    /// Whether a person skipped the step.
    pub by_hand: bool,
    /// Whether an upstream step failed.
    pub failed_upstream: bool,
    /// For the oracles: the plain outputs and pins.
    pub truth: Provenance,
}

impl End {
    /// Returns whether the step was executed and counts as a success.
    pub const fn ran(&self) -> bool {
        matches!(self.how, How::Completed | How::Tolerated)
    }

    /// Returns whether the step failed or was passed over.
    pub const fn is_dead(&self) -> bool {
        matches!(self.how, How::Failed | How::PassedOver)
    }

    /// Returns whether the step was skipped or passed over without an execution.
    pub const fn was_avoided(&self) -> bool {
        matches!(self.how, How::Skipped | How::PassedOver)
    }

    /// Returns a digest of both digests.
    pub fn digest(&self) -> Digest {
        Digest::of((self.output_digest, self.pin_digest))
    }
}

/// Returns an end and the ends of earlier passes, newest first. A skipped or passed-over end is left out.
pub fn passes_of(end: Option<&Arc<End>>) -> Vec<Arc<End>> {
    let mut found = Vec::new();
    let mut next = end;
    while let Some(end) = next {
        if !end.was_avoided() {
            found.push(end.clone());
        }
        next = end.before.as_ref();
    }
    found
}

/// The progress of an unfinished step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The step can start.
    Ready,
    /// The start is recorded.
    Started,
    /// The step started, did not end, and is not idempotent.
    Interrupted,
    /// The children are open.
    Children,
}

/// An unfinished step.
#[derive(Debug, Clone)]
pub struct Activity {
    /// The progress.
    pub progress: Progress,
    /// The pass.
    pub pass: u32,
    /// The end of the previous pass.
    pub before: Option<Arc<End>>,
    /// The frozen list of a fan-out.
    pub items: Vec<Name>,
    /// Whether the activity is a retry after a failed attempt or by request of a person.
    pub retry: bool,
    /// The attempt, from 1. A resume starts with the first attempt.
    pub attempt: u32,
    /// The number of the opening.
    pub opening: u64,
}

impl Activity {
    /// Returns a step that is ready to start its first pass.
    pub const fn ready() -> Self {
        Self {
            progress: Progress::Ready,
            pass: 1,
            before: None,
            items: Vec::new(),
            retry: false,
            attempt: 1,
            opening: 0,
        }
    }
}

/// A result out of force.
#[derive(Debug, Clone)]
pub enum Reusable {
    /// An end that counts again if the step's inputs are unchanged.
    Ended(Arc<End>),
    /// An end of a non-idempotent step, for a person to confirm.
    Confirm(Arc<End>),
    /// A non-idempotent step was started.
    Started,
}

impl Reusable {
    /// Returns the end, if the step ended.
    pub const fn end(&self) -> Option<&Arc<End>> {
        match self {
            Self::Ended(end) | Self::Confirm(end) => Some(end),
            Self::Started => None,
        }
    }

    /// Returns the result in a form that a person must confirm.
    #[must_use]
    pub fn to_confirm(&self) -> Self {
        match self {
            Self::Ended(end) | Self::Confirm(end) => Self::Confirm(end.clone()),
            Self::Started => Self::Started,
        }
    }
}

/// The input of a scope from its opener.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// The digest of the input.
    pub digest: Option<Digest>,
    /// In a plan: whether a step that would run changes the input.
    pub is_unknown: bool,
    /// The value of the input.
    pub value: i64,
    /// For the oracles: the plain input.
    pub truth: Truth,
}

/// The position of a scope, as stored in its newest record.
#[derive(Debug, Clone, Default)]
pub struct Position {
    /// Unfinished steps whose needs have ended.
    pub frontier: BTreeMap<Name, Activity>,
    /// Ends in force.
    pub ledger: BTreeMap<Name, Arc<End>>,
    /// Results out of force, by step and pass.
    pub reusable: BTreeMap<(Name, u32), Reusable>,
    /// Openers whose children open without reuse.
    pub rerun_whole: BTreeSet<Name>,
    /// Steps skipped by a person, each with the trace at the time of the skip.
    pub skipped: BTreeMap<Name, Option<Trace>>,
    /// The input from the opener.
    pub input: Input,
    /// The number of the scope's opening.
    pub opening: u64,
}

impl Position {
    /// Returns the ends of all passes in force, newest first. For an unfinished step, these are the earlier
    /// passes.
    pub fn passes(&self, step: &str) -> Vec<Arc<End>> {
        match self.ledger.get(step) {
            Some(end) => passes_of(Some(end)),
            None => passes_of(self.frontier.get(step).and_then(|activity| activity.before.as_ref())),
        }
    }

    /// Removes the reusable results of all passes of a step.
    pub fn forget_reusable(&mut self, step: &str) {
        self.reusable.retain(|(id, _), _| &**id != step);
    }

    /// Returns all steps with an end, an activity or a reusable result.
    pub fn known_steps(&self) -> BTreeSet<Name> {
        let reusable = self.reusable.keys().map(|(step, _)| step);
        self.ledger.keys().chain(self.frontier.keys()).chain(reusable).cloned().collect()
    }
}
