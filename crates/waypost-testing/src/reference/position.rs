//! Records of a scope: ends, unfinished steps, and the position that holds them.

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
    /// What a completed step wrote.
    Number(i64),
    /// What a failed step left.
    Half,
    /// In a plan: what a step that would run leaves.
    Unknown,
}

/// Values in clear, for the oracles.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Truth {
    /// Nothing.
    #[default]
    Nothing,
    /// An output.
    Number(i64),
    /// A value that equals only itself.
    Unique(u64),
    /// A state.
    Digest(Digest),
    /// A name.
    Name(Name),
    /// A file and its content.
    Pin(Pin),
    /// How a step ended.
    How(How),
    /// Several values.
    List(Arc<[Truth]>),
}

impl Truth {
    /// Returns several values as one.
    pub fn list(values: impl IntoIterator<Item = Self>) -> Self {
        Self::List(values.into_iter().collect())
    }
}

/// What a step and the steps upstream of it produced, in clear.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Provenance {
    /// Its outputs.
    pub output: Truth,
    /// Its pins, and those of all steps upstream.
    pub pins: Truth,
}

impl Provenance {
    /// Returns both as one value.
    pub fn whole(&self) -> Truth {
        Truth::list([self.output.clone(), self.pins.clone()])
    }
}

/// A file with the content that it had when its step ended: evidence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The file.
    pub file: Name,
    /// Its content.
    pub content: Content,
}

/// What an end was made from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trace {
    /// The input of the scope.
    pub input: Digest,
    /// The pass.
    pub pass: u32,
    /// For each need, its output digest and pin digest.
    pub needs: BTreeMap<Name, Digest>,
    /// For each step that is only read, its output digest.
    pub reads: BTreeMap<Name, Digest>,
    /// Both digests of the pass before.
    pub previous_pass: Option<Digest>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// It completed.
    Completed,
    /// It failed, and the failure is tolerated.
    Tolerated,
    /// Its condition was false.
    Skipped,
    /// It failed.
    Failed,
    /// It was passed over because of a failure.
    PassedOver,
}

/// The record that finished a step.
#[derive(Debug, Clone)]
pub struct End {
    /// The number of the record.
    pub number: u64,
    /// How the step ended.
    pub how: How,
    /// The pass.
    pub pass: u32,
    /// The version of the definition that made it, apart from the trace: other versions can be accepted.
    pub version: u32,
    /// What it was made from.
    pub trace: Trace,
    /// The digest of its outputs and status.
    pub output_digest: Digest,
    /// The digest of the pins of the step and of all steps upstream.
    pub pin_digest: Digest,
    /// Its output.
    pub output: Option<i64>,
    /// Its evidence.
    pub pins: Vec<Pin>,
    /// The end of the pass before.
    pub before: Option<Arc<End>>,
    /// The frozen list of a fan-out.
    pub items: Vec<Name>,
    /// Of an opener: the number of the opening, which its children carry too.
    pub opening: u64,
    /// Whether a person skipped the step.
    pub by_hand: bool,
    /// Whether a step upstream failed.
    pub failed_upstream: bool,
    /// For the oracles: the outputs and pins in clear.
    pub truth: Provenance,
}

impl End {
    /// Says whether the step was executed to an end that counts as a success.
    pub const fn ran(&self) -> bool {
        matches!(self.how, How::Completed | How::Tolerated)
    }

    /// Says whether the step failed or was passed over.
    pub const fn is_dead(&self) -> bool {
        matches!(self.how, How::Failed | How::PassedOver)
    }

    /// Says whether the step was not executed at all.
    pub const fn was_avoided(&self) -> bool {
        matches!(self.how, How::Skipped | How::PassedOver)
    }

    /// Returns both digests as one.
    pub fn digest(&self) -> Digest {
        Digest::of((self.output_digest, self.pin_digest))
    }
}

/// Returns an end and those of the passes before, newest first. An end without an execution has no children in force.
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

/// How far an unfinished step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It can start.
    Ready,
    /// Its start is recorded.
    Started,
    /// It started, did not end, and is not idempotent.
    Interrupted,
    /// Its children are open.
    Children,
}

/// An unfinished step.
#[derive(Debug, Clone)]
pub struct Activity {
    /// How far it is.
    pub progress: Progress,
    /// The pass.
    pub pass: u32,
    /// The end of the pass before.
    pub before: Option<Arc<End>>,
    /// The frozen list of a fan-out.
    pub items: Vec<Name>,
    /// Whether it is a retry: of a failed attempt, or because a person decided so.
    pub retry: bool,
    /// The attempt, from 1. A resume begins with the first.
    pub attempt: u32,
    /// The number of the opening.
    pub opening: u64,
}

impl Activity {
    /// Returns a step that can start with its first pass.
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
    /// An end that counts again if its step is given the same.
    Ended(Arc<End>),
    /// An end of a step that is not idempotent, for a person to confirm.
    Confirm(Arc<End>),
    /// A step that is not idempotent was started.
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

    /// Returns the same, for a person to confirm and never reused.
    #[must_use]
    pub fn to_confirm(&self) -> Self {
        match self {
            Self::Ended(end) | Self::Confirm(end) => Self::Confirm(end.clone()),
            Self::Started => Self::Started,
        }
    }
}

/// What a scope is given by its opener.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// Its digest.
    pub digest: Option<Digest>,
    /// In a plan: whether a step that would run changes it.
    pub is_unknown: bool,
    /// Its value.
    pub value: i64,
    /// For the oracles: the input in clear.
    pub truth: Truth,
}

/// The position of a scope: all that its newest record tells.
#[derive(Debug, Clone, Default)]
pub struct Position {
    /// Unfinished steps whose needs have ended.
    pub frontier: BTreeMap<Name, Activity>,
    /// Ends in force.
    pub ledger: BTreeMap<Name, Arc<End>>,
    /// Results out of force, by step and pass.
    pub reusable: BTreeMap<(Name, u32), Reusable>,
    /// Openers whose children are opened without reuse.
    pub rerun_whole: BTreeSet<Name>,
    /// Steps that a person skips, each with the trace that the decision was applied to.
    pub skipped: BTreeMap<Name, Option<Trace>>,
    /// What the opener gives.
    pub input: Input,
    /// The number of the opening that the scope belongs to.
    pub opening: u64,
}

impl Position {
    /// Returns the ends of all passes of a step in force, newest first: of its end, or of the passes before its activity.
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
