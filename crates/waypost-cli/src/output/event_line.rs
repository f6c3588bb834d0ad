//! An event as a line of text.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use waypost::events::{Event, EventKind};
use waypost::record::{Wait, WaitKind};

use super::step_names::StepNames;
use super::step_progress::branch_of;
use super::{is_empty, shown};
use crate::format::time;

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
    /// Formats an event as a line: time, place, name, and fields.
    pub(crate) fn line(self, event: &Event) -> String {
        let run = if self.of_many { event.run.as_str() } else { "" };
        let at = if self.of_many && !event.branch.is_main() { "/" } else { "" };
        let mut text = format!("{}  {:<10}", time::utc(event.ts), format!("{run}{at}{}", place(event)));
        if let EventKind::Custom { name, data: Value::String(warning) } = &event.what
            && name == WARNING
        {
            let step = event.step.as_ref().map(|step| format!(" {step}")).unwrap_or_default();
            let _ = write!(text, " {name}{step}: {}", shown(warning));
            return text;
        }
        let mut rest = match serde_json::to_value(&event.what) {
            Ok(Value::Object(rest)) => rest,
            _ => Map::new(),
        };
        let name = rest.remove("event");
        let name = name.as_ref().and_then(Value::as_str).unwrap_or_default();
        let _ = write!(text, " {name}");
        if let Some(step) = &event.step {
            let branch = branch_of(event).unwrap_or_else(|| event.branch.clone());
            text = self.names.beside(format!("{text} {step}"), &branch, step.as_str());
        }
        if let Some(attempt) = event.attempt.filter(|attempt| *attempt > 1) {
            let _ = write!(text, " attempt={attempt}");
        }
        if let EventKind::Interrupted { waits, .. } = &event.what {
            rest.remove("waits");
            rest.remove("in_progress");
            waits.iter().for_each(|wait| tell_wait(&mut text, wait));
        }
        if let EventKind::Progress { key, value } = &event.what {
            tell_progress(&mut text, key, value);
            rest.clear();
        }
        if !self.digests && matches!(event.what, EventKind::CheckpointWritten { .. }) {
            rest.remove("digest");
        }
        for (key, value) in &rest {
            match value {
                // Names chosen by users stay unchanged.
                Value::Object(members) if key == "outputs" => {
                    let told = members.iter().filter(|(_, value)| !is_empty(value));
                    told.for_each(|(name, value)| tell_output(&mut text, name, value));
                }
                value => tell(&mut text, key, value),
            }
        }
        text
    }
}

/// Appends a sub-result of a step.
fn tell_progress(text: &mut String, key: &str, value: &Value) {
    match (key, value) {
        ("items", Value::Number(count)) => {
            let _ = write!(text, " {count} items");
        }
        ("until", Value::String(due)) => {
            let due = due.parse().map_or_else(|_| due.clone(), time::utc);
            let _ = write!(text, " until {}", shown(&due));
        }
        _ => tell(text, key, value),
    }
}

/// Appends the condition of a wait.
fn tell_wait(text: &mut String, wait: &Wait) {
    let (key, value) = match &wait.on {
        WaitKind::Answer => ("asks", wait.question.clone().unwrap_or_default()),
        WaitKind::Signal(name) => ("signal", Value::String(name.clone())),
        WaitKind::Until(due) => ("until", Value::String(time::utc(*due))),
        WaitKind::Resume => ("waits_for", Value::String("resume".to_owned())),
        WaitKind::Children => return,
    };
    tell(text, key, &value);
}

/// Appends an output to a line: text as is, other values as JSON.
fn tell_output(text: &mut String, name: &str, value: &Value) {
    let told = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let _ = write!(text, " {}={}", shown(name), shown(&told));
}

/// Appends a member as `key=value`; false and missing values are omitted.
fn tell(text: &mut String, key: &str, value: &Value) {
    let told = match value {
        Value::Null | Value::Bool(false) => return,
        Value::String(told) if matches!(key, "idle_since" | "at") => {
            told.parse().map_or_else(|_| told.clone(), time::utc)
        }
        Value::String(told) => told.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(": ")
        }
        // Claims and the like, one after the other.
        Value::Array(items) if items.iter().all(Value::is_object) => {
            return items.iter().for_each(|item| tell(text, key, item));
        }
        // The members of a map are appended without a prefix.
        Value::Object(members) => return members.iter().for_each(|(key, value)| tell(text, key, value)),
        value => value.to_string(),
    };
    let _ = write!(text, " {}={}", shown(key), shown(&told));
}

fn place(event: &Event) -> String {
    if event.branch.is_main() {
        format!("@{}", event.seq)
    } else {
        format!("{}@{}", event.branch.readable(), event.seq)
    }
}
