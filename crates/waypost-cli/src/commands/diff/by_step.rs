//! The state of a workflow as a person reads it: a line for the status of each step and item, and for each output.

use std::collections::BTreeMap;

use serde_json::Value;
use waypost::{ScopePath, StepId};
use waypost_workflow::file::{Step, Work};

use crate::view::step_names::StepNames;

/// The values of a state by path: `STEP` is a status, `STEP.NAME` an output, `params.NAME` a param.
pub(super) type StateValues = BTreeMap<String, StateValue>;

/// A value of a state.
#[derive(Debug, PartialEq)]
pub(super) enum StateValue {
    /// The status of a step or an item, in words.
    Status(String),
    /// An output, a param or an item.
    Data(Value),
}

/// The checkpoint of a state, and the names of the steps of its run.
pub(super) struct StateAt<'a> {
    pub(super) scope: &'a ScopePath,
    pub(super) names: &'a StepNames,
}

/// Returns the values of a state; `None` if the state is not of a workflow.
pub(super) fn values(state: &Value, at: &StateAt<'_>) -> Option<StateValues> {
    let mut values = StateValues::new();
    for part in ["steps", "failed"] {
        let Some(steps) = state.get(part) else { continue };
        for (id, step) in steps.as_object()? {
            let status = if part == "failed" { "failed" } else { "completed" };
            let path = at.called(id);
            put_status(&mut values, &path, step, status);
            match at.names.runs_file(at.scope, id) {
                // The outputs of an included file are the outputs of all inner steps.
                true => step["outputs"].as_object().into_iter().flatten().for_each(|(inner, outputs)| {
                    put_outputs(&mut values, &format!("{path}/{inner}"), outputs);
                }),
                false => put_outputs(&mut values, &path, &step["outputs"]),
            }
            put_items(&mut values, at, id, step);
        }
    }
    let params = state.get("params").and_then(Value::as_object).into_iter().flatten();
    values.extend(params.map(|(name, value)| (format!("params.{name}"), StateValue::Data(value.clone()))));
    values.extend(state.get("item").map(|item| ("item".to_owned(), StateValue::Data(item["value"].clone()))));
    state.get("steps").map(|_| values)
}

impl StateAt<'_> {
    /// Returns the path of a step. The state of a scope has the steps of its groups, too.
    fn called(&self, id: &str) -> String {
        let within = self.names.body(self.scope).and_then(|body| path_within(body.steps(), id));
        self.names.called(self.scope, within.as_deref().unwrap_or(id))
    }
}

/// Returns the path of a step through the groups around it.
fn path_within(steps: &[Step], id: &str) -> Option<String> {
    steps.iter().find_map(|step| match &step.work {
        _ if step.id == id => Some(id.to_owned()),
        Work::Group(body) => path_within(body.steps(), id).map(|path| format!("{}/{path}", step.id)),
        _ => None,
    })
}

/// Adds the status of a step; `status` is that of a step without a recorded one.
fn put_status(values: &mut StateValues, path: &str, step: &Value, status: &str) {
    let status = step["status"].as_str().unwrap_or(status);
    let code = step["exit_code"].as_i64().filter(|code| *code != 0);
    let code = code.map(|code| format!(", exit code {code}")).unwrap_or_default();
    let passes = match step["passes"].as_u64() {
        None | Some(0) => String::new(),
        Some(1) => ", 1 iteration".to_owned(),
        Some(passes) => format!(", {passes} iterations"),
    };
    let items = step.get("items").filter(|items| items.is_object()).map(|items| {
        format!(", {} items: {} done, {} failed", items["total"], items["succeeded"], items["failed"])
    });
    let text = format!("{status}{code}{passes}{}", items.unwrap_or_default());
    values.insert(path.to_owned(), StateValue::Status(text));
}

fn put_outputs(values: &mut StateValues, path: &str, outputs: &Value) {
    let outputs = outputs.as_object().into_iter().flatten();
    values.extend(outputs.map(|(name, value)| (format!("{path}.{name}"), StateValue::Data(value.clone()))));
}

/// Adds the items of a step, if the state has them.
fn put_items(values: &mut StateValues, at: &StateAt<'_>, id: &str, step: &Value) {
    let Ok(opener) = StepId::new(id) else { return };
    for item in step["items"]["items"].as_array().into_iter().flatten() {
        let scope = item["key"].as_str().and_then(|key| at.scope.child(&opener, key).ok());
        let Some(scope) = scope else { continue };
        // The step may be within a group.
        let shown = at.names.path(&scope);
        let key = shown.strip_prefix(&at.names.called(at.scope, id)).unwrap_or_default();
        let path = format!("{}{key}", at.called(id));
        put_status(values, &path, item, "completed");
        for (inner, step) in item["steps"].as_object().into_iter().flatten() {
            put_outputs(values, &format!("{path}/{inner}"), &step["outputs"]);
        }
    }
}
