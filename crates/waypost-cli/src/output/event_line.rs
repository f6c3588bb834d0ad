//! An event as a line of text.

use serde_json::{Map, Value};
use waypost::ScopePath;
use waypost::events::{Checked, Ended, Event, EventKind, Failed};
use waypost::record::{End, RunStatus, Wait, WaitKind};

use super::{is_empty, shown};
use crate::format::text::tokens_and_cost;
use crate::format::{size, time};
use crate::view::CauseView;
use crate::view::step_names::StepNames;

/// The name of an event with a warning.
const WARNING: &str = "warning";

/// How events are written as lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventLines<'a> {
    /// With several runs, the place includes the run.
    pub(crate) of_many: bool,
    /// Digests are included.
    pub(crate) digests: bool,
    /// The names of steps.
    pub(crate) names: &'a StepNames,
}

impl EventLines<'_> {
    /// Formats an event as a line: time, place, name, step, and details in words.
    pub(crate) fn line(self, event: &Event) -> String {
        let run = if self.of_many { event.run.as_str() } else { "" };
        let at = if self.of_many && !event.scope.is_main() { "/" } else { "" };
        let place = format!("{run}{at}{}@{}", self.names.path(&event.scope), event.seq);
        let mut text = format!("{}  {place:<10} {}", time::utc(event.ts), name(&event.what));
        if let Some(step) = &event.step {
            let (scope, called) = match &event.what {
                EventKind::RunFailed { step_scope: Some(at), .. } => {
                    (at.clone(), self.names.called(at, step.as_str()))
                }
                EventKind::ItemStarted { .. }
                | EventKind::ItemCompleted { .. }
                | EventKind::ItemDead { .. } => {
                    (event.scope.parent().unwrap_or_else(ScopePath::main), self.opener(event))
                }
                _ => (event.scope.clone(), step.to_string()),
            };
            text = self.names.beside(format!("{text} {called}"), &scope, step.as_str());
        }
        let mut details = self.details(event);
        // The passes of a group are in the path of its scope.
        let in_path = self.names.path(&event.scope).matches('~').count();
        if let Some(pass) = event.iteration.last().filter(|_| event.iteration.len() > in_path) {
            details.insert(0, format!("iteration {pass}"));
        }
        if let Some(attempt) = event.attempt.filter(|attempt| *attempt > 1) {
            details.insert(0, format!("attempt {attempt}"));
        }
        details.retain(|detail| !detail.is_empty());
        let colon = if details.is_empty() { "" } else { ": " };
        format!("{text}{colon}{}", shown(&self.names.plain(&details.join(", "))))
    }

    /// Returns what the event says beyond its name and step.
    fn details(self, event: &Event) -> Vec<String> {
        match &event.what {
            EventKind::RunStarted
            | EventKind::RunForked
            | EventKind::RunWaiting
            | EventKind::RunCancelled
            | EventKind::StepStarted => Vec::new(),
            EventKind::RunResumed { idle_since } => {
                idle_since.map(|since| format!("idle since {}", time::utc(since))).into_iter().collect()
            }
            EventKind::RunRolledBack { to } => to.map(|to| format!("to @{to}")).into_iter().collect(),
            EventKind::RunCompleted { status: RunStatus::Completed }
            | EventKind::RunInterrupted { status: RunStatus::Interrupted } => Vec::new(),
            EventKind::RunCompleted { status } | EventKind::RunInterrupted { status } => {
                vec![status.name().replace('_', " ")]
            }
            EventKind::RunFailed { error, .. } => vec![error.join(": ")],
            EventKind::StepCompleted(ended) => ended_details(ended),
            EventKind::StepFailed(failed) | EventKind::StepRetried(failed) => failed_details(failed),
            EventKind::StepSkipped { cause } => vec![CauseView::from(cause).text],
            EventKind::ItemStarted { .. } => vec![self.item(event)],
            EventKind::ItemCompleted { end: End::Completed, .. }
            | EventKind::ItemDead { end: End::Failed, .. } => vec![self.item(event)],
            EventKind::ItemCompleted { end, .. } | EventKind::ItemDead { end, .. } => {
                vec![self.item(event), word(end)]
            }
            EventKind::ServiceStarted { had_ended } => {
                had_ended.then(|| "it had ended".to_owned()).into_iter().collect()
            }
            EventKind::StepInvalidated { cause } => vec![CauseView::from(cause).text],
            EventKind::StepReused { of } => vec![format!("the result of {of}")],
            EventKind::StepSettled { how, cause } => {
                vec![format!("{how} by {}", cause["by"].as_str().unwrap_or("a person"))]
            }
            EventKind::CheckpointWritten { reason, digest, bytes } => {
                let digest = self.digests.then(|| format!("digest {digest}"));
                [word(reason), size::shown(*bytes)].into_iter().chain(digest).collect()
            }
            EventKind::CheckpointFailed { at, error } => vec![format!("{at}: {error}")],
            EventKind::EvidenceChecked(checked) => verdicts(*checked),
            EventKind::Interrupted { by, waits, .. } => {
                by.clone().into_iter().chain(waits.iter().filter_map(wait_text)).collect()
            }
            EventKind::Answered { value, .. } if !value.is_null() => vec![plain(value)],
            EventKind::Answered { key, value } | EventKind::Signalled { key, value } => {
                if value.is_null() {
                    vec![key.clone()]
                } else {
                    vec![format!("{key}={}", plain(value))]
                }
            }
            EventKind::Quarantined { from, to } => match from.filter(|from| from != to) {
                Some(from) => vec![format!("checkpoints @{from} to @{to}")],
                None => vec![format!("checkpoint @{to}")],
            },
            EventKind::Pruned { states, bytes, keep } => {
                vec![format!("{states} states, {}", size::shown(*bytes)), format!("the newest {keep} stay")]
            }
            EventKind::Usage(used) => {
                vec![tokens_and_cost(used), used.model.clone().unwrap_or_default()]
            }
            EventKind::Progress { key, value } => match (key.as_str(), value) {
                ("items", Value::Number(count)) if count.as_u64() == Some(1) => vec!["1 item".to_owned()],
                ("items", Value::Number(count)) => vec![format!("{count} items")],
                (key, _) if key.starts_with("told answer") => vec!["declined".to_owned()],
                ("until", Value::String(due)) => {
                    vec![format!("until {}", due.parse().map_or_else(|_| due.clone(), time::utc))]
                }
                (key, Value::Object(members)) => {
                    std::iter::once(key.to_owned()).chain(pairs(members)).collect()
                }
                (key, value) => vec![format!("{key}={}", plain(value))],
            },
            EventKind::Custom { name, data } => match data {
                Value::String(warning) if name == WARNING => vec![warning.clone()],
                Value::Object(members) => std::iter::once(name.clone()).chain(pairs(members)).collect(),
                Value::Null => vec![name.clone()],
                value => vec![name.clone(), plain(value)],
            },
        }
    }

    /// Returns the step that opened the scope of an event.
    fn opener(self, event: &Event) -> String {
        let path = self.names.path(&event.scope);
        let last = path.rsplit('/').next().unwrap_or_default();
        last.split([':', '~']).next().unwrap_or_default().to_owned()
    }

    /// Returns the key of an item, or the number of a pass; nothing for the only child scope of a step.
    fn item(self, event: &Event) -> String {
        let path = self.names.path(&event.scope);
        let last = path.rsplit('/').next().unwrap_or_default();
        match last.find([':', '~']).map(|at| &last[at + 1..]) {
            Some("") => "\"\"".to_owned(),
            Some(key) => key.to_owned(),
            None => String::new(),
        }
    }
}

/// Returns the name of an event, as in JSON.
fn name(what: &EventKind) -> String {
    match what {
        EventKind::Custom { name, data: Value::String(_) } if name == WARNING => WARNING.to_owned(),
        what => word(what),
    }
}

/// Returns the name of a variant, as in JSON.
fn word(of: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(of).unwrap_or_default();
    value.as_str().or_else(|| value["event"].as_str()).unwrap_or_default().to_owned()
}

fn ended_details(ended: &Ended) -> Vec<String> {
    let code = ended.exit_code.filter(|code| *code != 0).map(|code| format!("exit code {code}"));
    let large = ended.outputs_bytes.map(|bytes| format!("outputs of {}", size::shown(bytes)));
    let log = ended.log_bytes.map(|bytes| format!("log {}", size::shown(bytes)));
    code.into_iter().chain(pairs(&ended.outputs)).chain(large).chain(log).collect()
}

/// The error of a process has its exit code.
fn failed_details(failed: &Failed) -> Vec<String> {
    let mut details = vec![failed.error.join(": ")];
    details.extend(ended_details(&Ended { exit_code: None, ..failed.ended.clone() }));
    details.extend(failed.tolerated.then(|| "tolerated".to_owned()));
    details
}

fn verdicts(checked: Checked) -> Vec<String> {
    let counts = [
        (checked.ok, "ok"),
        (checked.failed, "failed"),
        (checked.unknown, "unknown"),
        (checked.skipped, "skipped"),
    ];
    counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, of)| format!("{count} {of}")).collect()
}

/// Returns the condition of a wait.
fn wait_text(wait: &Wait) -> Option<String> {
    match &wait.on {
        WaitKind::Answer => Some(format!("asks {}", plain(&wait.question.clone().unwrap_or_default()))),
        WaitKind::Signal(name) => Some(format!("waits for signal {name}")),
        WaitKind::Until(due) => Some(format!("until {}", time::utc(*due))),
        WaitKind::Resume => Some("waits for a resume".to_owned()),
        WaitKind::Children => None,
    }
}

/// Returns the members as `name=value`, without empty ones. Names chosen by users stay unchanged.
fn pairs(members: &Map<String, Value>) -> impl Iterator<Item = String> {
    let told = members.iter().filter(|(_, value)| !is_empty(value));
    told.map(|(name, value)| format!("{name}={}", plain(value)))
}

/// Returns text as is, other values as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}
