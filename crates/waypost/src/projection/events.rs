//! Events: the content of records, a line for each event, for logs, screens and other programs.
//!
//! Events are derived only from records, without their bodies. They can be generated again at any time, and
//! are the same on every store. No decision reads events: `events.jsonl` may be deleted. This module knows
//! neither files nor stores.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::id::{Digest, RunId, ScopePath, StepId};
use crate::record::{
    End, Ending, Failure, FailureKind, Header, Note, Pack, Phase, Reason, Record, RunStatus, SkipCause,
    Start, Usage, Verdict, Wait, WaitKind,
};

mod cause;
mod cursor;
mod notes;

pub use cause::RerunCause;
pub use cursor::{Cursor, InvalidCursor};
pub(crate) use notes::{EVIDENCE_FAILED, STEP_INVALIDATED, STEP_REUSED, STEP_SETTLED};

/// Version of the event line, separate from the record format: a line may gain members while records do not
/// change.
pub const EVENT_VERSION: u32 = 1;

/// Key of a step's wait for a signal; its answer becomes [`EventKind::Signalled`].
pub const SIGNAL_KEY: &str = "signal";

/// A line of the audit log.
///
/// The serialised form is a JSON object with the members below; `event` and its fields take the place of
/// `what`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// [`EVENT_VERSION`].
    pub v: u32,
    /// The name of the event.
    pub cursor: Cursor,
    /// Creation time of the record, for display.
    pub ts: Timestamp,
    /// The run.
    pub run: RunId,
    /// The scope.
    pub scope: ScopePath,
    /// The record of the event.
    pub seq: u64,
    /// The paths of the upstream steps, `STEP` or `SCOPE/STEP`: on the start of a step, the steps whose ends made the
    /// step ready; on the begin of a child scope and on the start of its first steps, the opener.
    pub parents: Vec<String>,
    /// The step of the event.
    pub step: Option<StepId>,
    /// The attempt of the step.
    pub attempt: Option<u32>,
    /// The kind of the event.
    #[serde(flatten)]
    pub what: EventKind,
    /// Passes of the loops around the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub iteration: Vec<u32>,
    /// The number of the rerun: 0 before the first rerun of finished steps in the scope.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub epoch: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The kind of an event, by its name in the line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The run began.
    RunStarted,
    /// The run began from a checkpoint of another run.
    RunForked,
    /// The run was resumed.
    RunResumed {
        /// The time of the run's last record before. Logs of older versions lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idle_since: Option<Timestamp>,
    },
    /// An older position was restored.
    RunRolledBack {
        /// The record of the restored position.
        to: Option<u64>,
    },
    /// The run stopped and waits for an answer, a signal or a time.
    RunWaiting,
    /// All steps are done.
    RunCompleted {
        /// `completed`, or `completed_with_failures`.
        status: RunStatus,
    },
    /// A step failed, and the run stopped. `step` is the first failed step.
    RunFailed {
        /// The scope of the failed step, if it differs from the event's scope.
        #[serde(rename = "step_branch", default, skip_serializing_if = "Option::is_none")]
        step_scope: Option<ScopePath>,
        /// The error and its causes, outermost first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        error: Vec<String>,
    },
    /// The run was stopped.
    RunInterrupted {
        /// `interrupted`, or `in_doubt`.
        status: RunStatus,
    },
    /// The run was cancelled for good.
    RunCancelled,
    /// A step was started.
    StepStarted,
    /// A step completed.
    StepCompleted(Box<Ended>),
    /// A step failed, without a further automatic retry.
    StepFailed(Box<Failed>),
    /// An attempt failed, and the step is retried automatically.
    StepRetried(Box<Failed>),
    /// A step was skipped.
    StepSkipped {
        /// The cause.
        cause: SkipCause,
    },
    /// A child scope began; `step` is its opener.
    ItemStarted {
        /// The key of the child.
        key: String,
    },
    /// A child scope completed, or was skipped.
    ItemCompleted {
        /// The key of the child.
        key: String,
        /// How the scope ended.
        end: End,
    },
    /// A child scope failed for good, or was cancelled.
    ItemDead {
        /// The key of the child.
        key: String,
        /// How the scope ended.
        end: End,
    },
    /// A service was started for `step`. Logs of older versions have a `custom` event of this name instead.
    ServiceStarted {
        /// The service had ended before, and was needed again.
        had_ended: bool,
    },
    /// The end of a step left force, or its result out of force was not reused: the step reruns.
    StepInvalidated {
        /// The cause.
        cause: RerunCause,
    },
    /// A result out of force counts again, without an execution.
    StepReused {
        /// The record of the end, or of the entry that continues.
        of: String,
    },
    /// A person settled a step without an execution: the step was skipped, counts as done, or its evidence was
    /// accepted.
    StepSettled {
        /// `skipped`, `done`, `kept` or `accepted`.
        how: String,
        /// The `code` `settled`, the person (`by`), and the time (`at`).
        cause: Value,
    },
    /// A checkpoint was written: one event for each record.
    CheckpointWritten {
        /// The reason of the record.
        reason: Reason,
        /// The digest of the record, which the next record names as `prev`.
        digest: Digest,
        /// The size of header and body, if the record has a body; a store may compress them.
        bytes: u64,
    },
    /// A checkpoint could not be written when due, and the failure was tolerated; this record has its
    /// content.
    CheckpointFailed {
        /// The reference of the missing checkpoint.
        at: String,
        /// The error of the write.
        error: String,
    },
    /// The evidence of a step was checked.
    EvidenceChecked(Checked),
    /// A step was stopped before its end, or stopped itself to wait.
    Interrupted {
        /// The requester: a signal's name or a person.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The process had started.
        in_progress: bool,
        /// The open waits.
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
    /// A signal arrived for a waiting step, with the key [`SIGNAL_KEY`]. Logs of older versions have
    /// `answered` instead.
    Signalled {
        /// Key of the wait.
        key: String,
        /// The value of the signal; null without a value.
        value: Value,
    },
    /// Damaged records were skipped and quarantined.
    Quarantined {
        /// The first damaged record, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
        /// The last damaged record.
        to: u64,
    },
    /// States of older checkpoints were dropped for good; the checkpoints themselves stay. The next record
    /// after the drop has this event; a prune writes a separate record. States dropped after the last record
    /// of a session have no event.
    Pruned {
        /// The number of states.
        states: u64,
        /// Their size in bytes.
        bytes: u64,
        /// The number of newest states kept.
        keep: u64,
    },
    /// Tokens and cost.
    Usage(Usage),
    /// A durable result inside a step.
    Progress {
        /// The key of the result.
        key: String,
        /// The value of the result.
        value: Value,
    },
    /// A custom event of a step or of the engine.
    Custom {
        /// The name of the event.
        name: String,
        /// The data of the event.
        data: Value,
    },
}

/// The end of a step, in an event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Exit code of the process, if the step had a process.
    pub exit_code: Option<i32>,
    /// The outputs, if small.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub outputs: Map<String, Value>,
    /// Size of the outputs in bytes, if large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs_bytes: Option<u64>,
    /// Bytes printed by the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
}

/// The failure of an attempt, in an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The kind of failure.
    pub kind: FailureKind,
    /// The error and its causes, outermost first.
    pub error: Vec<String>,
    /// The failure is tolerated.
    pub tolerated: bool,
    /// Exit code, outputs and log, as far as present.
    #[serde(flatten)]
    pub ended: Ended,
}

/// Counted verdicts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    /// All claims.
    pub total: u32,
    /// Claims that hold.
    pub ok: u32,
    /// Claims that do not hold.
    pub failed: u32,
    /// Claims that could not be checked.
    pub unknown: u32,
    /// Claims that were deliberately not checked.
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

/// The note about the start of a service: its `step`, and whether it `had_ended` before.
pub const SERVICE_STARTED: &str = "service_started";
/// The note about an earlier record that could not be written: `at`, and the `error`.
pub const CHECKPOINT_FAILED: &str = "checkpoint_failed";
/// The note about dropped states: how many `states` of how many `bytes`, and the limit `keep`. Also the key
/// of a record written only for this note.
pub const PRUNED: &str = "pruned";

fn is_pruned(note: &Note) -> bool {
    matches!(note, Note::Event { name, .. } if name == PRUNED)
}

/// Returns the events of a record, in order: begin or resume of the scope, outcome of the step, starts of
/// steps, end of scope and run.
///
/// Ignores the body: a record without its body, as after retention, has the same events.
pub fn of(record: &Record) -> Vec<Event> {
    let header = record.header();
    let mut events = RecordEvents { header, events: Vec::with_capacity(4) };
    events.begin();
    events.phase();
    events.evidence_and_notes();
    // A join continues a step that was started before.
    for start in header.started.iter().filter(|start| !start.joins) {
        events.start(start);
    }
    let (reason, digest, bytes) = (header.reason, record.digest(), record.bytes());
    events.push(EventKind::CheckpointWritten { reason, digest, bytes });
    events.end();
    events.events
}

/// Returns the path of a step.
fn step_path(scope: &ScopePath, step: &StepId) -> String {
    if scope.is_main() { step.to_string() } else { format!("{scope}/{step}") }
}

/// Returns the path of the step that opened the scope of a record.
fn opener(header: &Header) -> Option<String> {
    let (step, _) = header.scope.opened_by()?;
    Some(step_path(&header.scope.parent()?, &step))
}

struct RecordEvents<'a> {
    header: &'a Header,
    events: Vec<Event>,
}

impl RecordEvents<'_> {
    fn push(&mut self, what: EventKind) {
        let header = self.header;
        let attempt = Some(header.at.attempt).filter(|attempt| *attempt > 0 && header.step.is_some());
        let event = Event {
            v: EVENT_VERSION,
            cursor: Cursor { scope: header.scope.clone(), seq: header.seq, index: self.events.len() as u32 },
            ts: header.created_at,
            run: header.run.clone(),
            scope: header.scope.clone(),
            seq: header.seq,
            parents: Vec::new(),
            step: header.step.clone(),
            attempt,
            what,
            iteration: header.at.iteration.clone(),
            epoch: header.at.epoch,
        };
        self.events.push(event);
    }

    /// Adds an event about the run, or about the opener of the scope, not about the record's step.
    fn push_of(&mut self, step: Option<StepId>, what: EventKind) {
        self.push(what);
        let event = self.events.last_mut().expect("an event was just pushed");
        (event.step, event.attempt, event.iteration, event.epoch) = (step, None, Vec::new(), 0);
    }

    fn start(&mut self, start: &Start) {
        self.push(EventKind::StepStarted);
        let header = self.header;
        let event = self.events.last_mut().expect("an event was just pushed");
        event.step = Some(start.step.clone());
        event.attempt = Some(start.at.attempt);
        event.iteration.clone_from(&start.at.iteration);
        event.epoch = start.at.epoch;
        event.parents = start.needs.iter().map(|need| step_path(&header.scope, need)).collect();
        if event.parents.is_empty() {
            event.parents = opener(header).into_iter().collect();
        }
    }

    fn begin(&mut self) {
        let header = self.header;
        if header.seq == 1 {
            match header.scope.opened_by() {
                Some((step, key)) => {
                    self.push_of(Some(step), EventKind::ItemStarted { key });
                    let event = self.events.last_mut().expect("an event was just pushed");
                    event.parents = opener(header).into_iter().collect();
                }
                None if header.reason == Reason::Fork => self.push_of(None, EventKind::RunForked),
                None => self.push_of(None, EventKind::RunStarted),
            }
        }
        let opens = match &header.phase {
            Phase::Waiting(waits) => waits.iter().any(|wait| wait.on == WaitKind::Children),
            Phase::Progress { .. } => true,
            _ => false,
        };
        if header.seq > 1 && header.reason == Reason::Fork && header.scope.is_main() && !opens {
            // Records before this one were copied from the parent run.
            self.push_of(None, EventKind::RunForked);
        }
        if let Some(idle_since) = header.idle_since {
            self.push_of(None, EventKind::RunResumed { idle_since: Some(idle_since) });
        }
        if header.reason == Reason::Rollback {
            self.push_of(None, EventKind::RunRolledBack { to: header.basis() });
        }
        if header.reason == Reason::Repair {
            let from = header.basis().map(|sound| sound + 1).filter(|from| *from < header.seq);
            self.push_of(None, EventKind::Quarantined { from, to: header.seq - 1 });
        }
        if header.definition.is_some() {
            let steps = header.definition.as_ref().map_or(0, |definition| definition.steps.len());
            let data = json!({ "steps": steps });
            self.push_of(None, EventKind::Custom { name: "definition_adopted".to_owned(), data });
        }
    }

    fn phase(&mut self) {
        let header = self.header;
        match &header.phase {
            // Starts have their own events; a restored position has an event by its reason.
            Phase::Started | Phase::Restored => {}
            Phase::Completed(ending) => self.push(EventKind::StepCompleted(Box::new(ending.into()))),
            Phase::Failed(failure) if failure.retried => {
                self.push(EventKind::StepRetried(Box::new(failure.into())));
            }
            // The end of a scope repeats the failure of an earlier record.
            Phase::Failed(_) if header.end.is_some() && header.about.is_some() => {}
            Phase::Failed(failure) => self.push(EventKind::StepFailed(Box::new(failure.into()))),
            // A submitted run has not begun.
            Phase::Interrupted { .. } if self.header.status == Some(RunStatus::Queued) => {}
            Phase::Interrupted { in_progress, by } => self.push(EventKind::Interrupted {
                by: Some(by.clone()),
                in_progress: *in_progress,
                waits: Vec::new(),
            }),
            Phase::Waiting(waits) if waits.iter().all(|wait| wait.on == WaitKind::Children) => {
                // Each scope has its own events; the number of items appears only here.
                for value in waits.iter().filter_map(|wait| wait.question.as_ref()?.get("items").cloned()) {
                    self.push(EventKind::Progress { key: "items".to_owned(), value });
                }
            }
            Phase::Waiting(waits) => {
                self.push(EventKind::Interrupted { by: None, in_progress: true, waits: waits.clone() });
            }
            Phase::Skipped(cause) => self.push(EventKind::StepSkipped { cause: cause.clone() }),
            // The note has its own event.
            Phase::Progress { key, .. } if key == PRUNED && header.notes.iter().any(is_pruned) => {}
            Phase::Progress { key, value } => {
                let (key, value) = (key.clone(), value.clone());
                self.push(match header.reason {
                    Reason::Answer if key == SIGNAL_KEY => EventKind::Signalled { key, value },
                    Reason::Answer => EventKind::Answered { key, value },
                    _ => EventKind::Progress { key, value },
                });
            }
        }
    }

    fn evidence_and_notes(&mut self) {
        let header = self.header;
        if let Some(pack) = &header.evidence {
            self.push(EventKind::EvidenceChecked(Checked::of(pack)));
        }
        if let Some(usage) = &header.usage {
            self.push(EventKind::Usage(usage.clone()));
        }
        for note in &header.notes {
            match note {
                Note::Event { name, data } if name == SERVICE_STARTED => {
                    let service = data["step"].as_str().and_then(|step| StepId::new(step).ok());
                    let had_ended = data["had_ended"].as_bool().unwrap_or_default();
                    self.push_of(service.or(header.step.clone()), EventKind::ServiceStarted { had_ended });
                }
                Note::Event { name, data } if name == CHECKPOINT_FAILED => {
                    let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
                    self.push(EventKind::CheckpointFailed { at: text("at"), error: text("error") });
                }
                Note::Event { name, data } if name == PRUNED => {
                    let count = |key: &str| data[key].as_u64().unwrap_or_default();
                    let (states, bytes, keep) = (count("states"), count("bytes"), count("keep"));
                    self.push_of(None, EventKind::Pruned { states, bytes, keep });
                }
                Note::Event { name, data } if name == STEP_SETTLED => self.settled(data),
                Note::Event { name, data } if name == STEP_REUSED => self.reused(data),
                Note::Event { name, data } if name == STEP_INVALIDATED || name == EVIDENCE_FAILED => {
                    self.invalidated(name, data);
                }
                Note::Event { name, data } => {
                    self.push(EventKind::Custom { name: name.clone(), data: data.clone() });
                }
                Note::Warning(text) => {
                    self.push(EventKind::Custom { name: "warning".to_owned(), data: json!(text) });
                }
                // Text for the report only.
                Note::Report(_) => {}
            }
        }
    }

    fn end(&mut self) {
        let header = self.header;
        if let Some((step, key)) = header.scope.opened_by() {
            match header.end {
                Some(end @ (End::Completed | End::Skipped)) => {
                    self.push_of(Some(step), EventKind::ItemCompleted { key, end });
                }
                Some(end @ (End::Failed | End::Cancelled)) => {
                    self.push_of(Some(step), EventKind::ItemDead { key, end });
                }
                None => {}
            }
        }
        // Any scope can carry the status of the run: a scope with a record in the last batch.
        let Some(status) = header.status.filter(|_| !header.keeps_status()) else { return };
        let what = match status {
            RunStatus::Queued | RunStatus::Running => return,
            RunStatus::Waiting => EventKind::RunWaiting,
            RunStatus::Interrupted | RunStatus::InDoubt => EventKind::RunInterrupted { status },
            RunStatus::Failed => {
                let failed = header.failure().map(|failed| (Some(failed.step), failed.scope, failed.error));
                let (step, step_scope, error) = failed.unwrap_or_default();
                return self.push_of(step, EventKind::RunFailed { step_scope, error });
            }
            RunStatus::Completed | RunStatus::CompletedWithFailures => EventKind::RunCompleted { status },
            RunStatus::Cancelled => EventKind::RunCancelled,
        };
        self.push_of(None, what);
    }
}

/// Returns the step named in a note.
fn step_in(data: &Value) -> Option<StepId> {
    data["step"].as_str().and_then(|step| StepId::new(step).ok())
}
