//! Events: what records say, one line each, for logs, screens and other programs.
//!
//! Events are derived from records, without their bodies, and from nothing else, so that they can be made again at any time and are the same
//! on every store. What is to be done is never read from them: `events.jsonl` may be deleted. This module knows neither
//! files nor stores.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::id::{BranchPath, Digest, RunId, StepId};
use crate::record::{
    End, Ending, Failure, FailureKind, Header, Note, Pack, Phase, RETENTION_MIN, Reason, Record, RunStatus,
    SkipCause, Start, Usage, Verdict, Wait, WaitKind,
};
use crate::store::Trimmed;

mod cause;
mod cursor;
mod notes;

pub use cause::RerunCause;
pub use cursor::{Cursor, InvalidCursor};
pub(crate) use notes::{EVIDENCE_FAILED, STEP_INVALIDATED, STEP_REUSED, STEP_SETTLED};

/// Version of the event line. It is not that of the record: a line may gain members while records stay as they are.
pub const EVENT_VERSION: u32 = 1;

/// Key of the wait of a step that waits for a signal: what answers it is told as [`EventKind::Signalled`].
pub const SIGNAL_KEY: &str = "signal";

/// One line of the audit log.
///
/// Serialised, it is one JSON object: the members below, with `event` and what belongs to it in the place of `what`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// [`EVENT_VERSION`].
    pub v: u32,
    /// Names the event.
    pub cursor: Cursor,
    /// When its record was made, for people.
    pub ts: Timestamp,
    /// The run.
    pub run: RunId,
    /// The branch.
    #[serde(rename = "scope")]
    pub branch: BranchPath,
    /// The record it is derived from.
    pub seq: u64,
    /// What led to it, written as checkpoints are, `RUN@SEQ` or `RUN/BRANCH@SEQ`:
    ///
    /// - of a step that starts because another ended, the record of that end, which is the event's own record;
    /// - of all else, the record that its own one continues: the one before, or, after a rollback, the one gone back to;
    /// - at the begin of a child branch, the branch that opened it, without `@SEQ`: `RUN` or `RUN/BRANCH`;
    /// - at the begin of a run and after a restart, nothing.
    pub parent: Option<String>,
    /// The step it speaks of.
    pub step: Option<StepId>,
    /// The attempt of that step.
    pub attempt: Option<u32>,
    /// What happened.
    #[serde(flatten)]
    pub what: EventKind,
    /// Place in the loops around the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iteration: Vec<u32>,
    /// How often the step was deliberately redone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What happened, by the name it has in the line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The run began.
    RunStarted,
    /// The run began from a checkpoint of another.
    RunForked,
    /// The run was taken up again.
    RunResumed,
    /// An older position holds again.
    RunRolledBack {
        /// The record gone back to.
        to: Option<u64>,
    },
    /// Nothing goes on until an answer, a signal or a time.
    RunWaiting,
    /// Everything is done.
    RunCompleted {
        /// `completed`, or `completed_with_failures`.
        status: RunStatus,
    },
    /// A step failed, and nothing goes on by itself. `step` is that one: of several, the first that failed.
    RunFailed {
        /// The branch of that step, where it is not the event's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step_branch: Option<BranchPath>,
        /// Its error and the causes, outermost first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        error: Vec<String>,
    },
    /// It was stopped.
    RunInterrupted {
        /// `interrupted`, or `in_doubt`.
        status: RunStatus,
    },
    /// It was cancelled for good.
    RunCancelled,
    /// A step was started.
    StepStarted,
    /// A step is done.
    StepCompleted(Box<Ended>),
    /// A step failed, and is not tried again by itself.
    StepFailed(Box<Failed>),
    /// A try of a step failed, and the step is tried again by itself.
    StepRetried(Box<Failed>),
    /// A step was passed over.
    StepSkipped {
        /// Why.
        cause: SkipCause,
    },
    /// A child branch began; `step` is the one that opened it.
    ItemStarted {
        /// Its key.
        key: String,
    },
    /// A child branch ended well, or was passed over.
    ItemCompleted {
        /// Its key.
        key: String,
        /// How it ended.
        end: End,
    },
    /// A child branch failed for good, or was cancelled.
    ItemDead {
        /// Its key.
        key: String,
        /// How it ended.
        end: End,
    },
    /// A service was started; `step` is its own. Logs of older versions have a `custom` of this name in its place.
    ServiceStarted {
        /// It had ended before, and was needed again.
        had_ended: bool,
    },
    /// The end of a step left force, or its result out of force was not reused: the step runs again.
    StepInvalidated {
        /// Why.
        cause: RerunCause,
    },
    /// A result out of force counts again, without an execution.
    StepReused {
        /// The record of the end, or of the entry that continues.
        of: String,
    },
    /// A person settled a step: it was skipped, or counts as done, without an execution.
    StepSettled {
        /// `skipped` or `done`.
        how: String,
        /// The `code` `settled`, who chose (`by`), and when (`at`).
        cause: Value,
    },
    /// A checkpoint was written. Each record says so once.
    CheckpointWritten {
        /// Why it was written.
        reason: Reason,
        /// The digest of the record, which the next one names as `prev`.
        digest: Digest,
        /// The size of header and body, if it has one; a store may keep them smaller.
        bytes: u64,
    },
    /// A checkpoint could not be written when it was due, which is tolerated; what it would have held is in this one.
    CheckpointFailed {
        /// Which one it would have been.
        at: String,
        /// Why it could not be written.
        error: String,
    },
    /// The evidence of a step was checked.
    EvidenceChecked(Checked),
    /// A step was stopped before its end, or stopped itself to wait.
    Interrupted {
        /// Who asked for it: a signal's name or a person.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Something had run.
        in_progress: bool,
        /// What it waits for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waits: Vec<Wait>,
    },
    /// A wait was answered.
    Answered {
        /// Key of the wait.
        key: String,
        /// The answer.
        value: Value,
    },
    /// A signal came that a step waited for, by the key [`SIGNAL_KEY`]. Logs of older versions have `answered` in its place.
    Signalled {
        /// Key of the wait.
        key: String,
        /// What came with it; null where that was nothing.
        value: Value,
    },
    /// Damaged records were passed over and moved aside.
    Quarantined {
        /// The first of them, where that can be told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
        /// The last of them.
        to: u64,
    },
    /// States of older checkpoints were let go, for good; the checkpoints themselves are never. A run that keeps only so
    /// many says it in the record that it writes next: the last ones that a session lets go, it does behind that.
    Pruned {
        /// How many.
        states: u64,
        /// Bytes that they had.
        bytes: u64,
        /// How many of the newest are kept.
        keep: u64,
    },
    /// Tokens and cost.
    Usage(Usage),
    /// A durable result inside a step.
    Progress {
        /// Its key.
        key: String,
        /// Its value.
        value: Value,
    },
    /// Something that a step or the engine says in its own words.
    Custom {
        /// Its name.
        name: String,
        /// Its data.
        data: Value,
    },
}

/// How a step ended, in an event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Exit code of its process, if it had one.
    pub exit_code: Option<i32>,
    /// Its outputs, where they are small.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub outputs: Map<String, Value>,
    /// Their size in bytes, where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_bytes: Option<u64>,
    /// Bytes that it printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
}

/// How a try failed, in an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The kind of failure.
    pub kind: FailureKind,
    /// The error and its causes, outermost first.
    pub error: Vec<String>,
    /// The workflow goes on all the same.
    pub tolerated: bool,
    /// How far it came.
    #[serde(flatten)]
    pub ended: Ended,
}

/// Verdicts, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// Claims in all.
    pub total: u32,
    /// Those that hold.
    pub ok: u32,
    /// Those that do not.
    pub failed: u32,
    /// Those that could not be checked.
    pub unknown: u32,
    /// Those that were not checked on purpose.
    pub skipped: u32,
}

impl Checked {
    /// Counts the verdicts of a pack.
    pub fn of(pack: &Pack) -> Self {
        let count =
            |verdict: Verdict| pack.claims.iter().filter(|claim| claim.verdict == verdict).count() as u32;
        Self {
            total: pack.claims.len() as u32,
            ok: count(Verdict::Ok),
            failed: count(Verdict::Failed),
            unknown: count(Verdict::Unknown),
            skipped: count(Verdict::Skipped),
        }
    }
}

impl From<&Ending> for Ended {
    fn from(ending: &Ending) -> Self {
        Self {
            exit_code: ending.exit_code,
            outputs: ending.outputs.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            outputs_bytes: ending.outputs_bytes,
            log_bytes: ending.log.as_ref().map(|log| log.bytes),
        }
    }
}

impl From<&Failure> for Failed {
    fn from(failure: &Failure) -> Self {
        Self {
            kind: failure.kind,
            error: failure.error.clone(),
            tolerated: failure.tolerated,
            ended: Ended::from(&failure.ending),
        }
    }
}

/// The note of a record that says that a service was started: with its `step`, and whether it `had_ended` before.
pub const SERVICE_STARTED: &str = "service_started";
/// The note of a record that says that one could not be written before it: `at`, and the `error`.
pub const CHECKPOINT_FAILED: &str = "checkpoint_failed";
/// The note of a record that says that states were let go before it: how many `states` of how many `bytes`, and how many
/// it was told to `keep`. Also the key of the record that is written for nothing else.
pub const PRUNED: &str = "pruned";

/// Makes the note that says what retention let go, if that is anything.
pub(crate) fn pruned(trimmed: Trimmed, keep: u32) -> Option<Note> {
    let Trimmed { checkpoints, bytes } = trimmed;
    let data = json!({ "states": checkpoints, "bytes": bytes, "keep": keep.max(RETENTION_MIN) });
    (checkpoints > 0).then(|| Note::Event { name: PRUNED.to_owned(), data })
}

fn is_pruned(note: &Note) -> bool {
    matches!(note, Note::Event { name, .. } if name == PRUNED)
}

/// Returns what a record says, in order: how the branch began or went on, what became of the step, what starts, how
/// branch and run stand.
///
/// The body is not looked at: a record without it, as retention leaves it, says the same.
pub fn of(record: &Record) -> Vec<Event> {
    let header = record.header();
    let mut told = Told { header, parent: parent(header), events: Vec::with_capacity(4) };
    told.begin();
    told.phase();
    told.beside();
    // A join goes on with what was started before.
    for start in header.started.iter().filter(|start| !start.joins) {
        told.start(start);
    }
    let (reason, digest, bytes) = (header.reason, record.digest(), record.bytes());
    told.say(EventKind::CheckpointWritten { reason, digest, bytes });
    told.end();
    told.events
}

/// What a record continues, as [`Event::parent`] says.
fn parent(header: &Header) -> Option<String> {
    if let Some(seq) = header.basis() {
        return Some(reference(header, seq));
    }
    let opener = header.branch.parent().filter(|_| header.seq == 1)?;
    Some(if opener.is_main() { header.run.to_string() } else { format!("{}/{opener}", header.run) })
}

fn reference(header: &Header, seq: u64) -> String {
    let mut reference = header.reference();
    reference.seq = seq;
    reference.to_string()
}

struct Told<'a> {
    header: &'a Header,
    parent: Option<String>,
    events: Vec<Event>,
}

impl Told<'_> {
    fn say(&mut self, what: EventKind) {
        let header = self.header;
        let attempt = Some(header.at.attempt).filter(|attempt| *attempt > 0 && header.step.is_some());
        let event = Event {
            v: EVENT_VERSION,
            cursor: Cursor {
                branch: header.branch.clone(),
                seq: header.seq,
                index: self.events.len() as u32,
            },
            ts: header.created_at,
            run: header.run.clone(),
            branch: header.branch.clone(),
            seq: header.seq,
            parent: self.parent.clone(),
            step: header.step.clone(),
            attempt,
            what,
            iteration: header.at.iteration.clone(),
            epoch: header.at.epoch,
        };
        self.events.push(event);
    }

    /// Says something of the run, or of the step that opened the branch, not of the record's step.
    fn say_of(&mut self, step: Option<StepId>, what: EventKind) {
        self.say(what);
        let event = self.events.last_mut().expect("an event was just pushed");
        (event.step, event.attempt, event.iteration, event.epoch) = (step, None, Vec::new(), 0);
    }

    fn start(&mut self, start: &Start) {
        self.say(EventKind::StepStarted);
        let header = self.header;
        let freed = header.step.as_ref().is_some_and(|step| *step != start.step);
        let event = self.events.last_mut().expect("an event was just pushed");
        event.step = Some(start.step.clone());
        event.attempt = Some(start.at.attempt);
        event.iteration.clone_from(&start.at.iteration);
        event.epoch = start.at.epoch;
        if freed {
            event.parent = Some(header.reference().to_string());
        }
    }

    fn begin(&mut self) {
        let header = self.header;
        if header.seq == 1 {
            match header.branch.opened_by() {
                Some((step, key)) => self.say_of(Some(step), EventKind::ItemStarted { key }),
                None if header.reason == Reason::Fork => self.say_of(None, EventKind::RunForked),
                None => self.say_of(None, EventKind::RunStarted),
            }
        }
        let opens = match &header.phase {
            Phase::Waiting(waits) => waits.iter().any(|wait| wait.on == WaitKind::Children),
            Phase::Progress { .. } => true,
            _ => false,
        };
        if header.seq > 1 && header.reason == Reason::Fork && header.branch.is_main() && !opens {
            // What was finished where it was forked stands before it.
            self.say_of(None, EventKind::RunForked);
        }
        if header.resumed {
            self.say_of(None, EventKind::RunResumed);
        }
        if header.reason == Reason::Rollback {
            self.say_of(None, EventKind::RunRolledBack { to: header.basis() });
        }
        if header.reason == Reason::Repair {
            let from = header.basis().map(|sound| sound + 1).filter(|from| *from < header.seq);
            self.say_of(None, EventKind::Quarantined { from, to: header.seq - 1 });
        }
        if header.definition.is_some() {
            let steps = header.definition.as_ref().map_or(0, |definition| definition.steps.len());
            let data = json!({ "steps": steps });
            self.say_of(None, EventKind::Custom { name: "definition_adopted".to_owned(), data });
        }
    }

    fn phase(&mut self) {
        let header = self.header;
        match &header.phase {
            // The starts speak for themselves; what is restored was told by its reason.
            Phase::Started | Phase::Restored => {}
            Phase::Completed(ending) => self.say(EventKind::StepCompleted(Box::new(ending.into()))),
            Phase::Failed(failure) if failure.retried => {
                self.say(EventKind::StepRetried(Box::new(failure.into())));
            }
            Phase::Failed(failure) => self.say(EventKind::StepFailed(Box::new(failure.into()))),
            Phase::Interrupted { in_progress, by } => self.say(EventKind::Interrupted {
                by: Some(by.clone()),
                in_progress: *in_progress,
                waits: Vec::new(),
            }),
            Phase::Waiting(waits) if waits.iter().all(|wait| wait.on == WaitKind::Children) => {
                // The branches speak for themselves; how many there are, only here.
                for value in waits.iter().filter_map(|wait| wait.question.as_ref()?.get("items").cloned()) {
                    self.say(EventKind::Progress { key: "items".to_owned(), value });
                }
            }
            Phase::Waiting(waits) => {
                self.say(EventKind::Interrupted { by: None, in_progress: true, waits: waits.clone() });
            }
            Phase::Skipped(cause) => self.say(EventKind::StepSkipped { cause: cause.clone() }),
            // Its note says it.
            Phase::Progress { key, .. } if key == PRUNED && header.notes.iter().any(is_pruned) => {}
            Phase::Progress { key, value } => {
                let (key, value) = (key.clone(), value.clone());
                self.say(match header.reason {
                    Reason::Answer if key == SIGNAL_KEY => EventKind::Signalled { key, value },
                    Reason::Answer => EventKind::Answered { key, value },
                    _ => EventKind::Progress { key, value },
                });
            }
        }
    }

    fn beside(&mut self) {
        let header = self.header;
        if let Some(pack) = &header.evidence {
            self.say(EventKind::EvidenceChecked(Checked::of(pack)));
        }
        if let Some(usage) = &header.usage {
            self.say(EventKind::Usage(usage.clone()));
        }
        for note in &header.notes {
            match note {
                Note::Event { name, data } if name == SERVICE_STARTED => {
                    let service = data["step"].as_str().and_then(|step| StepId::new(step).ok());
                    let had_ended = data["had_ended"].as_bool().unwrap_or_default();
                    self.say_of(service.or(header.step.clone()), EventKind::ServiceStarted { had_ended });
                }
                Note::Event { name, data } if name == CHECKPOINT_FAILED => {
                    let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
                    self.say(EventKind::CheckpointFailed { at: text("at"), error: text("error") });
                }
                Note::Event { name, data } if name == PRUNED => {
                    let count = |key: &str| data[key].as_u64().unwrap_or_default();
                    let (states, bytes, keep) = (count("states"), count("bytes"), count("keep"));
                    self.say_of(None, EventKind::Pruned { states, bytes, keep });
                }
                Note::Event { name, data } if name == STEP_SETTLED => self.settled(data),
                Note::Event { name, data } if name == STEP_REUSED => self.reused(data),
                Note::Event { name, data } if name == STEP_INVALIDATED || name == EVIDENCE_FAILED => {
                    self.invalidated(name, data);
                }
                Note::Event { name, data } => {
                    self.say(EventKind::Custom { name: name.clone(), data: data.clone() });
                }
                Note::Warning(text) => {
                    self.say(EventKind::Custom { name: "warning".to_owned(), data: json!(text) });
                }
                // It stands in the report.
                Note::Report(_) => {}
            }
        }
    }

    fn end(&mut self) {
        let header = self.header;
        if let Some((step, key)) = header.branch.opened_by() {
            match header.end {
                Some(end @ (End::Completed | End::Skipped)) => {
                    self.say_of(Some(step), EventKind::ItemCompleted { key, end });
                }
                Some(end @ (End::Failed | End::Cancelled)) => {
                    self.say_of(Some(step), EventKind::ItemDead { key, end });
                }
                None => {}
            }
        }
        // How the run stands may be written on any branch: on one that the last batch had a record of.
        let Some(status) = header.status.filter(|_| !header.stands_as_before()) else { return };
        let what = match status {
            RunStatus::Queued | RunStatus::Running => return,
            RunStatus::Waiting => EventKind::RunWaiting,
            RunStatus::Interrupted | RunStatus::InDoubt => EventKind::RunInterrupted { status },
            RunStatus::Failed => {
                let failed = header.failure().map(|failed| (Some(failed.step), failed.branch, failed.error));
                let (step, step_branch, error) = failed.unwrap_or_default();
                return self.say_of(step, EventKind::RunFailed { step_branch, error });
            }
            RunStatus::Completed | RunStatus::CompletedWithFailures => EventKind::RunCompleted { status },
            RunStatus::Cancelled => EventKind::RunCancelled,
        };
        self.say_of(None, what);
    }
}

/// Returns the step that a note names.
fn step_in(data: &Value) -> Option<StepId> {
    data["step"].as_str().and_then(|step| StepId::new(step).ok())
}
