//! Values in scope of expressions.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Value as Raw;
use minijinja::value::{Enumerator, Object, ValueKind};
use serde_json::{Map, Value};

use super::convert;
use super::names::{FAILED_STEP, WAITING_STEP};
use crate::suggest::{listed, nearest};

/// Most names in a message before "and N more".
const LISTED_MAX: usize = 12;

/// View of one step for expressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepView {
    /// Status, one word: `completed`, `failed`, `skipped`, ...
    pub status: String,
    /// Exit code of the last attempt; null in expressions if absent.
    pub exit_code: Option<i64>,
    /// Standard output, if kept.
    pub stdout: Option<String>,
    /// Outputs; `None` for a skipped step, with null for every output.
    pub outputs: Option<Map<String, Value>>,
    /// Outcomes of the items, for a step with `foreach`.
    pub items: Option<ItemsView>,
}

/// View of the items of a step for expressions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ItemsView {
    /// Number of items.
    pub total: u64,
    /// Number of completed items.
    pub succeeded: u64,
    /// Number of failed items.
    pub failed: u64,
    /// Outcome of each item, if there are few.
    pub items: Option<Vec<Value>>,
    /// File with one line of JSON per item, if there are many.
    pub file: Option<String>,
}

/// Values that expressions may read at one moment of a run.
///
/// Cloning is cheap: the values are shared.
#[derive(Debug, Clone)]
pub struct Scope {
    step: Option<String>,
    run_id: String,
    params: Arc<Shelf>,
    env: Arc<Shelf>,
    steps: Arc<Shelf>,
    /// Local values, by name.
    locals: Arc<Shelf>,
    /// Whether a step upstream failed.
    has_failure: bool,
}

impl Scope {
    /// Returns the scope of a run before any step.
    #[must_use]
    pub fn new(run_id: impl Into<String>, params: &Map<String, Value>) -> Self {
        let params = params.iter().map(|(name, value)| (name.clone(), convert::from_json(value)));
        Self {
            step: None,
            run_id: run_id.into(),
            params: Arc::new(Shelf(params.collect())),
            env: Arc::default(),
            steps: Arc::default(),
            locals: Arc::default(),
            has_failure: false,
        }
    }

    /// Returns the scope with a local value added.
    #[must_use]
    pub fn with_local(&self, name: impl Into<String>, value: &Value) -> Self {
        let mut scope = self.clone();
        Arc::make_mut(&mut scope.locals).0.insert(name.into(), convert::from_json(value));
        scope
    }

    /// Returns the scope for a condition; `has_failure` says whether a step upstream failed.
    #[must_use]
    pub(crate) fn with_failure(&self, has_failure: bool) -> Self {
        Self { has_failure, ..self.clone() }
    }

    /// Adds the result of a step; a rerun replaces the earlier result.
    pub fn insert_step(&mut self, id: impl Into<String>, view: &StepView) {
        Arc::make_mut(&mut self.steps).0.insert(id.into(), step_value(view));
    }

    /// Adds the result of a step that has not run: the step counts as completed.
    pub(crate) fn expect_success(&mut self, step: &str) {
        let status = "completed".to_owned();
        let outputs = Some(Map::new());
        self.insert_step(step, &StepView { status, exit_code: None, stdout: None, outputs, items: None });
    }

    /// Returns the scope of one step: with the given `env`, and with the step in errors.
    #[must_use]
    pub fn for_step(&self, id: impl Into<String>, env: &BTreeMap<String, String>) -> Self {
        let env = env.iter().map(|(name, value)| (name.clone(), Raw::from(value.as_str())));
        Self { step: Some(id.into()), env: Arc::new(Shelf(env.collect())), ..self.clone() }
    }

    /// Returns the step of the scope.
    #[must_use]
    pub fn step(&self) -> Option<&str> {
        self.step.as_deref()
    }

    pub(crate) fn context(&self) -> Raw {
        Raw::from_object(Context(self.clone()))
    }

    /// Returns the first missing part of `path`: an error text, and the nearest existing name.
    pub(crate) fn missing(&self, path: &[String]) -> Option<(String, Option<String>)> {
        let mut value = self.context();
        for (index, part) in path.iter().enumerate() {
            let next = value.get_attr(part).ok().filter(|next| !next.is_undefined());
            let Some(next) = next else {
                return Some(missing_message(&path[..index], part, &value));
            };
            value = next;
        }
        None
    }
}

fn missing_message(parent: &[String], part: &str, value: &Raw) -> (String, Option<String>) {
    let parent_path = parent.join(".");
    if value.kind() != ValueKind::Map {
        let what = convert::described_or_kind(value);
        return (format!("`{parent_path}` has no `{part}`: the value is {what}"), None);
    }
    let names: Vec<String> = value.try_iter().into_iter().flatten().map(|name| name.to_string()).collect();
    let is_foreach = names.iter().any(|name| name == "total");
    let has = match (names.len(), parent) {
        (_, [root, id]) if root == "steps" && part == "stdout" => {
            return (format!("the output of step `{id}` was not recorded"), None);
        }
        (_, [root, id]) if is_foreach && root == "steps" && (part == "items" || part == "items_file") => {
            let message = match part {
                _ if names.iter().all(|name| !OF_ITEMS[..2].contains(&name.as_str())) => {
                    format!(
                        "step `{id}` has too many items for the state, and this store keeps no file of the items"
                    )
                }
                "items" => {
                    format!("step `{id}` has too many items for the state: read `steps.{id}.items_file`")
                }
                _ => format!("step `{id}` keeps its items in the state: read `steps.{id}.items`"),
            };
            return (message, None);
        }
        (_, [root]) if root == "steps" => format!("step `{part}` has not finished"),
        (0, _) => format!("`{parent_path}` has no `{part}`: the map is empty"),
        (count, _) if count > LISTED_MAX => {
            let more = count - LISTED_MAX;
            let first = names.iter().take(LISTED_MAX).map(|name| format!("`{name}`"));
            let first: Vec<String> = first.collect();
            format!("`{parent_path}` has no `{part}`; names: {} and {more} more", first.join(", "))
        }
        _ => format!("`{parent_path}` has no `{part}`; names: {}", listed(names.iter().map(String::as_str))),
    };
    (has, nearest(part, names.iter().map(String::as_str)).map(|name| format!("did you mean `{name}`?")))
}

/// Members of a step with `foreach` only.
const OF_ITEMS: [&str; 5] = ["items", "items_file", "total", "succeeded", "failed"];

fn step_value(view: &StepView) -> Raw {
    let mut shelf = BTreeMap::new();
    shelf.insert("status".to_owned(), Raw::from(view.status.as_str()));
    let outputs = match &view.outputs {
        Some(outputs) => {
            let outputs = outputs.iter().map(|(name, value)| (name.clone(), convert::from_json(value)));
            Raw::from_object(Shelf(outputs.collect()))
        }
        None => Raw::from_object(Nothing),
    };
    shelf.insert("outputs".to_owned(), outputs);
    let skipped = view.outputs.is_none();
    // Null after a timeout, a signal or a skip: expressions can test for null.
    shelf.insert("exit_code".to_owned(), Raw::from(view.exit_code));
    if view.stdout.is_some() || skipped {
        shelf.insert("stdout".to_owned(), Raw::from(view.stdout.as_deref()));
    }
    if skipped || view.status == "failed" {
        // For a `foreach` without an outcome; for other steps the file check rejects these names.
        shelf.extend(OF_ITEMS.map(|name| (name.to_owned(), Raw::from(()))));
    }
    if let Some(ItemsView { total, succeeded, failed, items, file }) = &view.items {
        let counts = [("total", total), ("succeeded", succeeded), ("failed", failed)];
        shelf.extend(counts.into_iter().map(|(name, count)| (name.to_owned(), Raw::from(*count))));
        let items = items.as_ref().map(|items| items.iter().map(convert::from_json).collect::<Raw>());
        shelf.extend(items.map(|items| ("items".to_owned(), items)));
        shelf.extend(file.as_deref().map(|file| ("items_file".to_owned(), Raw::from(file))));
    }
    Raw::from_object(Shelf(shelf))
}

/// Values by name.
#[derive(Debug, Clone, Default)]
struct Shelf(BTreeMap<String, Raw>);

impl Object for Shelf {
    fn get_value(self: &Arc<Self>, key: &Raw) -> Option<Raw> {
        self.0.get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.keys().map(|name| Raw::from(name.as_str())).collect())
    }
}

/// Outputs of a skipped step: null for every name.
#[derive(Debug)]
struct Nothing;

impl Object for Nothing {
    fn get_value(self: &Arc<Self>, _key: &Raw) -> Option<Raw> {
        Some(Raw::from(()))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Empty
    }
}

/// Root object for the evaluation of an expression.
#[derive(Debug)]
struct Context(Scope);

impl Object for Context {
    fn get_value(self: &Arc<Self>, key: &Raw) -> Option<Raw> {
        let scope = &self.0;
        match key.as_str()? {
            "params" => Some(Raw::from_dyn_object(Arc::clone(&scope.params))),
            "env" => Some(Raw::from_dyn_object(Arc::clone(&scope.env))),
            "steps" => Some(Raw::from_dyn_object(Arc::clone(&scope.steps))),
            "run" => Some(run_value(scope)),
            "always" => Some(Raw::from_function(|| true)),
            "failure" => {
                let has_failure = scope.has_failure;
                Some(Raw::from_function(move || has_failure))
            }
            "success" => {
                let has_failure = scope.has_failure;
                Some(Raw::from_function(move || !has_failure))
            }
            "skipped" => {
                let steps = Arc::clone(&scope.steps);
                Some(Raw::from_function(move |id: &str| -> bool {
                    let step = steps.0.get(id);
                    let status = step.and_then(|step| step.get_attr("status").ok());
                    status.is_some_and(|status| status.as_str() == Some("skipped"))
                }))
            }
            name => scope.locals.0.get(name).cloned(),
        }
    }
}

fn run_value(scope: &Scope) -> Raw {
    let mut shelf = BTreeMap::from([("id".to_owned(), Raw::from(scope.run_id.as_str()))]);
    for (name, local) in [("failed_step", FAILED_STEP), ("waiting", WAITING_STEP)] {
        shelf.extend(scope.locals.0.get(local).cloned().map(|value| (name.to_owned(), value)));
    }
    Raw::from_object(Shelf(shelf))
}
